"""Measure how fast weights become MXFP4 on the CPU, beside copying and reading the same bytes.

    python -m benchmarks.cpu_conversion

See benchmarks/README.md.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Annotated

import torch
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from torch import nn

import mxfp4_ops
from mxfp4_ops import checkpoint

RESULTS = Path(__file__).parent / "results" / "cpu_conversion.json"

SHAPE = 4096, 8192
"""Of the tensors that are quantised."""

REPEATS = 31


@dataclass(frozen=True)
class Measurement:
    """What was done beside the plain reading or copying of the same data.

    Attributes:
        seconds: median of one call.
        bytes: read and written by it.
        beside: what it is compared with, and the same two figures of that.
    """

    name: str
    seconds: float
    bytes: int
    beside: str
    beside_seconds: float
    beside_bytes: int

    @property
    def share(self) -> float:
        """Of the other's bytes per second."""
        return self.bytes / self.seconds / (self.beside_bytes / self.beside_seconds)


def _seconds(*calls: Callable[[], object], repeats: int) -> list[float]:
    """The median time of each, taking turns."""
    times: list[list[float]] = [[] for _ in calls]
    for turn in range(repeats + 1):
        for call, found in zip(calls, times, strict=True):
            start = perf_counter()
            call()
            if turn:  # the first one warms up
                found.append(perf_counter() - start)
    return [statistics.median(found) for found in times]


def quantizing(dtype: torch.dtype) -> Measurement:
    x = torch.randn(SHAPE).to(dtype)
    into = torch.empty_like(x)
    ours, copy = _seconds(
        lambda: torch.ops.mxfp4.quantize(x), lambda: into.copy_(x), repeats=REPEATS
    )
    written = x.numel() // 2 + x.numel() // 32
    name = f"quantize, {str(dtype).removeprefix('torch.')}"
    return Measurement(name, ours, x.nbytes + written, "copy", copy, 2 * x.nbytes)


def converting(megabytes: int) -> Measurement:
    """A checkpoint of linear layers in bfloat16 that lies in the page cache."""
    from safetensors.torch import save_file

    n, k = SHAPE
    layers = max(1, (megabytes << 20) // (n * k * 2))
    model = nn.Sequential(*(nn.Linear(k, n, bias=False, device="meta") for _ in range(layers)))
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "float"
        source.mkdir()
        file = source / "model.safetensors"
        save_file({f"{i}.weight": torch.randn(n, k).bfloat16() for i in range(layers)}, file)
        (source / "config.json").write_text("{}")
        made = 0
        buffer = bytearray(1 << 24)

        def read() -> None:
            with file.open("rb", buffering=0) as stream:
                while stream.readinto(buffer):
                    pass

        def convert() -> None:
            nonlocal made
            into = Path(folder) / f"mxfp4-{made}"
            made += 1
            checkpoint.convert(source, into, model=model, progress=False)

        ours, reading = _seconds(convert, read, repeats=5)
        size = os.path.getsize(file)
    return Measurement("checkpoint.convert, bfloat16", ours, size, "read", reading, size)


def measure(
    megabytes: Annotated[int, typer.Option(min=1, help="Of the checkpoint, MiB.")] = 512,
    threads: Annotated[int, typer.Option(min=1)] = torch.get_num_threads(),
    path: Annotated[Path, typer.Option("--json", help="Where to save all figures.")] = RESULTS,
) -> None:
    """Measure how fast weights become MXFP4 on the CPU."""
    torch.set_num_threads(threads)
    with torch.inference_mode():
        found = [quantizing(dtype) for dtype in (torch.bfloat16, torch.float32)]
        found.append(converting(megabytes))
    table = Table("", "ms", "GB/s", "beside", "ms", "GB/s", "share", box=SIMPLE_HEAD)
    for m in found:
        table.add_row(
            m.name,
            f"{m.seconds * 1e3:.1f}",
            f"{m.bytes / m.seconds / 1e9:.1f}",
            m.beside,
            f"{m.beside_seconds * 1e3:.1f}",
            f"{m.beside_bytes / m.beside_seconds / 1e9:.1f}",
            f"{m.share:.0%}",
        )
    Console().print(table)
    saved = {
        "threads": threads,
        "versions": {"torch": torch.__version__, "mxfp4_ops": mxfp4_ops.__version__},
        "measurements": [{**asdict(m), "share": m.share} for m in found],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(saved, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(measure)
