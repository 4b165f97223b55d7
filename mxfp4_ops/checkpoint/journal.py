"""Which files of a conversion are finished, so that one that was interrupted can go on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import write
from .source import read_json

NAME = "mxfp4_ops_conversion.json"


class Journal:
    """A file in the folder of the result that exists until the conversion is complete.

    Args:
        folder: of the result.
        plan: all that the result follows from. A conversion goes on only if it is the same.

    Raises:
        ValueError: the folder holds a checkpoint, or the beginning of another conversion.
    """

    def __init__(self, folder: Path, plan: Mapping[str, Any]) -> None:
        self._path = folder / NAME
        self._plan = hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()
        self._finished: dict[str, str] = {}
        found = read_json(folder, NAME)
        if found is None:
            write.empty_folder(folder)
            self._write()
        elif found.get("plan") != self._plan:
            raise ValueError(
                f"{folder}: it holds the beginning of another conversion, with other options or "
                "another source; take another folder, or delete this one"
            )
        else:
            self._finished = dict(found.get("files") or {})

    def finished(self, file: Path) -> bool:
        """Whether a file has been written and is still what it was."""
        return file.is_file() and self._finished.get(file.name) == _digest(file)

    def add(self, file: Path) -> None:
        self._finished[file.name] = _digest(file)
        self._write()

    def close(self) -> None:
        """Say that the conversion is complete."""
        self._path.unlink()

    def _write(self) -> None:
        write.write_json(self._path, {"plan": self._plan, "files": self._finished})


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
