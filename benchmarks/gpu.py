"""`quant_mm` on a GPU beside other libraries and the time in which its memory can be read.

    python -m benchmarks.gpu --json gpu.json --plot gpu.png

Weights are rotated through several times the cache. "graph" is the time of a call in a replayed
CUDA graph of many; "flushed" that of a single call after the cache was overwritten, launches by the
host included, as leaderboards time it.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import date
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

from .gpu_peers import BASELINE, PEERS
from .machine import WEIGHT_BITS
from .measure import TOLERANCE

SHAPES = "8192x8192,8192x28672,14336x4096,2112x7168,4096x4096,7168x2048,2880x512,4096x512"
ROWS = "1,4,16,32,64,128,512,1024,4096"
ROUNDS = 7
GRAPH_MILLISECONDS = 10
COPIED = 1 << 31
"""Bytes that are copied to measure the bandwidth of memory."""


@dataclass(frozen=True)
class GpuRow:
    """One product by one implementation.

    Attributes:
        graph, flushed: microseconds.
        error: relative (Frobenius), against float64.
    """

    name: str
    m: int
    n: int
    k: int
    graph: float
    flushed: float
    error: float


def _milliseconds(call: Callable[[], Any]) -> float:
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop)


def graph_time(calls: list[Callable[[], Any]]) -> float:
    """Microseconds of one call among many in a graph."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    once = _milliseconds(lambda: [call() for call in calls])
    repeats = max(1, min(24 // len(calls), int(GRAPH_MILLISECONDS / once)))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls * repeats:
            call()
    graph.replay()
    times = [_milliseconds(graph.replay) for _ in range(ROUNDS)]
    return statistics.median(times) * 1e3 / (repeats * len(calls))


def flushed_time(calls: list[Callable[[], Any]]) -> float:
    """Microseconds of a call that finds nothing in the cache."""
    flush = torch.empty(4 * cache_bytes(), dtype=torch.uint8, device="cuda")
    times = []
    for i in range(2 * ROUNDS):
        flush.zero_()
        times.append(_milliseconds(calls[i % len(calls)]))
    return statistics.median(times[ROUNDS:]) * 1e3


def cache_bytes() -> int:
    size: int = torch.cuda.get_device_properties(0).L2_cache_size
    return size


def bandwidth() -> float:
    """Bytes a second that a copy reads and writes."""
    source = torch.empty(COPIED, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    times = [_milliseconds(lambda: target.copy_(source)) for _ in range(ROUNDS + 3)]
    return 2 * COPIED / (statistics.median(times[3:]) * 1e-3)


class Activations(StrEnum):
    """What x is: products may take longer where block scales differ much within a row.

    Attributes:
        normal: normal numbers.
        gated: such numbers times others' SiLU, and blocks of 32 features of log-normal size.
        outlier: normal numbers, but for a single one, of 1000.
    """

    normal = "normal"
    gated = "gated"
    outlier = "outlier"

    def make(self, m: int, k: int) -> Tensor:
        x = torch.randn(m, k, device="cuda")
        if self is Activations.gated:
            sizes = torch.randn(k // 32, device="cuda").exp().repeat_interleave(32)
            x *= torch.nn.functional.silu(torch.randn(m, k, device="cuda")) * sizes
        elif self is Activations.outlier:
            x[0, 0] = 1000
        return x.bfloat16()


def random_weight(n: int, k: int) -> tuple[Tensor, Tensor]:
    """Quantised from normal numbers, as trained weights roughly are."""
    import mxfp4_ops

    return mxfp4_ops.quantize(torch.randn(n, k, dtype=torch.bfloat16, device="cuda"))


def measure(name: str, x: Tensor, weights: list[tuple[Tensor, Tensor]]) -> GpuRow:
    """Check and time one implementation."""
    import mxfp4_ops

    (m, k), n = x.shape, len(weights[0][0])
    # As many copies as are a few times the cache in this implementation's own format.
    bits = 16 if PEERS[name].weights == "bfloat16" else WEIGHT_BITS
    copies = min(len(weights), 2 + int(4 * cache_bytes() // (n * k * bits / 8)))
    calls = PEERS[name].bind(weights[:copies], x)
    rows = min(m, 64)
    a = x[:rows].double()
    if PEERS[name].activations.startswith("quantised"):
        a = mxfp4_ops.dequantize(*mxfp4_ops.quantize(x[:rows]), dtype=torch.float32).double()
    got, exact = calls[0]()[:rows], []
    for codes, scales in zip(*(t.split(2048) for t in weights[0]), strict=True):
        w = mxfp4_ops.dequantize(codes, scales, dtype=torch.float32).double()
        exact.append(a @ w.T)
    wanted = torch.cat(exact, 1)
    error = ((got.double() - wanted).norm() / wanted.norm()).item()
    if not error < TOLERANCE:
        raise ValueError(f"{name} does not compute the product: its relative error is {error:.2g}")
    return GpuRow(name, m, n, k, graph_time(calls), flushed_time(calls), error)


def versions() -> dict[str, str]:
    found = {}
    for package in ("torch", "triton", "gemlite"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def driver() -> str:
    from subprocess import run

    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    try:
        return run(query, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, ValueError):
        return "unknown"


def table(rows: list[GpuRow], n: int, k: int, read: float) -> Table:
    """Microseconds in a graph, and how many times as fast as the baseline."""
    own = [row for row in rows if (row.n, row.k) == (n, k)]
    sizes = list(dict.fromkeys(row.m for row in own))
    floor = n * k * WEIGHT_BITS / 8 / read * 1e6
    made = Table(title=f"N = {n}, K = {k}: microseconds in a graph (weight read in {floor:.1f})")
    made.add_column("")
    for m in sizes:
        made.add_column(f"M = {m}", justify="right")
    baseline = {row.m: row.graph for row in own if row.name == BASELINE}
    for name in dict.fromkeys(row.name for row in own):
        times = {row.m: row.graph for row in own if row.name == name}
        cells = []
        for m in sizes:
            ratio = f" ({baseline[m] / times[m]:.2f}x)" if m in baseline and m in times else ""
            cells.append(f"{times[m]:.1f}{ratio}" if m in times else "-")
        made.add_row(name, *cells)
    return made


def main(
    shapes: Annotated[str, typer.Option(help="N x K of weights, with commas between.")] = SHAPES,
    m: Annotated[str, typer.Option("--m", help="Rows, with commas between.")] = ROWS,
    peers: Annotated[str, typer.Option(help="Implementations, with commas between.")] = ",".join(
        PEERS
    ),
    activations: Annotated[
        Activations, typer.Option(help="How block scales of x differ within its rows.")
    ] = Activations.normal,
    json_: Annotated[Path | None, typer.Option("--json", help="Where to save figures.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Where to save the plot.")] = None,
) -> None:
    """Measure products on the first GPU."""
    console = Console()
    if not torch.cuda.is_available():
        console.print("There is no GPU here that torch can use, so there is nothing to measure.")
        raise typer.Exit(1)
    names = [name for name in peers.split(",") if name]
    if unknown := [name for name in names if name not in PEERS]:
        raise typer.BadParameter(f"there is no {unknown[0]!r} among {', '.join(PEERS)}")
    notes = [f"{name}: {reason}" for name in names if (reason := PEERS[name].missing())]
    names = [name for name in names if PEERS[name].missing() is None]
    torch.manual_seed(0)
    read = bandwidth()
    rows: list[GpuRow] = []
    report: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(0),
        "driver": driver(),
        "date": date.today().isoformat(),
        "versions": versions(),
        "activations": activations.value,
        "copy_bytes_per_second": read,
        "notes": notes,
    }
    weights_of = [tuple(map(int, text.split("x"))) for text in shapes.split(",")]
    with torch.inference_mode():
        for n, k in track(weights_of, "Measuring", console=console, transient=True):
            copies = 2 + int(4 * cache_bytes() // (n * k * WEIGHT_BITS / 8))
            weights = [random_weight(n, k) for _ in range(min(copies, 64))]
            for size in map(int, m.split(",")):
                x = activations.make(size, k)
                for name in names:
                    try:
                        rows.append(measure(name, x, weights))
                    except Exception as error:  # whatever another library raises
                        notes.append(f"{name}, M={size} N={n} K={k}: {str(error)[:200]}")
            del weights
            torch.cuda.empty_cache()
            console.print(table(rows, n, k, read))
            report["rows"] = [asdict(row) for row in rows]
            if json_ is not None:  # after each weight, so that nothing is lost
                json_.parent.mkdir(parents=True, exist_ok=True)
                json_.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    for note in notes:
        console.print(note, soft_wrap=True)
    if plot is not None:
        from .gpu_plot import draw

        draw(report, plot)


if __name__ == "__main__":
    typer.run(main)
