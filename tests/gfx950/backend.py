"""The backend "gfx950": CPU tensors on the emulated GPU, so that every test can run there."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import torch

from mxfp4_ops.backends import Backend, Call
from mxfp4_ops.backends.triton import gfx950, operators
from mxfp4_ops.backends.triton.launch import Launch

from .emulation import Form


def _run(device: torch.device, launches: list[Launch]) -> None:
    Form().run(launches)


class Emulated(Backend):
    name = "gfx950"
    serves = "CPU, for tests"

    def unavailable(self) -> str | None:
        return None

    def refuses(self, call: Call) -> str | None:
        return None if call.device.type == "cpu" else "it is an emulation on the CPU"

    def only_by_name(self, call: Call) -> bool:
        return True

    def run(self, call: Call, *args: Any) -> Any:
        with patch.multiple(operators, _kernels_for=lambda device: gfx950, _run=_run):
            return operators.OPERATORS[call.op](*args)
