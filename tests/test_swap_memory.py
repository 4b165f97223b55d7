"""`swap_linear` frees each float weight as it goes: its peak is one layer's, not the model's."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

MIB = 1 << 20
LAYERS, SIZE = 24, 2048
LAYER_MIB = SIZE * SIZE * 4 / MIB

# Measures, in MiB above what is resident at the start, the peak of converting one layer and then of
# swapping all of them. One conversion goes before, because the first of everything allocates more.
SCRIPT = f"""
import json, sys, torch
from mxfp4_ops import Mxfp4Linear, swap_linear

def status(key):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith(key))

def peak(action):
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    before = status("VmRSS")
    action()
    return status("VmHWM") - before

torch.set_num_threads(1)
layers = [torch.nn.Linear({SIZE}, {SIZE}, bias=False) for _ in range({LAYERS})]
model = torch.nn.Sequential(*layers)
held = [layer.weight for layer in layers] if sys.argv[1] == "held" else []
del layers
Mxfp4Linear.from_linear(model[0])
one = peak(lambda: Mxfp4Linear.from_linear(model[0]))
every = peak(lambda: swap_linear(model, progress=False))
print(json.dumps([one, every]))
"""


def _why_not_measurable() -> str | None:
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        with open("/proc/self/status") as file:
            if "VmHWM" not in file.read():
                return "/proc/self/status shows no VmHWM"
    except OSError as error:
        return f"the peak memory cannot be reset: {error}"
    return None


@pytest.fixture(scope="module")
def _measurable() -> None:
    reason = _why_not_measurable()
    if reason is not None:
        pytest.skip(reason)


def measure(weights: str) -> tuple[float, float]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, weights], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    one, every = json.loads(done.stdout)
    return one, every


@pytest.mark.usefixtures("_measurable")
def test_peak_grows_by_one_layer() -> None:
    one, every = measure("freed")
    assert every <= one + LAYER_MIB


@pytest.mark.usefixtures("_measurable")
def test_the_measure_sees_weights_that_are_kept() -> None:
    """If something outside holds the float weights, all codes come on top of them."""
    one, every = measure("held")
    assert every > one + LAYER_MIB
