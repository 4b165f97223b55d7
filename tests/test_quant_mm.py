"""`quant_mm` on every backend against float64: sizes, layouts, dtypes, bias."""

from __future__ import annotations

import pytest
import torch
from common import (
    DTYPES,
    MODES,
    Path,
    Product,
    Weight,
    activation,
    assert_same_bits,
    every_dtype,
    every_path,
    half_ulp,
    plain_and_shuffled,
    quantized_values,
    random_codes,
    random_weight,
)
from layouts import K, Layout, every_layout
from torch import Tensor

import mxfp4_ops

quant_mm = torch.ops.mxfp4.quant_mm


@every_path
@every_dtype
@plain_and_shuffled
@pytest.mark.parametrize("k", [32, 96, 160, 2880, 7168])
@pytest.mark.parametrize("n", [1, 31, 96])
def test_sizes(path: Path, dtype: torch.dtype, n: int, k: int, shuffled: bool) -> None:
    _check_sizes(path, dtype, n, k, shuffled, (0, 1, 3, 17, 33))


@every_path
@every_dtype
@plain_and_shuffled
@pytest.mark.parametrize("k", [32, 512])
def test_many_columns(path: Path, dtype: torch.dtype, k: int, shuffled: bool) -> None:
    _check_sizes(path, dtype, 2112, k, shuffled, (1, 17))


@every_path
@every_dtype
@plain_and_shuffled
@pytest.mark.parametrize(("n", "k"), [(31, 96), (96, 2880)])
def test_many_rows(path: Path, dtype: torch.dtype, n: int, k: int, shuffled: bool) -> None:
    rows = (193,) if path.slow else (191, 193, 400)
    _check_sizes(path, dtype, n, k, shuffled, rows)


@every_path
@plain_and_shuffled
def test_large(path: Path, shuffled: bool) -> None:
    _check_sizes(path, torch.bfloat16, 2112, 7168, shuffled, (16,))


def _check_sizes(
    path: Path, dtype: torch.dtype, n: int, k: int, shuffled: bool, rows: tuple[int, ...]
) -> None:
    x, weight = activation(max(rows), k, dtype=dtype), random_weight(n, k)
    expected = Product.of(quantized_values(x), weight.padded_values(shuffled))
    x, operands = x.to(path.device), weight.on(path.device, shuffled)
    for m in rows:
        with path.active():
            y = quant_mm(x[:m], *operands, out_dtype=torch.float32, shuffled=shuffled)
            rounded = quant_mm(x[:m], *operands, shuffled=shuffled)
        assert rounded.dtype == dtype
        expected[:m].check(y)
        expected[:m].check(rounded)


@every_path
@pytest.mark.parametrize("mode", MODES)
@every_dtype
def test_scale_modes(path: Path, dtype: torch.dtype, mode: str) -> None:
    x, weight = activation(9, 256, dtype=dtype), random_weight(40, 256)
    expected = Product.of(quantized_values(x, mode), weight.values)
    with path.active():
        y = quant_mm(x.to(path.device), *weight.on(path.device), scale_mode=mode)
    expected.check(y)


@every_path
@every_dtype
@every_layout
@plain_and_shuffled
def test_layouts_of_x(path: Path, dtype: torch.dtype, layout: Layout, shuffled: bool) -> None:
    x = layout(dtype, path.device)
    weight = random_weight(24, x.shape[-1])
    expected = Product.of(quantized_values(x), weight.padded_values(shuffled))
    with path.active():
        y = quant_mm(x, *weight.on(path.device, shuffled), shuffled=shuffled)
    expected.check(y)
    assert y.is_contiguous()


def _weight_views() -> dict[str, tuple[Tensor, Tensor]]:
    """Weights `[24, K]` in every layout that a plain weight may have."""
    codes, scales = random_codes(72, 3 * K)
    k2, blocks = K // 2, K // 32
    own = codes[:24, :k2].contiguous(), scales[:24, :blocks].contiguous()
    views = {
        "contiguous": own,
        "rows": (codes[8:32, :k2].contiguous(), scales[8:32, :blocks].contiguous()),
        "rows-step": (codes[::3, :k2], scales[1::3, :blocks]),
        "columns": (codes[:24, k2 : 2 * k2], scales[:24, blocks : 2 * blocks]),
        "expanded": (codes[:1, :k2].expand(24, -1), scales[:1, :blocks].expand(24, -1)),
        "float4": (own[0].view(torch.float4_e2m1fn_x2), own[1].view(torch.float8_e8m0fnu)),
        "float4-and-bytes": (own[0].view(torch.float4_e2m1fn_x2), own[1]),
    }
    for offset in (1, 2, 3, 5, 8):  # what lies before decides the alignment
        views[f"offset-{offset}"] = (
            codes.flatten()[offset : offset + 24 * k2].view(24, k2),
            scales.flatten()[offset : offset + 24 * blocks].view(24, blocks),
        )
    return views


@every_path
@pytest.mark.parametrize("view", _weight_views())
def test_layouts_of_the_weight(path: Path, view: str) -> None:
    weight = Weight.of(*_weight_views()[view])
    x = activation(5, K, dtype=torch.bfloat16)
    expected = Product.of(quantized_values(x), weight.values)
    with path.active():
        y = quant_mm(x.to(path.device), _move(weight.codes, path), _move(weight.scales, path))
    expected.check(y)


