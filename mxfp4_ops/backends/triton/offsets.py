"""Where the bytes of codes and scales lie, in the plain and in the shuffled layout (`layout.py`).

An offset is the sum of one for the row and one for the block of 32 along K; a block's 16 bytes of
codes are neighbours in both layouts.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def code_rows(row: tl.tensor, stride: tl.tensor, SHUFFLED: tl.constexpr) -> tl.tensor:
    """Offsets of rows (int64) of codes; `stride` is that of the tensor's rows."""
    return row // 16 * (16 * stride) + row % 16 * 16 if SHUFFLED else row * stride


@triton.jit
def code_blocks(block: tl.tensor, SHUFFLED: tl.constexpr) -> tl.tensor:
    return block * (256 if SHUFFLED else 16)


@triton.jit
def scale_rows(row: tl.tensor, stride: tl.tensor, SHUFFLED: tl.constexpr) -> tl.tensor:
    """Offsets of rows (int64) of scales; `stride` is that of the tensor's rows."""
    shuffled = row // 32 * (32 * stride) + row % 16 * 4 + row % 32 // 16
    return shuffled if SHUFFLED else row * stride


@triton.jit
def scale_blocks(block: tl.tensor, SHUFFLED: tl.constexpr) -> tl.tensor:
    return block // 8 * 256 + block % 4 * 64 + block % 8 // 4 * 2 if SHUFFLED else block
