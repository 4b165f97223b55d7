"""Our own operators, whatever backend they choose."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

import mxfp4_ops  # noqa: F401  registers them


def _calls(
    operator: Callable[..., Tensor], weights: Sequence[tuple[Tensor, Tensor]], x: Tensor
) -> list[Callable[[], Tensor]]:
    return [lambda w=w: operator(x, *w) for w in weights]  # type: ignore[misc]


def quant_mm(weights: Sequence[tuple[Tensor, Tensor]], x: Tensor) -> list[Callable[[], Tensor]]:
    return _calls(torch.ops.mxfp4.quant_mm, weights, x)


def mm_a16(weights: Sequence[tuple[Tensor, Tensor]], x: Tensor) -> list[Callable[[], Tensor]]:
    return _calls(torch.ops.mxfp4.mm_a16, weights, x)
