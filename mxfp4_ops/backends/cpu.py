"""The C++ kernels for CPU tensors (csrc_stubs/).

Their library registers them for the dispatcher's CPU key, so a call reaches them without Python.
All that is left here is to load it, to say which instruction set it uses, and to tell it when
`use_backend` wants something else.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import torch

from .base import Backend, Call

ISA_VARIABLE = "MXFP4_OPS_CPU_ISA"

_NOT_BUILT = (
    "mxfp4-ops was installed without its C++ kernels; install a C++17 compiler and reinstall with "
    "'MXFP4_BUILD_CPP=1 pip install --no-build-isolation .'"
)

# What the library does with a call (csrc_stubs/force.h).
_RUN, _TO_PYTHON, _REFUSE = 0, 1, 2


def _load() -> tuple[ctypes.CDLL | None, str | None]:
    """The loaded library, or the reason why there is none."""
    package = Path(__file__).parent.parent
    found = sorted([*package.glob("_cpu*.so"), *package.glob("_cpu*.pyd")])
    if not found:
        return None, _NOT_BUILT
    try:
        library = ctypes.CDLL(str(found[0]))
        library.mxfp4_cpu_isa.restype = ctypes.c_char_p
        library.mxfp4_cpu_isas.restype = ctypes.c_char_p
        library.mxfp4_cpu_select.argtypes = [ctypes.c_char_p]
        library.mxfp4_cpu_force.argtypes = [ctypes.c_int, ctypes.c_char_p]
        library.mxfp4_cpu_default_force.argtypes = [ctypes.c_int, ctypes.c_char_p]
        library.mxfp4_cpu_failed.argtypes = [ctypes.c_char_p]
    except (OSError, AttributeError) as error:  # another torch's, another version's
        return None, f"{found[0].name} does not load into torch {torch.__version__}: {error}"
    return library, None


_library, _unavailable = _load()


def isas() -> list[str]:
    """Instruction sets that the library holds kernels for and this CPU runs, the slowest first."""
    return _library.mxfp4_cpu_isas().decode().split() if _library else []


def isa() -> str | None:
    """The instruction set in use."""
    return _library.mxfp4_cpu_isa().decode() if _library else None


def select_isa(name: str) -> None:
    """Use the kernels of one instruction set from now on, in every thread.

    Raises:
        RuntimeError: there are no C++ kernels.
        ValueError: this CPU or build does not have that one.
    """
    if _library is None:
        raise RuntimeError(_unavailable)
    if not _library.mxfp4_cpu_select(name.encode()):
        raise ValueError(f"the CPU kernels can use {', '.join(isas())} here, not {name!r}")


if _library is not None and os.environ.get(ISA_VARIABLE):
    select_isa(os.environ[ISA_VARIABLE])


def _force_arguments(name: str | None, refusal: str | None) -> tuple[int, bytes]:
    if refusal is not None:
        return _REFUSE, refusal.encode()
    return (_RUN if name in (None, "cpu") else _TO_PYTHON), b""


def force(name: str | None, refusal: str | None) -> None:
    """Make CPU calls of this thread run on a backend, or fail with the reason given."""
    if _library is not None:
        _library.mxfp4_cpu_force(*_force_arguments(name, refusal))


def set_default_force(name: str | None, refusal: str | None) -> None:
    """The same for every thread in which `force` is never called."""
    if _library is not None:
        _library.mxfp4_cpu_default_force(*_force_arguments(name, refusal))


def reporting(operator: Callable[..., Any]) -> Callable[..., Any]:
    """`operator`, called from C++: tells there why it fails, for torch would swallow it."""

    @wraps(operator)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return operator(*args, **kwargs)
        except Exception as error:
            if _library is not None:
                _library.mxfp4_cpu_failed(f"{type(error).__name__}: {error}".encode())
            raise

    return call


class Cpu(Backend):
    name = "cpu"
    serves = "CPU"

    def unavailable(self) -> str | None:
        return _unavailable

    def refuses(self, call: Call) -> str | None:
        if call.device.type != "cpu":
            return f"it takes tensors on the CPU, not on {call.device}"
        return None

    def detail(self) -> str:
        return f"C++, {isa()}"

    def run(self, call: Call, *args: Any) -> Any:
        # Only where another backend is forced would the dispatcher have come to Python for a CPU
        # tensor, and then this one is not selected.
        raise AssertionError("CPU calls are dispatched in C++")


BACKEND = Cpu()
