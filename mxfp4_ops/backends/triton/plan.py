"""What the portable kernels' launches look like for a problem's sizes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from ...formats import BLOCK
from ...tuning import lookup
from ...tuning.lookup import Found
from ..devices import Target

FUSED_ROWS = 64
"""Up to so many rows each program quantises the activations it needs; above, one pass does."""

LARGEST_SPLIT = 16
STEPS_PER_SPLIT = 4
"""So few steps along K, at least, are worth the partial sums that a split writes and reads."""


def power_of_two(value: int, lowest: int, highest: int) -> int:
    """The smallest power of two that is not below `value`, within limits."""
    return min(highest, max(lowest, 1 << max(value - 1, 0).bit_length()))


def splits_of_k(idle: int, steps: int, least: int) -> int:
    """One for each of `idle` programs, but of `least` steps along K at least, and no empty ones."""
    split = max(1, min(idle, steps // least, LARGEST_SPLIT))
    # No more than what is left once each has as many steps as the first.
    return ceil(steps / ceil(steps / split)) if steps else 1


@dataclass(frozen=True)
class ProductPlan:
    """How a product is divided.

    Attributes:
        block_m, block_n: a program's tile of the result.
        blocks: blocks of 32 that a program takes in one step along K.
        split_k: programs that share the sums of one tile, each with its part of K.
        fused: whether each program quantises the activations it needs; otherwise one pass does.
    """

    block_m: int
    block_n: int
    blocks: int
    split_k: int = 1
    num_warps: int = 4
    num_stages: int = 3
    fused: bool = True

    def __post_init__(self) -> None:
        sizes = (self.block_m, self.block_n, self.blocks, self.num_warps)
        if any(size < 1 or size & (size - 1) for size in sizes):
            raise ValueError(f"sizes of {self} must be powers of two")
        if self.block_m < 16 or self.block_n < 16 or self.split_k < 1 or self.num_stages < 1:
            raise ValueError(f"{self} is too small")

    @property
    def tile(self) -> dict[str, int]:
        """What a program takes, as the kernels' constants."""
        return {"BLOCK_M": self.block_m, "BLOCK_N": self.block_n, "BLOCKS": self.blocks}

    @property
    def options(self) -> dict[str, int]:
        """For Triton's compiler."""
        return {"num_warps": self.num_warps, "num_stages": self.num_stages}

    @property
    def kernel(self) -> str:
        """Which one multiplies."""
        return "fused" if self.fused else "gemm"

    def tiles(self, m: int, n: int) -> int:
        return ceil(m / self.block_m) * ceil(n / self.block_n)

    def blocks_per_split(self, k: int) -> int:
        """Whole steps for all splits but the last ones."""
        return ceil(k / (BLOCK * self.blocks * self.split_k)) * self.blocks


def product_plan(m: int, n: int, k: int, compute_units: int) -> ProductPlan:
    """The largest tiles that give every compute unit one, and splits of K where there are none."""
    block_m = power_of_two(m, 16, 64)
    block_n = power_of_two(n, 32, 128)
    while block_n > 32 and ceil(m / block_m) * ceil(n / block_n) < compute_units:
        block_n //= 2
    # Either each warp has blocks of its own, or all share the tile of one.
    blocks = min(8, 8192 // (block_m * block_n))
    blocks = blocks if blocks >= 4 else 1
    num_warps = 8 if block_m * block_n > 4096 else 4
    fused = m <= FUSED_ROWS
    plan = ProductPlan(block_m, block_n, blocks, num_warps=num_warps, fused=fused)

    steps = ceil(k / (BLOCK * blocks))
    idle = compute_units // max(plan.tiles(m, n), 1)
    return replace(plan, split_k=splits_of_k(idle, steps, STEPS_PER_SPLIT))


def found_plan(op: str, m: int, n: int, k: int, target: Target) -> Found[ProductPlan]:
    """For `quant_mm` or `mm`: from the table or by rule. `mm` takes a table's plans that quantise
    in a pass of their own, which it lacks."""
    rule = product_plan(m, n, k, target.compute_units)
    if op == "mm":
        rule = replace(rule, fused=False)
    return lookup.find(
        target, m, n, k, ProductPlan,
        rule=rule,
        can_run=lambda plan: op == "quant_mm" or not plan.fused,
    )  # fmt: skip


@dataclass(frozen=True)
class RowsPlan:
    """The rows and blocks of 32 that a program converts."""

    rows: int
    blocks: int
    num_warps: int = 4


def rows_plan(k: int, neighbours_in_k: bool) -> RowsPlan:
    """2048 elements, wide where neighbours along K are neighbours in memory."""
    blocks = power_of_two(k // BLOCK, 1, 8) if neighbours_in_k else 1
    return RowsPlan(64 // blocks, blocks)


# Triton's interpreter takes about as long for a large tile as for a small one.

LARGEST_TENSOR = 1 << 20
"""Elements that Triton allows a tensor to have."""


def interpreted_product_plan(m: int, n: int, k: int) -> ProductPlan:
    block_m, block_n = power_of_two(m, 16, 128), power_of_two(n, 32, 512)
    blocks = power_of_two(k // BLOCK, 1, min(64, LARGEST_TENSOR // (block_m * block_n)))
    return ProductPlan(block_m, block_n, blocks, fused=m <= FUSED_ROWS)


def interpreted_rows_plan(k: int) -> RowsPlan:
    blocks = power_of_two(k // BLOCK, 1, 64)
    return RowsPlan(4096 // blocks, blocks)
