"""`quant_mm` in one kernel: activations are quantised on their way to the matrix units.

A workgroup computes a tile out[BM, BN]. For each chunk of K its waves quantise the activations
together, each its share of the blocks, and hand the codes round in LDS. Weights go from memory to
the matrix units without it: a wave has columns of its own, which no other wave reads.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from . import layouts
from .activations import activation_offsets, activation_pointer, load_activations
from .blocks import scale_bytes, to_bytes, to_codes
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
def shared_operand(
    BM: gl.constexpr, KC: gl.constexpr
) -> tuple[gl.shared_memory_descriptor, gl.shared_memory_descriptor]:
    """LDS for a chunk's quantised activations: codes and scale bytes."""
    codes = gl.allocate_shared_memory(gl.uint8, [BM, KC // 2], layouts.shared_codes(BM, KC))
    scales = gl.allocate_shared_memory(gl.uint8, [BM, KC // 32], layouts.shared_scales(BM, KC))
    return codes, scales


@gluon.jit
def fetch(
    at: gl.tuple,
    k: gl.tensor,
    x_stride_k: gl.tensor,
    K: gl.constexpr,
    KC: gl.constexpr,
    BM: gl.constexpr,
    dtype: gl.constexpr,
    PACKED: gl.constexpr,
    SHUFFLED: gl.constexpr,
    MASK_K: gl.constexpr,
) -> tuple[gl.tensor, gl.tensor, gl.tensor]:
    """Chunk k of the activations, the weight's codes and its scales."""
    x, x_offsets, x_block, w, w_offsets, w_block, ws, s_offsets, s_block = at
    blocks = K // 32 - k * (KC // 32)
    return (
        load_activations(
            x, k, x_offsets, x_block, blocks, x_stride_k, BM, KC, dtype, PACKED, MASK_K
        ),
        load(w + k * code_step(KC, SHUFFLED), w_offsets, w_block, blocks, MASK_K),
        load(ws + k * scale_step(KC, SHUFFLED), s_offsets, s_block, blocks, MASK_K),
    )


@gluon.jit
def multiply(
    chunk: gl.tuple,
    lds: gl.tuple,
    acc: gl.tensor,
    dtype: gl.constexpr,
    MODE: gl.constexpr,
    KC: gl.constexpr,
    TILE: gl.constexpr,
    SHUFFLED: gl.constexpr,
) -> gl.tensor:
    """acc + the product of one chunk, whose activations are quantised here."""
    x, w, ws = chunk
    codes_lds, scales_lds = lds
    scale = scale_bytes(x, dtype, MODE)
    codes = to_bytes(to_codes(x, scale, dtype))
    codes_layout: gl.constexpr = layouts.share(gl.num_warps(), TILE[0], KC, 16)
    scale_layout: gl.constexpr = layouts.share(gl.num_warps(), TILE[0], KC, 1)
    codes_lds.store(gl.convert_layout(codes, codes_layout, assert_trivial=True))
    scales_lds.store(gl.convert_layout(scale.to(gl.uint8), scale_layout, assert_trivial=True))
    a = codes_lds.load(layouts.operand(0, TILE))
    a_scale = scales_lds.load(layouts.operand_scale(0, TILE, KC))
    b_scale = as_scales(ws, KC, 1, TILE, SHUFFLED, SHUFFLED)
    return gl.amd.cdna4.mfma_scaled(a, a_scale, "e2m1", w, b_scale, "e2m1", acc)


@gluon.jit
def multiply_chunks(
    at: gl.tuple,
    acc: gl.tensor,
    first: gl.tensor,
    chunks: gl.constexpr,
    x_stride_k: gl.tensor,
    K: gl.constexpr,
    KC: gl.constexpr,
    TILE: gl.constexpr,
    dtype: gl.constexpr,
    MODE: gl.constexpr,
    PACKED: gl.constexpr,
    SHUFFLED: gl.constexpr,
    MASK_K: gl.constexpr,
    REST: gl.constexpr,
) -> gl.tensor:
    """acc + the products of `chunks` chunks from number `first` on, and of the REST of K.

    Two chunks a turn: the registers that one is loaded into are not those that are multiplied, and
    no copy is needed to make them so. So are the two buffers, and one barrier a chunk does.
    """
    BM: gl.constexpr = TILE[0]
    even_lds = shared_operand(BM, KC)
    odd_lds = shared_operand(BM, KC)
    if chunks > 0:
        even = fetch(at, first, x_stride_k, K, KC, BM, dtype, PACKED, SHUFFLED, MASK_K)
        for pair in range((chunks - 1) // 2):
            k = first + 2 * pair
            odd = fetch(at, k + 1, x_stride_k, K, KC, BM, dtype, PACKED, SHUFFLED, MASK_K)
            acc = multiply(even, even_lds, acc, dtype, MODE, KC, TILE, SHUFFLED)
            even = fetch(at, k + 2, x_stride_k, K, KC, BM, dtype, PACKED, SHUFFLED, MASK_K)
            acc = multiply(odd, odd_lds, acc, dtype, MODE, KC, TILE, SHUFFLED)
        if chunks % 2 == 0:
            odd = fetch(
                at, first + chunks - 1, x_stride_k, K, KC, BM, dtype, PACKED, SHUFFLED, MASK_K
            )
            acc = multiply(even, even_lds, acc, dtype, MODE, KC, TILE, SHUFFLED)
            acc = multiply(odd, odd_lds, acc, dtype, MODE, KC, TILE, SHUFFLED)
        else:
            acc = multiply(even, even_lds, acc, dtype, MODE, KC, TILE, SHUFFLED)
    if REST:
        rest = fetch(at, chunks, x_stride_k, K, KC, BM, dtype, PACKED, SHUFFLED, True)
        lds = odd_lds if chunks % 2 == 1 else even_lds
        acc = multiply(rest, lds, acc, dtype, MODE, KC, TILE, SHUFFLED)
    return acc


@gluon.jit
def mxfp4_quant_mm(
    x: gl.tensor,
    weight: gl.tensor,
    weight_scale: gl.tensor,
    bias: gl.tensor,
    out: gl.tensor,
    m: gl.tensor,
    n: gl.tensor,
    x_stride_m: gl.tensor,
    x_stride_k: gl.tensor,
    weight_stride: gl.tensor,
    weight_scale_stride: gl.tensor,
    bias_stride: gl.tensor,
    K: gl.constexpr,
    MODE: gl.constexpr,
    PACKED: gl.constexpr,
    SHUFFLED: gl.constexpr,
    BM: gl.constexpr,
    BN: gl.constexpr,
    KC: gl.constexpr,
    SPLIT: gl.constexpr,
    MASK_M: gl.constexpr,
    MASK_N: gl.constexpr,
) -> None:
    TILE: gl.constexpr = (BM, BN, 1, gl.num_warps())
    dtype: gl.constexpr = x.dtype.element_ty

    # The last tile overlaps the one before rather than end outside, unless it is the only one.
    first_m = 0 if MASK_M else gl.minimum(gl.program_id(1) * BM, m - BM)
    first_n = gl.program_id(0) * BN if MASK_N else gl.minimum(gl.program_id(0) * BN, n - BN)

    # Chunks of each split. What is left of K is a chunk of its own, or splits mask all of theirs.
    chunks: gl.constexpr = (K + KC * SPLIT - 1) // (KC * SPLIT) if SPLIT > 1 else K // KC
    RAGGED: gl.constexpr = K % (KC * SPLIT) != 0
    MASK_K: gl.constexpr = RAGGED and SPLIT > 1
    first_k = gl.program_id(2) * chunks if SPLIT > 1 else 0

    x_base = activation_pointer(x, first_m, x_stride_m, PACKED)
    x_offsets, x_block = activation_offsets(
        x_stride_m, x_stride_k, m - 1, BM, KC, dtype, PACKED, SHUFFLED, MASK_M
    )
    last = n - 1 - first_n
    w_offsets, w_block = code_offsets(
        weight_stride, last, K, KC, 1, TILE, SHUFFLED, SHUFFLED, MASK_N
    )
    s_offsets, s_block = scale_offsets(
        weight_scale_stride, last, K, KC, 1, TILE, SHUFFLED, SHUFFLED, MASK_N
    )
    w = code_pointer(weight, first_n, weight_stride, K, SHUFFLED)
    ws = scale_pointer(weight_scale, first_n, weight_scale_stride, K, SHUFFLED)

    acc = gl.zeros([BM, BN], gl.float32, layout=layouts.product(TILE))
    at = (x_base, x_offsets, x_block, w, w_offsets, w_block, ws, s_offsets, s_block)
    acc = multiply_chunks(
        at, acc, first_k, chunks, x_stride_k, K, KC, TILE, dtype, MODE, PACKED, SHUFFLED,
        MASK_K, RAGGED and SPLIT == 1,
    )  # fmt: skip
    store_tile(acc, out, bias, m, n, first_m, first_n, bias_stride, SPLIT, MASK_M, MASK_N)
