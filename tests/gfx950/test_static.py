"""That the figures are what they are said to be, and what machine code every shape must have."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from math import ceil
from pathlib import Path

import pytest
import torch
import typer
from common import plain_and_shuffled

triton = pytest.importorskip("triton", reason="triton is not installed")

import triton.language as tl  # noqa: E402
from triton import knobs  # noqa: E402

import mxfp4_ops  # noqa: E402
from benchmarks import gfx950_static  # noqa: E402
from benchmarks.gfx950 import figures, sources  # noqa: E402
from benchmarks.gfx950.compile import WAVE, Compiled, compile_launch  # noqa: E402
from benchmarks.gfx950.figures import Kernel, Product, Shape  # noqa: E402
from benchmarks.gfx950.walk import Wave, executed  # noqa: E402
from mxfp4_ops.backends.triton import gfx950  # noqa: E402
from mxfp4_ops.backends.triton.gfx950.plan import Plan, table  # noqa: E402
from mxfp4_ops.backends.triton.launch import Launch  # noqa: E402

from .emulator import Program  # noqa: E402
from .emulator import launch as emulate  # noqa: E402

if knobs.runtime.interpret:
    pytest.skip("with TRITON_INTERPRET, kernels are not compiled", allow_module_level=True)

# Of Triton 3.9: that the default of a later release will be another one.
pytestmark = pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")

ONE = (1, 1, 1)


@triton.jit
def dot_chunks(X, Y, K, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK, BLOCK], tl.float32)
    for k in range(0, K, BLOCK):
        x = tl.load(X + i[:, None] * K + (k + i)[None, :])
        total += tl.dot(x, x, out_dtype=tl.float32)
    tl.store(Y + i[:, None] * BLOCK + i[None, :], total)


def test_loop_of_a_compiled_kernel() -> None:
    counts = {}
    for k in (256, 512, 1024):
        x, y = torch.empty(32, k, dtype=torch.bfloat16), torch.empty(32, 32)
        compiled = compile_launch(
            Launch(dot_chunks, ONE, {"X": x, "Y": y, "K": k}, {"BLOCK": 32}, {"num_stages": 1}),
            specialised=True,
        )
        loop = len(compiled.assembly.main)
        counts[k] = executed(compiled.assembly, compiled.arguments, ONE).wave
    assert counts[512] - counts[256] == loop * 256 / 32
    assert counts[1024] - counts[512] == loop * 512 / 32


@pytest.mark.parametrize(
    ("vgprs", "lds", "warps", "waves"),
    [
        (64, 0, 4, 8),
        (65, 0, 4, 7),
        (128, 0, 4, 4),
        (129, 0, 2, 3),
        (512, 0, 4, 1),
        (256, 0, 8, 2),
        (170, 0, 8, 2),  # three waves fit on a SIMD, of which a workgroup takes two
        (64, 80 << 10, 4, 2),
        (64, (80 << 10) + 1, 4, 1),
        (64, 54000, 4, 2),  # 55,040 bytes are allocated
        (64, 160 << 10, 1, 0.25),
    ],
)
def test_waves_per_simd(vgprs: int, lds: int, warps: int, waves: float) -> None:
    assert figures.waves_per_simd(vgprs, lds, warps) == waves


def test_registers_that_are_reserved_count() -> None:
    """With `waves_per_eu`, LLVM reserves so many that no more waves than that fit."""
    arguments = {"X": torch.empty(32, 64, dtype=torch.bfloat16), "Y": torch.empty(32, 32), "K": 64}
    for waves in (1, 2, 4):
        options = {"waves_per_eu": waves}
        found = figures.measure(Launch(dot_chunks, ONE, arguments, {"BLOCK": 32}, options))
        assert found.vgprs < 128
        assert found.waves_per_simd == waves


@pytest.mark.parametrize("names", ["BLOCK_{}", "BLOCK_SIZE_{}", "TILE_{}", "B{}"])
def test_tiles(names: str) -> None:
    constants = {names.format(axis): size for axis, size in zip("MNK", (16, 128, 256), strict=True)}
    assert figures.tile_of(Launch(None, ONE, {}, constants)) == (16, 128)
    del constants[names.format("N")]
    assert figures.tile_of(Launch(None, ONE, {}, constants)) is None


KERNEL = Kernel(
    name="gemm",
    tile=(16, 128),
    workgroups=300,
    warps=4,
    loop=True,
    main={"mfma": 8},
    executed=1000,
    all_executed=300 * 4 * 1000,
    vgprs=64,
    waves_per_simd=8,
    lds_bytes=0,
    scratch_bytes=0,
    spills=0,
    mca_cycles=None,
)


def test_figures() -> None:
    """A tile has 16 rows, of which M fills 4, and the last one 64 columns beyond N."""
    reduce = replace(KERNEL, name="reduce", tile=None, executed=10, workgroups=1, all_executed=40)
    product = Product("quant_mm", (4, 448, 1024), (KERNEL, reduce))
    assert product.per_tile == 300 * 4 * 1000 / (4 * 512 * 1024 / 1024)
    assert product.per_product == (300 * 4 * 1000 + 40) / (4 * 448 * 1024 / 1024)
    assert [kernel.rounds for kernel in product.kernels] == [2, 1]
    assert product.instructions_times_rounds == 2 * 1000 + 10
    assert replace(product, shape=(20, 448, 1024)).per_tile == 1200e3 / (2 * 16 * 512)
    assert Product("reduce", (4, 448, 1024), (reduce,)).per_tile is None


@plain_and_shuffled
def test_ours(shuffled: bool) -> None:
    shape = (4, 256, 512)
    found = {
        name: figures.product(name, shape, source(*shape), run_mca=False)
        for name, source in sources.ours(shuffled).items()
    }
    planned, fused, two_passes = (p.kernels for p in found.values())
    assert planned in (fused, two_passes)
    assert {"cvt", "mfma"} <= fused[0].main.keys()
    assert fused[0].tile is not None
    quantise, multiply, *_ = two_passes
    assert (quantise.main["cvt"] > 0, quantise.tile) == (True, None)
    assert (multiply.main["mfma"] > 0, "cvt" in multiply.main) == (True, False)


PEER = """
import torch, triton, triton.language as tl

