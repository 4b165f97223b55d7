"""The end of a tile: its sums are stored, or what the fast loop cannot compute is computed anew."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ..indices import along
from .exact import exact_tile, largest, nan_unless, store, weight_is_outside


@gluon.jit
def over_splits(sums: gl.tensor, layout: gl.constexpr) -> gl.tensor:
    """[splits, rows of W, rows of x] added up, the first split first; `layout` is one of them."""
    if sums.shape[0] > 1:
        plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
        sums = gl.allocate_shared_memory(gl.float32, sums.shape, plain, sums).load(layout)
    return gl.sum(sums, 0)


@gluon.jit
def finish(
    sums: gl.tensor,
    fits: gl.tensor,
    a: gl.tensor,
    a_scale: gl.tensor,
    codes: gl.tensor,
    scales: gl.tensor,
    bias: gl.tensor,
    out: gl.tensor,
    m: gl.tensor,
    n: gl.tensor,
    first: gl.tensor,
    top: gl.tensor,
    begin: gl.tensor,
    end: gl.tensor,
    a_stride_m: gl.tensor,
    a_stride_k: gl.tensor,
    a_scale_stride: gl.tensor,
    code_stride: gl.tensor,
    scale_stride: gl.tensor,
    bias_stride: gl.tensor,
    QUANTIZE: gl.constexpr,
    ROUNDING: gl.constexpr,
    SHUFFLED: gl.constexpr,
    sums_layout: gl.constexpr,
    splits_layout: gl.constexpr,
    word_layout: gl.constexpr,
) -> None:
    """Store sums [splits, rows of W, rows of x], or such without splits, from `first` and `top` on.

    A row of W has a scale byte that the fast loop does not take where `fits` says so, and a NaN
    among the sums may come from one of x.
    """
    SPLIT: gl.constexpr = len(sums.shape) == 3
    BLOCK_N: gl.constexpr = sums.shape[len(sums.shape) - 2]
    BLOCK_M: gl.constexpr = sums.shape[len(sums.shape) - 1]
    layout: gl.constexpr = gl.SliceLayout(0, splits_layout) if SPLIT else sums_layout
    row = first + along(0, BLOCK_N, layout, 2)
    column = top + along(1, BLOCK_M, layout, 2)
    result = nan_unless(fits, sums, sums_layout)
    if SPLIT:
        result = over_splits(result, splits_layout)
    is_nan = (row < n) & (column < m) & (result != result)
    if largest(is_nan.to(gl.int32)) == 0:
        store(result, row, column, bias, out, m, n, bias_stride)
    else:
        result = over_splits(sums, splits_layout) if SPLIT else sums
        is_nan = (row < n) & (column < m) & (result != result)
        outside = largest(is_nan.to(gl.int32)) | weight_is_outside(
            codes, scales, n, first, code_stride, scale_stride, begin, end, SHUFFLED, word_layout
        )
        if outside == 0:  # there was nothing but blocks of zeros
            store(result, row, column, bias, out, m, n, bias_stride)
        else:
            exact_tile(
                a, a_scale, codes, scales, bias, out, m, n, first, top, begin, end, a_stride_m,
                a_stride_k, a_scale_stride, code_stride, scale_stride, bias_stride, QUANTIZE,
                ROUNDING, SHUFFLED, BLOCK_N, BLOCK_M,
            )  # fmt: skip
