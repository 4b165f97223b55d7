"""The product for many rows of x, on GPUs with wgmma.

Both operands are 8-bit floats (`operands.py`), and an instruction multiplies one block of 32, whose
sum is exact; the block scale of W is applied when the sum is added up. A program's warps have
different tasks: some have x, codes and scales of W copied into a ring of tiles in shared memory,
the others, in groups of 64 rows of W, multiply.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from .. import dependent
from ..indices import along
from . import layouts
from .epilogue import compute_anew, scaled_floats, some_nan, store_sums
from .exact import exact_tile, largest, scale_blocks
from .operands import (
    STEP,
    float8_blocks,
    float8_operand,
    in_range,
    scale_rows,
    word_blocks,
    word_rows,
)

# The names before Triton 3.8.
async_load = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared
load_tile = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
_memory = gl.shared_memory_descriptor
as_other = getattr(_memory, "reinterpret", None) or _memory._reinterpret  # before Triton 3.9
wait_for_previous = gluon.jit(dependent.wait_for_previous.fn)

GROUP = gl.constexpr(64)
"""Rows of W of a group of four warps."""

COPY_REGISTERS = gl.constexpr((32, 40))
"""For each thread that copies, where one group multiplies and where two do."""

MULTIPLY_REGISTERS = gl.constexpr(224)
"""For each thread of a second group; the first one has what is left, 240."""


@gluon.jit
def four_bytes(
    row: gl.tensor, block: gl.tensor, end: gl.tensor, SHUFFLED: gl.constexpr
) -> gl.tensor:
    """The scale bytes from `block` on of each row, as a word."""
    word = block * 0
    for i in gl.static_range(4):
        at = row + scale_blocks(block + i, SHUFFLED)
        byte = gl.load(at, mask=block + i < end, other=127).to(gl.int32)
        word |= byte << (8 * i)
    return word


@gluon.jit
def scale(word: gl.tensor, i: gl.constexpr) -> gl.tensor:
    """The i-th of a word's four scales, which is not NaN, as float32."""
    bits = word >> 1 if i == 3 else word << (23 - 8 * i)
    return (bits & 0x7F800000).to(gl.float32, bitcast=True)


