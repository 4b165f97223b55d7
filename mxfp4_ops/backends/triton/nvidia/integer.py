"""The product for many rows of x, on GPUs with wgmma, by integers where scales allow.

Where the rows of a tile are *plain* (`prepare_integer.py`), both operands are integers of 8 bits,
whose sum over all of K is exact: the multiplying warps unpack codes and do nothing else until the
end. Other tiles are multiplied as in the wide kernel, in parts of PART rows of x. A program takes
one tile after the other, and its warps have different tasks: one has tiles of both operands copied
into a ring in shared memory, the others, in groups of 64 rows of W, multiply.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from . import layouts, plan
from .epilogue import barrier, compute_anew, scaled_floats, some_nan, store_sums
from .exact import exact_tile, plus_bias
from .operands import STEP, integer_operand
from .wide import (
    COPY_REGISTERS,
    GROUP,
    MULTIPLY_REGISTERS,
    add_steps,
    as_other,
    async_load,
    load_tile,
    note,
    outside,
    wait_for_previous,
)

# The name before Triton 3.8.
copy_tile_out = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global

PART = gl.constexpr(plan.PART)
LONG = gl.constexpr(plan.LONG_STEPS)
TILES = gl.constexpr(plan.MOST_TILES)

STORED = gl.constexpr(64)
"""Rows of x whose sums are stored at a time."""


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
    steps = gl.maximum(gl.minimum(gl.cdiv(blocks, 4) - begin, steps_per_split), 0)
    return tile // across % down * BLOCK_N, tile % across * BLOCK_M, split, begin, steps


@gluon.jit
def some_uneven(
    uneven: gl.tensor, first: gl.tensor, end: gl.tensor, ROWS: gl.constexpr
) -> gl.tensor:
    """Whether one of ROWS rows from `first` on, and before `end`, is not plain."""
    row = first + gl.arange(0, ROWS, layout=gl.BlockedLayout([ROWS // 32], [32], [1], [0]))
    return gl.max(gl.load(uneven + row, mask=row < end, other=0), 0)


@gluon.jit
def parts_of_tile(
    uneven: gl.tensor, top: gl.tensor, m: gl.tensor, BLOCK_M: gl.constexpr
) -> gl.tensor:
    """How many parts a tile is multiplied in, each by all its steps."""
    return gl.where(uneven != 0, gl.cdiv(gl.minimum(m - top, BLOCK_M), min(BLOCK_M, PART)), 1)


@gluon.jit
def copy(
    ring: gl.tuple,
    source: gl.tuple,
    uneven_rows: gl.tuple,
    sizes: gl.tuple,
    tiles: gl.tensor,
) -> None:
    """The task of the warp that fills the ring."""
    x_lines, float_lines, code_lines, words, heights, kinds, full, empty = ring
    integers, floats, code_tiles, heights_of_w, padded_m, padded_n = source
    uneven_of_x, uneven_of_w = uneven_rows
    m, n, _, _ = sizes
    STAGES: gl.constexpr = words.shape[0]
    BLOCK_N: gl.constexpr = words.shape[1]
    BLOCK_M: gl.constexpr = x_lines.shape[1]
    ROWS: gl.constexpr = min(BLOCK_M, PART)
    OF_W: gl.constexpr = BLOCK_N * STEP // 2
    one_layout: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    row = gl.arange(0, BLOCK_N, layout=gl.BlockedLayout([BLOCK_N // 32], [32], [1], [0]))
    one = gl.full([1], 0, gl.int32, layout=one_layout)
    filled = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        first, top, _split, begin, steps = place(tile, sizes, BLOCK_M, BLOCK_N)
        uneven = some_uneven(uneven_of_x, top, m, BLOCK_M) | some_uneven(
            uneven_of_w, first, n, BLOCK_N
        )
        bytes_ = heights_of_w + gl.multiple_of(first, GROUP) + row
        for part in range(parts_of_tile(uneven, top, m, BLOCK_M)):
            for step in range(begin, begin + steps):
                slot = filled % STAGES
                if filled >= STAGES:
                    mbarrier.wait(empty.index(slot), filled // STAGES & 1 ^ 1)
                kinds.index(slot).store(one + uneven)
                if uneven == 0:
                    mbarrier.expect(full.index(slot), BLOCK_M * STEP + OF_W)
                    at = [top, step * STEP]
                    load_tile(integers, at, full.index(slot), x_lines.index(slot))
                else:
                    mbarrier.expect(full.index(slot), ROWS * STEP + OF_W)
                    at = [step * padded_m + top + part * ROWS, 0]
                    lines = float_lines.index(slot).slice(0, ROWS)
                    load_tile(floats, at, full.index(slot), lines)
                column = [first, step * (STEP // 2)]
                load_tile(code_tiles, column, full.index(slot), code_lines.index(slot))
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
def add_integers(ring: gl.tuple, begins: gl.tensor, ends: gl.tensor, ROW: gl.constexpr) -> gl.tuple:
    """Sums of what is in the ring from `begins` on and before `ends`."""
    x_lines, _, _, words, heights, _, full, empty = ring
    STAGES: gl.constexpr = words.shape[0]
    BLOCK_M: gl.constexpr = x_lines.shape[1]
    # Of an instruction; Triton has none of 256.
    WIDTH: gl.constexpr = min(BLOCK_M, 128)
    layout: gl.constexpr = layouts.group_sums(WIDTH)
    sums = ()
    for _i in gl.static_range(BLOCK_M // WIDTH):
        sums += (gl.zeros([GROUP, WIDTH], gl.int32, layout=layout),)
    slot = begins % STAGES
    w, height = codes_and_heights(words.index(slot), heights.index(slot), ROW)
    for step in range(begins, ends):
        slot = step % STAGES
        following = (step + 1) % STAGES
        operand = integer_operand(w, height, layout)
        parts = ()
        for i in gl.static_range(BLOCK_M // WIDTH):
            x = x_lines.index(slot).slice(i * WIDTH, WIDTH).permute((1, 0))
            parts += (hopper.warpgroup_mma(operand, x, sums[i], is_async=True),)
        mbarrier.wait(full.index(following), (step + 1) // STAGES & 1)
        w, height = codes_and_heights(words.index(following), heights.index(following), ROW)
        sums = hopper.warpgroup_mma_wait(0, deps=parts)
        if BLOCK_M == WIDTH:
            sums = (sums,)
        # Until here nothing may take the registers that the units read.
        gl.inline_asm_elementwise("", "=r,r", [operand], gl.int8, is_pure=False, pack=4)
        mbarrier.arrive(empty.index(slot))
    return sums


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
def scaled_integers(sums: gl.tuple, base: gl.tensor, factors: gl.tensor) -> gl.tuple:
    """Sums of integers, STORED rows of x at a time, times what they are scaled by.

    `base` is that of each row of W, and `factors`, in shared memory, are those of the rows of x.
    """
    layout: gl.constexpr = layouts.group_sums(STORED)
    of_w = gl.convert_layout(
        (base << 23).to(gl.float32, bitcast=True), gl.SliceLayout(1, layout), assert_trivial=True
    )
    parts = ()
    for i in gl.static_range(len(sums)):
        parts += in_parts(sums[i].to(gl.float32), STORED)
    scaled = ()
    for i in gl.static_range(len(parts)):
        of_x = factors.slice(i * STORED, STORED).load(gl.SliceLayout(0, layout))
        scaled += (parts[i] * gl.expand_dims(of_w, 1) * gl.expand_dims(of_x, 0),)
    return scaled


@gluon.jit
def store_parts(
    parts: gl.tuple,
    first: gl.tensor,
    top: gl.tensor,
    result: gl.tuple,
    out_tiles: gl.tensor,
    staged: gl.tensor,
    INDEX: gl.constexpr,
) -> None:
    """Store sums with the bias, STORED rows of x at a time.

    By the copy unit if `out_tiles` describes where, from one of a group's two buffers.
    """
    bias, out, _, n, bias_stride = result
    for i in gl.static_range(len(parts)):
        if out_tiles is None:
            store_sums(parts[i], first, top + i * STORED, result)
        else:
            values = plus_bias(parts[i], first, bias, n, bias_stride).to(out.dtype.element_ty)
            buffer = staged.index(2 * INDEX + i % 2)
            tma.store_wait(min(len(parts), 2) - 1)  # for what was in it
            barrier()
            buffer.permute((1, 0)).store(values)
            hopper.fence_async_shared()
            copy_tile_out(out_tiles, [top + i * STORED, first], buffer)


@gluon.jit
def add_floats(
    ring: gl.tuple,
    held: gl.tensor,
    base: gl.tensor,
    begins: gl.tensor,
    steps: gl.tensor,
    ROW: gl.constexpr,
    ROWS: gl.constexpr,
) -> tuple[gl.tensor, gl.tensor]:
    """As `add_steps`; sums of more than LONG steps are held in memory, and added to the next."""
    if held is None:
        total, fits = add_steps(ring, begins, begins + steps, base, ROW, ROWS)
    else:
        layout: gl.constexpr = layouts.group_sums(ROWS)
        row = gl.arange(0, GROUP, layout=gl.SliceLayout(1, layout)) + ROW
        column = gl.arange(0, ROWS, layout=gl.SliceLayout(0, layout))
        at = held + gl.expand_dims(row * ROWS, 1) + gl.expand_dims(column, 0)
        total = gl.zeros([GROUP, ROWS], gl.float32, layout=layout)
        fits = gl.full([GROUP], -1, gl.int32, layout=gl.SliceLayout(1, layout))
        for done in range(0, steps, LONG):
            end = gl.minimum(done + LONG, steps)
            total, fit = add_steps(ring, begins + done, begins + end, base, ROW, ROWS)
            fits &= fit
            if done > 0:
                total += gl.load(at)
            if end < steps:
                gl.store(at, total)
    return total, fits


@gluon.jit
def integer_tile(
    ring: gl.tuple,
    base: gl.tensor,
    base_of_x: gl.tensor,
    result: gl.tuple,
    at: gl.tuple,
    span: gl.tuple,
    ends: gl.tuple,
    INDEX: gl.constexpr,
) -> None:
    """Multiply and store a group's rows of a tile whose rows are plain."""
    _, _, m, _, _ = result
    first, top = at
    begins, steps = span
    out_tiles, staged, factors, _ = ends
    BLOCK_M: gl.constexpr = factors.shape[1]
    column = top + gl.arange(0, BLOCK_M, layout=gl.BlockedLayout([1], [32], [4], [0]))
    # Integers are twice the numbers, on both sides.
    field = gl.load(base_of_x + column, mask=column < m, other=127) - 2
    sums = add_integers(ring, begins, begins + steps, INDEX * GROUP)
    factors = factors.index(INDEX)
    factors.store(power_of_two(field))
    parts = scaled_integers(sums, base, factors)
    store_parts(parts, first, top, result, out_tiles, staged, INDEX)


