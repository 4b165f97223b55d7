"""The gfx950 quantiser in emulation: the same bits as the reference conversion."""

from __future__ import annotations

import pytest
import torch
from blocks import all_patterns, amax_boundaries, random_patterns, special_blocks
from common import activation, assert_same_bits, every_dtype, every_mode, plain_and_shuffled
from oracle import from_bits
from torch import Tensor

from mxfp4_ops import layout
from mxfp4_ops.formats import quantize_reference

from .emulation import FORMS, Form, quantize

FIRST = FORMS[0]


def check(form: Form, x: Tensor, mode: str) -> None:
    q, scale = quantize(form, x, mode)
    expected_q, expected_scale = quantize_reference(x.contiguous(), mode)
    assert_same_bits(q, expected_q)
    assert_same_bits(scale, expected_scale)


@every_mode
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_every_16_bit_pattern(dtype: torch.dtype, mode: str) -> None:
    check(FIRST, from_bits(all_patterns(dtype), dtype).view(-1, 4096), mode)


@every_mode
@every_dtype
def test_random_patterns(dtype: torch.dtype, mode: str) -> None:
    x = from_bits(random_patterns(dtype, 1000, seed=3), dtype)
    check(FIRST, x.view(-1, 160), mode)


@every_mode
def test_amax_one_ulp_around_each_boundary(mode: str) -> None:
    check(FIRST, from_bits(amax_boundaries(), torch.float32), mode)


@every_mode
@every_dtype
def test_special_blocks(dtype: torch.dtype, mode: str) -> None:
    check(FIRST, from_bits(special_blocks(dtype), dtype), mode)


@every_dtype
@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("m", [1, 3, 17, 33])
@pytest.mark.parametrize("k", [32, 96, 160, 512, 544])
def test_sizes(form: Form, dtype: torch.dtype, m: int, k: int) -> None:
    check(form, activation(m, k, dtype=dtype), "even")


@every_dtype
def test_strides(dtype: torch.dtype) -> None:
    x = activation(20, 160, dtype=dtype)
    check(FIRST, x.t().contiguous().t(), "even")
    check(FIRST, torch.cat((x, x), 1)[:, 1:161], "even")
    check(FIRST, x[:1].expand(5, -1), "even")


@plain_and_shuffled
@pytest.mark.parametrize(("m", "k"), [(16, 64), (17, 96), (70, 160), (256, 512)])
def test_layouts(shuffled: bool, m: int, k: int) -> None:
    """Shuffled, the bytes of real rows and blocks; those of the pad are not written."""
    x = activation(m, k, dtype=torch.bfloat16)
    q, scale = quantize(FIRST, x, shuffled=shuffled)
    if shuffled:
        q, scale = layout.unshuffle(q, scale, m, k)
    expected_q, expected_scale = quantize_reference(x)
    assert_same_bits(q, expected_q)
    assert_same_bits(scale, expected_scale)
