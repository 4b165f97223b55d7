"""Which plans the tuner tries: where it starts, and what is one step away from a plan."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from math import ceil
from typing import Any

from ..backends.devices import Target
from ..backends.triton import form
from ..backends.triton.plan import LARGEST_SPLIT, ProductPlan, found_plan, product_plan
from ..formats import BLOCK

Shape = tuple[int, int, int]
"""M, N, K."""


@dataclass(frozen=True)
class Family:
    """The plans of one family of kernels for one product.

    Attributes:
        starts: where the search begins; the first is the rule's.
        neighbours: plans that differ from one by a step.
    """

    starts: tuple[Any, ...]
    neighbours: Callable[[Any], Iterator[Any]]


def _steps(value: int, lowest: int, highest: int) -> Iterator[int]:
    """Half and twice as much, within limits."""
    return (v for v in (value // 2, 2 * value) if lowest <= v <= highest)


def _splits(split: int) -> set[int]:
    near = {split // 2, split - 1, split + 1, 2 * split}
    return {s for s in near if 1 <= s <= LARGEST_SPLIT}


def _portable_neighbours(plan: ProductPlan) -> Iterator[ProductPlan]:
    for block_n in _steps(plan.block_n, 32, 256):
        yield replace(plan, block_n=block_n)
    for num_warps in _steps(plan.num_warps, 2, 8):
        yield replace(plan, num_warps=num_warps)
    for split_k in sorted(_splits(plan.split_k)):
        yield replace(plan, split_k=split_k)
    for blocks in _steps(plan.blocks, 1, 16):
        yield replace(plan, blocks=blocks)
    for num_stages in (plan.num_stages - 1, plan.num_stages + 1):
        if 1 <= num_stages <= 5:
            yield replace(plan, num_stages=num_stages)
    for block_m in _steps(plan.block_m, 16, 128):
        yield replace(plan, block_m=block_m)
    yield replace(plan, fused=not plan.fused)


def _portable_fits(plan: ProductPlan, shape: Shape) -> bool:
    """Whether sums stay in registers, no tile is mostly empty and no split has nothing to do."""
    m, n, k = shape
    sums = plan.blocks * plan.block_m * plan.block_n
    parts = plan.blocks_per_split(k) * (plan.split_k - 1)
    return (
        sums <= 128 * 32 * plan.num_warps
        and plan.block_m < max(2 * m, 17)
        and plan.block_n < max(2 * n, 33)
        and (plan.split_k == 1 or parts < k // BLOCK)
    )


def _portable(shape: Shape, target: Target) -> Family:
    rule = product_plan(*shape, target.compute_units)
    starts = rule, found_plan("quant_mm", *shape, target).plan
    return Family(
        starts,
        lambda plan: (p for p in _portable_neighbours(plan) if _portable_fits(p, shape)),
    )


def _gfx950_changes(plan: Any) -> Iterator[dict[str, Any]]:
    for block_n in _steps(plan.block_n, 32, 512):
        yield {"block_n": block_n}
        yield {"block_n": block_n, "num_warps": plan.num_warps * block_n // plan.block_n}
    for num_warps in _steps(plan.num_warps, 2, 8):
        yield {"num_warps": num_warps}
    for split_k in sorted(_splits(plan.split_k)):
        yield {"split_k": split_k}
    for chunk_k in _steps(plan.chunk_k, 256, 1024):
        yield {"chunk_k": chunk_k}
    for block_m in _steps(plan.block_m, 16, 128):
        yield {"block_m": block_m}
    for waves_m in _steps(plan.waves_m, 1, 2):
        yield {"waves_m": waves_m}
    yield {"fused": not plan.fused, "waves_m": 1}


def _gfx950_fits(plan: Any, shape: Shape, shuffled: bool) -> bool:
    """Whether a wave's sums stay in registers, no tile is mostly empty, no split has nothing to
    do, and only where columns are few a workgroup is one wave."""
    from ..backends.triton.gfx950.plan import can_run

    m, n, k = shape
    chunks = max(1, ceil(k / plan.chunk_k))
    return (
        plan.block_m * plan.block_n <= 64 * 64 * plan.num_warps
        and plan.block_m < max(2 * m, 33)
        and plan.block_n < max(2 * n, 33)
        and ceil(chunks / plan.split_k) * (plan.split_k - 1) < chunks
        and (plan.num_warps > 1 or n <= 32)
        and can_run(plan, shuffled)
    )


@cache
def _tiles_of_others() -> list[dict[str, Any]]:
    """What other kernels were tuned to on an MI355X, in our terms."""
    path = files("mxfp4_ops").joinpath("tuning", "configs", "gfx950.json")
    kernels = json.loads(path.read_text(encoding="utf-8"))["other_kernels"]["kernels"]
    return [
        {**tiles, "fused": kernel["fused"]} for kernel in kernels for tiles in kernel["products"]
    ]


def _gfx950(shape: Shape, target: Target, shuffled: bool) -> Family:
    from ..backends.triton.gfx950.plan import FUSED_ROWS, Plan, found_plan, fused_plan, gemm_plan

    m, n, k = shape

    def made(fields: dict[str, Any]) -> Iterator[Plan]:
        try:
            plan = Plan(**fields)
        except ValueError:  # the kernels have no such tile
            return
        if _gfx950_fits(plan, shape, shuffled):
            yield plan

    def neighbours(plan: Plan) -> Iterator[Plan]:
        for change in _gfx950_changes(plan):
            yield from made({**vars(plan), **change})

    rule = (fused_plan if m <= FUSED_ROWS else gemm_plan)(*shape, target.compute_units)
    starts = [rule, found_plan("quant_mm", *shape, shuffled, target).plan]
    for tiles in _tiles_of_others():
        if (tiles["n"], tiles["k"]) == (n, k) and tiles["m"] <= 2 * m <= 4 * tiles["m"]:
            fields = {name: tiles[name] for name in ("fused", "block_n", "split_k", "num_warps")}
            fields |= {"block_m": max(16, tiles["block_m"]), "chunk_k": tiles["block_k"]}
            starts += made(fields)
    return Family(tuple(starts), neighbours)


def _nvidia_changes(plan: Any) -> Iterator[dict[str, Any]]:
    for split_k in sorted(_splits(plan.split_k)):
        yield {"split_k": split_k}
    for block_n in _steps(plan.block_n, 16, 128):
        yield {"block_n": block_n}
        yield {"block_n": block_n, "num_warps": plan.num_warps * block_n // plan.block_n}
    for warps_k in _steps(plan.warps_k, 1, 16):
        yield {"warps_k": warps_k, "num_warps": plan.num_warps * warps_k // plan.warps_k}
        yield {"warps_k": warps_k}
    # The wide kernel counts its stages faster where they are a power of two.
    for stages in (4, 8) if plan.wide else (plan.stages - 1, plan.stages + 1):
        if stages != plan.stages and 1 <= stages <= (8 if plan.specialized else 4):
            yield {"stages": stages}
    for block_m in _steps(plan.block_m, 8, 256):
        yield {"block_m": block_m}


def _nvidia_fits(plan: Any, shape: Shape) -> bool:
    """Whether sums stay in registers, no tile is mostly empty, no split is empty or too long."""
    m, n, k = shape
    sums = plan.block_m * plan.block_n // max(1, plan.num_warps // plan.warps_k)
    return (
        (plan.specialized or sums <= 1024)
        and plan.for_depth(k) == plan
        and plan.num_warps <= 16
        and plan.block_m < max(2 * m, 9)
        and plan.block_n < max(2 * n, 65)
        and plan.blocks_per_split(k) * (plan.split_k - 1) < max(k // BLOCK, 1)
    )


def _nvidia(shape: Shape, target: Target, integer: bool) -> Family:
    from ..backends.triton.nvidia.plan import Plan, found_plan, has_wgmma, narrow_plan, tile_plans
    from ..backends.triton.nvidia.plan import product_plan as nvidia_plan

    def neighbours(plan: Plan) -> Iterator[Plan]:
        for change in _nvidia_changes(plan):
            try:
                near = replace(plan, **change)
            except ValueError:  # the kernels have no such tile
                continue
            if _nvidia_fits(near, shape):
                yield near

    starts = [nvidia_plan(*shape, target, integer), found_plan(*shape, target, integer).plan]
    starts.append(narrow_plan(*shape, target.compute_units))
    if has_wgmma(target.arch):
        starts.extend(tile_plans(*shape, target.compute_units, integer))
    return Family(tuple(starts), neighbours)


def family(shape: Shape, target: Target, shuffled: bool) -> Family:
    """The plans of the kernels that run on a GPU."""
    kernels = form(target)
    if kernels == "gfx950":
        return _gfx950(shape, target, shuffled)
    return _nvidia(shape, target, not shuffled) if kernels == "nvidia" else _portable(shape, target)
