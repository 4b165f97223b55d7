"""What the launches on gfx950 look like for a problem's sizes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import ceil

COMPUTE_UNITS = 256
SIMDS = 4 * COMPUTE_UNITS

FUSED_ROWS = 64
"""Up to so many rows, quantising the activations again for every tile costs less than a pass of its
own, which has to be launched and waited for."""


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

    def tiles(self, m: int, n: int) -> int:
        return ceil(m / self.block_m) * ceil(n / self.block_n)


def _split(tiles: int, chunks: int) -> int:
    """The most splits of equal length with which every workgroup still has a compute unit."""
    fitting = (s for s in range(1, chunks + 1) if chunks % s == 0 and tiles * s <= COMPUTE_UNITS)
    return max(fitting, default=1)


def _with_split(plan: Plan, m: int, n: int, k: int) -> Plan:
    split = _split(plan.tiles(m, n), max(1, ceil(k / plan.chunk_k)))
    return Plan(**{**vars(plan), "split_k": split})


def _chunk(k: int) -> int:
    return 512 if k > 256 else 256


def _columns(n: int) -> tuple[int, int]:
    """(block_n, num_warps) with 32 columns a wave."""
    waves = 4 if n > 64 else 2 if n > 32 else 1
    return 32 * waves, waves


def fused_plan(m: int, n: int, k: int) -> Plan:
    """Tiles as wide as leave work for every SIMD, since each quantises its activations anew."""
    block_m = 16 if m <= 16 or m * n <= 32 * 128 * COMPUTE_UNITS else 32
    block_n, num_warps = _columns(n)
    plan = Plan(True, block_m, block_n, _chunk(k), num_warps=num_warps)
    wide = Plan(True, block_m, 2 * block_n, _chunk(k), num_warps=num_warps)
    if n >= 256 and (k > 2 * wide.chunk_k or plan.tiles(m, n) * num_warps > SIMDS):
        plan = wide
    return _with_split(plan, m, n, k)


def gemm_plan(m: int, n: int, k: int) -> Plan:
    """64 x 64 a wave, where that leaves work for every second SIMD; smaller ones otherwise."""
    block_n, num_warps = _columns(n)
    block_m = 16 if m <= 16 else 32 if m <= 32 else 64
    wide = Plan(False, block_m, 2 * block_n, 256, num_warps=num_warps)
    if block_m == 64 and n >= 256 and wide.tiles(m, n) * num_warps >= SIMDS // 2:
        return wide
    return _with_split(Plan(False, block_m, block_n, 256, num_warps=num_warps), m, n, k)


@cache
def table() -> dict[tuple[int, int, int], Plan]:
    text = files("mxfp4_ops").joinpath("tuning/configs/gfx950.json").read_text(encoding="utf-8")
    return {
        (entry["m"], entry["n"], entry["k"]): Plan(**entry["plan"])
        for entry in json.loads(text)["entries"]
    }


def quant_mm_plan(m: int, n: int, k: int) -> Plan:
    """The table's plan for exactly these sizes, or one by rule."""
    plan = table().get((m, n, k))
    return plan or (fused_plan if m <= FUSED_ROWS else gemm_plan)(m, n, k)
