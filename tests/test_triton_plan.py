"""The portable kernels' plans, for all sizes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mxfp4_ops.backends.triton.plan import (
    LARGEST_SPLIT,
    LARGEST_TENSOR,
    STEPS_PER_SPLIT,
    ProductPlan,
    interpreted_product_plan,
    interpreted_rows_plan,
    product_plan,
    rows_plan,
)

rows = st.integers(1, 1 << 17) | st.integers(1, 300)
columns = st.integers(1, 1 << 18) | st.integers(1, 300)
depths = st.integers(1, 4096).map(lambda blocks: 32 * blocks)
compute_units = st.integers(1, 400)


def is_power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


@given(m=rows, n=columns, k=depths, units=compute_units)
def test_tiles_suit_the_matrix_units(m: int, n: int, k: int, units: int) -> None:
    plan = product_plan(m, n, k, units)
    assert all(map(is_power_of_two, (plan.block_m, plan.block_n, plan.blocks, plan.num_warps)))
    assert plan.block_m >= 16
    assert plan.block_n >= 16
    # Warps share the blocks of a step evenly, or all work on the one there is.
    assert plan.blocks == 1 or plan.blocks % plan.num_warps == 0
    # The sums and the products beside them, 32 registers of a thread each, at most twice that.
    assert plan.blocks * plan.block_m * plan.block_n <= 64 * 32 * plan.num_warps


@given(m=rows, n=columns, k=depths, units=compute_units)
def test_no_tile_is_twice_as_large_as_the_result(m: int, n: int, k: int, units: int) -> None:
    plan = product_plan(m, n, k, units)
    assert plan.block_m <= max(16, 2 * m - 1)
    assert plan.block_n <= max(32, 2 * n - 1)


@given(m=rows, n=columns, k=depths, units=compute_units)
def test_splits_share_all_of_k(m: int, n: int, k: int, units: int) -> None:
    plan = product_plan(m, n, k, units)
    each = plan.blocks_per_split(k)
    assert each % plan.blocks == 0
    assert each * plan.split_k >= k // 32
    assert each * (plan.split_k - 1) < k // 32, "the last one has nothing to do"
    if plan.split_k > 1:
        assert plan.split_k <= LARGEST_SPLIT
        assert each >= STEPS_PER_SPLIT * plan.blocks
        assert plan.tiles(m, n) * plan.split_k <= units, "some have to wait"


@given(m=rows, n=columns, k=depths, units=compute_units)
def test_compute_units_are_used(m: int, n: int, k: int, units: int) -> None:
    """Where most have nothing to do, tiles are small and parts of K are many or short."""
    plan = product_plan(m, n, k, units)
    short = plan.blocks_per_split(k) < 2 * STEPS_PER_SPLIT * plan.blocks
    if 2 * plan.tiles(m, n) * plan.split_k < units:
        assert plan.block_n == 32
        assert short or 2 * plan.split_k > LARGEST_SPLIT


@given(m=rows, n=columns, units=compute_units)
def test_nothing_to_add_is_not_split(m: int, n: int, units: int) -> None:
    assert product_plan(m, n, 0, units).split_k == 1
    assert product_plan(0, n, 4096, units).tiles(0, n) == 0
    assert product_plan(m, 0, 4096, units).tiles(m, 0) == 0


def test_tiles_are_counted_whole() -> None:
    plan = ProductPlan(16, 32, 1)
    assert [plan.tiles(m, 33) for m in (0, 1, 16, 17)] == [0, 2, 2, 4]


@given(k=st.just(0) | depths)
def test_rows(k: int) -> None:
    for wide in (False, True):
        plan = rows_plan(k, neighbours_in_k=wide)
        assert is_power_of_two(plan.rows)
        assert is_power_of_two(plan.blocks)
        assert plan.rows * plan.blocks * 32 == 16 * 32 * plan.num_warps
    assert rows_plan(k, neighbours_in_k=False).rows > plan.rows or k <= 32


@given(m=rows, n=columns, k=depths)
def test_tiles_of_the_interpreter(m: int, n: int, k: int) -> None:
    product = interpreted_product_plan(m, n, k)
    assert product.blocks * product.block_m * product.block_n <= LARGEST_TENSOR
    conversion = interpreted_rows_plan(k)
    assert conversion.rows * conversion.blocks * 32 <= LARGEST_TENSOR
    triton = pytest.importorskip("triton.language", reason="Triton is not installed")
    assert LARGEST_TENSOR <= triton.core.TRITON_MAX_TENSOR_NUMEL
