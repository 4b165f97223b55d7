"""The operators on tensors: what is allocated and which kernels are launched.

Each returns its result and the launches that fill it; `kernels` is the module that makes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ... import formats
from .launch import Launch


def _rows(t: Tensor) -> Tensor:
    """Fold the leading dimensions: a view where there is one, a copy where not."""
    return t.reshape(t.shape[:-1].numel(), t.shape[-1])


def _byte_rows(t: Tensor) -> Tensor:
    return _rows(t.view(torch.uint8))


def quantize(
    kernels: Any, x: Tensor, scale_mode: str
) -> tuple[tuple[Tensor, Tensor], list[Launch]]:
    *lead, k = x.shape
    rows = _rows(x)
    codes = x.new_empty(len(rows), k // 2, dtype=torch.uint8)
    scales = x.new_empty(len(rows), k // formats.BLOCK, dtype=torch.uint8)
    launches = kernels.quantize(rows, codes, scales, scale_mode)
    return (codes.view(*lead, k // 2), scales.view(*lead, k // formats.BLOCK)), launches


def dequantize(
    kernels: Any, q: Tensor, scale: Tensor, dtype: torch.dtype
) -> tuple[Tensor, list[Launch]]:
    *lead, k2 = q.shape
    codes = _byte_rows(q)
    out = codes.new_empty(len(codes), 2 * k2, dtype=dtype)
    return out.view(*lead, 2 * k2), kernels.dequantize(codes, _byte_rows(scale), out)


def mm(
    kernels: Any,
    a: Tensor,
    a_scale: Tensor,
    b: Tensor,
    b_scale: Tensor,
    bias: Tensor | None,
    out_dtype: torch.dtype,
    shuffled: bool,
) -> tuple[Tensor, list[Launch]]:
    codes, n = _byte_rows(a), len(b)
    out = codes.new_empty(len(codes), n, dtype=out_dtype)
    right = b.view(torch.uint8), b_scale.view(torch.uint8)
    launches = kernels.mm(codes, _byte_rows(a_scale), *right, bias, out, shuffled)
    return out.view(*a.shape[:-1], n), launches


def quant_mm(
    kernels: Any,
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None,
    out_dtype: torch.dtype | None,
    shuffled: bool,
    scale_mode: str,
) -> tuple[Tensor, list[Launch]]:
    rows, n = _rows(x), len(weight)
    out = x.new_empty(len(rows), n, dtype=out_dtype or x.dtype)
    right = weight.view(torch.uint8), weight_scale.view(torch.uint8)
    launches = kernels.quant_mm(rows, *right, bias, out, shuffled, scale_mode)
    return out.view(*x.shape[:-1], n), launches


def mm_a16(
    kernels: Any,
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None,
    out_dtype: torch.dtype | None,
    shuffled: bool,
) -> tuple[Tensor, list[Launch]]:
    rows, n = _rows(x), len(weight)
    out = x.new_empty(len(rows), n, dtype=out_dtype or x.dtype)
    right = weight.view(torch.uint8), weight_scale.view(torch.uint8)
    launches = kernels.mm_a16(rows, *right, bias, out, shuffled)
    return out.view(*x.shape[:-1], n), launches


def grouped_quant_mm(
    kernels: Any,
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    offsets: Tensor,
    bias: Tensor | None,
    out_dtype: torch.dtype | None,
    scale_mode: str,
) -> tuple[Tensor, list[Launch]]:
    out = x.new_empty(len(x), weight.shape[1], dtype=out_dtype or x.dtype)
    right = weight.view(torch.uint8), weight_scale.view(torch.uint8)
    return out, kernels.grouped_quant_mm(x, *right, offsets, bias, out, scale_mode)


OPERATORS: dict[str, Callable[..., Any]] = {
    f.__name__: f for f in (quant_mm, mm, mm_a16, grouped_quant_mm, quantize, dequantize)
}
