"""`quant_mm` and `mm` where numbers are not ordinary: NaN, Inf, zeros, scales at their limits."""

from __future__ import annotations

import pytest
import torch
from common import (
    DTYPES,
    Path,
    Product,
    Weight,
    activation,
    every_dtype,
    every_path,
    plain_and_shuffled,
    quantized_values,
    random_codes,
    random_weight,
)
from torch import Tensor

quant_mm = torch.ops.mxfp4.quant_mm

WIDE_DTYPES = (torch.bfloat16, torch.float32)  # those with float32's exponents


def check(path: Path, x: Tensor, weight: Weight, shuffled: bool = False) -> Tensor:
    """`quant_mm` is within the bound in every result dtype; returns the float32 result."""
    expected = Product.of(quantized_values(x), weight.padded_values(shuffled))
    operands = weight.on(path.device, shuffled)
    results = {}
    for dtype in DTYPES:
        with path.active():
            y = quant_mm(x.to(path.device), *operands, out_dtype=dtype, shuffled=shuffled)
        expected.check(y)
        results[dtype] = y.cpu()
    return results[torch.float32]


@every_path
@every_dtype
@plain_and_shuffled
@pytest.mark.parametrize("poison", [torch.nan, -torch.nan, torch.inf, -torch.inf], ids=str)
def test_nan_and_inf_poison_exactly_their_rows(
    path: Path, dtype: torch.dtype, shuffled: bool, poison: float
) -> None:
    x, weight = activation(21, 288, dtype=dtype), random_weight(35, 288)
    clean = check(path, x, weight, shuffled)
    rows = [0, 7, 15, 16, 20]
    for row, column in zip(rows, [0, 31, 32, 100, 287], strict=True):
        x[row, column] = poison
    y = check(path, x, weight, shuffled)
    others = [r for r in range(21) if r not in rows]
    assert y[rows].isnan().all()
    assert torch.equal(y[others], clean[others])


@every_path
@plain_and_shuffled
def test_nan_scales_of_the_weight_poison_exactly_their_columns(path: Path, shuffled: bool) -> None:
    codes, scales = random_codes(35, 288)
    columns = [0, 15, 16, 33, 34]
    for column, block in zip(columns, [0, 8, 3, 7, 1], strict=True):
        scales[column, block] = 255
    y = check(path, activation(21, 288, dtype=torch.bfloat16), Weight.of(codes, scales), shuffled)
    assert y.isnan().sum() == 21 * len(columns)
    assert y[:, columns].isnan().all()


@every_path
def test_a_nan_scale_poisons_a_block_of_zeros(path: Path) -> None:
    codes, scales = random_codes(20, 96)
    codes[3, 16:32], scales[3, 1] = 0, 255
    assert check(path, torch.zeros(2, 96), Weight.of(codes, scales))[:, 3].isnan().all()


@every_path
@plain_and_shuffled
@every_dtype
def test_zero_blocks(path: Path, dtype: torch.dtype, shuffled: bool) -> None:
    x = activation(6, 192, dtype=dtype)
    x[0], x[1, 32:64], x[2, :160], x[3, 64:] = 0, 0, -0.0, 0
    codes, scales = random_codes(20, 192)
    codes[4], codes[5, 16:32], codes[6, :64] = 0, 0, 0x88  # both zeros
    check(path, x, Weight.of(codes, scales), shuffled)


@every_path
@plain_and_shuffled
@pytest.mark.parametrize("dtype", WIDE_DTYPES, ids=str)
@pytest.mark.parametrize("byte", [0, 1, 2, 27, 127, 227, 252, 253, 254])
def test_scale_bytes_with_x_to_match(
    path: Path, dtype: torch.dtype, byte: int, shuffled: bool
) -> None:
    """x is about as small as the weight is large, so that the products are ordinary."""
    codes, scales = random_codes(20, 192)
    scales.fill_(byte)
    x = activation(6, 192, dtype=torch.float32) * 2.0 ** max(-118, min(118, 127 - byte))
    y = check(path, x.to(dtype), Weight.of(codes, scales), shuffled)
    assert y.isfinite().all()
    assert y.abs().max() > 2**-10


@every_path
@plain_and_shuffled
@pytest.mark.parametrize("dtype", WIDE_DTYPES, ids=str)
def test_extreme_scales_side_by_side(path: Path, dtype: torch.dtype, shuffled: bool) -> None:
    """Blocks of one row, and rows of one tile, that lie up to 2**240 apart."""
    exponents = torch.tensor([-118, 110, 0, -60, 118, 60])  # of x, by block
    x = activation(9, 192, dtype=torch.float32).unflatten(-1, (6, 32))
    x = (x * exponents.double().exp2().float()[:, None]).flatten(-2).to(dtype)
    codes, scales = random_codes(20, 192)
    scales = (127 - exponents).to(torch.uint8).repeat(20, 1)
    y = check(path, x, Weight.of(codes, scales), shuffled)
    assert y.isfinite().all()


