"""How far tensors agree, summed up over batches."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor


def counted(t: Tensor, mask: Tensor | None) -> Tensor:
    """`t [B, S, ...]` without the positions that `mask [B, S]` has 0 for.

    A tensor of other leading dimensions has no such positions, and stays whole.
    """
    if mask is None or t.shape[: mask.dim()] != mask.shape:
        return t
    return t[mask.to(t.device, torch.bool)]


@dataclass
class RelativeError:
    """|actual - expected| / |expected| in the Euclidean norm, over everything that was added."""

    difference: float = 0.0
    size: float = 0.0

    def add(self, actual: Tensor, expected: Tensor) -> None:
        expected = expected.float()
        difference = actual.to(expected.device).float() - expected
        self.difference += torch.linalg.vector_norm(difference).item() ** 2
        self.size += torch.linalg.vector_norm(expected).item() ** 2

    @property
    def value(self) -> float:
        if self.size == 0:
            return 0.0 if self.difference == 0 else math.inf
        return math.sqrt(self.difference / self.size)


@dataclass
class Mean:
    """The mean of all numbers that were added."""

    total: float = 0.0
    count: int = 0

    def add(self, values: Tensor) -> None:
        self.total += values.sum().item()
        self.count += values.numel()

    @property
    def value(self) -> float:
        return self.total / self.count if self.count else math.nan


@dataclass
class Agreement:
    """Of vectors along the last dimension; of what they say as logits, if they are."""

    error: RelativeError = field(default_factory=RelativeError)
    cosine: Mean = field(default_factory=Mean)
    top1: Mean = field(default_factory=Mean)
    kl: Mean = field(default_factory=Mean)

    def add(self, actual: Tensor, expected: Tensor, logits: bool) -> None:
        self.error.add(actual, expected)
        actual, expected = actual.to(expected.device).float(), expected.float()
        self.cosine.add(F.cosine_similarity(actual, expected, dim=-1))
        if logits:
            self.top1.add((actual.argmax(-1) == expected.argmax(-1)).float())
            logs = F.log_softmax(actual, -1), F.log_softmax(expected, -1)
            self.kl.add(F.kl_div(*logs, reduction="none", log_target=True).sum(-1))
