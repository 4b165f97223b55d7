"""Measure `torch.ops.mxfp4.quant_mm` on the CPU beside other libraries and the machine's limits.

    python -m benchmarks.cpu --plot roofline.png

See benchmarks/README.md.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import Progress

from mxfp4_ops.backends import cpu

from . import plot
from .machine import LimitProgram, Limits, describe
from .peers import PEERS, QuantMm
from .report import LEGEND, Report, implementation_table, result_tables, summary
from .run import Run

RESULTS = Path(__file__).parent / "results" / "cpu.json"

CACHED = 1.2
"""So many times the bandwidth of memory means that a part of what is read lies in caches."""

WIDTH = 100
"""Of the tables, where the terminal is not wider."""


def _shapes(text: str) -> list[tuple[int, int]]:
    try:
        return [(int(n), int(k)) for n, k in (part.split("x") for part in text.split(","))]
    except ValueError:
        raise typer.BadParameter("must be like 4096x4096,14336x4096 (N x K)") from None


def _sizes(text: str) -> list[int]:
    try:
        return sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise typer.BadParameter("must be like 1,4,16") from None


def _named(text: str, known: list[str]) -> list[str]:
    """The names in a list with commas, or all of those that are known."""
    names = known if text == "all" else [name for name in text.split(",") if name]
    for name in names:
        if name not in known:
            raise typer.BadParameter(f"{name!r} is none of {', '.join(known)}")
    return names


def _print(report: Report) -> None:
    console = Console(markup=False, highlight=False)
    console.width = max(console.width, WIDTH)
    for line in summary(report):
        console.print(line, soft_wrap=True)
    console.print(implementation_table(report))
    for table in result_tables(report):
        console.print(table)
    console.print(LEGEND)
    for note in report.notes:
        console.print(f"NOTE: {note}", soft_wrap=True)


def measure(
    shapes: Annotated[
        str, typer.Option(help="Weights, N x K, with commas between them.")
    ] = "4096x4096,14336x4096,2112x7168",
    m: Annotated[
        str, typer.Option(help="Rows of activations, with commas between them.")
    ] = "1,4,16,64,256",
    peers: Annotated[
        str, typer.Option(help=f"What to measure beside: all, or some of {', '.join(PEERS)}.")
    ] = "all",
    isas: Annotated[
        str, typer.Option(help="Our kernels' instruction sets: all, or some; else the one in use.")
    ] = "",
    threads: Annotated[
        int, typer.Option(min=1, help="Threads of everything that is measured.")
    ] = torch.get_num_threads(),
    seconds: Annotated[
        float, typer.Option(min=0, help="Timed calls of each implementation for each product.")
    ] = 1.0,
    rotate_mb: Annotated[
        int, typer.Option(min=0, help="MiB of weights that each implementation takes in turn.")
    ] = 256,
    limits: Annotated[bool, typer.Option(help="Measure the machine's limits as well.")] = True,
    json: Annotated[Path, typer.Option(help="Where to save all figures.")] = RESULTS,
    plot_path: Annotated[
        Path | None, typer.Option("--plot", help="Where to save a roofline plot (PNG).")
    ] = None,
) -> None:
    """Measure quant_mm on the CPU beside other libraries and the machine's limits."""
    weights, sizes = _shapes(shapes), _sizes(m)
    chosen: list[str | None] = [*_named(isas, cpu.isas())]
    ours = [QuantMm(isa) for isa in chosen or [cpu.isa()]]
    others = [PEERS[name] for name in _named(peers, list(PEERS))]
    if plot_path is not None and plot.unavailable() is not None:
        raise typer.BadParameter(f"--plot cannot be used: {plot.unavailable()}")

    torch.set_num_threads(threads)
    os.environ["OMP_NUM_THREADS"] = str(threads)  # for OpenMP libraries that are yet to be loaded
    machine = describe(threads, [package for peer in others for package in peer.packages])
    notes = []

    program = None
    if limits:
        try:
            program = LimitProgram()
        except RuntimeError as error:
            notes.append(f"the machine's limits are not measured: {error}")
    measured: list[Limits] = []
    rotated = rotate_mb << 20
    with Progress(console=Console(stderr=True), transient=True) as progress:

        def measure_limits() -> None:
            if program is not None:
                task = progress.add_task("the machine's limits", total=None)
                measured.append(program.measure(threads, rotated))
                progress.remove_task(task)

        measure_limits()
        run = Run([*ours, *others], threads, seconds, rotated, progress)
        with torch.inference_mode():
            for n, k in weights:
                run.shape(n, k, sizes)
        measure_limits()
    best = Limits.best_of(measured)
    if best is not None and best.read_rotated > CACHED * best.read:
        notes.append("the rotated weights lie in caches in part: raise --rotate-mb")

    implementations = list(run.found.values())
    notes += run.notes
    report = Report(
        machine=machine,
        limits=best,
        seconds=seconds,
        rotated_bytes=rotated,
        implementations=implementations,
        rows=run.rows,
        notes=notes,
    )
    report.save(json)
    if plot_path is not None:
        plot.draw(report, plot_path)
    _print(report)


if __name__ == "__main__":
    typer.run(measure)
