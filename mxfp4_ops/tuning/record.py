"""A table that grows: each product is written when it is finished."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..backends.devices import Target
from . import lookup
from .candidates import Shape

INNERMOST = re.compile(r"\{[^{}\[\]]*\}")


class Record:
    """The file `<arch>.json` in a folder. A new one begins with the entries that come with the
    package, since it stands in for them."""

    def __init__(self, folder: Path, target: Target, measured_on: str) -> None:
        self.path, self.measured_on = folder / f"{target.arch}.json", measured_on
        shipped = files("mxfp4_ops").joinpath("tuning", "configs", self.path.name)
        self.content: dict[str, Any] = {
            "architecture": target.arch,
            "compute_units": target.compute_units,
            "products": [],
        }
        for source in (self.path, shipped):
            if source.is_file():
                table = lookup.read(source, target.arch)
                if table.target == target:
                    self.content = json.loads(source.read_text(encoding="utf-8"))
                elif source is self.path:
                    units = table.target.compute_units
                    raise ValueError(f"{source} is for {units} compute units, not for {target}")
                break

    def has(self, shape: Shape) -> bool:
        """Whether the product was measured on such a device before."""
        m, n, k = shape
        return any(
            record["m"] == m and record["provenance"].startswith(self.measured_on)
            for product in self.content["products"]
            for record in product["plans"]
            if (product["n"], product["k"]) == (n, k)
        )

    def add(self, shape: Shape, best: Any, how: str, figures: Mapping[str, float]) -> None:
        """Put the best candidate in the place of what the table has for the product."""
        m, n, k = shape
        products = self.content["products"]
        product = next((p for p in products if (p["n"], p["k"]) == (n, k)), None)
        if product is None:
            product = {"n": n, "k": k, "plans": []}
            products.append(product)
        chosen = {"backend": best} if isinstance(best, str) else {"plan": asdict(best)}
        record = {"m": m, **chosen, **figures, "provenance": f"{self.measured_on}, {how}"}
        others = [plan for plan in product["plans"] if plan["m"] != m]
        product["plans"] = sorted([*others, record], key=lambda plan: plan["m"])
        self._write()

    def _write(self) -> None:
        """All or nothing, whenever it is interrupted."""
        text = json.dumps(self.content, indent=2, ensure_ascii=False)
        text = INNERMOST.sub(lambda found: f"{{{' '.join(found[0][1:-1].split())}}}", text)
        temporary = self.path.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_text(text + "\n", encoding="utf-8")
        temporary.replace(self.path)
