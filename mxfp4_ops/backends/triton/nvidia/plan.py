"""What a product's launches look like on NVIDIA's GPUs."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from math import ceil
from operator import itemgetter

from ....formats import BLOCK
from ....tuning import lookup
from ....tuning.lookup import Found
from ...devices import Target
from ..plan import LARGEST_SPLIT, STEPS_PER_SPLIT, power_of_two, splits_of_k

STEP_BLOCKS = 4
"""Blocks of 32 along K in a step."""

WIDE_UNROLL = 2
"""Steps in a round of the wide kernel's loop."""

NARROW_ROWS = 16
"""Up to so many rows of x the narrow kernel is the faster one where both run."""


@cache
def capability(arch: str) -> int:
    """90 of sm_90; 0 of what is not NVIDIA's."""
    found = re.fullmatch(r"sm_(\d+)", arch)
    return int(found.group(1)) if found else 0


def has_wide(arch: str) -> bool:
    """Whether there is wgmma, which later architectures dropped."""
    return capability(arch) == 90


@dataclass(frozen=True)
class Plan:
    """How a product y = x W^T is divided.

    Attributes:
        block_m, block_n: a program's rows of x and of W.
        num_warps: those that multiply; in the wide kernel others copy.
        warps_k: warps that share the steps of a tile, and add their sums at its end.
        stages: steps under way: of W for a warp of the narrow kernel, of both in the wide one.
        split_k: programs that share the steps of a tile and leave their sums to another kernel.
        wide: which kernel.
    """

    block_m: int
    block_n: int
    num_warps: int
    warps_k: int = 1
    stages: int = 1
    split_k: int = 1
    wide: bool = False

    def __post_init__(self) -> None:
        sizes = (self.block_m, self.block_n, self.num_warps, self.warps_k)
        if any(size < 1 or size & (size - 1) for size in sizes):
            raise ValueError(f"sizes of {self} must be powers of two")
        if self.split_k < 1 or self.stages < 1:
            raise ValueError(f"there is no kernel for {self}")
        if self.wide:
            possible = (
                self.num_warps in (4, 8)
                and self.block_n == 16 * self.num_warps
                and 8 <= self.block_m <= 128
                and self.warps_k == 1
                and self.stages >= 3
            )
        else:
            down = self.num_warps // self.warps_k
            possible = down >= 1 and self.block_n % (16 * down) == 0 and 8 <= self.block_m <= 64
        if not possible:
            raise ValueError(f"there is no kernel for {self}")

    @property
    def kernel(self) -> str:
        return "wide" if self.wide else "narrow"

    @property
    def registers(self) -> int:
        """Of a thread of the wide kernel at its start, before some give most to the others."""
        return {4: 128, 8: 168}[self.num_warps]  # two programs a unit, or one

    def tiles(self, m: int, n: int) -> int:
        return ceil(m / self.block_m) * ceil(n / self.block_n)

    def blocks_per_split(self, k: int) -> int:
        """Whole rounds of the loop over K."""
        rounds = STEP_BLOCKS * (WIDE_UNROLL if self.wide else self.warps_k * self.stages)
        return max(1, ceil(k / (BLOCK * rounds * self.split_k))) * rounds


def _split(plan: Plan, m: int, n: int, k: int, programs: int) -> Plan:
    """With as many splits of K as make `programs` of them, where K is long enough."""
    rounds = plan.blocks_per_split(k) // plan.blocks_per_split(0)
    least = ceil(STEPS_PER_SPLIT * STEP_BLOCKS / plan.blocks_per_split(0))
    return replace(plan, split_k=splits_of_k(programs // max(plan.tiles(m, n), 1), rounds, least))


def narrow_plan(m: int, n: int, k: int, units: int) -> Plan:
    """16 warps to each unit, if there are so many steps, with two steps under way in each."""
    block_m = power_of_two(m, 8, 64)
    block_n = 16 if ceil(n / 16) <= 16 * units else 32
    steps = max(1, k // (BLOCK * STEP_BLOCKS))
    wanted = max(1, 16 * units // max(1, ceil(n / block_n) * ceil(m / block_m)))
    # Of 32 and more rows of x, sums fill a warp's registers.
    most = 16 if block_m <= 16 else 8
    warps = min(most, 1 << wanted.bit_length() - 1, 1 << steps.bit_length() - 1)
    plan = Plan(block_m, block_n, warps, warps, stages=2 if steps >= 2 * warps else 1)
    return _split(plan, m, n, k, units)


@dataclass(frozen=True)
class WideTile:
    """A tile of the wide kernel, `resident` of which a unit works on at a time.

    Attributes:
        step: microseconds for a step of all of them, measured on an H200.
    """

    block_m: int
    block_n: int
    stages: int
    resident: int
    step: float

    def plan(self, split_k: int) -> Plan:
        warps = self.block_n // 16
        return Plan(self.block_m, self.block_n, warps, 1, self.stages, split_k, wide=True)

    def time(self, split_k: int, m: int, n: int, k: int, units: int) -> float:
        """Microseconds that a product takes, as far as a choice of tiles can change them."""
        plan = self.plan(split_k)
        rounds = ceil(plan.tiles(m, n) * split_k / (self.resident * units))
        steps = plan.blocks_per_split(k) // STEP_BLOCKS
        # Partial sums are written and read, at 3 TB/s, by a kernel of its own.
        reduce = 1.5 + 8e-6 / 3 * split_k * m * n if split_k > 1 else 0
        return rounds * steps * self.step + reduce


WIDE_TILES = (
    WideTile(32, 64, 4, 2, 0.55),
    WideTile(64, 64, 4, 2, 0.67),
    WideTile(128, 64, 3, 2, 1.25),
    WideTile(128, 128, 4, 1, 0.85),
)


@lru_cache(4096)  # some hundred microseconds, at each call that is like no other
def wide_plans(m: int, n: int, k: int, units: int) -> tuple[Plan, ...]:
    """For each tile the splits of K that take least by the times above, and the best tile first."""
    found = []
    for tile in WIDE_TILES:
        times = {}
        for split_k in range(1, LARGEST_SPLIT + 1):
            per_split = tile.plan(split_k).blocks_per_split(k)
            enough = per_split >= STEPS_PER_SPLIT * STEP_BLOCKS
            if split_k == 1 or (enough and per_split * (split_k - 1) < k // BLOCK):
                times[split_k] = tile.time(split_k, m, n, k, units)
        best = min(times, key=times.__getitem__)
        found.append((times[best], tile.plan(best)))
    return tuple(plan for _, plan in sorted(found, key=itemgetter(0)))


def product_plan(m: int, n: int, k: int, target: Target) -> Plan:
    wide = has_wide(target.arch) and m > NARROW_ROWS
    if wide:
        return wide_plans(m, n, k, target.compute_units)[0]
    return narrow_plan(m, n, k, target.compute_units)


def found_plan(m: int, n: int, k: int, target: Target) -> Found[Plan]:
    """From the table or by rule."""
    return lookup.find(
        target, m, n, k, Plan,
        rule=product_plan(m, n, k, target),
        can_run=lambda plan: not plan.wide or has_wide(target.arch),
    )  # fmt: skip
