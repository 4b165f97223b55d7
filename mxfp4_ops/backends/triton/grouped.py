"""`grouped_quant_mm` on every GPU: a product for each expert, all in one launch.

The host does not know how many rows an expert has, and does not wait to hear. It launches as many
tiles of rows as there can be; each program finds its expert and its rows from the offsets, those
beyond the last tile find none.
"""

from __future__ import annotations

from math import ceil
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from ... import formats
from .launch import Launch
from .numbers import HALF_BLOCK, NAN_SCALE, e2m1_values, rounded_to, scaled
from .plan import ProductPlan
from .product import halves_product, weight_blocks, with_bias


def row_tiles(rows: int, experts: int, block_m: int) -> int:
    """The most tiles of `block_m` rows that groups can take, rows outside of all groups included.

    Those before the first group and those behind the last count as two groups more.
    """
    return min(rows, rows // block_m + experts + 2)


def padded_groups(experts: int) -> int:
    """A power of two that holds all groups."""
    return 1 << (experts + 1).bit_length()


def expert_bias_arguments(bias: Tensor | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """As `bias_arguments`, of a bias [E, N]."""
    if bias is None:
        return {}, {"bias": None, "bias_stride_e": 0, "bias_stride": 0}
    return {"bias": bias, "bias_stride_e": bias.stride(0), "bias_stride": bias.stride(1)}, {}


@triton.jit
def larger(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    return tl.maximum(a, b)


@triton.jit
def group_ends(
    offsets: tl.tensor,
    offset_stride: tl.tensor,
    index: tl.tensor,
    experts: tl.tensor,
    rows: tl.tensor,
) -> tl.tensor:
    """Where groups end: at the offsets, or where an earlier one ends later; the last at `rows`.

    Whatever the offsets are, the groups do not overlap and hold each row once.
    """
    inside = (index >= 0) & (index <= experts)
    end = tl.load(offsets + index * offset_stride, mask=inside, other=0).to(tl.int64)
    end = tl.where(index > experts, rows, tl.minimum(tl.maximum(end, 0), rows))
    return tl.associative_scan(end, 0, larger)


@triton.jit
def group_of_tile(
    offsets: tl.tensor,
    offset_stride: tl.tensor,
    experts: tl.tensor,
    rows: tl.tensor,
    tile: tl.tensor,
    BLOCK_M: tl.constexpr,
    GROUPS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """(expert, first row, row behind the last one of its group) of a tile of rows.

    Group 0 is the rows before the first expert's, so that its expert is -1.
    """
    index = tl.arange(0, GROUPS)
    begin = group_ends(offsets, offset_stride, index - 1, experts, rows)
    end = group_ends(offsets, offset_stride, index, experts, rows)
    tiles = tl.cdiv(end - begin, BLOCK_M)
    tiles_until = tl.cumsum(tiles, 0)
    group = tl.sum((tiles_until <= tile).to(tl.int32), 0)
    mine = index == group
    earlier = tl.sum(tl.where(mine, tiles_until - tiles, 0), 0)
    first = tl.sum(tl.where(mine, begin, 0), 0) + (tile - earlier) * BLOCK_M
    return group - 1, first, tl.sum(tl.where(mine, end, 0), 0)


@triton.jit
def mxfp4_grouped_gemm(
    a: tl.tensor,
    a_scale: tl.tensor,
    b: tl.tensor,
    b_scale: tl.tensor,
    offsets: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    rows: tl.tensor,
    n: tl.tensor,
    blocks: tl.tensor,
    experts: tl.tensor,
    tiles: tl.tensor,
    offset_stride: tl.tensor,
    b_stride_e: tl.tensor,
    b_stride: tl.tensor,
    b_scale_stride_e: tl.tensor,
    b_scale_stride: tl.tensor,
    bias_stride_e: tl.tensor,
    bias_stride: tl.tensor,
    GROUPS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCKS: tl.constexpr,
) -> None:
    """One program computes a tile of one expert's rows, BLOCKS blocks along K at a time.

    `a` and `a_scale` are contiguous. See `gemm.mxfp4_gemm` for what happens in the loop.
    """
    expert, first, end = group_of_tile(
        offsets, offset_stride, experts, rows, tl.program_id(0) % tiles, BLOCK_M, GROUPS
    )
    row = first + tl.arange(0, BLOCK_M)
    column = (tl.program_id(0) // tiles * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    in_rows, in_columns = row < end, column < n
    # Rows outside of all groups are multiplied by nothing.
    some = (expert >= 0) & (expert < experts) & (first < end)
    last = tl.where(some, blocks, 0)
    expert = tl.where(some, expert, 0).to(tl.int64)

    half = tl.arange(0, HALF_BLOCK)
    a_rows = (row * (blocks * HALF_BLOCK))[None, :, None] + half[None, None, :]
    a_scale_rows = (row * blocks)[None, :]
    b_rows = (expert * b_stride_e + column * b_stride)[None, None, :] + half[None, :, None]
    b_scale_rows = (expert * b_scale_stride_e + column * b_scale_stride)[None, :]
    total = tl.zeros([BLOCKS, BLOCK_M, BLOCK_N], tl.float32)
    a_largest = tl.zeros([BLOCKS, BLOCK_M], tl.int32)
    b_largest = tl.zeros([BLOCKS, BLOCK_N], tl.int32)
    for start in range(0, last, BLOCKS):
        block = start + tl.arange(0, BLOCKS)
        a_mask = (block < last)[:, None] & in_rows[None, :]
        b_mask = (block < last)[:, None] & in_columns[None, :]
        at = (block * HALF_BLOCK)[:, None, None]
        a_packed = tl.load(a + a_rows + at, mask=a_mask[:, :, None], other=0).to(tl.int32)
        a_byte = tl.load(a_scale + a_scale_rows + block[:, None], mask=a_mask, other=0)
        a_byte = a_byte.to(tl.int32)
        b_packed, b_byte = weight_blocks(b, b_scale, b_rows, b_scale_rows, block, b_mask, False)

        of_a, of_b = a_byte[:, :, None], b_byte[:, None, :]
        product = halves_product(
            e2m1_values(a_packed & 15, of_a),
            e2m1_values(a_packed >> 4, of_a),
            e2m1_values(b_packed & 15, of_b),
            e2m1_values(b_packed >> 4, of_b),
        )
        total += scaled(product, of_a, of_b)
        a_largest = tl.maximum(a_largest, a_byte)
        b_largest = tl.maximum(b_largest, b_byte)

    largest = tl.maximum(tl.max(a_largest, 0)[:, None], tl.max(b_largest, 0)[None, :])
    result = tl.where(largest == NAN_SCALE, float("nan"), tl.sum(total, 0))
    bias_at = expert * bias_stride_e + column * bias_stride
    result = with_bias(result, bias, bias_at, in_columns & some)
    tl.store(
        out + row[:, None] * n + column[None, :],
        rounded_to(result, out.dtype.element_ty),
        mask=in_rows[:, None] & in_columns[None, :],
    )


def grouped_mm(
    a: Tensor,
    a_scale: Tensor,
    b: Tensor,
    b_scale: Tensor,
    offsets: Tensor,
    bias: Tensor | None,
    out: Tensor,
    plan: ProductPlan,
) -> list[Launch]:
    """out[T, N] = decode(a[T, K/2]) @ decode(b[expert of the row]).T + bias of that expert."""
    (rows, n), (experts, _, k2) = out.shape, b.shape
    tiles = row_tiles(rows, experts, plan.block_m)
    given, absent = expert_bias_arguments(bias)
    arguments = given | {"a": a, "a_scale": a_scale, "b": b, "b_scale": b_scale, "out": out}
    arguments |= {"offsets": offsets, "offset_stride": offsets.stride(0), "experts": experts}
    arguments |= {"b_stride_e": b.stride(0), "b_stride": b.stride(1)}
    arguments |= {"b_scale_stride_e": b_scale.stride(0), "b_scale_stride": b_scale.stride(1)}
    arguments |= {"rows": rows, "n": n, "blocks": 2 * k2 // formats.BLOCK, "tiles": tiles}
    constants = absent | plan.tile | {"GROUPS": padded_groups(experts)}
    grid = tiles * ceil(n / plan.block_n), 1, 1
    return [Launch(mxfp4_grouped_gemm, grid, arguments, constants, plan.options)]
