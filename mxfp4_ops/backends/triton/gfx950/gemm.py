"""`mm`: both sides are MXFP4 already. Neither goes through LDS, so waves never wait for each other.

A workgroup computes a tile out[BM, BN], split among WM x WN waves.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from . import layouts
from .epilogue import store_tile
from .operands import (
    as_scales,
    code_offsets,
    code_pointer,
    code_step,
    load,
    scale_offsets,
    scale_pointer,
    scale_step,
)


@gluon.jit
def operand_at(
    codes: gl.tensor,
    scales: gl.tensor,
    first: gl.tensor,
    last: gl.tensor,
    stride: gl.tensor,
    stride_scale: gl.tensor,
    K: gl.constexpr,
    KC: gl.constexpr,
    INDEX: gl.constexpr,
    TILE: gl.constexpr,
    SHUFFLED: gl.constexpr,
    NATURAL: gl.constexpr,
    MASK_ROWS: gl.constexpr,
) -> tuple[gl.tensor, ...]:
    """Pointers, offsets and blocks of an operand's codes and scales, from row `first` on."""
    offsets, block = code_offsets(stride, last, K, KC, INDEX, TILE, SHUFFLED, NATURAL, MASK_ROWS)
    s_offsets, s_block = scale_offsets(
        stride_scale, last, K, KC, INDEX, TILE, SHUFFLED, NATURAL, MASK_ROWS
    )
    codes = code_pointer(codes, first, stride, K, SHUFFLED)
    scales = scale_pointer(scales, first, stride_scale, K, SHUFFLED)
    return codes, offsets, block, scales, s_offsets, s_block


@gluon.jit
def fetch_operand(
    at: gl.tuple,
    k: gl.tensor,
    K: gl.constexpr,
    KC: gl.constexpr,
    SHUFFLED: gl.constexpr,
    MASK_K: gl.constexpr,
) -> tuple[gl.tensor, gl.tensor]:
    """Chunk k of an operand: codes and scales."""
    codes, offsets, block, scales, s_offsets, s_block = at
    blocks = K // 32 - k * (KC // 32)
    return (
        load(codes + k * code_step(KC, SHUFFLED), offsets, block, blocks, MASK_K),
        load(scales + k * scale_step(KC, SHUFFLED), s_offsets, s_block, blocks, MASK_K),
    )


@gluon.jit
def multiply(
    a: gl.tensor,
    b: gl.tensor,
    acc: gl.tensor,
    KC: gl.constexpr,
    TILE: gl.constexpr,
    A_SHUFFLED: gl.constexpr,
    B_SHUFFLED: gl.constexpr,
    NATURAL: gl.constexpr,
) -> gl.tensor:
    """acc + the product of one chunk."""
    a_codes, a_scales = a
    b_codes, b_scales = b
    a_scales = as_scales(a_scales, KC, 0, TILE, A_SHUFFLED, NATURAL)
    b_scales = as_scales(b_scales, KC, 1, TILE, B_SHUFFLED, NATURAL)
    return gl.amd.cdna4.mfma_scaled(a_codes, a_scales, "e2m1", b_codes, b_scales, "e2m1", acc)


