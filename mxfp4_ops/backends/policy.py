"""Which backend runs a call, and how: one function that looks at nothing but its arguments.

It asks no device and reads no environment, so that every branch can be tried on any machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from ..tuning import lookup
from .base import Backend, Call, Work

PRODUCTS = ("quant_mm", "mm")


@dataclass(frozen=True)
class Offer:
    """A backend, and what stands against it whatever the call's sizes are."""

    backend: Backend
    obstacle: str | None = None


@dataclass(frozen=True)
class Decision:
    """How a call runs.

    Attributes:
        backend: its name.
        because: why this backend.
        work: what it does.
        passed_over: backends that come before it, each with why it does not run the call.
    """

    backend: str
    because: str
    work: Work
    passed_over: tuple[tuple[str, str], ...] = ()


@lru_cache(maxsize=4096)
def decide(call: Call, offers: tuple[Offer, ...], forced: str | None = None) -> Decision:
    """The first backend that can and does take the call, or the one that was asked for by name.

    Automatic choice begins with the backend that a table of measurements names for these sizes.

    Args:
        offers: the backends in order of preference.
        forced: which of them has to run the call.

    Raises:
        RuntimeError: the forced backend cannot, or none can.
        ValueError: a table that is needed is malformed.
    """
    if forced is not None:
        offer = next(o for o in offers if o.backend.name == forced)
        reason = offer.obstacle or offer.backend.refuses(call)
        if reason is not None:
            raise RuntimeError(f"backend {forced!r} was asked for, but {reason}")
        return Decision(forced, "it was asked for by name", offer.backend.work(call))

    favourite = _favourite(call, offers)
    passed_over: list[tuple[str, str]] = []
    for offer in sorted(offers, key=lambda o: o.backend is not favourite):
        backend = offer.backend
        reason = offer.obstacle or backend.refuses(call)
        if reason is None:
            because = "a table says so" if backend is favourite else "the first that takes it"
            return Decision(backend.name, because, backend.work(call), tuple(passed_over))
        passed_over.append((backend.name, reason))
    raise RuntimeError(f"no backend takes {call}")


def _favourite(call: Call, offers: tuple[Offer, ...]) -> Backend | None:
    """The backend that a table names for a product of about these sizes."""
    if call.op not in PRODUCTS:
        return None
    for entry in lookup.nearest(call.target, call.m, call.n, call.k)[:1]:
        return next((o.backend for o in offers if o.backend.name == entry.backend), None)
    return None
