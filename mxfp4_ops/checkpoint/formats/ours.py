"""What this package writes: the state dict of a model whose layers are `Mxfp4Linear`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..entries import Settings
from ..source import Source
from .same_name import SameNameFormat

NAME = "mxfp4_ops"


class Ours(SameNameFormat):
    name = NAME

    def stated(self, source: Source) -> str | None:
        if source.quantization_config.get("quant_method") == NAME:
            return f"config.json has quant_method '{NAME}'"
        if source.metadata.get("quant_method") == NAME:
            return f"the file's metadata have quant_method '{NAME}'"
        return None

    def settings(self, source: Source) -> Settings:
        given = {**source.metadata, **source.quantization_config}
        keys = ("scale_mode", "activation")
        try:
            return Settings(**{key: given[key] for key in keys if key in given})
        except ValueError as error:
            raise ValueError(f"{source.path}: {error}") from None

    def excluded(self, source: Source) -> list[str]:
        names = source.quantization_config.get("modules_to_not_convert") or []
        return [name.removesuffix("$") for name in names]


def names(weight: str, shape: Sequence[int]) -> tuple[str, str]:
    """The names under which codes and scales are written."""
    return weight, f"{weight}_scale"


def config(settings: Settings, quantized: Sequence[str], left: Sequence[str]) -> dict[str, Any]:
    """The `quantization_config` for config.json, from the names of modules.

    Transformers takes a name in it for the end of others too, and for the beginning; one that would
    take in a quantised module is closed by a `$`, which makes it a regular expression.
    """
    return {
        "quant_method": NAME,
        "scale_mode": settings.scale_mode,
        "activation": settings.activation,
        "modules_to_not_convert": [_exact(name, quantized) for name in left],
    }


def _exact(name: str, quantized: Sequence[str]) -> str:
    taken = any(other.endswith(name) or other.startswith(f"{name}.") for other in quantized)
    return f"{name}$" if taken else name


def metadata(settings: Settings) -> dict[str, str]:
    """What goes into each file, which may be read without a config.json."""
    return {
        "format": "pt",
        "quant_method": NAME,
        "scale_mode": settings.scale_mode,
        "activation": settings.activation,
    }
