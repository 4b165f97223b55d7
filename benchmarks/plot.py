"""The roofline: multiply-adds per second over multiply-adds per byte of the weight."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

from .peers.base import not_installed
from .report import Report, Row

_MARKERS = "osD^vP*X<>hd"


def unavailable() -> str | None:
    """Why nothing can be drawn here, or None."""
    return not_installed("matplotlib")


def draw(report: Report, path: Path) -> None:
    """Save a PNG, one panel for each weight."""
    from matplotlib.figure import Figure

    by_shape = {
        shape: list(rows) for shape, rows in groupby(report.rows, lambda row: (row.n, row.k))
    }
    figure = Figure(figsize=(max(7, 5 * len(by_shape)), 6), layout="constrained")
    panels = figure.subplots(1, len(by_shape), sharey=True, squeeze=False)[0]
    for panel, ((n, k), rows) in zip(panels, by_shape.items(), strict=True):
        panel.set(title=f"N = {n}, K = {k}", xscale="log", yscale="log")
        panel.set_xlabel("multiply-adds per byte of the weight, as stored")
        panel.grid(alpha=0.3)
        _roofs(panel, report, rows)
        _points(panel, rows)
    panels[0].set_ylabel("G multiply-adds per second")
    handles, labels = panels[0].get_legend_handles_labels()
    columns = 3 if len(by_shape) == 1 else 5
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize="small")
    sizes = ", ".join(str(m) for m in dict.fromkeys(row.m for row in report.rows))
    machine = report.machine
    figure.suptitle(f"{machine.cpu}, {machine.threads} threads. From left to right: M = {sizes}")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def _points(panel: Any, rows: list[Row]) -> None:
    for index, name in enumerate(dict.fromkeys(row.name for row in rows)):
        own = sorted((row for row in rows if row.name == name), key=lambda row: row.m)
        panel.plot(
            [row.intensity for row in own],
            [row.multiply_adds / 1e9 for row in own],
            label=name,
            color=f"C{index % 10}",
            marker=_MARKERS[index % len(_MARKERS)],
            markersize=5,
            linewidth=1,
        )


def _roofs(panel: Any, report: Report, rows: list[Row]) -> None:
    """What the bandwidth of memory and each instruction set allow."""
    if report.limits is None:
        return
    read = report.limits.read / 1e9
    low = min(row.intensity for row in rows) / 2
    high = max(row.intensity for row in rows) * 2
    line, text = {"color": "black", "linewidth": 1.2}, {"fontsize": "small"}
    ridges = {name: rate / report.limits.read for name, rate in report.limits.multiply.items()}
    end = min(high, max(ridges.values(), default=high))
    panel.plot((low, end), (low * read, end * read), **line)
    panel.annotate(f"{read:.0f} GB/s", (low * 1.2, low * read), ha="left", va="top", **text)
    for name, ridge in ridges.items():
        if ridge < high:  # else bandwidth limits everything that is shown
            panel.plot((ridge, high), (ridge * read, ridge * read), **line)
            panel.annotate(name, (high, ridge * read), ha="right", va="bottom", **text)
