"""The kernels for NVIDIA's GPUs, compiled for some that are not there."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

triton = pytest.importorskip("triton", reason="Triton is not installed")
if triton.knobs.runtime.interpret:
    pytest.skip("with TRITON_INTERPRET, kernels are not compiled", allow_module_level=True)

from triton.backends.compiler import GPUTarget  # noqa: E402

from benchmarks.gfx950.compile import driver_of  # noqa: E402
from mxfp4_ops.backends.devices import Target  # noqa: E402
from mxfp4_ops.backends.triton import nvidia  # noqa: E402
from mxfp4_ops.backends.triton.launch import Launch  # noqa: E402
from mxfp4_ops.backends.triton.nvidia.plan import (  # noqa: E402
    INTEGER_TILES,
    WIDE_TILES,
    Plan,
    Tile,
)
from mxfp4_ops.layout import shuffled_shapes  # noqa: E402

# Of Triton 3.9: that the default of a later release will be another one.
pytestmark = pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")

UNITS = {80: 108, 89: 128, 90: 132, 100: 148, 120: 170}
SHARED = {80: 163, 89: 99, 90: 227, 100: 227, 120: 99}
"""KiB that a program can have."""

every_gpu = pytest.mark.parametrize("capability", UNITS)


def meta(*shape: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def compiled(capability: int, launch: Launch) -> Any:
    target = GPUTarget("cuda", capability, 32)
    with driver_of(str(capability)):
        triton.runtime.driver.active.target = target
        values = {**launch.arguments, **launch.constants, **launch.options}
        kernel = launch.kernel.run(grid=launch.grid, warmup=True, **values)
    assert kernel.metadata.target == target
    assert kernel.metadata.shared <= SHARED[capability] << 10
    return kernel


@every_gpu
@pytest.mark.parametrize(
    ("m", "n", "k", "dtype", "shuffled"),
    [
        (1, 8192, 8192, torch.bfloat16, False),
        (16, 2112, 7168, torch.float16, True),
        (200, 2880, 2880, torch.float32, False),
        (200, 2880, 2880, torch.float16, True),
    ],
)
def test_products_use_the_matrix_units(
    monkeypatch: pytest.MonkeyPatch,
    capability: int,
    m: int,
    n: int,
    k: int,
    dtype: torch.dtype,
    shuffled: bool,
) -> None:
    gpu = Target(f"sm_{capability}", UNITS[capability])
    monkeypatch.setattr(nvidia, "target", lambda device: gpu)
    codes, scales = shuffled_shapes(n, k) if shuffled else ((n, k // 2), (n, k // 32))
    n = codes[0]
    out, bias = meta(m, n, dtype=dtype), meta(n, dtype=dtype)
    launches = nvidia.quant_mm(
        meta(m, k, dtype=dtype), meta(*codes), meta(*scales), bias, out, shuffled, "even"
    )
    prepare, product, *_ = launches
    hopper = capability >= 90
    assert prepare.options.get("launch_pdl", False) == hopper
    ptx = compiled(capability, prepare).asm["ptx"]
    assert ("griddepcontrol.launch_dependents" in ptx) == hopper

    kernel = compiled(capability, product)
    ptx = kernel.asm["ptx"]
    assert ("griddepcontrol.wait" in ptx) == hopper
    if capability == 90 and m > 16:
        # Codes become 8-bit floats by bits alone, and an instruction multiplies a block.
        assert re.search(r"lop3\.b32 [^;]*0x0E0E0E0E, 0xE4", ptx)
        assert re.search(r"wgmma\.mma_async\.\S*\.m64n\d+k32\.f32\.e5m2\.e5m2", ptx)
        # Both are copied tile by tile, unless the weight is shuffled.
        tiles = {x.group() for x in re.finditer(r"cp\.async\.bulk\.tensor[^;]*\[%rd\d+,", ptx)}
        sources = {tile.rsplit("[", 1)[1] for tile in tiles}
        assert len(sources) == (1 if shuffled else 2)
        words = re.search(r"cp\.async\.cg\.shared\.global \[[^]]+\], \[[^]]+\], 0x10", ptx)
        assert bool(words) == shuffled
    else:
        # Codes become bfloat16 by bits and one multiplication, for two at a time.
        assert re.search(r"lop3\.b32 [^;]*0x01C001C0, 0xE4", ptx)
        assert ("mul.rn.bf16x2" in ptx) == hopper
        assert ("fma.rn.bf16x2" in ptx) == (not hopper)
        assert "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" in ptx
        # 16 bytes of codes at a time.
        assert re.search(r"ld\.global\.v4\.b32", ptx)


@pytest.mark.parametrize("tile", WIDE_TILES, ids=str)
def test_wide_tiles_fit(monkeypatch: pytest.MonkeyPatch, tile: Tile) -> None:
    """Into shared memory, two of the smaller ones, with sums of a split and with results."""
    monkeypatch.setattr(nvidia, "target", lambda device: Target("sm_90", 132))
    m, n, k = 256, 256, 1024
    x, out = (meta(m, size, dtype=torch.bfloat16) for size in (k, n))
    weight = meta(n, k // 2), meta(n, k // 32)
    for split_k in (1, 2):
        launches = nvidia.quant_mm(x, *weight, None, out, False, "even", tile.plan(split_k))
        kernel = compiled(90, launches[1])
        assert kernel.metadata.shared <= (227 << 10) * tile.block_n // 128
        ptx = kernel.asm["ptx"]
        assert f".maxnreg {tile.plan(1).registers}" in ptx


@pytest.mark.parametrize("tile", INTEGER_TILES, ids=str)
def test_integer_tiles(monkeypatch: pytest.MonkeyPatch, tile: Tile) -> None:
    """They fit into shared memory, and nothing is waited for between instructions of a step.

    That is what ptxas makes of wgmma where it has too few registers anywhere in the kernel.
    """
    monkeypatch.setattr(nvidia, "target", lambda device: Target("sm_90", 132))
    n = 256
    for m, k, split_k in ((300, 1024, 1), (100, 1024, 2), (300, 16384, 1)):
        x, out = (meta(m, size, dtype=torch.bfloat16) for size in (k, n))
        weight = meta(n, k // 2), meta(n, k // 32)
        launches = nvidia.quant_mm(x, *weight, None, out, False, "even", tile.plan(split_k))
        assert launches[0].kernel.__name__ in compiled(90, launches[0]).asm["ptx"]
        kernel = compiled(90, launches[1])
        assert kernel.metadata.shared <= (227 << 10) * tile.block_n // 128
        ptx = kernel.asm["ptx"]
        assert re.search(r"wgmma\.mma_async\.\S*\.m64n\d+k32\.s32\.s8\.s8", ptx)
        order = re.findall(r"\bIGMMA\b|\bWARPGROUP\.DEPBAR\b", kernel.asm["sass"])
        runs = re.findall("I+", "".join(word[0] for word in order))
        assert runs
        assert {len(run) for run in runs} == {4 * tile.block_m // min(tile.block_m, 128)}


def test_partial_sums_of_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are of some rows at a time, in the same memory."""
    monkeypatch.setattr(nvidia, "target", lambda device: Target("sm_90", 132))
    m, n, k = 20001, 8192, 28672
    x, out = (meta(m, size, dtype=torch.bfloat16) for size in (k, n))
    bias = meta(n, dtype=torch.bfloat16)
    plan = Plan(128, 64, 4, stages=4, split_k=4, wide=True)
    launches = nvidia.quant_mm(x, meta(n, k // 2), meta(n, k // 32), bias, out, False, "even", plan)
    parts = [launches[i : i + 3] for i in range(0, len(launches), 3)]
    rows = 0
    for prepare, product, reduce in parts:
        names = [launch.kernel.__name__ for launch in (prepare, product, reduce)]
        assert names == ["mxfp4_prepare_wide", "mxfp4_gemm_wide", "mxfp4_reduce"]
        part = reduce.arguments["out"]
        assert part.storage_offset() == rows * n
        assert product.arguments["a"].storage_offset() == rows * k
        assert product.arguments["out"] is reduce.arguments["partials"]
        assert product.arguments["out"].numel() <= nvidia.MOST_PARTIAL_SUMS
        assert product.arguments["out"].shape[1:] == part.shape
        assert "bias" not in product.arguments
        rows += len(part)
    assert rows == m
    assert len(parts) > 1


@pytest.mark.parametrize(("m", "n", "k"), [(0, 14336, 4096), (40, 0, 64), (40, 64, 0), (0, 64, 0)])
def test_nothing_to_multiply(monkeypatch: pytest.MonkeyPatch, m: int, n: int, k: int) -> None:
    """No descriptor of a tensor without elements, and zeros where K is 0."""
    monkeypatch.setattr(nvidia, "target", lambda device: Target("sm_90", 132))
    x, out = meta(m, k, dtype=torch.bfloat16), meta(m, n, dtype=torch.bfloat16)
    launches = nvidia.quant_mm(x, meta(n, k // 2), meta(n, k // 32), None, out, False, "even")
    for launch in launches:
        assert launch.kernel.__name__ in compiled(90, launch).asm["ptx"]
    assert bool(launches) == (m * n > 0)


def test_codes_of_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia, "target", lambda device: Target("sm_90", 132))
    m, n, k = 40, 96, 160
    left = meta(m, k // 2), meta(m, k // 32)
    right = meta(n, k // 2), meta(n, k // 32)
    out = meta(m, n, dtype=torch.float32)
    plan = Plan(32, 64, 4, stages=4, split_k=2, wide=True)
    names = []
    for launch in nvidia.mm(*left, *right, None, out, False, plan):
        assert launch.kernel.__name__ in compiled(90, launch).asm["ptx"]
        names.append(launch.kernel.__name__)
    assert names == ["mxfp4_prepare_wide", "mxfp4_gemm_wide", "mxfp4_reduce"]
