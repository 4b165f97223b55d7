"""Symmetric 4-bit integers in groups, as several libraries take their weights."""

from __future__ import annotations

import torch
from torch import Tensor


def quantize_int4(
    weight: Tensor, group: int, scale_dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Integers -7 to 7 (int8) `[N, K/group, group]`, their scales, and what they stand for."""
    groups = weight.unflatten(-1, (-1, group))
    scales = (groups.abs().amax(-1, keepdim=True) / 7).to(scale_dtype)
    factors = scales.float()
    integers = (groups / torch.where(factors > 0, factors, 1)).round().clamp(-7, 7)
    return integers.to(torch.int8), scales, (integers * factors).flatten(-2)
