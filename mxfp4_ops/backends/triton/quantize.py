"""`quantize`: activations to codes and scales, each in the plain or in the shuffled layout."""

from __future__ import annotations

from math import ceil

import triton
import triton.language as tl
from torch import Tensor

from ... import formats, layout
from .launch import Launch
from .numbers import (
    BLOCK,
    HALF_BLOCK,
    NAN_SCALE,
    SCALE_ROUNDING,
    block_amax,
    e2m1_codes,
    float32_bits,
    scale_byte,
)
from .offsets import code_blocks, code_rows, scale_blocks, scale_rows
from .plan import RowsPlan

PAD_SCALE = tl.constexpr(layout.PAD_SCALE)


@triton.jit
def mxfp4_quantize(
    x: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    m: tl.tensor,
    k: tl.tensor,
    x_stride_m: tl.tensor,
    x_stride_k: tl.tensor,
    code_m: tl.tensor,
    code_k: tl.tensor,
    scale_m: tl.tensor,
    scale_k: tl.tensor,
    SHUFFLED_CODES: tl.constexpr,
    SHUFFLED_SCALES: tl.constexpr,
    ROUNDING: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCKS: tl.constexpr,
) -> None:
    """One program converts ROWS x BLOCKS blocks of x[m, k].

    `code_m`, `code_k` and the like are the sizes of tensors in bytes, the layout's pad included.
    """
    across = tl.cdiv(tl.maximum(code_k // HALF_BLOCK, scale_k), BLOCKS)
    row = (tl.program_id(0) // across * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    first = tl.program_id(0) % across * BLOCKS
    block = first + tl.arange(0, BLOCKS)

    column = first.to(tl.int64) * BLOCK + tl.arange(0, BLOCKS * BLOCK)
    bits = float32_bits(
        tl.load(
            x + row[:, None] * x_stride_m + column[None, :] * x_stride_k,
            mask=(row < m)[:, None] & (column < k)[None, :],
            other=0.0,
        )
    )
    bits = tl.reshape(bits, [ROWS, BLOCKS, BLOCK])
    byte = scale_byte(block_amax(bits), ROUNDING)
    codes_ = tl.where((byte == NAN_SCALE)[:, :, None], 0, e2m1_codes(bits, byte[:, :, None]))
    even, odd = tl.split(tl.reshape(codes_, [ROWS, BLOCKS, HALF_BLOCK, 2]))

    code_row = code_rows(row, code_k, SHUFFLED_CODES)[:, None, None]
    code_block = code_blocks(block, SHUFFLED_CODES)[None, :, None]
    tl.store(
        codes + code_row + code_block + tl.arange(0, HALF_BLOCK)[None, None, :],
        (even | (odd << 4)).to(tl.uint8),
        mask=(row < code_m)[:, None, None] & (block * HALF_BLOCK < code_k)[None, :, None],
    )
    inside = (row < m)[:, None] & (block * BLOCK < k)[None, :]
    scale_row = scale_rows(row, scale_k, SHUFFLED_SCALES)[:, None]
    tl.store(
        scales + scale_row + scale_blocks(block, SHUFFLED_SCALES)[None, :],
        tl.where(inside, byte, PAD_SCALE).to(tl.uint8),
        mask=(row < scale_m)[:, None] & (block < scale_k)[None, :],
    )


def quantize(
    x: Tensor,
    codes: Tensor,
    scales: Tensor,
    scale_mode: str,
    plan: RowsPlan,
    shuffled_codes: bool = False,
    shuffled_scales: bool = False,
) -> list[Launch]:
    """Quantise x[M, K], of any strides, into contiguous `codes` and `scales`.

    They have the sizes of their layouts (`layout.shuffled_shapes`), whose pad is written too.
    """
    (m, k), (code_m, code_k), (scale_m, scale_k) = x.shape, codes.shape, scales.shape
    down = ceil(max(code_m, scale_m) / plan.rows)
    across = ceil(max(code_k * 2 // formats.BLOCK, scale_k) / plan.blocks)
    arguments = {"x": x, "codes": codes, "scales": scales, "m": m, "k": k}
    arguments |= {"x_stride_m": x.stride(0), "x_stride_k": x.stride(1)}
    arguments |= {"code_m": code_m, "code_k": code_k, "scale_m": scale_m, "scale_k": scale_k}
    constants = {"ROUNDING": SCALE_ROUNDING[scale_mode], "ROWS": plan.rows, "BLOCKS": plan.blocks}
    constants |= {"SHUFFLED_CODES": shuffled_codes, "SHUFFLED_SCALES": shuffled_scales}
    options = {"num_warps": plan.num_warps}
    writes = ("codes", "scales")
    grid = (down * across, 1, 1)
    return [Launch(mxfp4_quantize, grid, arguments, constants, options, writes)]
