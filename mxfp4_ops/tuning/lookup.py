"""Tables of plans that were measured or counted, one file for each architecture.

`configs/<arch>.json` comes with the package. A file of that name in the user's own directory stands
in for it. What a file holds is described in docs/tuning.md.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import log2
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from ..backends.devices import Target

DIRECTORY_VARIABLE = "MXFP4_OPS_CONFIG_DIR"

directory = os.environ.get(DIRECTORY_VARIABLE) or None
"""The user's own tables: read once, when the package is imported."""


class Tiled(Protocol):
    """What all plans of products have, whatever else theirs may be."""

    @property
    def kernel(self) -> str: ...
    @property
    def block_m(self) -> int: ...
    @property
    def split_k(self) -> int: ...

    def tiles(self, m: int, n: int) -> int: ...


Plan = TypeVar("Plan", bound=Tiled)


@dataclass(frozen=True)
class Entry:
    """What a table holds for one product.

    Attributes:
        source: the file.
        plan: of the Triton kernels; None if another backend was faster.
        backend: that other backend.
        provenance: where and how this was found.
        microseconds: for one call, where it was timed.
    """

    source: str
    m: int
    n: int
    k: int
    plan: tuple[tuple[str, int], ...] | None
    backend: str | None
    provenance: str
    microseconds: float | None = None

    @property
    def title(self) -> str:
        return f"{self.source}, M={self.m} N={self.n} K={self.k}"


@dataclass(frozen=True)
class Table:
    """The entries of one file by (N, K), for GPUs with as many compute units as there are here."""

    source: str
    target: Target
    entries: Mapping[tuple[int, int], tuple[Entry, ...]]

    def __iter__(self) -> Iterator[Entry]:
        return (entry for entries in self.entries.values() for entry in entries)


@dataclass(frozen=True)
class Found(Generic[Plan]):
    """A plan, and where it comes from in words."""

    plan: Plan
    origin: str


def _number(record: Any, key: str, lowest: int = 1) -> int:
    value = record.get(key)
    if type(value) is not int or value < lowest:
        raise ValueError(f"{key!r} must be a whole number, at least {lowest}, not {value!r}")
    return value


def _entry(source: str, n: int, k: int, record: Any) -> Entry:
    m, plan, backend = _number(record, "m"), record.get("plan"), record.get("backend")
    if (plan is None) == (backend is None):
        raise ValueError("there must be either a 'plan' or a 'backend'")
    if plan is not None:
        wrong = [key for key, value in plan.items() if not isinstance(value, int)]
        if wrong:
            raise ValueError(f"{wrong[0]!r} must be a whole number, not {plan[wrong[0]]!r}")
        plan = tuple(sorted(plan.items()))
    provenance = record.get("provenance")
    if not isinstance(provenance, str) or not provenance:
        raise ValueError("'provenance' must say how the entry was found")
    return Entry(source, m, n, k, plan, backend, provenance, record.get("microseconds"))


def read(path: Any, arch: str) -> Table:
    """The table in a file.

    Raises:
        ValueError: it is malformed; the message names the file and the entry.
    """
    source, where = str(path), "the file"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content.get("architecture") != arch:
            raise ValueError(f"'architecture' must be {arch!r}")
        target = Target(arch, _number(content, "compute_units"))
        entries: dict[tuple[int, int], tuple[Entry, ...]] = {}
        for i, product in enumerate(content["products"]):
            where = f"products[{i}]"
            n, k = _number(product, "n"), _number(product, "k")
            for j, record in enumerate(product["plans"]):
                where = f"products[{i}].plans[{j}] (N={n} K={k})"
                entries[n, k] = (*entries.get((n, k), ()), _entry(source, n, k, record))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        problem = f"there is no {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"the table {source} is malformed at {where}: {problem}") from error
    return Table(source, target, entries)