@gluon.jit
def mxfp4_gemm(
    a: gl.tensor,
    a_scale: gl.tensor,
    b: gl.tensor,
    b_scale: gl.tensor,
    bias: gl.tensor,
    out: gl.tensor,
    m: gl.tensor,
    n: gl.tensor,
    a_stride: gl.tensor,
    a_scale_stride: gl.tensor,
    b_stride: gl.tensor,
    b_scale_stride: gl.tensor,
    bias_stride: gl.tensor,
    K: gl.constexpr,
    A_SHUFFLED: gl.constexpr,
    B_SHUFFLED: gl.constexpr,
    BM: gl.constexpr,
    BN: gl.constexpr,
    KC: gl.constexpr,
    WM: gl.constexpr,
    SPLIT: gl.constexpr,
    MASK_M: gl.constexpr,
    MASK_N: gl.constexpr,
) -> None:
    TILE: gl.constexpr = (BM, BN, WM, gl.num_warps() // WM)
    NATURAL: gl.constexpr = A_SHUFFLED or B_SHUFFLED

    # The last tile overlaps the one before rather than end outside, unless it is masked.
    first_m = gl.program_id(1) * BM
    if not MASK_M:
        first_m = gl.minimum(first_m, m - BM)
    first_n = gl.program_id(0) * BN
    if not MASK_N:
        first_n = gl.minimum(first_n, n - BN)
    # Chunks of each split. What is left of K is a chunk of its own, or splits mask all of theirs.
    chunks: gl.constexpr = (K + KC * SPLIT - 1) // (KC * SPLIT) if SPLIT > 1 else K // KC
    RAGGED: gl.constexpr = K % (KC * SPLIT) != 0
    MASK_K: gl.constexpr = RAGGED and SPLIT > 1
    first_k = gl.program_id(2) * chunks if SPLIT > 1 else 0

    at_a = operand_at(
        a,
        a_scale,
        first_m,
        m - 1 - first_m,
        a_stride,
        a_scale_stride,
        K,
        KC,
        0,
        TILE,
        A_SHUFFLED,
        NATURAL,
        MASK_M,
    )
    at_b = operand_at(
        b,
        b_scale,
        first_n,
        n - 1 - first_n,
        b_stride,
        b_scale_stride,
        K,
        KC,
        1,
        TILE,
        B_SHUFFLED,
        NATURAL,
        MASK_N,
    )
    acc = gl.zeros([BM, BN], gl.float32, layout=layouts.product(TILE))
    # Two chunks a turn: the registers that one is loaded into are not those that are multiplied,
    # and no copy is needed to make them so.
    if chunks > 0:
        even_a = fetch_operand(at_a, first_k, K, KC, A_SHUFFLED, MASK_K)
        even_b = fetch_operand(at_b, first_k, K, KC, B_SHUFFLED, MASK_K)
        for pair in range((chunks - 1) // 2):
            k = first_k + 2 * pair
            odd_a = fetch_operand(at_a, k + 1, K, KC, A_SHUFFLED, MASK_K)
            odd_b = fetch_operand(at_b, k + 1, K, KC, B_SHUFFLED, MASK_K)
            acc = multiply(even_a, even_b, acc, KC, TILE, A_SHUFFLED, B_SHUFFLED, NATURAL)
            even_a = fetch_operand(at_a, k + 2, K, KC, A_SHUFFLED, MASK_K)
            even_b = fetch_operand(at_b, k + 2, K, KC, B_SHUFFLED, MASK_K)
            acc = multiply(odd_a, odd_b, acc, KC, TILE, A_SHUFFLED, B_SHUFFLED, NATURAL)
        if chunks % 2 == 0:
            odd_a = fetch_operand(at_a, first_k + chunks - 1, K, KC, A_SHUFFLED, MASK_K)
            odd_b = fetch_operand(at_b, first_k + chunks - 1, K, KC, B_SHUFFLED, MASK_K)
            acc = multiply(even_a, even_b, acc, KC, TILE, A_SHUFFLED, B_SHUFFLED, NATURAL)
            acc = multiply(odd_a, odd_b, acc, KC, TILE, A_SHUFFLED, B_SHUFFLED, NATURAL)
        else:
            acc = multiply(even_a, even_b, acc, KC, TILE, A_SHUFFLED, B_SHUFFLED, NATURAL)
    if RAGGED and SPLIT == 1:
        rest_a = fetch_operand(at_a, chunks, K, KC, A_SHUFFLED, True)
        rest_b = fetch_operand(at_b, chunks, K, KC, B_SHUFFLED, True)
        acc = multiply(rest_a, rest_b, acc, KC, TILE, A_SHUFFLED, B_SHUFFLED, NATURAL)

    store_tile(acc, out, bias, m, n, first_m, first_n, bias_stride, SPLIT, MASK_M, MASK_N)
