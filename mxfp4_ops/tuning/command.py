"""The command `mxfp4-ops tune`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ..backends import REGISTRY, Call, devices
from ..backends.devices import Target
from . import lookup, shapes
from .bench import GpuBench
from .candidates import Family, Shape, family
from .record import Record
from .search import Bench, Result, search

OTHERS = ("aiter",)
"""Backends that may be faster than our kernels."""

console = Console(markup=False, highlight=False)

MakeFamily = Callable[[Shape, Target, bool], Family]
MakeBench = Callable[[Shape, torch.device, Target, bool], Bench]


def _products(
    given: Sequence[str], model: Path | None, recorded: Path | None, m: str
) -> list[Shape]:
    rows = [int(part) for part in m.split(",")]
    weights = [shapes.weight(text) for text in given]
    if model is not None:
        weights += shapes.of_model(model)
    found = [(rows_, n, k) for n, k in weights for rows_ in rows]
    if recorded is not None:
        found += shapes.recorded(recorded)
    if not found or min(rows) < 1:
        raise ValueError("give --shape, --model or --recorded, and rows of at least 1")
    return list(dict.fromkeys(found))


def _measured_on(device: torch.device, uneven: bool) -> str:
    import triton

    name, how = torch.cuda.get_device_name(device), " with uneven activations" if uneven else ""
    return f"measured{how} on {name}, Triton {triton.__version__}"


def _others(call: Call) -> list[str]:
    """Backends that take the product beside ours."""
    backends = [REGISTRY[name] for name in OTHERS if name in REGISTRY]
    return [b.name for b in backends if b.unavailable() is None and b.refuses(call) is None]


def _figures(result: Result, rule: object) -> dict[str, float]:
    figures = {"microseconds": round(result.times[result.best], 2)}
    if rule in result.times:
        figures["rule_microseconds"] = round(result.times[rule], 2)
    return figures


def tune_all(
    products: Sequence[Shape],
    record: Record,
    device: torch.device,
    target: Target,
    seconds: float,
    again: bool,
    make_family: MakeFamily = family,
    make_bench: MakeBench = GpuBench,
) -> list[str]:
    """Tune one product after the other and write each when it is finished.

    Returns:
        for each product, what came of it, as it is printed.
    """
    told = []

    def tell(line: str) -> None:
        told.append(line)
        console.print(line, soft_wrap=True)

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        task = progress.add_task("", total=len(products))
        for shape in products:
            m, n, k = shape
            title = f"M={m} N={n} K={k}"
            if not again and record.has(shape):
                tell(f"{title}: measured before")
                progress.advance(task)
                continue
            shuffled = target.arch == "gfx950" and n % 16 == 0  # the layout its kernels prefer
            candidates = make_family(shape, target, shuffled)
            call = Call("quant_mm", device, torch.bfloat16, m, n, k, shuffled, target)

            def show(result: Result, title: str = title) -> None:
                best = min(result.times.values(), default=float("nan"))
                tried = len(result.times) + len(result.rejected)
                progress.update(task, description=f"{title}: {tried} tried, {best:.1f} us")

            progress.update(task, description=title)
            bench = make_bench(shape, device, target, shuffled)
            result = search(candidates, bench, seconds, _others(call), on_trial=show)
            tell(f"{title}: {_finish(shape, result, candidates.starts[0], record)}")
            progress.advance(task)
    return told


def _finish(shape: Shape, result: Result, rule: object, record: Record) -> str:
    if result.best is None:
        return f"nothing ran ({next(iter(result.rejected.values()))})"
    figures = _figures(result, rule)
    how = f"{date.today().isoformat()}, torch {torch.__version__}, the best of {len(result.times)}"
    record.add(shape, result.best, how, figures)
    text = f"{figures['microseconds']} us, by rule {figures.get('rule_microseconds', '-')} us"
    if result.rejected:
        text += (
            f"; {len(result.rejected)} of {len(result.rejected) + len(result.times)} did not run"
        )
    return text


def tune(
    shape: Annotated[
        list[str] | None, typer.Option(help="N x K of a weight, such as 4096x2048; repeatable.")
    ] = None,
    m: Annotated[str, typer.Option("--m", help="Rows, with commas between.")] = "1,16,64,256",
    model: Annotated[
        Path | None, typer.Option(exists=True, help="A transformer's config.json.")
    ] = None,
    recorded: Annotated[
        Path | None, typer.Option(exists=True, help="A file with M N K in each line.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help=f"Folder of the table (default {lookup.DIRECTORY_VARIABLE})."),
    ] = None,
    seconds: Annotated[float, typer.Option(min=0, help="To search for one product.")] = 15,
    again: Annotated[bool, typer.Option(help="Also what was measured on such a GPU.")] = False,
    uneven: Annotated[
        bool, typer.Option(help="For activations whose blocks differ much in size.")
    ] = False,
    device: Annotated[int, typer.Option(min=0, help="The GPU's number.")] = 0,
) -> None:
    """Measure which tiles are the fastest on the GPU here, and write a table of them."""
    try:
        products = _products(shape or [], model, recorded, m)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if not torch.cuda.is_available():
        console.print("There is no GPU here that torch can use, so there is nothing to tune.")
        raise typer.Exit(1)
    reason = REGISTRY["triton"].unavailable()
    if reason is not None:
        console.print(f"Triton cannot be used: {reason}", soft_wrap=True)
        raise typer.Exit(1)
    where = torch.device("cuda", device)
    folder = out or Path(lookup.directory or ".")
    folder.mkdir(parents=True, exist_ok=True)
    with torch.cuda.device(where):
        target = devices.target(where)
        record = Record(folder, target, _measured_on(where, uneven))
        bench = partial(GpuBench, uneven=uneven)
        tune_all(products, record, where, target, seconds, again, make_bench=bench)
    console.print(f"The table is {record.path}.", soft_wrap=True)
    if lookup.directory is None or folder.absolute() != Path(lookup.directory).absolute():
        console.print(f"To use it: export {lookup.DIRECTORY_VARIABLE}={folder.absolute()}")
