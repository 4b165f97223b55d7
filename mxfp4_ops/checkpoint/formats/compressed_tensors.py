"""compressed-tensors, format `mxfp4-pack-quantized`: what vLLM's LLM Compressor writes.

Layout: `<m>.weight_packed` uint8 `[N, K/2]`, `<m>.weight_scale` uint8 `[N, K/32]`, plain.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..entries import Entry, Settings
from ..source import Source
from .base import Ends, PairFormat

NAME = "compressed-tensors"
PACKED = "mxfp4-pack-quantized"


class CompressedTensors(PairFormat):
    name = NAME
    ends = (Ends(".weight_packed", ".weight_scale", ".weight"),)

    def stated(self, source: Source) -> str | None:
        method = source.quantization_config.get("quant_method")
        return f"config.json has quant_method '{NAME}'" if method == NAME else None

    def entries(self, source: Source) -> dict[str, Entry]:
        if self.stated(source) and not _groups(source):
            stored = source.quantization_config.get("format")
            raise ValueError(
                f"{source.path}: config.json has format {stored!r}; of compressed-tensors' formats "
                f"only '{PACKED}' is MXFP4"
            )
        return super().entries(source)

    def settings(self, source: Source) -> Settings:
        # Its scales round as `even` does, for weights and activations alike.
        for group in _groups(source):
            inputs = group.get("input_activations") or {}
            return Settings(activation="mxfp4" if inputs.get("num_bits") == 4 else "bf16")
        return Settings()

    def excluded(self, source: Source) -> list[str]:
        names = source.quantization_config.get("ignore") or []
        return [name for name in names if not name.startswith("re:")]


def _groups(source: Source) -> list[dict[str, Any]]:
    """The groups of layers that are stored as MXFP4."""
    config = source.quantization_config
    groups = [g for g in (config.get("config_groups") or {}).values() if isinstance(g, dict)]
    return [g for g in groups if (g.get("format") or config.get("format")) == PACKED]


def names(weight: str, shape: Sequence[int]) -> tuple[str, str]:
    """The names under which codes and scales are written.

    Raises:
        ValueError: the format has no place for such a weight.
    """
    if not weight.endswith(".weight") or len(shape) != 2:
        raise ValueError(
            f"{weight} has shape {list(shape)}: compressed-tensors holds the 2-d weights of linear "
            "layers only"
        )
    return f"{weight}_packed", f"{weight}_scale"


def config(settings: Settings, quantized: Sequence[str], left: Sequence[str]) -> dict[str, Any]:
    """The `quantization_config` for config.json, from the names of modules."""
    weights: dict[str, Any] = {
        "num_bits": 4,
        "type": "float",
        "strategy": "group",
        "group_size": 32,
        "symmetric": True,
        "dynamic": False,
        "scale_dtype": "torch.uint8",
    }
    group: dict[str, Any] = {"targets": ["Linear"], "weights": weights, "format": PACKED}
    if settings.activation == "mxfp4":
        group["input_activations"] = {**weights, "dynamic": True}
    return {
        "quant_method": NAME,
        "format": PACKED,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": list(left),
    }


def metadata(settings: Settings) -> dict[str, str]:
    """What goes into each file."""
    return {"format": "pt"}
