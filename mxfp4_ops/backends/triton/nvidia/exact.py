"""A tile of the product without matrix units: exact for scales of any size, and slow.

The fast kernels compute their tile so where an operand is not one of theirs (`operands.py`): with
block scales far from 1, and with NaN or infinities.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .. import numbers, offsets
from ..indices import along
from . import layouts
from .operands import in_range, scale_rows, word_blocks, word_rows

float32_bits = gluon.jit(numbers.float32_bits.fn)
scale_byte = gluon.jit(numbers.scale_byte.fn)
e2m1_codes = gluon.jit(numbers.e2m1_codes.fn)
e2m1_values = gluon.jit(numbers.e2m1_values.fn)
scaled = gluon.jit(numbers.scaled.fn)
code_rows = gluon.jit(offsets.code_rows.fn)
code_blocks = gluon.jit(offsets.code_blocks.fn)
scale_blocks = gluon.jit(offsets.scale_blocks.fn)

NAN_SCALE = numbers.NAN_SCALE
EXACT_COLUMNS = gl.constexpr(8)
"""Rows of x at a time: registers for more would be the whole kernel's."""


@gluon.jit
def values(codes: gl.tensor, byte: gl.tensor) -> gl.tensor:
    return e2m1_values(codes, byte).to(gl.float32)


@gluon.jit
def plus_bias(
    sums: gl.tensor, first: gl.tensor, bias: gl.tensor, n: gl.tensor, bias_stride: gl.tensor
) -> gl.tensor:
    """Sums [rows of W from `first` on, rows of x] with the bias, if there is one."""
    layout: gl.constexpr = sums.type.layout
    if bias is not None:
        row = first + along(0, sums.shape[0], layout, 2)
        added = gl.load(bias + gl.cast(row, gl.int64) * bias_stride, mask=row < n, other=0.0)
        sums += float32_bits(added).to(gl.float32, bitcast=True)
    return sums


@gluon.jit
def put(
    values: gl.tensor,
    first: gl.tensor,
    top: gl.tensor,
    out: gl.tensor,
    m: gl.tensor,
    n: gl.tensor,
) -> None:
    """Values [rows of W, rows of x] from `first` and `top` on, in out[split, m, n]."""
    layout: gl.constexpr = values.type.layout
    row = first + along(0, values.shape[0], layout, 2)
    column = top + along(1, values.shape[1], layout, 2)
    at = out + (gl.program_id(2) * gl.cast(m, gl.int64) + column) * n + row
    gl.store(at, values.to(out.dtype.element_ty), mask=(row < n) & (column < m))


@gluon.jit
def store(
    sums: gl.tensor,
    first: gl.tensor,
    top: gl.tensor,
    bias: gl.tensor,
    out: gl.tensor,
    m: gl.tensor,
    n: gl.tensor,
    bias_stride: gl.tensor,
) -> None:
    """Sums [rows of W, rows of x] from `first` and `top` on, with the bias, in out[split, m, n]."""
    put(plus_bias(sums, first, bias, n, bias_stride), first, top, out, m, n)


@gluon.jit
def largest(t: gl.tensor) -> gl.tensor:
    """Of all elements of a program's tensor, in every thread."""
    return gl.max(gl.reshape(t, [t.numel]), 0)


