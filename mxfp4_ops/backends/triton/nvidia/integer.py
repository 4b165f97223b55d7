"""The product for many rows of x, on GPUs with wgmma.

Both operands are integers of 8 bits (`prepare_integer.py`), whose sum over all of K is exact: the
multiplying warps unpack codes and do nothing else until the end. Where a tile has blocks of higher
planes, of x or of W, those are multiplied first, and the sums shifted left before the others come;
steps with far blocks come last, one block at a time. A program's warps have different tasks, and
one of them has tiles of both operands copied into a ring in shared memory.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from . import layouts, operands
from .epilogue import barrier, compute_anew, store_sums, store_tile
from .exact import exact_tile, largest, plus_bias
from .operands import REFERENCE, STEP, in_range, integer_operand
from .plan import MASK_STEPS, MOST_TILES
from .wide import (
    COPY_REGISTERS,
    GROUP,
    MULTIPLY_REGISTERS,
    as_other,
    async_load,
    load_tile,
    note,
    wait_for_previous,
)

# The name before Triton 3.8.
copy_tile_out = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global

PLANE = gl.constexpr(operands.PLANE)
NO_PLANE = gl.constexpr(operands.NO_PLANE)
MASK = gl.constexpr(MASK_STEPS)
TILES = gl.constexpr(MOST_TILES)

STORED = gl.constexpr(64)
"""Rows of x whose sums are stored at a time."""

NEAR_PHASES = gl.constexpr(9)
"""Of a tile: for three planes of x and three of W, products of larger scale first."""

PHASES = gl.constexpr(12)
"""With those for far blocks, by three planes of x."""

PLANES_OF_X = gl.constexpr(0x210001012122)
"""Of each phase, a digit each, the first the lowest."""

PLANES_OF_W = gl.constexpr(0x000010210212)

SHIFTS = gl.constexpr(0x000010100101)
"""After which phases the sums are shifted left."""

MOST = gl.constexpr(1 << 26)
"""Of sums that are shifted by a plane: 2**30 then, to which at most 3 * 96 * 96 * 32768 comes."""


@gluon.jit
def digit(number: gl.constexpr, phase: gl.tensor) -> gl.tensor:
    """The phase's of a hexadecimal number."""
    return gl.cast(gl.cast(number, gl.int64) >> 4 * phase & 15, gl.int32)


