"""The formats that are written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .entries import Settings
from .formats import compressed_tensors, ours


@dataclass(frozen=True)
class Target:
    """How a format names tensors and describes itself.

    Attributes:
        names: for a weight's name and shape, those of its codes and scales; ValueError if the
            format cannot hold it.
        config: `quantization_config` from settings, quantised modules and those left in float.
        metadata: of each file.
    """

    names: Callable[[str, Sequence[int]], tuple[str, str]]
    config: Callable[[Settings, Sequence[str], Sequence[str]], dict[str, Any]]
    metadata: Callable[[Settings], dict[str, str]]


TARGETS = {
    ours.NAME: Target(ours.names, ours.config, ours.metadata),
    compressed_tensors.NAME: Target(
        compressed_tensors.names, compressed_tensors.config, compressed_tensors.metadata
    ),
}


def target(name: str) -> Target:
    if name not in TARGETS:
        raise ValueError(f"to must be one of {', '.join(TARGETS)}, got {name!r}")
    return TARGETS[name]