@gluon.jit
def copy(
    ring: gl.tuple,
    source: gl.tuple,
    span: gl.tuple,
    SHUFFLED: gl.constexpr,
    ALIGNED: gl.constexpr,
    DEPENDENT: gl.constexpr,
) -> None:
    """The task of the warps that fill the ring.

    x is zero beyond K, where the weight may be anything: no code is NaN.
    """
    x_lines, _, code_lines, words, scale_words, full, empty = ring
    x, padded_m, code_tiles, codes, code_stride, scales, scale_stride, n = source
    first, top, begin, end, steps = span
    STAGES: gl.constexpr = words.shape[0]
    BLOCK_N: gl.constexpr = words.shape[1]
    BYTES: gl.constexpr = x_lines.shape[1] * STEP + (
        0 if code_tiles is None else BLOCK_N * STEP // 2
    )
    if code_tiles is not None:
        for i in gl.static_range(STAGES):
            if i < steps:
                mbarrier.expect(full.index(i), BYTES)
                column = (begin + 4 * i) * 16
                load_tile(code_tiles, [first, column], full.index(i), code_lines.index(i))
    else:
        word_layout: gl.constexpr = layouts.copies(gl.num_warps(), 16, 4)
        word = along(1, 16, word_layout, 2)
        block = begin + word // 4
        # From the program's first row on, so that 32 bits do.
        row = gl.minimum(along(0, BLOCK_N, word_layout, 2), n - 1 - first)
        offset = word_rows(row, code_stride, SHUFFLED) + word_blocks(word // 4, SHUFFLED) + word % 4
        offset = gl.max_contiguous(gl.multiple_of(offset, [1, 4]), [1, 4])
        w = codes.to(gl.pointer_type(gl.int32)) + gl.cast(word_blocks(begin, SHUFFLED), gl.int64)
        w += word_rows(gl.cast(first, gl.int64), code_stride, SHUFFLED)
        for i in gl.static_range(STAGES):
            async_load(words.index(i), w + offset, mask=block + 4 * i < end)
            w += word_blocks(4, SHUFFLED)

    row_layout: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    row = gl.cast(gl.minimum(first + gl.arange(0, BLOCK_N, layout=row_layout), n - 1), gl.int64)
    bytes_ = scales + scale_rows(row, scale_stride, SHUFFLED)
    zero = gl.cast(row * 0, gl.int32)
    line = begin // 4 * padded_m + top
    if DEPENDENT:
        wait_for_previous()  # what comes before reads weights only
    for step in range(steps):
        slot = step % STAGES
        at = begin + 4 * step
        if not ALIGNED:
            scales_now = four_bytes(bytes_, zero + at, end, SHUFFLED)
        if step >= STAGES:
            mbarrier.wait(empty.index(slot), step // STAGES & 1 ^ 1)
            if code_tiles is not None:
                mbarrier.expect(full.index(slot), BYTES)
                load_tile(code_tiles, [first, at * 16], full.index(slot), code_lines.index(slot))
            else:
                async_load(words.index(slot), w + offset, mask=block + 4 * step < end)
                w += word_blocks(4, SHUFFLED)
        if code_tiles is None:
            mbarrier.expect(full.index(slot), BYTES)
        load_tile(x, [line, 0], full.index(slot), x_lines.index(slot))
        line += padded_m
        if ALIGNED:
            # Beyond the last block x is zero, whatever the scale.
            source_words = (bytes_ + gl.minimum(at, end - 4)).to(gl.pointer_type(gl.int32))
            async_load(scale_words.index(slot), source_words)
        async_copy.mbarrier_arrive(full.index(slot), increment_count=False)
        if not ALIGNED:
            scale_words.index(slot).store(scales_now)
            mbarrier.arrive(full.index(slot))
    # One more, with nothing in it: those who multiply look a step ahead.
    mbarrier.wait(empty.index(steps % STAGES), steps // STAGES & 1 ^ 1)
    async_copy.mbarrier_arrive(full.index(steps % STAGES), increment_count=False)
    mbarrier.arrive(full.index(steps % STAGES))
    if not ALIGNED:
        mbarrier.arrive(full.index(steps % STAGES))


@gluon.jit
def note(flags: gl.tensor, of: gl.constexpr, found: gl.tensor) -> None:
    """Leave a number for those that look when all tasks are done."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    flags.index(of).store(gl.full([1], 0, gl.int32, layout=layout) + found)


@gluon.jit
def begin(
    unpacked: gl.tuple, tile: gl.tensor, sums: gl.tensor, first: gl.constexpr, COUNT: gl.constexpr
) -> gl.tuple:
    """Let the units multiply COUNT blocks from the `first` of a step on; `sums` give the layout."""
    ROWS: gl.constexpr = tile.shape[0] // 4
    layout: gl.constexpr = sums.type.layout
    parts = ()
    for i in gl.static_range(first, first + COUNT):
        parts += (
            hopper.warpgroup_mma(
                float8_operand(unpacked[i], layout),
                tile.slice(i * ROWS, ROWS).permute((1, 0)),
                sums,
                use_acc=False,
                is_async=True,
            ),
        )
    return parts


@gluon.jit
def keep(unpacked: gl.tuple) -> None:
    """Until here nothing may take the registers that the units read."""
    for i in gl.static_range(len(unpacked)):
        gl.inline_asm_elementwise("", "=r,r", [unpacked[i]], gl.int32, is_pure=False, pack=1)


@gluon.jit
def add_steps(
    ring: gl.tuple,
    begins: gl.tensor,
    ends: gl.tensor,
    base: gl.tensor,
    ROW: gl.constexpr,
    BLOCK_M: gl.constexpr,
) -> tuple[gl.tensor, gl.tensor]:
    """Sums of what is in the ring from `begins` on and before `ends`, and bits that tell what fits.

    Scale bytes are added to `base`, of each row of W, if that is given. Bit 7 of a row's bytes is
    set where all its blocks have a scale that is `in_range`.
    """
    tiles, words, scale_words, full, empty = ring
    STAGES: gl.constexpr = words.shape[0]
    layout: gl.constexpr = layouts.group_sums(BLOCK_M)
    word_layout: gl.constexpr = layouts.float8_words()
    row_layout: gl.constexpr = gl.SliceLayout(1, layout)
    # Of few rows of x there are registers for the sums of all blocks. Of more, the compiler lets
    # the units multiply a block while those of the one before are added up.
    BLOCKS: gl.constexpr = 1 if BLOCK_M > 64 else 4
    total = gl.zeros([GROUP, BLOCK_M], gl.float32, layout=layout)
    w = words.index(begins % STAGES).slice(ROW, GROUP).load(word_layout)
    fits = gl.full([GROUP], -1, gl.int32, layout=row_layout)
    for step in range(begins, ends):
        slot = step % STAGES
        following = (step + 1) % STAGES
        unpacked = float8_blocks(w)
        scales = scale_words.index(slot).slice(ROW, GROUP).load(row_layout)
        if base is not None:
            scales = plus_base(scales, base)
        fits &= in_range(scales)
        scales = gl.expand_dims(scales, 1)
        for i in gl.static_range(0, 4, BLOCKS):
            tile = tiles.index(slot).slice(0, 4 * BLOCK_M)
            parts = begin(unpacked, tile, total, i, BLOCKS)
            if i + BLOCKS == 4:
                mbarrier.wait(full.index(following), (step + 1) // STAGES & 1)
                w = words.index(following).slice(ROW, GROUP).load(word_layout)
            parts = hopper.warpgroup_mma_wait(0, deps=parts)
            if i + BLOCKS == 4:
                keep(unpacked)
                mbarrier.arrive(empty.index(slot))
            for j in gl.static_range(BLOCKS):
                part = parts if BLOCKS == 1 else parts[j]
                total = gl.fma(part, scale(scales, i + j), total)
    return total, fits


@gluon.jit
def plus_base(bytes_: gl.tensor, base: gl.tensor) -> gl.tensor:
    """Four bytes, each plus the base of its row, modulo 256."""
    bases = base * 0x01010101
    low = (bytes_ & 0x7F7F7F7F) + (bases & 0x7F7F7F7F)
    return low ^ ((bytes_ ^ bases) & -0x7F7F7F80)


@gluon.jit
def outside(fits: gl.tensor) -> gl.tensor:
    """1 where `add_steps` found a scale that is not `in_range`."""
    return largest(((fits >> 7 & 0x01010101) != 0x01010101).to(gl.int32))


@gluon.jit
def multiply(
    ring: gl.tuple,
    reference: gl.tensor,
    flags: gl.tensor,
    result: gl.tuple,
    span: gl.tuple,
    INDEX: gl.constexpr,
) -> None:
    """The task of a group of warps: to multiply what is in the ring, and to store the sums."""
    _, tiles, _, words, scale_words, full, empty = ring
    _, _, m, n, _ = result
    first, top, _, _, steps = span
    BLOCK_M: gl.constexpr = tiles.shape[1] // 4
    ROW: gl.constexpr = INDEX * GROUP
    mbarrier.wait(full.index(0), 0)
    # What the end needs is on its way from here on, and nothing waits for it before.
    column = top + gl.arange(0, BLOCK_M, layout=gl.BlockedLayout([1], [32], [4], [0]))
    scale_of_x = gl.load(reference + column, mask=column < m, other=127)
    filled = (tiles, words, scale_words, full, empty)
    total, fits = add_steps(filled, 0, steps, None, ROW, BLOCK_M)
    total = scaled_floats(total, scale_of_x)
    found = some_nan(total, first + ROW, top, m, n)
    store_sums(total, first + ROW, top, result)
    note(flags, INDEX, gl.maximum(found, outside(fits)))


@gluon.jit
def mxfp4_gemm_wide(
    a: gl.tensor,
    a_scale: gl.tensor,
    operand: gl.tensor,
    reference: gl.tensor,
    code_tiles: gl.tensor,
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
    ALIGNED: gl.constexpr,
    DEPENDENT: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_M: gl.constexpr,
    STAGES: gl.constexpr,
) -> None:
    """One program computes the sums of BLOCK_N rows of W and BLOCK_M of x over one split of K.

    STAGES tiles of both are under way or in use. With ALIGNED, a step's scales can be read as a
    word. `operand` describes x as `mxfp4_prepare_wide` makes it, with `reference`; `code_tiles`
    describes `codes`, or is None where threads copy them. Other arguments are as
    for `mxfp4_gemm_narrow`.
    """
    # Neighbouring programs have the same rows of W, of which there is more.
    top = gl.program_id(0) * BLOCK_M
    first = gl.program_id(1) * BLOCK_N
    begin = gl.program_id(2) * blocks_per_split
    end = gl.minimum(begin + blocks_per_split, blocks)

    GROUPS: gl.constexpr = BLOCK_N // GROUP
    # One warp is enough to have tiles copied; where threads copy codes themselves, four do.
    COPYING: gl.constexpr = 4 if code_tiles is None else 1
    x_layout: gl.constexpr = gl.NVMMASharedLayout(128, 8, rank=2)
    block_layout: gl.constexpr = gl.NVMMASharedLayout(32, 8, rank=2)
    code_layout: gl.constexpr = gl.NVMMASharedLayout(64, 8, rank=2)
    word_layout: gl.constexpr = gl.NVMMASharedLayout(64, 32, rank=2)
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    barrier_layout: gl.constexpr = mbarrier.MBarrierLayout()
    x_lines = gl.allocate_shared_memory(gl.float8e5, [STAGES, BLOCK_M, STEP], x_layout)
    tiles = as_other(x_lines, gl.float8e5, [STAGES, 4 * BLOCK_M, 32], block_layout)
    code_lines = gl.allocate_shared_memory(gl.uint8, [STAGES, BLOCK_N, STEP // 2], code_layout)
    words = as_other(code_lines, gl.int32, [STAGES, BLOCK_N, 16], word_layout)
    scale_words = gl.allocate_shared_memory(gl.int32, [STAGES, BLOCK_N], flat)
    flags = gl.allocate_shared_memory(gl.int32, [GROUPS, 1], flat)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier_layout)
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier_layout)
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=32 * COPYING + (1 if ALIGNED else 2))
        mbarrier.init(empty.index(i), count=GROUPS)
    ring = (x_lines, tiles, code_lines, words, scale_words, full, empty)
    span = (first, top, begin, end, blocks_per_split // 4)
    source = (operand, padded_m, code_tiles, codes, code_stride, scales, scale_stride, n)
    result = (bias, out, m, n, bias_stride)
    if GROUPS == 1:
        gl.warp_specialize(
            [
                (multiply, (ring, reference, flags, result, span, 0)),
                (copy, (ring, source, span, SHUFFLED, ALIGNED, DEPENDENT)),
            ],
            [COPYING],
            [COPY_REGISTERS[0]],
        )
    else:
        gl.warp_specialize(
            [
                (multiply, (ring, reference, flags, result, span, 0)),
                (multiply, (ring, reference, flags, result, span, 1)),
                (copy, (ring, source, span, SHUFFLED, ALIGNED, DEPENDENT)),
            ],
            [4, COPYING],
            [MULTIPLY_REGISTERS, COPY_REGISTERS[1]],
        )
    flag_layout: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    found = 0
    for i in gl.static_range(GROUPS):
        found = gl.maximum(found, gl.max(flags.index(i).load(flag_layout), 0))
    compute_anew(
        found, a, a_scale, codes, scales, bias, out, m, n, first, top, begin, end, a_stride_m,
        a_stride_k, a_scale_stride, code_stride, scale_stride, bias_stride, QUANTIZE, ROUNDING,
        SHUFFLED, BLOCK_N, BLOCK_M, layouts.words(1, gl.num_warps(), BLOCK_N), exact_tile,
    )  # fmt: skip
