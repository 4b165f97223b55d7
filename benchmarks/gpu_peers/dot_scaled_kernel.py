"""The kernel of `dot_scaled.py`, apart from it because it needs Triton."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def product(
    a: tl.tensor,
    a_scale: tl.tensor,
    b: tl.tensor,
    b_scale: tl.tensor,
    out: tl.tensor,
    m: tl.tensor,
    n: tl.tensor,
    k: tl.tensor,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> None:
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    byte, block = tl.arange(0, BLOCK_K // 2), tl.arange(0, BLOCK_K // 32)
    read_row, read_column = tl.minimum(row, m - 1), tl.minimum(column, n - 1)
    a += read_row[:, None] * (k // 2) + byte[None, :]
    b += read_column[None, :] * (k // 2) + byte[:, None]
    a_scale += read_row[:, None] * (k // 32) + block[None, :]
    b_scale += read_column[:, None] * (k // 32) + block[None, :]
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for _ in range(0, k, BLOCK_K):
        total = tl.dot_scaled(
            tl.load(a), tl.load(a_scale), "e2m1", tl.load(b), tl.load(b_scale), "e2m1", total
        )
        a += BLOCK_K // 2
        b += BLOCK_K // 2
        a_scale += BLOCK_K // 32
        b_scale += BLOCK_K // 32
    at = out + row[:, None] * n + column[None, :]
    tl.store(at, total.to(tl.bfloat16), mask=(row < m)[:, None] & (column < n)[None, :])