assert triton.runtime.driver.active.get_current_target().arch == "gfx950"

@triton.jit
def add_one(X, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(X + i, tl.load(X + i, mask=i < n) + 1, mask=i < n)

def multiply(m, n, k):
    if k % 64:
        raise ValueError("K is odd")
    for _ in range(2):
        add_one[triton.cdiv(m * n, 256),](torch.empty(m, n), m * n, BLOCK=256, num_warps=2)

PRODUCTS = {"adder": multiply}
"""


def test_peers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sources, "ours", lambda shuffled: {})
    peer, saved = tmp_path / "peer.py", tmp_path / "figures.json"
    peer.write_text(PEER)
    gfx950_static.main("4x96x64,4x96x32", peer=[peer], run_mca=False, json=saved)
    printed = capsys.readouterr().out
    assert "NOTE: adder is not counted for M, N, K = (4, 96, 32): K is odd" in printed
    products = {p["name"]: p for p in json.loads(saved.read_text())["products"]}
    kernels = products["adder"]["kernels"]
    assert [kernel["name"] for kernel in kernels] == ["add_one"] * 2
    for kernel in kernels:
        assert (kernel["workgroups"], kernel["warps"], kernel["tile"]) == (2, 2, None)
        assert kernel["executed"] == sum(kernel["main"].values())  # no loop, nothing left out
        assert kernel["all_executed"] == 4 * kernel["executed"]
    assert products["adder"]["instructions_times_rounds"] == 2 * kernels[0]["executed"]
    assert printed.count("add_one") == 2
    assert f" {2 * kernels[0]['executed']} " in printed


@pytest.mark.parametrize("text", ["4x96", "4x96x64x1", "axbxc", ""])
def test_bad_shapes(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="64x7168x2048"):
        gfx950_static._shapes(text)


@cache
def compiled(shape: Shape, shuffled: bool) -> list[tuple[Launch, Compiled]]:
    launches = sources.ours(shuffled)[sources.OURS](*shape)
    return [(launch, compile_launch(launch, specialised=True)) for launch in launches]


def kinds(code: Compiled) -> set[str]:
    return {instruction.kind for instruction in code.assembly.instructions}


BY_RULE = [
    (1, 4096, 14336),
    (8, 96, 160),
    (8, 8192, 6656),  # with splits of unequal length
    (48, 8192, 1024),
    (200, 5120, 5120),
    (4096, 8192, 2048),
]
"""Products that have no plan of their own."""


def every_configuration(test: Callable[[Shape, bool], None]) -> Callable[[Shape, bool], None]:
    """Each product with a plan of its own, and others, in both layouts of the weight."""
    assert not table().keys() & BY_RULE
    shapes = [pytest.param(shape, id="x".join(map(str, shape))) for shape in [*table(), *BY_RULE]]
    return pytest.mark.parametrize("shape", shapes)(plain_and_shuffled(test))


@every_configuration
def test_instructions(shape: Shape, shuffled: bool) -> None:
    """The hardware converts, and its scaled matrix instruction multiplies, in one kernel."""
    found = [code for _, code in compiled(shape, shuffled)]
    assert sum("cvt" in kinds(code) for code in found) == 1
    (product,) = (code for code in found if "mfma" in kinds(code))
    mfmas = {i.mnemonic for i in product.assembly.instructions if i.kind == "mfma"}
    assert all(name.startswith("v_mfma_scale_f32") for name in mfmas)


@every_configuration
def test_resources(shape: Shape, shuffled: bool) -> None:
    for _, code in compiled(shape, shuffled):
        assert code.spills == code.scratch_bytes == 0
        assert "scratch" not in kinds(code)
        assert code.lds_bytes <= figures.LDS
        vgprs = code.assembly.descriptor["next_free_vgpr"]
        assert figures.waves_per_simd(vgprs, code.lds_bytes, code.num_warps) >= 1


WRITTEN = {"b8": 1, "b16": 2, "b32": 4, "b64": 8, "b96": 12, "b128": 16}


@every_configuration
def test_weights_do_not_pass_through_lds(shape: Shape, shuffled: bool) -> None:
    """What a workgroup writes there are the codes and scales that it makes of activations, once."""
    for launch, code in compiled(shape, shuffled):
        executions = Wave(code.assembly, code.arguments, (0, 0, 0)).run()
        written = 0
        for i, instruction in enumerate(code.assembly.instructions):
            if instruction.kind == "lds_write":
                words = 2 if "write2" in instruction.mnemonic else 1
                width = WRITTEN[instruction.mnemonic.rsplit("_", 1)[1]]
                written += executions[i] * words * width * WAVE * code.num_warps
        if {"cvt", "mfma"} <= kinds(code):
            rows, chunk, splits = (launch.constants[name] for name in ("BM", "KC", "SPLIT"))
            # Where a chunk has fewer blocks than there are lanes, some make the same one.
            blocks = max(rows * chunk // 32, WAVE * code.num_warps)
            assert written == ceil(shape[2] / (chunk * splits)) * blocks * (16 + 1)
        else:
            assert written == code.lds_bytes == 0


@plain_and_shuffled
@pytest.mark.parametrize(
    "plan",
    [
        Plan(True, 16, 128, 256),
        Plan(True, 16, 64, 256, split_k=3, num_warps=2),
        Plan(False, 32, 64, 256, num_warps=2),
    ],
    ids=["fused", "fused-split", "two-passes"],
)
def test_executed_as_counted(plan: Plan, shuffled: bool) -> None:
    """The emulator, which has all that lanes compute, goes the same way in whole tiles."""
    m, n, k = 32, 256, 2304
    x, out = torch.zeros(m, k, dtype=torch.bfloat16), torch.zeros(m, n, dtype=torch.bfloat16)
    weight = torch.zeros(n, k // 2, dtype=torch.uint8), torch.zeros(n, k // 32, dtype=torch.uint8)
    operands = mxfp4_ops.shuffle(*weight) if shuffled else weight
    for launch in gfx950.quant_mm(x, *operands, None, out, shuffled, "even", plan):
        code = compile_launch(launch, specialised=True)
        x_last, y_last, z_last = (size - 1 for size in launch.grid)
        stats = emulate(
            Program.parse(code.amdgcn),
            launch.grid,
            list(code.arguments),
            num_warps=code.num_warps,
            lds_bytes=code.lds_bytes,
            programs=[(0, 0, 0), (x_last, y_last, z_last)],
            preload=False,
        )
        for (workgroup, _), counts in stats.waves.items():
            expected = Wave(code.assembly, code.arguments, workgroup).run()
            assert counts == [expected[i] for i in range(len(code.assembly.instructions))]
