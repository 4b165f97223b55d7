"""x as the fast kernels multiply it: quantised, decoded, and in the order in which they take it."""

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
from ..numbers import (
    BLOCK,
    HALF_BLOCK,
    NAN,
    NAN_SCALE,
    block_amax,
    e2m1_codes,
    e2m1_values,
    float32_bits,
    scale_byte,
)
from . import operands
from .plan import STEP_BLOCKS, Plan

STEP = 32 * STEP_BLOCKS

MOST_BLOCKS = 1024
"""Of a row that a program holds at a time."""

SHIFT = tl.constexpr(operands.EXPONENT - 127)
LOWEST = tl.constexpr(operands.SMALLEST)
HIGHEST = tl.constexpr(operands.LARGEST)
BELOW = tl.constexpr(operands.BELOW)
FLOAT8_NAN = tl.constexpr(0x7F)


@triton.jit
def row_part(
    a: tl.tensor,
    a_scale: tl.tensor,
    first: tl.tensor,
    k: tl.tensor,
    a_stride_k: tl.tensor,
    QUANTIZE: tl.constexpr,
    ROUNDING: tl.constexpr,
    BLOCKS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Numbers or codes [BLOCKS, 32] of a row from block `first` on, 0 beyond k.

    And of each block the scale byte and whether the block may be other than zero, [BLOCKS, 1].
    """
    if QUANTIZE:
        column = first.to(tl.int64) * BLOCK + tl.arange(0, BLOCKS * BLOCK)
        x = tl.load(a + column * a_stride_k, mask=column < k, other=0.0)
        x = tl.reshape(x, [BLOCKS, BLOCK])
        amax = block_amax(float32_bits(x))[:, None]
        byte = scale_byte(amax, ROUNDING)
        some = amax > 0
    else:
        pair = first * (BLOCK // 2) + tl.arange(0, BLOCKS * BLOCK // 2)
        packed = tl.load(a + pair, mask=pair < k // 2, other=0).to(tl.int32)
        x = tl.reshape(tl.join(packed & 15, packed >> 4), [BLOCKS, BLOCK])
        block = first + tl.arange(0, BLOCKS)
        byte = tl.load(a_scale + block, mask=block < k // BLOCK, other=0).to(tl.int32)[:, None]
        some = byte >= 0
    return x, byte, some


@triton.jit
def mxfp4_prepare(
    a: tl.tensor,
    a_scale: tl.tensor,
    operand: tl.tensor,
    m: tl.tensor,
    k: tl.tensor,
    padded_k: tl.tensor,
    padded_m: tl.tensor,
    a_stride_m: tl.tensor,
    a_stride_k: tl.tensor,
    a_scale_stride: tl.tensor,
    QUANTIZE: tl.constexpr,
    ROUNDING: tl.constexpr,
    STORED: tl.constexpr,
    DEPENDENT: tl.constexpr,
    BLOCKS: tl.constexpr,
) -> None:
    """One program converts BLOCKS blocks of one of m rows of floats, or of codes.

    `operand` is [padded_k / 128, padded_m, 128] bfloat16, zero beyond k, in which elements of
    STORED rows are interleaved, so that the lanes of a warp read neighbours. A block that bfloat16
    cannot hold becomes NaN.
    """
    across = tl.cdiv(padded_k // BLOCK, BLOCKS)
    row = (tl.program_id(0) // across).to(tl.int64)
    first = tl.program_id(0) % across * BLOCKS
    column = first.to(tl.int64) * BLOCK + tl.arange(0, BLOCKS * BLOCK)
    if DEPENDENT:
        wait_for_previous()  # for what the kernels before wrote
        let_next_begin()
    a += row * a_stride_m
    if not QUANTIZE:
        a_scale += row * a_scale_stride
    x, byte, _ = row_part(a, a_scale, first, k, a_stride_k, QUANTIZE, ROUNDING, BLOCKS)
    codes = e2m1_codes(float32_bits(x), byte) if QUANTIZE else x
    magnitude = float32_bits(e2m1_values(codes & 7, byte & 0)) + ((byte + SHIFT) << 23)
    zero = (codes & 7) == 0
    fits = (byte >= LOWEST) & (byte <= HIGHEST)
    # A block of zeros has the byte 0.
    value = tl.where(fits, magnitude | ((codes & 8) << 28), NAN)
    value = tl.where(zero & (byte < LOWEST), 0, tl.where(zero & fits, 0, value)) >> 16
    value = value.to(tl.int16).to(tl.bfloat16, bitcast=True)

    # The bits of an element's number in its step: two for the lane, which is its block, then five.
    value = tl.reshape(value, [BLOCKS // 4, 2, 2, 2, 2, 2, 2, 2])
    step = column // 128
    value = tl.permute(value, [0, 4, 6, 1, 2, 7, 3, 5])
    quarter = column % 128 // 32
    offset = (step * padded_m + row // 8 * STORED) * 128
    offset += (quarter * STORED + row % 8) * 32 + column % 32
    tl.store(operand + offset, tl.reshape(value, [BLOCKS * BLOCK]), mask=column < padded_k)


# What becomes of an E2M1 number in float16, and which byte of that is the result: the upper byte of
# a float16 is an 8-bit float; 1536 and an integer have that in the lower byte.
FLOAT8_RESULT = "mul.rn.f16x2 {1}, {0}, s;", "0x7531"
INTEGER_RESULT = "mov.b32 e, 0x66006600; fma.rn.f16x2 {1}, {0}, s, e;", "0x6420"


def _of_halves(unpack: str, *results: tuple[str, str]) -> str:
    """PTX for 4 numbers of 16 bits, with 4 float32 factors and for each result 4 float16 scales.

    The factor makes a number one of E2M1's, to which it is rounded: added to 768 times the power of
    two below it, and to at least 768, float16 has just those. A result is a word of 4 bytes.
    """
    lines = ["{", ".reg .b32 a, b, e, s, h0, h1, r0, r1;"]
    x, factor, scale = (len(results) + i for i in (0, 2, 6))
    for i, h in enumerate(("h0", "h1")):
        lines += [
            unpack.format(f"${x + i}"),
            f"mul.rn.f32 a, a, ${factor + 2 * i}; mul.rn.f32 b, b, ${factor + 2 * i + 1};",
            f"cvt.rn.f16x2.f32 {h}, b, a; mov.b32 s, 0x3C003C00;",
            f"and.b32 e, {h}, 0x7C007C00; max.f16x2 e, e, s; add.u32 e, e, 0x26002600;",
            f"add.rn.f16x2 {h}, {h}, e; sub.rn.f16x2 {h}, {h}, e;",
            f"mov.b32 s, 0x46004600; min.f16x2 {h}, {h}, s;",
            f"mov.b32 s, 0xC600C600; max.f16x2 {h}, {h}, s;",
        ]
    for j, (scaled, byte) in enumerate(results):
        for i in range(2):
            at = scale + 4 * j + 2 * i
            lines.append(f"prmt.b32 s, ${at}, ${at + 1}, 0x5410; {scaled.format(f'h{i}', f'r{i}')}")
        lines.append(f"prmt.b32 ${j}, r0, r1, {byte};")
    return "\n".join([*lines, "}"])


_OF_BFLOAT16 = "shl.b32 a, {0}, 16; and.b32 b, {0}, 0xFFFF0000;"
_OF_FLOAT16 = "{{ .reg .b16 l, u; mov.b32 {{l, u}}, {0}; cvt.f32.f16 a, l; cvt.f32.f16 b, u; }}"
FLOAT8_OF_BFLOAT16 = tl.constexpr(_of_halves(_OF_BFLOAT16, FLOAT8_RESULT))
FLOAT8_OF_FLOAT16 = tl.constexpr(_of_halves(_OF_FLOAT16, FLOAT8_RESULT))
BOTH_OF_BFLOAT16 = tl.constexpr(_of_halves(_OF_BFLOAT16, FLOAT8_RESULT, INTEGER_RESULT))
BOTH_OF_FLOAT16 = tl.constexpr(_of_halves(_OF_FLOAT16, FLOAT8_RESULT, INTEGER_RESULT))


@triton.jit
def factor(byte: tl.tensor) -> tl.tensor:
    """What numbers in blocks with a scale byte are multiplied by to be E2M1's."""
    bits = tl.where(byte < 254, (254 - byte) << 23, 0x400000)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def float8_of_halves(x: tl.tensor, byte: tl.tensor, scale: tl.tensor) -> tl.tensor:
    """Numbers of 16 bits in blocks with a scale byte, as E2M1 has them, times a float16 (bits)."""
    of_bfloat16: tl.constexpr = x.dtype == tl.bfloat16
    return tl.inline_asm_elementwise(
        FLOAT8_OF_BFLOAT16 if of_bfloat16 else FLOAT8_OF_FLOAT16,
        "=r,r,r,r,r,r,r,r,r,r,r",
        [x, factor(byte).broadcast_to(x.shape), scale.broadcast_to(x.shape)],
        dtype=tl.int8,
        is_pure=True,
        pack=4,
    )


@triton.jit
def float8_scale(byte: tl.tensor, some: tl.tensor, largest: tl.tensor) -> tl.tensor:
    """What E2M1 numbers are multiplied by to be 8-bit floats, as a float16's bits."""
    exponent = byte - largest + BELOW // 2
    holds = (exponent >= -(BELOW // 2)) & (byte != NAN_SCALE)
    scale = tl.where(holds, (exponent + 15) << 10, 0x7E00)
    return tl.where(some, scale, 0)


@triton.jit
def float8_of_codes(codes: tl.tensor, byte: tl.tensor, largest: tl.tensor) -> tl.tensor:
    """Codes (int32) as 8-bit floats."""
    exponent = byte - largest + BELOW // 2
    holds = (exponent >= -(BELOW // 2)) & (byte != NAN_SCALE)
    magnitude = codes & 7
    value = (magnitude << 1) - ((magnitude == 1).to(tl.int32) << 1) + ((exponent + 14) << 2)
    value = tl.where(magnitude == 0, 0, tl.where(holds, value, FLOAT8_NAN))
    return tl.where(byte == NAN_SCALE, FLOAT8_NAN, value | ((codes & 8) << 4)).to(tl.int8)


@triton.jit
def float8(
    x: tl.tensor, byte: tl.tensor, some: tl.tensor, largest: tl.tensor, QUANTIZE: tl.constexpr
) -> tl.tensor:
    """What `row_part` returns as 8-bit floats, where the row's largest scale byte is known.

    What they cannot hold is NaN.
    """
    if QUANTIZE and x.dtype != tl.float32:
        value = float8_of_halves(x, byte, float8_scale(byte, some, largest))
    else:
        codes = e2m1_codes(float32_bits(x), byte) if QUANTIZE else x
        value = float8_of_codes(codes, byte, largest)
    return value


@triton.jit
def store_float8(
    operand: tl.tensor,
    value: tl.tensor,
    row: tl.tensor,
    first: tl.tensor,
    padded_k: tl.tensor,
    padded_m: tl.tensor,
    BLOCK_M: tl.constexpr,
) -> None:
    """Store blocks [BLOCKS, 32] of a row (int64), from `first` on, as `mxfp4_prepare_wide` says."""
    BLOCKS: tl.constexpr = value.shape[0]
    value = tl.reshape(value, [BLOCKS, HALF_BLOCK, 2])
    value = tl.reshape(tl.permute(value, [0, 2, 1]), [BLOCKS * BLOCK])
    element = tl.arange(0, BLOCKS * BLOCK)
    block = first + element // BLOCK
    line = block % 4 * BLOCK_M + row % BLOCK_M
    line ^= line >> 3 & 3
    offset = block // 4 * (padded_m.to(tl.int64) * 128) + row // BLOCK_M * (BLOCK_M * 128)
    offset += line * BLOCK + element % BLOCK
    bytes_ = operand.to(tl.pointer_type(tl.int8))
    tl.store(bytes_ + offset, value, mask=block < padded_k // BLOCK)


@triton.jit
def mxfp4_prepare_wide(
    a: tl.tensor,
    a_scale: tl.tensor,
    operand: tl.tensor,
    reference: tl.tensor,
    k: tl.tensor,
    padded_k: tl.tensor,
    padded_m: tl.tensor,
    a_stride_m: tl.tensor,
    a_stride_k: tl.tensor,
    a_scale_stride: tl.tensor,
    QUANTIZE: tl.constexpr,
    ROUNDING: tl.constexpr,
    DEPENDENT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCKS: tl.constexpr,
    ONCE: tl.constexpr,
) -> None:
    """One program converts a row of floats, or of codes, BLOCKS blocks at a time.

    `operand` is [padded_k / 128, padded_m / BLOCK_M, 4 blocks, BLOCK_M, 32] 8-bit floats, zero
    beyond k, and of each block the even elements before the odd ones. Rows of 32 change places so
    that a tile, copied as lines of 128 bytes and swizzled as such (by 16 bytes: bits 4 to 6 of the
    address ^= 7 to 9), is as if it were swizzled as lines of 32 (bit 4 ^= bit 7), which is what an
    instruction reads; copied as lines of 32 it took longer than it is multiplied.

    The numbers are the row's divided by the power of two that `reference`, a scale byte, gives
    (`operands.py`). A block that they cannot hold becomes NaN. With ONCE the row is no longer than
    BLOCKS.
    """
    row = tl.program_id(0).to(tl.int64)
    a += row * a_stride_m
    if not QUANTIZE:
        a_scale += row * a_scale_stride
    if DEPENDENT:
        wait_for_previous()  # for what the kernels before wrote
        let_next_begin()
    zero = tl.program_id(0) * 0
    x, byte, some = row_part(a, a_scale, zero, k, a_stride_k, QUANTIZE, ROUNDING, BLOCKS)
    largest = tl.max(tl.max(byte, 1), 0)
    if not ONCE:
        for first in range(BLOCKS, padded_k // BLOCK, BLOCKS):
            _, byte, _ = row_part(a, a_scale, first, k, a_stride_k, QUANTIZE, ROUNDING, BLOCKS)
            largest = tl.maximum(largest, tl.max(tl.max(byte, 1), 0))
    tl.store(reference + row, largest)
    for first in range(0, BLOCKS if ONCE else padded_k // BLOCK, BLOCKS):
        if not ONCE:
            x, byte, some = row_part(a, a_scale, first, k, a_stride_k, QUANTIZE, ROUNDING, BLOCKS)
        value = float8(x, byte, some, largest, QUANTIZE)
        store_float8(operand, value, row, first, padded_k, padded_m, BLOCK_M)


def prepared(
    left: Mapping[str, Any],
    constants: Mapping[str, Any],
    options: Mapping[str, Any],
    k: int,
    padded_k: int,
    out: Tensor,
    plan: Plan,
) -> Launch:
    """x for the plan's kernel, zero from k to padded_k."""
    m, steps, block = len(out), padded_k // STEP, 32
    if plan.wide:
        padded_m = ceil(m / plan.block_m) * plan.block_m
        made = {
            "operand": out.new_empty(steps, padded_m, STEP, dtype=torch.float8_e5m2),
            "reference": out.new_empty(padded_m, dtype=torch.int32),
        }
        blocks = min(1 << (padded_k // block - 1).bit_length(), MOST_BLOCKS)
        kernel, programs = mxfp4_prepare_wide, m
        rows: dict[str, Any] = {}
        own = {"BLOCK_M": plan.block_m, "ONCE": block * blocks >= padded_k}
        options = {**options, "num_warps": min(max(blocks // 16, 4), 16)}
    else:
        # A power of two, for the product's kernel is compiled for it.
        padded_m = 1 << max(m - 1, 0).bit_length()
        # That kernel loads a step of each warp more than it uses.
        steps += plan.warps_k
        made = {"operand": out.new_empty(steps, padded_m, STEP, dtype=torch.bfloat16)}
        # Few rows are to reach many units, and many rows are not to need many programs.
        blocks = 8 if m * k <= 4096 * block else 32
        kernel, programs = mxfp4_prepare, m * ceil(padded_k / (block * blocks))
        rows, own = {"m": m}, {"STORED": min(8, padded_m)}
    return Launch(
        kernel,
        (programs, 1, 1),
        {**left, **made, **rows, "k": k, "padded_k": padded_k, "padded_m": padded_m},
        {**constants, **own, "BLOCKS": blocks},
        options,
        writes=tuple(made),
    )
