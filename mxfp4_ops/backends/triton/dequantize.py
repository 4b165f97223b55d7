"""`dequantize`: codes and scales to numbers."""

from __future__ import annotations

from math import ceil

import triton
import triton.language as tl
from torch import Tensor

from ... import formats
from .launch import Launch
from .numbers import (
    BLOCK,
    HALF_BLOCK,
    NAN,
    NAN_SCALE,
    e2m1_values,
    float32_bits,
    rounded_to,
    times_scale,
)
from .plan import RowsPlan, rows_plan


@triton.jit
def decoded_bits(codes: tl.tensor, byte: tl.tensor) -> tl.tensor:
    """float32 patterns of the numbers that 4-bit codes are under scale bytes."""
    magnitude = times_scale(float32_bits(e2m1_values(codes & 7, byte & 0)), byte)
    return tl.where(byte == NAN_SCALE, NAN, magnitude | ((codes & 8) << 28))


@triton.jit
def mxfp4_dequantize(
    codes: tl.tensor,
    scales: tl.tensor,
    out: tl.tensor,
    m: tl.tensor,
    blocks: tl.tensor,
    code_stride: tl.tensor,
    scale_stride: tl.tensor,
    ROWS: tl.constexpr,
    BLOCKS: tl.constexpr,
) -> None:
    """One program converts ROWS x BLOCKS blocks."""
    across = tl.cdiv(blocks, BLOCKS)
    row = (tl.program_id(0) // across * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    block = tl.program_id(0) % across * BLOCKS + tl.arange(0, BLOCKS)
    inside = (row < m)[:, None] & (block < blocks)[None, :]

    byte = tl.load(scales + row[:, None] * scale_stride + block[None, :], mask=inside, other=0)
    lane = tl.arange(0, HALF_BLOCK)[None, None, :]
    packed = tl.load(
        codes + (row[:, None] * code_stride + block[None, :] * HALF_BLOCK)[:, :, None] + lane,
        mask=inside[:, :, None],
        other=0,
    ).to(tl.int32)
    byte = byte.to(tl.int32)[:, :, None]
    bits = tl.join(decoded_bits(packed & 15, byte), decoded_bits(packed >> 4, byte))
    values = tl.reshape(bits, [ROWS, BLOCKS * BLOCK]).to(tl.float32, bitcast=True)

    column = tl.program_id(0) % across * (BLOCKS * BLOCK) + tl.arange(0, BLOCKS * BLOCK)
    tl.store(
        out + row[:, None] * (blocks * BLOCK) + column[None, :],
        rounded_to(values, out.dtype.element_ty),
        mask=(row < m)[:, None] & (column < blocks * BLOCK)[None, :],
    )


def dequantize(
    codes: Tensor, scales: Tensor, out: Tensor, plan: RowsPlan | None = None
) -> list[Launch]:
    """Decode codes[M, K/2], contiguous in rows, into the contiguous out[M, K]."""
    m, k = out.shape
    plan = plan or rows_plan(k, neighbours_in_k=True)
    blocks = k // formats.BLOCK
    arguments = {"codes": codes, "scales": scales, "out": out, "m": m, "blocks": blocks}
    arguments |= {"code_stride": codes.stride(0), "scale_stride": scales.stride(0)}
    grid = ceil(m / plan.rows) * ceil(blocks / plan.blocks), 1, 1
    constants = {"ROWS": plan.rows, "BLOCKS": plan.blocks}
    options = {"num_warps": plan.num_warps}
    return [Launch(mxfp4_dequantize, grid, arguments, constants, options)]
