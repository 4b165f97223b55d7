"""Weights of experts, and what their grouped product must be."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from common import Product, Weight, activation, generator, quantized_values, random_codes
from torch import Tensor


@dataclass(frozen=True)
class Experts:
    """Operands of `grouped_quant_mm`, on the CPU.

    Attributes:
        x: `[T, K]`.
        begins: where the groups begin, and T.
    """

    x: Tensor
    codes: Tensor
    scales: Tensor
    begins: list[int]
    bias: Tensor | None = None

    @classmethod
    def of(
        cls,
        counts: list[int],
        n: int,
        k: int,
        *,
        dtype: torch.dtype = torch.bfloat16,
        bias: torch.dtype | None = None,
        seed: int = 0,
    ) -> Experts:
        """With so many rows for each."""
        begins = [sum(counts[:e]) for e in range(len(counts) + 1)]
        x = activation(begins[-1], k, dtype=dtype, seed=seed)
        codes, scales = random_codes(len(counts), n, k, seed=seed)
        added = 9 * torch.randn(len(counts), n, generator=generator(seed))
        return cls(x, codes, scales, begins, None if bias is None else added.to(bias))

    @property
    def groups(self) -> list[slice]:
        return [slice(*pair) for pair in pairwise(self.begins)]

    def arguments(self, device: str = "cpu", offset_dtype: torch.dtype = torch.int32) -> list[Any]:
        offsets = torch.tensor(self.begins, dtype=offset_dtype)
        tensors = self.x, self.codes, self.scales, offsets, self.bias
        return [None if t is None else t.to(device) for t in tensors]

    def values(self, expert: int) -> Tensor:
        return Weight.of(self.codes[expert], self.scales[expert]).values

    def check(self, y: Tensor, mode: str = "even") -> None:
        """Each expert's rows are a product; there are no others."""
        assert y.shape == (len(self.x), self.codes.shape[1])
        for expert, rows in enumerate(self.groups):
            bias = None if self.bias is None else self.bias[expert]
            x = quantized_values(self.x[rows], mode)
            Product.of(x, self.values(expert), bias).check(y[rows])
