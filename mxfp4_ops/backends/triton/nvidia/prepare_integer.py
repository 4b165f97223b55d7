"""Both operands' scales as the integer kernel needs them, and x as it multiplies it.

A block's codes are twice its numbers as integers, up to 12. Its scale is so many powers of two
above the row's *base*, the lowest one; a row where they are at most `HIGHEST` is *plain*, and its
integers, shifted left by them, have 8 bits. Sums of their products are exact over all of K.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..dependent import let_next_begin, wait_for_previous
from ..launch import Launch
from ..numbers import BLOCK, NAN_SCALE, e2m1_codes, float32_bits
from .plan import PART, Plan
from .prepare import (
    BOTH_OF_BFLOAT16,
    BOTH_OF_FLOAT16,
    STEP,
    factor,
    float8_of_codes,
    float8_scale,
    row_part,
    store_float8,
)

HIGHEST = tl.constexpr(3)


@triton.jit
def _of_both(
    high: tl.tensor, low: tl.tensor, other_high: tl.tensor, other_low: tl.tensor
) -> tuple[tl.tensor, tl.tensor]:
    return tl.maximum(high, other_high), tl.minimum(low, other_low)


@triton.jit
def base_of_rows(high: tl.tensor, low: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """Of each row [rows, blocks] the base, and whether it is plain.

    Of scale bytes, which are 0 in `high` and 255 in `low` where they do not count.
    """
    high, low = tl.reduce((high, low), 1, _of_both)
    return tl.where(high < low, 127, low), high - low <= HIGHEST


@triton.jit
def byte_of(word: tl.tensor, i: tl.constexpr) -> tl.tensor:
    return word >> 8 * i & 255


@triton.jit
def blocks_of_zeros(word: tl.tensor, codes: tl.tensor, at: tl.tensor) -> tl.tensor:
    """255 in each byte of a word of scales that is 0 and whose block's codes stand for zeros.

    The first of the four blocks is `at` times 16 bytes behind `codes`.
    """
    found = word * 0
    for i in tl.static_range(4):
        is_zero = byte_of(word, i) == 0
        some = word * 0
        for j in tl.static_range(4):
            words = codes.to(tl.pointer_type(tl.int32)) + (at + i) * 4 + j
            some |= tl.load(words, mask=is_zero, other=0)
        found |= tl.where(is_zero & (some & 0x77777777 == 0), 255, 0) << 8 * i
    return found


@triton.jit
def scales_of_w(
    codes: tl.tensor,
    scales: tl.tensor,
    heights: tl.tensor,
    base_of_w: tl.tensor,
    uneven_of_w: tl.tensor,
    first: tl.tensor,
    n: tl.tensor,
    padded_n: tl.tensor,
    blocks: tl.tensor,
    code_stride: tl.tensor,
    scale_stride: tl.tensor,
    ALIGNED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCKS: tl.constexpr,
) -> None:
    """ROWS rows of W, four scales in a word."""
    row = first + tl.arange(0, ROWS)
    step = tl.arange(0, BLOCKS // 4)[None, :]
    bytes_ = scales + row.to(tl.int64)[:, None] * scale_stride + 4 * step
    inside = (row < n)[:, None]
    if ALIGNED:
        there = inside & (4 * step < blocks)
        word = tl.load(bytes_.to(tl.pointer_type(tl.int32)), mask=there, other=0)
        nothing = tl.where(there, 0, -1)
    else:
        word = tl.zeros([ROWS, BLOCKS // 4], tl.int32)
        nothing = word
        for i in tl.static_range(4):
            there = inside & (4 * step + i < blocks)
            word |= tl.load(bytes_ + i, mask=there, other=0).to(tl.int32) << 8 * i
            nothing |= tl.where(there, 0, 255) << 8 * i
    # Blocks of zeros, whose byte is 0, are none. Mostly there is no such byte.
    may_be_zero = (word - 0x01010101) & ~word & ~nothing & -0x7F7F7F80
    if tl.max(tl.max((may_be_zero != 0).to(tl.int32), 1), 0) > 0:
        at = row.to(tl.int64)[:, None] * code_stride + 4 * step
        nothing |= blocks_of_zeros(word | nothing, codes, at)
    low, high = word | nothing, word & ~nothing
    high = tl.maximum(
        tl.maximum(byte_of(high, 0), byte_of(high, 1)),
        tl.maximum(byte_of(high, 2), byte_of(high, 3)),
    )
    low = tl.minimum(
        tl.minimum(byte_of(low, 0), byte_of(low, 1)), tl.minimum(byte_of(low, 2), byte_of(low, 3))
    )
    base, is_plain = base_of_rows(high, low)
    is_plain &= (base >= 64) & (base <= 191)
    tl.store(base_of_w + row, base)
    tl.store(uneven_of_w + row, (~is_plain).to(tl.int32))
    bases = (base * 0x01010101)[:, None]
    height = (word & ~nothing | bases & nothing) - bases  # no byte borrows: none is below its base
    at = step.to(tl.int64) * padded_n + row[:, None]
    tl.store(heights + at, height, mask=4 * step < blocks)


@triton.jit
def integers(codes: tl.tensor, shift: tl.tensor) -> tl.tensor:
    """Twice the numbers that codes (int32) stand for, shifted left."""
    low = codes & 1
    exponent = codes >> 1 & 3
    magnitude = tl.where(exponent == 0, low, (low + 2) << tl.maximum(exponent - 1, 0)) << shift
    return tl.where(codes > 7, -magnitude, magnitude).to(tl.int8)


@triton.jit
def both(
    x: tl.tensor,
    byte: tl.tensor,
    some: tl.tensor,
    base: tl.tensor,
    largest: tl.tensor,
    QUANTIZE: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """What `row_part` returns as 8-bit floats, and as integers if the row is plain."""
    shift = tl.where(some, byte - base, 0) & 3
    if QUANTIZE and x.dtype != tl.float32:
        of_bfloat16: tl.constexpr = x.dtype == tl.bfloat16
        of_floats = float8_scale(byte, some, largest).broadcast_to(x.shape)
        of_integers = ((shift + 16) << 10).broadcast_to(x.shape)
        floats, whole = tl.inline_asm_elementwise(
            BOTH_OF_BFLOAT16 if of_bfloat16 else BOTH_OF_FLOAT16,
            "=r,=r,r,r,r,r,r,r,r,r,r,r,r,r,r,r",
            [x, factor(byte).broadcast_to(x.shape), of_floats, of_integers],
            dtype=(tl.int8, tl.int8),
            is_pure=True,
            pack=4,
        )
    else:
        codes = e2m1_codes(float32_bits(x), byte) if QUANTIZE else x
        floats, whole = float8_of_codes(codes, byte, largest), integers(codes, shift)
    return floats, whole


@triton.jit
def mxfp4_prepare_integer(
    a: tl.tensor,
    a_scale: tl.tensor,
    operand: tl.tensor,
    reference: tl.tensor,
    integer: tl.tensor,
    base_of_x: tl.tensor,
    uneven_of_x: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    heights: tl.tensor,
    base_of_w: tl.tensor,
    uneven_of_w: tl.tensor,
    n: tl.tensor,
    k: tl.tensor,
    blocks: tl.tensor,
    padded_m: tl.tensor,
    padded_n: tl.tensor,
    padded_k: tl.tensor,
    a_stride_m: tl.tensor,
    a_stride_k: tl.tensor,
    a_scale_stride: tl.tensor,
    code_stride: tl.tensor,
    scale_stride: tl.tensor,
    QUANTIZE: tl.constexpr,
    ROUNDING: tl.constexpr,
    DEPENDENT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    ALIGNED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCKS: tl.constexpr,
) -> None:
    """The first padded_n / ROWS programs take rows of W, the others one row of x.

    `operand` and `reference` are as for `mxfp4_prepare_wide`. `integer` [m, padded_k] int8 has the
    rows that are plain, each step in the order that the lanes of a warp expect, of which each has a
    block of W: the bits of an element's number (2 for the block, 2, 1, 2) come in the order second,
    third, first, last. `heights` [steps, padded_n] has how uneven the scales of W are above their
    base, four bytes in a word; `uneven_of_x` and `uneven_of_w` tell which rows are not plain. With
    ALIGNED, four scales of W can be read as a word. BLOCKS are a power of two that holds a row.
    """
    if DEPENDENT:
        wait_for_previous()  # for what the kernels before wrote
        let_next_begin()
    of_w = padded_n // ROWS
    if tl.program_id(0) < of_w:
        scales_of_w(
            codes, scales, heights, base_of_w, uneven_of_w, tl.program_id(0) * ROWS, n, padded_n,
            blocks, code_stride, scale_stride, ALIGNED, ROWS, BLOCKS,
        )  # fmt: skip
    else:
        row = (tl.program_id(0) - of_w).to(tl.int64)
        a += row * a_stride_m
        if not QUANTIZE:
            a_scale += row * a_scale_stride
        zero = tl.program_id(0) * 0
        x, byte, some = row_part(a, a_scale, zero, k, a_stride_k, QUANTIZE, ROUNDING, BLOCKS)
        if not QUANTIZE:
            some = tl.max(x & 7, 1)[:, None] > 0
        largest = tl.max(tl.max(byte, 1), 0)
        high = tl.reshape(tl.where(some, byte, 0), [1, BLOCKS])
        low = tl.reshape(tl.where(some, byte, 255), [1, BLOCKS])
        base, is_plain = base_of_rows(high, low)
        is_plain = tl.max(is_plain.to(tl.int32), 0)
        base = tl.max(base, 0)
        is_plain = tl.where(largest == NAN_SCALE, 0, is_plain)
        tl.store(reference + row, largest)
        tl.store(base_of_x + row, base)
        tl.store(uneven_of_x + row, 1 - is_plain)
        floats, whole = both(x, byte, some, base, largest, QUANTIZE)
        store_float8(operand, floats, row, zero, padded_k, padded_m, BLOCK_M)
        if is_plain != 0:
            ordered = tl.permute(tl.reshape(whole, [BLOCKS // 4, 4, 4, 2, 4]), [0, 2, 3, 1, 4])
            ordered = tl.reshape(ordered, [BLOCKS * BLOCK])
            element = tl.arange(0, BLOCKS * BLOCK)
            tl.store(integer + row * padded_k + element, ordered, mask=element < padded_k)


def prepared_integer(
    left: Mapping[str, Any],
    right: Mapping[str, Any],
    constants: Mapping[str, Any],
    options: Mapping[str, Any],
    k: int,
    padded_k: int,
    out: Tensor,
    plan: Plan,
    aligned: bool,
) -> Launch:
    """x and the scales of W, which may be `aligned` as words, for the integer kernel."""
    m, n = out.shape
    steps = padded_k // STEP
    part = min(plan.block_m, PART)
    padded_m, padded_n = ceil(m / part) * part, ceil(n / 128) * 128
    blocks = 1 << (4 * steps - 1).bit_length()
    warps = min(max(blocks // 64, 1), 8)
    rows = max(8, 512 // blocks)

    def empty(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return out.new_empty(shape, dtype=dtype)

    made = {
        "operand": empty(steps, padded_m, STEP, dtype=torch.float8_e5m2),
        "reference": empty(padded_m),
        "integer": empty(m, padded_k, dtype=torch.int8),
        "base_of_x": empty(m),
        "uneven_of_x": empty(m),
        "heights": empty(steps, padded_n),
        "base_of_w": empty(padded_n),
        "uneven_of_w": empty(padded_n),
    }
    sizes = {"n": n, "k": k, "padded_m": padded_m, "padded_n": padded_n, "padded_k": padded_k}
    names = "codes", "code_stride", "scales", "scale_stride", "blocks"
    of_w = {name: right[name] for name in names}
    return Launch(
        mxfp4_prepare_integer,
        (padded_n // rows + m, 1, 1),
        {**left, **of_w, **made, **sizes},
        {**constants, "BLOCK_M": part, "ALIGNED": aligned, "ROWS": rows, "BLOCKS": blocks},
        {**options, "num_warps": warps},
        writes=tuple(made),
    )
