"""`mxfp4-ops info`, for people and for programs."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import mxfp4_ops
from mxfp4_ops import cli
from mxfp4_ops.backends import REGISTRY, cpu
from mxfp4_ops.formats import SCALE_MODES


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
    assert "cannot be used" not in text
    assert "CPU tensors run on the reference" not in text


def test_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    rocm = SimpleNamespace(name="AMD Instinct", gcnArchName="gfx950:sramecc+", major=9, minor=5)
    cuda = SimpleNamespace(name="NVIDIA H200", major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", [rocm, cuda].__getitem__)
    first, *gpus = info()["devices"]
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


def test_forced_backend() -> None:
    assert info()["forced_backend"] is None
    found = json.loads(run_module("info", "--json", MXFP4_OPS_BACKEND="reference"))
    assert found["forced_backend"] == "reference"


def test_forced_backend_that_does_not_exist() -> None:
    text = run_module("info", MXFP4_OPS_BACKEND="abacus", COLUMNS="200")
    assert "every call runs on 'abacus' or fails" in text
    assert "no usable backend 'abacus'" in text


def test_without_a_command_it_explains_itself() -> None:
    result = CliRunner().invoke(cli.app, [])
    assert "Usage: " in result.output
    assert "info" in result.output