@gluon.jit
def float_tile(
    ring: gl.tuple,
    base: gl.tensor,
    reference: gl.tensor,
    result: gl.tuple,
    at: gl.tuple,
    span: gl.tuple,
    parts: gl.tensor,
    ends: gl.tuple,
    INDEX: gl.constexpr,
) -> gl.tensor:
    """Multiply and store a group's rows of another tile; returns what `trouble` would."""
    _, _, block_lines, words, heights, _, full, empty = ring
    _, _, m, n, _ = result
    first, top = at
    begins, steps = span
    out_tiles, staged, factors, held = ends
    ROWS: gl.constexpr = min(factors.shape[1], PART)
    column = gl.arange(0, ROWS, layout=gl.BlockedLayout([1], [32], [4], [0]))
    filled = (block_lines, words, heights, full, empty)
    found = 0
    for _part in range(parts):
        scale_of_x = gl.load(reference + top + column, mask=top + column < m, other=127)
        total, fits = add_floats(filled, held, base, begins, steps, INDEX * GROUP, ROWS)
        total = scaled_floats(total, scale_of_x)
        is_nan = some_nan(total, first, top, m, n)
        found = gl.maximum(found, gl.maximum(is_nan, outside(fits)))
        store_parts(in_parts(total, STORED), first, top, result, out_tiles, staged, INDEX)
        begins += steps
        top += ROWS
    return found