@gluon.jit
def masks_of_rows(
    masks: gl.tensor, first: gl.tensor, end: gl.tensor, ROWS: gl.constexpr
) -> gl.tensor:
    """Of ROWS rows from `first` on, and before `end`."""
    layout: gl.constexpr = gl.BlockedLayout([ROWS // 32], [32], [1], [0])
    row = first + gl.arange(0, ROWS, layout=layout)
    return gl.load(masks + row, mask=row < end, other=0)


@gluon.jit
def number_of_bits(word: gl.tensor) -> gl.tensor:
    word -= word >> 1 & 0x55555555
    word = (word & 0x33333333) + (word >> 2 & 0x33333333)
    word = word + (word >> 4) & 0x0F0F0F0F
    return word * 0x01010101 >> 24


@gluon.jit
def number_of_zeros(word: gl.tensor) -> gl.tensor:
    """Below the lowest bit that is set."""
    power = gl.cast(word & -word, gl.float32)
    return (power.to(gl.int32, bitcast=True) >> 23 & 255) - 127


@gluon.jit
def place(
    tile: gl.tensor, sizes: gl.tuple, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr
) -> gl.tuple:
    """Of a tile the first rows of W and of x, the split, its first step and how many it has."""
    m, n, blocks, steps_per_split = sizes
    # Neighbours have the same rows of W, of which there is more.
    across = gl.cdiv(m, BLOCK_M)
    down = gl.cdiv(n, BLOCK_N)
    split = tile // (across * down)
    begin = split * steps_per_split
    steps = gl.minimum(gl.cdiv(blocks, 4) - begin, steps_per_split)
    return tile // across % down * BLOCK_N, tile % across * BLOCK_M, split, begin, steps


@gluon.jit
def masks_of_tile(
    masks: gl.tuple,
    sizes: gl.tuple,
    at: gl.tuple,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    WORDS: gl.constexpr,
) -> gl.tuple:
    """As bits, the steps of a tile without far blocks, and with some of each kind: six words."""
    m, n, _, _ = sizes
    first, top, split, _, steps = at
    loaded = ()  # all at once, and then they are waited for
    for i in gl.static_range(WORDS):
        word = gl.cast(split * WORDS + i, gl.int64)
        for j in gl.static_range(3):  # far, high, top
            loaded += (masks_of_rows(masks[j] + word * m, top, m, BLOCK_M),)
        for j in gl.static_range(3, 6):
            loaded += (masks_of_rows(masks[j] + word * n, first, n, BLOCK_N),)
    result = ()
    for i in gl.static_range(WORDS):
        some = ()
        for j in gl.static_range(6 * i, 6 * i + 6):
            some += (gl.reduce_or(loaded[j], 0),)
        beyond = gl.minimum(gl.maximum((i + 1) * MASK - steps, 0), MASK)
        there = gl.where(beyond < MASK, (2 << gl.maximum(MASK - 1 - beyond, 0)) - 1, 0)
        far = some[0] | some[3]
        result += (~far & there, far & there, some[1], some[2], some[4], some[5])
    return result


@gluon.jit
def with_plane(plane: gl.tensor, high: gl.tensor, top: gl.tensor) -> gl.tensor:
    """Steps with such blocks: all, where it is the lowest plane."""
    return gl.where(plane == 0, -1, gl.where(plane == 1, high, top))


@gluon.jit
def steps_of_phase(phase: gl.tensor, of_tile: gl.tuple, i: gl.constexpr) -> gl.tensor:
    """The i-th word of a phase's steps."""
    steps = gl.where(phase < NEAR_PHASES, of_tile[6 * i], of_tile[6 * i + 1])
    steps &= with_plane(digit(PLANES_OF_X, phase), of_tile[6 * i + 2], of_tile[6 * i + 3])
    return steps & with_plane(digit(PLANES_OF_W, phase), of_tile[6 * i + 4], of_tile[6 * i + 5])


@gluon.jit
def copy(
    ring: gl.tuple,
    source: gl.tuple,
    masks: gl.tuple,
    sizes: gl.tuple,
    tiles: gl.tensor,
    WORDS: gl.constexpr,
) -> None:
    """The task of the warp that fills the ring: for each tile one phase after the other."""
    x_tiles, code_lines, words, heights, numbers, step_numbers, full, empty = ring
    planes_of_x, code_tiles, heights_of_w, padded_n = source
    STAGES: gl.constexpr = words.shape[0]
    BLOCK_N: gl.constexpr = words.shape[1]
    BLOCK_M: gl.constexpr = x_tiles.shape[1]
    BYTES: gl.constexpr = BLOCK_M * STEP + BLOCK_N * STEP // 2
    row_layout: gl.constexpr = gl.BlockedLayout([BLOCK_N // 32], [32], [1], [0])
    one_layout: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    row = gl.arange(0, BLOCK_N, layout=row_layout)
    index = gl.arange(0, 16, layout=one_layout)
    one = gl.full([1], 0, gl.int32, layout=one_layout)
    filled = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        at = place(tile, sizes, BLOCK_M, BLOCK_N)
        first, top, _split, begin, _steps = at
        of_tile = masks_of_tile(masks, sizes, at, BLOCK_M, BLOCK_N, WORDS)
        counts = index * 0
        for phase in range(PHASES):
            for i in gl.static_range(WORDS):
                count = number_of_bits(steps_of_phase(phase, of_tile, i))
                counts += gl.where(index == phase, count, 0)
        bytes_ = heights_of_w + gl.multiple_of(first, GROUP) + row
        begins = filled
        for phase in range(PHASES):
            for i in gl.static_range(WORDS):
                left = steps_of_phase(phase, of_tile, i)
                while left != 0:
                    step = begin + i * MASK + number_of_zeros(left)
                    left &= left - 1
                    slot = filled % STAGES
                    if filled >= STAGES:
                        mbarrier.wait(empty.index(slot), filled // STAGES & 1 ^ 1)
                    if filled == begins:
                        numbers.index(slot).store(counts)
                    step_numbers.index(slot).store(one + step)
                    mbarrier.expect(full.index(slot), BYTES)
                    column = [first, step * (STEP // 2)]
                    load_tile(code_tiles, column, full.index(slot), code_lines.index(slot))
                    for j in gl.static_range(3):
                        tile_of_x = x_tiles.index(slot)
                        this = digit(PLANES_OF_X, phase) == j
                        at_x = [top, step * STEP]
                        load_tile(planes_of_x[j], at_x, full.index(slot), tile_of_x, pred=this)
                    offset = gl.cast(step, gl.int64) * padded_n
                    async_load(heights.index(slot), bytes_ + gl.multiple_of(offset, GROUP))
                    async_copy.mbarrier_arrive(full.index(slot), increment_count=False)
                    filled += 1
    # One more, with nothing in it: those who multiply look a step ahead.
    slot = filled % STAGES
    if filled >= STAGES:
        mbarrier.wait(empty.index(slot), filled // STAGES & 1 ^ 1)
    async_copy.mbarrier_arrive(full.index(slot), increment_count=False)
    mbarrier.arrive(full.index(slot))


@gluon.jit
def codes_and_heights(words: gl.tensor, heights: gl.tensor, ROW: gl.constexpr) -> gl.tuple:
    """A step's, of a group's rows: words [64, 16], and [64, 4] for their blocks."""
    w = words.slice(ROW, GROUP).load(layouts.integer_words())
    layout: gl.constexpr = layouts.integer_blocks()
    word = heights.slice(ROW, GROUP).load(gl.SliceLayout(1, layout))
    block = gl.arange(0, 4, layout=gl.SliceLayout(0, layout))
    return w, gl.expand_dims(word, 1) >> gl.expand_dims(8 * block, 0) & 255


@gluon.jit
def in_parts(sums: gl.tensor, COLUMNS: gl.constexpr) -> gl.tuple:
    """Sums of the units by COLUMNS of them."""
    if sums.shape[1] == COLUMNS:
        layout: gl.constexpr = layouts.group_sums(COLUMNS)
        parts = (gl.convert_layout(sums, layout, assert_trivial=True),)
    else:
        both = gl.reshape(sums, [GROUP, 2, sums.shape[1] // 2])
        first, second = gl.split(gl.permute(both, [0, 2, 1]))
        parts = in_parts(first, COLUMNS) + in_parts(second, COLUMNS)
    return parts


@gluon.jit
def power_of_two(field: gl.tensor) -> gl.tensor:
    """The float32 with an exponent field of -22 to 254."""
    return gl.where(field > 0, field << 23, 1 << field + 22).to(gl.float32, bitcast=True)


@gluon.jit
def as_numbers(sums: gl.tensor, of_w: gl.tensor, of_x: gl.tensor) -> gl.tensor:
    """Sums of integers times a factor of their row of W and one of their row of x."""
    layout: gl.constexpr = sums.type.layout
    of_w = gl.convert_layout(of_w, gl.SliceLayout(1, layout), assert_trivial=True)
    return sums * gl.expand_dims(of_w, 1) * gl.expand_dims(of_x, 0)


@gluon.jit
def store_numbers(
    parts: gl.tuple,
    of_w: gl.tensor,
    factors: gl.tensor,
    first: gl.tensor,
    top: gl.tensor,
    result: gl.tuple,
    out_tiles: gl.tensor,
    staged: gl.tensor,
    INDEX: gl.constexpr,
) -> None:
    """Store sums of integers with the bias, STORED rows of x at a time.

    By the copy unit if `out_tiles` describes where, from one of a group's two buffers.
    """
    _, bias, out, _, n, bias_stride = result
    layout: gl.constexpr = layouts.group_sums(STORED)
    for i in gl.static_range(len(parts)):
        of_x = factors.slice(i * STORED, STORED).load(gl.SliceLayout(0, layout))
        sums = as_numbers(parts[i], of_w, of_x)
        if out_tiles is None:
            store_sums(sums, first, top + i * STORED, result)
        else:
            values = plus_bias(sums, first, bias, n, bias_stride).to(out.dtype.element_ty)
            buffer = staged.index(2 * INDEX + i % 2)
            tma.store_wait(1)  # for what was in it
            barrier()
            buffer.permute((1, 0)).store(values)
            hopper.fence_async_shared()
            copy_tile_out(out_tiles, [top + i * STORED, first], buffer)


@gluon.jit
def far_operand(w: gl.tensor, height: gl.tensor, i: gl.tensor, layout: gl.constexpr) -> gl.tensor:
    """The i-th of a step's blocks, of whatever plane, with zeros for the others."""
    of_blocks: gl.constexpr = layouts.integer_blocks()
    block = gl.expand_dims(gl.arange(0, 4, layout=gl.SliceLayout(0, of_blocks)), 0)
    return integer_operand(w, gl.where(block == i, height & 3, 32), layout)


@gluon.jit
def far_product(
    operand: gl.tensor,
    x_tile: gl.tensor,
    factors: gl.tensor,
    scales: gl.tensor,
    i: gl.tensor,
    total: gl.tensor,
) -> gl.tensor:
    """`total` and the products of the i-th blocks of W and of x."""
    layout: gl.constexpr = total.type.layout
    zero = gl.zeros(total.shape, gl.int32, layout=layout)
    x = x_tile.permute((1, 0))
    part = hopper.warpgroup_mma(operand, x, zero, use_acc=False, is_async=True)
    part = hopper.warpgroup_mma_wait(0, deps=(part,))
    gl.inline_asm_elementwise("", "=r,r", [operand], gl.int8, is_pure=False, pack=4)
    of_x = factors.load(gl.SliceLayout(0, layout))
    of_w = ((scales >> 8 * i & 255) << 23).to(gl.float32, bitcast=True)
    return gl.fma(part.to(gl.float32) * gl.expand_dims(of_x, 0), gl.expand_dims(of_w, 1), total)


@gluon.jit
def far_step(
    ring: gl.tuple,
    planes: gl.tensor,
    factors: gl.tensor,
    base: gl.tensor,
    slot: gl.tensor,
    top: gl.tensor,
    m: gl.tensor,
    ROW: gl.constexpr,
) -> gl.tuple:
    """Of a step the codes and heights of a group, and a word of scales for each row.

    Factors of x's blocks are left in shared memory, [4, rows] for each group.
    """
    x_tiles, _, words, heights, _, step_numbers, _, _ = ring
    BLOCK_M: gl.constexpr = x_tiles.shape[1]
    one_layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    step = gl.max(step_numbers.index(slot).load(one_layout), 0)
    column = top + gl.arange(0, BLOCK_M, layout=one_layout)
    word = gl.load(planes + gl.cast(step, gl.int64) * m + column, mask=column < m, other=0)
    for i in gl.static_range(4):
        plane = word << (24 - 8 * i) >> 24
        field = gl.where(plane == NO_PLANE, 0x7FC00000, 127 + PLANE * plane << 23)
        factors.index(ROW // GROUP * 4 + i).store(field.to(gl.float32, bitcast=True))
    w, height = codes_and_heights(words.index(slot), heights.index(slot), ROW)
    above = heights.index(slot).slice(ROW, GROUP).load(base.type.layout)
    bytes_ = above * 0
    for i in gl.static_range(4):
        bytes_ |= ((above >> 8 * i) + base & 255) << 8 * i
    # In the lowest bits of a height is what was shifted.
    scales = bytes_ - (above & 0x03030303)
    return w, height, scales, bytes_


@gluon.jit
def add_far_steps(
    ring: gl.tuple,
    sums: gl.tuple,
    bases: gl.tuple,
    planes: gl.tensor,
    factors: gl.tensor,
    result: gl.tuple,
    at: gl.tuple,
    span: gl.tuple,
    ROW: gl.constexpr,
) -> gl.tensor:
    """Add the steps with far blocks to sums of integers, block by block, and store all.

    Loops over blocks are loops at run time: written out, ptxas overlaps their parts until it has
    too few registers for all that, and then lets wgmma run beside nothing, in all of the kernel.
    """
    x_tiles, _, _, _, _, _, full, empty = ring
    base, base_of_x = bases
    _, _, _, m, n, _ = result
    first, top = at
    begin, end = span
    STAGES: gl.constexpr = x_tiles.shape[0]
    BLOCK_M: gl.constexpr = x_tiles.shape[1]
    # Of more columns more registers would be spilled, which takes long: shared memory leaves next
    # to nothing of the first cache.
    COLUMNS: gl.constexpr = 32 if BLOCK_M > 128 else 64
    layout: gl.constexpr = layouts.group_sums(COLUMNS)
    base = gl.convert_layout(base, gl.SliceLayout(1, layout), assert_trivial=True)
    of_w = gl.expand_dims((base << 23).to(gl.float32, bitcast=True), 1)
    totals = ()
    for i in gl.static_range(len(sums)):
        parts = in_parts(sums[i].to(gl.float32), COLUMNS)
        for j in gl.static_range(len(parts)):
            totals += (parts[j] * of_w,)
    fits = gl.full([GROUP], -1, gl.int32, layout=gl.SliceLayout(1, layout))
    for fill in range(begin, end):
        slot = fill % STAGES
        w, height, scales, bytes_ = far_step(ring, planes, factors, base, slot, top, m, ROW)
        fits &= in_range(bytes_)
        added = ()
        for i in gl.static_range(BLOCK_M // COLUMNS):
            # By itself, for each sum is rounded.
            more = gl.zeros([GROUP, COLUMNS], gl.float32, layout=layout)
            for block in range(4):
                operand = far_operand(w, height, block, layout)
                x_tile = x_tiles.index(slot).slice(i * COLUMNS, COLUMNS)
                of_x = factors.index(ROW // GROUP * 4 + block).slice(i * COLUMNS, COLUMNS)
                more = far_product(operand, x_tile, of_x, scales, block, more)
            added += (totals[i] + more,)
        totals = added
        mbarrier.arrive(empty.index(slot))
        mbarrier.wait(full.index((fill + 1) % STAGES), (fill + 1) // STAGES & 1)
    row = first + gl.arange(0, GROUP, layout=gl.SliceLayout(1, layout))
    outside = ((fits >> 7 & 0x01010101) != 0x01010101) & (row < n)  # bit 7 of each byte tells
    found = largest(outside.to(gl.int32))
    columns = gl.arange(0, COLUMNS, layout=gl.BlockedLayout([1], [32], [4], [0]))
    for i in gl.static_range(BLOCK_M // COLUMNS):
        here = top + i * COLUMNS + columns
        # Integers are twice the numbers, on both sides.
        scale_of_x = gl.load(base_of_x + here, mask=here < m, other=127) - (127 + 2 - REFERENCE)
        stored = store_tile(totals[i], scale_of_x, first, top + i * COLUMNS, result)
        found = gl.maximum(found, stored)
    return found


@gluon.jit
def shifted(sums: gl.tuple) -> tuple[gl.tuple, gl.tensor]:
    """Sums by which much is added up in a lower plane, and whether one is too large for that."""
    result = ()
    too_large = 0
    for i in gl.static_range(len(sums)):
        size = largest(gl.maximum(sums[i], -sums[i]))
        too_large = gl.maximum(too_large, (size > MOST).to(gl.int32))
        result += (sums[i] << PLANE,)
    return result, too_large


@gluon.jit
def multiply(
    ring: gl.tuple,
    flags: gl.tensor,
    of_operands: gl.tuple,
    result: gl.tuple,
    sizes: gl.tuple,
    tiles: gl.tensor,
    ends: gl.tuple,
    INDEX: gl.constexpr,
) -> None:
    """The task of a group of warps: to multiply what is in the ring, and to store the sums."""
    x_tiles, _, words, heights, numbers, _, full, empty = ring
    base_of_w, base_of_x, planes = of_operands
    _, bias, out, m, n, bias_stride = result
    out_tiles, staged, factors, far_factors = ends
    STAGES: gl.constexpr = words.shape[0]
    BLOCK_N: gl.constexpr = words.shape[1]
    BLOCK_M: gl.constexpr = x_tiles.shape[1]
    ROW: gl.constexpr = INDEX * GROUP
    # Of an instruction; Triton has none of 256.
    WIDTH: gl.constexpr = min(BLOCK_M, 128)
    layout: gl.constexpr = layouts.group_sums(WIDTH)
    one_layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    part_layout: gl.constexpr = layouts.group_sums(STORED)
    row = ROW + gl.arange(0, GROUP, layout=gl.SliceLayout(1, part_layout))
    column = gl.arange(0, BLOCK_M, layout=one_layout)
    index = gl.arange(0, 16, layout=one_layout)
    done = 0
    mbarrier.wait(full.index(0), 0)
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        first, top, split, _begin, _steps = place(tile, sizes, BLOCK_M, BLOCK_N)
        counts = numbers.index(done % STAGES).load(one_layout)
        base = gl.load(base_of_w + first + row)
        # Integers are twice the numbers, on both sides.
        field = gl.load(base_of_x + top + column, mask=top + column < m, other=127) - 2
        sums = ()
        for _i in gl.static_range(BLOCK_M // WIDTH):
            sums += (gl.zeros([GROUP, WIDTH], gl.int32, layout=layout),)
        slot = done % STAGES
        w, height = codes_and_heights(words.index(slot), heights.index(slot), ROW)
        found = 0
        some = gl.max(gl.where(index < NEAR_PHASES - 1, counts, 0), 0) > 0
        for phase in range(gl.where(some, 0, NEAR_PHASES - 1), NEAR_PHASES):
            # Of W, the other planes' blocks become 0.
            plane = PLANE * digit(PLANES_OF_W, phase)
            count = gl.max(gl.where(index == phase, counts, 0), 0)
            for fill in range(done, done + count):
                slot = fill % STAGES
                following = (fill + 1) % STAGES
                shift = height - plane
                shift |= (shift & 0xFC) << 3
                operand = integer_operand(w, shift, layout)
                parts = ()
                for i in gl.static_range(BLOCK_M // WIDTH):
                    x = x_tiles.index(slot).slice(i * WIDTH, WIDTH).permute((1, 0))
                    parts += (hopper.warpgroup_mma(operand, x, sums[i], is_async=True),)
                mbarrier.wait(full.index(following), (fill + 1) // STAGES & 1)
                w, height = codes_and_heights(words.index(following), heights.index(following), ROW)
                sums = hopper.warpgroup_mma_wait(0, deps=parts)
                if BLOCK_M == WIDTH:
                    sums = (sums,)
                # Until here nothing may take the registers that the units read.
                gl.inline_asm_elementwise("", "=r,r", [operand], gl.int8, is_pure=False, pack=4)
                mbarrier.arrive(empty.index(slot))
            done += count
            if digit(SHIFTS, phase) != 0:
                sums, too_large = shifted(sums)
                found = gl.maximum(found, 2 * too_large)
        part = out + gl.cast(split, gl.int64) * m * n
        to = (out, bias, part, m, n, bias_stride)
        far = gl.sum(gl.where(index >= NEAR_PHASES, counts, 0), 0)
        if far == 0:
            of_w = (base << 23).to(gl.float32, bitcast=True)
            factors.index(INDEX).store(power_of_two(field))
            for i in gl.static_range(BLOCK_M // WIDTH):
                parts = in_parts(sums[i].to(gl.float32), STORED)
                store_numbers(
                    parts, of_w, factors.index(INDEX).slice(i * WIDTH, WIDTH), first + ROW,
                    top + i * WIDTH, to, out_tiles, staged, INDEX,
                )  # fmt: skip
        else:
            of_far = add_far_steps(
                ring, sums, (base, base_of_x), planes, far_factors, to,
                (first + ROW, top), (done, done + far), ROW,
            )  # fmt: skip
            found = gl.maximum(found, of_far)
        done += far
        note(flags, tile // gl.num_programs(0) * (BLOCK_N // GROUP) + INDEX, found)
    if out_tiles is not None:
        # For all that was stored, not only read as by `tma.store_wait`: a tile may be stored again.
        zero = gl.full([1], 0, gl.int32, layout=one_layout)
        gl.inline_asm_elementwise(
            "cp.async.bulk.wait_group 0; mov.b32 $0, $1;", "=r,r", [zero], gl.int32, False, 1
        )


@gluon.jit
def mxfp4_gemm_integer(
    a: gl.tensor,
    a_scale: gl.tensor,
    low: gl.tensor,
    high: gl.tensor,
    top: gl.tensor,
    planes: gl.tensor,
    base_of_x: gl.tensor,
    far_of_x: gl.tensor,
    high_of_x: gl.tensor,
    top_of_x: gl.tensor,
    code_tiles: gl.tensor,
    codes: gl.tensor,
    scales: gl.tensor,
    heights: gl.tensor,
    base_of_w: gl.tensor,
    far_of_w: gl.tensor,
    high_of_w: gl.tensor,
    top_of_w: gl.tensor,
    bias: gl.tensor,
    out_tiles: gl.tensor,
    out: gl.tensor,
    m: gl.tensor,
    n: gl.tensor,
    blocks: gl.tensor,
    blocks_per_split: gl.tensor,
    tiles: gl.tensor,
    padded_n: gl.tensor,
    a_stride_m: gl.tensor,
    a_stride_k: gl.tensor,
    a_scale_stride: gl.tensor,
    code_stride: gl.tensor,
    scale_stride: gl.tensor,
    bias_stride: gl.tensor,
    QUANTIZE: gl.constexpr,
    ROUNDING: gl.constexpr,
    DEPENDENT: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_M: gl.constexpr,
    STAGES: gl.constexpr,
    WORDS: gl.constexpr,
) -> None:
    """Programs take one tile after the other: of BLOCK_N rows of W and BLOCK_M of x, and a split.

    STAGES steps of both are under way or in use. `low`, `high`, `top` and `code_tiles` describe
    x's planes and `codes`; `out_tiles` describes `out`, or is None where the copy unit cannot store
    it. For what is made of x and of `scales` see `mxfp4_prepare_integer`; other arguments are as
    for `mxfp4_gemm_narrow`.
    """
    GROUPS: gl.constexpr = BLOCK_N // GROUP
    x_layout: gl.constexpr = gl.NVMMASharedLayout(128, 8, rank=2)
    code_layout: gl.constexpr = gl.NVMMASharedLayout(64, 8, rank=2)
    word_layout: gl.constexpr = gl.NVMMASharedLayout(64, 32, rank=2)
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    barrier_layout: gl.constexpr = mbarrier.MBarrierLayout()
    x_tiles = gl.allocate_shared_memory(gl.int8, [STAGES, BLOCK_M, STEP], x_layout)
    code_lines = gl.allocate_shared_memory(gl.uint8, [STAGES, BLOCK_N, STEP // 2], code_layout)
    words = as_other(code_lines, gl.int32, [STAGES, BLOCK_N, 16], word_layout)
    height_ring = gl.allocate_shared_memory(gl.int32, [STAGES, BLOCK_N], flat)
    numbers = gl.allocate_shared_memory(gl.int32, [STAGES, 16], flat)
    step_numbers = gl.allocate_shared_memory(gl.int32, [STAGES, 1], flat)
    factors = gl.allocate_shared_memory(gl.float32, [GROUPS, BLOCK_M], flat)
    far_factors = gl.allocate_shared_memory(gl.float32, [4 * GROUPS, BLOCK_M], flat)
    if out_tiles is None:
        ends = (out_tiles, out_tiles, factors, far_factors)
    else:
        out_layout: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
        dtype: gl.constexpr = out.dtype.element_ty
        staged = gl.allocate_shared_memory(dtype, [2 * GROUPS, STORED, GROUP], out_layout)
        ends = (out_tiles, staged, factors, far_factors)
    flags = gl.allocate_shared_memory(gl.int32, [TILES * GROUPS, 1], flat)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier_layout)
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier_layout)
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=33)
        mbarrier.init(empty.index(i), count=GROUPS)
    if DEPENDENT:
        wait_for_previous()
    ring = (x_tiles, code_lines, words, height_ring, numbers, step_numbers, full, empty)
    sizes = (m, n, blocks, blocks_per_split // 4)
    source = ((low, high, top), code_tiles, heights, padded_n)
    masks = (far_of_x, high_of_x, top_of_x, far_of_w, high_of_w, top_of_w)
    of_operands = (base_of_w, base_of_x, planes)
    result = (out, bias, out, m, n, bias_stride)
    if GROUPS == 1:
        gl.warp_specialize(
            [
                (multiply, (ring, flags, of_operands, result, sizes, tiles, ends, 0)),
                (copy, (ring, source, masks, sizes, tiles, WORDS)),
            ],
            [1],
            [COPY_REGISTERS[0]],
        )
    else:
        gl.warp_specialize(
            [
                (multiply, (ring, flags, of_operands, result, sizes, tiles, ends, 0)),
                (multiply, (ring, flags, of_operands, result, sizes, tiles, ends, 1)),
                (copy, (ring, source, masks, sizes, tiles, WORDS)),
            ],
            [4, 1],
            [MULTIPLY_REGISTERS, COPY_REGISTERS[1]],
        )
    flag_layout: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        found = 0
        for i in gl.static_range(GROUPS):
            flag = flags.index(tile // gl.num_programs(0) * GROUPS + i).load(flag_layout)
            found = gl.maximum(found, gl.max(flag, 0))
        first, row_of_x, split, begin, steps = place(tile, sizes, BLOCK_M, BLOCK_N)
        end = gl.minimum(4 * (begin + steps), blocks)
        compute_anew(
            found, a, a_scale, codes, scales, bias, out + gl.cast(split, gl.int64) * m * n, m, n,
            first, row_of_x, 4 * begin, end, a_stride_m, a_stride_k, a_scale_stride, code_stride,
            scale_stride, bias_stride, QUANTIZE, ROUNDING, False, BLOCK_N, BLOCK_M,
            layouts.words(1, gl.num_warps(), BLOCK_N), exact_tile,
        )  # fmt: skip
