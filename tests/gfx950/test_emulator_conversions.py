"""Conversions, approximations and division of the emulator."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import oracle
import pytest
import torch

from .float_lanes import F16, exact, floats, nearest, same
from .single import bits, execute, integers, read


def test_to_integers() -> None:
    values = [
        0.0,
        -0.9,
        0.99,
        1.5,
        -1.5,
        2147483520.0,
        2147483648.0,
        -2147483648.0,
        -3e9,
        4294967040.0,
        4.3e9,
    ]
    patterns = np.resize(bits([*values, math.nan, math.inf, -math.inf, *[7.0] * 50], "float32"), 64)
    w = execute("v_cvt_i32_f32_e32 v1, v0\nv_cvt_u32_f32_e32 v2, v0", {0: patterns})
    exacts = [math.trunc(v) for v in values] + [0, 1 << 40, -(1 << 40)]
    assert read(w, 1)[:14].view(np.int32).tolist() == [
        min(max(x, -(1 << 31)), (1 << 31) - 1) for x in exacts
    ]
    assert read(w, 2)[:14].tolist() == [min(max(x, 0), (1 << 32) - 1) for x in exacts]


def test_from_integers() -> None:
    a = integers(3)
    text = """v_cvt_f32_u32_e32 v1, v0
        v_cvt_f32_i32_e32 v2, v0
        v_cvt_f32_ubyte0_e32 v3, v0
        v_cvt_f32_ubyte3_e32 v4, v0
        v_cvt_f64_i32_e32 v[6:7], v0
        v_cvt_f32_f64_e32 v8, v[6:7]"""
    w = execute(text, {0: a})
    signed = a.view(np.int32).tolist()
    assert read(w, 1).tolist() == [nearest(Fraction(int(x))) for x in a]
    assert read(w, 2).tolist() == [nearest(Fraction(x)) for x in signed] == read(w, 8).tolist()
    assert read(w, 3).tolist() == [nearest(Fraction(int(x) & 255)) for x in a]
    assert read(w, 4).tolist() == [nearest(Fraction(int(x) >> 24)) for x in a]


def test_to_bfloat16_and_float16() -> None:
    ties = np.arange(0x3F808000 - 32, 0x3F808000 + 32, dtype=np.uint32)
    for a in (ties, ties + np.uint32(0x10000), *(floats(seed) for seed in range(4))):
        b = floats(9)
        text = """v_cvt_pk_bf16_f32 v2, v0, v1
            v_cvt_pk_f16_f32 v3, v0, v1
            v_cvt_f16_f32_e32 v4, v0
            v_cvt_pkrtz_f16_f32 v5, v0, v1"""
        w = execute(text, {0: a, 1: b})
        for register, dtype in ((2, torch.bfloat16), (3, torch.float16)):
            fmt, got = oracle.FORMATS[dtype], read(w, register)
            for source, half in ((a, got & 0xFFFF), (b, got >> 16)):
                expected = oracle.bits_of(
                    oracle.from_bits(source.astype(np.int64), torch.float32).to(dtype)
                )
                assert all(same(int(x), int(y), fmt) for x, y in zip(half, expected, strict=True))
        assert all(
            same(int(x), int(y) & 0xFFFF, F16) for x, y in zip(read(w, 4), read(w, 3), strict=True)
        )
        for x, source in zip(read(w, 5) & 0xFFFF, a, strict=True):
            value, cut = exact(int(source)), exact(int(x), F16)
            if value is not None and cut is not None:
                assert abs(cut) <= abs(value)
                assert nearest(value, F16, bool(source >> 31)) - int(x) in (0, 1)


APPROXIMATE: dict[str, tuple[Callable[[float], float], list[tuple[float, float]]]] = {
    "v_rcp_f32_e32 v1, v0": (
        lambda x: 1 / x,
        [(math.inf, 0.0), (-math.inf, -0.0), (0.0, math.inf), (-0.0, -math.inf), (1e-40, math.inf)],
    ),
    "v_exp_f32_e32 v1, v0": (
        lambda x: 2.0**x,
        [(-math.inf, 0.0), (-0.0, 1.0), (math.inf, math.inf), (-130.0, 0.0), (128.0, math.inf)],
    ),
    "v_log_f32_e32 v1, v0": (
        lambda x: math.log2(x) if x > 0 else math.nan,
        [(1.0, 0.0), (0.0, -math.inf), (-0.0, -math.inf), (math.inf, math.inf), (-1.0, math.nan)],
    ),
    "v_rsq_f32_e32 v1, v0": (
        lambda x: x**-0.5 if x > 0 else math.nan,
        [(4.0, 0.5), (0.0, math.inf), (-0.0, -math.inf), (math.inf, 0.0), (-1.0, math.nan)],
    ),
    "v_sqrt_f32_e32 v1, v0": (
        lambda x: x**0.5 if x >= 0 else math.nan,
        [(4.0, 2.0), (-0.0, -0.0), (math.inf, math.inf), (-math.inf, math.nan)],
    ),
}


@pytest.mark.parametrize("text", APPROXIMATE)
def test_approximations(text: str) -> None:
    """Within the unit in the last place that the manual promises, and its examples."""
    fn, examples = APPROXIMATE[text]
    x = np.random.default_rng(0).uniform(-20, 20, 64).astype(np.float32)
    got = read(execute(text, {0: bits(x, "float32")}), 1).view(np.float32)
    for value, result in zip(x, got, strict=True):
        expected = fn(float(value))
        assert np.isnan(result) if math.isnan(expected) else abs(result / expected - 1) < 2**-23
    for argument, expected in examples:
        result = int(read(execute(text, {0: bits(argument, "float32")}), 1)[0])
        assert same(result, int(bits(expected, "float32")[0])), argument


def test_ldexp_and_frexp() -> None:
    a = floats(2)
    exponents = np.random.default_rng(1).integers(-300, 300, 64)
    text = """v_ldexp_f32 v2, v0, v1
        v_frexp_mant_f32_e32 v3, v0
        v_frexp_exp_i32_f32_e32 v4, v0"""
    w = execute(text, {0: a, 1: exponents.astype(np.int32).view(np.uint32)})
    for i in range(64):
        value = exact(int(a[i]))
        if value:
            scaled = value * Fraction(2) ** int(exponents[i])
            assert int(read(w, 2)[i]) == nearest(scaled, negative_zero=value < 0)
            part = exact(int(read(w, 3)[i])) or Fraction(0)
            assert Fraction(1, 2) <= abs(part) < 1
            assert part * Fraction(2) ** int(read(w, 4).view(np.int32)[i]) == value


DIVISION = """v_div_scale_f32 v2, s[0:1], v1, v1, v0
    v_div_scale_f32 v3, vcc, v0, v1, v0
    v_rcp_f32_e32 v4, v2
    v_fma_f32 v5, -v2, v4, 1.0
    v_fmac_f32_e32 v4, v5, v4
    v_mul_f32_e32 v5, v3, v4
    v_fma_f32 v6, -v2, v5, v3
    v_fmac_f32_e32 v5, v6, v4
    v_fma_f32 v2, -v2, v5, v3
    v_div_fmas_f32 v2, v2, v4, v5
    v_div_fixup_f32 v2, v2, v1, v0"""


def test_division_as_compiled() -> None:
    """The sequence for IEEE division gives the correctly rounded quotient."""
    for seed in range(12):
        a, b = floats(seed), floats(seed + 30)
        got = read(execute(DIVISION, {0: a, 1: b}), 2)
        with np.errstate(all="ignore"):
            want = bits(a.view(np.float32) / b.view(np.float32), "float32")
        for x, y, p, q in zip(got.tolist(), want.tolist(), a.tolist(), b.tolist(), strict=True):
            assert same(x, y), (hex(p), hex(q))
