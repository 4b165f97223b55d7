"""What a backend is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Call:
    """What a backend needs to know of a call in order to take or refuse it.

    Sizes are those of y[m, n] = x[m, k] @ weight[n, k].T, leading dimensions folded into m; n is 0
    for `quantize` and `dequantize`.
    """

    op: str
    device: torch.device
    dtype: torch.dtype
    m: int
    n: int
    k: int
    shuffled: bool = False


class Backend(ABC):
    """One implementation of `quant_mm`, `mm`, `quantize` and `dequantize`."""

    name: str
    serves: str

    @abstractmethod
    def unavailable(self) -> str | None:
        """Why this backend cannot be used in this process, or None if it can."""

    @abstractmethod
    def refuses(self, call: Call) -> str | None:
        """Why this backend does not take `call`, or None if it does."""

    def only_by_name(self, call: Call) -> bool:
        """Whether automatic choice passes over this backend although it takes `call`."""
        return False

    def detail(self) -> str:
        """Which variant is in use, for people to read."""
        return ""

    @abstractmethod
    def run(self, call: Call, *args: Any) -> Any:
        """Run `call.op` with arguments that have been checked, in the schema's order."""
