"""Products with an MXFP4 weight: of codes (`mm`), and of activations that are quantised on the way.

Each block of 32 is multiplied by itself, so that its sum is exact whatever the matrix units do, and
added to the others in float32 with its two scales applied.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from ... import formats
from .launch import Launch
from .numbers import (
    BLOCK,
    HALF_BLOCK,
    NAN_SCALE,
    SCALE_ROUNDING,
    block_amax,
    e2m1_codes,
    e2m1_values,
    float32_bits,
    rounded_to,
    scale_byte,
    scaled,
)
from .offsets import code_rows, scale_rows
from .plan import ProductPlan
from .product import halves_product, weight_blocks, with_bias
from .reduce import bias_arguments, split_sums


@triton.jit
def mxfp4_gemm(
    a: tl.tensor,
    a_scale: tl.tensor,
    b: tl.tensor,
    b_scale: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    m: tl.tensor,
    n: tl.tensor,
    blocks: tl.tensor,
    blocks_per_split: tl.tensor,
    a_stride_m: tl.tensor,
    a_stride_k: tl.tensor,
    a_scale_stride: tl.tensor,
    b_stride: tl.tensor,
    b_scale_stride: tl.tensor,
    bias_stride: tl.tensor,
    QUANTIZE: tl.constexpr,
    ROUNDING: tl.constexpr,
    SHUFFLED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCKS: tl.constexpr,
) -> None:
    """One program computes a tile of the sums over one split of K, BLOCKS blocks at a time.

    `a` holds codes, or with QUANTIZE floats. `out` is [splits, m, n]. Tensors in the loop have the
    block as their first dimension, and each of the BLOCKS keeps a sum of its own until the end.

    The two halves of a byte are multiplied apart, even elements with even ones and odd with odd.
    """
    down = tl.cdiv(m, BLOCK_M)
    row = (tl.program_id(0) % down * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    column = (tl.program_id(0) // down * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    in_rows = (row < m)[None, :]
    in_columns = (column < n)[None, :]
    split = tl.program_id(1)
    half = tl.arange(0, HALF_BLOCK)

    a_rows = (row * a_stride_m)[None, :, None]
    a_scale_rows = (row * a_scale_stride)[None, :]
    b_rows = code_rows(column, b_stride, SHUFFLED)[None, None, :] + half[None, :, None]
    b_scale_rows = scale_rows(column, b_scale_stride, SHUFFLED)[None, :]
    total = tl.zeros([BLOCKS, BLOCK_M, BLOCK_N], tl.float32)
    a_largest = tl.zeros([BLOCKS, BLOCK_M], tl.int32)
    b_largest = tl.zeros([BLOCKS, BLOCK_N], tl.int32)
    first = split * blocks_per_split
    last = tl.minimum(first + blocks_per_split, blocks)
    for start in range(first, last, BLOCKS):
        block = start + tl.arange(0, BLOCKS)
        a_mask = (block < last)[:, None] & in_rows
        b_mask = (block < last)[:, None] & in_columns

        b_packed, b_byte = weight_blocks(b, b_scale, b_rows, b_scale_rows, block, b_mask, SHUFFLED)
        if QUANTIZE:
            k = block.to(tl.int64)[:, None, None] * BLOCK + tl.arange(0, BLOCK)[None, None, :]
            x = tl.load(a + a_rows + k * a_stride_k, mask=a_mask[:, :, None], other=0.0)
            bits = float32_bits(x)
            a_byte = scale_byte(block_amax(bits), ROUNDING)
            codes = e2m1_codes(bits, a_byte[:, :, None])
            a_low, a_high = tl.split(tl.reshape(codes, [BLOCKS, BLOCK_M, HALF_BLOCK, 2]))
        else:
            k = block[:, None, None] * HALF_BLOCK + half[None, None, :]
            a_packed = tl.load(a + a_rows + k, mask=a_mask[:, :, None], other=0).to(tl.int32)
            a_byte = tl.load(a_scale + a_scale_rows + block[:, None], mask=a_mask, other=0)
            a_byte = a_byte.to(tl.int32)
            a_low = a_packed & 15
            a_high = a_packed >> 4

        of_a = a_byte[:, :, None]
        of_b = b_byte[:, None, :]
        product = halves_product(
            e2m1_values(a_low, of_a),
            e2m1_values(a_high, of_a),
            e2m1_values(b_packed & 15, of_b),
            e2m1_values(b_packed >> 4, of_b),
        )
        total += scaled(product, of_a, of_b)
        a_largest = tl.maximum(a_largest, a_byte)
        b_largest = tl.maximum(b_largest, b_byte)

    largest = tl.maximum(tl.max(a_largest, 0)[:, None], tl.max(b_largest, 0)[None, :])
    result = tl.where(largest == NAN_SCALE, float("nan"), tl.sum(total, 0))
    result = with_bias(result, bias, column * bias_stride, column < n)
    tl.store(
        out + (split.to(tl.int64) * m + row)[:, None] * n + column[None, :],
        rounded_to(result, out.dtype.element_ty),
        mask=(row < m)[:, None] & in_columns,
    )


def codes_operand(a: Tensor, a_scale: Tensor) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run-time and constant arguments for a left side of codes."""
    given = {"a": a, "a_stride_m": a.stride(0), "a_stride_k": 1}
    given |= {"a_scale": a_scale, "a_scale_stride": a_scale.stride(0)}
    return given, {"QUANTIZE": False, "ROUNDING": 0}


