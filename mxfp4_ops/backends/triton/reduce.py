"""The sum of split-K's partial products."""

from __future__ import annotations

from math import ceil
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import Launch
from .numbers import as_float32, rounded_to

ELEMENTS = 512
"""Of the result, for each program."""


@triton.jit
def mxfp4_reduce(
    partials: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    elements: tl.tensor,
    n: tl.tensor,
    bias_stride: tl.tensor,
    SPLITS: tl.constexpr,
    ELEMENTS: tl.constexpr,
) -> None:
    first = tl.program_id(0).to(tl.int64) * ELEMENTS
    index = tl.arange(0, ELEMENTS)  # from the program's first element, so that 32 bits do
    inside = index < elements - first
    partials += first
    total = tl.load(partials + index, mask=inside, other=0.0)
    for _ in tl.static_range(1, SPLITS):
        partials += elements
        total += tl.load(partials + index, mask=inside, other=0.0)
    if bias is not None:
        column = (first + index) % n
        total += as_float32(tl.load(bias + column * bias_stride, mask=inside, other=0.0))
    tl.store(out + first + index, rounded_to(total, out.dtype.element_ty), mask=inside)


def bias_arguments(bias: Tensor | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run-time and constant arguments: without a bias, a kernel is compiled without it."""
    if bias is None:
        return {}, {"bias": None, "bias_stride": 0}
    return {"bias": bias, "bias_stride": bias.stride(0)}, {}


def reduce(partials: Tensor, bias: Tensor | None, out: Tensor) -> list[Launch]:
    """Add float32 partials[S, M, N], the first one first, and the bias; round into out[M, N].

    All are contiguous but the bias, and all may have any float dtype but the partials.
    """
    elements, n = out.numel(), out.shape[-1]
    arguments, constants = bias_arguments(bias)
    arguments |= {"partials": partials, "out": out, "elements": elements, "n": n}
    return [
        Launch(
            mxfp4_reduce,
            (ceil(elements / ELEMENTS), 1, 1),
            arguments,
            constants | {"SPLITS": len(partials), "ELEMENTS": ELEMENTS},
        )
    ]


def split_sums(
    splits: int, bias: Tensor | None, out: Tensor, memory: Tensor | None = None
) -> tuple[Tensor, Tensor | None, list[Launch]]:
    """Where a product with split-K writes, the bias that it adds itself, and what comes after.

    Partial sums lie in `memory`, of float32 and large enough, or in memory of their own.
    """
    if splits == 1:
        return out, bias, []
    if memory is None:
        memory = out.new_empty(splits * out.numel(), dtype=torch.float32)
    partials = memory[: splits * out.numel()].view(splits, *out.shape)
    return partials, None, reduce(partials, bias, out)
