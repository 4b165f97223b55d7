"""A report as a table and as a picture."""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.table import Table

if TYPE_CHECKING:
    from .report import Report


def table(report: Report) -> Group:
    """What rich prints."""
    layers = Table(title="relative error of each swapped layer", title_justify="left")
    layers.add_column("layer", overflow="fold")
    for heading in ("N x K", "weight", "own output", "accumulated"):
        layers.add_column(heading, justify="right")
    for row in report.rows:
        errors = (f"{error:.4f}" for error in (row.weight, row.own, row.accumulated))
        layers.add_row(row.name, f"{row.out_features} x {row.in_features}", *errors)

    output = Table(title="output", title_justify="left", show_header=False)
    output.add_column()
    output.add_column(justify="right")
    output.add_row("relative error", f"{report.output.error:.4f}")
    output.add_row("cosine, mean", f"{report.output.cosine:.4f}")
    if report.output.top1 is not None:
        output.add_row("same largest logit", f"{report.output.top1:.2%}")
    if report.output.kl is not None:
        output.add_row("Kullback-Leibler divergence, nats", f"{report.output.kl:.4f}")
    return Group(layers, output)


def text(report: Report) -> str:
    """The table without colours, as wide as it needs to be."""
    console = Console(width=200, no_color=True, highlight=False)
    with console.capture() as capture:
        console.print(table(report))
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def plot(report: Report, path: str | PathLike[str]) -> None:
    """Each layer's errors, in the order of the model's modules."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("a plot needs matplotlib: pip install matplotlib") from error

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.add_subplot()
    places = range(len(report.rows))
    axes.plot(places, [row.accumulated for row in report.rows], ".-", label="accumulated")
    axes.plot(places, [row.own for row in report.rows], ".-", label="the layer's own")
    axes.plot(places, [row.weight for row in report.rows], ".", label="of the weight")
    step = max(1, len(report.rows) // 20)
    names = [row.name for row in report.rows[::step]]
    axes.set_xticks(places[::step], names, rotation=45, ha="right", fontsize=6)
    axes.set_ylabel("relative error")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)
