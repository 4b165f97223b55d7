"""The library that defines the operators where there is no Python to do it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import mxfp4_ops
from mxfp4_ops.schema import NAMESPACE, SCHEMAS

LIBRARY = next(Path(mxfp4_ops.__file__).parent.glob("_schema*.so"), None)

pytestmark = pytest.mark.skipif(LIBRARY is None, reason="the C++ libraries are not built")

# Prints what is defined in the namespace.
SHOW = """
import torch
for schema in torch._C._jit_get_all_schemas():
    if schema.name.startswith("mxfp4::"):
        print(schema)
"""


def python(code: str) -> list[str]:
    """The lines that `code` prints in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_it_defines_what_python_defines() -> None:
    lines = python(f"import torch; torch.ops.load_library({str(LIBRARY)!r})\n{SHOW}")
    defined = {str(torch._C.parse_schema(line)) for line in lines}
    expected = {str(torch._C.parse_schema(f"{NAMESPACE}::{s}")) for s in SCHEMAS.values()}
    assert defined == expected
    assert len(lines) == len(SCHEMAS)


def test_beside_python_it_changes_nothing() -> None:
    """Where Python has defined the operators, loading it is harmless, even twice."""
    load = f"torch.ops.load_library({str(LIBRARY)!r})\n" * 2
    product = "print(mxfp4_ops.quant_mm(torch.ones(1, 32), *mxfp4_ops.quantize(torch.ones(1, 32))))"
    alone = python(f"import torch, mxfp4_ops\n{product}\n{SHOW}")
    assert python(f"import torch, mxfp4_ops\n{load}{product}\n{SHOW}") == alone
    assert len(alone) == 1 + len(SCHEMAS)
