"""Float arithmetic of the emulator, against exact arithmetic rounded by the oracle."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from .emulator.operands import VCC
from .float_lanes import F16, NAN, SPECIAL, exact, floats, is_nan, nearest, same
from .single import bits, execute, per_lane, read, scalar

# v4 = f(v0, v1, v2) where all of them are finite.
FINITE: dict[str, Callable[[Fraction, Fraction, Fraction], Fraction]] = {
    "v_add_f32_e32 v4, v0, v1": lambda a, b, c: a + b,
    "v_sub_f32_e32 v4, v0, v1": lambda a, b, c: a - b,
    "v_subrev_f32_e32 v4, v0, v1": lambda a, b, c: b - a,
    "v_mul_f32_e32 v4, v0, v1": lambda a, b, c: a * b,
    "v_mul_f32_e64 v4, |v0|, -v1": lambda a, b, c: abs(a) * -b,
    "v_mul_f32_e64 v4, -|v0|, 0.5": lambda a, b, c: -abs(a) / 2,
    "v_fma_f32 v4, v0, v1, v2": lambda a, b, c: a * b + c,
    "v_fma_f32 v4, -v0, v1, 1.0": lambda a, b, c: 1 - a * b,
    "v_fmac_f32_e32 v2, v0, v1\nv_mov_b32_e32 v4, v2": lambda a, b, c: a * b + c,
    "v_fmamk_f32 v4, v0, 0x4f800000, v2": lambda a, b, c: a * 2**32 + c,
    "v_fmaak_f32 v4, v0, v1, 0x40490000": lambda a, b, c: a * b + Fraction(3.140625),
    "v_trunc_f32_e32 v4, v0": lambda a, b, c: Fraction(math.trunc(a)),
    "v_floor_f32_e32 v4, v0": lambda a, b, c: Fraction(math.floor(a)),
    "v_ceil_f32_e32 v4, v0": lambda a, b, c: Fraction(math.ceil(a)),
    "v_rndne_f32_e32 v4, v0": lambda a, b, c: Fraction(round(a)),
}


@pytest.mark.parametrize("text", FINITE)
def test_rounded_once(text: str) -> None:
    for seed in range(4):
        a, b, c = floats(seed), floats(seed + 10), floats(seed + 20)
        if seed == 0:  # sums that cancel, and ties
            c = a ^ np.uint32(0x80000000)
            b = bits(1.0, "float32")
        got = read(execute(text, {0: a, 1: b, 2: c}), 4)
        for lane in range(64):
            x, y, z = exact(int(a[lane])), exact(int(b[lane])), exact(int(c[lane]))
            if (
                x is not None
                and y is not None
                and z is not None
                and (value := FINITE[text](x, y, z))
            ):
                assert int(got[lane]) == nearest(value), (x, y, z)


def test_signed_zeros_and_specials() -> None:
    plus, minus, inf, one = bits([0.0, -0.0, np.inf, 1.0] * 16, "float32")[:4]
    text = """v_add_f32_e32 v10, v0, v1
        v_add_f32_e32 v11, v1, v1
        v_fma_f32 v12, v1, v3, v1
        v_fma_f32 v13, v3, v3, -1.0
        v_mul_f32_e32 v14, v2, v0
        v_add_f32_e64 v15, v2, -v2
        v_fma_f32 v16, v2, v3, v3"""
    w = execute(text, {0: plus, 1: minus, 2: inf, 3: one})
    got = [int(read(w, r)[0]) for r in range(10, 17)]
    assert got[:4] == [plus, minus, minus, plus]
    assert is_nan(got[4])
    assert is_nan(got[5])
    assert got[6] == inf


def larger(a: int, b: int) -> int:
    """The maximum of two patterns as the instruction set defines it."""
    for x in (a, b):
        if is_nan(x) and not x & 0x400000:
            return x | 0x400000
    if is_nan(a):
        return b
    if is_nan(b):
        return a
    return max(a, b, key=lambda p: -(p & 0x7FFFFFFF) - 1 if p >> 31 else p)


def smaller(a: int, b: int) -> int:
    if is_nan(a) or is_nan(b):
        return larger(a, b)
    return min(a, b, key=lambda p: -(p & 0x7FFFFFFF) - 1 if p >> 31 else p)


def middle(a: int, b: int, c: int) -> int:
    if any(map(is_nan, (a, b, c))):
        return smaller(smaller(a, b), c)
    return larger(smaller(a, b), smaller(larger(a, b), c))


EXTREMES: dict[str, Callable[[int, int, int], int]] = {
    "v_max_f32_e32 v4, v0, v1": lambda a, b, c: larger(a, b),
    "v_min_f32_e32 v4, v0, v1": lambda a, b, c: smaller(a, b),
    "v_max3_f32 v4, v0, v1, v2": lambda a, b, c: larger(larger(a, b), c),
    "v_min3_f32 v4, v0, v1, v2": lambda a, b, c: smaller(smaller(a, b), c),
    "v_med3_f32 v4, v0, v1, v2": middle,
    "v_maximum3_f32 v4, v0, v1, v2": lambda a, b, c: (
        NAN if any(map(is_nan, (a, b, c))) else larger(larger(a, b), c)
    ),
    "v_minimum3_f32 v4, v0, v1, v2": lambda a, b, c: (
        NAN if any(map(is_nan, (a, b, c))) else smaller(smaller(a, b), c)
    ),
}


@pytest.mark.parametrize("text", EXTREMES)
def test_extremes(text: str) -> None:
    for seed in range(3):
        a, b, c = floats(seed), floats(seed + 10), floats(seed + 20)
        if seed == 0:  # zeros of both signs, quiet and signaling NaNs against each other
            a = np.repeat([0, 1 << 31, NAN, 0x7F800001, 0xFF800001, 5, 1 << 30, 7], 8)
            b = np.tile(a[::8], 8)
        got = read(execute(text, {0: a, 1: b, 2: c}), 4)
        for x, y in zip(got.tolist(), per_lane(EXTREMES[text], a, b, c), strict=True):
            assert same(x, y)


RELATIONS: dict[str, Callable[[float, float], bool]] = {
    "v_cmp_lt_f32_e32 vcc, v0, v1": lambda a, b: a < b,
    "v_cmp_eq_f32_e32 vcc, v0, v1": lambda a, b: a == b,
    "v_cmp_le_f32_e32 vcc, v0, v1": lambda a, b: a <= b,
    "v_cmp_gt_f32_e64 vcc, |v0|, v1": lambda a, b: abs(a) > b,
    "v_cmp_lg_f32_e32 vcc, v0, v1": lambda a, b: a < b or a > b,
    "v_cmp_ge_f32_e64 vcc, -v0, v1": lambda a, b: -a >= b,
    "v_cmp_o_f32_e32 vcc, v0, v1": lambda a, b: a == a and b == b,
    "v_cmp_u_f32_e32 vcc, v0, v1": lambda a, b: a != a or b != b,
    "v_cmp_nge_f32_e32 vcc, v0, v1": lambda a, b: not a >= b,
    "v_cmp_nlg_f32_e32 vcc, v0, v1": lambda a, b: not (a < b or a > b),
    "v_cmp_ngt_f32_e32 vcc, v0, v1": lambda a, b: not a > b,
    "v_cmp_nle_f32_e32 vcc, v0, v1": lambda a, b: not a <= b,
    "v_cmp_neq_f32_e32 vcc, v0, v1": lambda a, b: a != b,
    "v_cmp_nlt_f32_e32 vcc, v0, v1": lambda a, b: not a < b,
    "v_cmp_gt_f32_e32 vcc, 0.5, v1": lambda a, b: b < 0.5,
}


@pytest.mark.parametrize("text", RELATIONS)
def test_relations(text: str) -> None:
    values = np.array([*SPECIAL[:8]], np.float32)
    a, b = np.repeat(values, 8), np.tile(values, 8)
    w = execute(text, {0: bits(a, "float32"), 1: bits(b, "float32")})
    truth = [RELATIONS[text](float(x), float(y)) for x, y in zip(a, b, strict=True)]
    assert scalar(w, VCC, 2) == sum(t << i for i, t in enumerate(truth))


def test_classes() -> None:
    examples = [
        0x7F800001,
        NAN,
        0xFF800000,
        0xC0000000,
        0x80000001,
        1 << 31,
        0,
        1,
        0x40000000,
        0x7F800000,
    ]
    text = "v_cmp_class_f32_e64 s[2:3], v0, v1"
    w = execute(text, {0: np.resize(examples, 64), 1: 1 << np.arange(64) // 10 % 10})
    got = scalar(w, 2, 2)
    assert [got >> i & 1 for i in range(60)] == [i % 10 == i // 10 for i in range(60)]


def test_float16_arithmetic() -> None:
    text = """v_add_f16_e32 v4, v0, v1
        v_mul_f16_e32 v5, v0, v1
        v_fma_f16 v6, v0, v1, v2
        v_pk_fma_f16 v7, v0, v1, v2
        v_pk_add_f16 v8, v0, v1 neg_lo:[0,1] neg_hi:[0,1]
        v_cvt_f32_f16_e32 v9, v0"""
    a, b, c = (floats(s, "float16") | floats(s + 5, "float16") << np.uint32(16) for s in range(3))
    w = execute(text, {0: a, 1: b, 2: c, 6: 0x12345678})
    got = [read(w, r) for r in range(4, 10)]
    for i in range(64):
        low = [exact(int(v[i]) & 0xFFFF, F16) for v in (a, b, c)]
        high = [exact(int(v[i]) >> 16, F16) for v in (a, b, c)]
        results = [int(g[i]) for g in got]
        for (x, y, z), half in ((low, 0), (high, 16)):
            if x is None or y is None or z is None:
                continue
            part = [r >> half & 0xFFFF for r in results]
            if x * y + z:
                assert part[3] == nearest(x * y + z, F16)
            if x - y:
                assert part[4] == nearest(x - y, F16)
            if half == 0:
                assert results[0] == nearest(x + y, F16) or not x + y
                assert results[1] == nearest(x * y, F16) or not x * y
                assert results[2] == part[3] + 0x12340000
                assert results[5] == nearest(x) or not x


def test_packed_float32() -> None:
    a, b, c, d = (floats(s) for s in range(4))
    text = """v_pk_add_f32 v[4:5], v[0:1], v[2:3]
        v_pk_mul_f32 v[6:7], v[0:1], s[2:3] op_sel_hi:[1,0]
        v_pk_fma_f32 v[8:9], v[0:1], v[2:3], v[0:1] op_sel:[1,0,0] op_sel_hi:[0,1,1]
        v_pk_mov_b32 v[10:11], v[0:1], v[2:3] op_sel:[1,0]"""
    w = execute(text, {0: a, 1: b, 2: c, 3: d}, {2: 0x3FC00000, 3: 0})
    with np.errstate(all="ignore"):
        f = [x.view(np.float32).astype(np.float64) for x in (a, b, c, d)]
        expected = {4: f[0] + f[2], 5: f[1] + f[3], 6: f[0] * 1.5, 7: f[1] * 1.5}
        for register, value in expected.items():
            want = bits(value.astype(np.float32), "float32")
            assert all(same(int(x), int(y)) for x, y in zip(read(w, register), want, strict=True))
    for lane in range(64):
        w0, w1, w2, w3 = (exact(int(v[lane])) for v in (a, b, c, d))
        if w0 is not None and w1 is not None and w2 is not None and w1 * w2 + w0:
            assert int(read(w, 8)[lane]) == nearest(w1 * w2 + w0)
        if w0 is not None and w1 is not None and w3 is not None and w0 * w3 + w1:
            assert int(read(w, 9)[lane]) == nearest(w0 * w3 + w1)
    assert read(w, 10, 2).tolist() == np.stack((b, c), axis=1).tolist()


def test_mixed_sizes() -> None:
    a, b, c = floats(1), floats(2, "float16") | floats(3, "float16") << np.uint32(16), floats(4)
    text = """v_fma_mix_f32 v4, v0, v1, v2 op_sel_hi:[0,1,0]
        v_fma_mix_f32 v5, -v1, |v0|, 1.0 op_sel:[1,0,0] op_sel_hi:[1,0,1]
        v_fma_mixlo_f16 v6, v1, 0.5, v1 op_sel:[1,0,0] op_sel_hi:[1,0,1]
        v_fma_mixhi_f16 v6, v1, v1, v1 op_sel:[1,0,0] op_sel_hi:[1,1,1]"""
    w = execute(text, {0: a, 1: b, 2: c, 6: 0})
    for i in range(64):
        x, z = exact(int(a[i])), exact(int(c[i]))
        low, high = exact(int(b[i]) & 0xFFFF, F16), exact(int(b[i]) >> 16, F16)
        if x is None or z is None or low is None or high is None:
            continue
        if x * low + z:
            assert int(read(w, 4)[i]) == nearest(x * low + z)
        if 1 - high * abs(x):
            assert int(read(w, 5)[i]) == nearest(1 - high * abs(x))
        for half, value in ((0, high / 2 + low), (16, high * low + low)):
            single = exact(nearest(value))
            if single:
                assert int(read(w, 6)[i]) >> half & 0xFFFF == nearest(single, F16)


def test_clamp() -> None:
    a, b = floats(1), floats(2)
    w = execute("v_add_f32_e64 v2, v0, v1 clamp\nv_add_f32_e32 v3, v0, v1", {0: a, 1: b})
    plain = read(w, 3).view(np.float32)
    want = np.where(np.isnan(plain), 0, np.clip(plain, 0, 1))
    assert (read(w, 2).view(np.float32) == want).all()


def test_float64() -> None:
    g = np.random.default_rng(5)
    a, b, c = (g.standard_normal(64) for _ in range(3))
    words = {2 * i + j: x.view(np.uint32)[j::2] for i, x in enumerate((a, b, c)) for j in range(2)}
    text = """v_add_f64 v[6:7], v[0:1], v[2:3]
        v_mul_f64 v[8:9], v[0:1], v[2:3]
        v_fma_f64 v[10:11], v[0:1], v[2:3], -v[4:5]
        v_add_f64 v[12:13], v[0:1], 1.0"""
    w = execute(text, words)
    got = {r: np.ascontiguousarray(read(w, r, 2)).view(np.float64)[:, 0] for r in (6, 8, 10, 12)}
    assert (got[6] == a + b).all()
    assert (got[8] == a * b).all()
    assert (got[12] == a + 1).all()
    for x, y, z, result in zip(a, b, c, got[10], strict=True):
        assert float(Fraction(x) * Fraction(y) - Fraction(z)) == result