@every_path
@plain_and_shuffled
@pytest.mark.parametrize("dtype", WIDE_DTYPES, ids=str)
def test_rows_and_columns_of_different_size(path: Path, dtype: torch.dtype, shuffled: bool) -> None:
    """Results from 2**-108 to 2**108 within one tile; none of the sums overflows."""
    exponents = torch.arange(-54, 55, 6)
    size = len(exponents)
    codes, scales = random_codes(size, 192, low=122, high=124)
    weight = Weight.of(codes, scales + exponents.to(torch.uint8)[:, None])
    x = activation(size, 192, dtype=dtype) * exponents.double().exp2().to(dtype)[:, None]
    assert check(path, x, weight, shuffled).isfinite().all()


def _one_product(x_exponent: int, weight_exponent: int) -> tuple[Tensor, Weight]:
    """A block whose one product is 1/4 of the two scales' product: 0.5 * 0.5, beside 4 * 0."""
    x = torch.zeros(1, 32)
    x[0, 0], x[0, 9] = 4 * 2.0**x_exponent, 0.5 * 2.0**x_exponent
    codes = torch.zeros(1, 16, dtype=torch.uint8)
    codes[0, 4] = 0x10
    return x, Weight.of(codes, torch.full((1, 1), weight_exponent + 127, dtype=torch.uint8))


@every_path
@plain_and_shuffled
@pytest.mark.parametrize("x_exponent", [2, 65, 125])
def test_product_of_the_scales_above_the_largest_float(
    path: Path, x_exponent: int, shuffled: bool
) -> None:
    x, weight = _one_product(x_exponent, 129 - x_exponent)
    y = check(path, x, weight, shuffled)
    assert y[0, 0] == 2.0**127


@every_path
@plain_and_shuffled
@pytest.mark.parametrize("product", [-134, -60, 0, 60, 117])
@pytest.mark.parametrize("x_exponent", [-127, -67, -10, 50, 114, 115, 116, 118, 122, 125])
def test_full_blocks(path: Path, x_exponent: int, product: int, shuffled: bool) -> None:
    """36 * 32 in all: a block's sum with one scale may lie outside float32, with both it does not.

    Least of all, 2**-134 by itself is subnormal and 36 * 32 of it are not.
    """
    exponent = max(-127, min(127, product - x_exponent))
    x = torch.full((1, 32), 6 * 2.0**x_exponent)
    codes = torch.full((1, 16), 0x77, dtype=torch.uint8)
    scale = torch.full((1, 1), 127 + exponent, dtype=torch.uint8)
    y = check(path, x, Weight.of(codes, scale), shuffled)
    assert y[0, 0] == 32 * 36 * 2.0 ** (x_exponent + exponent)


@every_path
@plain_and_shuffled
def test_zero_codes_under_scales_whose_product_overflows(path: Path, shuffled: bool) -> None:
    codes, scales = random_codes(20, 96)
    codes[:, 16:32], scales[:, 1] = 0, 254
    x = activation(5, 96, dtype=torch.float32)
    x[:, 32:64] = 2.0**120
    assert check(path, x, Weight.of(codes, scales), shuffled).isfinite().all()


@every_path
@plain_and_shuffled
def test_overflow_gives_infinity(path: Path, shuffled: bool) -> None:
    x = torch.tensor([2.0**100, -(2.0**100), 2.0**-20, -(2.0**-20)])[:, None].expand(4, 64)
    codes = torch.full((17, 32), 0x77, dtype=torch.uint8)
    y = check(path, x, Weight.of(codes, torch.full((17, 2), 200, dtype=torch.uint8)), shuffled)
    assert (y[0, :17] == torch.inf).all()
    assert (y[1, :17] == -torch.inf).all()
    assert y[2:].isfinite().all()


@every_path
@pytest.mark.parametrize("exponent", range(-30, 20, 3))
def test_results_over_float16s_range(path: Path, exponent: int) -> None:
    """Subnormal, normal and overflowing float16 results."""
    x = activation(16, 96, dtype=torch.float32) * 2.0**exponent
    check(path, x, random_weight(40, 96))


@every_path
def test_subnormal_x(path: Path) -> None:
    codes, scales = random_codes(20, 96)
    scales.fill_(254)
    x = activation(5, 96, dtype=torch.float32) * 2.0**-130
    y = check(path, x, Weight.of(codes, scales))
    assert y.abs().max() > 0.5
