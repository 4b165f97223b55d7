"""The grouped product's machine code for gfx950, executed in emulation, against float64."""

from __future__ import annotations

import pytest
import torch
from common import DTYPES, MODES, assert_same_bits, every_dtype
from experts import Experts
from test_grouped import COUNTS, every_disorder, expect_groups
from torch import Tensor

from mxfp4_ops.backends.triton import gfx950
from mxfp4_ops.backends.triton.gfx950.plan import Plan, grouped_plan

from .emulation import FORMS, Form

FIRST = FORMS[0]
every_form = pytest.mark.parametrize("form", FORMS, ids=str)


def run(
    case: Experts,
    form: Form = FIRST,
    *,
    mode: str = "even",
    out_dtype: torch.dtype | None = None,
    plan: Plan | None = None,
    offsets: Tensor | None = None,
) -> Tensor:
    """The result starts as NaN, so that what is not written shows."""
    x, codes, scales, in_order, bias = case.arguments()
    out = torch.full((len(x), codes.shape[1]), torch.nan, dtype=out_dtype or x.dtype)
    given = in_order if offsets is None else offsets
    form.run(gfx950.grouped_quant_mm(x, codes, scales, given, bias, out, mode, plan))
    return out


@pytest.mark.parametrize("counts", COUNTS.values(), ids=COUNTS)
@pytest.mark.parametrize(("n", "k"), [(5, 96), (40, 544), (160, 1056)])
def test_sizes(counts: list[int], n: int, k: int) -> None:
    form = FORMS[(sum(counts) + n) % len(FORMS)]
    case = Experts.of(counts[:70] if n == 5 else counts[:6], n, k, bias=torch.float32)
    case.check(run(case, form))


@every_dtype
@pytest.mark.parametrize(
    ("mode", "bias", "out_dtype"), list(zip(MODES, (None, *DTYPES[1:]), DTYPES, strict=True))
)
def test_dtypes_modes_and_bias(
    dtype: torch.dtype, mode: str, bias: torch.dtype | None, out_dtype: torch.dtype
) -> None:
    case = Experts.of([3, 0, 18, 1], 40, 288, dtype=dtype, bias=bias)
    case.check(run(case, mode=mode, out_dtype=out_dtype), mode)


@every_form
@pytest.mark.parametrize("plan", [Plan(True, 32, 64, 512, num_warps=2), Plan(True, 16, 256, 256)])
def test_plans(form: Form, plan: Plan) -> None:
    case = Experts.of([33, 1, 0, 20], 288, 1312)
    case.check(run(case, form, plan=plan))


@every_form
@every_disorder
def test_disorder(form: Form, offsets: list[int], groups: list[tuple[int, int]]) -> None:
    """Nothing out of bounds is touched, which the emulator would notice, and every row written."""
    case = Experts.of([3, 3, 3], 40, 96, bias=torch.float32)
    for dtype in (torch.int32, torch.int64):
        y = run(case, form, offsets=torch.tensor(offsets, dtype=dtype))
        expect_groups(y, case, groups)


def test_int64_offsets_of_any_size() -> None:
    case = Experts.of([3, 3, 3], 40, 96)
    limits = torch.iinfo(torch.int64)
    y = run(case, offsets=torch.tensor([limits.min, 4, limits.max, 5]))
    expect_groups(y, case, [(0, 4), (4, 9)])


@every_dtype
def test_strides(dtype: torch.dtype) -> None:
    case = Experts.of([3, 0, 18], 40, 96, dtype=dtype, bias=torch.float32)
    x, codes, scales, offsets, bias = case.arguments()
    expected = run(case)
    wide = torch.stack((codes, codes)).transpose(0, 1).flatten(0, 1)[::2]
    transposed = codes.transpose(0, 1).contiguous().transpose(0, 1)
    odd = torch.cat((codes[..., :1], codes), -1)[..., 1:]
    for each in (wide, transposed, odd):
        out = torch.full_like(expected, torch.nan)
        tensors = x.T.contiguous().T, each, torch.cat((scales, scales), -1)[..., :3]
        every_other = torch.stack((offsets, offsets), 1).flatten()[::2]
        column_bias = bias.T.contiguous().T
        FIRST.run(gfx950.grouped_quant_mm(*tensors, every_other, column_bias, out, "even"))
        assert_same_bits(out, expected)


def test_nan_stays_in_its_row_and_in_its_expert() -> None:
    case = Experts.of([3, 0, 18, 4], 40, 96)
    case.x[5, 40] = torch.inf
    case.scales[3, 7, 2] = 255
    y = run(case)
    case.check(y)
    assert y.isnan().sum() == 40 + 4


def test_the_plan_gives_each_expert_its_share_of_the_gpu() -> None:
    alone, among_many = grouped_plan(16, 2880, 2880, 1), grouped_plan(512, 2880, 2880, 32)
    assert among_many.block_m == alone.block_m == 16
    assert among_many.block_n >= alone.block_n
    assert alone.split_k == among_many.split_k == 1
