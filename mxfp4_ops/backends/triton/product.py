"""What the kernels that multiply by an MXFP4 weight share."""

from __future__ import annotations

import triton
import triton.language as tl

from .numbers import as_float32
from .offsets import code_blocks, scale_blocks


@triton.jit
def weight_blocks(
    codes: tl.tensor,
    scales: tl.tensor,
    code_rows: tl.tensor,
    scale_rows: tl.tensor,
    block: tl.tensor,
    mask: tl.tensor,
    SHUFFLED: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Bytes of codes [BLOCKS, 16, BLOCK_N] and of scales [BLOCKS, BLOCK_N], in int32.

    The rows are offsets, those of codes with a block's 16 bytes; `block` says which ones along K.
    """
    code_at = codes + code_rows + code_blocks(block, SHUFFLED)[:, None, None]
    packed = tl.load(code_at, mask=mask[:, None, :], other=0)
    byte = tl.load(scales + scale_rows + scale_blocks(block, SHUFFLED)[:, None], mask=mask, other=0)
    return packed.to(tl.int32), byte.to(tl.int32)


@triton.jit
def halves_product(
    a_low: tl.tensor, a_high: tl.tensor, b_low: tl.tensor, b_high: tl.tensor
) -> tl.tensor:
    """a_low @ b_low + a_high @ b_high, block by block; float32 in full."""
    if a_low.shape[0] == 1:  # every warp would compute the same if it were one of a batch
        rows: tl.constexpr = a_low.shape[1]
        columns: tl.constexpr = b_low.shape[2]
        depth: tl.constexpr = a_low.shape[2]
        a_low, a_high = tl.reshape(a_low, [rows, depth]), tl.reshape(a_high, [rows, depth])
        b_low, b_high = tl.reshape(b_low, [depth, columns]), tl.reshape(b_high, [depth, columns])
        product = tl.dot(a_low, b_low, input_precision="ieee")
        product = tl.dot(a_high, b_high, product, input_precision="ieee")
        product = tl.reshape(product, [1, rows, columns])
    else:
        product = tl.dot(a_low, b_low, input_precision="ieee")
        product = tl.dot(a_high, b_high, product, input_precision="ieee")
    return product


@triton.jit
def with_bias(result: tl.tensor, bias: tl.tensor, offset: tl.tensor, mask: tl.tensor) -> tl.tensor:
    """The sums in float32 and the bias of each column, if there is one."""
    if bias is not None:
        result += as_float32(tl.load(bias + offset, mask=mask, other=0.0))[None, :]
    return result
