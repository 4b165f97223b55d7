"""Counting the calls of this package's operators, however they come about."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class Calls(TorchDispatchMode):
    """`counts` says how often each operator was called in a `with` block, by name."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "mxfp4":
            self.counts[func._opname] += 1
        return func(*args, **(kwargs or {}))
