"""`quantize` by itself: each lane converts whole blocks."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ..indices import along
from . import layouts
from .activations import activation_offsets, activation_pointer, load_activations
from .blocks import scale_bytes, to_bytes, to_codes
from .operands import code_group, scale_group


@gluon.jit
def mxfp4_quantize(
    x: gl.tensor,
    codes: gl.tensor,
    scales: gl.tensor,
    m: gl.tensor,
    x_stride_m: gl.tensor,
    x_stride_k: gl.tensor,
    K: gl.constexpr,
    MODE: gl.constexpr,
    PACKED: gl.constexpr,
    SHUFFLED: gl.constexpr,
    BM: gl.constexpr,
    KC: gl.constexpr,
    MASK_M: gl.constexpr,
) -> None:
    """x[M, K] to codes [M, K / 2] and scale bytes [M, K / 32], or to both of them shuffled."""
    dtype: gl.constexpr = x.dtype.element_ty
    chunk = gl.program_id(0)
    first_m = gl.program_id(1) * BM
    last = m - 1 - first_m
    blocks = K // 32 - chunk * (KC // 32)
    MASK_K: gl.constexpr = K % KC != 0

    base = activation_pointer(x, first_m, x_stride_m, PACKED)
    offsets, block = activation_offsets(
        x_stride_m, x_stride_k, last, BM, KC, dtype, PACKED, True, MASK_M
    )
    words = load_activations(
        base, chunk, offsets, block, blocks, x_stride_k, BM, KC, dtype, PACKED, MASK_K
    )
    scale = scale_bytes(words, dtype, MODE)
    q = to_codes(words, scale, dtype)
    poisoned = gl.expand_dims(scale == 255, 2).broadcast_to([BM, KC // 32, 4])
    poisoned = gl.convert_layout(
        gl.reshape(poisoned, [BM, KC // 8]), q.type.layout, assert_trivial=True
    )
    q = to_bytes(gl.where(poisoned, 0, q))

    layout: gl.constexpr = layouts.share(gl.num_warps(), BM, KC, 16)
    q = gl.convert_layout(q, layout, assert_trivial=True)
    row = along(0, BM, layout, 2)
    byte = along(1, KC // 2, layout, 2)
    if SHUFFLED:
        to = codes + gl.cast(first_m >> 4, gl.int64) * code_group(K) + chunk * (KC * 8)
        at = row // 16 * code_group(K) + byte // 16 * 256 + row % 16 * 16 + byte % 16
    else:
        to = codes + gl.cast(first_m, gl.int64) * (K // 2) + chunk * (KC // 2)
        at = row * (K // 2) + byte
    store(to, q, at, row, byte // 16, last, blocks, MASK_M, MASK_K)

    s_layout: gl.constexpr = layouts.share(gl.num_warps(), BM, KC, 1)
    scale = gl.convert_layout(scale.to(gl.uint8), s_layout, assert_trivial=True)
    row = along(0, BM, s_layout, 2)
    block = along(1, KC // 32, s_layout, 2)
    if SHUFFLED:
        # Tiles of 32 rows and 8 blocks: block % 4, row % 16, block // 4, row // 16.
        row_in_group = first_m % 32 + row
        column = chunk * (KC // 32) + block
        to = scales + gl.cast(first_m >> 5, gl.int64) * scale_group(K)
        at = row_in_group // 32 * scale_group(K) + column // 8 * 256 + column % 4 * 64
        at += row_in_group % 16 * 4 + column // 4 % 2 * 2 + row_in_group // 16 % 2
    else:
        to = scales + gl.cast(first_m, gl.int64) * (K // 32) + chunk * (KC // 32)
        at = row * (K // 32) + block
    store(to, scale, at, row, block, last, blocks, MASK_M, MASK_K)


@gluon.jit
def store(
    pointer: gl.tensor,
    value: gl.tensor,
    offsets: gl.tensor,
    row: gl.tensor,
    block: gl.tensor,
    last: gl.tensor,
    blocks: gl.tensor,
    MASK_M: gl.constexpr,
    MASK_K: gl.constexpr,
) -> None:
    """Store what lies in rows up to `last` and blocks below `blocks`."""
    if MASK_M and MASK_K:
        gl.amd.cdna4.buffer_store(value, pointer, offsets, mask=(row <= last) & (block < blocks))
    elif MASK_M:
        gl.amd.cdna4.buffer_store(value, pointer, offsets, mask=row <= last)
    elif MASK_K:
        gl.amd.cdna4.buffer_store(value, pointer, offsets, mask=block < blocks)
    else:
        gl.amd.cdna4.buffer_store(value, pointer, offsets)
