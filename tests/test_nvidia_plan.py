"""Plans of the kernels for NVIDIA's GPUs, for all sizes."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from math import ceil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("triton", reason="Triton is not installed")

from mxfp4_ops.backends.devices import Target
from mxfp4_ops.backends.triton.nvidia.plan import (
    INTEGER_ROWS,
    INTEGER_TILES,
    LARGE_WEIGHT,
    LONG_STEPS,
    LONGEST_ROW,
    MOST_TILES,
    NARROW_ROWS,
    STEP_BLOCKS,
    WIDE_TILES,
    Plan,
    capability,
    found_plan,
    narrow_plan,
    product_plan,
    tile_plans,
)
from mxfp4_ops.backends.triton.plan import LARGEST_SPLIT
from mxfp4_ops.tuning import lookup
from mxfp4_ops.tuning.candidates import family

INTEGER = Plan(256, 128, 4, stages=4, integer=True)
H200, A100 = Target("sm_90", 132), Target("sm_80", 108)
targets = st.sampled_from([H200, A100, Target("sm_120", 170)])
rows = st.integers(1, 1 << 17) | st.integers(1, 300)
columns = st.integers(1, 1 << 18) | st.integers(1, 300)
depths = st.integers(1, 4096).map(lambda blocks: 32 * blocks)


@given(m=rows, n=columns, k=depths, target=targets, integer=st.booleans())
def test_splits_share_all_of_k(m: int, n: int, k: int, target: Target, integer: bool) -> None:
    plan = product_plan(m, n, k, target, integer)
    assert integer or not plan.integer
    each = plan.blocks_per_split(k)
    assert each % (STEP_BLOCKS * (1 if plan.specialized else plan.warps_k * plan.stages)) == 0
    assert each * plan.split_k >= k // 32
    assert each * (plan.split_k - 1) < k // 32, "the last one has nothing to do"
    assert plan.split_k <= LARGEST_SPLIT
    assert each <= STEP_BLOCKS * LONG_STEPS or not plan.wide


@given(m=rows, n=columns, k=depths, target=targets)
def test_tiles_and_warps(m: int, n: int, k: int, target: Target) -> None:
    plan = product_plan(m, n, k, target)
    few = 0 if n * k >= LARGE_WEIGHT else NARROW_ROWS
    assert plan.specialized == (target == H200 and m > few)
    assert not plan.integer or m > INTEGER_ROWS
    assert plan.block_m <= max(8, 2 * m - 1) or plan.specialized
    assert plan.num_warps <= 16
    # Sums, and beside them those of a step if they are floats, are at most half of the registers.
    down = plan.num_warps // plan.warps_k
    assert (
        plan.block_m * (64 if plan.specialized else plan.block_n)
        <= (4096 if plan.integer else 2048) * down
    )
    # No warp is without a step, where K has so many.
    assert plan.warps_k <= max(1, k // 128)


@given(n=columns, k=depths)
def test_split_k_only_where_tiles_are_few(n: int, k: int) -> None:
    plan = narrow_plan(16, n, k, H200.compute_units)
    assert plan.split_k == 1 or plan.tiles(16, n) * plan.split_k <= H200.compute_units


@given(m=rows, n=columns, k=depths, integer=st.booleans())
def test_tile_plans(m: int, n: int, k: int, integer: bool) -> None:
    """Of each tile the best splits, and the best tile first."""
    units = H200.compute_units
    some = [tile for tile in WIDE_TILES if 2 * tile.block_m >= min(m, 128)]
    if integer and m > INTEGER_ROWS and k <= LONGEST_ROW:
        some += INTEGER_TILES
    tiles = {(tile.integer, tile.block_m, tile.block_n, tile.stages): tile for tile in some}
    times = []
    for plan in tile_plans(m, n, k, units, integer):
        tile = tiles.pop((plan.integer, plan.block_m, plan.block_n, plan.stages))
        times.append(tile.time(plan.split_k, m, n, k, units))
        one = tile.plan(1).for_depth(k).split_k
        assert times[-1] <= tile.time(one, m, n, k, units)
    assert not tiles
    assert times == sorted(times)


@pytest.mark.parametrize(
    ("size", "plan"),
    [
        ((16, 14336, 4096), Plan(16, 64, 4, stages=8, wide=True)),
        ((32, 4096, 4096), Plan(32, 64, 4, stages=4, split_k=4, wide=True)),
        ((32, 7168, 2048), Plan(16, 64, 4, stages=8, wide=True)),
        ((32, 8192, 8192), Plan(32, 64, 4, stages=8, split_k=2, wide=True)),
        ((64, 4096, 4096), Plan(64, 64, 4, stages=4, split_k=4, wide=True)),
        ((64, 14336, 4096), Plan(64, 64, 4, stages=4, wide=True)),
        ((128, 2112, 7168), Plan(64, 64, 4, stages=4, split_k=4, wide=True)),
        ((128, 4096, 4096), Plan(64, 64, 4, stages=4, split_k=2, wide=True)),
        ((128, 14336, 4096), Plan(128, 64, 4, stages=4, wide=True)),
        ((1024, 2112, 7168), Plan(128, 64, 4, stages=4, wide=True)),
        ((1024, 8192, 8192), Plan(128, 64, 4, stages=4, wide=True)),
        ((256, 2112, 7168), Plan(128, 64, 4, stages=4, split_k=4, integer=True)),
        ((256, 8192, 8192), Plan(128, 128, 4, stages=5, integer=True)),
        ((512, 8192, 28672), Plan(256, 128, 4, stages=4, integer=True)),
        ((1024, 2112, 7168), Plan(128, 64, 4, stages=4, integer=True)),
        ((4096, 4096, 512), Plan(256, 128, 4, stages=4, integer=True)),
    ],
    ids=str,
)
def test_plans_that_were_the_fastest_measured(size: tuple[int, int, int], plan: Plan) -> None:
    assert tile_plans(*size, H200.compute_units, plan.integer)[0] == plan


def test_nothing_to_multiply() -> None:
    for m, n, k in ((0, 16, 64), (16, 0, 64), (16, 16, 0)):
        plan = product_plan(m, n, k, H200)
        assert plan.split_k == 1
        assert plan.tiles(m, n) == ceil(m / plan.block_m) * ceil(n / plan.block_n)


@pytest.mark.parametrize(
    "change",
    [
        {"block_n": 24}, {"block_m": 4}, {"block_m": 128}, {"warps_k": 16}, {"split_k": 0},
        {"stages": 0}, {"wide": True},
    ],
    ids=str,
)  # fmt: skip
def test_plans_that_no_kernel_has(change: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"no kernel|powers of two"):
        Plan(**(asdict(Plan(16, 16, 8, 8)) | change))


@pytest.mark.parametrize(
    "change",
    [{"num_warps": 2}, {"block_n": 32}, {"stages": 1}, {"block_m": 256}, {"warps_k": 2}],
    ids=str,
)
def test_wide_plans_that_no_kernel_has(change: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="no kernel"):
        Plan(**(asdict(Plan(64, 64, 4, stages=3, wide=True)) | change))


@pytest.mark.parametrize(
    "change",
    [
        {"num_warps": 2}, {"block_n": 32}, {"stages": 1}, {"block_m": 512}, {"block_m": 32},
        {"warps_k": 2}, {"wide": True},
    ],
    ids=str,
)  # fmt: skip
def test_integer_plans_that_no_kernel_has(change: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="no kernel"):
        Plan(**(asdict(INTEGER) | change))


@given(m=rows, n=columns, k=depths)
def test_the_integer_kernel(m: int, n: int, k: int) -> None:
    """What it does not take the wide one does."""
    assert INTEGER.for_depth(k).integer == (k <= LONGEST_ROW)
    assert not INTEGER.for_depth(0).integer
    assert INTEGER.as_wide() == Plan(128, 128, 4, stages=4, wide=True)
    programs, tiles = INTEGER.programs(m, n, 132), INTEGER.tiles(m, n)
    assert 1 <= programs <= tiles
    assert ceil(tiles / programs) <= MOST_TILES


def test_the_integer_kernel_by_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = {key: int(value) for key, value in asdict(INTEGER).items()}
    entry = {"m": 1024, "plan": plan, "provenance": "a test"}
    products = [{"n": 8192, "k": 4096, "plans": [entry]}]
    content = {"architecture": "sm_90", "compute_units": 132, "products": products}
    (tmp_path / "sm_90.json").write_text(json.dumps(content))
    monkeypatch.setattr(lookup, "directory", str(tmp_path))
    lookup.table.cache_clear()
    try:
        for m, told in (
            (1024, "these sizes"),
            (1500, "nearest M"),
            (64, "rule"),
            (1 << 14, "rule"),
        ):
            assert told in found_plan(m, 8192, 4096, H200).origin
        found = found_plan(1024, 8192, 4096, H200, integer=False)
        assert "rule" in found.origin
        assert found.plan.wide
    finally:
        lookup.table.cache_clear()


@given(k=depths, splits=st.integers(1, 16))
def test_no_split_is_too_long(k: int, splits: int) -> None:
    plan = Plan(64, 64, 4, stages=4, split_k=splits, wide=True).for_depth(k)
    assert plan.blocks_per_split(k) <= STEP_BLOCKS * LONG_STEPS
    assert plan.split_k >= splits
    assert plan.for_depth(k) == plan
    narrow = Plan(16, 16, 8, 8)
    assert narrow.for_depth(k) == narrow


def test_capability() -> None:
    assert capability("sm_90") == 90
    assert capability("sm_120") == 120
    assert capability("gfx950") == capability("cpu") == 0


def test_a_table_for_hopper_is_no_other_gpus() -> None:
    assert found_plan(64, 8192, 8192, replace(H200, compute_units=114)).origin.startswith("rule")
    assert not found_plan(1024, 8192, 8192, A100).plan.specialized


@given(m=rows, n=columns, k=depths, target=targets)
def test_candidates_of_the_tuner(m: int, n: int, k: int, target: Target) -> None:
    plans = family((m, n, k), target, shuffled=False)
    assert plans.starts[0] == product_plan(m, n, k, target)
    for start in plans.starts:
        near = list(plans.neighbours(start))
        assert start not in near
        assert all(target == H200 or not plan.specialized for plan in near)
        for plan in near:
            assert plan.blocks_per_split(k) * (plan.split_k - 1) < max(k // 32, 1)
