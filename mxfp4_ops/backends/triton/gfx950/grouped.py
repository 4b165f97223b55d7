"""`grouped_quant_mm` in one kernel: `fused.py`'s, whose tiles of rows each find their expert.

The host launches as many tiles as there can be (`..grouped.row_tiles`); those beyond the last find
no rows.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.runtime.jit import constexpr_function

from . import layouts
from .activations import activation_offsets, activation_pointer
from .epilogue import store_tile
from .fused import multiply_chunks
from .operands import code_offsets, code_pointer, scale_offsets, scale_pointer


@constexpr_function
def groups_layout(groups: int, num_warps: int) -> gl.BlockedLayout:
    """Numbers of groups, all of them in each wave."""
    return gl.BlockedLayout([max(1, groups // 64)], [64], [num_warps], [0])


@gluon.jit
def _larger(a: gl.tensor, b: gl.tensor) -> gl.tensor:
    return gl.maximum(a, b)


@gluon.jit
def _sum(a: gl.tensor, b: gl.tensor) -> gl.tensor:
    return a + b


@gluon.jit
def group_ends(
    offsets: gl.tensor,
    offset_stride: gl.tensor,
    index: gl.tensor,
    experts: gl.tensor,
    rows: gl.tensor,
) -> gl.tensor:
    """Where groups end: at the offsets, or where an earlier one ends later; the last at `rows`."""
    inside = (index >= 0) & (index <= experts)
    end = gl.load(offsets + index * offset_stride, mask=inside, other=0).to(gl.int64)
    end = gl.minimum(gl.maximum(end, 0), gl.cast(rows, gl.int64)).to(gl.int32)
    return gl.associative_scan(gl.where(index > experts, rows, end), 0, _larger)


@gluon.jit
def uniform(x: gl.tensor) -> gl.tensor:
    """A number that all lanes have, in a scalar register, as addresses of whole tiles should be."""
    return gl.inline_asm_elementwise(
        "v_readfirstlane_b32 $0, $1", "=s,v", [x], dtype=gl.int32, is_pure=True, pack=1
    )


@gluon.jit
def group_of_tile(
    offsets: gl.tensor,
    offset_stride: gl.tensor,
    experts: gl.tensor,
    rows: gl.tensor,
    tile: gl.tensor,
    BM: gl.constexpr,
    GROUPS: gl.constexpr,
) -> tuple[gl.tensor, gl.tensor, gl.tensor]:
    """(expert, first row, row behind the last one of its group) of a tile of rows.

    Group 0 is the rows before the first expert's, so that its expert is -1.
    """
    layout: gl.constexpr = groups_layout(GROUPS, gl.num_warps())
    index = gl.arange(0, GROUPS, layout=layout)
    begin = group_ends(offsets, offset_stride, index - 1, experts, rows)
    end = group_ends(offsets, offset_stride, index, experts, rows)
    tiles = (end - begin + BM - 1) // BM
    tiles_until = gl.associative_scan(tiles, 0, _sum)
    group = gl.sum((tiles_until <= tile).to(gl.int32), 0)
    mine = index == group
    earlier = gl.sum(gl.where(mine, tiles_until - tiles, 0), 0)
    first = gl.sum(gl.where(mine, begin, 0), 0) + (tile - earlier) * BM
    return uniform(group) - 1, uniform(first), uniform(gl.sum(gl.where(mine, end, 0), 0))


@gluon.jit
def mxfp4_grouped_quant_mm(
    x: gl.tensor,
    weight: gl.tensor,
    weight_scale: gl.tensor,
    offsets: gl.tensor,
    bias: gl.tensor,
    out: gl.tensor,
    m: gl.tensor,
    n: gl.tensor,
    experts: gl.tensor,
    x_stride_m: gl.tensor,
    x_stride_k: gl.tensor,
    weight_stride_e: gl.tensor,
    weight_stride: gl.tensor,
    weight_scale_stride_e: gl.tensor,
    weight_scale_stride: gl.tensor,
    offset_stride: gl.tensor,
    bias_stride_e: gl.tensor,
    bias_stride: gl.tensor,
    K: gl.constexpr,
    MODE: gl.constexpr,
    PACKED: gl.constexpr,
    GROUPS: gl.constexpr,
    BM: gl.constexpr,
    BN: gl.constexpr,
    KC: gl.constexpr,
    MASK_N: gl.constexpr,
) -> None:
    """A tile of one expert's rows. Strides of codes are in units of 16 bytes."""
    TILE: gl.constexpr = (BM, BN, 1, gl.num_warps())
    dtype: gl.constexpr = x.dtype.element_ty
    chunks: gl.constexpr = K // KC
    RAGGED: gl.constexpr = K % KC != 0

    expert, first_m, end_m = group_of_tile(
        offsets, offset_stride, experts, m, gl.program_id(1), BM, GROUPS
    )
    first_n = gl.program_id(0) * BN if MASK_N else gl.minimum(gl.program_id(0) * BN, n - BN)
    acc = gl.zeros([BM, BN], gl.float32, layout=layouts.product(TILE))
    if first_m < end_m:
        if (expert >= 0) & (expert < experts):
            x_base = activation_pointer(x, first_m, x_stride_m, PACKED)
            x_offsets, x_block = activation_offsets(
                x_stride_m, x_stride_k, end_m - 1 - first_m, BM, KC, dtype, PACKED, False, True
            )
            last = n - 1 - first_n
            w_offsets, w_block = code_offsets(
                weight_stride, last, K, KC, 1, TILE, False, False, MASK_N
            )
            s_offsets, s_block = scale_offsets(
                weight_scale_stride, last, K, KC, 1, TILE, False, False, MASK_N
            )
            codes = gl.multiple_of(weight + gl.cast(expert, gl.int64) * weight_stride_e * 16, 16)
            scales = weight_scale + gl.cast(expert, gl.int64) * weight_scale_stride_e
            w = code_pointer(codes, first_n, weight_stride, K, False)
            ws = scale_pointer(scales, first_n, weight_scale_stride, K, False)

            at = (x_base, x_offsets, x_block, w, w_offsets, w_block, ws, s_offsets, s_block)
            acc = multiply_chunks(
                at, acc, 0, chunks, x_stride_k, K, KC, TILE, dtype, MODE, PACKED, False, False,
                RAGGED,
            )  # fmt: skip

            bias_of = bias
            if bias is not None:
                bias_of = bias + gl.cast(expert, gl.int64) * bias_stride_e
            store_tile(acc, out, bias_of, end_m, n, first_m, first_n, bias_stride, 1, True, MASK_N)
        else:  # rows outside of all groups
            store_tile(acc, out, None, end_m, n, first_m, first_n, 0, 1, True, MASK_N)
