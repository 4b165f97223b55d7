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

LONG_STEPS = 64
"""Whose blocks' sums are added up in one place.

Each adds a rounding error. 256 of them, of one sign and with scales from 2**-10 to 2**10, left sums
with one of 1.8e-7 (RMS), and 1.05e-6 in the worst of 2 million.
"""

PART = 128
"""Rows of x of a tile of the integer kernel that are multiplied at a time where they are floats."""

MOST_TILES = 64
"""That a program of the integer kernel takes, one after the other."""

LONGEST_ROW = 32768
"""Elements of K that the integer kernel takes: a program prepares a whole row."""

NARROW_ROWS = 16
"""Up to so many rows of x the narrow kernel is the faster one where both run."""

LARGE_WEIGHT = 48 << 20
"""Elements of a weight from which on it is not, not even with one row."""


@cache
def capability(arch: str) -> int:
    """90 of sm_90; 0 of what is not NVIDIA's."""
    found = re.fullmatch(r"sm_(\d+)", arch)
    return int(found.group(1)) if found else 0


def has_wgmma(arch: str) -> bool:
    """Later architectures dropped it."""
    return capability(arch) == 90


@dataclass(frozen=True)
class Plan:
    """How a product y = x W^T is divided.

    Attributes:
        block_m, block_n: a program's rows of x and of W.
        num_warps: those of the narrow kernel; in the others, those for each 64 rows of W, beside
            which one copies, or four.
        warps_k: warps that share the steps of a tile, and add their sums at its end.
        stages: steps under way: of W for a warp of the narrow kernel, of both in the others.
        split_k: programs that share the steps of a tile and leave their sums to another kernel.
        wide, integer: which kernel; without either the narrow one.
    """

    block_m: int
    block_n: int
    num_warps: int
    warps_k: int = 1
    stages: int = 1
    split_k: int = 1
    wide: bool = False
    integer: bool = False

    def __post_init__(self) -> None:
        sizes = (self.block_m, self.block_n, self.num_warps, self.warps_k)
        if any(size < 1 or size & (size - 1) for size in sizes):
            raise ValueError(f"sizes of {self} must be powers of two")
        if self.split_k < 1 or self.stages < 1:
            raise ValueError(f"there is no kernel for {self}")
        if self.wide or self.integer:
            least, most = (64, 256) if self.integer else (16, 128)
            possible = (
                self.num_warps == 4
                and self.block_n in (64, 128)
                and least <= self.block_m <= most
                and self.warps_k == 1
                and self.stages >= 2
                and not (self.wide and self.integer)
            )
        else:
            down = self.num_warps // self.warps_k
            possible = down >= 1 and self.block_n % (16 * down) == 0 and 8 <= self.block_m <= 64
        if not possible:
            raise ValueError(f"there is no kernel for {self}")

    @property
    def kernel(self) -> str:
        return "integer" if self.integer else "wide" if self.wide else "narrow"

    @property
    def specialized(self) -> bool:
        """Whether warps have different tasks."""
        return self.wide or self.integer

    @property
    def registers(self) -> int:
        """Of a thread at its start, before those that copy give most of theirs to the others."""
        return {64: 128, 128: 168}[self.block_n]  # two programs a unit, or one

    def for_depth(self, k: int) -> Plan:
        """With so many splits that none is too long, and of a kernel that takes rows so long."""
        if self.integer and not 0 < k <= LONGEST_ROW:
            return self.as_wide().for_depth(k)
        if not self.wide:
            return self
        return replace(
            self, split_k=max(self.split_k, ceil(k / (BLOCK * STEP_BLOCKS * LONG_STEPS)))
        )

    def as_wide(self) -> Plan:
        """For what the integer kernel does not take."""
        if not self.integer:
            return self
        return replace(self, block_m=min(self.block_m, 128), wide=True, integer=False)

    def tiles(self, m: int, n: int) -> int:
        return ceil(m / self.block_m) * ceil(n / self.block_n)

    def programs(self, m: int, n: int, units: int) -> int:
        """Of the integer kernel."""
        tiles = self.tiles(m, n) * self.split_k
        return min(tiles, max(units * 128 // self.block_n, ceil(tiles / MOST_TILES)))

    def blocks_per_split(self, k: int) -> int:
        """Whole rounds of the loop over K."""
        rounds = STEP_BLOCKS * (1 if self.specialized else self.warps_k * self.stages)
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
class Tile:
    """A tile of the wide or of the integer kernel.

    Attributes:
        start: microseconds that a program takes beside its steps, as far as others do not hide it.
        step: microseconds for a step.
    """

    block_m: int
    block_n: int
    stages: int
    start: float
    step: float
    integer: bool = False

    def plan(self, split_k: int) -> Plan:
        return Plan(
            self.block_m, self.block_n, 4, 1, self.stages, split_k, not self.integer, self.integer
        )

    def time(self, split_k: int, m: int, n: int, k: int, units: int) -> float:
        """Microseconds that a product takes, as far as a choice of tiles can change them."""
        plan = self.plan(split_k)
        resident = 128 // self.block_n  # programs on a unit
        rounds = ceil(plan.tiles(m, n) * split_k / (resident * units))
        steps = plan.blocks_per_split(k) // STEP_BLOCKS
        # Partial sums are written and read by a kernel of its own.
        reduce = SPLIT + 8e-6 * SPLIT_MB * split_k * m * n if split_k > 1 else 0
        more = PREPARE + 1e-6 * k * (PREPARE_W * n + PREPARE_X * m)
        prepare = more if self.integer else 0
        return prepare + rounds * (self.start + steps * self.step) + reduce


# Fitted to 361 products of 16 to 4096 rows and eight weights, on an H200. What the rule takes by
# them was the fastest of the measured tiles and splits, or within 2 % of it.
WIDE_TILES = (
    Tile(16, 64, 8, 3.12, 0.236),
    Tile(32, 64, 4, 2.64, 0.311),
    Tile(32, 64, 8, 3.43, 0.266),
    Tile(64, 64, 4, 3.44, 0.373),
    Tile(64, 128, 8, 3.89, 0.416),
    Tile(128, 64, 4, 4.64, 0.62),
    Tile(128, 128, 4, 4.84, 0.636),
)
# Fitted to 290 products of 128 to 4096 rows whose tiles were all of integers.
INTEGER_TILES = (
    Tile(128, 64, 4, 3.27, 0.499, integer=True),
    Tile(128, 128, 5, 3.84, 0.448, integer=True),
    Tile(256, 128, 4, 5.63, 0.666, integer=True),
)
SPLIT = 3.29
SPLIT_MB = 0.0764
"""Microseconds for a split of K, and for a megabyte of partial sums."""

PREPARE, PREPARE_W, PREPARE_X = 0.7, 0.062, 0.12
"""Microseconds by which the integer kernel's preparation takes longer, and for a million elements
of W and of x. With the first, the rule takes what was fastest of what was measured."""

INTEGER_ROWS = 128
"""Up to so many the integer kernel gains at most 11 % where rows are plain, and loses 26 to 42 %
where they are not."""


@lru_cache(4096)  # some hundred microseconds, at each call that is like no other
def tile_plans(m: int, n: int, k: int, units: int, integer: bool) -> tuple[Plan, ...]:
    """For each tile the splits of K that take least by the times above, and the best tile first.

    Without `integer`, of the wide kernel only.
    """
    found = []
    integers = integer and m > INTEGER_ROWS and 0 < k <= LONGEST_ROW
    for tile in WIDE_TILES + (INTEGER_TILES if integers else ()):
        if 2 * tile.block_m < min(m, 128):  # not measured
            continue
        times = {}
        least = tile.plan(1).for_depth(k).split_k
        for split_k in range(least, max(least, LARGEST_SPLIT) + 1):
            per_split = tile.plan(split_k).blocks_per_split(k)
            enough = per_split >= STEPS_PER_SPLIT * STEP_BLOCKS
            if split_k == least or (enough and per_split * (split_k - 1) < k // BLOCK):
                times[split_k] = tile.time(split_k, m, n, k, units)
        best = min(times, key=times.__getitem__)
        found.append((times[best], tile.plan(best)))
    return tuple(plan for _, plan in sorted(found, key=itemgetter(0)))


def product_plan(m: int, n: int, k: int, target: Target, integer: bool = True) -> Plan:
    """By rule; without `integer` for another kernel than that."""
    most = 0 if n * k >= LARGE_WEIGHT else NARROW_ROWS
    if has_wgmma(target.arch) and m > most:
        return tile_plans(m, n, k, target.compute_units, integer)[0]
    return narrow_plan(m, n, k, target.compute_units)


def found_plan(m: int, n: int, k: int, target: Target, integer: bool = True) -> Found[Plan]:
    """From the table or by rule; without `integer` for another kernel than that."""
    found = lookup.find(
        target, m, n, k, Plan,
        rule=product_plan(m, n, k, target, integer),
        can_run=lambda plan: (
            not plan.specialized
            or (has_wgmma(target.arch) and (integer or not plan.integer))
        ),
    )  # fmt: skip
    return replace(found, plan=found.plan.for_depth(k))
