"""`MXFP4_OPS_BACKEND` and `MXFP4_OPS_CPU_ISA`, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from common import CPU_PATHS, needs_cpu_kernels

# Prints what the reference runs.
TRACED = """
import os, threading, torch, mxfp4_ops
from mxfp4_ops.backends import cpu, forced_backend, reference
for name, f in list(reference.OPERATORS.items()):
    reference.OPERATORS[name] = lambda *a, name=name, f=f: (print("reference", name), f(*a))[1]
def quantize():
    torch.ops.mxfp4.quantize(torch.ones(32))
"""


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("MXFP4_OPS_")}
    clean["PYTHONPATH"] = os.pathsep.join(sys.path)  # the package under test, not the one in "."
    return subprocess.run(
        [sys.executable, "-P", "-c", TRACED + code],
        env=clean | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_it_forces_every_thread_and_is_read_once() -> None:
    done = python(
        "os.environ['MXFP4_OPS_BACKEND'] = 'cpu'\n"
        "print(forced_backend())\n"
        "quantize()\n"
        "thread = threading.Thread(target=quantize); thread.start(); thread.join()\n",
        MXFP4_OPS_BACKEND="reference",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n") == ["reference", "reference quantize", "reference quantize", ""]


@pytest.mark.parametrize("value", ["", None])
def test_without_it_the_choice_is_automatic(value: str | None) -> None:
    environment = {} if value is None else {"MXFP4_OPS_BACKEND": value}
    done = python("print(forced_backend()); quantize()", **environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ("None\n" if CPU_PATHS else "None\nreference quantize\n")


def test_use_backend_goes_before_it() -> None:
    done = python(
        "with mxfp4_ops.use_backend(None):\n"
        "    print(forced_backend())\n"
        "    quantize()\n"
        "print('after')\n"
        "quantize()\n",
        MXFP4_OPS_BACKEND="reference",
    )
    assert done.returncode == 0, done.stderr
    before, after = done.stdout.split("after\n")
    assert before == ("None\n" if CPU_PATHS else "None\nreference quantize\n")
    assert after == "reference quantize\n"


def test_an_unknown_name_fails_at_the_first_call() -> None:
    done = python("print('imported'); quantize(); print('not here')", MXFP4_OPS_BACKEND="nonsense")
    assert done.returncode != 0
    assert done.stdout == "imported\n"
    assert "nonsense" in done.stderr.splitlines()[-1]


@needs_cpu_kernels
def test_the_instruction_set() -> None:
    slowest = str(CPU_PATHS[0].isa)
    done = python("print(cpu.isa())", MXFP4_OPS_CPU_ISA=slowest)
    assert done.stdout.split() == [slowest], done.stderr
    done = python("", MXFP4_OPS_CPU_ISA="nonsense")
    assert done.returncode != 0
    assert "nonsense" in done.stderr.splitlines()[-1]