def architectures() -> list[str]:
    """Those that there are tables for."""
    shipped = [f.name for f in files("mxfp4_ops").joinpath("tuning", "configs").iterdir()]
    own = [] if directory is None else [f.name for f in Path(directory).glob("*.json")]
    return sorted({name.removesuffix(".json") for name in shipped + own if name.endswith(".json")})


@cache
def table(arch: str) -> Table | None:
    """The user's table for an architecture, or the package's, or None.

    Raises:
        ValueError: the user's directory is none, or the file in it is malformed.
    """
    name = f"{arch}.json"
    if directory is not None:
        if not Path(directory).is_dir():
            raise ValueError(f"{DIRECTORY_VARIABLE} is {directory!r}, which is not a directory")
        own = Path(directory, name)
        if own.exists():
            return read(own, arch)
    shipped = files("mxfp4_ops").joinpath("tuning", "configs", name)
    return read(shipped, arch) if shipped.is_file() else None


def nearest(target: Target, m: int, n: int, k: int) -> list[Entry]:
    """Entries for (N, K) in the order of their distance from M, which counts in powers of two.

    What holds for another number of compute units is left out.
    """
    if m < 1 or not target.compute_units:
        return []
    found = table(target.arch)
    if found is None or found.target != target:
        return []
    return sorted(found.entries.get((n, k), ()), key=lambda entry: abs(log2(entry.m / m)))


@cache
def _made(entry: Entry, kind: Callable[..., Any]) -> Any:
    assert entry.plan is not None
    try:
        return kind(**dict(entry.plan))
    except (TypeError, ValueError) as error:
        raise ValueError(f"the table is malformed at {entry.title}: {error}") from error


def plans(arch: str, kind: Callable[..., Plan]) -> dict[tuple[int, int, int], Plan]:
    """All plans of a table by (M, N, K)."""
    entries = [entry for entry in table(arch) or () if entry.plan is not None]
    return {(e.m, e.n, e.k): _made(e, kind) for e in entries}


def carries_over(plan: Tiled, rows: int, rule: Tiled, m: int, n: int, units: int) -> bool:
    """Whether a plan that was found for `rows` rows is one for `m` as well.

    It is not, if the rule has another kernel for M, as where activations are quantised in a pass of
    their own from some M on; if there are more than twice or less than half as many tiles now, or
    most of a tile is empty; or if some splits would have to wait for a compute unit.
    """
    tiles, before = plan.tiles(m, n), plan.tiles(rows, n)
    return (
        plan.kernel == rule.kernel
        and before <= 2 * tiles <= 4 * before
        and plan.block_m < max(2 * m, 17)
        and (plan.split_k == 1 or tiles * plan.split_k <= units)
    )


def find(
    target: Target,
    m: int,
    n: int,
    k: int,
    kind: Callable[..., Plan],
    rule: Plan,
    can_run: Callable[[Plan], bool],
) -> Found[Plan]:
    """The table's plan for exactly these sizes, the nearest one that carries over, or the rule's.

    Args:
        kind: the class of the plans.
        rule: the plan by rule.
        can_run: whether the kernels can run the product by a plan.
    """
    for entry in nearest(target, m, n, k):
        if entry.plan is None:
            continue
        plan: Plan = _made(entry, kind)
        if not can_run(plan):
            continue
        if entry.m == m:
            return Found(plan, f"table, these sizes ({entry.title}): {entry.provenance}")
        if carries_over(plan, entry.m, rule, m, n, target.compute_units):
            return Found(plan, f"table, nearest M ({entry.title}): {entry.provenance}")
    return Found(rule, f"rule, for {_why_not(target, n, k)}")


def _why_not(target: Target, n: int, k: int) -> str:
    found = table(target.arch)
    if found is None:
        return f"there is no table for {target.arch}"
    if found.target != target:
        return f"{found.source} is for {found.target.compute_units} compute units"
    if (n, k) not in found.entries:
        return f"{found.source} has nothing for N={n} K={k}"
    return f"{found.source} has no plan for N={n} K={k} that does for so many rows"