@gluon.jit
def weight_is_outside(
    codes: gl.tensor,
    scales: gl.tensor,
    n: gl.tensor,
    first: gl.tensor,
    stride: gl.tensor,
    scale_stride: gl.tensor,
    begin: gl.tensor,
    end: gl.tensor,
    SHUFFLED: gl.constexpr,
    layout: gl.constexpr,
) -> gl.tensor:
    """1 if a block in rows from `first` on has a scale byte that the fast loop does not take.

    Blocks of zeros, whose byte is 0, are no such blocks. `layout` is one of words.
    """
    splits: gl.constexpr = layout.shape[0]
    row = gl.cast(gl.minimum(first + along(1, layout.shape[1], layout, 3), n - 1), gl.int64)
    word = along(2, 16, layout, 3)
    block = begin + along(0, splits, layout, 3) * 4 + word // 4
    words = codes.to(gl.pointer_type(gl.int32)) + word_rows(row, stride, SHUFFLED) + word % 4
    bytes_ = scales + scale_rows(row, scale_stride, SHUFFLED)
    found = gl.full(layout.shape, 0, gl.int32, layout=layout)
    for _ in range(begin, end, 4 * splits):
        inside = block < end
        byte = gl.load(bytes_ + scale_blocks(block, SHUFFLED), mask=inside, other=127).to(gl.int32)
        packed = gl.load(words + word_blocks(block, SHUFFLED), mask=inside, other=0)
        outside = (in_range(byte) & 0x80) == 0
        zero = (byte == 0) & ((packed & 0x77777777) == 0)
        found |= (outside & ~zero).to(gl.int32)
        block += 4 * splits
    return largest(found)


@gluon.jit
def exact_tile(
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
) -> None:
    """Compute and store rows `first` and following of W, and `top` and following of x.

    Over the blocks from `begin` on and before `end`. `a` holds codes with their bytes in `a_scale`,
    or with QUANTIZE floats.
    """
    layout: gl.constexpr = layouts.plain(gl.num_warps())
    # Not known to be 16, it keeps the compiler from unrolling loops into more registers.
    half_block = gl.minimum(end, 0) + 16
    for strip in range(0, BLOCK_M, EXACT_COLUMNS):
        row = first + along(0, BLOCK_N, layout, 2)
        column = top + strip + along(1, EXACT_COLUMNS, layout, 2)
        b_row = gl.cast(gl.minimum(row, n - 1), gl.int64)
        a_row = gl.cast(gl.minimum(column, m - 1), gl.int64)
        b_codes = codes + code_rows(b_row, gl.cast(code_stride, gl.int64) * 16, SHUFFLED)
        b_scales = scales + scale_rows(b_row, scale_stride, SHUFFLED)
        a_codes = a + a_row * a_stride_m
        total = gl.zeros([BLOCK_N, EXACT_COLUMNS], gl.float32, layout=layout)
        for block in range(begin, end):
            b_byte = gl.load(b_scales + scale_blocks(block, SHUFFLED)).to(gl.int32)
            k = gl.cast(block, gl.int64) * (32 if QUANTIZE else 16)
            if QUANTIZE:
                amax = gl.cast(a_row * 0, gl.int32)
                for j in range(2 * half_block):
                    bits = float32_bits(gl.load(a_codes + (k + j) * a_stride_k))
                    amax = gl.maximum(amax, bits & 0x7FFFFFFF)
                a_byte = scale_byte(amax, ROUNDING)
            else:
                a_byte = gl.load(a_scale + a_row * a_scale_stride + block).to(gl.int32)
            product = gl.zeros([BLOCK_N, EXACT_COLUMNS], gl.float32, layout=layout)
            for j in range(half_block):
                if QUANTIZE:
                    low = float32_bits(gl.load(a_codes + (k + 2 * j) * a_stride_k))
                    high = float32_bits(gl.load(a_codes + (k + 2 * j + 1) * a_stride_k))
                    low = e2m1_codes(low, a_byte)
                    high = e2m1_codes(high, a_byte)
                else:
                    packed = gl.load(a_codes + (k + j)).to(gl.int32)
                    low = packed & 15
                    high = packed >> 4
                b = gl.load(b_codes + code_blocks(block, SHUFFLED) + j).to(gl.int32)
                product += values(low, a_byte) * values(b & 15, b_byte)
                product += values(high, a_byte) * values(b >> 4, b_byte)
            is_nan = gl.maximum(a_byte, b_byte) == NAN_SCALE
            total += gl.where(is_nan, float("nan"), scaled(product, a_byte, b_byte))
        store(total, first, top + strip, bias, out, m, n, bias_stride)


exact_tile_apart = gluon.jit(exact_tile.fn, noinline=True)
"""It takes no registers from the loop before it. Triton 3.8 has none beside `warp_specialize`."""
