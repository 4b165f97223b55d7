"""What `mxfp4-ops inspect` tells of a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..formats import E8M0_BIAS, E8M0_NAN
from .entries import Entry, Mxfp4Weight
from .progress import track
from .reader import Checkpoint


@dataclass(frozen=True)
class Layer:
    """One tensor of a checkpoint; the keys of the command's JSON.

    Attributes:
        stored: the dtype in the file.
        nbytes: size in the file.
        relative_error: norm of the difference to the float tensor divided by that one's norm; None
            where there is nothing to compare.
    """

    name: str
    stored: str
    shape: tuple[int, ...]
    nbytes: int
    relative_error: float | None = None


@dataclass(frozen=True)
class Inspection:
    """A checkpoint, read once from end to end.

    Attributes:
        exponents: how many scales there are of each exponent; of blocks that are NaN under None.
        unmatched: quantised weights that the float checkpoint does not hold, or not in this shape.
    """

    layers: list[Layer]
    exponents: dict[int | None, int]
    unmatched: list[str]


def look(
    checkpoint: Checkpoint, against: Checkpoint | None = None, progress: bool = True
) -> Inspection:
    """Read all quantised weights, one at a time."""
    counts = torch.zeros(256, dtype=torch.int64)
    layers: list[Layer] = []
    unmatched: list[str] = []
    quantized = (entry for entry in checkpoint.entries.values() if entry.quantized)
    errors: dict[str, float] = {}
    for entry in track(quantized, progress):
        weight = checkpoint.read(entry.name)
        assert isinstance(weight, Mxfp4Weight)
        counts += torch.bincount(weight.scales.flatten(), minlength=256)
        if against is not None:
            exact = _twin(entry, against)
            if exact is None:
                unmatched.append(entry.name)
            else:
                errors[entry.name] = _error(weight, exact)
    for entry in checkpoint.entries.values():
        stored = checkpoint.stored(entry.name) if not entry.quantized else entry.dtype
        error = errors.get(entry.name)
        layers.append(Layer(entry.name, stored, entry.shape, entry.nbytes, error))
    exponents: dict[int | None, int] = {
        None if byte == E8M0_NAN else byte - E8M0_BIAS: count
        for byte, count in enumerate(counts.tolist())
        if count
    }
    return Inspection(layers, exponents, unmatched)


def _twin(entry: Entry, against: Checkpoint) -> Tensor | None:
    """The float tensor of a weight, `[..., N, K]`."""
    other = against.entries.get(entry.name)
    if other is None or len(other.shape) < 2:
        return None
    *lead, n, k = other.shape
    turned = entry.transposed and (*lead, k, n) == entry.shape
    if not turned and other.shape != entry.shape:
        return None
    found = against.read(other.name)
    if isinstance(found, Mxfp4Weight):
        return None
    return found.transpose(-1, -2) if turned else found


def _error(weight: Mxfp4Weight, exact: Tensor) -> float:
    difference = weight.dequantize(torch.float32).sub_(exact)
    error, size = (t.norm(dtype=torch.float64).item() for t in (difference, exact.float()))
    return error / size if size else error
