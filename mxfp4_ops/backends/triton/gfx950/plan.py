"""What the launches on gfx950 look like for a problem's sizes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from ....tuning import lookup
from ....tuning.lookup import Found
from ...devices import Target

COMPUTE_UNITS = 256
"""Of an MI355X that is not partitioned; each has 4 SIMDs."""

WHOLE = Target("gfx950", COMPUTE_UNITS)

FUSED_ROWS = 64
"""Up to so many rows, quantising the activations again for every tile costs less than a pass of its
own, which has to be launched and waited for."""


LARGEST_SPLIT = 16
"""The sum of the partial products reads all of them at once."""


@dataclass(frozen=True)
class Plan:
    """How a product is divided.

    Attributes:
        fused: whether activations are quantised on their way to the matrix units.
        block_m, block_n: a workgroup's tile of the result.
        chunk_k: elements of K in one iteration.
        split_k: workgroups that share the sums of one tile, each with its part of K.
        num_warps: waves in a workgroup.
        waves_m: of these, how many share the tile's rows out; the others have other columns.
    """

    fused: bool
    block_m: int
    block_n: int
    chunk_k: int
    split_k: int = 1
    num_warps: int = 4
    waves_m: int = 1

    def __post_init__(self) -> None:
        waves_n = self.num_warps // self.waves_m
        sizes = (self.block_m, self.block_n, self.chunk_k, self.num_warps, self.waves_m)
        if any(size < 1 or size & (size - 1) for size in sizes):
            raise ValueError(f"sizes of {self} must be powers of two")
        if self.waves_m * waves_n != self.num_warps or (self.fused and self.waves_m != 1):
            raise ValueError(f"waves of {self} cannot be laid out")
        if self.block_m < 16 * self.waves_m or self.block_n < 32 * waves_n or self.chunk_k < 256:
            raise ValueError(f"{self} leaves a wave less than 16 rows, 32 columns and K = 256")

    @property
    def kernel(self) -> str:
        """Which one multiplies."""
        return "fused" if self.fused else "gemm"

    def tiles(self, m: int, n: int) -> int:
        return ceil(m / self.block_m) * ceil(n / self.block_n)


def _split(tiles: int, chunks: int, units: int) -> int:
    """As many splits as still have a compute unit each.

    They are of equal length, since others have to mask their loads, unless those are half as long.
    """
    most = max(1, min(chunks, LARGEST_SPLIT, units // max(tiles, 1)))
    equal = max(split for split in range(1, most + 1) if chunks % split == 0)
    longest = ceil(chunks / most)
    return equal if chunks // equal < 2 * longest else ceil(chunks / longest)


def _with_split(plan: Plan, m: int, n: int, k: int, units: int) -> Plan:
    split = _split(plan.tiles(m, n), max(1, ceil(k / plan.chunk_k)), units)
    return replace(plan, split_k=split)


def _chunk(k: int) -> int:
    return 512 if k > 256 else 256


def _columns(n: int) -> tuple[int, int]:
    """(block_n, num_warps) with 32 columns a wave."""
    waves = 4 if n > 64 else 2 if n > 32 else 1
    return 32 * waves, waves


def fused_plan(m: int, n: int, k: int, units: int = COMPUTE_UNITS) -> Plan:
    """Tiles as wide as leave work for every SIMD, since each quantises its activations anew."""
    block_m = 16 if m <= 16 or m * n <= 32 * 128 * units else 32
    block_n, num_warps = _columns(n)
    plan = Plan(True, block_m, block_n, _chunk(k), num_warps=num_warps)
    wide = replace(plan, block_n=2 * block_n)
    if n >= 256 and (k > 2 * wide.chunk_k or plan.tiles(m, n) * num_warps > 4 * units):
        plan = wide
    return _with_split(plan, m, n, k, units)


def gemm_plan(m: int, n: int, k: int, units: int = COMPUTE_UNITS) -> Plan:
    """64 x 64 a wave where that leaves work for every second SIMD; smaller tiles otherwise."""
    square = Plan(False, 128, 128, 256, waves_m=2)
    flat = Plan(False, 64, 256, 256)
    for wide in (square, flat):  # a square tile reads less
        fits = m >= wide.block_m and n >= wide.block_n
        if fits and wide.tiles(m, n) * wide.num_warps >= 2 * units:
            return wide
    block_m = 16 if m <= 16 else 32 if m <= 32 else 64
    block_n, num_warps = _columns(n)
    return _with_split(Plan(False, block_m, block_n, 256, num_warps=num_warps), m, n, k, units)


def grouped_plan(m: int, n: int, k: int, experts: int, units: int = COMPUTE_UNITS) -> Plan:
    """As for one of the experts, if each had as many rows and as much of the GPU as the next."""
    experts = max(experts, 1)
    plan = fused_plan(ceil(m / experts), n, k, ceil(units / experts))
    return replace(plan, split_k=1)


def table() -> dict[tuple[int, int, int], Plan]:
    """The plans of the table, by (M, N, K)."""
    return lookup.plans("gfx950", Plan)


def can_run(plan: Plan, shuffled: bool) -> bool:
    """Shuffled scales of activations come in groups of 32 rows."""
    return plan.fused or not shuffled or plan.block_m >= 32 * plan.waves_m


def found_plan(op: str, m: int, n: int, k: int, shuffled: bool, target: Target) -> Found[Plan]:
    """For `quant_mm` or `mm`: from the table or by rule. `mm` takes a table's plans that quantise
    in a pass of their own, which it lacks."""
    quantised = op == "mm"
    by_rule = fused_plan if m <= FUSED_ROWS and not quantised else gemm_plan
    return lookup.find(
        target, m, n, k, Plan,
        rule=by_rule(m, n, k, target.compute_units),
        can_run=lambda plan: not plan.fused if quantised else can_run(plan, shuffled),
    )  # fmt: skip


def quant_mm_plan(m: int, n: int, k: int, shuffled: bool = False, target: Target = WHOLE) -> Plan:
    return found_plan("quant_mm", m, n, k, shuffled, target).plan


def mm_plan(m: int, n: int, k: int, target: Target = WHOLE) -> Plan:
    return found_plan("mm", m, n, k, False, target).plan
