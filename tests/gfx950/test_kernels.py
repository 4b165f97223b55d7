"""The machine code of the gfx950 kernels, executed in emulation, against float64."""

from __future__ import annotations

import pytest
import torch
from blocks import special_blocks
from common import (
    DTYPES,
    MODES,
    Product,
    Weight,
    activation,
    assert_same_bits,
    every_dtype,
    every_mode,
    plain_and_shuffled,
    quantized_values,
    random_codes,
    random_weight,
)
from oracle import from_bits
from torch import Tensor

from mxfp4_ops.backends.triton.gfx950.plan import Plan, table

from .emulation import FORMS, Form, mm, quant_mm

FIRST = FORMS[0]

every_form = pytest.mark.parametrize("form", FORMS, ids=str)


def check(
    form: Form,
    x: Tensor,
    weight: Weight,
    shuffled: bool,
    *,
    mode: str = "even",
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    plan: Plan | None = None,
) -> Tensor:
    operands = weight.on("cpu", shuffled)
    y = quant_mm(
        form, x, operands, bias,
        out_dtype=out_dtype, shuffled=shuffled, scale_mode=mode, plan=plan,
    )  # fmt: skip
    Product.of(quantized_values(x, mode), weight.padded_values(shuffled), bias).check(y)
    return y


@every_form
@plain_and_shuffled
@pytest.mark.parametrize(
    ("sizes", "plan"), [pytest.param(*e, id="x".join(map(str, e[0]))) for e in table().items()]
)
def test_every_configuration_of_the_table(
    form: Form, shuffled: bool, sizes: tuple[int, int, int], plan: Plan
) -> None:
    """With all of M and K; of N a tile and a part of the next, which overlaps it."""
    m, _, k = sizes
    x = activation(m, k, dtype=torch.bfloat16)
    check(form, x, random_weight(plan.block_n + 32, k), shuffled, plan=plan)


@plain_and_shuffled
@pytest.mark.parametrize("m", [1, 3, 17, 33])
@pytest.mark.parametrize("n", [1, 31, 96, 161])
@pytest.mark.parametrize("k", [32, 96, 160])
def test_odd_sizes(shuffled: bool, m: int, n: int, k: int) -> None:
    form = FORMS[(m + n + k) % len(FORMS)]
    check(form, activation(m, k, dtype=torch.bfloat16), random_weight(n, k), shuffled)


@plain_and_shuffled
@pytest.mark.parametrize(("m", "n", "k"), [(17, 2112, 160), (1, 96, 7168), (33, 48, 2880)])
def test_tails(shuffled: bool, m: int, n: int, k: int) -> None:
    check(FIRST, activation(m, k, dtype=torch.bfloat16), random_weight(n, k), shuffled)


@every_form
@plain_and_shuffled
@pytest.mark.parametrize("m", [65, 96, 130])
@pytest.mark.parametrize("k", [288, 512])
def test_quantise_pass_and_gemm(form: Form, shuffled: bool, m: int, k: int) -> None:
    check(form, activation(m, k, dtype=torch.bfloat16), random_weight(80, k), shuffled)


@every_form
@plain_and_shuffled
@pytest.mark.parametrize("m", [128, 130, 100])
def test_waves_that_share_rows_out(form: Form, shuffled: bool, m: int) -> None:
    plan = Plan(False, 128, 128, 256, waves_m=2)
    x = activation(m, 288, dtype=torch.bfloat16)
    check(form, x, random_weight(160, 288), shuffled, plan=plan)


@every_dtype
@every_mode
@plain_and_shuffled
@pytest.mark.parametrize("m", [5, 70])
def test_dtypes_modes_and_bias(dtype: torch.dtype, mode: str, shuffled: bool, m: int) -> None:
    x, weight = activation(m, 288, dtype=dtype), random_weight(40, 288)
    bias = torch.randn(48 if shuffled else 40)
    for out_dtype, bias_dtype in zip(DTYPES, (*DTYPES[1:], DTYPES[0]), strict=True):
        check(FIRST, x, weight, shuffled, mode=mode, bias=bias.to(bias_dtype), out_dtype=out_dtype)


STRIDED = {
    "transposed": lambda x: x.t().contiguous().t(),
    "every other element": lambda x: x.repeat_interleave(2, 1)[:, ::2],
    "every other row": lambda x: x.repeat_interleave(2, 0)[::2],
    "an odd offset": lambda x: torch.cat((x[:, :1], x), 1)[:, 1:],
    "one row, expanded": lambda x: x[:1].expand(len(x), -1),
}


@every_dtype
@pytest.mark.parametrize("m", [5, 70])
@pytest.mark.parametrize("strided", STRIDED.values(), ids=STRIDED.keys())
def test_strides_of_x(dtype: torch.dtype, m: int, strided: object) -> None:
    x = strided(activation(m, 160, dtype=dtype))  # type: ignore[operator]
    check(FIRST, x, random_weight(40, 160), True)


