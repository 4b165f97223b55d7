"""What a checkpoint holds, in the same terms whatever file it came from."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from .. import api, checks
from ..formats import BLOCK, Activation, ScaleMode

MXFP4 = "MXFP4"
"""The dtype of an `Entry` that is quantised; others have the names that safetensors uses."""

FLOATS = ("F64", "F32", "F16", "BF16")
BYTES = ("U8", "F8_E8M0")
"""Dtypes in which files hold codes and scales."""

_BITS = {"BOOL": 8, "U8": 8, "I8": 8, "I16": 16, "U16": 16, "I32": 32, "U32": 32, "F16": 16}
_BITS |= {"BF16": 16, "F32": 32, "F64": 64, "I64": 64, "U64": 64, "C64": 64}


class Mxfp4Weight(NamedTuple):
    """A quantised weight in the plain layout, as every operator takes it.

    Attributes:
        codes: uint8 `[..., N, K/2]`, two elements to a byte, the even one in the low nibble.
        scales: E8M0 bytes, uint8 `[..., N, K/32]`.
    """

    codes: Tensor
    scales: Tensor

    def dequantize(self, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        """The weight `[..., N, K]` in a float dtype."""
        return api.dequantize(self.codes, self.scales, dtype=dtype)


@dataclass(frozen=True)
class Raw:
    """A tensor as it lies in a file.

    Attributes:
        dtype: as safetensors names it; in a GGUF file also MXFP4 and other block formats.
        shape: of its elements.
        file: name of the file, for messages.
        nbytes: size in the file.
    """

    dtype: str
    shape: tuple[int, ...]
    file: str
    nbytes: int


def raw(dtype: str, shape: tuple[int, ...], file: str) -> Raw:
    bits = 8 if dtype.startswith("F8") else _BITS.get(dtype, 8)
    return Raw(dtype, shape, file, prod(shape) * bits // 8)


@dataclass(frozen=True)
class Entry:
    """A weight or another tensor of a checkpoint.

    Attributes:
        name: that of the float tensor, such as `model.layers.0.mlp.up_proj.weight`.
        dtype: `MXFP4`, or what safetensors calls the dtype: `BF16`, `F32`, ...
        shape: of its elements, `[N, K]` for a linear layer, `[E, N, K]` for experts.
        nbytes: size in the file.
        parts: the tensors in the file that hold it; codes before scales.
        file: the file that holds the first of them.
        transposed: the float model keeps `[..., K, N]`, as Transformers does for gpt-oss's experts.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    parts: tuple[str, ...]
    file: str
    transposed: bool = False

    @property
    def quantized(self) -> bool:
        return self.dtype == MXFP4

    @property
    def module(self) -> str | None:
        """Name of the module if this is its `weight`, else None."""
        module, _, parameter = self.name.rpartition(".")
        return module if parameter == "weight" else None


@dataclass(frozen=True)
class Settings:
    """How a checkpoint's layers are meant to run.

    Attributes:
        scale_mode: how activations get their scales.
        activation: `mxfp4`, or `bf16` where only the weights are quantised.

    Raises:
        ValueError: one of them is not known.
    """

    scale_mode: ScaleMode = "even"
    activation: Activation = "mxfp4"

    def __post_init__(self) -> None:
        checks.mode(self.scale_mode)
        checks.activation(self.activation)


def plain_entry(name: str, tensor: Raw) -> Entry:
    return Entry(name, tensor.dtype, tensor.shape, tensor.nbytes, (name,), tensor.file)


def unpacked_shape(name: str, codes: Raw) -> tuple[int, ...]:
    """Shape of the elements of plain codes.

    Raises:
        ValueError: they are no codes of whole blocks.
    """
    if len(codes.shape) < 2 or codes.shape[-1] * 2 % BLOCK:
        raise ValueError(
            f"{codes.file}: {name} has shape {list(codes.shape)}; codes of MXFP4 have at least 2 "
            "dimensions, the last a multiple of 16 (two elements to a byte, 32 to a block)"
        )
    return (*codes.shape[:-1], codes.shape[-1] * 2)


def pair_entry(
    name: str, codes: tuple[str, Raw], scales: tuple[str, Raw], transposed: bool = False
) -> Entry:
    """An entry of plain codes `[..., K/2]` and scales `[..., K/32]`.

    Raises:
        ValueError: their shapes do not fit.
    """
    (codes_name, have), (scales_name, scale) = codes, scales
    shape = unpacked_shape(codes_name, have)
    needed = [*shape[:-1], shape[-1] // BLOCK]
    if list(scale.shape) != needed:
        raise ValueError(
            f"{scale.file}: {scales_name} must have shape {needed} for {codes_name} of shape "
            f"{list(have.shape)}, but has {list(scale.shape)}"
        )
    size = have.nbytes + scale.nbytes
    return Entry(name, MXFP4, shape, size, (codes_name, scales_name), have.file, transposed)
