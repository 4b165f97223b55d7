"""The NEON kernels against the scalar ones, bit for bit, cross-compiled and under emulation."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
HERE = Path(__file__).parent
SOURCES = HERE.parent / "csrc_stubs"

pytestmark = [
    pytest.mark.skipif(shutil.which(tool) is None, reason=f"there is no {tool}")
    for tool in (COMPILER, EMULATOR)
]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("neon") / "equal_kernels"
    sources = [HERE / "cpp" / "equal_kernels.cpp", SOURCES / "isa.cpp", *SOURCES.glob("isa_*.cpp")]
    flags = ["-O1", "-std=c++17", "-ffp-contract=off", "-static", f"-I{SOURCES}"]
    subprocess.run([COMPILER, *flags, *map(str, sources), "-o", str(built)], check=True)
    return built


def emulate(program: Path, processor: str) -> subprocess.CompletedProcess[str]:
    command = [EMULATOR, "-cpu", processor, str(program)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_equal_to_scalar(program: Path) -> None:
    run = emulate(program, "max")
    assert (run.stdout, run.returncode) == ("scalar neon_dotprod\n", 0), run.stdout


def test_left_out_where_the_processor_has_no_dot_product(program: Path) -> None:
    assert emulate(program, "cortex-a53").stdout == "scalar\n"
