"""How problems are divided on gfx950: rules of thumb that must hold for every size."""

from __future__ import annotations

from math import ceil

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mxfp4_ops import layout
from mxfp4_ops.backends.devices import Target
from mxfp4_ops.backends.triton import gfx950
from mxfp4_ops.backends.triton.gfx950.plan import (
    COMPUTE_UNITS,
    FUSED_ROWS,
    LARGEST_SPLIT,
    Plan,
    fused_plan,
    gemm_plan,
    mm_plan,
    quant_mm_plan,
    table,
)

sizes = st.tuples(
    st.integers(1, 8192),
    st.integers(1, 65536),
    st.integers(0, 1024).map(lambda blocks: 32 * blocks),
)


@given(sizes, st.sampled_from([32, 64, 128, COMPUTE_UNITS]))
def test_rules_for_every_size(size: tuple[int, int, int], units: int) -> None:
    """Tiles, and where they are too few splits, give most compute units a workgroup."""
    m, n, k = size
    for plan in (fused_plan(m, n, k, units), gemm_plan(m, n, k, units)):
        tiles, chunks = plan.tiles(m, n), max(1, ceil(k / plan.chunk_k))
        longest = ceil(chunks / plan.split_k)
        assert longest * (plan.split_k - 1) < chunks, "a split has nothing to do"
        if plan.split_k > 1:
            assert tiles * plan.split_k <= units, "some have to wait"
        if plan.block_m * plan.block_n == 64 * 64 * plan.num_warps:
            assert 2 * tiles >= units, "so large tiles are too few"
        elif longest > 1:
            halved = ceil(chunks / (longest // 2))  # so many splits would be half as long
            assert tiles * halved > units or halved > LARGEST_SPLIT, "compute units are idle"
        assert plan.num_warps > 1 or n <= 32
        assert plan.block_m < max(2 * m, 17) or not plan.fused


@given(sizes, st.booleans())
def test_few_rows_are_fused(size: tuple[int, int, int], shuffled: bool) -> None:
    assert quant_mm_plan(*size, shuffled).fused == (size[0] <= FUSED_ROWS)


@given(sizes)
def test_operands_that_are_quantised_are_not_fused(size: tuple[int, int, int]) -> None:
    assert not mm_plan(*size).fused


def test_the_table_is_used_for_its_sizes() -> None:
    assert table()
    for (m, n, k), plan in table().items():
        assert quant_mm_plan(m, n, k) == quant_mm_plan(m, n, k, shuffled=True) == plan
        if not plan.fused:
            assert mm_plan(m, n, k) == plan
        rule = fused_plan if m <= FUSED_ROWS else gemm_plan
        assert quant_mm_plan(m, n + 16, k) == rule(m, n + 16, k)
        part = Target("gfx950", 128)  # of a partitioned GPU
        assert quant_mm_plan(m, n, k, target=part) == rule(m, n, k, 128)


@pytest.mark.parametrize(
    "wrong",
    [
        {"block_m": 24},
        {"block_n": 96},
        {"block_m": 8},
        {"block_n": 64},
        {"chunk_k": 128},
        {"num_warps": 3},
        {"waves_m": 2},
        {"fused": False, "waves_m": 2, "block_m": 16},
        {"fused": False, "waves_m": 8},
    ],
    ids=str,
)
def test_plans_that_no_kernel_has(wrong: dict[str, int]) -> None:
    right = {"fused": True, "block_m": 16, "block_n": 128, "chunk_k": 512}
    Plan(**right)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Plan"):
        Plan(**{**right, **wrong})  # type: ignore[arg-type]


def test_two_passes_with_shuffled_weights_need_32_rows_a_wave() -> None:
    weight = torch.zeros(32, 128, dtype=torch.uint8), torch.zeros(32, 8, dtype=torch.uint8)
    x, out = torch.zeros(4, 256), torch.empty(4, 32)
    plan = Plan(False, 16, 32, 256, num_warps=1)
    assert gfx950.quant_mm(x, *weight, None, out, False, "even", plan)
    with pytest.raises(ValueError, match="32 rows"):
        gfx950.quant_mm(x, *layout.shuffle(*weight), None, out, True, "even", plan)
