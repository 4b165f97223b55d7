"""Float arithmetic as the hardware rounds it: nearest even, denormals kept, IEEE mode."""

from __future__ import annotations

import numpy as np

from .wave import Row

TINY = np.float32(2.0**-126)


def bits_of(x: Row) -> Row:
    """The pattern of floats, as unsigned integers of their size."""
    return x.view(f"u{x.dtype.itemsize}")


def fma(a: Row, b: Row, c: Row) -> Row:
    """a * b + c rounded once, for float32 and float16.

    The product is exact in float64. The sum is made odd where it is inexact, which keeps the
    second rounding, to the result's type, from being one too many.
    """
    return fused(a, b, c).astype(a.dtype)


def fused(a: Row, b: Row, c: Row) -> Row:
    """a * b + c in float64, still to be rounded."""
    return round_odd_sum(a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64))


def round_odd_sum(a: Row, b: Row) -> Row:
    """a + b in float64, its last bit set where the sum is inexact."""
    total = a + b
    back = total - a
    error = (a - (total - back)) + (b - back)
    inexact = np.isfinite(total) & (error != 0)
    if not inexact.any():
        return total
    pattern = total.view(np.int64)
    toward = np.where((error > 0) == (total > 0), 1, -1)
    return np.where(inexact & (pattern & 1 == 0), pattern + toward, pattern).view(np.float64)


def fma64(a: Row, b: Row, c: Row) -> Row:
    """a * b + c in float64, rounded once, by exact rational arithmetic."""
    from fractions import Fraction

    finite = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    result = a * b + c
    for i in np.flatnonzero(finite & (c != 0) & (a * b != 0)):
        exact = Fraction(float(a[i])) * Fraction(float(b[i])) + Fraction(float(c[i]))
        if exact:  # where it cancels, a * b + c has the sign
            result[i] = _nearest(exact)
    return result


