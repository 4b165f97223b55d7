"""Lanes of floats for tests, and exact arithmetic on their patterns."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import oracle
import torch

from .single import U32, bits

F16, F32 = oracle.FORMATS[torch.float16], oracle.FORMATS[torch.float32]
NAN = 0x7FC00000
SPECIAL = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 1e-45, -1e-40, 2.0**-126, 3.4e38]


def floats(seed: int, dtype: str = "float32") -> U32:
    """Patterns: specials, numbers near 1, and random ones of any size."""
    g = np.random.default_rng(seed)
    near = g.standard_normal(25).astype(dtype)
    width = 8 * near.itemsize
    some = g.integers(0, 1 << width, 28).astype(f"uint{width}").view(dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        values = np.concatenate((np.array(SPECIAL).astype(dtype), near, some))
    return bits(g.permutation(values), dtype)


def exact(pattern: int, fmt: oracle.FloatFormat = F32) -> Fraction | None:
    """The number of a pattern, None for Inf and NaN."""
    size = oracle.magnitude(pattern, fmt)
    return -size if size is not None and pattern & fmt.sign else size


def nearest(value: Fraction, fmt: oracle.FloatFormat = F32, negative_zero: bool = False) -> int:
    return oracle.encode(abs(value), value < 0 or (not value and negative_zero), fmt)


def is_nan(pattern: int, fmt: oracle.FloatFormat = F32) -> bool:
    return pattern & (fmt.sign - 1) > fmt.infinity


def same(actual: int, expected: int, fmt: oracle.FloatFormat = F32) -> bool:
    return actual == expected or (is_nan(actual, fmt) and is_nan(expected, fmt))
