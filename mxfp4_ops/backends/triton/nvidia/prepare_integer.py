"""Both operands' scales as the integer kernel needs them, and x as it multiplies it.

A block's codes are twice its numbers as integers, up to 12. Its scale is a power of two above the
row's *base*: `PLANE` powers of two at a time make a *plane*, and what is left of it, up to 3, is
how far the integers are shifted left. So 8 bits hold them, and sums over blocks of one plane are
exact. Blocks are *low*, in plane 0, *high*, in plane 1, *top*, in plane 2, or else *far*.
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
from . import operands
from .plan import MASK_STEPS, Plan
from .prepare import STEP, of_halves, row_part

PLANE = tl.constexpr(operands.PLANE)
FAR_PLANES = tl.constexpr(operands.FAR_PLANES)
NO_PLANE = tl.constexpr(operands.NO_PLANE)
MASK = tl.constexpr(MASK_STEPS)
NUMBERS = tl.constexpr(1 << 12)
"""Of a row's blocks there are fewer (`LONGEST_ROW` / 32)."""

SCALES_OF_A_WARP = 512
"""Of W, at a time."""


@triton.jit
def _of_both(
    high: tl.tensor, low: tl.tensor, total: tl.tensor,
    other_high: tl.tensor, other_low: tl.tensor, other_total: tl.tensor,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    return tl.maximum(high, other_high), tl.minimum(low, other_low), total + other_total


@triton.jit
def base_of_rows(byte: tl.tensor, counts: tl.tensor) -> tl.tensor:
    """Of each row of scale bytes [rows, blocks] the base, by those counted.

    That is the lowest, but where three planes from there on do not hold all.
    """
    # One reduction, with the number of blocks below their sum.
    summand = tl.where(counts, byte * NUMBERS + 1, 0)
    high, low, total = tl.reduce(
        (tl.where(counts, byte, 0), tl.where(counts, byte, 255), summand), 1, _of_both
    )
    number = total % NUMBERS
    mean = total // NUMBERS // tl.maximum(number, 1)
    # There are outliers; around the mean is most of the rest.
    around = tl.maximum(low, mean - (3 * PLANE // 2 - 1))
    base = tl.where(high - low < 3 * PLANE, low, around)
    return tl.where(number > 0, base, 0)


@triton.jit
def store_masks(
    first_masks: tl.tensor,
    second_masks: tl.tensor,
    first: tl.tensor,
    second: tl.tensor,
    row: tl.tensor,
    inside: tl.tensor,
    rows: tl.tensor,
    steps_per_split: tl.tensor,
    SPLITS: tl.constexpr,
    WORDS: tl.constexpr,
) -> None:
    """Of each row and split, WORDS of 32 bits that tell which steps have some of the blocks.

    Of both kinds at once, in 64 bits.
    """
    STEPS: tl.constexpr = first.shape[1] // 4
    both = tl.reshape(first.to(tl.int32) + 8 * second.to(tl.int32), [first.shape[0], STEPS, 4])
    both = tl.sum(both, 2).to(tl.int64)
    both = (both % 8 != 0).to(tl.int64) + ((both >= 8).to(tl.int64) << 32)
    step = tl.arange(0, STEPS)[None, :]
    for part in tl.static_range(SPLITS * WORDS):
        begin = part // WORDS * steps_per_split + part % WORDS * MASK
        end = tl.minimum(begin + MASK, (part // WORDS + 1) * steps_per_split)
        bit = tl.where((step >= begin) & (step < end), both << ((step - begin) & 31), 0)
        word = tl.sum(bit, 1)
        tl.store(first_masks + row, word.to(tl.int32), mask=inside)
        tl.store(second_masks + row, (word >> 32).to(tl.int32), mask=inside)
        first_masks += rows
        second_masks += rows


@triton.jit
def in_words(byte: tl.tensor) -> tl.tensor:
    """Bytes [rows, blocks], as int32, four in a word: [rows, steps]."""
    place = tl.arange(0, 4)[None, None, :] * 8
    byte = tl.reshape(byte & 255, [byte.shape[0], byte.shape[1] // 4, 4])
    return tl.sum(byte << place, 2)


@triton.jit
def scales_of_w(
    codes: tl.tensor,
    scales: tl.tensor,
    heights: tl.tensor,
    base_of_w: tl.tensor,
    far_of_w: tl.tensor,
    high_of_w: tl.tensor,
    top_of_w: tl.tensor,
    first: tl.tensor,
    n: tl.tensor,
    padded_n: tl.tensor,
    blocks: tl.tensor,
    code_stride: tl.tensor,
    scale_stride: tl.tensor,
    steps_per_split: tl.tensor,
    SPLITS: tl.constexpr,
    WORDS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCKS: tl.constexpr,
) -> None:
    """ROWS rows of W."""
    row = first + tl.arange(0, ROWS)
    block = tl.arange(0, BLOCKS)[None, :]
    there = (row < n)[:, None] & (block < blocks)
    at = row.to(tl.int64)[:, None] * scale_stride + block
    byte = tl.load(scales + at, mask=there, other=127).to(tl.int32)
    # Blocks of zeros, whose byte is 0, are none.
    at = (row.to(tl.int64)[:, None] * code_stride + block)[:, :, None] * 4 + tl.arange(0, 4)
    words = codes.to(tl.pointer_type(tl.int32))
    word = tl.load(words + at, mask=(there & (byte == 0))[:, :, None], other=0)
    some = tl.max((word & 0x77777777 != 0).to(tl.int32), 2) > 0
    there &= some | (byte != 0)
    in_range = ((byte ^ (byte << 1)) & 0x80) != 0
    base = base_of_rows(byte, there & in_range)
    height = tl.where(there, byte - base[:, None], 0)
    plane = height >> 2
    far = there & ~((plane >= 0) & (plane <= 2) & in_range)
    tl.store(base_of_w + row, base)
    store_masks(
        high_of_w, top_of_w, there & (plane == 1), there & (plane == 2), row, row < n, n,
        steps_per_split, SPLITS, WORDS,
    )  # fmt: skip
    store_masks(far_of_w, far_of_w, far, far, row, row < n, n, steps_per_split, SPLITS, WORDS)
    step = tl.arange(0, BLOCKS // 4)[None, :]
    at = step.to(tl.int64) * padded_n + row[:, None]
    tl.store(heights + at, in_words(height), mask=step < tl.cdiv(blocks, 4))


@triton.jit
def integers(codes: tl.tensor, shift: tl.tensor) -> tl.tensor:
    """Twice the numbers that codes (int32) stand for, shifted left."""
    low = codes & 1
    exponent = codes >> 1 & 3
    magnitude = tl.where(exponent == 0, low, (low + 2) << tl.maximum(exponent - 1, 0)) << shift
    return tl.where(codes > 7, -magnitude, magnitude).to(tl.int8)


@triton.jit
def store_row(
    to: tl.tensor,
    integer: tl.tensor,
    row: tl.tensor,
    padded_k: tl.tensor,
    BLOCKS: tl.constexpr,
) -> None:
    """In the order that `mxfp4_prepare_integer` says."""
    integer = tl.reshape(integer, [BLOCKS // 4, 4, 4, 2, 4])
    integer = tl.reshape(tl.permute(integer, [0, 2, 3, 1, 4]), [BLOCKS * BLOCK])
    element = tl.arange(0, BLOCKS * BLOCK)
    tl.store(to + row * padded_k + element, integer, mask=element < padded_k)


@triton.jit
def store_row_of(
    to: tl.tensor,
    integer: tl.tensor,
    some: tl.tensor,
    row: tl.tensor,
    padded_k: tl.tensor,
    BLOCKS: tl.constexpr,
) -> None:
    """Store some blocks of a row, and zeros for the others. Mostly there are none."""
    if tl.max(tl.max(some.to(tl.int32), 1), 0) > 0:
        store_row(to, tl.where(tl.reshape(some, [BLOCKS, 1]), integer, 0), row, padded_k, BLOCKS)
    else:
        element = tl.arange(0, BLOCKS * BLOCK)
        zeros = tl.zeros([BLOCKS * BLOCK], tl.int8)
        tl.store(to + row * padded_k + element, zeros, mask=element < padded_k)


@triton.jit
def mxfp4_prepare_integer(
    a: tl.tensor,
    a_scale: tl.tensor,
    low: tl.tensor,
    high: tl.tensor,
    top: tl.tensor,
    planes: tl.tensor,
    base_of_x: tl.tensor,
    far_of_x: tl.tensor,
    high_of_x: tl.tensor,
    top_of_x: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    heights: tl.tensor,
    base_of_w: tl.tensor,
    far_of_w: tl.tensor,
    high_of_w: tl.tensor,
    top_of_w: tl.tensor,
    m: tl.tensor,
    n: tl.tensor,
    k: tl.tensor,
    blocks: tl.tensor,
    padded_n: tl.tensor,
    padded_k: tl.tensor,
    steps_per_split: tl.tensor,
    a_stride_m: tl.tensor,
    a_stride_k: tl.tensor,
    a_scale_stride: tl.tensor,
    code_stride: tl.tensor,
    scale_stride: tl.tensor,
    QUANTIZE: tl.constexpr,
    ROUNDING: tl.constexpr,
    DEPENDENT: tl.constexpr,
    SPLITS: tl.constexpr,
    WORDS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCKS: tl.constexpr,
) -> None:
    """The first padded_n / ROWS programs take rows of W, the others one of the m rows of x.

    `high` and `top` have such blocks, `low` all others, zero elsewhere, as [m, padded_k] int8.
    Elements are where the lanes of a warp, of which each has a block of W, expect them: of a step,
    the bits of an element's number (2 for the block, 2, 1, 2) come in the order second, third,
    first, last.
    `planes` [steps, m] has each block's plane as a byte, four in a word; `heights`
    [steps, padded_n] how far the scales of W are above their base, modulo 256. The masks tell of
    the steps with such blocks. BLOCKS are a power of two that holds a row.
    """
    if DEPENDENT:
        wait_for_previous()  # for what the kernels before wrote
        let_next_begin()
    of_w = padded_n // ROWS
    if tl.program_id(0) < of_w:
        scales_of_w(
            codes, scales, heights, base_of_w, far_of_w, high_of_w, top_of_w,
            tl.program_id(0) * ROWS, n, padded_n, blocks, code_stride, scale_stride,
            steps_per_split, SPLITS, WORDS, ROWS, BLOCKS,
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
        is_nan = tl.reshape(byte == NAN_SCALE, [1, BLOCKS])
        of_blocks = tl.reshape(byte, [1, BLOCKS])
        some = tl.reshape(some, [1, BLOCKS])
        base = base_of_rows(of_blocks, some & ~is_nan)
        height = of_blocks - base[:, None]
        plane = tl.where(some, height >> 2, 0)
        is_far = (plane < 0) | (plane > 2) | is_nan
        is_top = (plane == 2) & ~is_nan
        is_high = (plane == 1) & ~is_nan
        one = tl.arange(0, 1)
        tl.store(base_of_x + row + one, base)
        store_masks(
            high_of_x, top_of_x, is_high, is_top, row + one, one == 0, m, steps_per_split, SPLITS,
            WORDS,
        )  # fmt: skip
        store_masks(
            far_of_x, far_of_x, is_far, is_far, row + one, one == 0, m, steps_per_split, SPLITS,
            WORDS,
        )  # fmt: skip
        lost = is_nan | (plane < -FAR_PLANES) | (plane > FAR_PLANES)
        step = tl.arange(0, BLOCKS // 4)[None, :]
        at = planes + step.to(tl.int64) * m + row
        tl.store(at, in_words(tl.where(lost, NO_PLANE, plane)), mask=step < padded_k // 128)
        shift = tl.reshape(height & 3, [BLOCKS, 1])
        if QUANTIZE and x.dtype != tl.float32:
            integer = of_halves(x, byte, (shift + 16) << 10, INTEGER=True)
        else:
            integer = integers(e2m1_codes(float32_bits(x), byte) if QUANTIZE else x, shift)
        in_low = tl.reshape(some & ~is_high & ~is_top, [BLOCKS, 1])
        store_row(low, tl.where(in_low, integer, 0), row, padded_k, BLOCKS)
        store_row_of(high, integer, is_high, row, padded_k, BLOCKS)
        store_row_of(top, integer, is_top, row, padded_k, BLOCKS)


def prepared_integer(
    left: Mapping[str, Any],
    right: Mapping[str, Any],
    constants: Mapping[str, Any],
    options: Mapping[str, Any],
    k: int,
    padded_k: int,
    out: Tensor,
    plan: Plan,
) -> Launch:
    """x and the scales of W for the integer kernel."""
    m, n = out.shape
    steps, per_split = padded_k // STEP, plan.blocks_per_split(k) // 4
    padded_n = ceil(n / 128) * 128
    words = plan.mask_words(k)
    blocks = 1 << (4 * steps - 1).bit_length()
    # With many rows, latency is hidden by other programs.
    warps = min(max(blocks // (64 if m >= 1024 else 32), 1), 16)
    rows = max(1, min(SCALES_OF_A_WARP * warps // blocks, 128))

    def empty(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return out.new_empty(shape, dtype=dtype)

    made = {
        "low": empty(m, padded_k, dtype=torch.int8),
        "high": empty(m, padded_k, dtype=torch.int8),
        "top": empty(m, padded_k, dtype=torch.int8),
        "planes": empty(steps, m),
        "base_of_x": empty(m),
        "far_of_x": empty(plan.split_k * words, m),
        "high_of_x": empty(plan.split_k * words, m),
        "top_of_x": empty(plan.split_k * words, m),
        "heights": empty(steps, padded_n),
        "base_of_w": empty(padded_n),
        "far_of_w": empty(plan.split_k * words, n),
        "high_of_w": empty(plan.split_k * words, n),
        "top_of_w": empty(plan.split_k * words, n),
    }
    sizes = {"m": m, "n": n, "k": k, "padded_n": padded_n, "padded_k": padded_k}
    sizes["steps_per_split"] = per_split
    names = "codes", "code_stride", "scales", "scale_stride", "blocks"
    of_w = {name: right[name] for name in names}
    own = {"SPLITS": plan.split_k, "WORDS": words, "ROWS": rows, "BLOCKS": blocks}
    return Launch(
        mxfp4_prepare_integer,
        (padded_n // rows + m, 1, 1),
        {**left, **of_w, **made, **sizes},
        {**constants, **own},
        {**options, "num_warps": warps},
        writes=tuple(made),
    )
