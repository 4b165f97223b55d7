"""Float instructions of the emulator, against exact arithmetic rounded by the oracle."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import oracle
import pytest
import torch

from .emulator.operands import VCC
from .single import U32, bits, execute, per_lane, read, scalar

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
    "v_cmp_neq_f32_e32 vcc, v0, v1": lambda a, b: not a == b,
    "v_cmp_nlt_f32_e32 vcc, v0, v1": lambda a, b: not a < b,
    "v_cmp_gt_f32_e32 vcc, 0.5, v1": lambda a, b: 0.5 > b,
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
    from .single import integers

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
