"""What people install: the source archive, the wheel built from it, and the package without C++."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import mxfp4_ops

ROOT = Path(__file__).parent.parent
PARTS = (
    *("mxfp4_ops", "csrc_stubs", "setup.py", "pyproject.toml"),
    *("MANIFEST.in", "README.md", "LICENSE"),
)

compiler = shutil.which((sysconfig.get_config_var("CXX") or "c++").split()[0])
needs_compiler = pytest.mark.skipif(compiler is None, reason="there is no C++ compiler")


def python(*arguments: str | Path, cwd: Path, **environment: str) -> str:
    """Output of `python ARGUMENTS`."""
    command = [sys.executable, *map(str, arguments)]
    env = os.environ | environment
    run = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def backends_of(installed: Path) -> dict[str, dict[str, object]]:
    """What `mxfp4-ops info` says of the package in the folder `installed`."""
    command = ("-m", "mxfp4_ops", "info", "--json")
    found = json.loads(python(*command, cwd=installed, PYTHONPATH=str(installed)))
    return {status["name"]: status for status in found["backends"]}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A copy of the sources without anything that was built from them."""
    copy = tmp_path / "source"
    for part in map(ROOT.joinpath, PARTS):
        if part.is_dir():
            ignored = shutil.ignore_patterns("*.so", "__pycache__")
            shutil.copytree(part, copy / part.name, ignore=ignored)
        else:
            shutil.copy(part, copy / part.name)
    return copy


@pytest.fixture
def archive(source: Path, tmp_path: Path) -> Path:
    # Without the extension its sources are in the archive only if MANIFEST.in names them.
    command = ("-m", "build", "--sdist", "--no-isolation", "--outdir", tmp_path)
    python(*command, cwd=source, MXFP4_BUILD_CPP="0")
    return tmp_path / f"mxfp4_ops-{mxfp4_ops.__version__}.tar.gz"


@needs_compiler
def test_wheel_from_source_archive(archive: Path, tmp_path: Path) -> None:
    command = ("-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", archive)
    python(*command, cwd=tmp_path, MXFP4_BUILD_CPP="1")
    (wheel,) = tmp_path.glob("*.whl")
    assert "-cp311-abi3-" in wheel.name

    names = zipfile.ZipFile(wheel).namelist()
    assert {"mxfp4_ops/py.typed", "mxfp4_ops/backends/cpu.py"} <= set(names)
    assert any(name.startswith("mxfp4_ops/_cpu") for name in names)
    assert any(name.startswith("mxfp4_ops/_schema") for name in names)
    assert not [name for name in names if name.startswith(("tests/", "csrc_stubs/", "examples/"))]

    installed = tmp_path / "installed"
    zipfile.ZipFile(wheel).extractall(installed)
    cpu = backends_of(installed)["cpu"]
    assert cpu["available"], cpu["reason"]


def test_install_without_cpp(source: Path, tmp_path: Path) -> None:
    installed = tmp_path / "installed"
    command = ("-m", "pip", "install", "--no-deps", "--no-build-isolation", "--no-index")
    python(*command, "--target", installed, source, cwd=tmp_path, MXFP4_BUILD_CPP="0")
    assert not list(installed.rglob("*.so"))

    backends = backends_of(installed)
    assert not backends["cpu"]["available"]
    assert "MXFP4_BUILD_CPP=1" in str(backends["cpu"]["reason"])
    assert backends["reference"]["available"]

    product = """
import torch, mxfp4_ops
w = mxfp4_ops.quantize(torch.eye(32))
print(mxfp4_ops.quant_mm(torch.full((1, 32), 1.5), *w).tolist())
"""
    printed = python("-c", product, cwd=tmp_path, PYTHONPATH=str(installed))
    assert json.loads(printed) == [[1.5] * 32]
