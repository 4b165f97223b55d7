"""Plain torch in float64, on any device that has it: slow, and right by construction."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from .. import formats, layout
from .base import Backend, Call

CHUNK = 1 << 22
"""Elements converted at a time, so that each float64 copy stays within 32 MiB."""


def _rows_at_a_time(k: int) -> int:
    return max(1, CHUNK // max(1, k))


def _rows(t: Tensor) -> Tensor:
    """Fold the leading dimensions; `reshape(-1, 0)` would not know how many rows there are."""
    return t.reshape(t.shape[:-1].numel(), t.shape[-1])


def quantize(x: Tensor, scale_mode: str) -> tuple[Tensor, Tensor]:
    *lead, k = x.shape
    parts = [formats.quantize_reference(p, scale_mode) for p in _rows(x).split(_rows_at_a_time(k))]
    codes, scales = (torch.cat(p) for p in zip(*parts, strict=True))
    return codes.view(*lead, k // 2), scales.view(*lead, k // formats.BLOCK)


def dequantize(q: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    *lead, k2 = q.shape
    step = _rows_at_a_time(2 * k2)
    parts = zip(_rows(q).split(step), _rows(scale).split(step), strict=True)
    values = torch.cat([formats.dequantize_reference(*p, dtype) for p in parts])
    return values.view(*lead, 2 * k2)


def mm(
    a: Tensor,
    a_scale: Tensor,
    b: Tensor,
    b_scale: Tensor,
    bias: Tensor | None,
    out_dtype: torch.dtype,
    shuffled: bool,
) -> Tensor:
    left = formats.dequantize_reference(_rows(a), _rows(a_scale), torch.float64)
    out = _product(left, b, b_scale, bias, out_dtype, shuffled)
    return out.view(*a.shape[:-1], b.shape[0])


def mm_a16(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None,
    out_dtype: torch.dtype | None,
    shuffled: bool,
) -> Tensor:
    left = _rows(x).to(torch.float64)
    out = _product(left, weight, weight_scale, bias, out_dtype or x.dtype, shuffled)
    return out.view(*x.shape[:-1], weight.shape[0])


def groups(offsets: Tensor, rows: int) -> list[tuple[int, int]]:
    """First row and row behind the last one of each expert.

    Offsets are cut to the rows that there are, and one that is smaller than another before it
    counts as that one: groups never overlap.
    """
    ends = list(accumulate((min(max(o, 0), rows) for o in offsets.tolist()), max))
    return list(pairwise(ends))


def grouped_quant_mm(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    offsets: Tensor,
    bias: Tensor | None,
    out_dtype: torch.dtype | None,
    scale_mode: str,
) -> Tensor:
    out = x.new_zeros(x.shape[0], weight.shape[1], dtype=out_dtype or x.dtype)
    for expert, (first, end) in enumerate(groups(offsets, x.shape[0])):
        right = weight[expert], weight_scale[expert], None if bias is None else bias[expert]
        out[first:end] = quant_mm(x[first:end], *right, out.dtype, False, scale_mode)
    return out


def _product(
    left: Tensor,
    b: Tensor,
    b_scale: Tensor,
    bias: Tensor | None,
    out_dtype: torch.dtype,
    shuffled: bool,
) -> Tensor:
    """left[M, K], in float64, times a weight."""
    (m, k), n = left.shape, b.shape[0]
    if shuffled:
        b, b_scale = layout.unshuffle(b, b_scale, n, k)
    out = torch.empty(m, n, dtype=out_dtype, device=left.device)
    step = _rows_at_a_time(k)
    for start in range(0, n, step):
        part = slice(start, start + step)
        right = formats.dequantize_reference(b[part], b_scale[part], torch.float64)
        y = left @ right.T
        if bias is not None:
            y += bias[part]
        out[:, part] = y.to(torch.float32)
    return out


def quant_mm(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None,
    out_dtype: torch.dtype | None,
    shuffled: bool,
    scale_mode: str,
) -> Tensor:
    q, scale = quantize(x, scale_mode)
    return mm(q, scale, weight, weight_scale, bias, out_dtype or x.dtype, shuffled)


OPERATORS: dict[str, Callable[..., Any]] = {
    f.__name__: f for f in (quant_mm, mm, mm_a16, grouped_quant_mm, quantize, dequantize)
}


class Reference(Backend):
    name = "reference"
    serves = "any device with float64"

    def unavailable(self) -> str | None:
        return None

    def refuses(self, call: Call) -> str | None:
        if call.device.type == "mps":
            return "Apple's MPS device has no float64"
        return None

    def detail(self) -> str:
        return "plain torch, float64"

    def run(self, call: Call, *args: Any) -> Any:
        return OPERATORS[call.op](*args)


BACKEND = Reference()
