"""The layouts of other formats, against their definitions, element by element."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from checkpoint_files import write
from common import assert_same_bits, random_codes
from torch import Tensor

from mxfp4_ops import checkpoint
from mxfp4_ops.checkpoint.formats.torchao import unswizzle


def swizzled(scales: Tensor) -> Tensor:
    """cuBLAS's layout of block scales, from its formula for a scale's offset."""
    rows, columns = scales.shape
    tiles = -(-columns // 4)
    out = torch.zeros(-(-rows // 128) * tiles * 512, dtype=torch.uint8)
    for row in range(rows):
        for column in range(columns):
            tile = row // 128 * tiles + column // 4
            inside = row % 32 * 16 + row % 128 // 32 * 4 + column % 4
            out[tile * 512 + inside] = scales[row, column]
    return out


@pytest.mark.parametrize(
    ("rows", "columns"), [(1, 1), (31, 3), (128, 4), (129, 5), (160, 9), (300, 2)]
)
def test_unswizzle(rows: int, columns: int) -> None:
    scales = torch.randint(0, 256, (rows, columns)).byte()
    assert_same_bits(unswizzle(swizzled(scales), (rows, columns * 32)), scales)


def test_unswizzle_takes_leading_dimensions_for_rows() -> None:
    scales = torch.randint(0, 256, (3, 50, 5)).byte()
    assert_same_bits(unswizzle(swizzled(scales.flatten(0, 1)), (3, 50, 160)), scales)


def test_scales_may_be_e8m0(tmp_path: Path) -> None:
    """Files may give scales their own dtype; it is the same bytes."""
    codes, scales = random_codes(4, 64)
    tensors = {"a.weight_packed": codes, "a.weight_scale": scales.view(torch.float8_e8m0fnu)}
    opened = checkpoint.open(write(tmp_path, tensors))
    assert opened.format == "compressed-tensors"
    value = opened.read("a.weight")
    assert isinstance(value, checkpoint.Mxfp4Weight)
    assert_same_bits(value.codes, codes)
    assert_same_bits(value.scales, scales)


def test_experts_of_gpt_oss(tmp_path: Path) -> None:
    """Sixteen bytes to a block, the even element in the low nibble: plain codes but in shape."""
    codes, scales = random_codes(2, 3, 64)
    blocks = codes.reshape(2, 3, 2, 16)
    opened = checkpoint.open(write(tmp_path, {"e.up_blocks": blocks, "e.up_scales": scales}))
    assert opened.entries["e.up"].shape == (2, 3, 64)
    value = opened.read("e.up")
    assert isinstance(value, checkpoint.Mxfp4Weight)
    assert_same_bits(value.codes, codes)
    assert_same_bits(value.scales, scales)


def test_reads_are_copies(tmp_path: Path) -> None:
    """Writing to what was read changes neither the file nor what is read next."""
    codes, scales = random_codes(4, 64)
    tensors = {"a.weight_packed": codes, "a.weight_scale": scales, "a.bias": torch.ones(4)}
    opened = checkpoint.open(write(tmp_path, tensors))
    for name in opened.names():
        first = opened.read(name)
        for t in first if isinstance(first, checkpoint.Mxfp4Weight) else (first,):
            t.zero_()
    again = opened.read("a.weight")
    assert isinstance(again, checkpoint.Mxfp4Weight)
    assert_same_bits(again.codes, codes)
    bias = opened.read("a.bias")
    assert isinstance(bias, Tensor)
    assert bias.eq(1).all()
