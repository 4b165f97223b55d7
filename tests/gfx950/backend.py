"""The backend "gfx950": CPU tensors on the emulated GPU, so that every test can run there."""

from __future__ import annotations

from typing import Any

from mxfp4_ops.backends import Backend, Call
from mxfp4_ops.backends.triton import gfx950, operators

from .emulation import Form


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
        result, launches = operators.OPERATORS[call.op](gfx950, *args)
        Form().run(launches)
        return result
