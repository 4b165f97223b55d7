"""The scripts in examples/, loaded as modules or run as their users run them."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parent.parent / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def run(name: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(FOLDER / f"{name}.py"), *map(str, arguments)]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(sys.path),  # the package under test, wherever it is
        "OMP_NUM_THREADS": "1",  # the cores are shared with other tests
    }
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
