"""Loading needs the packed size and one tensor; converting, one file of the result and a tensor."""

from __future__ import annotations

from pathlib import Path

import torch
from checkpoint_files import write
from peak_memory import needs_peak, printed

MIB = 1 << 20
LAYERS, SIZE = 32, 1024
SHARD_MIB = 2
FLOAT_MIB = SIZE * SIZE * 4 / MIB
PACKED_MIB = SIZE * SIZE * 17 / 32 / MIB

# Measures the peak, in MiB above what is resident at the start. A small checkpoint goes before,
# because the first of everything allocates more.
SCRIPT = f"""
import sys, torch
from pathlib import Path
from mxfp4_ops import checkpoint
from peak_memory import peak
from torch import nn

def model(layers, size):
    with torch.device("meta"):
        return nn.Sequential(*(nn.Linear(size, size, bias=False) for _ in range(layers)))

def result(name):
    return folder / (name + "-ours")

def convert(name, layers, size):
    options = dict(model=model(layers, size), shard_bytes={SHARD_MIB * MIB}, progress=False)
    return lambda: checkpoint.convert(folder / name, result(name), **options)

def load(name, layers, size):
    built = model(layers, size)
    return lambda: (checkpoint.load(built, result(name), progress=False), built)

torch.set_num_threads(1)
action, folder = globals()[sys.argv[1]], Path(sys.argv[2])
action("small", 2, 64)()
print(peak(action("large", {LAYERS}, {SIZE})))
"""


def measure(action: str, folder: Path) -> float:
    # What has been freed goes back to the system, and does not count.
    peak: float = printed(SCRIPT, action, folder, MALLOC_MMAP_THRESHOLD_="65536")
    return peak


@needs_peak
def test_peaks(tmp_path: Path) -> None:
    write(tmp_path / "small", {f"{i}.weight": torch.randn(64, 64) for i in range(2)})
    weight = torch.randn(SIZE, SIZE)
    write(tmp_path / "large", {f"{i}.weight": weight + i for i in range(LAYERS)})
    converting, loading = measure("convert", tmp_path), measure("load", tmp_path)
    slack = 4
    assert LAYERS * PACKED_MIB <= loading <= (LAYERS + 1) * PACKED_MIB + slack
    # The tensor that is read is in memory twice: as a page of the file and as what is worked on.
    assert converting <= SHARD_MIB + 2 * FLOAT_MIB + slack
