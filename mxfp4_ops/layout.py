"""The two layouts of a weight: plain, and the one that the MI355X kernels read.

Plain: codes `[N, K/2]` and scales `[N, K/32]`, row-major. Files and state dicts hold this one.

Shuffled: bytes in the order in which the matrix units take them, the same as AITER's
`shuffle_weight(layout=(16, 16))` and `e8m0_shuffle`. It works in whole tiles, so both tensors are
padded: codes to 16 rows and 32 columns (64 elements of K), scales to 256 rows and 8 columns. The
pad is code 0 and scale byte 127, which adds nothing to a product.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

CODE_ROWS, CODE_COLUMNS = 16, 32
SCALE_ROWS, SCALE_COLUMNS = 256, 8
PAD_SCALE = 127


def round_up(value: int, multiple: int) -> int:
    return (value + multiple - 1) // multiple * multiple


def shuffled_shapes(n: int, k: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Shapes of the shuffled codes and scales of an `[n, k]` weight."""
    codes = round_up(n, CODE_ROWS), round_up(k // 2, CODE_COLUMNS)
    scales = round_up(n, SCALE_ROWS), round_up(k // 32, SCALE_COLUMNS)
    return codes, scales


def _pad_to(t: Tensor, shape: tuple[int, int], value: int) -> Tensor:
    return F.pad(t, (0, shape[1] - t.shape[1], 0, shape[0] - t.shape[0]), value=value)


def shuffle(weight: Tensor, weight_scale: Tensor) -> tuple[Tensor, Tensor]:
    """Plain to shuffled; see `mxfp4_ops.shuffle`."""
    n, k = weight.shape[0], weight.shape[1] * 2
    code_shape, scale_shape = shuffled_shapes(n, k)

    codes = _pad_to(weight.view(torch.uint8), code_shape, 0)
    codes = codes.view(code_shape[0] // 16, 16, code_shape[1] // 32, 2, 16)
    codes = codes.permute(0, 2, 3, 1, 4).contiguous().view(code_shape)

    scales = _pad_to(weight_scale.view(torch.uint8), scale_shape, PAD_SCALE)
    scales = scales.view(scale_shape[0] // 32, 2, 16, scale_shape[1] // 8, 2, 4)
    scales = scales.permute(0, 3, 5, 2, 4, 1).contiguous().view(scale_shape)
    return codes.view(weight.dtype), scales.view(weight_scale.dtype)


def unshuffle(weight: Tensor, weight_scale: Tensor, n: int, k: int) -> tuple[Tensor, Tensor]:
    """Shuffled to plain; see `mxfp4_ops.unshuffle`."""
    code_shape, scale_shape = shuffled_shapes(n, k)

    codes = weight.view(torch.uint8)
    codes = codes.view(code_shape[0] // 16, code_shape[1] // 32, 2, 16, 16)
    codes = codes.permute(0, 3, 1, 2, 4).reshape(code_shape)[:n, : k // 2]

    scales = weight_scale.view(torch.uint8)
    scales = scales.view(scale_shape[0] // 32, scale_shape[1] // 8, 4, 16, 2, 2)
    scales = scales.permute(0, 5, 3, 1, 4, 2).reshape(scale_shape)[:n, : k // 32]
    return (
        codes.clone(memory_format=torch.contiguous_format).view(weight.dtype),
        scales.clone(memory_format=torch.contiguous_format).view(weight_scale.dtype),
    )
