"""AITER's own modules, where it is installed. They are loaded without the package around them,
which would look for ROCm, and what they launch runs in emulation."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module, metadata
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor

from benchmarks.gfx950.compile import driver_of
from benchmarks.gfx950.record import recorded

from .emulation import Form


def root() -> Path | None:
    """The folder that holds AMD's package `aiter`."""
    try:
        folder = Path(str(metadata.distribution("amd-aiter").locate_file("")))
    except metadata.PackageNotFoundError:
        return None
    return folder if (folder / "aiter" / "ops" / "triton").is_dir() else None


class _WithoutInit:
    """Finds packages of AITER as folders of modules, with nothing in them to execute."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] != "aiter":
            return None
        folder = self.root.joinpath(*name.split("."))
        if not folder.is_dir():
            return PathFinder.find_spec(name, path)
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [str(folder)]
        return spec


@contextmanager
def without_init(root: Path) -> Iterator[None]:
    """Modules of AITER can be imported inside, as on gfx950, and are forgotten afterwards."""
    finder = _WithoutInit(root)
    sys.meta_path.insert(0, finder)
    try:
        with driver_of("gfx950"):
            yield
    finally:
        sys.meta_path.remove(finder)
        for name in [m for m in sys.modules if m.partition(".")[0] == "aiter"]:
            del sys.modules[name]


def first_of(*names: str) -> ModuleType:
    """The module that this release has."""
    for name in names[:-1]:
        try:
            return import_module(name)
        except ModuleNotFoundError as error:
            if not (error.name and name.startswith(error.name)):
                raise
    return import_module(names[-1])


def emulated(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`function` of AITER, with its host code as it is and its kernels in emulation."""

    def call(*args: Any, **named: Any) -> Tensor:
        with recorded() as launches:
            y = function(*args, **named)
        Form().run(launches)
        return y

    return call
