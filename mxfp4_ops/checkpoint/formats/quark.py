"""AMD Quark's safetensors.

Layout: `<m>.weight` uint8 `[N, K/2]`, `<m>.weight_scale` uint8 `[N, K/32]`, plain. Its config.json
has `quant_method` "quark"; a weight of MXFP4 is one of dtype `fp4` in groups of 32.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from ...formats import SCALE_MODES, ScaleMode
from ..entries import Entry, Settings
from ..source import Source
from .same_name import SameNameFormat


def _layers(source: Source) -> Iterator[dict[str, Any]]:
    config = source.quantization_config
    yield config.get("global_quant_config") or {}
    for group in ("layer_quant_config", "layer_type_quant_config"):
        yield from (config.get(group) or {}).values()


def _is_mxfp4(spec: object) -> bool:
    if not isinstance(spec, dict):
        return False
    return spec.get("dtype") == "fp4" and spec.get("group_size") == 32


class Quark(SameNameFormat):
    name = "quark"

    def stated(self, source: Source) -> str | None:
        method = source.quantization_config.get("quant_method")
        return "config.json has quant_method 'quark'" if method == "quark" else None

    def entries(self, source: Source) -> dict[str, Entry]:
        if self.stated(source) and not any(
            _is_mxfp4(layer.get("weight")) for layer in _layers(source)
        ):
            raise ValueError(
                f"{source.path}: config.json describes a Quark checkpoint without MXFP4 weights "
                "(dtype 'fp4' in groups of 32)"
            )
        return super().entries(source)

    def settings(self, source: Source) -> Settings:
        for layer in _layers(source):
            if _is_mxfp4(layer.get("weight")):
                inputs = layer.get("input_tensors")
                mode = (inputs or layer["weight"]).get("scale_calculation_mode")
                return Settings(
                    cast(ScaleMode, mode) if mode in SCALE_MODES else "even",
                    "mxfp4" if _is_mxfp4(inputs) else "bf16",
                )
        return Settings()

    def excluded(self, source: Source) -> list[str]:
        names = source.quantization_config.get("exclude") or []
        return [name for name in names if not set(name) & set("*?[")]