@every_path
@pytest.mark.parametrize("gap", [1, 2, 5])
def test_one_scale_a_row(path: Path, gap: int) -> None:
    """A last dimension of size 1 is contiguous whatever its stride."""
    codes, scales = random_codes(24, 32 * 11)
    weight = Weight.of(codes[:, :16], scales[:, :6:gap][:, :1])
    x = activation(5, 32, dtype=torch.bfloat16)
    expected = Product.of(quantized_values(x), weight.values)
    with path.active():
        y = quant_mm(x.to(path.device), _move(weight.codes, path), _move(weight.scales, path))
    expected.check(y)


def _move(t: Tensor, path: Path) -> Tensor:
    """To the path's device with its strides and offset, which `to` does not keep."""
    storage = torch.tensor([], dtype=torch.uint8).set_(t.untyped_storage()).to(path.device)
    return storage.as_strided(t.shape, t.stride(), t.storage_offset()).view(t.dtype)


@every_path
@plain_and_shuffled
@pytest.mark.parametrize("bias_dtype", [None, *DTYPES], ids=str)
@pytest.mark.parametrize("out_dtype", [None, *DTYPES], ids=str)
@every_dtype
def test_bias_and_out_dtype(
    path: Path,
    dtype: torch.dtype,
    out_dtype: torch.dtype | None,
    bias_dtype: torch.dtype | None,
    shuffled: bool,
) -> None:
    x, weight = activation(2, 3, 160, dtype=dtype), random_weight(37, 160)
    values = weight.padded_values(shuffled)
    bias = None if bias_dtype is None else 50 * torch.randn(len(values)).to(bias_dtype)
    expected = Product.of(quantized_values(x), values, bias)
    with path.active():
        y = quant_mm(
            x.to(path.device),
            *weight.on(path.device, shuffled),
            None if bias is None else bias.to(path.device),
            out_dtype=out_dtype,
            shuffled=shuffled,
        )
    assert y.dtype == (out_dtype or dtype)
    expected.check(y)


@every_path
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@plain_and_shuffled
def test_results_round_once_and_ties_to_even(
    path: Path, dtype: torch.dtype, shuffled: bool
) -> None:
    """The sum of one block is exact, 13 bits long, so that many results are ties."""
    codes, scales = random_codes(64, 32)
    codes[:, :12] |= 0x66  # 4 and 6
    codes &= 0x77  # all positive: the sums need 12 bits and more
    weight = Weight.of(codes, scales)
    x = weight.values.float()
    exact = Product.of(quantized_values(x), weight.padded_values(shuffled)).exact
    expected = exact.to(dtype)
    assert ((exact - expected.double()).abs() == half_ulp(exact.abs(), dtype)).any()
    with path.active():
        y = quant_mm(
            x.to(path.device), *weight.on(path.device, shuffled), out_dtype=dtype, shuffled=shuffled
        )
    assert_same_bits(y, expected)


@every_path
def test_bias_layouts(path: Path) -> None:
    x, weight = activation(3, 96, dtype=torch.float32), random_weight(40, 96)
    base = torch.randn(80)
    for bias in (base[::2], base[3:43], base[:1].expand(40)):
        expected = Product.of(quantized_values(x), weight.values, bias)
        view = bias if path.device == "cpu" else bias.to(path.device)
        with path.active():
            expected.check(quant_mm(x.to(path.device), *weight.on(path.device), view))


@every_path
@pytest.mark.parametrize(("m", "n", "k"), [(0, 8, 64), (3, 0, 64), (0, 0, 0), (3, 8, 0)])
@every_dtype
def test_empty_sizes(path: Path, dtype: torch.dtype, m: int, n: int, k: int) -> None:
    """No terms to add leave the bias, and nothing else."""
    x, weight = torch.ones(m, k, dtype=dtype), random_weight(n, k)
    bias = torch.randn(n)
    with path.active():
        y = quant_mm(x.to(path.device), *weight.on(path.device), bias.to(path.device))
        bare = quant_mm(x.to(path.device), *weight.on(path.device))
    assert torch.equal(y.cpu(), bias.to(dtype).expand(m, n))
    assert torch.equal(bare.cpu(), torch.zeros(m, n, dtype=dtype))


@every_path
def test_results_are_new_tensors(path: Path) -> None:
    x, weight = activation(4, 96, dtype=torch.bfloat16).to(path.device), random_weight(40, 96)
    with path.active():
        first = quant_mm(x, *weight.on(path.device))
        copy = first.clone()
        second = quant_mm(-2 * x, *weight.on(path.device))
    assert first.data_ptr() != second.data_ptr()
    assert torch.equal(first, copy)
    assert torch.equal(second, -2 * first)


def test_arguments_are_left_alone() -> None:
    x, weight = activation(4, 96, dtype=torch.bfloat16), random_weight(40, 96)
    bias = torch.randn(40)
    arguments = x, weight.codes, weight.scales, bias
    before = [(t.clone(), t._version) for t in arguments]
    mxfp4_ops.quant_mm(*arguments)
    for t, (copy, version) in zip(arguments, before, strict=True):
        assert torch.equal(t, copy)
        assert t._version == version