def _nearest(value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")  # type: ignore[operator]


def _signaling(x: Row) -> Row:
    mantissa = {2: 10, 4: 23, 8: 52}[x.dtype.itemsize]
    return np.isnan(x) & (bits_of(x) >> (mantissa - 1) & 1 == 0)


def quiet(x: Row) -> Row:
    """NaNs with their quiet bit set."""
    nan = np.isnan(x)
    if not nan.any():
        return x
    mantissa = {2: 10, 4: 23, 8: 52}[x.dtype.itemsize]
    pattern = bits_of(x)
    bit = pattern.dtype.type(1 << (mantissa - 1))
    return np.where(nan, pattern | bit, pattern).view(x.dtype)


def _extreme(a: Row, b: Row, larger: bool) -> Row:
    result = np.fmax(a, b) if larger else np.fmin(a, b)
    equal = a == b  # also +0 and -0, of which the larger is +0
    if equal.any():
        x, y = bits_of(a), bits_of(b)
        tied = (x & y if larger else x | y).view(a.dtype)
        result = np.where(equal, tied, result)
    if (np.isnan(a) | np.isnan(b)).any():
        result = np.where(_signaling(b), quiet(b), result)
        result = np.where(_signaling(a), quiet(a), result)
    return result


def maximum(a: Row, b: Row) -> Row:
    """The larger number; the other one beside a quiet NaN; a signaling NaN, made quiet."""
    return _extreme(a, b, True)


def minimum(a: Row, b: Row) -> Row:
    return _extreme(a, b, False)


def ieee_maximum(a: Row, b: Row) -> Row:
    """IEEE 754-2019 maximum, which yields NaN beside a NaN."""
    return np.where(np.isnan(a) | np.isnan(b), quiet(a + b), _extreme(a, b, True))


def ieee_minimum(a: Row, b: Row) -> Row:
    return np.where(np.isnan(a) | np.isnan(b), quiet(a + b), _extreme(a, b, False))


def median(a: Row, b: Row, c: Row) -> Row:
    nan = np.isnan(a) | np.isnan(b) | np.isnan(c)
    middle = maximum(minimum(a, b), minimum(maximum(a, b), c))
    return np.where(nan, minimum(minimum(a, b), c), middle)


def clamp(x: Row) -> Row:
    """Into 0..1, NaN becoming 0."""
    return np.where(np.isnan(x), 0, np.clip(x, 0, 1)).astype(x.dtype)


def flush(x: Row) -> Row:
    """Denormals of float32 as zeros of their sign."""
    return np.where(np.abs(x) < TINY, np.copysign(np.float32(0), x), x)


def exp2(x: Row) -> Row:
    return flush(np.exp2(flush(x).astype(np.float64)).astype(np.float32))


def log2(x: Row) -> Row:
    return np.log2(flush(x).astype(np.float64)).astype(np.float32)


def reciprocal(x: Row) -> Row:
    return flush((1 / flush(x).astype(np.float64)).astype(np.float32))


def rsqrt(x: Row) -> Row:
    return (1 / np.sqrt(flush(x).astype(np.float64))).astype(np.float32)


def sqrt(x: Row) -> Row:
    return np.sqrt(flush(x).astype(np.float64)).astype(np.float32)


def ldexp(x: Row, exponent: Row) -> Row:
    """x * 2**exponent, rounded once."""
    wide = np.ldexp(x.astype(np.float64), np.clip(exponent.astype(np.int64), -600, 600))
    return wide.astype(x.dtype)


def to_integer(x: Row, low: int, high: int) -> Row:
    """Toward zero, saturating, NaN becoming 0."""
    return np.clip(np.where(np.isnan(x), 0, np.trunc(x.astype(np.float64))), low, high).astype(
        np.int64
    )


def to_bf16(x: Row) -> Row:
    """Patterns of the nearest bfloat16, ties to even, of float32 or float64."""
    if x.dtype == np.float64:
        x = narrow_odd(x)
    pattern = bits_of(x)
    rounded = pattern + np.uint32(0x7FFF) + (pattern >> np.uint32(16) & np.uint32(1))
    return np.where(np.isnan(x), pattern | np.uint32(1 << 22), rounded) >> np.uint32(16)


def narrow_odd(x: Row) -> Row:
    """float64 to float32 toward zero, the last bit set where that is inexact."""
    near = x.astype(np.float32)
    away = np.abs(near.astype(np.float64)) > np.abs(x)
    pattern = near.view(np.uint32) - away.astype(np.uint32)
    inexact = pattern.view(np.float32).astype(np.float64) != x
    return np.where(np.isnan(x), near.view(np.uint32), pattern | inexact).view(np.float32)


def exponent(x: Row) -> Row:
    """The exponent field of float32."""
    return (x.view(np.uint32) >> np.uint32(23) & np.uint32(255)).astype(np.int64)


def frexp_fraction(x: Row) -> Row:
    """x as a fraction in 0.5..1 times a power of two."""
    return np.where(np.isfinite(x), np.frexp(x)[0], x)


def frexp_exponent(x: Row) -> Row:
    """The exponent of that power, 0 for Inf and NaN."""
    return np.where(np.isfinite(x), np.frexp(x)[1], np.int32(0))


def classify(x: Row, wanted: Row) -> Row:
    """V_CMP_CLASS: whether the class of x is in the 10-bit set `wanted`."""
    negative, mantissa = np.signbit(x), {2: 10, 4: 23, 8: 52}[x.dtype.itemsize]
    pattern = bits_of(x) & bits_of(np.abs(x))
    field = pattern >> mantissa
    kind = np.where(field == 0, np.where(x == 0, 6, 7), 8)
    kind = np.where(np.isinf(x), 9, kind)
    kind = np.where(negative, 11 - kind, kind)  # 2..5 mirror 6..9
    kind = np.where(np.isnan(x), np.where(_signaling(x), 0, 1), kind)
    return (wanted.astype(np.int64) >> kind & 1).astype(np.bool_)
