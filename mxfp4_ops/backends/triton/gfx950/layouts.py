"""Which lane and register of a workgroup holds which element, for v_mfma_scale_f32_16x16x128.

For FP4 the instruction takes, in lane l, one whole 32-block: row (of A) or column (of B) l % 16,
block l // 16 of the four that make up K = 128. So a lane that loads 64 bytes of bfloat16, or 16
bytes of codes, has just what it multiplies, and no element crosses lanes on its way.

A layout lists the steps that each bit of the register, lane and wave number makes through the
tensor, the lowest bit first. A *chunk* is the KC elements of K that one iteration takes: KC / 128
instructions deep. `tile` is (BM, BN, waves along M, waves along N); operand 0 is A, whose rows are
the tile's rows, and operand 1 is B, whose rows are the tile's columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from triton.experimental.gluon import language as gl
from triton.runtime.jit import constexpr_function

from ....formats import BLOCK
from ..indices import bits, steps

if TYPE_CHECKING:  # Triton looks up the names that compiled code mentions
    Tile = tuple[int, int, int, int]


@constexpr_function
def _run(tile: Tile, index: int) -> int:
    """Neighbouring rows of an operand in one wave: the pair of 16 whose shuffled scales share
    dwords, if it has that many."""
    return min(32, tile[index] // tile[2 + index])


@constexpr_function
def _walk(
    tile: Tile, index: int, rank: int, dim: int, unit: int
) -> tuple[list[list[int]], list[list[int]]]:
    """(register, wave) steps through an operand's rows, from row `unit` on, in units of it."""
    rows, run, waves = tile[index], _run(tile, index), tile[2 + index]
    inner = steps(rank, dim, 16 // unit, bits(run // max(16, unit))) if unit < run else []
    outer = steps(rank, dim, run * waves // unit, bits(rows // (run * waves)))
    mine = steps(rank, dim, run // unit, bits(waves))
    others = [[0] * rank] * bits(tile[3 - index])
    return inner + outer, (others + mine if index == 0 else mine + others)


@constexpr_function
def product(tile: Tile) -> Any:
    """[BM, BN] accumulators."""
    return gl.amd.AMDMFMALayout(
        version=4,
        instr_shape=[16, 16, 128],
        transposed=True,  # a lane then holds four neighbouring columns of one row
        warps_per_cta=[tile[2], tile[3]],
        tiles_per_warp=[_run(tile, 0) // 16, _run(tile, 1) // 16],
    )


@constexpr_function
def operand(index: int, tile: Tile) -> Any:
    """[BM, KC / 2] or [KC / 2, BN] codes, as the instruction takes them."""
    return gl.DotOperandLayout(index, product(tile), k_width=16)


@constexpr_function
def operand_scale(index: int, tile: Tile, kc: int) -> Any:
    """[rows, KC / 32] scale bytes, as the instruction takes them."""
    return gl.amd.cdna4.get_mfma_scale_layout(operand(index, tile), [tile[index], kc // BLOCK])


@constexpr_function
def shuffled_scales(index: int, tile: Tile, kc: int) -> Any:
    """[rows / 32, KC / 256, 64, 4]: the dwords of shuffled scales, one for each lane."""
    registers, waves = _walk(tile, index, 4, 0, 32)
    return gl.DistributedLinearLayout(
        reg_bases=steps(4, 3, 1, 2) + steps(4, 1, 1, bits(kc // 256)) + registers,
        lane_bases=steps(4, 2, 1, 6),
        warp_bases=waves,
        block_bases=[],
        shape=[tile[index] // 32, kc // 256, 64, 4],
    )


@constexpr_function
def plain_scales(index: int, tile: Tile, kc: int) -> Any:
    """[rows, 4, KC / 128]: the bytes that a lane needs of a row, side by side there."""
    registers, waves = _walk(tile, index, 3, 0, 1)
    return gl.DistributedLinearLayout(
        reg_bases=steps(3, 2, 1, bits(kc // 128)) + registers,
        lane_bases=steps(3, 0, 1, 4) + steps(3, 1, 1, 2),
        warp_bases=waves,
        block_bases=[],
        shape=[tile[index], 4, kc // 128],
    )


@constexpr_function
def share(num_warps: int, rows: int, kc: int, width: int) -> Any:
    """[rows, KC / 32 * width]: each lane has whole blocks of `width` items, no two waves the same.

    The waves split K first and rows then. Where there are fewer blocks than lanes, waves repeat.
    """
    walk = steps(2, 1, 4 * width, bits(kc // 128)) + steps(2, 0, 16, bits(rows // 16))
    warps = bits(num_warps)
    return gl.DistributedLinearLayout(
        reg_bases=steps(2, 1, 1, bits(width)) + walk[warps:],
        lane_bases=steps(2, 0, 1, 4) + steps(2, 1, width, 2),
        warp_bases=walk[:warps] + [[0, 0]] * (warps - len(walk)),
        block_bases=[],
        shape=[rows, kc // BLOCK * width],
    )


@constexpr_function
def shared_codes(rows: int, kc: int) -> Any:
    """[rows, KC / 2] codes in LDS: lane after lane, 16 bytes each, so that no banks conflict."""
    return gl.SharedLinearLayout(
        steps(2, 1, 1, 4)
        + steps(2, 0, 1, 4)
        + steps(2, 1, 16, bits(kc // BLOCK))
        + steps(2, 0, 16, bits(rows // 16))
    )


@constexpr_function
def shared_scales(rows: int, kc: int) -> Any:
    """[rows, KC / 32] scale bytes in LDS: what a lane needs of a chunk lies side by side."""
    return gl.SharedLinearLayout(
        steps(2, 1, 4, bits(kc // 128))
        + steps(2, 0, 1, 4)
        + steps(2, 1, 1, 2)
        + steps(2, 0, 16, bits(rows // 16))
    )
