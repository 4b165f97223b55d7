"""That the instructions in the emulator's tests are real: LLVM's assembler takes them."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ASSEMBLER = next(filter(None, map(shutil.which, ("llvm-mc-22", "llvm-mc-23", "llvm-mc-21"))), None)
MODULES = ("conversions", "floats", "lanes", "lds", "matrix", "memory", "scalar", "vector")
INSTRUCTION = re.compile(r"(?:[vs]|ds|buffer|global)_\w+ .*")


def instructions(module: str) -> list[str]:
    """The lines in a module's strings that look like instructions; f-strings left out."""
    source = Path(__file__).with_name(f"test_emulator_{module}.py").read_text()
    nodes = list(ast.walk(ast.parse(source)))
    parts = {id(part) for n in nodes if isinstance(n, ast.JoinedStr) for part in n.values}
    lines = [
        line.strip()
        for n in nodes
        if isinstance(n, ast.Constant) and isinstance(n.value, str) and id(n) not in parts
        for line in n.value.splitlines()
    ]
    return [line for line in lines if INSTRUCTION.fullmatch(line)]


@pytest.mark.skipif(ASSEMBLER is None, reason="llvm-mc of LLVM 21 or later is not installed")
@pytest.mark.parametrize("module", MODULES)
def test_the_assembler_takes_them(module: str) -> None:
    lines = instructions(module)
    assert len(lines) > 5
    command = [str(ASSEMBLER), "-triple=amdgcn-amd-amdhsa", "-mcpu=gfx950", "-filetype=null"]
    done = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