@gluon.jit
def multiply(
    ring: gl.tuple,
    flags: gl.tensor,
    of_rows: gl.tuple,
    result: gl.tuple,
    sizes: gl.tuple,
    tiles: gl.tensor,
    ends: gl.tuple,
    INDEX: gl.constexpr,
) -> None:
    """The task of a group of warps: to multiply what is in the ring, and to store the sums."""
    x_lines, _, _, words, _, kinds, full, _ = ring
    base_of_w, base_of_x, reference = of_rows
    bias, out, m, n, bias_stride = result
    STAGES: gl.constexpr = words.shape[0]
    BLOCK_N: gl.constexpr = words.shape[1]
    BLOCK_M: gl.constexpr = x_lines.shape[1]
    layout: gl.constexpr = layouts.group_sums(min(BLOCK_M, PART))
    row = INDEX * GROUP + gl.arange(0, GROUP, layout=gl.SliceLayout(1, layout))
    done = 0
    mbarrier.wait(full.index(0), 0)
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        first, top, split, _begin, steps = place(tile, sizes, BLOCK_M, BLOCK_N)
        uneven = gl.max(kinds.index(done % STAGES).load(gl.BlockedLayout([1], [32], [4], [0])), 0)
        base = gl.load(base_of_w + first + row)
        to = (bias, out + gl.cast(split, gl.int64) * m * n, m, n, bias_stride)
        at = (first + INDEX * GROUP, top)
        span = (done, steps)
        parts = parts_of_tile(uneven, top, m, BLOCK_M)
        found = 0
        if uneven == 0:
            integer_tile(ring, base, base_of_x, to, at, span, ends, INDEX)
        else:
            found = float_tile(ring, base, reference, to, at, span, parts, ends, INDEX)
        done += parts * steps
        note(flags, tile // gl.num_programs(0) * (BLOCK_N // GROUP) + INDEX, found)
    if ends[0] is not None:
        # For all that was stored, not only read as by `tma.store_wait`: a tile may be stored again.
        zero = gl.full([1], 0, gl.int32, layout=gl.BlockedLayout([1], [32], [4], [0]))
        gl.inline_asm_elementwise(
            "cp.async.bulk.wait_group 0; mov.b32 $0, $1;", "=r,r", [zero], gl.int32, False, 1
        )


@gluon.jit
def mxfp4_gemm_integer(
    a: gl.tensor,
    a_scale: gl.tensor,
    operand: gl.tensor,
    reference: gl.tensor,
    integer: gl.tensor,
    base_of_x: gl.tensor,
    uneven_of_x: gl.tensor,
    code_tiles: gl.tensor,
    codes: gl.tensor,
    scales: gl.tensor,
    heights: gl.tensor,
    base_of_w: gl.tensor,
    uneven_of_w: gl.tensor,
    bias: gl.tensor,
    out_tiles: gl.tensor,
    out: gl.tensor,
    held: gl.tensor,
    m: gl.tensor,
    n: gl.tensor,
    blocks: gl.tensor,
    blocks_per_split: gl.tensor,
    tiles: gl.tensor,
    padded_m: gl.tensor,
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
) -> None:
    """Programs take one tile after the other: of BLOCK_N rows of W and BLOCK_M of x, and a split.

    STAGES steps of both are under way or in use. `operand` and `integer` describe x as 8-bit floats
    (as lines of 128 bytes) and as integers, `code_tiles` describes `codes`, and `out_tiles` `out`,
    or is None where the copy unit cannot store it. `held` [programs, BLOCK_N, PART] float32 is for
    sums of more than LONG steps, or None. For what is made of x and of `scales` see
    `mxfp4_prepare_integer`; other arguments are as for `mxfp4_gemm_narrow`.
    """
    GROUPS: gl.constexpr = BLOCK_N // GROUP
    ROWS: gl.constexpr = min(BLOCK_M, PART)
    x_layout: gl.constexpr = gl.NVMMASharedLayout(128, 8, rank=2)
    block_layout: gl.constexpr = gl.NVMMASharedLayout(32, 8, rank=2)
    code_layout: gl.constexpr = gl.NVMMASharedLayout(64, 8, rank=2)
    word_layout: gl.constexpr = gl.NVMMASharedLayout(64, 32, rank=2)
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    barrier_layout: gl.constexpr = mbarrier.MBarrierLayout()
    x_lines = gl.allocate_shared_memory(gl.int8, [STAGES, BLOCK_M, STEP], x_layout)
    float_lines = as_other(x_lines, gl.float8e5, [STAGES, BLOCK_M, STEP], x_layout)
    block_lines = as_other(x_lines, gl.float8e5, [STAGES, 4 * BLOCK_M, 32], block_layout)
    code_lines = gl.allocate_shared_memory(gl.uint8, [STAGES, BLOCK_N, STEP // 2], code_layout)
    words = as_other(code_lines, gl.int32, [STAGES, BLOCK_N, 16], word_layout)
    height_ring = gl.allocate_shared_memory(gl.int32, [STAGES, BLOCK_N], flat)
    kinds = gl.allocate_shared_memory(gl.int32, [STAGES, 1], flat)
    factors = gl.allocate_shared_memory(gl.float32, [GROUPS, BLOCK_M], flat)
    if held is not None:
        held += gl.cast(gl.program_id(0), gl.int64) * (BLOCK_N * ROWS)
    if out_tiles is None:
        ends = (out_tiles, out_tiles, factors, held)
    else:
        out_layout: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
        dtype: gl.constexpr = out.dtype.element_ty
        staged = gl.allocate_shared_memory(dtype, [2 * GROUPS, STORED, GROUP], out_layout)
        ends = (out_tiles, staged, factors, held)
    flags = gl.allocate_shared_memory(gl.int32, [TILES * GROUPS, 1], flat)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier_layout)
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier_layout)
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=33)
        mbarrier.init(empty.index(i), count=GROUPS)
    if DEPENDENT:
        wait_for_previous()
    to_fill = (x_lines, float_lines, code_lines, words, height_ring, kinds, full, empty)
    ring = (x_lines, float_lines, block_lines, words, height_ring, kinds, full, empty)
    sizes = (m, n, blocks, blocks_per_split // 4)
    source = (integer, operand, code_tiles, heights, padded_m, padded_n)
    uneven_rows = (uneven_of_x, uneven_of_w)
    of_rows = (base_of_w, base_of_x, reference)
    result = (bias, out, m, n, bias_stride)
    if GROUPS == 1:
        gl.warp_specialize(
            [
                (multiply, (ring, flags, of_rows, result, sizes, tiles, ends, 0)),
                (copy, (to_fill, source, uneven_rows, sizes, tiles)),
            ],
            [1],
            [COPY_REGISTERS[0]],
        )
    else:
        gl.warp_specialize(
            [
                (multiply, (ring, flags, of_rows, result, sizes, tiles, ends, 0)),
                (multiply, (ring, flags, of_rows, result, sizes, tiles, ends, 1)),
                (copy, (to_fill, source, uneven_rows, sizes, tiles)),
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
