"""Timing: implementations take turns, so that whatever else the machine does hits all alike."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from torch import Tensor

from .peers import Bound, Peer

ROUNDS = 5
"""Turns that each implementation gets."""

SETTLE = 0.03
"""Seconds at the start of a turn that are not timed: the threads of the one before still spin."""

TOLERANCE = 0.02
"""Relative error (Frobenius) of a product up to which it counts as computed. int8 activations take
less than 0.01; a product of the wrong numbers is off by about 1."""


class WrongResultError(Exception):
    """An implementation does not compute the product, so its time means nothing."""


@dataclass(frozen=True)
class Timing:
    """Seconds for one call: median and quartiles of `calls` of them."""

    median: float
    lower: float
    upper: float
    calls: int


@dataclass
class Candidate:
    """An implementation with one activation, going round the copies of its weight."""

    peer: Peer
    bound: Bound
    times: list[float] = field(default_factory=list)
    _next: int = 0

    def call(self) -> None:
        call = self.bound.calls[self._next]
        self._next = (self._next + 1) % len(self.bound.calls)
        call()

    def turn(self, seconds: float) -> None:
        self.peer.activate()
        settled = perf_counter() + SETTLE
        self.call()
        while perf_counter() < settled:
            self.call()
        end = perf_counter() + seconds
        while True:
            start = perf_counter()
            self.call()
            stop = perf_counter()
            self.times.append(stop - start)
            if stop >= end:
                return

    def timing(self) -> Timing:
        quartiles = statistics.quantiles(self.times, n=4, method="inclusive")
        return Timing(quartiles[1], quartiles[0], quartiles[2], len(self.times))


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return ((actual - expected).norm() / expected.norm()).item()


def warm_up(peer: Peer, bound: Bound, expected: Tensor) -> float:
    """Call each copy once; returns the relative error of the worst of them.

    Raises:
        WrongResultError: a result is not the product.
    """
    peer.activate()
    error = max(relative_error(bound.read(call()), expected) for call in bound.calls)
    if not error <= TOLERANCE:  # NaN is wrong as well
        raise WrongResultError(f"relative error {error:.3g}, more than {TOLERANCE}")
    return error


def take_turns(
    candidates: Sequence[Candidate], seconds: float, on_turn: Callable[[], None]
) -> None:
    """Give each candidate `seconds` of timed calls, in turns, in another order each round."""
    order = random.Random(0)
    for _ in range(ROUNDS):
        for candidate in order.sample(candidates, len(candidates)):
            candidate.turn(seconds / ROUNDS)
            on_turn()
