"""`torch.mm` with the weight in bfloat16: the vendor's library."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

import mxfp4_ops


def mm(weights: Sequence[tuple[Tensor, Tensor]], x: Tensor) -> list[Callable[[], Tensor]]:
    dequantised = [mxfp4_ops.dequantize(*w, dtype=torch.bfloat16) for w in weights]
    return [lambda w=w: torch.mm(x, w.T) for w in dequantised]  # type: ignore[misc]
