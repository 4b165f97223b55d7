"""torch's own `F.linear`, without quantisation."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from .base import Bound, Loaded, Peer


class TorchLinear(Peer):
    def __init__(self, name: str, dtype: torch.dtype) -> None:
        self.name = name
        self.dtype = dtype
        self.weights = self.activations = str(dtype).removeprefix("torch.")
        self.bits = dtype.itemsize * 8

    def load(self, weight: Tensor, copies: int, threads: int) -> Loaded:
        weights = [weight.to(self.dtype, copy=True) for _ in range(copies)]

        def bind(x: Tensor) -> Bound:
            x = x.to(self.dtype)
            return Bound([partial(F.linear, x, w) for w in weights], Tensor.float)

        return Loaded(bind, weights[0].float())
