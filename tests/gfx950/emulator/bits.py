"""Functions of NumPy arrays that NumPy does not have: shifts, bit fields, bytes, packing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from . import floats as fl
from .wave import M32, Row

Fn = Callable[..., Row]


def shift_left(count: Row, x: Row) -> Row:
    return x << (count & (8 * x.dtype.itemsize - 1)).astype(x.dtype)


def shift_right(count: Row, x: Row) -> Row:
    return x >> (count & (8 * x.dtype.itemsize - 1)).astype(x.dtype)


def extract(x: Row, offset: Row, size: Row) -> Row:
    """Bit field extraction; signed for a signed x."""
    offset, size = offset.astype(np.int64) & 31, size.astype(np.int64) & 31
    value = x.astype(np.int64) >> offset & ((1 << size) - 1)
    if x.dtype == np.int32:
        top = 1 << np.maximum(size - 1, 0)
        value = np.where(size == 0, 0, (value ^ top) - top)
    return value.astype(x.dtype)


def byte_permute(high: Row, low: Row, selector: Row) -> Row:
    octets = np.empty((64, 16), np.uint8)
    octets[:, 0:4] = low.view(np.uint8).reshape(64, 4)
    octets[:, 4:8] = high.view(np.uint8).reshape(64, 4)
    octets[:, 8:12] = np.where(octets[:, 1:8:2] & 128, 255, 0)
    octets[:, 12], octets[:, 13:] = 0, 255
    choice = np.minimum(np.ascontiguousarray(selector).view(np.uint8).reshape(64, 4), 13)
    return np.take_along_axis(octets, choice.astype(np.intp), 1).view(np.uint32)[:, 0]


def align_bytes(high: Row, low: Row, count: Row, unit: int) -> Row:
    both = high.astype(np.uint64) << np.uint64(32) | low
    bits = (count & np.uint32(32 // unit - 1)).astype(np.uint64) * np.uint64(unit)
    return (both >> bits).astype(np.uint32)


def bit_reverse(x: Row) -> Row:
    octets = np.ascontiguousarray(x).view(np.uint8).reshape(64, 4)[:, ::-1]
    table = np.packbits(np.unpackbits(octets.copy(), bitorder="little"), bitorder="big")
    return table.view(np.uint32)


def leading_zeros(x: Row) -> Row:
    exponent = np.frexp(x.astype(np.float64))[1]
    return np.where(x == 0, M32, 32 - exponent).astype(np.uint32)


def trailing_zeros(x: Row) -> Row:
    exponent = np.frexp((x & -x.astype(np.int64)).astype(np.float64))[1]
    return np.where(x == 0, M32, exponent - 1).astype(np.uint32)


def ubyte(number: int) -> Fn:
    return lambda x: (x >> np.uint32(8 * number) & np.uint32(255)).astype(np.float32)


def pack_bf16(a: Row, b: Row) -> Row:
    return fl.to_bf16(a) | fl.to_bf16(b) << np.uint32(16)


def pack_f16(a: Row, b: Row) -> Row:
    low, high = (x.astype(np.float16).view(np.uint16).astype(np.uint32) for x in (a, b))
    return low | high << np.uint32(16)


def pack_f16_toward_zero(a: Row, b: Row) -> Row:
    def cut(x: Row) -> Row:
        near = x.astype(np.float16)
        away = np.abs(near.astype(np.float32)) > np.abs(x)
        return (near.view(np.uint16) - away).astype(np.uint32)

    return cut(a) | cut(b) << np.uint32(16)


def div_fixup(quotient: Row, denominator: Row, numerator: Row) -> Row:
    d, n = denominator, numerator
    exact = np.abs(n) / np.abs(d)  # 0, infinity or NaN in the special cases
    special = (d == 0) | (n == 0) | ~np.isfinite(d) | ~np.isfinite(n)
    size = np.where(special, exact, np.abs(quotient))
    distance = fl.exponent(n) - fl.exponent(d)
    # Too far apart for the quotient to be a number, whatever the steps before have made of it.
    size = np.where(special | (distance < 130), size, np.float32(np.inf))
    size = np.where(special | (distance >= -150), size, np.float32(0))
    signed = np.where(np.signbit(d) ^ np.signbit(n), -size, size)
    return np.where(np.isnan(size), np.float32(np.nan), signed).astype(np.float32)


def mad24(sign: bool, high: bool = False) -> Fn:
    def low24(x: Row) -> Row:
        value = x.astype(np.int64) & 0xFFFFFF
        return (value ^ 0x800000) - 0x800000 if sign else value

    def mad(a: Row, b: Row, *c: Row) -> Row:
        product = low24(a) * low24(b)
        product = product >> 32 if high else product
        return (product + (c[0].astype(np.int64) if c else 0)).astype(a.dtype)

    return mad


def bitwise3(first: Fn, second: Fn) -> Fn:
    return lambda a, b, c: second(first(a, b), c)
