"""The end of a product kernel: bias, cast, store."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def store_tile(
    acc: gl.tensor,
    out: gl.tensor,
    bias: gl.tensor,
    m: gl.tensor,
    n: gl.tensor,
    first_m: gl.tensor,
    first_n: gl.tensor,
    bias_stride: gl.tensor,
    SPLIT: gl.constexpr,
    MASK_M: gl.constexpr,
    MASK_N: gl.constexpr,
) -> None:
    """Write a tile of out[M, N], or with split-K of the partial sums [SPLIT, M, N]."""
    row = gl.arange(0, acc.shape[0], layout=gl.SliceLayout(1, acc.type.layout))
    column = gl.arange(0, acc.shape[1], layout=gl.SliceLayout(0, acc.type.layout))
    if bias is not None:
        at = first_n + column
        if MASK_N:
            at = gl.minimum(at, n - 1)
        acc += gl.amd.cdna4.buffer_load(bias, at * bias_stride).to(gl.float32)[None, :]
    tile = gl.cast(first_m, gl.int64) * n + first_n
    if SPLIT > 1:
        tile += gl.cast(gl.program_id(2), gl.int64) * m * n
    y = acc.to(out.dtype.element_ty)
    offsets = row[:, None] * n + column[None, :]
    if MASK_M and MASK_N:
        mask = (row < m - first_m)[:, None] & (column < n - first_n)[None, :]
        gl.amd.cdna4.buffer_store(y, out + tile, offsets, mask=mask)
    elif MASK_M:
        gl.amd.cdna4.buffer_store(y, out + tile, offsets, mask=(row < m - first_m)[:, None])
    elif MASK_N:
        gl.amd.cdna4.buffer_store(y, out + tile, offsets, mask=(column < n - first_n)[None, :])
    else:
        gl.amd.cdna4.buffer_store(y, out + tile, offsets)
