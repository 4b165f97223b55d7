"""What an implementation offers to be measured."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, ClassVar

from torch import Tensor


@dataclass(frozen=True)
class Bound:
    """One activation, ready to be multiplied by each copy of the weight.

    Attributes:
        calls: what is timed, one for each copy.
        read: the product `[M, N]` in float32, from what a call has returned.
        keeps: what the calls use without referring to it.
    """

    calls: Sequence[Callable[[], Any]]
    read: Callable[[Any], Tensor]
    keeps: tuple[object, ...] = ()


@dataclass(frozen=True)
class Loaded:
    """A weight in the implementation's own format.

    Attributes:
        bind: takes an activation `[M, K]` in float32 and makes it ready.
        values: the numbers that the weight has become, float32 `[N, K]`.
        detail: what is in use, for people to read.
    """

    bind: Callable[[Tensor], Bound]
    values: Tensor
    detail: str = ""


class Peer(ABC):
    """An implementation of `x @ weight.T`.

    Attributes:
        name: what `--peers` takes.
        weights: the format of its weights.
        bits: what an element of a weight takes, its share of the scales included.
        activations: what it takes, and what it makes of that before it multiplies.
        packages: that must be installed, as the package index calls them.
    """

    name: str
    weights: str
    bits: float
    activations: str
    packages: ClassVar[tuple[str, ...]] = ()

    def unavailable(self) -> str | None:
        """Why it cannot be measured here, or None if it can."""
        return None

    def refuses(self, n: int, k: int) -> str | None:
        """Why it does not take a weight `[n, k]`, or None if it does."""
        return None

    def activate(self) -> None:  # noqa: B027 (a hook: most need nothing)
        """Is called whenever its turn comes, outside of what is timed."""

    def rounded(self, x: Tensor) -> Tensor:
        """What it makes of an activation, where that is more than a rounding error."""
        return x

    @abstractmethod
    def load(self, weight: Tensor, copies: int, threads: int) -> Loaded:
        """Bring a float32 weight `[N, K]` into its format, `copies` times in memory."""


def not_installed(*modules: str) -> str | None:
    """Which of some modules is missing, or None if they are all there."""
    missing = [module for module in modules if find_spec(module) is None]
    return f"not installed: {', '.join(missing)}" if missing else None
