"""The kernels of all instruction sets against the scalar ones, bit for bit."""

from __future__ import annotations

import pytest
import torch
from common import CPU_PATHS, MODES, generator, plain_and_shuffled, random_codes
from common import Path as RunPath
from torch import Tensor

import mxfp4_ops
from mxfp4_ops.formats import ScaleMode

pytestmark = pytest.mark.skipif(len(CPU_PATHS) < 2, reason="needs two instruction sets' kernels")

SCALAR, *OTHERS = CPU_PATHS or [RunPath("cpu", "cpu")]
every_other = pytest.mark.parametrize("path", OTHERS, ids=str)

# The last panel of columns full or not, K of one block, in pairs, in fours and neither.
SHAPES = [(1, 32), (17, 96), (33, 288), (64, 512), (100, 1056)]
ROWS = [0, 1, 3, 8, 9, 12, 16, 17, 33, 64, 255, 256, 300]
# Scale bytes: near each other, far apart, at the ends of float32 with NaN, and of every kind.
SCALES = [(126, 128), (120, 131), (60, 190), (0, 255)]


def with_zero_blocks(codes: Tensor, scales: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Some blocks of zeros, most of them with the scale that `quantize` gives them."""
    g = generator(seed)
    zero = torch.rand(scales.shape, generator=g) < 0.1
    codes.view(*scales.shape, 16)[zero] = 0
    scales[zero & (torch.rand(scales.shape, generator=g) < 0.7)] = 0
    return codes, scales


def assert_same(actual: Tensor, expected: Tensor) -> None:
    # Which NaN it is may differ.
    nan = expected.isnan()
    assert torch.equal(actual.isnan(), nan)
    assert torch.equal(actual.view(torch.int32)[~nan], expected.view(torch.int32)[~nan])


@every_other
@plain_and_shuffled
@pytest.mark.parametrize("m", ROWS)
def test_product(path: RunPath, shuffled: bool, m: int) -> None:
    for n, k in SHAPES:
        for low, high in SCALES:
            a = with_zero_blocks(*random_codes(m, k, seed=m + n, low=low, high=high), seed=n)
            b = with_zero_blocks(*random_codes(n, k, seed=m + k, low=low, high=high), seed=k)
            if shuffled:
                b = mxfp4_ops.shuffle(*b)
            bias = torch.randn(len(b[0]), generator=generator(m)) if m % 2 else None
            results = []
            for run in (path, SCALAR):
                with run.active():
                    y = mxfp4_ops.mm(*a, *b, bias, out_dtype=torch.float32, shuffled=shuffled)
                    results.append(y)
            assert_same(*results)


@every_other
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "largest", [1.0, 1.25, 1.5, 1.625, 1.75, 1.9921875, 6.0, 1e-38, 3e-38, 1e-37, 1e30, 3e38]
)
def test_quantize_every_bfloat16_below(path: RunPath, mode: ScaleMode, largest: float) -> None:
    bits = torch.arange(65536, dtype=torch.int32).to(torch.int16)
    every = bits.view(torch.bfloat16)
    most = torch.tensor(largest).to(torch.bfloat16)
    every = every[every.abs() <= most]  # without NaN
    blocks = every[: len(every) // 31 * 31].view(-1, 31)
    blocks = torch.cat([blocks, most.expand(len(blocks), 1)], dim=1).repeat(2, 1)
    x = blocks[: len(blocks) // 9 * 9].reshape(-1, 9 * 32)  # eight at once, and one left
    assert x.numel()
    results = []
    for run in (path, SCALAR):
        with run.active():
            results.append(mxfp4_ops.quantize(x, scale_mode=mode))
    for actual, expected in zip(*results, strict=True):
        assert torch.equal(actual, expected)
