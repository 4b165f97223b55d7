"""The files of a checkpoint: which there are, what their headers say, and one tensor at a time."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import Tensor

from .entries import Raw, raw

INDEX = ".safetensors.index.json"


class Source(ABC):
    """Tensors by name, before anyone says what they mean.

    Attributes:
        path: as it was given.
        files: that hold the tensors.
        config: of the model, from config.json; empty if there is none.
        metadata: that of all files together.
        tensors: what each tensor is.
        whole: whether these are all files of the checkpoint.
    """

    def __init__(self, path: Path, files: list[Path]) -> None:
        self.path, self.files, self.whole = path, files, True
        self.config = read_json(path if path.is_dir() else path.parent, "config.json") or {}
        self.metadata: dict[str, str] = {}
        self.tensors: dict[str, Raw] = {}

    @abstractmethod
    def read(self, name: str) -> Tensor:
        """A tensor in memory of its own, on the CPU."""

    @property
    def quantization_config(self) -> dict[str, Any]:
        found = self.config.get("quantization_config") or self.config.get("compression_config")
        return found if isinstance(found, dict) else {}


def read_json(folder: Path, name: str) -> dict[str, Any] | None:
    path = folder / name
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path}: must hold a JSON object, but holds a {type(found).__name__}")
    return found


def need(module: str) -> Any:
    """An optional package's module, or an error that says what to install."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        raise ModuleNotFoundError(
            f"this needs the package {package}: pip install {package}", name=error.name
        ) from None


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    safetensors = need("safetensors")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            yield file
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path}: not a whole safetensors file: {error}") from None


class SafetensorsSource(Source):
    def __init__(self, path: Path) -> None:
        files, index = _safetensors_files(path)
        super().__init__(path, files)
        self._at: dict[str, Path] = {}
        for file in files:
            self._add(file)
        if index is not None:
            self._follow(index)

    def _add(self, path: Path) -> None:
        with _opened(path) as file:
            self.metadata |= file.metadata() or {}
            for name in file.keys():  # noqa: SIM118  # it is no mapping
                if name in self._at:
                    raise ValueError(f"{path}: {name} is in {self._at[name]} as well")
                tensor = file.get_slice(name)
                self.tensors[name] = raw(tensor.get_dtype(), tuple(tensor.get_shape()), str(path))
                self._at[name] = path

    def _follow(self, index: Path) -> None:
        """Hold the files to what their index says, unless only some of them were asked for."""
        listed = _weight_map(index)
        here = {file.name for file in self.files}
        self.whole = set(listed.values()) <= here
        for name, file in listed.items():
            if file in here and name not in self.tensors:
                raise ValueError(f"{index.parent / file}: {name} is missing, which {index} lists")

    def read(self, name: str) -> Tensor:
        # Opened for each tensor: a file that stays open keeps all that was read of it in memory.
        with _opened(self._at[name]) as file:
            tensor: Tensor = file.get_tensor(name)
            return tensor.clone()


def _weight_map(index: Path) -> dict[str, str]:
    found = read_json(index.parent, index.name) or {}
    listed = found.get("weight_map")
    if not isinstance(listed, dict) or not all(isinstance(f, str) for f in listed.values()):
        raise ValueError(f"{index}: 'weight_map' must map names of tensors to files")
    return listed


def _safetensors_files(path: Path) -> tuple[list[Path], Path | None]:
    folder = path if path.is_dir() else path.parent
    indices = sorted(folder.glob(f"*{INDEX}"))
    if path.is_file():
        mine = [index for index in indices if path.name in _weight_map(index).values()]
        return [path], mine[0] if mine else None
    if len(indices) > 1:
        raise ValueError(
            f"{path}: there is more than one index: {', '.join(i.name for i in indices)}; "
            "give one file, or move the others away"
        )
    if not indices:
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            raise ValueError(f"{path}: there is no safetensors file in this folder")
        return files, None
    files = [folder / name for name in dict.fromkeys(_weight_map(indices[0]).values())]
    missing = [file for file in files if not file.is_file()]
    if missing:
        raise ValueError(f"{missing[0]}: this file is missing, which {indices[0]} lists")
    return files, indices[0]
