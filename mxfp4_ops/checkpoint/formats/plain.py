"""Checkpoints without MXFP4: floats to be quantised."""

from __future__ import annotations

from ..entries import Entry, plain_entry
from ..source import Source
from .base import Format

NAME = "float"
_QUANTIZED = ("U8", "I8", "F8_", "F6_", "F4")


class Float(Format):
    name = NAME

    def stated(self, source: Source) -> str | None:
        return None

    def seen(self, source: Source) -> str | None:
        return None

    def entries(self, source: Source) -> dict[str, Entry]:
        return {name: plain_entry(name, tensor) for name, tensor in source.tensors.items()}


def quantized_somehow(source: Source) -> str | None:
    """A matrix of a dtype in which other formats hold quantised weights, or None."""
    for name, tensor in source.tensors.items():
        if len(tensor.shape) >= 2 and tensor.dtype.startswith(_QUANTIZED):
            return name
    return None