def float_operand(x: Tensor, scale_mode: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run-time and constant arguments for a left side that is quantised on the way."""
    given = {"a": x, "a_stride_m": x.stride(0), "a_stride_k": x.stride(1)}
    constants = {"a_scale": None, "a_scale_stride": 0}
    return given, constants | {"QUANTIZE": True, "ROUNDING": SCALE_ROUNDING[scale_mode]}


def mm(
    a: Tensor,
    a_scale: Tensor,
    b: Tensor,
    b_scale: Tensor,
    bias: Tensor | None,
    out: Tensor,
    shuffled: bool,
    plan: ProductPlan,
) -> list[Launch]:
    """out[M, N] = decode(a[M, K/2]) @ decode(b).T + bias, in one launch or with split-K in two."""
    k = 2 * a.shape[1]
    return _product(*codes_operand(a, a_scale), k, b, b_scale, bias, out, shuffled, plan)


def quant_mm(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None,
    out: Tensor,
    shuffled: bool,
    scale_mode: str,
    plan: ProductPlan,
) -> list[Launch]:
    """out[M, N] = quantised(x[M, K]) @ decode(weight).T + bias; x may have any strides."""
    left, k = float_operand(x, scale_mode), x.shape[1]
    return _product(*left, k, weight, weight_scale, bias, out, shuffled, plan)


def _product(
    left: dict[str, Any],
    constants: dict[str, Any],
    k: int,
    b: Tensor,
    b_scale: Tensor,
    bias: Tensor | None,
    out: Tensor,
    shuffled: bool,
    plan: ProductPlan,
) -> list[Launch]:
    m, n = out.shape
    sums, bias_here, last = split_sums(plan.split_k, bias, out)
    bias_given, bias_absent = bias_arguments(bias_here)
    arguments = left | bias_given | {"b": b, "b_scale": b_scale, "out": sums}
    arguments |= {"b_stride": b.stride(0), "b_scale_stride": b_scale.stride(0)}
    arguments |= {"m": m, "n": n, "blocks": k // formats.BLOCK}
    arguments |= {"blocks_per_split": plan.blocks_per_split(k)}
    constants = constants | bias_absent | plan.tile | {"SHUFFLED": shuffled}
    grid = plan.tiles(m, n), plan.split_k, 1
    return [Launch(mxfp4_gemm, grid, arguments, constants, plan.options), *last]
