"""The roofline of `benchmarks.gpu`: multiply-adds a second over rows of x."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .machine import WEIGHT_BITS

_MARKERS = "osD^vP"


def draw(report: dict[str, Any], path: Path) -> None:
    """Save a PNG, one panel for each weight."""
    from matplotlib.figure import Figure

    shapes = list(dict.fromkeys((row["n"], row["k"]) for row in report["rows"]))
    across = min(4, len(shapes))
    down = -(-len(shapes) // across)
    figure = Figure(figsize=(4.2 * across, 3.6 * down + 1), layout="constrained")
    panels = figure.subplots(down, across, squeeze=False, sharey=True).flat
    for panel, (n, k) in zip(panels, shapes, strict=False):
        panel.set(title=f"N = {n}, K = {k}", xscale="log", yscale="log", xlabel="M")
        panel.grid(alpha=0.3)
        own = [row for row in report["rows"] if (row["n"], row["k"]) == (n, k)]
        sizes = sorted({row["m"] for row in own})
        per_row = report["copy_bytes_per_second"] / (WEIGHT_BITS / 8) / 1e12
        roof = [m * per_row for m in sizes]
        panel.plot(sizes, roof, color="black", linewidth=1.2, label="MXFP4 weight read once")
        panel.plot(sizes, [r * WEIGHT_BITS / 16 for r in roof], "k--", linewidth=1,
                   label="bfloat16 weight read once")  # fmt: skip
        for i, name in enumerate(dict.fromkeys(row["name"] for row in own)):
            points = sorted((row["m"], row["graph"]) for row in own if row["name"] == name)
            panel.plot(
                [m for m, _ in points],
                [m * n * k / time / 1e6 for m, time in points],
                label=name, color=f"C{i}", marker=_MARKERS[i % len(_MARKERS)], markersize=4,
            )  # fmt: skip
        panel.set_ylim(top=1e3)
    figure.supylabel("T multiply-adds a second")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize="small")
    figure.suptitle(f"{report['gpu']}, driver {report['driver']}, {report['date']}")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
