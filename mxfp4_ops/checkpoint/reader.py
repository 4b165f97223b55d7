"""`checkpoint.open`."""

from __future__ import annotations

from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor

from .detect import detect
from .entries import Entry, Mxfp4Weight, Settings
from .formats.gguf import GgufSource, is_gguf
from .formats.plain import NAME as FLOAT
from .source import SafetensorsSource, Source


class Checkpoint:
    """A checkpoint of any format that is read, opened by `checkpoint.open`.

    Only the headers have been read; each tensor is read when it is asked for.

    Attributes:
        path: as it was given.
        format: name of the format.
        entries: what it holds, by the names of the float model's tensors.
        settings: how its layers are meant to run.
        config: the model's config.json; empty if there is none.
    """

    def __init__(self, source: Source, format: str | None) -> None:
        self._source = source
        self._format = detect(source, format)
        self.path = source.path
        self.format = self._format.name
        self.entries: dict[str, Entry] = self._format.entries(source)
        self.settings: Settings = self._format.settings(source)
        self.config: dict[str, Any] = source.config
        if self.format != FLOAT and source.whole and not self.quantized():
            raise ValueError(f"{self.path}: no tensor in it is MXFP4 of format '{self.format}'")

    def names(self) -> list[str]:
        """The names of all weights and other tensors."""
        return list(self.entries)

    def quantized(self) -> list[str]:
        """The names of those in MXFP4."""
        return [name for name, entry in self.entries.items() if entry.quantized]

    def read(self, name: str) -> Tensor | Mxfp4Weight:
        """Codes and scales of a quantised weight, or any other tensor as it is.

        Raises:
            ValueError: there is none of that name, or the file cannot be read.
        """
        entry = self.entries.get(name)
        if entry is None:
            raise ValueError(f"{self.path}: it holds no {name}")
        if entry.quantized:
            return self._format.read(self._source, entry)
        return self._source.read(entry.parts[0])

    def items(self) -> Iterator[tuple[str, Tensor | Mxfp4Weight]]:
        """Each name with what `read` gives; only one is in memory at a time."""
        for name in self.entries:
            yield name, self.read(name)

    def stored(self, name: str) -> str:
        """What the file calls the dtype in which an entry is stored."""
        return self._source.tensors[self.entries[name].parts[0]].dtype

    @property
    def files(self) -> list[Path]:
        """The files that hold the tensors."""
        return self._source.files

    @property
    def excluded(self) -> list[str]:
        """Modules that the configuration leaves in float, as far as it names them in full."""
        return self._format.excluded(self._source)

    def __repr__(self) -> str:
        return (
            f"Checkpoint({str(self.path)!r}, format={self.format!r}, "
            f"{len(self.quantized())} of {len(self.entries)} tensors in MXFP4)"
        )


def _only_gguf(folder: Path) -> Path | None:
    """The GGUF file of a folder that holds one, and no safetensors."""
    if not folder.is_dir() or any(folder.glob("*.safetensors")):
        return None
    files = list(folder.glob("*.gguf"))
    return files[0] if len(files) == 1 else None


def open(path: str | PathLike[str], *, format: str | None = None) -> Checkpoint:
    """Open a checkpoint, whatever wrote it.

    Args:
        path: a folder with safetensors files, or one file (safetensors or GGUF). A config.json and
            an index beside it are read as well.
        format: `mxfp4_ops`, `quark`, `compressed-tensors`, `gpt-oss`, `torchao`, `gguf` or `float`.
            None takes what config.json, the file's metadata and its tensors agree on.

    Raises:
        FileNotFoundError: there is no such file or folder.
        ModuleNotFoundError: the package safetensors or gguf is not installed.
        ValueError: the format is not known, or the files are not whole; the message names file and
            tensor.
    """
    where = Path(path)
    if not where.exists():
        raise FileNotFoundError(f"there is no file or folder {where}")
    where = _only_gguf(where) or where
    if is_gguf(where):
        if format not in (None, "gguf"):
            raise ValueError(f"{where}: it is a GGUF file, but format is {format!r}")
        return Checkpoint(GgufSource(where), "gguf")
    if format == "gguf":
        raise ValueError(f"{where}: it is not a GGUF file")
    return Checkpoint(SafetensorsSource(where), format)
