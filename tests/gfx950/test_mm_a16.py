"""The portable `mm_a16` compiled for gfx950, executed in emulation, against float64."""

from __future__ import annotations

import pytest
import torch
from common import Product, activation, random_weight

from mxfp4_ops.backends.triton import gfx950

from .emulation import Form


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(("m", "n", "k", "shuffled"), [(3, 31, 288, False), (61, 40, 96, True)])
def test_sizes(dtype: torch.dtype, m: int, n: int, k: int, shuffled: bool) -> None:
    x, weight = activation(m, k, dtype=dtype), random_weight(n, k)
    values = weight.padded_values(shuffled)
    out = torch.full((m, len(values)), torch.nan, dtype=torch.float32)
    bias = torch.randn(len(values))
    Form().run(gfx950.mm_a16(x, *weight.on("cpu", shuffled), bias, out, shuffled))
    Product.of(x.double(), values, bias).check(out)
