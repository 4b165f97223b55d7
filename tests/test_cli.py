"""`mxfp4-ops info`, for people and for programs."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import mxfp4_ops
from mxfp4_ops import cli, explain
from mxfp4_ops.backends import REGISTRY, Call, cpu, decide, triton
from mxfp4_ops.backends.devices import Target
from mxfp4_ops.formats import SCALE_MODES
from mxfp4_ops.tuning import lookup

needs_triton = pytest.mark.skipif(
    triton.BACKEND.unavailable() is not None or triton.interpreted(),
    reason="Triton is not installed, or it interprets",
)


@pytest.fixture(autouse=True)
def automatic_choice() -> Iterator[None]:
    with mxfp4_ops.use_backend(None):
        yield


def invoke(*arguments: str) -> str:
    # Wide enough that no cell of a table is wrapped.
    result = CliRunner().invoke(cli.app, arguments, env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.stdout


def info() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(invoke("info", "--json"))
    return found


def run_module(*arguments: str, **environment: str) -> str:
    command = [sys.executable, "-m", "mxfp4_ops", *arguments]
    env = os.environ | environment
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout


def test_json_names_the_versions() -> None:
    found = info()
    assert found["mxfp4_ops"] == mxfp4_ops.__version__
    assert found["torch"] == torch.__version__
    assert found["python"] == platform.python_version()
    assert found["scale_modes"] == list(SCALE_MODES)


def test_json_lists_the_backends() -> None:
    found = info()["backends"]
    assert found == [vars(status) for status in mxfp4_ops.backends()]
    assert [status["name"] for status in found] == list(REGISTRY)


def test_json_knows_the_instruction_sets() -> None:
    found = info()
    assert found["cpu_isas"] == cpu.isas()
    assert found["cpu_isa"] == cpu.isa()


def test_text_shows_every_backend_and_version() -> None:
    text = invoke("info")
    for expected in (
        *REGISTRY,
        *SCALE_MODES,
        *cpu.isas(),
        mxfp4_ops.__version__,
        torch.__version__,
    ):
        assert expected in text
    for status in mxfp4_ops.backends():
        assert (status.reason or status.detail) in text


def test_text_says_how_to_get_the_cpp_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "_unavailable", "it is not built; build [it] with 'make kernels'")
    lines = invoke("info").splitlines()
    assert "cpu cannot be used: it is not built; build [it] with 'make kernels'" in lines
    assert "CPU tensors run on the reference" in lines[-1]


def test_nothing_to_remark_on_where_all_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "_unavailable", None)
    text = invoke("info")
    assert "cpu cannot be used" not in text
    assert "CPU tensors run on the reference" not in text


def test_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    rocm = SimpleNamespace(name="AMD Instinct", gcnArchName="gfx950:sramecc+", major=9, minor=5)
    cuda = SimpleNamespace(name="NVIDIA H200", major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", [rocm, cuda].__getitem__)
    targets = {"cuda:0": Target("gfx950", 256), "cuda:1": Target("sm_90", 132)}
    monkeypatch.setattr(explain, "gpus", lambda: targets)
    found = info()
    (ours,) = (table for table in found["tables"] if table["arch"] == "gfx950")
    assert ours["serves"] == ["cuda:0"]
    first, *gpus = found["devices"]
    assert first["name"] == "cpu"
    assert gpus == [
        {"name": "cuda:0", "kind": "AMD Instinct, gfx950:sramecc+"},
        {"name": "cuda:1", "kind": "NVIDIA H200, sm_90"},
    ]


def test_triton_by_whatever_name_it_was_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"pytorch-triton-rocm": "3.7.1"}
    found = {"triton": list(versions)}
    monkeypatch.setattr(metadata, "packages_distributions", lambda: found)
    monkeypatch.setattr(metadata, "version", versions.__getitem__)
    assert info()["triton"] == "3.7.1"
    found.clear()
    assert info()["triton"] is None


def test_works_without_triton() -> None:
    code = "import sys; sys.modules['triton'] = None; from mxfp4_ops.cli import app; app()"
    command = [sys.executable, "-c", code, "info", "--json", "--explain", "4", "24", "96"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    (status,) = (status for status in found["backends"] if status["name"] == "triton")
    assert not status["available"]
    assert "pip install triton" in status["reason"]
    assert found["decisions"][0]["backend"] in ("cpu", "reference")


def test_forced_backend() -> None:
    assert info()["forced_backend"] is None
    found = json.loads(run_module("info", "--json", MXFP4_OPS_BACKEND="reference"))
    assert found["forced_backend"] == "reference"


def test_forced_backend_that_does_not_exist() -> None:
    text = run_module("info", MXFP4_OPS_BACKEND="abacus", COLUMNS="200")
    assert "every call runs on 'abacus' or fails" in text
    assert "no usable backend 'abacus'" in text


def test_text_shows_which_table_serves() -> None:
    text = invoke("info")
    for arch in lookup.architectures():
        assert f"{arch}.json" in text


def test_a_malformed_table_is_remarked_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "directory", str(tmp_path))
    tmp_path.joinpath("sm_123.json").write_text("{}")
    assert "'architecture' must be 'sm_123'" in invoke("info")


def test_explain() -> None:
    """Every device here, with the backend that runs it."""
    (first, *_) = json.loads(invoke("info", "--json", "--explain", "4", "24", "96"))["decisions"]
    expected = decide(Call("quant_mm", torch.device("cpu"), torch.bfloat16, 4, 24, 96), None)
    assert (first["device"], first["backend"]) == ("cpu", expected.backend)
    assert "M=4 N=24 K=96" in invoke("info", "--explain", "4", "24", "96")


@needs_triton
def test_explain_another_gpu() -> None:
    arguments = ("--explain", "16", "2112", "7168", "--arch", "gfx950", "--shuffled")
    (found,) = json.loads(invoke("info", "--json", *arguments))["decisions"]
    target = Target("gfx950", 256)
    call = Call("quant_mm", torch.device("cuda"), torch.bfloat16, 16, 2112, 7168, True, target)
    work = decide(call, None).work
    assert (found["plan"], found["kernels"]) == (asdict(work.plan), list(work.kernels))
    text = " ".join(invoke("info", *arguments).split())
    assert f"split_k={work.plan.split_k}" in text
    assert "gfx950, 256 compute units" in text
    for name, reason in found["passed_over"].items():
        assert f"not {name} {reason}" in text
    smaller = invoke("info", *arguments, "--compute-units", "32")
    assert "is for 256 compute units" in " ".join(smaller.split())


def test_explain_for_a_backend_that_cannot() -> None:
    text = run_module("info", "--explain", "4", "24", "96", MXFP4_OPS_BACKEND="aiter")
    assert "none (backend 'aiter' was asked for" in text


@pytest.mark.parametrize(
    "arguments",
    [
        ("--explain", "4", "24", "33"),
        ("--arch", "gfx950"),
        ("--shuffled",),
        ("--explain", "4", "24", "96", "--arch", "gfx12345"),
    ],
    ids=" ".join,
)
def test_what_cannot_be_explained(arguments: tuple[str, ...]) -> None:
    result = CliRunner().invoke(cli.app, ("info", *arguments))
    assert result.exit_code == 2
    assert result.stdout == ""


def test_without_a_command_it_explains_itself() -> None:
    result = CliRunner().invoke(cli.app, [])
    assert "Usage: " in result.output
    assert "info" in result.output
