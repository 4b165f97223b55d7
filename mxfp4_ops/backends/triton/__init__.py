"""Triton kernels: for every GPU in a portable form, and on the CPU in Triton's interpreter.

Triton is imported when this backend is first asked for a call, and not before.
"""

from __future__ import annotations

import re
from contextlib import AbstractContextManager
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch.torch_version import TorchVersion

from ..base import Backend, Call, Work
from ..devices import Target, target
from . import replay

OLDEST = "3.6"
TOO_OLD = re.compile(r"sm_[1-7]\d|gfx[678]\d\d|gfx90[^8a]")
"""Architectures for which Triton does not compile, or does not promise to."""


NVIDIA = re.compile(r"sm_(80|86|87|89|90|100|103|120|121)")
"""Architectures that `nvidia` was compiled for; they have bfloat16 units."""


@cache
def _unavailable() -> str | None:
    try:
        import triton
    except ImportError as error:
        return f"Triton cannot be imported ({error}); install it with 'pip install triton'"
    if TorchVersion(triton.__version__) < OLDEST:
        return f"it needs Triton {OLDEST} or newer, and {triton.__version__} is installed"
    return None


@cache
def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, which is settled when they are loaded."""
    import triton

    return bool(triton.knobs.runtime.interpret)


def form(target: Target) -> str:
    """The module that holds the kernels for a GPU."""
    if interpreted():
        return "portable"
    if target.arch == "gfx950":
        return "gfx950"
    return "nvidia" if NVIDIA.fullmatch(target.arch) else "portable"


@cache
def _kernels(target: Target) -> Any:
    return import_module(f".{form(target)}", __name__)


def kernels_for(device: torch.device) -> Any:
    """The module that makes the launches for a device."""
    return _kernels(target(device))


def _ready(device: torch.device) -> AbstractContextManager[Any]:
    """What must hold while kernels are launched on tensors of `device`."""
    if device.type == "cuda":
        return torch.cuda.device(device)
    import numpy as np  # Triton's interpreter computes with it

    return np.errstate(all="ignore")  # it warns of the infinities and NaNs that the contract wants


class Triton(Backend):
    name = "triton"
    serves = "GPUs"

    def unavailable(self) -> str | None:
        return _unavailable()

    def refuses(self, call: Call) -> str | None:
        if call.device.type == "cuda":  # ROCm's too
            gpu = call.target.arch
            return f"Triton does not support {gpu}" if TOO_OLD.fullmatch(gpu) else None
        if call.device.type == "cpu":
            return None if interpreted() else "it takes CPU tensors only under TRITON_INTERPRET=1"
        return f"it takes tensors on CUDA and ROCm devices, not on {call.device}"

    def work(self, call: Call) -> Work:
        work: Work = _kernels(call.target).work(call)
        return work

    def only_by_name(self, call: Call) -> bool:
        return call.device.type == "cpu"  # the interpreter is for tests

    def detail(self) -> str:
        import triton

        return f"Triton {triton.__version__}" + (", interpreted" if interpreted() else "")

    def run(self, call: Call, *args: Any) -> Any:
        from .. import forced_backend
        from .operators import OPERATORS

        result, launches = OPERATORS[call.op](_kernels(call.target), *args)
        with _ready(call.device):
            compiled = [launch.run() for launch in launches]
        if call.device.type == "cuda":
            replay.remember(call.op, forced_backend(), args, result, launches, compiled)
        return result


BACKEND = Triton()
