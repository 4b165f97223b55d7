"""The end of a tile: sums are stored, and what the fast loop cannot compute is computed anew."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ..indices import along
from . import layouts
from .exact import largest, plus_bias, put, weight_is_outside
from .operands import REFERENCE

barrier = getattr(gl, "barrier", None) or gl.thread_barrier  # the name before Triton 3.7


@gluon.jit
def over_splits(sums: gl.tensor, layout: gl.constexpr) -> gl.tensor:
    """[splits, rows of W, rows of x] added up, the first split first; `layout` is one of them."""
    if sums.shape[0] > 1:
        plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
        sums = gl.allocate_shared_memory(gl.float32, sums.shape, plain, sums).load(layout)
    return gl.sum(sums, 0)


@gluon.jit
def trouble(
    sums: gl.tensor,
    fits: gl.tensor,
    m: gl.tensor,
    n: gl.tensor,
    first: gl.tensor,
    top: gl.tensor,
    layout: gl.constexpr,
) -> gl.tensor:
    """2 if a sum is NaN, else 1 if a row of W has a scale byte that is not `in_range`, else 0.

    `sums` are [splits, rows of W, rows of x], from rows `first` and `top` on; `fits` are
    [splits, rows of W, 4].
    """
    row = first + along(1, sums.shape[1], layout, 3)
    column = top + along(2, sums.shape[2], layout, 3)
    least = gl.min(fits & 0x80, 2)
    least = gl.convert_layout(least, gl.SliceLayout(2, layout), assert_trivial=True)
    outside = (gl.expand_dims(least, 2) == 0).to(gl.int32)
    is_nan = (row < n) & (column < m) & (sums != sums)
    return largest(gl.where(is_nan, 2, outside))


@gluon.jit
def store_sums(sums: gl.tensor, first: gl.tensor, top: gl.tensor, result: gl.tuple) -> None:
    """Store wgmma's sums with the bias.

    Results of 2 bytes go through shared memory, so that lanes store neighbours in memory.
    """
    bias, out, m, n, bias_stride = result
    sums = plus_bias(sums, first, bias, n, bias_stride).to(out.dtype.element_ty)
    # Of 4 bytes, lanes that are neighbours fill sectors of memory as they are.
    if out.dtype.element_ty.primitive_bitwidth < 32:
        sums = gl.convert_layout(sums, layouts.columns(sums.shape[0]))
    put(sums, first, top, out, m, n)


@gluon.jit
def scaled_floats(sums: gl.tensor, reference: gl.tensor) -> gl.tensor:
    """Sums of 8-bit floats times what their row of x is scaled by, of which that is the byte."""
    # A power of two that float32 may not hold, but the halves' two.
    reference = gl.convert_layout(reference, gl.SliceLayout(0, sums.type.layout))
    exponent = gl.expand_dims(reference, 0) - REFERENCE
    half = exponent >> 1
    sums *= ((half + 127) << 23).to(gl.float32, bitcast=True)
    return sums * ((exponent - half + 127) << 23).to(gl.float32, bitcast=True)


@gluon.jit
def some_nan(
    sums: gl.tensor, first: gl.tensor, top: gl.tensor, m: gl.tensor, n: gl.tensor
) -> gl.tensor:
    """2 if a sum is NaN, else 0."""
    layout: gl.constexpr = sums.type.layout
    row = first + along(0, sums.shape[0], layout, 2)
    column = top + along(1, sums.shape[1], layout, 2)
    return largest(((row < n) & (column < m) & (sums != sums)).to(gl.int32)) * 2


@gluon.jit
def compute_anew(
    found: gl.tensor,
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
    BLOCK_N: gl.constexpr,
    BLOCK_M: gl.constexpr,
    word_layout: gl.constexpr,
    EXACT: gl.constexpr,
) -> None:
    """Store the tile again where `trouble` found something other than blocks of zeros.

    EXACT is one form or the other of `exact_tile`.
    """
    if found != 0:
        barrier()  # other threads have stored what is stored again
        if found == 1:
            found = weight_is_outside(
                codes, scales, n, first, code_stride, scale_stride, begin, end, SHUFFLED,
                word_layout,
            )  # fmt: skip
        if found != 0:
            EXACT(
                a, a_scale, codes, scales, bias, out, m, n, first, top, begin, end, a_stride_m,
                a_stride_k, a_scale_stride, code_stride, scale_stride, bias_stride, QUANTIZE,
                ROUNDING, SHUFFLED, BLOCK_N, BLOCK_M,
            )  # fmt: skip
