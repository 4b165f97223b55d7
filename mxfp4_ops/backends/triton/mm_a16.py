"""The product of float activations with an MXFP4 weight, on every GPU.

Each block of 32 is multiplied by itself and added to the others in float32, so that errors stay
small whatever the matrix units do. The weight is decoded to the activations' dtype for it. Those
with float32's exponents take the weight's scale in as well, so that no sum leaves their range
where the result does not; float16 has no room for it, and needs none.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ... import formats
from .launch import Launch
from .numbers import (
    BIAS,
    HALF_BLOCK,
    INTERPRETED,
    NAN_SCALE,
    as_float32,
    e2m1_values,
    rounded_to,
)
from .offsets import code_rows, scale_rows
from .plan import ProductPlan
from .product import halves_product, weight_blocks, with_bias
from .reduce import bias_arguments, split_sums

LARGEST_EXPONENT = tl.constexpr(120)
"""Of the scales that a decoded weight holds; with it 6 is a normal number still, and 0.5 with its
opposite."""


@triton.jit
def power_of_two(exponent: tl.tensor) -> tl.tensor:
    """2**exponent in float32, where that is a normal number."""
    return ((exponent + BIAS) << 23).to(tl.float32, bitcast=True)


@triton.jit
def decoded(codes: tl.tensor, within: tl.tensor, dtype: tl.constexpr) -> tl.tensor:
    """4-bit codes as numbers of `dtype`, times 2**within unless that is float16."""
    values = e2m1_values(codes, codes & 0)
    if dtype == tl.float16:
        result = values
    else:
        result = (values.to(tl.float32) * power_of_two(within)).to(dtype)
    return result


@triton.jit
def mxfp4_mm_a16(
    x: tl.tensor,
    weight: tl.tensor,
    weight_scale: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    m: tl.tensor,
    n: tl.tensor,
    blocks: tl.tensor,
    blocks_per_split: tl.tensor,
    x_stride_m: tl.tensor,
    x_stride_k: tl.tensor,
    weight_stride: tl.tensor,
    weight_scale_stride: tl.tensor,
    bias_stride: tl.tensor,
    SHUFFLED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCKS: tl.constexpr,
) -> None:
    """One program computes a tile of the sums over one split of K, BLOCKS blocks at a time.

    `out` is [splits, m, n]. Tensors in the loop have the block as their first dimension. Even and
    odd elements, which share bytes of codes, are multiplied apart.
    """
    down = tl.cdiv(m, BLOCK_M)
    row = (tl.program_id(0) % down * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    column = (tl.program_id(0) // down * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    in_rows = (row < m)[None, :]
    in_columns = (column < n)[None, :]
    split = tl.program_id(1)
    dtype: tl.constexpr = x.dtype.element_ty

    x_rows = (row * x_stride_m)[None, :, None]
    code_row = code_rows(column, weight_stride, SHUFFLED)[None, None, :]
    code_row += tl.arange(0, HALF_BLOCK)[None, :, None]
    scale_row = scale_rows(column, weight_scale_stride, SHUFFLED)[None, :]
    total = tl.zeros([BLOCKS, BLOCK_M, BLOCK_N], tl.float32)
    largest = tl.zeros([BLOCKS, BLOCK_N], tl.int32)
    first = split * blocks_per_split
    last = tl.minimum(first + blocks_per_split, blocks)
    for start in range(first, last, BLOCKS):
        block = start + tl.arange(0, BLOCKS)
        x_mask = (block < last)[:, None] & in_rows
        mask = (block < last)[:, None] & in_columns

        packed, byte = weight_blocks(
            weight, weight_scale, code_row, scale_row, block, mask, SHUFFLED
        )
        k = block.to(tl.int64)[:, None, None] * (2 * HALF_BLOCK)
        k += tl.arange(0, 2 * HALF_BLOCK)[None, None, :]
        values = tl.load(x + x_rows + k * x_stride_k, mask=x_mask[:, :, None], other=0.0)
        if INTERPRETED and dtype == tl.bfloat16:  # the interpreter does not multiply it
            values = as_float32(values)
        x_even, x_odd = tl.split(tl.reshape(values, [BLOCKS, BLOCK_M, HALF_BLOCK, 2]))

        exponent = byte - BIAS
        within = tl.minimum(tl.maximum(exponent, -LARGEST_EXPONENT), LARGEST_EXPONENT)
        if dtype == tl.float16:
            within = exponent // 2  # in two steps, neither of which leaves float32's range
        inside = within[:, None, :]
        product = halves_product(
            x_even,
            x_odd,
            decoded(packed & 15, inside, values.dtype),
            decoded(packed >> 4, inside, values.dtype),
        )
        if dtype == tl.float16:
            product *= power_of_two(within)[:, None, :]
        total += product * power_of_two(exponent - within)[:, None, :]
        largest = tl.maximum(largest, byte)

    result = tl.where((tl.max(largest, 0) == NAN_SCALE)[None, :], float("nan"), tl.sum(total, 0))
    result = with_bias(result, bias, column * bias_stride, column < n)
    tl.store(
        out + (split.to(tl.int64) * m + row)[:, None] * n + column[None, :],
        rounded_to(result, out.dtype.element_ty),
        mask=(row < m)[:, None] & in_columns,
    )


def mm_a16(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None,
    out: Tensor,
    shuffled: bool,
    plan: ProductPlan,
) -> list[Launch]:
    """out[M, N] = x[M, K] @ decode(weight).T + bias, in one launch or with split-K in two."""
    (m, n), k = out.shape, x.shape[1]
    sums, bias_here, last = split_sums(plan.split_k, bias, out)
    bias_given, bias_absent = bias_arguments(bias_here)
    arguments = bias_given | {"x": x, "x_stride_m": x.stride(0), "x_stride_k": x.stride(1)}
    arguments |= {"weight": weight, "weight_stride": weight.stride(0)}
    arguments |= {"weight_scale": weight_scale, "weight_scale_stride": weight_scale.stride(0)}
    arguments |= {"out": sums, "m": m, "n": n, "blocks": k // formats.BLOCK}
    arguments |= {"blocks_per_split": plan.blocks_per_split(k)}
    constants = bias_absent | plan.tile | {"SHUFFLED": shuffled}
    grid = plan.tiles(m, n), plan.split_k, 1
    return [Launch(mxfp4_mm_a16, grid, arguments, constants, plan.options), *last]
