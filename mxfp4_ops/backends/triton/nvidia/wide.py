"""The product for many rows of x, on GPUs with wgmma.

A program's warps have different tasks: some copy x and codes of W into a ring of tiles in shared
memory, the others unpack and multiply. Unpacked weights are wgmma's first operand and come from
registers, x is the second.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from .. import dependent
from ..indices import along
from . import layouts
from .epilogue import compute_anew, trouble
from .exact import scale_blocks, store
from .operands import (
    STEP,
    in_range,
    unpack,
    warpgroup_operand,
    weight_bytes,
    word_blocks,
    word_rows,
)

wait_for_previous = gluon.jit(dependent.wait_for_previous.fn)

WORDS = gl.constexpr(STEP // 8)
"""Of codes in a row's step."""

COPYING = gl.constexpr(4)
"""Warps that copy."""

COPY_REGISTERS = gl.constexpr(40)
"""For each of their threads; the others get the rest."""


@gluon.jit
def copy(
    ring: gl.tuple,
    operand: gl.tensor,
    padded_m: gl.tensor,
    codes: gl.tensor,
    code_stride: gl.tensor,
    n: gl.tensor,
    span: gl.tuple,
    SHUFFLED: gl.constexpr,
    DEPENDENT: gl.constexpr,
) -> None:
    """The task of the warps that fill the ring.

    `operand` is zero beyond K, where the weight may be anything: no code is NaN.
    """
    tiles, words, full, empty = ring
    first, top, begin, end, steps = span
    STAGES: gl.constexpr = tiles.shape[0]
    BLOCK_M: gl.constexpr = tiles.shape[1]
    BLOCK_N: gl.constexpr = words.shape[1]
    LAG: gl.constexpr = min(STAGES // 2, STAGES - 2)
    x_layout: gl.constexpr = layouts.copies(COPYING, STEP, 8)
    x_offset = along(0, BLOCK_M, x_layout, 2) * STEP + along(1, STEP, x_layout, 2)
    x_step = gl.cast(padded_m, gl.int64) * STEP
    x = gl.multiple_of(operand + (begin // 4 * x_step + top * STEP), 16)
    word_layout: gl.constexpr = layouts.copies(COPYING, WORDS, 4)
    row = gl.cast(gl.minimum(first + along(0, BLOCK_N, word_layout, 2), n - 1), gl.int64)
    word = along(1, WORDS, word_layout, 2)
    block = begin + word // 4
    offset = word_rows(row, code_stride, SHUFFLED) + word_blocks(word // 4, SHUFFLED) + word % 4
    offset = gl.max_contiguous(gl.multiple_of(offset, [1, 4]), [1, 4])
    w = codes.to(gl.pointer_type(gl.int32)) + gl.cast(word_blocks(begin, SHUFFLED), gl.int64)
    for i in gl.static_range(STAGES):
        async_copy.async_copy_global_to_shared(words.index(i), w + offset, mask=block + 4 * i < end)
        async_copy.commit_group()
        w += word_blocks(4, SHUFFLED)
    if DEPENDENT:
        wait_for_previous()  # what comes before reads weights only
    for step in range(steps):
        slot = step % STAGES
        if step >= STAGES:
            mbarrier.wait(empty.index(slot), step // STAGES & 1 ^ 1)
            async_copy.async_copy_global_to_shared(
                words.index(slot), w + offset, mask=block + 4 * step < end
            )
            w += word_blocks(4, SHUFFLED)
        async_copy.async_copy_global_to_shared(tiles.index(slot), x + x_offset)
        async_copy.commit_group()
        async_copy.wait_group(LAG)
        if step >= LAG:
            hopper.fence_async_shared()  # the units read in another way than copies write
            mbarrier.arrive(full.index((step - LAG) % STAGES))
        x += x_step
    async_copy.wait_group(0)
    hopper.fence_async_shared()
    for step in range(gl.maximum(steps - LAG, 0), steps):
        mbarrier.arrive(full.index(step % STAGES))
    # One more, with nothing in it: those who multiply look a step ahead.
    mbarrier.wait(empty.index(steps % STAGES), steps // STAGES & 1 ^ 1)
    mbarrier.arrive(full.index(steps % STAGES))


@gluon.jit
def multiply(
    ring: gl.tuple,
    scales: gl.tensor,
    scale_stride: gl.tensor,
    n: gl.tensor,
    span: gl.tuple,
    SHUFFLED: gl.constexpr,
) -> tuple[gl.tensor, gl.tensor]:
    """The task of the warps that multiply what is in the ring: the sums, and which rows fit."""
    tiles, words, full, empty = ring
    first, _, begin, end, steps = span
    STAGES: gl.constexpr = tiles.shape[0]
    BLOCK_M: gl.constexpr = tiles.shape[1]
    BLOCK_N: gl.constexpr = words.shape[1]
    WARPS: gl.constexpr = gl.num_warps()
    # Scales of AHEAD steps are under way. Written out UNROLL times, the loop needs no copies of
    # them, but for 128 rows of x more registers than there are.
    UNROLL: gl.constexpr = 1 if BLOCK_M == 128 else 2
    AHEAD: gl.constexpr = 1 if BLOCK_M == 128 else 4
    layout: gl.constexpr = layouts.warpgroup_sums(WARPS, BLOCK_M)
    word_layout: gl.constexpr = gl.SliceLayout(0, layouts.words(1, WARPS, BLOCK_N))
    byte_layout: gl.constexpr = layouts.scales(1, WARPS, BLOCK_N)
    bytes_, block = weight_bytes(
        scales, first, n, begin, scale_stride, 1, BLOCK_N, SHUFFLED, byte_layout
    )
    s = ()
    for i in gl.static_range(AHEAD):
        ahead = block + 4 * i
        s += (gl.load(bytes_ + scale_blocks(ahead, SHUFFLED), mask=ahead < end, other=127),)
    mbarrier.wait(full.index(0), 0)
    w = words.index(0).load(word_layout)
    byte = s[0].to(gl.int32)
    fits = in_range(byte)
    unpacked = warpgroup_operand(unpack(gl.expand_dims(w, 0), byte, True), layout)
    ahead = block + 4 * AHEAD
    s = s[1:] + (gl.load(bytes_ + scale_blocks(ahead, SHUFFLED), mask=ahead < end, other=127),)
    total = gl.zeros([BLOCK_N, BLOCK_M], gl.float32, layout=layout)
    for step in range(0, steps, UNROLL):
        for i in gl.static_range(UNROLL):
            slot = (step + i) % STAGES
            # The units round towards zero: their own sum must stay short.
            part = hopper.warpgroup_mma(
                unpacked, tiles.index(slot).permute((1, 0)), total, use_acc=False, is_async=True
            )
            following = (step + i + 1) % STAGES
            mbarrier.wait(full.index(following), (step + i + 1) // STAGES & 1)
            w = words.index(following).load(word_layout)
            byte = s[0].to(gl.int32)
            fits &= in_range(byte)
            next_ = warpgroup_operand(unpack(gl.expand_dims(w, 0), byte, True), layout)
            ahead = block + 4 * (i + AHEAD + 1)
            s = s[1:] + (
                gl.load(bytes_ + scale_blocks(ahead, SHUFFLED), mask=ahead < end, other=127),
            )
            part = hopper.warpgroup_mma_wait(0, deps=[part, unpacked])[0]
            mbarrier.arrive(empty.index(slot))
            total += part
            unpacked = next_
        block += UNROLL * 4
    return total, fits


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
) -> None:
    """One program computes the sums of BLOCK_N rows of W and BLOCK_M of x over one split of K.

    STAGES tiles of both are under way or in use. Arguments are as for `mxfp4_gemm_narrow`.
    """
    # Neighbouring programs have the same rows of W, of which there is more.
    top = gl.program_id(0) * BLOCK_M
    first = gl.program_id(1) * BLOCK_N
    begin = gl.program_id(2) * blocks_per_split
    end = gl.minimum(begin + blocks_per_split, blocks)

    tile_layout: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
    word_layout: gl.constexpr = gl.SwizzledSharedLayout(4, 1, 1, [1, 0])
    barrier_layout: gl.constexpr = mbarrier.MBarrierLayout()
    tiles = gl.allocate_shared_memory(gl.bfloat16, [STAGES, BLOCK_M, STEP], tile_layout)
    words = gl.allocate_shared_memory(gl.int32, [STAGES, BLOCK_N, WORDS], word_layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier_layout)
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier_layout)
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    ring = (tiles, words, full, empty)
    span = (first, top, begin, end, blocks_per_split // 4)
    total, fits = gl.warp_specialize(
        [
            (multiply, (ring, scales, scale_stride, n, span, SHUFFLED)),
            (copy, (ring, operand, padded_m, codes, code_stride, n, span, SHUFFLED, DEPENDENT)),
        ],
        [COPYING],
        [COPY_REGISTERS],
    )
    layout: gl.constexpr = layouts.warpgroup_sums(gl.num_warps(), BLOCK_M)
    found = trouble(total, fits, m, n, first, top, layout)
    store(total, first, top, bias, out, m, n, bias_stride)
    compute_anew(
        found, a, a_scale, codes, scales, bias, out, m, n, first, top, begin, end, a_stride_m,
        a_stride_k, a_scale_stride, code_stride, scale_stride, bias_stride, QUANTIZE, ROUNDING,
        SHUFFLED, BLOCK_N, BLOCK_M, layouts.words(1, gl.num_warps(), BLOCK_N),
    )  # fmt: skip
