"""How errors grow from block to block, one panel for each model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

QUERIES = ("query", "q_proj")
"""A block's first layers, by which all of the error up to it goes."""


def draw(results: list[dict[str, Any]], path: Path) -> None:
    """Save a PNG of what `benchmarks.accuracy` writes as its results."""
    from matplotlib.figure import Figure

    quantised = [result for result in results if result["report"]]
    models = list(dict.fromkeys(result["model"] for result in quantised))
    figure = Figure(figsize=(6 * max(1, len(models)), 4.5), layout="constrained")
    panels = figure.subplots(1, max(1, len(models)), squeeze=False)[0]
    for panel, model in zip(panels, models, strict=False):
        own = [result for result in quantised if result["model"] == model]
        for index, result in enumerate(own):
            layers = result["report"]["layers"]
            errors = [layer["accumulated"] for layer in layers if layer["name"].endswith(QUERIES)]
            style = "-" if "W4A4" in result["settings"] else ":"
            panel.plot(errors, style, color=f"C{index % 3}", label=result["settings"])
        panel.set(title=model, xlabel="block", ylim=(0, None))
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("relative error of the query projection")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=6, fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
