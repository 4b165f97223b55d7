"""The peak of a process's memory, where Linux shows it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def _status(key: str) -> float:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith(f"{key}:"))


def peak(action: Callable[[], object]) -> float:
    """Of running `action`, in MiB above what is resident before."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # forget earlier peaks
    before = _status("VmRSS")
    kept = action()  # what it gives is part of the peak
    highest = _status("VmHWM")
    del kept
    return highest - before


def _why_not_measurable() -> str | None:
    try:
        peak(lambda: None)
    except StopIteration:
        return "/proc/self/status shows no VmHWM"
    except OSError as error:
        return f"the peak memory cannot be reset: {error}"
    return None


_reason = _why_not_measurable()
needs_peak = pytest.mark.skipif(_reason is not None, reason=_reason or "it can be measured")


def printed(script: str, *arguments: str | Path, **environment: str) -> Any:
    """What a script, which may import `peak` from here, prints as JSON in a process of its own."""
    paths = filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH")))
    env = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(
        command, env=env | environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
