"""`checkpoint.convert`: a float or foreign checkpoint to this package's format or another."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import prod
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from .. import api
from ..formats import BLOCK, Activation, ScaleMode
from ..swap import DEFAULT_SKIP
from . import write
from .entries import Entry, Mxfp4Weight, Settings
from .formats.ours import NAME
from .formats.plain import NAME as FLOAT
from .journal import NAME as JOURNAL
from .journal import Journal
from .layers import to_quantize
from .progress import track
from .reader import Checkpoint, open
from .source import INDEX
from .targets import target

_WEIGHTS = (".safetensors", INDEX, ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack")
_LEFT_BEHIND = (*_WEIGHTS, "config.json", "dtypes.json", JOURNAL)
"""Ends of the names of files that hold weights or describe them."""


@dataclass(frozen=True)
class Row:
    """What becomes of one tensor.

    Attributes:
        before, after: bytes.
        quantized: whether it is MXFP4 in the result.
        reason: why it is not quantised, where that was to be decided.
    """

    entry: Entry
    before: int
    after: int
    quantized: bool
    reason: str = ""


@dataclass(frozen=True)
class Conversion:
    """A conversion that has been planned from headers alone; `run` carries it out.

    Attributes:
        source: what is converted.
        to: the format of the result.
        settings: how the result's layers are meant to run.
        rows: what becomes of each tensor.
        skipped: modules that were not to be quantised, and why.
        shards: the files of the result.
    """

    source: Checkpoint
    to: str
    settings: Settings
    rows: list[Row]
    skipped: dict[str, str]
    shards: list[write.Shard]

    def run(self, folder: str | PathLike[str], *, progress: bool = True) -> None:
        """Write the result; see `convert`."""
        into = Path(folder)
        journal = Journal(into, self._plan())
        metadata = target(self.to).metadata(self.settings)
        finished = {s.file for s in self.shards if journal.finished(into / s.file)}
        todo = [shard for shard in self.shards if shard.file not in finished]
        last = {shard.entries[-1]: into / shard.file for shard in todo}
        tensors: dict[str, Tensor] = {}
        names = (name for shard in todo for name in shard.entries)
        rows = {row.entry.name: row for row in self.rows}
        for entry in track((rows[name].entry for name in names), progress):
            tensors |= self._convert(rows[entry.name])
            if entry.name in last:
                write.write_tensors(last[entry.name], tensors, metadata)
                journal.add(last[entry.name])
                tensors = {}
        self._finish(into)
        journal.close()

    def _convert(self, row: Row) -> dict[str, Tensor]:
        entry = row.entry
        value = self.source.read(entry.name)
        if isinstance(value, Tensor) and row.quantized:
            value = Mxfp4Weight(*api.quantize(value, scale_mode=self.settings.scale_mode))
        if isinstance(value, Mxfp4Weight):
            return dict(zip(self._names(row), value, strict=True))
        return {entry.name: value}

    def _names(self, row: Row) -> tuple[str, ...]:
        """What the tensors of a row are called in the result."""
        entry = row.entry
        return target(self.to).names(entry.name, entry.shape) if row.quantized else (entry.name,)

    def _finish(self, folder: Path) -> None:
        """Write all that goes beside the tensors."""
        rows = {row.entry.name: row for row in self.rows}
        where: dict[str, str] = {}
        for shard in self.shards:
            for name in shard.entries:
                where |= dict.fromkeys(self._names(rows[name]), shard.file)
        write.write_index(folder, where, sum(row.after for row in self.rows))
        config = {**self.source.config, "quantization_config": self._config()}
        config.pop("compression_config", None)
        write.write_json(folder / "config.json", config)
        for file in sorted(self.source.path.iterdir()) if self.source.path.is_dir() else ():
            if file.is_file() and not file.name.endswith(_LEFT_BEHIND) and file.name[0] != ".":
                shutil.copy2(file, folder / file.name)

    def _config(self) -> dict[str, Any]:
        quantized = [row.entry.module or row.entry.name for row in self.rows if row.quantized]
        left = [
            row.entry.module
            for row in self.rows
            if not row.quantized and row.entry.module and len(row.entry.shape) == 2
        ]
        # A head that is tied to the embedding is a layer without a tensor of its own.
        tied = ["lm_head"] if self.source.config.get("tie_word_embeddings") else []
        names = dict.fromkeys([*left, *self.skipped, *self.source.excluded, *tied])
        return target(self.to).config(
            self.settings, quantized, [n for n in names if n not in quantized]
        )

    def _plan(self) -> dict[str, Any]:
        stats = {file.name: file.stat() for file in self.source.files}
        return {
            "files": {name: (stat.st_size, stat.st_mtime_ns) for name, stat in stats.items()},
            "format": self.source.format,
            "to": self.to,
            "settings": asdict(self.settings),
            "quantized": [row.entry.name for row in self.rows if row.quantized],
            "shards": [(shard.file, shard.entries) for shard in self.shards],
        }


def _row(source: Checkpoint, entry: Entry, quantized: bool, reason: str) -> Row:
    elements = prod(entry.shape)
    if quantized:
        after = elements // 2 + elements // BLOCK
    else:  # blocks of other formats are read as float32
        after = entry.nbytes if source.stored(entry.name) == entry.dtype else elements * 4
    return Row(entry, entry.nbytes, after, quantized, reason)


def convert(
    source: str | PathLike[str] | Checkpoint,
    folder: str | PathLike[str],
    *,
    to: str = NAME,
    format: str | None = None,
    skip: Sequence[str] = DEFAULT_SKIP,
    include: Sequence[str] | None = None,
    model: nn.Module | None = None,
    scale_mode: ScaleMode | None = None,
    activation: Activation | None = None,
    shard_bytes: int = write.SHARD_BYTES,
    dry_run: bool = False,
    progress: bool = True,
) -> Conversion:
    """Convert a checkpoint, file by file: at most one file of the result is in memory.

    A float checkpoint is quantised. Of others the codes and scales are taken over bit for bit, and
    what they leave in float stays so. If it is interrupted, the same call goes on: files that are
    finished are kept if their checksums are still right.

    Args:
        source: what `open` takes, or what it gave.
        folder: of the result. It must hold no checkpoint, unless an interrupted one of this call.
        to: `mxfp4_ops` or `compressed-tensors`.
        format: of the source; see `open`.
        skip: of a float checkpoint: patterns of modules to leave alone, as in `swap_linear`.
        include: of a float checkpoint: patterns of the modules to quantise. If it is None, all
            layers that `swap_linear` would take are quantised.
        model: of a float checkpoint: the model, best on the meta device, that says which these are.
            If it is None, config.json and the installed Transformers say so.
        scale_mode: for a float checkpoint how weights get their scales, for all how activations do.
            None takes the source's, or `even`.
        activation: `mxfp4` or `bf16`, for the result's configuration. None takes the source's, or
            `mxfp4`.
        shard_bytes: size above which a further file is begun.
        dry_run: write nothing; the result's `run` does it.
        progress: show a progress bar on stderr.

    Returns:
        What became of each tensor, or would become of it.

    Raises:
        ValueError: the source cannot be read, it does not say which layers to quantise, the format
            cannot hold a weight, or the folder holds something else.
    """
    opened = source if isinstance(source, Checkpoint) else open(source, format=format)
    settings = Settings(
        scale_mode or opened.settings.scale_mode, activation or opened.settings.activation
    )
    layout = target(to)
    chosen = opened.quantized()
    skipped: dict[str, str] = {}
    if opened.format == FLOAT:
        chosen, skipped = to_quantize(opened, skip, include, model)
    if not chosen:
        raise ValueError(f"{opened.path}: there is nothing to quantise in it")
    for name in chosen:
        layout.names(name, opened.entries[name].shape)  # or an error
    quantized = set(chosen)
    rows = [
        _row(opened, entry, entry.name in quantized, skipped.get(entry.module or "", ""))
        for entry in opened.entries.values()
    ]
    shards = write.shards({row.entry.name: row.after for row in rows}, shard_bytes)
    planned = Conversion(opened, to, settings, rows, skipped, shards)
    if not dry_run:
        planned.run(folder, progress=progress)
    return planned
