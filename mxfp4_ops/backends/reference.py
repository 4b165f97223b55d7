"""Plain torch in float64, on any device that has it: slow, and right by construction."""

from __future__ import annotations

from collections.abc import Callable
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
    lead, k, n = a.shape[:-1], a.shape[-1] * 2, b.shape[0]
    if shuffled:
        b, b_scale = layout.unshuffle(b, b_scale, n, k)
    left = formats.dequantize_reference(_rows(a), _rows(a_scale), torch.float64)
    out = torch.empty(left.shape[0], n, dtype=out_dtype, device=a.device)
    step = _rows_at_a_time(k)
    for start in range(0, n, step):
        part = slice(start, start + step)
        right = formats.dequantize_reference(b[part], b_scale[part], torch.float64)
        y = left @ right.T
        if bias is not None:
            y += bias[part]
        out[:, part] = y.to(torch.float32)
    return out.view(*lead, n)


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
    f.__name__: f for f in (quant_mm, mm, quantize, dequantize)
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
