"""`grouped_quant_mm` on every backend against float64 and against `quant_mm` of each expert."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from common import (
    CPU_PATHS,
    DTYPES,
    PATHS,
    Path,
    assert_same_bits,
    every_backend,
    every_dtype,
    every_mode,
    every_path,
    needs_cpu_kernels,
)
from experts import Experts
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import mxfp4_ops

grouped_quant_mm = torch.ops.mxfp4.grouped_quant_mm

COUNTS = {
    "one expert": [7],
    "even": [4, 4, 4, 4],
    "empty ones": [0, 5, 0, 0, 2, 0],
    "one has all": [0, 0, 33, 0],
    "no rows": [0, 0, 0],
    "no experts": [],
    "many experts": [1, 0, 2, 1] * 33,
    "more than a tile": [70, 1, 20],
}
every_count = pytest.mark.parametrize("counts", COUNTS.values(), ids=COUNTS)


@every_path
@every_count
@pytest.mark.parametrize(("n", "k"), [(1, 32), (40, 160), (96, 2880)])
def test_sizes(path: Path, counts: list[int], n: int, k: int) -> None:
    if path.slow:
        counts = counts[:20]
    case = Experts.of(counts, n, k)
    with path.active():
        case.check(grouped_quant_mm(*case.arguments(path.device)))


@every_path
@every_dtype
@every_mode
def test_dtypes_modes_and_bias(path: Path, dtype: torch.dtype, mode: str) -> None:
    for bias, out_dtype in zip((None, *DTYPES[1:]), DTYPES, strict=True):
        case = Experts.of([3, 0, 18, 1], 37, 96, dtype=dtype, bias=bias)
        arguments = case.arguments(path.device, torch.int64)
        with path.active():
            y = grouped_quant_mm(*arguments, out_dtype=out_dtype, scale_mode=mode)
            plain = grouped_quant_mm(*arguments, scale_mode=mode)
        assert y.dtype == out_dtype
        assert plain.dtype == dtype
        case.check(y, mode)
        case.check(plain, mode)


@every_path
@pytest.mark.parametrize(("n", "k"), [(0, 32), (5, 0), (0, 0)])
def test_empty_sizes(path: Path, n: int, k: int) -> None:
    case = Experts.of([2, 1], n, k, bias=torch.float32)
    with path.active():
        y = grouped_quant_mm(*case.arguments(path.device), out_dtype=torch.float32)
    assert case.bias is not None
    assert torch.equal(y.cpu(), case.bias.repeat_interleave(torch.tensor([2, 1]), 0))


def _apart(t: Tensor) -> Tensor:
    """The same numbers with room between experts, rows and the halves of a row."""
    e, n, k = t.shape
    wide = torch.zeros(2 * e, n + 3, 2 * k + 5, dtype=t.dtype, device=t.device)
    view = wide[::2, 2 : n + 2, k : 2 * k]
    view.copy_(t)
    return view


@every_path
def test_layouts(path: Path) -> None:
    case = Experts.of([3, 0, 18, 1], 37, 96, bias=torch.bfloat16)
    x, codes, scales, offsets, bias = case.arguments(path.device)
    float4 = codes.view(torch.float4_e2m1fn_x2), scales.view(torch.float8_e8m0fnu)
    every_other = torch.stack((offsets, offsets + 7), 1).flatten()[::2]
    with path.active():
        expected = grouped_quant_mm(x, codes, scales, offsets, bias)
        case.check(expected)
        for arguments in (
            (x.T.contiguous().T, codes, scales, offsets, bias),
            (torch.cat((x, x), 1)[:, :96], codes, scales, offsets, bias),
            (x, _apart(codes), _apart(scales), offsets, bias),
            (x, codes, scales, every_other, bias),
            (x, codes, scales, offsets, bias.T.contiguous().T),
            (x, *float4, offsets, bias),
        ):
            y = grouped_quant_mm(*arguments)
            assert y.is_contiguous()
            assert_same_bits(y, expected)
        same = codes[:1].expand(4, -1, -1), scales[:1].expand(4, -1, -1)
        replace(case, codes=same[0].cpu(), scales=same[1].cpu()).check(
            grouped_quant_mm(x, *same, offsets, bias)
        )


@every_path
@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_nan_stays_in_its_row_and_in_its_expert(path: Path, poison: float) -> None:
    case = Experts.of([3, 0, 18, 4], 37, 96)
    case.x[5, 40] = poison
    case.scales[3, 7, 2] = 255
    with path.active():
        y = grouped_quant_mm(*case.arguments(path.device)).cpu()
    case.check(y)
    assert y[5].isnan().all()
    assert y[21:, 7].isnan().all()
    assert y.isnan().sum() == 37 + 4


@needs_cpu_kernels
@every_dtype
def test_on_the_cpu_experts_have_the_bits_of_quant_mm(dtype: torch.dtype) -> None:
    case = Experts.of([3, 0, 18, 1, 210], 37, 288, dtype=dtype, bias=torch.float32)
    x, codes, scales, _, bias = case.arguments()
    results = []
    for path in CPU_PATHS:
        with path.active():
            y = grouped_quant_mm(*case.arguments(), scale_mode="ceil")
            for e, rows in enumerate(case.groups):
                one = torch.ops.mxfp4.quant_mm(
                    x[rows], codes[e], scales[e], bias[e], scale_mode="ceil"
                )
                assert_same_bits(y[rows], one)
        results.append(y)
    for other in results[1:]:
        assert_same_bits(other, results[0])


@every_backend
@given(
    st.lists(st.integers(0, 20), max_size=6),
    st.integers(1, 40),
    st.integers(1, 5),
    st.integers(0, 99),
)
def test_any_sizes(path: Path, counts: list[int], n: int, blocks: int, seed: int) -> None:
    bias = (None, *DTYPES)[seed % 4]
    case = Experts.of(counts, n, 32 * blocks, dtype=DTYPES[seed % 3], bias=bias, seed=seed)
    offset_dtype = (torch.int32, torch.int64)[seed % 2]
    with path.active():
        case.check(grouped_quant_mm(*case.arguments(path.device, offset_dtype)))


# Offsets that are not in order. Where they can be looked at they are refused.

DISORDERED = {
    "gap before": ([2, 4, 4, 9], [(2, 4), (4, 4), (4, 9)]),
    "gap behind": ([0, 4, 5, 7], [(0, 4), (4, 5), (5, 7)]),
    "negative": ([-3, 4, 5, 9], [(0, 4), (4, 5), (5, 9)]),
    "beyond": ([0, 4, 5, 1 << 30], [(0, 4), (4, 5), (5, 9)]),
    "falling": ([0, 6, 3, 9], [(0, 6), (6, 6), (6, 9)]),
    "backwards": ([9, 6, 3, 0], []),
    "garbage": ([-(1 << 31), (1 << 31) - 1, 5, -7], [(0, 9)]),
}
every_disorder = pytest.mark.parametrize(("offsets", "groups"), DISORDERED.values(), ids=DISORDERED)


def expect_groups(y: Tensor, case: Experts, groups: list[tuple[int, int]]) -> None:
    """Those rows are of the experts in turn, and all others zero."""
    outside = torch.ones(len(case.x), dtype=torch.bool)
    for expert, (first, end) in enumerate(groups):
        outside[first:end] = False
        one = replace(
            case,
            x=case.x[first:end],
            codes=case.codes[expert : expert + 1],
            scales=case.scales[expert : expert + 1],
            begins=[0, end - first],
            bias=None if case.bias is None else case.bias[expert : expert + 1],
        )
        one.check(y[first:end])
    assert torch.equal(y[outside], torch.zeros_like(y[outside]))


@every_backend
@every_disorder
def test_disorder(path: Path, offsets: list[int], groups: list[tuple[int, int]]) -> None:
    case = Experts.of([3, 3, 3], 20, 96, bias=torch.float32)
    x, codes, scales, _, bias = case.arguments(path.device)
    given_offsets = torch.tensor(offsets, dtype=torch.int32, device=path.device)
    with path.active():
        if path.device == "cpu":
            with pytest.raises(ValueError, match=r"^offsets must"):
                grouped_quant_mm(x, codes, scales, given_offsets, bias)
        else:
            y = grouped_quant_mm(x, codes, scales, given_offsets, bias)
            expect_groups(y.cpu(), case, groups)


@pytest.mark.skipif(
    not any(p.backend == "triton" and p.device == "cpu" for p in PATHS),
    reason="needs TRITON_INTERPRET=1",
)
@every_disorder
def test_disorder_in_the_kernels_of_gpus(offsets: list[int], groups: list[tuple[int, int]]) -> None:
    """As on a GPU, where nobody has looked."""
    from mxfp4_ops.backends.triton import portable

    case = Experts.of([3, 3, 3], 20, 96, bias=torch.float32)
    x, codes, scales, _, bias = case.arguments()
    out = torch.full((9, 20), torch.nan)
    given_offsets = torch.tensor(offsets, dtype=torch.int32)
    for launch in portable.grouped_quant_mm(x, codes, scales, given_offsets, bias, out, "even"):
        launch.run()
    expect_groups(out, case, groups)


@every_disorder
def test_disorder_in_the_reference(offsets: list[int], groups: list[tuple[int, int]]) -> None:
    from mxfp4_ops.backends import reference

    case = Experts.of([3, 3, 3], 20, 96, bias=torch.float32)
    x, codes, scales, _, bias = case.arguments()
    given_offsets = torch.tensor(offsets, dtype=torch.int32)
    y = reference.grouped_quant_mm(x, codes, scales, given_offsets, bias, torch.float32, "even")
    expect_groups(y, case, groups)


def test_the_function_is_the_operator_and_follows_autocast() -> None:
    case = Experts.of([3, 0, 2], 24, 96, dtype=torch.float32, bias=torch.float32)
    x, *rest = case.arguments()
    y = mxfp4_ops.grouped_quant_mm(x, *rest, out_dtype=torch.bfloat16, scale_mode="floor")
    expected = grouped_quant_mm(x, *rest, out_dtype=torch.bfloat16, scale_mode="floor")
    assert_same_bits(y, expected)
    with torch.autocast("cpu", torch.bfloat16):
        y = mxfp4_ops.grouped_quant_mm(x, *rest)
    assert_same_bits(y, grouped_quant_mm(x.bfloat16(), *rest))
