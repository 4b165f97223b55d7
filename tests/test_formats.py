"""The reference conversions against the definition, for every input that can be enumerated."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import oracle
import pytest
import torch
from blocks import all_patterns, amax_boundaries, random_patterns, special_blocks
from common import (
    DTYPES,
    assert_same_bits,
    every_dtype,
    every_mode,
)
from oracle import FORMATS, TWO, Bits

from mxfp4_ops.formats import dequantize_reference, quantize_reference


def check(bits: Bits, dtype: torch.dtype, mode: str) -> None:
    """`quantize_reference` of blocks `[B, 32]` of bit patterns is what the oracle says."""
    codes, byte = oracle.quantize(bits, FORMATS[dtype], mode)
    q, scale = quantize_reference(oracle.from_bits(bits, dtype), mode)
    assert_same_bits(q, oracle.pack(codes))
    assert_same_bits(scale, torch.from_numpy(byte.astype(np.uint8)).unsqueeze(-1))


@every_dtype
@every_mode
def test_the_array_oracle_follows_the_definition(dtype: torch.dtype, mode: str) -> None:
    fmt = FORMATS[dtype]
    for block in random_patterns(dtype, 100, seed=1):
        codes, byte = oracle.quantize(block, fmt, mode)
        magnitudes, expected = oracle.quantize_block(
            [oracle.magnitude(int(b), fmt) for b in block], mode
        )
        assert byte == expected
        assert (codes & 7).tolist() == magnitudes


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@every_mode
def test_every_16_bit_pattern_as_the_largest_of_its_block(dtype: torch.dtype, mode: str) -> None:
    check(all_patterns(dtype), dtype, mode)


@every_dtype
@every_mode
def test_random_bit_patterns(dtype: torch.dtype, mode: str) -> None:
    check(random_patterns(dtype, 20_000, seed=2), dtype, mode)


@every_mode
def test_amax_one_ulp_around_each_boundary(mode: str) -> None:
    check(amax_boundaries(), torch.float32, mode)


@every_dtype
@every_mode
def test_special_blocks(dtype: torch.dtype, mode: str) -> None:
    check(special_blocks(dtype), dtype, mode)


def test_amax_at_the_boundaries_in_numbers() -> None:
    """The scale's exponent for amax = m * 2**4, straight from the definition of each mode."""
    mantissas = [1.0, 1.5, 1.5 + 2**-23, 1.75 - 2**-23, 1.75, 2 - 2**-23]
    x = torch.zeros(len(mantissas), 32)
    x[:, 7] = torch.tensor(mantissas) * 16
    for mode, exponents in {
        "floor": [2, 2, 2, 2, 2, 2],
        "even": [2, 2, 2, 2, 3, 3],
        "ceil": [2, 2, 3, 3, 3, 3],
    }.items():
        scale = quantize_reference(x, mode)[1]
        assert (scale.flatten().int() - 127).tolist() == exponents, mode


@every_mode
def test_every_tie_at_every_scale(mode: str) -> None:
    """Midpoints, and the floats next to them, for each scale that a finite maximum gives.

    5 * 2**s is the largest of each block, so that every mode gives the scale 2**s.
    """
    midpoints = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    scales = torch.arange(-127, 126)
    ties = oracle.ldexp(midpoints, scales[:, None]).float()
    above = torch.nextafter(ties, torch.tensor(torch.inf))
    below = torch.nextafter(ties, torch.tensor(0.0))
    largest = ties[:, 6:]
    expected = {"tie": [0, 2, 2, 4, 4, 6, 6], "below": [0, 1, 2, 3, 4, 5, 6], "above": range(1, 8)}
    for name, numbers in {"tie": ties, "below": below, "above": above}.items():
        block = torch.cat((numbers, -numbers, largest, torch.zeros(len(scales), 17)), 1)
        q, scale = quantize_reference(block, mode)
        assert scale.flatten().tolist() == (scales + 127).tolist()
        codes = torch.stack((q & 15, q >> 4), -1).flatten(-2)
        assert (codes[:, :7] == torch.tensor(list(expected[name]))).all()
        assert (codes[:, 7:14] == torch.tensor(list(expected[name])) + 8).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_code_with_every_scale(dtype: torch.dtype) -> None:
    fmt = FORMATS[dtype]
    codes = np.tile(np.arange(16, dtype=np.uint8), (256, 2))
    scale = torch.arange(256, dtype=torch.uint8).unsqueeze(-1)
    actual = dequantize_reference(oracle.pack(codes), scale, dtype)
    assert actual[255].isnan().all()
    expected = [
        [
            oracle.encode(Fraction(oracle.MAGNITUDES[c & 7]) * TWO ** (b - 127), c > 7, fmt)
            for c in range(16)
        ]
        for b in range(255)
    ]
    assert_same_bits(actual[:255], oracle.from_bits(np.tile(expected, (1, 2)), dtype))


@pytest.mark.parametrize("mode", ["", "EVEN", "round"])
def test_unknown_mode(mode: str) -> None:
    with pytest.raises(ValueError, match="scale_mode"):
        quantize_reference(torch.ones(32), mode)
