"""The search for a product's fastest plan: from the best one known to its best neighbour."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Protocol

from .candidates import Family

WORTH = 0.97
"""Only a plan that takes at most so much of the rule's time is preferred to the rule's."""

TOGETHER = 8
"""Candidates that are made ready at a time."""


class Bench(Protocol):
    """One product on one device. A candidate is a plan or the name of another backend."""

    def prepare(self, plans: Sequence[Any]) -> None:
        """Make ready what will be tried next, such as compiling it."""

    def check(self, candidate: Any) -> None:
        """Raise an exception unless the candidate computes the product."""

    def time(self, candidate: Any) -> float:
        """Microseconds of one call."""


@dataclass
class Result:
    """What was found.

    Attributes:
        best: the candidate to use; None if none ran.
        times: microseconds of each that ran, in the order in which they were tried.
        rejected: why others did not count.
    """

    best: Any = None
    times: dict[Any, float] = field(default_factory=dict)
    rejected: dict[Any, str] = field(default_factory=dict)

    def tried(self, candidate: Any) -> bool:
        return candidate in self.times or candidate in self.rejected


def search(
    family: Family,
    bench: Bench,
    seconds: float,
    others: Iterable[str] = (),
    clock: Callable[[], float] = perf_counter,
    on_trial: Callable[[Result], None] = lambda _: None,
) -> Result:
    """Try the family's starts, then the neighbours of the best until none is better.

    Args:
        seconds: no trial begins later; the rule's plan and other backends are tried in any case.
        others: other backends, by name.
    """
    result, end = Result(), clock() + seconds

    def trial(candidate: Any) -> None:
        if result.tried(candidate):
            return
        try:
            bench.check(candidate)
            result.times[candidate] = bench.time(candidate)
        except Exception as error:  # of the compiler or the driver, or that the result is wrong
            lines = str(error).strip().splitlines()
            result.rejected[candidate] = f"{type(error).__name__}: {lines[-1] if lines else ''}"
        result.best = _best(result, family.starts[0])
        on_trial(result)

    trial(family.starts[0])
    for name in others:
        trial(name)
    front, centre = list(family.starts[1:]), None
    while True:
        front = [candidate for candidate in front if not result.tried(candidate)]
        for first in range(0, len(front), TOGETHER):
            batch = front[first : first + TOGETHER]
            if clock() >= end:
                return result
            bench.prepare(batch)
            for candidate in batch:
                if clock() >= end:
                    return result
                trial(candidate)
        plans = {c: time for c, time in result.times.items() if not isinstance(c, str)}
        best = min(plans, key=plans.__getitem__, default=None)
        if best == centre:
            return result
        front, centre = list(family.neighbours(best)), best


def _best(result: Result, rule: Any) -> Any:
    best = min(result.times, key=result.times.__getitem__, default=None)
    if rule in result.times and result.times[best] > WORTH * result.times[rule]:
        return rule
    return best
