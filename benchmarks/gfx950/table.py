"""The tables, and the JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path

import triton
from rich.box import SIMPLE_HEAD
from rich.table import Table

from .figures import Kernel, Product

_COLUMNS = {
    "mfma": ("mfma",),
    "cvt": ("cvt",),
    "valu": ("valu",),
    "xlane": ("xlane",),
    "salu": ("salu", "smem"),
    "vmem": ("vmem", "scratch"),
    "ldsR": ("lds_read", "lds_other"),
    "ldsW": ("lds_write",),
    "wait": ("wait",),
    "bar": ("barrier",),
    "br": ("branch",),
}

LEGEND = """\
main: instructions of the loop that multiplies, or of the whole kernel where there is none (all).
executed: instructions of one wave. w/SIMD: waves that fit on a SIMD. spills: registers, and bytes
of scratch memory. mca: issue slots of main, by llvm-mca.
/kMAC: executed by all waves, for 1,024 multiply-adds; in the kernel that multiplies alone, with the
columns that its tiles have beyond N (tiles), and in all kernels, for M * N * K (product).
x rounds: executed by one wave, times the rounds in which all waves of the launch fit onto the GPU,
one for each SIMD; of all kernels together. ours /: our figure, over that one."""


def _table(title: str, *columns: str) -> Table:
    """Names to the left of numbers."""
    table = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), title_justify="left")
    for name in columns:
        named = name in ("implementation", "kernel")
        table.add_column(name, justify="left" if named else "right", no_wrap=True)
    return table


def _title(products: Sequence[Product]) -> str:
    m, n, k = products[0].shape
    return f"M = {m}, N = {n}, K = {k}"


def _cells(kernel: Kernel) -> list[str]:
    size = sum(kernel.main.values())
    counts = [str(sum(kernel.main.get(c, 0) for c in kinds)) for kinds in _COLUMNS.values()]
    scratch = f" {kernel.scratch_bytes}B" if kernel.scratch_bytes else ""
    return [
        "" if kernel.tile is None else "x".join(map(str, kernel.tile)),
        str(kernel.workgroups),
        str(kernel.warps),
        f"{size}" if kernel.loop else f"all {size}",
        *counts,
        str(kernel.executed),
        str(kernel.vgprs),
        f"{kernel.waves_per_simd:g}",
        str(kernel.lds_bytes),
        f"{kernel.spills}{scratch}",
        "" if kernel.mca_cycles is None else f"{kernel.mca_cycles:.0f}",
    ]


def _code_table(products: Sequence[Product]) -> Table:
    """A line for each kernel."""
    numbers = ["tile", "groups", "waves", "main", *_COLUMNS]
    numbers += ["executed", "VGPRs", "w/SIMD", "LDS", "spills", "mca"]
    table = _table(_title(products), "implementation", "kernel", *numbers)
    for found in products:
        for i, kernel in enumerate(found.kernels):
            table.add_row("" if i else found.name, kernel.name, *_cells(kernel))
    return table


def _number(figure: float | None) -> str:
    if figure is None:
        return ""
    return str(figure) if isinstance(figure, int) else f"{figure:.2f}"


def _ratio(ours: float | None, other: float | None) -> str:
    return f"{ours / other:.2f}" if ours and other else ""


def _figure_table(products: Sequence[Product], ours: str) -> Table:
    """A line for each product."""
    names = ["/kMAC (tiles)", "/kMAC (product)", "x rounds"]
    columns = [name for pair in zip(names, ["ours /"] * 3, strict=True) for name in pair]
    table = _table(_title(products), "implementation", *columns)
    own = next((p for p in products if p.name == ours), None)
    reference = own.figures if own else {}
    for found in products:
        cells = []
        for name, figure in found.figures.items():
            cells.append(_number(figure))
            cells.append(_ratio(reference.get(name), figure) if found is not own else "")
        table.add_row(found.name, *cells)
    return table


def tables(products: Sequence[Product], ours: str) -> Iterator[Table]:
    """Of the machine code and of its figures, shape by shape; others are compared with `ours`."""
    shapes = [list(group) for _, group in groupby(products, lambda p: p.shape)]
    for group in shapes:
        yield _code_table(group)
    for group in shapes:
        yield _figure_table(group, ours)


def save(products: Sequence[Product], path: Path) -> None:
    entries = [asdict(found) | found.figures for found in products]
    content = {"triton": triton.__version__, "products": entries}
    path.write_text(json.dumps(content, indent=1) + "\n")
