"""Which implementation runs a call, and why.

A backend says whether it can be used at all (`unavailable`) and whether it takes a given call
(`refuses`), each with the reason. Here is gathered what holds in this process; `policy.py` decides.
Automatic choice takes the first that does both, in the order below; a backend that was asked for by
name either runs or raises. One that fails at a call, which happens where kernels are compiled on
the spot, is passed over from then on.

CPU tensors normally never come here: the C++ kernels are registered with the dispatcher and are
called without Python (see `cpu.py`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from . import aiter, cpu, failures, policy, reference, triton
from .base import Backend, Call
from .policy import Decision, Offer
from .triton import replay

__all__ = [
    "Backend",
    "BackendStatus",
    "Call",
    "Decision",
    "backends",
    "decide",
    "forced_backend",
    "select",
    "use_backend",
]

REGISTRY: dict[str, Backend] = {
    b.name: b for b in (cpu.BACKEND, triton.BACKEND, aiter.BACKEND, reference.BACKEND)
}
"""In order of preference."""

ENVIRONMENT_VARIABLE = "MXFP4_OPS_BACKEND"


@dataclass(frozen=True)
class BackendStatus:
    """One line of `backends()`.

    Attributes:
        name: what `use_backend` takes.
        available: whether it can be used here at all.
        reason: why not, or None.
        serves: the devices it serves.
        detail: which variant of it is in use, and at what it has failed so far.
    """

    name: str
    available: bool
    reason: str | None
    serves: str
    detail: str


def backends() -> list[BackendStatus]:
    """The backends in order of preference: which exist, which are usable, and why not."""
    status = []
    for backend in REGISTRY.values():
        reason = backend.unavailable()
        detail = "" if reason else "; ".join([backend.detail(), *failures.of(backend.name)])
        status.append(BackendStatus(backend.name, reason is None, reason, backend.serves, detail))
    return status


def _named(name: str) -> Backend:
    try:
        return REGISTRY[name]
    except KeyError:
        known = ", ".join(map(repr, REGISTRY))
        raise ValueError(f"unknown backend {name!r}; there are {known}") from None


def _refusal_on_cpu(name: str | None) -> str | None:
    """Why no call can run on the backend that was asked for, or None where `select` says it."""
    if name is not None:
        try:
            _named(name)
        except ValueError as error:
            return str(error)
    return None


class _Forced(threading.local):
    """The backend that was asked for by name: the environment's, unless `use_backend` says else."""

    name: str | None = os.environ.get(ENVIRONMENT_VARIABLE) or None


_forced = _Forced()
cpu.set_default_force(_Forced.name, _refusal_on_cpu(_Forced.name))


def forced_backend() -> str | None:
    """Name of the backend that calls of this thread must use, or None for automatic choice."""
    return _forced.name


@contextmanager
def use_backend(name: str | None) -> Iterator[None]:
    """Run every call of this thread on one backend inside a `with` block.

    Args:
        name: one of `backends()`, or None for automatic choice.

    Raises:
        ValueError: there is no such backend.
        RuntimeError: it cannot be used here; the message says why. A call inside the block that the
            backend cannot take raises `RuntimeError` as well.

    It acts when an operator runs: put it around the call of a compiled model, not inside of one.
    """
    if name is not None:
        reason = _named(name).unavailable()
        if reason is not None:
            raise RuntimeError(f"backend {name!r} cannot be used: {reason}")
    previous = _forced.name
    _forced.name = name
    cpu.force(name, _refusal_on_cpu(name))
    try:
        yield
    finally:
        _forced.name = previous
        cpu.force(previous, _refusal_on_cpu(previous))


def decide(call: Call, forced: str | None) -> Decision:
    """How a call runs here.

    Raises:
        ValueError: the forced backend does not exist, or a table of plans is malformed.
        RuntimeError: the forced backend cannot be used or does not take this call.
    """
    if forced is not None:
        backend = _named(forced)
        return policy.decide(call, (Offer(backend, backend.unavailable()),), forced)
    return policy.decide(call, tuple(_offer(b, call) for b in REGISTRY.values()))


def _offer(backend: Backend, call: Call) -> Offer:
    """The backend with what automatic choice knows against it in this process."""
    if backend.only_by_name(call):  # asked first, for it loads nothing
        return Offer(backend, "it runs such calls only if asked for by name")
    return Offer(backend, backend.unavailable() or failures.known(backend.name, call))


def select(call: Call, forced: str | None) -> Backend:
    """The backend for a call; raises as `decide` does."""
    return REGISTRY[decide(call, forced).backend]


def repeat(op: str, args: tuple[object, ...]) -> torch.Tensor | tuple[torch.Tensor, ...] | None:
    """The result of a call on a GPU if one like it was made before, without what `run` decides."""
    return replay.find(op, _forced.name, args)


def run(call: Call, *args: object) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Run `call` with the operator's arguments, in the schema's order, on the selected backend."""
    backend = select(call, _forced.name)
    try:
        return backend.run(call, *args)
    except Exception as error:
        if _forced.name is not None or not failures.leaves_a_choice(error, call):
            raise
        offers = (_offer(b, call) for b in REGISTRY.values() if b is not backend)
        try:
            successor = policy.decide(call, tuple(offers)).backend
        except RuntimeError:  # there is none
            raise error from None
        failures.remember(backend.name, call, error, successor)
    return run(call, *args)
