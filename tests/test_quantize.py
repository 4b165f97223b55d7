"""`quantize` and `dequantize` on every backend: the same bits as the reference conversions."""

from __future__ import annotations

from functools import lru_cache

import oracle
import pytest
import torch
from blocks import all_patterns, amax_boundaries, random_patterns, special_blocks
from common import (
    MODES,
    Path,
    assert_same_bits,
    every_dtype,
    every_mode,
    every_path,
    random_codes,
)
from layouts import Layout, every_layout
from torch import Tensor

import mxfp4_ops
from mxfp4_ops.backends import reference
from mxfp4_ops.formats import dequantize_reference, quantize_reference


def check(path: Path, x: Tensor, mode: str) -> None:
    expected_q, expected_scale = quantize_reference(x.cpu().contiguous(), mode)
    with path.active():
        q, scale = torch.ops.mxfp4.quantize(x, scale_mode=mode)
    assert_same_bits(q, expected_q)
    assert_same_bits(scale, expected_scale)
    assert q.is_contiguous()
    assert scale.is_contiguous()


@lru_cache
def _patterns(dtype: torch.dtype, mode: str) -> tuple[Tensor, Tensor, Tensor]:
    """A block for each 16-bit pattern, its codes (unpacked) and its scale bytes."""
    x = oracle.from_bits(all_patterns(dtype), dtype)
    q, scale = quantize_reference(x, mode)
    return x, torch.stack((q & 15, q >> 4), -1).flatten(-2), scale


@every_path
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@every_mode
def test_every_16_bit_pattern_everywhere_in_a_block(
    path: Path, dtype: torch.dtype, mode: str
) -> None:
    x, codes, expected_scale = _patterns(dtype, mode)
    # Slow paths treat all positions alike.
    for shift in (5, 31) if path.slow else range(32):
        with path.active():
            q, scale = torch.ops.mxfp4.quantize(x.roll(shift, -1).to(path.device), scale_mode=mode)
        rolled = codes.roll(shift, -1)
        assert_same_bits(q, rolled[:, 0::2] | (rolled[:, 1::2] << 4))
        assert_same_bits(scale, expected_scale)


@every_path
@every_dtype
@every_mode
@pytest.mark.parametrize("k", [32, 64, 96, 160, 512])
def test_random_patterns_in_rows(path: Path, dtype: torch.dtype, mode: str, k: int) -> None:
    x = oracle.from_bits(random_patterns(dtype, 4000, seed=k), dtype)
    check(path, x[: 4000 // (k // 32) * (k // 32)].view(-1, k).to(path.device), mode)


@every_path
@every_mode
def test_amax_one_ulp_around_each_boundary(path: Path, mode: str) -> None:
    check(path, oracle.from_bits(amax_boundaries(), torch.float32).to(path.device), mode)


@every_path
@every_dtype
@every_mode
def test_special_blocks(path: Path, dtype: torch.dtype, mode: str) -> None:
    """Each block by itself, and all of them as neighbours in one row."""
    x = oracle.from_bits(special_blocks(dtype), dtype).to(path.device)
    check(path, x, mode)
    check(path, x.flatten(), mode)


@every_path
@every_mode
def test_float32_agrees_with_bfloat16(path: Path, mode: str) -> None:
    x = oracle.from_bits(all_patterns(torch.bfloat16), torch.bfloat16).to(path.device)
    with path.active():
        narrow = torch.ops.mxfp4.quantize(x, scale_mode=mode)
        wide = torch.ops.mxfp4.quantize(x.float(), scale_mode=mode)
    assert torch.equal(narrow[0], wide[0])
    assert torch.equal(narrow[1], wide[1])


@every_path
@every_dtype
@every_layout
def test_layouts(path: Path, dtype: torch.dtype, layout: Layout) -> None:
    x = layout(dtype, path.device)
    before = x.clone()
    for mode in MODES:
        check(path, x, mode)
    assert_same_bits(x, before)


@every_path
def test_default_mode_is_even(path: Path) -> None:
    x = torch.full((32,), 1.75, device=path.device)  # floor gives a smaller scale here
    with path.active():
        assert mxfp4_ops.quantize(x)[1].item() == 126


@every_path
@every_dtype
def test_dequantize_every_code_with_every_scale(path: Path, dtype: torch.dtype) -> None:
    q = torch.arange(256, dtype=torch.uint8).repeat(256, 1)
    scale = torch.arange(256, dtype=torch.uint8).unsqueeze(-1).repeat(1, 16)
    with path.active():
        actual = mxfp4_ops.dequantize(q.to(path.device), scale.to(path.device), dtype=dtype)
    expected = dequantize_reference(q, scale, dtype)
    nan = expected.isnan()
    assert torch.equal(actual.cpu().isnan(), nan)
    assert_same_bits(actual.cpu()[~nan], expected[~nan])


def _code_layouts(q: Tensor, scale: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Views of codes and scales that are contiguous in the last dimension only."""
    k2, blocks = q.shape[-1], scale.shape[-1]
    return {
        "contiguous": (q, scale),
        "vector": (q[3, 1], scale[3, 1]),
        "swapped": (q.transpose(0, 1), scale.transpose(0, 1)),
        "rows-step": (q[::2, 1:], scale[::2, 1:]),
        "columns": (q[..., k2 // 2 :], scale[..., blocks // 2 :]),
        "expanded": (q[:1].expand(3, -1, -1), scale[:1].expand(3, -1, -1)),
        "4d": (q.unflatten(0, (2, 2)), scale.unflatten(0, (2, 2))),
        "empty": (q[:0], scale[:0]),
        "no-elements": (q[..., :0], scale[..., :0]),
        "float4": (q.view(torch.float4_e2m1fn_x2), scale.view(torch.float8_e8m0fnu)),
    }


@every_path
@every_dtype
@pytest.mark.parametrize("layout", _code_layouts(*random_codes(4, 3, 64)))
def test_dequantize_layouts(path: Path, dtype: torch.dtype, layout: str) -> None:
    codes = (t.to(path.device) for t in random_codes(4, 3, 128, low=0, high=254))
    q, scale = _code_layouts(*codes)[layout]
    with path.active():
        actual = mxfp4_ops.dequantize(q, scale, dtype=dtype)
    expected = oracle.decode(q, scale).to(dtype)
    assert_same_bits(actual, expected)
    assert actual.is_contiguous()


def test_default_dtype_of_dequantize_is_bfloat16() -> None:
    assert mxfp4_ops.dequantize(*random_codes(2, 32)).dtype == torch.bfloat16


@every_path
def test_results_are_new_tensors(path: Path) -> None:
    x = torch.randn(3, 64, device=path.device)
    with path.active():
        first = mxfp4_ops.quantize(x)
        copies = [t.clone() for t in first]
        second = mxfp4_ops.quantize(-x)
        values = mxfp4_ops.dequantize(*first)
        values_copy = values.clone()
        mxfp4_ops.dequantize(*second)
    assert all(torch.equal(t, c) for t, c in zip(first, copies, strict=True))
    assert torch.equal(values, values_copy)
    assert not torch.equal(first[0], second[0])


def test_the_reference_converts_large_tensors_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(7, 96)
    whole = reference.quantize(x, "even")
    values = reference.dequantize(*whole, torch.float32)
    monkeypatch.setattr(reference, "CHUNK", 200)  # two rows
    parts = reference.quantize(x, "even")
    assert torch.equal(parts[0], whole[0])
    assert torch.equal(parts[1], whole[1])
    assert torch.equal(reference.dequantize(*parts, torch.float32), values)
