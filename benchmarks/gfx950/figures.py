"""What the machine code of a product comes to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, prod

from mxfp4_ops.backends.triton.launch import Launch

from . import mca
from .assembly import Assembly
from .compile import compile_launch
from .walk import executed

SIMDS = 1024
"""256 compute units of 4: so many waves issue at a time."""

LDS = 160 << 10
"""Bytes of a compute unit."""

_LDS_GRANULE = 1280
_VGPRS, _VGPR_GRANULE = 512, 8
_MOST_WAVES = 8
_TILE_NAMES = ("BLOCK_{}", "BLOCK_SIZE_{}", "TILE_{}", "B{}")

Shape = tuple[int, int, int]
"""M, N, K."""


def waves_per_simd(vgprs: int, lds: int, warps: int) -> float:
    """Of whole workgroups that fit on a compute unit at a time."""
    granules = ceil(max(vgprs, 1) / _VGPR_GRANULE) * _VGPR_GRANULE
    workgroups = 4 * min(_MOST_WAVES, _VGPRS // granules) // warps
    if lds:
        workgroups = min(workgroups, LDS // (ceil(lds / _LDS_GRANULE) * _LDS_GRANULE))
    return workgroups * warps / 4


@dataclass(frozen=True)
class Kernel:
    """One launch.

    Attributes:
        tile: rows and columns of the result that a workgroup computes, where it multiplies.
        loop: whether the main part is a loop; otherwise it is all of the kernel.
        main: instructions of the main part by class.
        executed: instructions of the wave that executes the most.
        all_executed: instructions of all waves of the launch.
        mca_cycles: of the main part, one wave by itself.
    """

    name: str
    tile: tuple[int, int] | None
    workgroups: int
    warps: int
    loop: bool
    main: dict[str, int]
    executed: int
    all_executed: int
    vgprs: int
    waves_per_simd: float
    lds_bytes: int
    scratch_bytes: int
    spills: int
    mca_cycles: float | None

    @property
    def rounds(self) -> int:
        """In which the waves fit onto the GPU, one for each SIMD."""
        return ceil(self.workgroups * self.warps / SIMDS)


@dataclass(frozen=True)
class Product:
    """The launches that make one product."""

    name: str
    shape: Shape
    kernels: tuple[Kernel, ...]

    @property
    def per_tile(self) -> float | None:
        """Instructions of all waves for 1,024 multiply-adds of the tiles, in the kernel that
        multiplies. Rows beyond M do not count as multiplied, columns beyond N do."""
        for kernel in self.kernels:
            if kernel.tile is not None:
                m, n, k = self.shape
                rows, columns = kernel.tile
                padded = min(rows, m) * ceil(m / rows) * columns * ceil(n / columns) * k
                return kernel.all_executed / (padded / 1024)
        return None

    @property
    def per_product(self) -> float:
        """Instructions of all waves of all kernels for 1,024 of the M * N * K multiply-adds."""
        return sum(kernel.all_executed for kernel in self.kernels) / (prod(self.shape) / 1024)

    @property
    def instructions_times_rounds(self) -> int:
        """Of one wave, and those of its kernel; of all kernels together."""
        return sum(kernel.executed * kernel.rounds for kernel in self.kernels)

    @property
    def figures(self) -> dict[str, float | None]:
        return {
            "per_tile": self.per_tile,
            "per_product": self.per_product,
            "instructions_times_rounds": self.instructions_times_rounds,
        }


def tile_of(launch: Launch) -> tuple[int, int] | None:
    """By the usual names of its constants."""
    for name in _TILE_NAMES:
        rows, columns = (launch.constants.get(name.format(axis)) for axis in "MN")
        if rows and columns:
            return rows, columns
    return None


@lru_cache(maxsize=512)
def _cycles(text: str) -> float | None:
    assembly = Assembly.parse(text)
    return mca.cycles((assembly.instructions[i] for i in assembly.main), assembly.has_loop)


def measure(launch: Launch, run_mca: bool = True) -> Kernel:
    """Compile a launch, specialised as one on a GPU is, and count."""
    compiled = compile_launch(launch, specialised=True)
    assembly = compiled.assembly
    counts = executed(assembly, compiled.arguments, launch.grid)
    main = Counter(assembly.instructions[i].kind for i in assembly.main)
    return Kernel(
        name=launch.kernel.__name__,
        tile=tile_of(launch) if main["mfma"] else None,
        workgroups=prod(launch.grid),
        warps=compiled.num_warps,
        loop=assembly.has_loop,
        main=dict(main),
        executed=counts.wave,
        all_executed=counts.workgroups * compiled.num_warps,
        vgprs=compiled.vgprs,
        waves_per_simd=waves_per_simd(
            assembly.descriptor["next_free_vgpr"], compiled.lds_bytes, compiled.num_warps
        ),
        lds_bytes=compiled.lds_bytes,
        scratch_bytes=compiled.scratch_bytes,
        spills=compiled.spills,
        mca_cycles=_cycles(compiled.amdgcn) if run_mca else None,
    )


def product(name: str, shape: Shape, launches: Sequence[Launch], run_mca: bool = True) -> Product:
    return Product(name, shape, tuple(measure(launch, run_mca) for launch in launches))
