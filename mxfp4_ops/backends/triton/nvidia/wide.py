"""The product for many rows of x, on GPUs with wgmma.

Unpacked weights are the instruction's first operand and come from registers; x comes through shared
memory. While the units multiply a step, the warps unpack the next.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from .. import dependent
from ..indices import along
from . import layouts
from .epilogue import finish
from .exact import scale_blocks
from .operands import STEP, in_range, unpack, warpgroup_operand, weight_bytes, weight_words

wait_for_previous = gluon.jit(dependent.wait_for_previous.fn)


@gluon.jit
def mxfp4_gemm_wide(
    a: gl.tensor,
    a_scale: gl.tensor,
    operand: gl.tensor,
    codes: gl.tensor,
    scales: gl.tensor,
    bias: gl.tensor,
    out: gl.tensor,
    m: gl.tensor,
    n: gl.tensor,
    blocks: gl.tensor,
    blocks_per_split: gl.tensor,
    padded_m: gl.tensor,
    a_stride_m: gl.tensor,
    a_stride_k: gl.tensor,
    a_scale_stride: gl.tensor,
    code_stride: gl.tensor,
    scale_stride: gl.tensor,
    bias_stride: gl.tensor,
    QUANTIZE: gl.constexpr,
    ROUNDING: gl.constexpr,
    SHUFFLED: gl.constexpr,
    DEPENDENT: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_M: gl.constexpr,
    STAGES: gl.constexpr,
    AHEAD: gl.constexpr,
) -> None:
    """One program computes the sums of BLOCK_N rows of W and BLOCK_M of x over one split of K.

    STAGES tiles of x are under way or in use, and AHEAD steps of W. Arguments are as for
    `mxfp4_gemm_narrow`.
    """
    WARPS: gl.constexpr = gl.num_warps()
    layout: gl.constexpr = layouts.warpgroup_sums(WARPS, BLOCK_M)
    word_layout: gl.constexpr = layouts.words(1, WARPS, BLOCK_N)
    byte_layout: gl.constexpr = layouts.scales(1, WARPS, BLOCK_N)
    copy_layout: gl.constexpr = layouts.copies(WARPS)
    tile_layout: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)

    # Neighbouring programs have the same rows of W, of which there is more.
    top = gl.program_id(0) * BLOCK_M
    first = gl.program_id(1) * BLOCK_N
    begin = gl.program_id(2) * blocks_per_split
    end = gl.minimum(begin + blocks_per_split, blocks)

    words = codes.to(gl.pointer_type(gl.int32))
    word_offset, block = weight_words(first, n, begin, code_stride, SHUFFLED, word_layout)
    WORD_STEP: gl.constexpr = 256 if SHUFFLED else 16

    bytes_, byte_block = weight_bytes(
        scales, first, n, begin, scale_stride, 1, BLOCK_N, SHUFFLED, byte_layout
    )

    x_step = gl.cast(padded_m, gl.int64) * STEP
    source = gl.multiple_of(operand + (begin // 4 * x_step + top * STEP), 16)
    x_offset = along(0, BLOCK_M, copy_layout, 2) * STEP + along(1, STEP, copy_layout, 2)
    x_offset = gl.cast(x_offset, gl.int64)
    tiles = ()
    for _ in gl.static_range(STAGES):
        tiles += (gl.allocate_shared_memory(gl.bfloat16, [BLOCK_M, STEP], tile_layout),)

    w = ()
    s = ()
    for i in gl.static_range(AHEAD):
        w += (gl.load(words + (word_offset + i * WORD_STEP), mask=block + 4 * i < end),)
        ahead = byte_block + 4 * i
        s += (gl.load(bytes_ + scale_blocks(ahead, SHUFFLED), mask=ahead < end, other=127),)
    if DEPENDENT:
        wait_for_previous()  # what comes before reads weights only
    for i in gl.static_range(STAGES - 1):
        async_copy.async_copy_global_to_shared(
            tiles[i], source + i * x_step + x_offset, mask=begin + 4 * i < end
        )
        async_copy.commit_group()
    byte = s[0].to(gl.int32)
    fits = in_range(byte)
    unpacked = warpgroup_operand(unpack(w[0], byte, True), layout)
    w = w[1:] + (gl.load(words + (word_offset + AHEAD * WORD_STEP), mask=block + 4 * AHEAD < end),)
    ahead = byte_block + 4 * AHEAD
    s = s[1:] + (gl.load(bytes_ + scale_blocks(ahead, SHUFFLED), mask=ahead < end, other=127),)
    total = gl.zeros([BLOCK_N, BLOCK_M], gl.float32, layout=layout)
    for start in range(begin, end, 4 * STAGES):
        for i in gl.static_range(STAGES):
            async_copy.wait_group(STAGES - 2)
            # The units round towards zero: their own sum must stay short.
            part = hopper.warpgroup_mma(
                unpacked, tiles[i].permute((1, 0)), total, use_acc=False, is_async=True
            )
            async_copy.async_copy_global_to_shared(
                tiles[(i + STAGES - 1) % STAGES],
                source + (i + STAGES - 1) * x_step + x_offset,
                mask=start + 4 * (i + STAGES - 1) < end,
            )
            async_copy.commit_group()
            byte = s[0].to(gl.int32)
            fits &= in_range(byte)
            following = warpgroup_operand(unpack(w[0], byte, True), layout)
            at = word_offset + (i + AHEAD + 1) * WORD_STEP
            w = w[1:] + (gl.load(words + at, mask=block + 4 * (i + AHEAD + 1) < end),)
            ahead = byte_block + 4 * (i + AHEAD + 1)
            s = s[1:] + (
                gl.load(bytes_ + scale_blocks(ahead, SHUFFLED), mask=ahead < end, other=127),
            )
            part = hopper.warpgroup_mma_wait(0, deps=[part, unpacked])[0]
            total += part
            unpacked = following
        source += STAGES * x_step
        word_offset += STAGES * WORD_STEP
        block += STAGES * 4
        byte_block += STAGES * 4
    async_copy.wait_group(0)
    finish(
        total, fits, a, a_scale, codes, scales, bias, out, m, n, first, top, begin, end, a_stride_m,
        a_stride_k, a_scale_stride, code_stride, scale_stride, bias_stride, QUANTIZE, ROUNDING,
        SHUFFLED, layout, layout, word_layout,
    )  # fmt: skip
