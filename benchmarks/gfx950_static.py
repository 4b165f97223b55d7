"""Count the instructions of the kernels for gfx950, compiled on any machine.

    python -m benchmarks.gfx950_static --peer other.py --json gfx950.json

See benchmarks/README.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track

from .gfx950 import mca, sources
from .gfx950.figures import Product, Shape, product
from .gfx950.sources import OURS, Source
from .gfx950.table import LEGEND, save, tables

SHAPES = (
    "4x2880x512,16x2112x7168,32x4096x512,32x2880x512,64x2880x512,64x7168x2048,128x2112x7168,"
    "256x3072x1536,256x7168x2048"
)

WIDTH = 250
"""Room for the tables, where the terminal is not wider."""


def _shapes(text: str) -> list[Shape]:
    try:
        return [(int(m), int(n), int(k)) for m, n, k in (p.split("x") for p in text.split(","))]
    except ValueError:
        raise typer.BadParameter("must be like 4x2880x512,64x7168x2048 (M x N x K)") from None


def _count(
    found: dict[str, Source], shapes: list[Shape], run_mca: bool, notes: list[str]
) -> Iterator[Product]:
    for shape in track(shapes, "compiling", console=Console(stderr=True), transient=True):
        for name, source in found.items():
            try:
                yield product(name, shape, source(*shape), run_mca)
            except Exception as error:  # of others' code, and of what the compiler makes of it
                if name == OURS:
                    raise
                notes.append(f"{name} is not counted for M, N, K = {shape}: {error}")


def main(
    shapes: Annotated[str, typer.Option(help="M x N x K, with commas between them.")] = SHAPES,
    shuffled: Annotated[
        bool, typer.Option("--shuffled/--plain", help="The layout of our weights.")
    ] = True,
    peer: Annotated[
        list[Path] | None, typer.Option(help="A Python file with kernels to count beside ours.")
    ] = None,
    run_mca: Annotated[bool, typer.Option("--mca/--no-mca", help="Run llvm-mca.")] = True,
    json: Annotated[Path | None, typer.Option(help="Where to save all figures.")] = None,
) -> None:
    """Count the instructions of the kernels for gfx950."""
    wanted, notes = _shapes(shapes), list[str]()
    found = sources.ours(shuffled)
    for path in peer or []:
        found |= sources.peers(path)
    if run_mca and mca.program() is None:
        notes.append("there is no llvm-mca that knows gfx950")
    products = list(_count(found, wanted, run_mca, notes))
    if json is not None:
        save(products, json)

    console = Console(markup=False, highlight=False)
    console.width = max(console.width, WIDTH)
    for table in tables(products, OURS):
        console.print(table)
    console.print(LEGEND)
    for note in notes:
        console.print(f"NOTE: {note}", soft_wrap=True)


if __name__ == "__main__":
    typer.run(main)
