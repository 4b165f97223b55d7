"""`mm_a16` on every backend against float64: sizes, layouts, dtypes, bias, special values."""

from __future__ import annotations

import pytest
import torch
from common import (
    CPU_PATHS,
    DTYPES,
    Path,
    Product,
    Weight,
    activation,
    assert_same_bits,
    every_backend,
    every_dtype,
    every_path,
    generator,
    needs_cpu_kernels,
    plain_and_shuffled,
    random_codes,
    random_weight,
)
from hypothesis import given
from hypothesis import strategies as st
from layouts import Layout, every_layout
from test_quant_mm import _weight_views
from torch import Tensor

import mxfp4_ops
from mxfp4_ops.backends import reference

mm_a16 = torch.ops.mxfp4.mm_a16


def check(
    path: Path,
    x: Tensor,
    weight: Weight,
    shuffled: bool = False,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Against float64, before and after the last rounding."""
    rows = x.cpu().double().reshape(x.shape[:-1].numel(), x.shape[-1])
    expected = Product.of(rows, weight.padded_values(shuffled), bias)
    operands, on_device = weight.on(path.device, shuffled), x.to(path.device)
    if bias is not None:
        bias = bias.to(path.device)
    with path.active():
        exact = mm_a16(on_device, *operands, bias, out_dtype=torch.float32, shuffled=shuffled)
        y = mm_a16(on_device, *operands, bias, out_dtype=out_dtype, shuffled=shuffled)
    assert y.dtype == (out_dtype or x.dtype)
    assert y.shape == (*x.shape[:-1], expected.exact.shape[1])
    expected.check(exact.reshape(expected.exact.shape))
    expected.check(y.reshape(expected.exact.shape))
    assert isinstance(y, Tensor)
    return y


@every_path
@every_dtype
@plain_and_shuffled
@pytest.mark.parametrize(
    ("n", "k"), [(1, 32), (31, 96), (96, 160), (31, 2880), (2112, 64), (17, 7168)]
)
def test_sizes(path: Path, dtype: torch.dtype, n: int, k: int, shuffled: bool) -> None:
    for m in (0, 1, 3, 17):
        check(path, activation(m, k, dtype=dtype), random_weight(n, k), shuffled)


@every_path
@plain_and_shuffled
def test_many_rows(path: Path, shuffled: bool) -> None:
    for dtype in DTYPES:
        for m in (61,) if path.slow else (59, 61, 130):
            check(path, activation(m, 288, dtype=dtype), random_weight(40, 288), shuffled)


@every_path
@every_dtype
@every_layout
def test_layouts_of_x(path: Path, dtype: torch.dtype, layout: Layout) -> None:
    x = layout(dtype, path.device)
    y = check(path, x, random_weight(24, x.shape[-1]), shuffled=dtype == torch.float16)
    assert y.is_contiguous()


@every_path
@pytest.mark.parametrize("view", _weight_views())
def test_layouts_of_the_weight(path: Path, view: str) -> None:
    codes, scales = (t.to(path.device) for t in _weight_views()[view])
    x = activation(3, codes.shape[1] * 2, dtype=torch.bfloat16)
    with path.active():
        y = mm_a16(x.to(path.device), codes, scales)
    Product.of(x.double(), Weight.of(codes.cpu(), scales.cpu()).values).check(y)


@every_path
@every_dtype
@plain_and_shuffled
def test_bias_and_out_dtype(path: Path, dtype: torch.dtype, shuffled: bool) -> None:
    x, weight = activation(2, 3, 160, dtype=dtype), random_weight(37, 160)
    bias = 50 * torch.randn(len(weight.padded_values(shuffled)), generator=generator())
    for out_dtype, bias_dtype in zip(DTYPES, (*DTYPES[1:], DTYPES[0]), strict=True):
        check(path, x, weight, shuffled, bias.to(bias_dtype), out_dtype)


@every_path
@pytest.mark.parametrize(("m", "n", "k"), [(0, 8, 64), (3, 0, 64), (0, 0, 0), (3, 8, 0)])
def test_empty_sizes(path: Path, m: int, n: int, k: int) -> None:
    x, bias = torch.ones(m, k, device=path.device), torch.randn(n, device=path.device)
    with path.active():
        y = mm_a16(x, *(t.to(path.device) for t in random_codes(n, k)), bias)
    assert torch.equal(y, bias.expand(m, n))


@every_path
@every_dtype
@plain_and_shuffled
@pytest.mark.parametrize("byte", [0, 1, 60, 127, 200, 253, 254])
def test_scales_of_any_size(path: Path, dtype: torch.dtype, byte: int, shuffled: bool) -> None:
    """And with activations as large as their dtype or the sums allow, and as small."""
    codes, scales = random_codes(20, 96)
    weight = Weight.of(codes, scales.fill_(byte))
    x, limit = activation(5, 96, dtype=torch.float32).double(), torch.finfo(dtype)
    largest_sum = (x.abs() @ weight.values.abs().T).max()
    top = min(limit.max / x.abs().max(), 2.0**127 / largest_sum)
    for factor in (1.0, top, top / 300, limit.tiny):
        scaled = (x * min(factor, top)).clamp(limit.min, limit.max).to(dtype)
        check(path, scaled, weight, shuffled, out_dtype=torch.float32)


@every_path
@every_dtype
@pytest.mark.parametrize(("low_byte", "high_byte"), [(0, 20), (120, 130), (235, 254)])
def test_numbers_of_every_size_in_one_block(
    path: Path, dtype: torch.dtype, low_byte: int, high_byte: int
) -> None:
    """No common scale serves such a block: its largest number may meet a zero."""
    g, info = generator(3), torch.finfo(dtype)
    lowest, highest = (torch.tensor(v).log2().item() for v in (info.smallest_normal, info.max))
    highest = min(highest, 127 + 127 - high_byte - 12)  # no sum overflows
    exponents = torch.empty(6, 96, dtype=torch.float64)
    exponents.uniform_(lowest - 5, highest - 0.01, generator=g)
    signs = torch.randint(0, 2, (6, 96), generator=g) * 2 - 1
    x = (signs * exponents.exp2()).to(dtype)
    codes, scales = random_codes(20, 96, low=low_byte, high=high_byte)
    x[3:, 0], codes[:, 0] = info.max, codes[:, 0] & 0xF8
    check(path, x, Weight.of(codes, scales), out_dtype=torch.float32)


@every_path
@every_dtype
@plain_and_shuffled
@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf], ids=str)
def test_nan_and_infinities_of_x(
    path: Path, dtype: torch.dtype, shuffled: bool, poison: float
) -> None:
    """As in a float product: an infinity times zero is NaN, times anything else infinite."""
    x, weight = activation(19, 96, dtype=dtype), random_weight(35, 96)
    rows = [0, 7, 16, 18]
    for row, column in zip(rows, [0, 31, 32, 95], strict=True):
        x[row, column] = poison
    y = check(path, x, weight, shuffled)
    others = torch.ones(19, dtype=torch.bool)
    others[rows] = False
    assert y[others].isfinite().all()
    assert not y[rows].isfinite().any()


@every_path
@plain_and_shuffled
def test_nan_scales_poison_exactly_their_columns(path: Path, shuffled: bool) -> None:
    codes, scales = random_codes(35, 288)
    columns = [0, 15, 16, 33, 34]
    for column, block in zip(columns, [0, 8, 3, 7, 1], strict=True):
        scales[column, block] = 255
    codes[15] = 0
    for dtype in DTYPES:
        y = check(path, activation(5, 288, dtype=dtype), Weight.of(codes, scales), shuffled)
        assert y[:, columns].isnan().all()
        assert y.isnan().sum() == 5 * len(columns)


@every_backend
@given(
    st.integers(0, 9), st.integers(0, 40), st.integers(0, 6), st.booleans(), st.integers(0, 1000)
)
def test_any_sizes(path: Path, m: int, n: int, blocks: int, shuffled: bool, seed: int) -> None:
    dtype = DTYPES[seed % 3]
    x = activation(m, 32 * blocks, dtype=dtype, seed=seed)
    weight = Weight.of(*random_codes(n, 32 * blocks, seed=seed))
    check(path, x, weight, shuffled)


@needs_cpu_kernels
@every_dtype
@plain_and_shuffled
def test_same_bits_on_every_instruction_set_and_with_any_rows(
    dtype: torch.dtype, shuffled: bool
) -> None:
    x = activation(13, 288, dtype=dtype)
    x[3, 5] = 3e38 if dtype == torch.bfloat16 else 1e-38
    operands = random_weight(37, 288).on("cpu", shuffled)
    results = []
    for path in CPU_PATHS:
        with path.active():
            whole = mm_a16(x, *operands, out_dtype=torch.float32, shuffled=shuffled)
            rows = [mm_a16(r, *operands, out_dtype=torch.float32, shuffled=shuffled) for r in x]
        assert_same_bits(torch.stack(rows), whole)
        results.append(whole)
    for other in results[1:]:
        assert_same_bits(other, results[0])


@every_backend
def test_it_is_quant_mm_without_the_quantisation_of_x(path: Path) -> None:
    """On activations that MXFP4 holds exactly both have the same exact value."""
    codes, scales = (t.to(path.device) for t in random_codes(5, 96, seed=5))
    x = mxfp4_ops.dequantize(codes, scales, dtype=torch.float32)
    weight = random_weight(24, 96)
    expected = Product.of(x.cpu().double(), weight.values)
    with path.active():
        expected.check(mm_a16(x, *weight.on(path.device)))
        expected.check(torch.ops.mxfp4.mm(codes, scales, *weight.on(path.device)))


def test_the_reference_works_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    x, right = activation(7, 96, dtype=torch.float32), random_codes(50, 96)
    bias = torch.randn(50)
    monkeypatch.setattr(reference, "CHUNK", 300)  # three rows of the weight
    y = reference.mm_a16(x, *right, bias, torch.float32, False)
    Product.of(x.double(), Weight.of(*right).values, bias).check(y)


def test_the_function_is_the_operator_and_follows_autocast() -> None:
    x, weight = activation(5, 96, dtype=torch.float32), random_weight(40, 96).on("cpu")
    bias = torch.randn(40)
    y = mxfp4_ops.mm_a16(x, *weight, bias, out_dtype=torch.bfloat16)
    assert_same_bits(y, mm_a16(x, *weight, bias, out_dtype=torch.bfloat16))
    with torch.autocast("cpu", torch.bfloat16):
        assert_same_bits(mxfp4_ops.mm_a16(x, *weight), mm_a16(x.bfloat16(), *weight))
