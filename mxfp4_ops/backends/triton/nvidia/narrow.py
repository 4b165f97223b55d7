"""The product for few rows of x: weights go from memory to registers to the matrix units.

Nothing of the weight passes through shared memory, and no lane gives anything to another before the
end, where the sums of warps that had different steps of K meet.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .. import dependent
from ..indices import along
from . import layouts
from .epilogue import compute_anew, over_splits, trouble
from .exact import exact_tile_apart, scale_blocks, store
from .operands import (
    STEP,
    in_range,
    pieces,
    unpack,
    warp_operand,
    weight_bytes,
    weight_words,
)

wait_for_previous = gluon.jit(dependent.wait_for_previous.fn)


@gluon.jit
def mxfp4_gemm_narrow(
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
    a_stride_m: gl.tensor,
    a_stride_k: gl.tensor,
    a_scale_stride: gl.tensor,
    code_stride: gl.tensor,
    scale_stride: gl.tensor,
    bias_stride: gl.tensor,
    padded_m: gl.constexpr,
    QUANTIZE: gl.constexpr,
    ROUNDING: gl.constexpr,
    SHUFFLED: gl.constexpr,
    STORED: gl.constexpr,
    HAS_MUL: gl.constexpr,
    DEPENDENT: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_M: gl.constexpr,
    SPLITS: gl.constexpr,
    AHEAD: gl.constexpr,
) -> None:
    """One program computes the sums of BLOCK_N rows of W and BLOCK_M of x over one split of K.

    Of its warps, SPLITS share the steps of K in turn; each has AHEAD of them under way. `operand`
    is x as `prepare.py` makes it, `a` and `a_scale` what it was made of, and `out` is
    [splits of K, m, n].
    """
    DOWN: gl.constexpr = gl.num_warps() // SPLITS
    layout: gl.constexpr = layouts.warp_sums(SPLITS, DOWN)
    word_layout: gl.constexpr = layouts.words(SPLITS, DOWN, BLOCK_N)
    byte_layout: gl.constexpr = layouts.scales(SPLITS, DOWN, BLOCK_N)
    x_layout: gl.constexpr = layouts.activations(SPLITS, DOWN, BLOCK_M)

    first = gl.program_id(0) * BLOCK_N
    top = gl.program_id(1) * BLOCK_M
    begin = gl.program_id(2) * blocks_per_split
    end = gl.minimum(begin + blocks_per_split, blocks)

    words = codes.to(gl.pointer_type(gl.int32))
    word_offset, block = weight_words(first, n, begin, code_stride, SHUFFLED, word_layout)
    WORD_STEP: gl.constexpr = SPLITS * (256 if SHUFFLED else 16)

    bytes_, byte_block = weight_bytes(
        scales, first, n, begin, scale_stride, SPLITS, BLOCK_N, SHUFFLED, byte_layout
    )

    X_STEP: gl.constexpr = padded_m * (STEP // 2)
    column = along(1, BLOCK_M, x_layout, 3)
    source = operand.to(gl.pointer_type(gl.int32)) + gl.cast(begin // 4, gl.int64) * X_STEP
    source = gl.multiple_of(source + gl.cast(top // 8, gl.int64) * (STORED * (STEP // 2)), 16)
    x_offset = gl.cast(along(0, SPLITS, x_layout, 3), gl.int64) * X_STEP
    x_offset += column // 8 * (STORED * (STEP // 2))
    x_offset += column % 8 % STORED * 16 + along(2, 16, x_layout, 3)

    w = ()
    s = ()
    for i in gl.static_range(AHEAD):
        inside = block + 4 * SPLITS * i < end
        word_at = word_offset + i * WORD_STEP
        w += (gl.load(words + word_at, mask=inside, eviction_policy="evict_first"),)
        ahead = byte_block + 4 * SPLITS * i
        s += (gl.load(bytes_ + scale_blocks(ahead, SHUFFLED), mask=ahead < end, other=127),)
    if DEPENDENT:
        wait_for_previous()  # what comes before reads weights only
    x = ()
    for quarter in gl.static_range(4):
        x += (gl.load(source + (x_offset + quarter * (STORED * 16))),)
    total = gl.zeros([SPLITS, BLOCK_N, BLOCK_M], gl.float32, layout=layout)
    fits = gl.full([SPLITS, BLOCK_N, 4], 0x80, gl.int32, layout=byte_layout)
    for _ in range(begin, end, 4 * SPLITS * AHEAD):
        for i in gl.static_range(AHEAD):
            byte = s[0].to(gl.int32)
            fits &= in_range(byte)
            unpacked = unpack(w[0], byte, HAS_MUL)
            # The registers of what was used take what comes, so that none must be copied.
            word_at = word_offset + (i + AHEAD) * WORD_STEP
            inside = block + 4 * SPLITS * (i + AHEAD) < end
            # Nobody reads a weight twice, but everyone x. Beyond K x is zero, whatever is here.
            w = w[1:] + (gl.load(words + word_at, mask=inside, eviction_policy="evict_first"),)
            ahead = byte_block + 4 * SPLITS * (i + AHEAD)
            s = s[1:] + (
                gl.load(bytes_ + scale_blocks(ahead, SHUFFLED), mask=ahead < end, other=127),
            )
            b = pieces(x[0]) + pieces(x[1]) + pieces(x[2]) + pieces(x[3])
            # The units round towards zero: their own sum must stay short.
            part = gl.zeros([SPLITS, BLOCK_N, BLOCK_M], gl.float32, layout=layout)
            for j in gl.static_range(8):
                part = gl.nvidia.ampere.mma_v2(
                    warp_operand(unpacked[j], 0, layout), warp_operand(b[j], 1, layout), part
                )
            total += part
            x = ()
            for quarter in gl.static_range(4):
                at = x_offset + ((i + 1) * (SPLITS * X_STEP) + quarter * (STORED * 16))
                x += (gl.load(source + at),)
        word_offset += WORD_STEP * AHEAD
        x_offset += SPLITS * X_STEP * AHEAD
        block += 4 * SPLITS * AHEAD
        byte_block += 4 * SPLITS * AHEAD

    found = trouble(total, fits, m, n, first, top, layout)
    sums_layout: gl.constexpr = (
        layouts.all_splits(SPLITS, gl.num_warps(), BLOCK_M) if SPLITS > 1 else layout
    )
    sums = over_splits(total, sums_layout)
    store(sums, first, top, bias, out, m, n, bias_stride)
    compute_anew(
        found, a, a_scale, codes, scales, bias, out, m, n, first, top, begin, end, a_stride_m,
        a_stride_k, a_scale_stride, code_stride, scale_stride, bias_stride, QUANTIZE, ROUNDING,
        SHUFFLED, BLOCK_N, BLOCK_M, word_layout, exact_tile_apart,
    )  # fmt: skip
