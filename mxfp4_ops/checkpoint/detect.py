"""Which format a checkpoint has, from what it says of itself. Nothing is guessed."""

from __future__ import annotations

from .formats import REGISTRY
from .formats.base import Format
from .formats.plain import NAME as FLOAT
from .formats.plain import quantized_somehow
from .source import Source


def detect(source: Source, format: str | None = None) -> Format:
    """The format that config.json, metadata and tensors agree on.

    Args:
        format: decides instead, if given.

    Raises:
        ValueError: `format` is unknown; or they disagree, describe a format that is not read, or
            leave more than one possible. The message says what was seen.
    """
    if format is not None:
        if format not in REGISTRY:
            raise ValueError(f"format must be one of {', '.join(REGISTRY)}, got {format!r}")
        return REGISTRY[format]
    stated = {name: why for name, each in REGISTRY.items() if (why := each.stated(source))}
    seen = {name: tensor for name, each in REGISTRY.items() if (tensor := each.seen(source))}
    if len(stated) > 1:
        raise _problem(source, f"{' and '.join(stated.values())}, which contradict each other")
    if not stated and source.quantization_config:
        method = source.quantization_config.get("quant_method")
        raise _problem(source, f"config.json has quant_method {method!r}, which is not read")
    if stated:
        (name,) = stated
        if seen and name not in seen:
            other, tensor = next(iter(seen.items()))
            raise _problem(source, f"{stated[name]}, but {tensor} is named as in format {other!r}")
        return REGISTRY[name]
    if len(seen) > 1:
        tensor = next(iter(seen.values()))
        raise _problem(
            source,
            f"neither a config.json nor metadata say what it is, and {tensor} may be of "
            f"{' or '.join(map(repr, seen))}",
        )
    if seen:
        return REGISTRY[next(iter(seen))]
    odd = quantized_somehow(source)
    if odd is not None:
        tensor_seen = source.tensors[odd]
        raise _problem(
            source,
            f"{odd} is {tensor_seen.dtype} {list(tensor_seen.shape)}, as in no format that is read",
        )
    return REGISTRY[FLOAT]


def _problem(source: Source, seen: str) -> ValueError:
    choices = ", ".join(f"'{name}'" for name in REGISTRY)
    return ValueError(f"{source.path}: unknown format: {seen}; say format= one of {choices}")
