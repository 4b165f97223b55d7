"""The example of tensor parallelism."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from ranks import LOOPBACK

SCRIPT = Path(__file__).parent.parent / "examples" / "tensor_parallel.py"


def run_script(*command: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | LOOPBACK | {"PYTHONPATH": os.pathsep.join(sys.path)}
    environment["CUDA_VISIBLE_DEVICES"] = ""
    return subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, check=False
    )


def number(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    assert found, text
    return float(found[1].replace(",", ""))


LAUNCHERS = {
    "by itself": (str(SCRIPT), "--ranks", "2"),
    "torchrun": ("-m", "torch.distributed.run", "--nproc-per-node", "2", str(SCRIPT)),
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_two_ranks_give_the_result_of_one_device(launcher: str) -> None:
    done = run_script(*LAUNCHERS[launcher])
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("2 ranks on cpu")
    one = number(r"on one device: ([\d,]+) bytes", done.stdout)
    assert number(r"on each rank: +([\d,]+) bytes", done.stdout) == one / 2
    assert number(r"same bits as on one device: ([\d.]+)%", done.stdout) > 99
    assert number(r"largest difference: (\S+) of", done.stdout) <= 2.0**-7


def test_ranks_must_divide_the_heads() -> None:
    spec = importlib.util.spec_from_file_location(SCRIPT.stem, SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    with pytest.raises(typer.BadParameter, match="8 heads cannot be divided among 3 ranks"):
        example.main(ranks=3)
