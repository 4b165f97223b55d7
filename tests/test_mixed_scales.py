"""Blocks whose scales lie near each other and far apart: kernels that put two blocks on one scale
where they can must give the same bits as those that do not."""

from __future__ import annotations

import pytest
import torch
from common import CPU_PATHS, Product, every_path, generator, quantized_values
from common import Path as RunPath
from oracle import decode
from torch import Tensor

import mxfp4_ops

SPREADS = (0, 1, 3, 4, 8, 40, 120)


def operands(spread: int, m: int, n: int, blocks: int) -> tuple[Tensor, Tensor, Tensor]:
    """Activations and a weight with scales of 2**-spread to 2**spread, and blocks of zeros."""
    g = generator(spread * 1000 + m)

    def exponents(rows: int) -> Tensor:
        return torch.randint(-spread, spread + 1, (rows, blocks), generator=g)

    def some(rows: int) -> Tensor:
        return torch.rand(rows, blocks, generator=g) < 0.15

    x = torch.randn(m, blocks, 32, generator=g) * exponents(m).float().exp2().unsqueeze(-1)
    x[some(m)] = 0
    codes = torch.randint(0, 256, (n, blocks, 16), dtype=torch.uint8, generator=g)
    scales = (127 + exponents(n)).to(torch.uint8)
    zero = some(n)
    codes[zero] = 0
    scales[zero & some(n).logical_not()] = 0  # as `quantize` writes it; others keep a scale
    return x.flatten(1), codes.flatten(1), scales


@every_path
@pytest.mark.parametrize("spread", SPREADS[:-1])  # beyond, sums overflow
@pytest.mark.parametrize(("m", "n", "blocks"), [(1, 17, 1), (16, 40, 8), (37, 33, 19)])
def test_products(path: RunPath, spread: int, m: int, n: int, blocks: int) -> None:
    x, codes, scales = operands(spread, m, n, blocks)
    with path.active():
        y = mxfp4_ops.quant_mm(*(t.to(path.device) for t in (x, codes, scales)))
    Product.of(quantized_values(x), decode(codes, scales)).check(y)


@pytest.mark.skipif(len(CPU_PATHS) < 2, reason="needs C++ kernels for two instruction sets")
@pytest.mark.parametrize("shuffled", [False, True], ids=["plain", "shuffled"])
@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize(
    ("m", "n", "blocks"), [(12, 16, 2), (16, 40, 8), (37, 33, 19), (53, 70, 7)]
)
def test_instruction_sets_agree(spread: int, m: int, n: int, blocks: int, shuffled: bool) -> None:
    x, *weight = operands(spread, m, n, blocks)
    if shuffled:
        weight = list(mxfp4_ops.shuffle(*weight))
    results = []
    for path in CPU_PATHS:
        with path.active():
            results.append(mxfp4_ops.quant_mm(x, *weight, shuffled=shuffled).view(torch.int32))
    for result in results[1:]:
        assert torch.equal(result, results[0])


@every_path
@pytest.mark.parametrize("m", [1, 12, 16, 33])
@pytest.mark.parametrize("block", [0, 1, 4])
def test_nan_scale_of_a_block_of_zeros(path: RunPath, m: int, block: int) -> None:
    x, codes, scales = operands(1, m, 24, 5)
    codes.unflatten(1, (5, 16))[3, block] = 0
    scales[3, block] = 255
    with path.active():
        y = mxfp4_ops.quant_mm(*(t.to(path.device) for t in (x, codes, scales))).isnan()
    expected = torch.zeros_like(y)
    expected[:, 3] = True
    assert torch.equal(y, expected)
