"""How an operand's tile comes from memory to the matrix units, without LDS.

A chunk's blocks are multiplied in an order that suits the layout of the scales, the same one for
both operands: lane group j takes, in step s of S = KC / 128, block 4 s + j of the chunk (`NATURAL`,
as shuffled scales have it), or block S j + s, so that a lane's scale bytes lie side by side in a
plain row and come as one word.

Offsets are from a pointer to the tile's first row and to the chunk, so that 32 bits hold them. Rows
of codes begin at multiples of 16 bytes, and so do shuffled scales: what a lane takes is one load.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ..indices import along
from . import layouts

# Bytes of shuffled codes in 16 rows and of shuffled scales in 32 rows, both in their padded width,
# and how far a chunk of K advances in them.


@gluon.jit
def code_group(K: gl.constexpr) -> gl.constexpr:
    return (K + 63) // 64 * 512


@gluon.jit
def scale_group(K: gl.constexpr) -> gl.constexpr:
    return (K + 255) // 256 * 256


@gluon.jit
def code_step(KC: gl.constexpr, SHUFFLED: gl.constexpr) -> gl.constexpr:
    return KC * 8 if SHUFFLED else KC // 2


@gluon.jit
def scale_step(KC: gl.constexpr, SHUFFLED: gl.constexpr) -> gl.constexpr:
    return KC if SHUFFLED else KC // 32


@gluon.jit
def block_in_memory(block: gl.tensor, KC: gl.constexpr, NATURAL: gl.constexpr) -> gl.tensor:
    """Where in its chunk the block lies that is multiplied as number `block`."""
    if NATURAL:
        return block
    else:
        return block % 4 * (KC // 128) + block // 4


@gluon.jit
def code_pointer(
    codes: gl.tensor, first: gl.tensor, stride: gl.tensor, K: gl.constexpr, SHUFFLED: gl.constexpr
) -> gl.tensor:
    """To row `first`; `stride` is that of plain rows in units of 16 bytes."""
    if SHUFFLED:
        row = gl.cast(first >> 4, gl.int64) * code_group(K)
    else:
        row = gl.cast(first, gl.int64) * stride * 16
    return gl.multiple_of(codes + row, 16)


@gluon.jit
def scale_pointer(
    scales: gl.tensor, first: gl.tensor, stride: gl.tensor, K: gl.constexpr, SHUFFLED: gl.constexpr
) -> gl.tensor:
    """To row `first`."""
    if SHUFFLED:
        return gl.multiple_of(scales + gl.cast(first >> 5, gl.int64) * scale_group(K), 16)
    else:
        return scales + gl.cast(first, gl.int64) * stride


@gluon.jit
def code_offsets(
    stride: gl.tensor,
    last: gl.tensor,
    K: gl.constexpr,
    KC: gl.constexpr,
    INDEX: gl.constexpr,
    TILE: gl.constexpr,
    SHUFFLED: gl.constexpr,
    NATURAL: gl.constexpr,
    MASK_ROWS: gl.constexpr,
) -> tuple[gl.tensor, gl.tensor]:
    """(offsets, blocks) of codes: `[BM, KC / 2]` of A or `[KC / 2, BN]` of B.

    With MASK_ROWS, rows beyond row `last` of the tile are read from that one.
    """
    layout: gl.constexpr = layouts.operand(INDEX, TILE)
    row = along(INDEX, TILE[INDEX], layout, 2)
    byte = along(1 - INDEX, KC // 2, layout, 2)
    block = block_in_memory(byte // 16, KC, NATURAL)
    if SHUFFLED:
        group = row // 16
        if MASK_ROWS:
            group = gl.minimum(group, last // 16)
        offsets = group * code_group(K) + block * 256 + row % 16 * 16 + byte % 16
    else:
        if MASK_ROWS:
            row = gl.minimum(row, last)
        offsets = row * (stride * 16) + block * 16 + byte % 16
    return offsets, block


@gluon.jit
def scale_offsets(
    stride: gl.tensor,
    last: gl.tensor,
    K: gl.constexpr,
    KC: gl.constexpr,
    INDEX: gl.constexpr,
    TILE: gl.constexpr,
    SHUFFLED: gl.constexpr,
    NATURAL: gl.constexpr,
    MASK_ROWS: gl.constexpr,
) -> tuple[gl.tensor, gl.tensor]:
    """(offsets, blocks) of scale bytes, in the shape in which they are loaded.

    Shuffled scales are padded to 256 rows: no tile of them ends outside.
    """
    rows: gl.constexpr = TILE[INDEX]
    if SHUFFLED:
        dwords: gl.constexpr = layouts.shuffled_scales(INDEX, TILE, KC)
        half = along(1, KC // 256, dwords, 4)
        lane = along(2, 64, dwords, 4)
        byte = along(3, 4, dwords, 4)
        offsets = along(0, rows // 32, dwords, 4) * scale_group(K) + half * 256 + lane * 4 + byte
        block = half * 8 + byte // 2 * 4 + lane // 16
    elif NATURAL:
        operand: gl.constexpr = layouts.operand_scale(INDEX, TILE, KC)
        row = along(0, rows, operand, 2)
        block = along(1, KC // 32, operand, 2)
        if MASK_ROWS:
            row = gl.minimum(row, last)
        offsets = row * stride + block
    else:
        rows_of_bytes: gl.constexpr = layouts.plain_scales(INDEX, TILE, KC)
        row = along(0, rows, rows_of_bytes, 3)
        block = along(1, 4, rows_of_bytes, 3) * (KC // 128) + along(2, KC // 128, rows_of_bytes, 3)
        if MASK_ROWS:
            row = gl.minimum(row, last)
        offsets = row * stride + block
    return offsets, block


@gluon.jit
def load(
    base: gl.tensor, offsets: gl.tensor, block: gl.tensor, blocks: gl.tensor, MASK_K: gl.constexpr
) -> gl.tensor:
    """Bytes at `offsets`; with MASK_K those of block number `blocks` and beyond are 0 instead."""
    if MASK_K:
        return gl.amd.cdna4.buffer_load(base, offsets, mask=block < blocks)
    else:
        return gl.amd.cdna4.buffer_load(base, offsets)


@gluon.jit
def as_scales(
    loaded: gl.tensor,
    KC: gl.constexpr,
    INDEX: gl.constexpr,
    TILE: gl.constexpr,
    SHUFFLED: gl.constexpr,
    NATURAL: gl.constexpr,
) -> gl.tensor:
    """[rows, KC / 32] scale bytes of what was loaded at `scale_offsets`; nothing moves."""
    rows: gl.constexpr = TILE[INDEX]
    layout: gl.constexpr = layouts.operand_scale(INDEX, TILE, KC)
    if SHUFFLED:
        loaded = gl.reshape(loaded, [rows // 32, KC // 256, 4, 16, 2, 2])
        loaded = gl.permute(loaded, [0, 5, 3, 1, 4, 2])
    elif not NATURAL:
        loaded = gl.permute(loaded, [0, 2, 1])
    return gl.convert_layout(gl.reshape(loaded, [rows, KC // 32]), layout, assert_trivial=True)
