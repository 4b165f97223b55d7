"""The straightforward Triton kernel: both operands' codes and scales into `tl.dot_scaled`.

x is quantised by our own `quantize` in each call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec

import torch
from torch import Tensor

import mxfp4_ops


def missing() -> str | None:
    return None if find_spec("triton") else "Triton is not installed"


def mm(weights: Sequence[tuple[Tensor, Tensor]], x: Tensor) -> list[Callable[[], Tensor]]:
    from .dot_scaled_kernel import product

    (m, k), n = x.shape, len(weights[0][0])
    block_m = 16 if m <= 16 else 64 if m <= 64 else 128
    block_n = 32 if m <= 16 else 64 if m <= 64 else 128
    grid = -(-m // block_m), -(-n // block_n)

    def call(codes: Tensor, scales: Tensor) -> Tensor:
        a, a_scale = mxfp4_ops.quantize(x)
        out = torch.empty(m, n, dtype=torch.bfloat16, device=x.device)
        product[grid](a, a_scale, codes, scales, out, m, n, k, block_m, block_n, 128, num_warps=4)
        return out

    return [lambda w=w: call(*w) for w in weights]  # type: ignore[misc]
