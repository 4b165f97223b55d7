"""Progress bars on stderr."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from .entries import Entry


def track(entries: Iterable[Entry], show: bool) -> Iterator[Entry]:
    """Each entry in turn, with a bar that moves by its size in the file."""
    if not show:
        yield from entries
        return
    everything = list(entries)
    columns = (BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
    name = TextColumn("{task.description}", markup=False)
    with Progress(*columns, name, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=sum(entry.nbytes for entry in everything))
        for entry in everything:
            bar.update(task, description=entry.name)
            yield entry
            bar.advance(task, entry.nbytes)
        bar.update(task, description="tensors")