def test_strides_of_plain_weights() -> None:
    weight = random_weight(40, 160)
    apart = [torch.cat((t, t), 1)[:, : t.shape[1]] for t in (weight.codes, weight.scales)]
    x = activation(5, 160, dtype=torch.bfloat16)
    y = quant_mm(FIRST, x, (apart[0], apart[1]))
    assert_same_bits(y, quant_mm(FIRST, x, (weight.codes, weight.scales)))


@every_form
@plain_and_shuffled
@pytest.mark.parametrize(
    "plan",
    [
        Plan(True, 32, 64, 512, split_k=3, num_warps=2),  # of 5 chunks: the last split has 1
        Plan(False, 32, 64, 256, split_k=3, num_warps=2),  # of 10 chunks: the last split has 2
    ],
    ids=["fused", "two-passes"],
)
def test_split_k_is_reproducible(form: Form, shuffled: bool, plan: Plan) -> None:
    x, weight = activation(20, 2560, dtype=torch.bfloat16), random_weight(64, 2560)
    bias = torch.randn(64)
    first = check(form, x, weight, shuffled, bias=bias, plan=plan)
    kept = first.clone()
    second = check(form, x, weight, shuffled, bias=bias, plan=plan)
    assert_same_bits(first, kept)
    assert_same_bits(second, kept)


@every_form
def test_forms_agree_to_the_bit(form: Form) -> None:
    x, weight = activation(17, 1184, dtype=torch.float32), random_weight(96, 1184)
    assert_same_bits(
        check(form, x, weight, True, out_dtype=torch.float32),
        check(FIRST, x, weight, True, out_dtype=torch.float32),
    )


@every_dtype
@plain_and_shuffled
@pytest.mark.parametrize("m", [21, 70])
@pytest.mark.parametrize("poison", [torch.nan, -torch.inf], ids=str)
def test_nan_and_inf_poison_exactly_their_rows(
    dtype: torch.dtype, shuffled: bool, m: int, poison: float
) -> None:
    x, weight = activation(m, 288, dtype=dtype), random_weight(35, 288)
    rows = [0, 7, 15, 16, m - 1]
    for row, column in zip(rows, [0, 31, 32, 100, 287], strict=True):
        x[row, column] = poison
    y = check(FIRST, x, weight, shuffled)
    assert y[rows].isnan().all()
    assert y.isnan().any(1).sum() == len(rows)


@plain_and_shuffled
@pytest.mark.parametrize("m", [5, 70])
def test_nan_scales_of_the_weight_poison_exactly_their_columns(shuffled: bool, m: int) -> None:
    codes, scales = random_codes(35, 288)
    columns = [0, 15, 16, 33, 34]
    for column, block in zip(columns, [0, 8, 3, 7, 1], strict=True):
        scales[column, block] = 255
    x = activation(m, 288, dtype=torch.bfloat16)
    y = check(FIRST, x, Weight.of(codes, scales), shuffled)
    assert y.isnan().sum() == m * len(columns)


@every_dtype
@every_mode
def test_special_blocks_of_x(dtype: torch.dtype, mode: str) -> None:
    """Zeros, subnormals, the largest numbers, NaNs and Infs, each block in a row of its own."""
    blocks = from_bits(special_blocks(dtype), dtype)[::7]
    codes, scales = random_codes(16, 32, low=64, high=126)
    check(FIRST, blocks, Weight.of(codes, scales), False, mode=mode, out_dtype=torch.float32)


@plain_and_shuffled
@pytest.mark.parametrize("m", [1, 33])
def test_mm(shuffled: bool, m: int) -> None:
    for form, (n, k) in zip(FORMS, [(31, 96), (96, 160), (40, 2880)], strict=True):
        a, b = Weight.of(*random_codes(m, k, seed=1)), random_weight(n, k)
        expected = Product.of(a.values, b.padded_values(shuffled))
        operands = b.on("cpu", shuffled)
        expected.check(mm(form, (a.codes, a.scales), operands, shuffled=shuffled))


def test_nothing_to_sum_and_nothing_to_compute() -> None:
    bias = torch.randn(7)
    empty = (torch.empty(7, 0, dtype=torch.uint8), torch.empty(7, 0, dtype=torch.uint8))
    y = quant_mm(FIRST, torch.empty(3, 0), empty, bias)
    assert_same_bits(y, bias.expand(3, 7))
    weight = random_weight(7, 64)
    assert quant_mm(FIRST, torch.empty(0, 64), (weight.codes, weight.scales)).shape == (0, 7)


def test_modes_differ() -> None:
    """What the sweep over modes relies on."""
    x, weight = activation(4, 288, dtype=torch.float32), random_weight(8, 288)
    results = {
        quant_mm(FIRST, x, (weight.codes, weight.scales), scale_mode=mode).numpy().tobytes()
        for mode in MODES
    }
    assert len(results) == len(MODES)
