"""Tensors that begin, and whose rows begin, at multiples of 16 bytes, for loads of so many."""

from __future__ import annotations

import torch
from torch import Tensor

ALIGNMENT = 16
"""Triton compiles kernels of their own for pointers that are multiples of it, too."""

CONTIGUOUS = torch.contiguous_format


def aligned(t: Tensor, rows: bool = False) -> Tensor:
    """`t`, or a copy if it does not begin at a multiple of 16 bytes, or its `rows` do not."""
    steps = [s for size, s in zip(t.shape[:-1], t.stride(), strict=False) if size > 1]
    starts = [t.data_ptr(), *(steps if rows else [])]
    fits = all(start % ALIGNMENT == 0 for start in starts)
    return t if fits else t.clone(memory_format=CONTIGUOUS)
