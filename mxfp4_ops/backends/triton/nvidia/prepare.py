"""x as the fast kernels multiply it: quantised, decoded, and in the order in which they take it."""

from __future__ import annotations

import triton
import triton.language as tl

from ..dependent import let_next_begin, wait_for_previous
from ..numbers import (
    BLOCK,
    NAN,
    block_amax,
    e2m1_codes,
    e2m1_values,
    float32_bits,
    scale_byte,
)
from .operands import EXPONENT, LARGEST, SMALLEST

SHIFT = tl.constexpr(EXPONENT - 127)
LOWEST = tl.constexpr(SMALLEST)
HIGHEST = tl.constexpr(LARGEST)


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
    WIDE: tl.constexpr,
    STORED: tl.constexpr,
    DEPENDENT: tl.constexpr,
    BLOCKS: tl.constexpr,
) -> None:
    """One program converts BLOCKS blocks of one of m rows of floats, or of codes.

    `operand` is [padded_k / 128, padded_m, 128] bfloat16, zero beyond k. For the wide kernel a
    row's 128 elements are neighbours; for the narrow one those of STORED rows are interleaved, so
    that the lanes of a warp read neighbours. A block that bfloat16 cannot hold becomes NaN.
    """
    across = tl.cdiv(padded_k // BLOCK, BLOCKS)
    row = (tl.program_id(0) // across).to(tl.int64)
    first = tl.program_id(0) % across * BLOCKS
    column = first.to(tl.int64) * BLOCK + tl.arange(0, BLOCKS * BLOCK)
    if DEPENDENT:
        wait_for_previous()  # for what the kernels before wrote
        let_next_begin()
    if QUANTIZE:
        x = tl.load(a + row * a_stride_m + column * a_stride_k, mask=column < k, other=0.0)
        bits = tl.reshape(float32_bits(x), [BLOCKS, BLOCK])
        byte = scale_byte(block_amax(bits), ROUNDING)[:, None]
        codes = e2m1_codes(bits, byte)
    else:
        block = first + tl.arange(0, BLOCKS)
        pair = first * (BLOCK // 2) + tl.arange(0, BLOCKS * BLOCK // 2)
        packed = tl.load(a + row * a_stride_m + pair, mask=pair < k // 2, other=0).to(tl.int32)
        codes = tl.reshape(tl.join(packed & 15, packed >> 4), [BLOCKS, BLOCK])
        bytes_ = a_scale + row * a_scale_stride + block
        byte = tl.load(bytes_, mask=block < k // BLOCK, other=0).to(tl.int32)[:, None]

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
    if WIDE:
        value = tl.permute(value, [0, 4, 6, 7, 3, 1, 2, 5])
        offset = (step * padded_m + row) * 128 + column % 128
    else:
        value = tl.permute(value, [0, 4, 6, 1, 2, 7, 3, 5])
        quarter = column % 128 // 32
        offset = (step * padded_m + row // 8 * STORED) * 128
        offset += (quarter * STORED + row % 8) * 32 + column % 32
    tl.store(operand + offset, tl.reshape(value, [BLOCKS * BLOCK]), mask=column < padded_k)
