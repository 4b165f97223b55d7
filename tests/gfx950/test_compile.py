"""That launches are compiled as they would be on a GPU, and what comes with the code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

triton = pytest.importorskip("triton", reason="triton is not installed")

import triton.language as tl  # noqa: E402
from triton import knobs  # noqa: E402
from triton.experimental import gluon  # noqa: E402
from triton.experimental.gluon import language as gl  # noqa: E402

from benchmarks.gfx950.compile import Compiled, compile_launch  # noqa: E402
from benchmarks.gfx950.record import recorded  # noqa: E402
from mxfp4_ops.backends.triton.launch import Launch  # noqa: E402

if knobs.runtime.interpret:
    pytest.skip("with TRITON_INTERPRET, kernels are not compiled", allow_module_level=True)

# Of Triton 3.9: that the default of a later release will be another one.
pytestmark = pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")

LAYOUT = gl.BlockedLayout([1], [64], [2], [0])
both_forms = pytest.mark.parametrize("specialised", [False, True], ids=["plain", "specialised"])


@triton.jit
def add_bias(X, Y, BIAS, n, stride, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(X + i * stride, mask=i < n)
    if BIAS is not None:
        x += tl.load(BIAS + i, mask=i < n)
    tl.store(Y + i * stride, x, mask=i < n)


@gluon.jit
def gluon_copy(X, Y, BIAS, n, stride, BLOCK: gl.constexpr, L: gl.constexpr):
    i = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=L)
    gl.store(Y + i * stride, gl.load(X + i * stride, mask=i < n), mask=i < n)


@triton.jit
def row_sum(X, Y, BLOCK: tl.constexpr, TWICE: tl.constexpr):
    total = tl.sum(tl.load(X + tl.arange(0, BLOCK)))
    tl.store(Y, total * 2 if TWICE else total)


@triton.jit
def long_index(X, i: tl.int64):
    tl.store(X + i, 1.0)


@triton.jit
def broken(X):
    tl.store(X, X.no_such_attribute)


def launch(
    kernel: Any = add_bias,
    x: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    n: int = 1024,
    stride: int = 1,
    **options: int,
) -> Launch:
    x = torch.empty(1024) if x is None else x
    constants = {"BLOCK": 512} | ({"L": LAYOUT} if kernel is gluon_copy else {})
    arguments = {"X": x, "Y": torch.empty_like(x), "BIAS": bias, "n": n, "stride": stride}
    return Launch(kernel, (2, 1, 1), arguments, constants, {"num_warps": 2} | options)


@both_forms
def test_types_that_a_kernel_asks_for(specialised: bool) -> None:
    wanted = Launch(long_index, (1, 1, 1), {"X": torch.empty(2), "i": 1})
    compiled = compile_launch(wanted, specialised)
    assert compiled.assembly.arguments[1].size == 8
    assert compiled.arguments[1] == 1


def memory_instructions(compiled: Compiled) -> set[str]:
    return {i.mnemonic for i in compiled.assembly.instructions if i.kind == "vmem"}


@both_forms
@pytest.mark.parametrize("kernel", [add_bias, gluon_copy], ids=["triton", "gluon"])
def test_arguments_fit_the_table(kernel: Any, specialised: bool) -> None:
    wanted = launch(kernel)
    compiled = compile_launch(wanted, specialised)
    x, y, n = (wanted.arguments[name] for name in ("X", "Y", "n"))
    # A stride of 1 and an absent bias are part of the code.
    expected = [x, y, n] if specialised else [x, y, n, 1]
    assert all(a is e for a, e in zip(compiled.arguments, expected, strict=False))
    assert all(a is None for a in compiled.arguments[len(expected) :])
    for place, value in zip(compiled.assembly.arguments, compiled.arguments, strict=True):
        assert place.pointer is not isinstance(value, int)
        assert place.size == (8 if place.pointer else 4)
    assert compiled.name == compiled.assembly.name == kernel.__name__
    assert compiled.num_warps == 2
    assert compiled.vgprs > 0
    assert compiled.spills == compiled.scratch_bytes == compiled.lds_bytes == 0


@both_forms
def test_bias(specialised: bool) -> None:
    bias = torch.empty(1024)
    compiled = compile_launch(launch(bias=bias), specialised)
    assert compiled.arguments[2] is bias
    assert compiled.amdgcn != compile_launch(launch(), specialised).amdgcn


@both_forms
@pytest.mark.parametrize(
    ("dtype", "loaded"),
    [
        (torch.bfloat16, "ushort"),
        (torch.float16, "ushort"),
        (torch.float32, "dword"),
        (torch.uint8, "ubyte"),
        (torch.int32, "dword"),
    ],
    ids=str,
)
def test_types(dtype: torch.dtype, loaded: str, specialised: bool) -> None:
    x = torch.empty(1000, dtype=dtype)
    compiled = compile_launch(launch(x=x, stride=3), specialised)
    assert {m for m in memory_instructions(compiled) if m.endswith(f"load_{loaded}")}


def same_code(specialised: bool, a: Launch, b: Launch) -> bool:
    one, other = (compile_launch(wanted, specialised).amdgcn for wanted in (a, b))
    return one == other


@pytest.mark.parametrize(
    "change",
    [
        lambda: launch(n=1000),
        lambda: launch(x=torch.empty(1025)[1:]),
        lambda: launch(stride=2),
    ],
    ids=["not divisible by 16", "unaligned pointer", "not 1"],
)
def test_specialised_on_values(change: Callable[[], Launch]) -> None:
    assert not same_code(True, launch(), change())
    assert same_code(False, launch(), change())


def test_specialised_on_sizes() -> None:
    """Below 2 GiB, offsets of 32 bits reach all of a tensor, so that buffer instructions do."""
    assert {m.split("_")[0] for m in memory_instructions(compile_launch(launch(), True))} == {
        "buffer"
    }
    for large in (
        compile_launch(launch(x=torch.empty(1 << 31, dtype=torch.uint8)), True),
        compile_launch(launch(), False),
    ):
        assert not any(m.startswith("buffer") for m in memory_instructions(large))


def test_options() -> None:
    arguments = {"X": torch.empty(1024), "Y": torch.empty(1)}
    for warps in (1, 8):
        constants = {"BLOCK": 1024, "TWICE": False}
        wanted = Launch(row_sum, (1, 1, 1), arguments, constants, {"num_warps": warps})
        compiled = compile_launch(wanted, specialised=True)
        assert compiled.num_warps == warps
        assert compiled.assembly.metadata["max_flat_workgroup_size"] == 64 * warps
        assert (compiled.lds_bytes > 0) is (warps > 1)  # waves exchange their sums there


def test_heuristics() -> None:
    """What `triton.heuristics` adds is a constant like others."""
    kernel = triton.heuristics({"TWICE": lambda args: args["BLOCK"] > 64})(row_sum)
    arguments = {"X": torch.empty(1024), "Y": torch.empty(1)}
    for block, twice in ((64, False), (128, True)):
        found = compile_launch(Launch(kernel, (1, 1, 1), arguments, {"BLOCK": block}), True)
        constants = {"BLOCK": block, "TWICE": twice}
        expected = compile_launch(Launch(row_sum, (1, 1, 1), arguments, constants), True)
        assert found.amdgcn == expected.amdgcn


@both_forms
def test_the_driver_stays(specialised: bool) -> None:
    config = triton.runtime.driver
    before = config._active
    compile_launch(launch(), specialised)
    assert config._active is before
    with pytest.raises(triton.CompilationError):
        compile_launch(Launch(broken, (1, 1, 1), {"X": torch.empty(1)}), specialised)
    assert config._active is before


def test_only_what_is_compiled() -> None:
    with pytest.raises(TypeError, match="is not compiled"):
        compile_launch(Launch(len, (1, 1, 1), {}), specialised=True)


def test_recorded() -> None:
    x, y = torch.empty(1024), torch.empty(1024)
    with recorded() as launches:
        assert triton.runtime.driver.active.get_current_target().arch == "gfx950"
        add_bias[lambda values: (values["n"] // values["BLOCK"],)](
            x, y, None, 1024, stride=1, BLOCK=512, num_warps=2
        )
        add_bias[(3, 4)](x, y, y, n=7, stride=2, BLOCK=64)
    first, second = launches
    assert (first.kernel, first.grid) == (add_bias, (2, 1, 1))
    assert first.arguments == {"X": x, "Y": y, "BIAS": None, "n": 1024, "stride": 1}
    assert (first.constants, first.options) == ({"BLOCK": 512}, {"num_warps": 2})
    assert (second.grid, second.arguments["BIAS"], second.options) == ((3, 4, 1), y, {})
    assert same_code(True, first, launch())
