"""Blocks of 32 bit patterns in which a quantiser can go wrong."""

from __future__ import annotations

import numpy as np
import torch
from oracle import FORMATS, Bits, ldexp


def all_patterns(dtype: torch.dtype) -> Bits:
    """One block for each 16-bit pattern: the pattern, then finite values at or below it.

    The companions cover the 6 binades below the maximum (code 0 begins within the fourth), with
    both signs, and both zeros.
    """
    fmt = FORMATS[dtype]
    binade = 1 << fmt.mantissa_bits
    eighths = [
        0,
        1,
        2,
        3,
        4,
        5,
        6,
        7,
        8,
        10,
        11,
        12,
        14,
        16,
        17,
        18,
        20,
        22,
        24,
        25,
        28,
        32,
        36,
        47,
    ]
    below = np.array([e * binade // 8 for e in eighths] + [1, 2, 3, binade + 1, binade - 1])
    patterns = np.arange(1 << 16, dtype=np.int64)[:, None]
    magnitudes = np.minimum(patterns & (fmt.sign - 1), fmt.infinity - 1)
    companions = np.maximum(magnitudes - below, 0)
    companions[:, 1::2] |= fmt.sign
    zeros = np.tile(np.array([0, fmt.sign]), (1 << 16, 1))
    return np.concatenate((patterns, companions, zeros), 1)


def random_patterns(dtype: torch.dtype, blocks: int, seed: int) -> Bits:
    """Random bit patterns: half of the blocks over the whole range, half within 8 binades."""
    fmt = FORMATS[dtype]
    rng = np.random.default_rng(seed)
    anything = rng.integers(0, 2 * fmt.sign, (blocks // 2, 32))
    lowest = rng.integers(0, fmt.infinity - (8 << fmt.mantissa_bits), (blocks - blocks // 2, 1))
    near = lowest + rng.integers(0, 8 << fmt.mantissa_bits, (blocks - blocks // 2, 32))
    near |= fmt.sign * rng.integers(0, 2, near.shape)
    return np.concatenate((anything, near))


def amax_boundaries() -> Bits:
    """float32 blocks whose maximum is m * 2**n for m = 1, 1.5, 1.75, and one ulp to either side."""
    exponents = torch.arange(-149, 128)
    mantissas = torch.tensor([1.0, 1.5, 1.75])
    numbers = ldexp(mantissas, exponents[:, None]).float().flatten()  # rounded if subnormal
    exact = numbers.view(torch.int32).numpy().astype(np.int64)
    amax = np.unique(np.concatenate((exact - 1, exact, exact + 1)))
    amax = amax[amax > 0, None]
    companions = np.maximum(amax - np.arange(31) * (1 << 22), 0)
    return np.concatenate((companions[:, :17], amax, companions[:, 17:]), 1)


def special_blocks(dtype: torch.dtype) -> Bits:
    """Zeros of both signs, subnormals, NaNs of several payloads and Infs at several places."""
    fmt = FORMATS[dtype]
    one = (-fmt.emin + 1) << fmt.mantissa_bits
    normal = np.arange(32) * (1 << fmt.mantissa_bits) // 8 + one
    subnormal = np.arange(32) * (1 << fmt.mantissa_bits) // 32
    zeros = np.zeros(32, dtype=np.int64)
    mixed = np.where(np.arange(32) % 3, 0, fmt.sign)
    largest = np.full(32, fmt.infinity - 1)
    blocks = [
        zeros,
        zeros | fmt.sign,
        mixed,
        subnormal,
        subnormal | mixed,
        largest,
        largest | mixed,
    ]
    quiet = 1 << (fmt.mantissa_bits - 1)
    payloads = [0, 1, quiet - 1, quiet, quiet + 1, 2 * quiet - 1]  # 0 is Inf
    for base in (zeros, normal, subnormal, largest):
        for payload in payloads:
            for position in (0, 1, 15, 16, 30, 31):
                for sign in (0, fmt.sign):
                    block = base.copy()
                    block[position] = fmt.infinity | payload | sign
                    blocks.append(block)
    return np.stack(blocks)
