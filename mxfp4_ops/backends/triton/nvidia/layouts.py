"""Which lane and register of a program holds which element, for mma.m16n8k16 and wgmma.

The product is computed as y^T = W x^T: 16 rows of the weight are rows of the instruction, so that
few rows of x waste little. Of 4 neighbouring lanes each holds a whole 32-block of a row as it lies
in memory: 16 bytes of codes of the weight, 32 values of x. What the lanes of one instruction
multiply comes from their 4 blocks, and 8 instructions use them all up: a *step* of K.

Dimensions are the split of K among warps, the row, and K. A layout lists the steps that each bit of
the register, lane and warp number makes through the tensor, the lowest bit first.
"""

from __future__ import annotations

from triton.experimental.gluon import language as gl
from triton.runtime.jit import constexpr_function

from ..indices import bits, steps


@constexpr_function
def _walk(dim: int, first: int, count: int) -> list[list[int]]:
    return steps(3, dim, first, count)


@constexpr_function
def _row_registers(down: int, rows: int) -> list[list[int]]:
    """A lane has rows r and r + 8 of 16, and of every 16 * down."""
    return _walk(1, 8, 1) + _walk(1, 16 * down, bits(rows // (16 * down)))


@constexpr_function
def _warps(splits: int, down: int, first: int) -> list[list[int]]:
    return _walk(1, first, bits(down)) + _walk(0, 1, bits(splits))


@constexpr_function
def warp_sums(splits: int, down: int) -> gl.constexpr:
    """Of mma's sums [splits, rows of W, rows of x], with `down` warps along the rows of W."""
    return gl.NVMMADistributedLayout(
        version=[2, 0], warps_per_cta=[splits, down, 1], instr_shape=[1, 16, 8]
    )


@constexpr_function
def group_sums(columns: int) -> gl.constexpr:
    """Of wgmma's sums [64 rows of W, rows of x] of operands of 8 bits."""
    return gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, columns, 32]
    )


@constexpr_function
def float8_words() -> gl.constexpr:
    """Of the 32-bit words with 8 codes each that a group multiplies in a step, [64, 16].

    An instruction uses up one block, of which each of 4 neighbouring lanes has a word.
    """
    return gl.DistributedLinearLayout(
        reg_bases=[[0, 4], [0, 8], [8, 0]],
        lane_bases=[[0, 1], [0, 2], [1, 0], [2, 0], [4, 0]],
        warp_bases=[[16, 0], [32, 0]],
        block_bases=[],
        shape=[64, 16],
    )


@constexpr_function
def integer_words() -> gl.constexpr:
    """Of such words where a lane has the four of a block, in neighbouring registers.

    An instruction uses up one word of each, so that what 4 lanes give it comes from 4 blocks.
    """
    return gl.DistributedLinearLayout(
        reg_bases=[[0, 1], [0, 2], [8, 0]],
        lane_bases=[[0, 4], [0, 8], [1, 0], [2, 0], [4, 0]],
        warp_bases=[[16, 0], [32, 0]],
        block_bases=[],
        shape=[64, 16],
    )


@constexpr_function
def integer_blocks() -> gl.constexpr:
    """Of the words' blocks, [64, 4]."""
    of_words = gl.DistributedLinearLayout(
        reg_bases=[[0, 0, 1], [0, 0, 2], [8, 0, 0]],
        lane_bases=[[0, 1, 0], [0, 2, 0], [1, 0, 0], [2, 0, 0], [4, 0, 0]],
        warp_bases=[[16, 0, 0], [32, 0, 0]],
        block_bases=[],
        shape=[64, 4, 4],
    )
    return gl.SliceLayout(2, of_words)


@constexpr_function
def columns(rows: int) -> gl.constexpr:
    """Of what four warps store of [rows of W, rows of x], 8 neighbouring rows a lane."""
    down = rows // 8
    return gl.BlockedLayout([8, 1], [down, 32 // down], [1, 4], [0, 1])


@constexpr_function
def words(splits: int, down: int, rows: int) -> gl.constexpr:
    """Of 32-bit words with 8 codes each, [splits, rows, 16]."""
    return gl.DistributedLinearLayout(
        reg_bases=_walk(2, 1, 2) + _row_registers(down, rows),
        lane_bases=_walk(2, 4, 2) + _walk(1, 1, 3),
        warp_bases=_warps(splits, down, 16),
        block_bases=[],
        shape=[splits, rows, 16],
    )


@constexpr_function
def scales(splits: int, down: int, rows: int) -> gl.constexpr:
    """Of the words' scale bytes, [splits, rows, 4]."""
    four = [[0, 0, 0, 1], [0, 0, 0, 2]]
    registers, warps = _row_registers(down, rows), _warps(splits, down, 16)
    of_words = gl.DistributedLinearLayout(
        reg_bases=four + [[*basis, 0] for basis in registers],
        lane_bases=[[*basis, 0] for basis in _walk(2, 1, 2) + _walk(1, 1, 3)],
        warp_bases=[[*basis, 0] for basis in warps],
        block_bases=[],
        shape=[splits, rows, 4, 4],
    )
    return gl.SliceLayout(3, of_words)


@constexpr_function
def activations(splits: int, down: int, rows: int) -> gl.constexpr:
    """Of a quarter of x's step as words, [splits, rows, 16]: 8 neighbours of each block."""
    return gl.DistributedLinearLayout(
        reg_bases=_walk(2, 1, 2) + _walk(1, 8, bits(rows // 8)),
        lane_bases=_walk(2, 4, 2) + _walk(1, 1, 3),
        warp_bases=_warps(splits, down, 0),
        block_bases=[],
        shape=[splits, rows, 16],
    )


@constexpr_function
def all_splits(splits: int, warps: int, columns: int) -> gl.constexpr:
    """Of sums [splits, rows of W, rows of x], of which a thread has all splits."""
    across = min(columns, 32)
    return gl.BlockedLayout([splits, 1, 1], [1, 32 // across, across], [1, warps, 1], [2, 1, 0])


@constexpr_function
def copies(warps: int, columns: int, vector: int) -> gl.constexpr:
    """Of what threads copy of a tile [rows, columns], `vector` neighbours each."""
    across = min(32, columns // vector)
    return gl.BlockedLayout([1, vector], [32 // across, across], [warps, 1], [1, 0])


@constexpr_function
def plain(warps: int) -> gl.constexpr:
    """Of sums [rows of W, rows of x] that no matrix unit made.

    Lanes differ in their row of x: where they did not, ptxas (CUDA 12.8, sm_90, optimising above
    -O1) kept its rows' addresses in uniform registers and read wrong ones for some.
    """
    return gl.BlockedLayout([1, 1], [4, 8], [warps, 1], [0, 1])
