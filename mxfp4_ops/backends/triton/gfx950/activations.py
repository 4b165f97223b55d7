"""How activations come from memory: as 32-bit words, of which a lane has whole blocks.

Rows that lie in memory element after element are loaded as such words (`PACKED`); otherwise each
element is loaded by itself and 16-bit ones are put together here. Float32 needs no difference.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.runtime.jit import constexpr_function

from ..indices import along
from . import layouts
from .operands import block_in_memory, load


@constexpr_function
def words_per_block(dtype: gl.dtype) -> int:
    """32-bit words that hold 32 elements."""
    return dtype.primitive_bitwidth


@constexpr_function
def _items_per_block(dtype: gl.dtype, packed: bool) -> int:
    """What is loaded of a block: words, or elements."""
    return words_per_block(dtype) if packed else 32


@gluon.jit
def activation_pointer(
    X: gl.tensor, first: gl.tensor, stride: gl.tensor, PACKED: gl.constexpr
) -> gl.tensor:
    """A pointer to row `first`, for loading integers."""
    row = X + gl.cast(first, gl.int64) * stride
    if PACKED or X.dtype.element_ty.primitive_bitwidth == 32:
        return row.to(gl.pointer_type(gl.int32))
    else:
        return row.to(gl.pointer_type(gl.int16))


@gluon.jit
def activation_offsets(
    stride: gl.tensor,
    stride_k: gl.tensor,
    last: gl.tensor,
    BM: gl.constexpr,
    KC: gl.constexpr,
    dtype: gl.constexpr,
    PACKED: gl.constexpr,
    NATURAL: gl.constexpr,
    MASK_M: gl.constexpr,
) -> tuple[gl.tensor, gl.tensor]:
    """(offsets, blocks) from row `first`; with MASK_M rows beyond `last` are read from that one."""
    items: gl.constexpr = _items_per_block(dtype, PACKED)
    layout: gl.constexpr = layouts.share(gl.num_warps(), BM, KC, items)
    row = along(0, BM, layout, 2)
    if MASK_M:
        row = gl.minimum(row, last)
    item = along(1, KC // 32 * items, layout, 2)
    block = block_in_memory(item // items, KC, NATURAL)
    if PACKED:
        return row * (stride >> 1) + block * items + item % items, block
    else:
        return row * stride + (block * items + item % items) * stride_k, block


@gluon.jit
def load_activations(
    x: gl.tensor,
    k: gl.tensor,
    offsets: gl.tensor,
    block: gl.tensor,
    blocks: gl.tensor,
    stride_k: gl.tensor,
    BM: gl.constexpr,
    KC: gl.constexpr,
    dtype: gl.constexpr,
    PACKED: gl.constexpr,
    MASK_K: gl.constexpr,
) -> gl.tensor:
    """Chunk k as words [BM, KC / 32 * words_per_block]; 0 from block `blocks` on, with MASK_K."""
    items: gl.constexpr = _items_per_block(dtype, PACKED)
    step = k * (KC // 32 * items)
    loaded = load(x + (step if PACKED else step * stride_k), offsets, block, blocks, MASK_K)
    if PACKED or words_per_block(dtype) == 32:
        return loaded
    else:
        low, high = gl.split(gl.reshape(loaded.to(gl.int32), [BM, KC // 2, 2]))
        layout: gl.constexpr = layouts.share(gl.num_warps(), BM, KC, 16)
        return gl.convert_layout(low & 0xFFFF | high << 16, layout, assert_trivial=True)
