"""The commands `mxfp4-ops convert` and `mxfp4-ops inspect`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from ..formats import Activation, ScaleMode
from ..swap import DEFAULT_SKIP
from .convert import Conversion
from .convert import convert as plan
from .formats.compressed_tensors import NAME as COMPRESSED_TENSORS
from .formats.ours import NAME as OURS
from .inspect import Inspection, look
from .reader import open

BAR, ROWS = 40, 24
"""Characters of the longest bar, and rows of the histogram at most."""


class To(StrEnum):
    """What can be written, as the command line calls it."""

    ours = "ours"
    compressed_tensors = COMPRESSED_TENSORS


FormatOption = Annotated[
    str | None, typer.Option("--format", help="Of the checkpoint, if it does not say so itself.")
]


@contextmanager
def _failures_told() -> Iterator[None]:
    try:
        yield
    except (ValueError, OSError, ModuleNotFoundError) as error:
        console = Console(stderr=True, markup=False, highlight=False)
        console.print(str(error), soft_wrap=True)
        raise typer.Exit(1) from None


def _console() -> Console:
    return Console(markup=False, highlight=False)


def _size(nbytes: int) -> str:
    return f"{nbytes / 2**20:,.1f} MiB" if nbytes >= 2**20 else f"{nbytes / 2**10:,.1f} KiB"


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def convert(
    src: Annotated[Path, typer.Argument(help="A folder, a safetensors or a GGUF file.")],
    dst: Annotated[Path, typer.Argument(help="The folder for the result.")],
    to: Annotated[To, typer.Option(help="The format to write.")] = To.ours,
    format: FormatOption = None,
    skip: Annotated[
        list[str] | None,
        typer.Option(
            help="Pattern of modules to leave in float, such as layers.*.mlp; repeatable. "
            f"Without it: {', '.join(DEFAULT_SKIP)}."
        ),
    ] = None,
    include: Annotated[
        list[str] | None,
        typer.Option(help="Pattern of modules to quantise, if config.json does not tell."),
    ] = None,
    scale_mode: Annotated[ScaleMode | None, typer.Option(help="How blocks get scales.")] = None,
    activation: Annotated[
        Activation | None, typer.Option(help="What layers multiply with: the configuration says.")
    ] = None,
    shard_mib: Annotated[
        int, typer.Option(min=1, help="Size above which a further file is begun.")
    ] = 4096,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show sizes, write nothing.")] = False,
) -> None:
    """Quantise a float checkpoint, or bring another tool's into a format that is written here.

    If it is interrupted, the same command goes on where it was.
    """
    with _failures_told():
        planned = plan(
            src,
            dst,
            to=OURS if to is To.ours else to.value,
            format=format,
            skip=DEFAULT_SKIP if skip is None else skip,
            include=include,
            scale_mode=scale_mode,
            activation=activation,
            shard_bytes=shard_mib << 20,
            dry_run=True,
        )
        _console().print(_sizes(planned))
        if not dry_run:
            planned.run(dst)
            _console().print(f"Written to {dst}", soft_wrap=True)


def _sizes(planned: Conversion) -> Table:
    source, settings = planned.source, planned.settings
    table = Table(
        title=f"{source.format} -> {planned.to}, scale_mode {settings.scale_mode}, "
        f"activation {settings.activation}, files: {len(planned.shards)}",
        show_footer=True,
    )
    before, after = (sum(getattr(row, key) for row in planned.rows) for key in ("before", "after"))
    table.add_column("tensor", "all", overflow="fold")
    table.add_column("shape")
    table.add_column("before", _size(before), justify="right")
    table.add_column("after", _size(after), justify="right")
    table.add_column("now")
    told = [row for row in planned.rows if row.quantized or row.reason]
    for row in told:
        now = "MXFP4" if row.quantized else f"{row.entry.dtype}: {row.reason}"
        sizes = _size(row.before), _size(row.after)
        table.add_row(row.entry.name, _shape(row.entry.shape), *sizes, now)
    others = [row for row in planned.rows if row not in told]
    if others:
        sizes = _size(sum(r.before for r in others)), _size(sum(r.after for r in others))
        table.add_row(f"{len(others)} others", "", *sizes, "as they are")
    return table


def inspect(
    file: Annotated[Path, typer.Argument(help="A folder, a safetensors or a GGUF file.")],
    against: Annotated[
        Path | None, typer.Option(help="The float checkpoint, to show each layer's error.")
    ] = None,
    format: FormatOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Show what a checkpoint holds, how its scales are spread and, if asked, its errors."""
    with _failures_told():
        opened = open(file, format=format)
        found = look(opened, None if against is None else open(against))
    if as_json:
        print(json.dumps({"format": opened.format, **asdict(opened.settings), **asdict(found)}))
        return
    console = _console()
    settings = opened.settings
    console.print(
        f"format {opened.format}, scale_mode {settings.scale_mode}, activation "
        f"{settings.activation}"
    )
    console.print(_layers(found))
    if found.exponents:
        console.print(_histogram(found.exponents))
    for name in found.unmatched:
        console.print(f"{against} does not hold {name} in this shape as floats", soft_wrap=True)


def _layers(found: Inspection) -> Table:
    table = Table(title=f"{len(found.layers)} tensors", show_footer=True)
    table.add_column("tensor", "all", overflow="fold")
    table.add_column("shape")
    table.add_column("stored as")
    table.add_column("size", _size(sum(layer.nbytes for layer in found.layers)), justify="right")
    compared = any(layer.relative_error is not None for layer in found.layers)
    if compared:
        table.add_column("relative error", justify="right")
    for layer in found.layers:
        cells = [layer.name, _shape(layer.shape), layer.stored, _size(layer.nbytes)]
        if compared:
            cells.append("" if layer.relative_error is None else f"{layer.relative_error:.4f}")
        table.add_row(*cells)
    return table


def _histogram(exponents: Mapping[int | None, int]) -> Table:
    """How often each exponent occurs among the scales; neighbours together if there are many."""
    table = Table.grid(padding=(0, 2))
    table.title = "scales, 2^exponent"
    finite = {exponent: n for exponent, n in exponents.items() if exponent is not None}
    bins: dict[str, int] = {}
    if finite:
        low, high = min(finite), max(finite)
        width = -(-(high - low + 1) // ROWS)
        for start in range(low, high + 1, width):
            end = min(start + width - 1, high)
            label = f"{start}" if start == end else f"{start} to {end}"
            bins[label] = sum(finite.get(exponent, 0) for exponent in range(start, end + 1))
    if None in exponents:
        bins["NaN"] = exponents[None]
    most = max(bins.values())
    for label, count in bins.items():
        bar = "█" * max(round(BAR * count / most), 1 if count else 0)
        table.add_row(label, bar, f"{count:,}")
    return table
