"""What llvm-mca's model of gfx950 says about straight code of one wave."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable
from functools import cache

from .assembly import Instruction

_PROGRAMS = ("llvm-mca", *(f"llvm-mca-{version}" for version in (23, 22, 21)))
_NOT_MODELLED = ("branch", "barrier")  # a barrier counts as 500 cycles


@cache
def program() -> str | None:
    """An llvm-mca that knows gfx950."""
    for name in _PROGRAMS:
        if shutil.which(name) and _run(name, "s_nop 0\n", 1) is not None:
            return name
    return None


def cycles(instructions: Iterable[Instruction], loop: bool) -> float | None:
    """Issue slots that the code takes, of four clocks each; in a loop, those of one iteration."""
    name = program()
    if name is None:
        return None
    text = "".join(f"{i.text}\n" for i in instructions if i.kind not in _NOT_MODELLED)
    iterations = 100 if loop else 1
    total = _run(name, text, iterations)
    return None if total is None else total / iterations


def _run(name: str, text: str, iterations: int) -> int | None:
    command = [name, "-mtriple=amdgcn-amd-amdhsa", "-mcpu=gfx950", f"-iterations={iterations}"]
    run = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    found = re.search(r"^Total Cycles:\s+(\d+)", run.stdout, re.M)
    return int(found[1]) if found and run.returncode == 0 else None
