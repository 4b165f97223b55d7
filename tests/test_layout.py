"""`shuffle` and `unshuffle` against the device layout written out byte by byte."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from common import assert_same_bits, random_codes
from torch import Tensor

import mxfp4_ops

SIZES = [(1, 32), (15, 32), (16, 64), (17, 96), (33, 256), (40, 288), (96, 160), (257, 32)]


def code_offset(n: int, k2: int, columns: int) -> int:
    """Where byte `k2` of row `n` lies: tiles of 16 rows x 32 bytes, each in two halves of 16."""
    tile = n // 16 * (columns // 32) + k2 // 32
    return ((tile * 2 + k2 // 16 % 2) * 16 + n % 16) * 16 + k2 % 16


def scale_offset(n: int, block: int, columns: int) -> int:
    """Where scale `block` of row `n` lies: tiles of 32 rows x 8 scales.

    Within a tile a dword holds rows r and r + 16 of the columns c and c + 4, the row varying first;
    the dwords of 16 rows follow each other, then those of the next column.
    """
    tile = n // 32 * (columns // 8) + block // 8
    dword = tile * 64 + block % 4 * 16 + n % 16
    return dword * 4 + block // 4 % 2 * 2 + n // 16 % 2


def place(codes: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
    """The shuffled weight by the two functions above."""
    (n, k2), blocks = codes.shape, scales.shape[1]
    rows, columns = -(-n // 16) * 16, -(-k2 // 32) * 32
    scale_rows, scale_columns = -(-n // 256) * 256, -(-blocks // 8) * 8
    placed_codes = torch.zeros(rows * columns, dtype=torch.uint8)
    placed_scales = torch.full((scale_rows * scale_columns,), 127, dtype=torch.uint8)
    for row, byte in product(range(n), range(k2)):
        placed_codes[code_offset(row, byte, columns)] = codes[row, byte]
    for row, block in product(range(n), range(blocks)):
        placed_scales[scale_offset(row, block, scale_columns)] = scales[row, block]
    return placed_codes.view(rows, columns), placed_scales.view(scale_rows, scale_columns)


@pytest.mark.parametrize(("n", "k"), SIZES)
def test_shuffle_places_every_byte_and_pads(n: int, k: int) -> None:
    codes, scales = random_codes(n, k, low=0, high=255)
    shuffled = mxfp4_ops.shuffle(codes, scales)
    expected = place(codes, scales)
    for actual, wanted in zip(shuffled, expected, strict=True):
        assert_same_bits(actual, wanted)
        assert actual.is_contiguous()


@pytest.mark.parametrize(("n", "k"), [*SIZES, (0, 64), (3, 0), (2112, 7168)])
def test_unshuffle_undoes_shuffle(n: int, k: int) -> None:
    codes, scales = random_codes(n, k, low=0, high=255)
    restored = mxfp4_ops.unshuffle(*mxfp4_ops.shuffle(codes, scales), n, k)
    for actual, wanted in zip(restored, (codes, scales), strict=True):
        assert_same_bits(actual, wanted)
        assert actual.is_contiguous()


def test_torch_dtypes_are_kept() -> None:
    codes, scales = random_codes(17, 96)
    typed = codes.view(torch.float4_e2m1fn_x2), scales.view(torch.float8_e8m0fnu)
    shuffled = mxfp4_ops.shuffle(*typed)
    assert [t.dtype for t in shuffled] == [t.dtype for t in typed]
    for actual, wanted in zip(shuffled, mxfp4_ops.shuffle(codes, scales), strict=True):
        assert torch.equal(actual.view(torch.uint8), wanted)
    restored = mxfp4_ops.unshuffle(*shuffled, 17, 96)
    assert [t.dtype for t in restored] == [t.dtype for t in typed]
    assert torch.equal(restored[0].view(torch.uint8), codes)
    assert torch.equal(restored[1].view(torch.uint8), scales)


def test_views_of_rows_and_columns() -> None:
    codes, scales = random_codes(40, 256)
    part = codes[1::2, 32:96], scales[1::2, 2:6]
    expected = mxfp4_ops.shuffle(part[0].contiguous(), part[1].contiguous())
    for actual, wanted in zip(mxfp4_ops.shuffle(*part), expected, strict=True):
        assert torch.equal(actual, wanted)


@pytest.mark.parametrize(("n", "k"), [(16, 64), (256, 256), (5, 32)])
def test_results_are_new_tensors(n: int, k: int) -> None:
    codes, scales = random_codes(n, k)
    shuffled = mxfp4_ops.shuffle(codes, scales)
    restored = mxfp4_ops.unshuffle(*shuffled, n, k)
    storages = [t.untyped_storage().data_ptr() for t in (codes, scales, *shuffled, *restored)]
    assert len(set(storages)) == len(storages)
