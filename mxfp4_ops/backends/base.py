"""What a backend is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch

from . import devices
from .devices import Target

OF_THE_DEVICE = Target("")
"""Stands for the target of a call's own device."""


@dataclass(frozen=True)
class Call:
    """What there is to know of a call in order to decide how it runs.

    Sizes are those of y[m, n] = x[m, k] @ weight[n, k].T, leading dimensions folded into m; n is 0
    for `quantize` and `dequantize`. Experts have a weight each and m rows in all. Nothing is asked
    of the device where its target is given, so that decisions can be made for one that is not
    there.
    """

    op: str
    device: torch.device
    dtype: torch.dtype
    m: int
    n: int
    k: int
    shuffled: bool = False
    target: Target = OF_THE_DEVICE
    experts: int = 1

    def __post_init__(self) -> None:
        if self.target is OF_THE_DEVICE:
            object.__setattr__(self, "target", devices.target(self.device))


@dataclass(frozen=True)
class Work:
    """What a backend does for a call.

    Attributes:
        kernels: names of the kernels that it launches, in order, where it says.
        plan: tile sizes, split-K and the like: a frozen dataclass of these kernels, or None.
        origin: where the plan comes from, in words.
    """

    kernels: tuple[str, ...] = ()
    plan: Any = None
    origin: str = ""


class Backend(ABC):
    """One implementation of the products, of `quantize` and of `dequantize`."""

    name: str
    serves: str

    @abstractmethod
    def unavailable(self) -> str | None:
        """Why this backend cannot be used in this process, or None if it can."""

    @abstractmethod
    def refuses(self, call: Call) -> str | None:
        """Why this backend does not take `call`, or None if it does.

        Like `work`, it is asked where `unavailable` gives None, and follows from `call` alone.
        """

    def work(self, call: Call) -> Work:
        """What it does for a call that it takes."""
        return Work()

    def only_by_name(self, call: Call) -> bool:
        """Whether automatic choice passes over this backend although it takes `call`."""
        return False

    def detail(self) -> str:
        """Which variant is in use, for people to read."""
        return ""

    @abstractmethod
    def run(self, call: Call, *args: Any) -> Any:
        """Run `call.op` with arguments that have been checked, in the schema's order."""
