"""Backends that failed at a call, which automatic choice does not try again."""

from __future__ import annotations

import warnings

import torch

from .base import Call
from .devices import capturing

_reasons: dict[tuple[str, str, str], str] = {}
"""By backend, operator and architecture."""

NOT_THE_BACKENDS = (ValueError, MemoryError, torch.OutOfMemoryError)
"""What another backend would be no better at."""


def known(backend: str, call: Call) -> str | None:
    """How a backend failed at such a call before, or None."""
    reason = _reasons.get((backend, call.op, call.target.arch))
    return None if reason is None else f"it failed before ({reason})"


def leaves_a_choice(error: Exception, call: Call) -> bool:
    """Whether another backend may run `call` after `error`: never in the middle of a graph."""
    return not isinstance(error, NOT_THE_BACKENDS) and not capturing(call.device)


def remember(backend: str, call: Call, error: Exception, successor: str) -> None:
    """From now on `successor` runs such calls. It is told once."""
    arch = call.target.arch
    kind, message = type(error).__name__, str(error).strip()
    _reasons[backend, call.op, arch] = f"{kind}: {message}".splitlines()[
        -1
    ]  # compilers quote first
    warnings.warn(
        f"{call.op} failed on {arch} with backend {backend!r}, and {successor!r} runs it from now "
        f"on. {kind}: {message}",
        RuntimeWarning,
        stacklevel=3,
    )


def of(backend: str) -> list[str]:
    """What is known of a backend, for people to read."""
    return [
        f"{op} failed on {arch} ({why})" for (b, op, arch), why in _reasons.items() if b == backend
    ]
