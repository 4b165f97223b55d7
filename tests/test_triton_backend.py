"""When the backend `triton` is taken, refused or missing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace

import pytest
import torch
from common import random_codes

import mxfp4_ops
from mxfp4_ops.backends import REGISTRY, Call, cpu, devices, forced_backend, select, triton
from mxfp4_ops.backends.triton import BACKEND, interpreted

needs_triton = pytest.mark.skipif(
    BACKEND.unavailable() is not None, reason=f"no Triton: {BACKEND.unavailable()}"
)
INTERPRETED = BACKEND.unavailable() is None and interpreted()

ON_CPU = Call("quant_mm", torch.device("cpu"), torch.bfloat16, 4, 24, 96)


def forget() -> None:
    """Nothing is remembered of this machine and what is installed."""
    for function in (*vars(devices).values(), *vars(triton).values()):
        if hasattr(function, "cache_clear"):
            function.cache_clear()


@pytest.fixture
def another_machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """To pretend things with."""
    forget()
    yield monkeypatch
    monkeypatch.undo()
    forget()


def pretend_gpu(patch: pytest.MonkeyPatch, name: str) -> None:
    """Every GPU is a `sm_..` or a `gfx...`."""
    properties = SimpleNamespace(gcnArchName=name, major=9, minor=0, multi_processor_count=100)
    if name.startswith("sm_"):
        properties = SimpleNamespace(
            major=int(name[3:-1]), minor=int(name[-1]), multi_processor_count=100
        )
    patch.setattr(torch.version, "hip", "7.0" if name.startswith("gfx") else None)
    patch.setattr(torch.cuda, "get_device_properties", lambda device: properties)


def python(code: str, **environment: str) -> str:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("MXFP4_OPS_", "TRITON_"))}
    clean["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env=clean | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


USE = """
import sys, torch, mxfp4_ops
w = mxfp4_ops.quantize(torch.eye(32))
print(mxfp4_ops.quant_mm(torch.full((1, 32), 1.5), *w).unique().tolist())
"""


def test_it_is_preferred_to_the_reference_only() -> None:
    names = list(REGISTRY)
    assert names.index("cpu") < names.index("triton") < names.index("reference")


def test_kernels_are_not_loaded_without_need() -> None:
    """Torch may have imported Triton by itself, but decorating kernels takes its time as well."""
    loaded = "print([m for m in sys.modules if m.endswith(('.gemm', '.portable'))])"
    assert python(USE + loaded).splitlines() == ["[1.5]", "[]"]


def test_everything_else_works_without_triton() -> None:
    missing = "import sys; sys.modules['triton'] = None\n"
    shown = python(
        missing + USE + "print(mxfp4_ops.backends()[1])\n"
        "with mxfp4_ops.use_backend('reference'): print(mxfp4_ops.quantize(torch.ones(32))[1])\n"
    ).splitlines()
    assert shown[0] == "[1.5]"
    assert "name='triton', available=False" in shown[1]
    assert "pip install triton" in shown[1]


@pytest.mark.parametrize("version", ["2.1.0", "3.5.1", "3.5.1+rocm7.1"])
def test_an_old_triton(another_machine: pytest.MonkeyPatch, version: str) -> None:
    old = ModuleType("triton")
    old.__version__ = version  # type: ignore[attr-defined]
    another_machine.setitem(sys.modules, "triton", old)
    reason = BACKEND.unavailable()
    assert reason is not None
    assert version in reason
    assert triton.OLDEST in reason
    with pytest.raises(RuntimeError, match=r"3\.6 or newer"):
        mxfp4_ops.use_backend("triton").__enter__()


@pytest.mark.parametrize("version", ["3.6.0", "3.7.1+rocm7.2.git5cbc6ee", "3.10.0"])
def test_a_triton_that_will_do(another_machine: pytest.MonkeyPatch, version: str) -> None:
    new = ModuleType("triton")
    new.__version__ = version  # type: ignore[attr-defined]
    another_machine.setitem(sys.modules, "triton", new)
    assert BACKEND.unavailable() is None


@needs_triton
@pytest.mark.skipif(INTERPRETED, reason="with TRITON_INTERPRET it does take them")
@pytest.mark.parametrize("op", ["quant_mm", "mm", "quantize", "dequantize"])
def test_tensors_on_the_cpu_are_refused(op: str) -> None:
    codes, scales = random_codes(24, 96)
    arguments = {
        "quant_mm": (torch.ones(4, 96), codes, scales),
        "mm": (codes, scales, codes, scales),
        "quantize": (torch.ones(4, 96),),
        "dequantize": (codes, scales),
    }[op]
    with (
        mxfp4_ops.use_backend("triton"),
        pytest.raises(RuntimeError, match=r"'triton'.*TRITON_INTERPRET=1"),
    ):
        getattr(torch.ops.mxfp4, op)(*arguments)


@needs_triton
def test_the_interpreter_takes_them_when_asked_for_by_environment() -> None:
    traced = (
        "from mxfp4_ops.backends.triton.launch import Launch\n"
        "run = Launch.run\n"
        "Launch.run = lambda self: (print(self.kernel.__name__), run(self))\n"
    )
    code = USE.replace("w = ", traced + "w = ")
    shown = python(code, TRITON_INTERPRET="1", MXFP4_OPS_BACKEND="triton").splitlines()
    assert shown == ["mxfp4_quantize", "mxfp4_gemm", "[1.5]"]
    assert python(code, TRITON_INTERPRET="1").splitlines() == ["[1.5]"]


@pytest.mark.skipif(forced_backend() is not None, reason="MXFP4_OPS_BACKEND leaves no choice")
def test_the_cpu_is_never_served_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "_unavailable", "it is not built")
    monkeypatch.setattr(triton, "interpreted", lambda: True)
    assert select(ON_CPU, None).name == "reference"


@needs_triton
def test_other_devices_are_refused() -> None:
    refusal = BACKEND.refuses(Call("quantize", torch.device("mps"), torch.float32, 1, 0, 32))
    assert refusal is not None
    assert "mps" in refusal


NVIDIA = ["sm_80", "sm_86", "sm_90", "sm_100", "sm_120"]
AMD = ["gfx908", "gfx90a:sramecc+:xnack-", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1201"]
TOO_OLD = ["sm_61", "sm_75", "gfx803", "gfx900", "gfx906:sramecc+:xnack-", "gfx90c"]


@pytest.mark.parametrize("name", [*NVIDIA, *AMD, *TOO_OLD])
def test_architectures(another_machine: pytest.MonkeyPatch, name: str) -> None:
    pretend_gpu(another_machine, name)
    call = Call("quant_mm", torch.device("cuda", 0), torch.bfloat16, 4, 24, 96)
    refusal = BACKEND.refuses(call)
    assert (refusal is None) == (name not in TOO_OLD)
    assert refusal is None or name.split(":")[0] in refusal


@needs_triton
def test_the_detail_names_the_version() -> None:
    import triton as installed

    assert installed.__version__ in BACKEND.detail()
    assert ("interpreted" in BACKEND.detail()) == INTERPRETED
