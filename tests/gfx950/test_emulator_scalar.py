"""Scalar instructions of the emulator, against Python's integers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .emulator import EmulationError
from .emulator.operands import EXEC, VCC
from .single import EDGES, execute, run, scalar, wave

M32, M64 = (1 << 32) - 1, (1 << 64) - 1
WIDE = [0, 1, 1 << 31, 1 << 32, (1 << 63) | 5, M64, 0xFFFF0000FFFF]


def signed(x: int, width: int = 32) -> int:
    return x - (1 << width) if x >> (width - 1) else x


def overflows(x: int) -> bool:
    return not -(1 << 31) <= x < 1 << 31


Two = Callable[[int, int], tuple[int, bool | None]]

# s2 = f(s0, s1): the result, and SCC (None: it stays).
WORDS: dict[str, Two] = {
    "s_add_u32 s2, s0, s1": lambda a, b: (a + b, a + b > M32),
    "s_sub_u32 s2, s0, s1": lambda a, b: (a - b, a < b),
    "s_add_i32 s2, s0, s1": lambda a, b: (a + b, overflows(signed(a) + signed(b))),
    "s_sub_i32 s2, s0, s1": lambda a, b: (a - b, overflows(signed(a) - signed(b))),
    "s_mul_i32 s2, s0, s1": lambda a, b: (a * b, None),
    "s_mul_hi_u32 s2, s0, s1": lambda a, b: (a * b >> 32, None),
    "s_mul_hi_i32 s2, s0, s1": lambda a, b: (signed(a) * signed(b) >> 32, None),
    "s_min_u32 s2, s0, s1": lambda a, b: (min(a, b), a < b),
    "s_max_u32 s2, s0, s1": lambda a, b: (max(a, b), a > b),
    "s_min_i32 s2, s0, s1": lambda a, b: (min(signed(a), signed(b)), signed(a) < signed(b)),
    "s_max_i32 s2, s0, s1": lambda a, b: (max(signed(a), signed(b)), signed(a) > signed(b)),
    "s_and_b32 s2, s0, s1": lambda a, b: (a & b, a & b != 0),
    "s_or_b32 s2, s0, s1": lambda a, b: (a | b, a | b != 0),
    "s_xor_b32 s2, s0, s1": lambda a, b: (a ^ b, a != b),
    "s_andn2_b32 s2, s0, s1": lambda a, b: (a & ~b, a & ~b != 0),
    "s_orn2_b32 s2, s0, s1": lambda a, b: (a | ~b, (a | ~b) & M32 != 0),
    "s_nand_b32 s2, s0, s1": lambda a, b: (~(a & b), a & b != M32),
    "s_nor_b32 s2, s0, s1": lambda a, b: (~(a | b), a | b != M32),
    "s_xnor_b32 s2, s0, s1": lambda a, b: (~(a ^ b), a ^ b != M32),
    "s_lshl_b32 s2, s0, s1": lambda a, b: (a << b % 32, (a << b % 32) & M32 != 0),
    "s_lshr_b32 s2, s0, s1": lambda a, b: (a >> b % 32, a >> b % 32 != 0),
    "s_ashr_i32 s2, s0, s1": lambda a, b: (signed(a) >> b % 32, signed(a) >> b % 32 != 0),
    "s_lshl1_add_u32 s2, s0, s1": lambda a, b: (2 * a + b, 2 * a + b > M32),
    "s_lshl2_add_u32 s2, s0, s1": lambda a, b: (4 * a + b, 4 * a + b > M32),
    "s_lshl3_add_u32 s2, s0, s1": lambda a, b: (8 * a + b, 8 * a + b > M32),
    "s_lshl4_add_u32 s2, s0, s1": lambda a, b: (16 * a + b, 16 * a + b > M32),
    "s_bfm_b32 s2, s0, s1": lambda a, b: (((1 << a % 32) - 1) << b % 32, None),
    "s_pack_ll_b32_b16 s2, s0, s1": lambda a, b: (a % 65536 + (b % 65536 << 16), None),
    "s_pack_lh_b32_b16 s2, s0, s1": lambda a, b: (a % 65536 + (b >> 16 << 16), None),
    "s_pack_hh_b32_b16 s2, s0, s1": lambda a, b: ((a >> 16) + (b >> 16 << 16), None),
    "s_absdiff_i32 s2, s0, s1": lambda a, b: (abs(signed(a) - signed(b)), a != b),
    "s_mov_b32 s2, s0": lambda a, b: (a, None),
    "s_not_b32 s2, s0": lambda a, b: (~a, a != M32),
    "s_abs_i32 s2, s0": lambda a, b: (abs(signed(a)), a != 0),
    "s_brev_b32 s2, s0": lambda a, b: (sum((a >> i & 1) << 31 - i for i in range(32)), None),
    "s_bcnt1_i32_b32 s2, s0": lambda a, b: (f"{a:b}".count("1"), a != 0),
    "s_ff1_i32_b32 s2, s0": lambda a, b: (f"{a:032b}"[::-1].find("1"), None),
    "s_flbit_i32_b32 s2, s0": lambda a, b: (f"{a:032b}".find("1"), None),
    "s_sext_i32_i8 s2, s0": lambda a, b: (signed(a % 256, 8), None),
    "s_sext_i32_i16 s2, s0": lambda a, b: (signed(a % 65536, 16), None),
    "s_movk_i32 s2, 0x8001": lambda a, b: (-0x7FFF, None),
    "s_mov_b32 s2, -5": lambda a, b: (-5, None),
    "s_mov_b32 s2, 0.5": lambda a, b: (0x3F000000, None),
    "s_mov_b32 s2, 0x80000001": lambda a, b: (0x80000001, None),
}


@pytest.mark.parametrize("text", WORDS)
def test_words(text: str) -> None:
    for a in EDGES:
        for b in EDGES:
            for before in (0, 1):
                w = wave(scalar={0: a, 1: b})
                w.put_scc(before)
                run(w, text)
                value, scc = WORDS[text](a, b)
                assert scalar(w, 2) == value & M32, (a, b)
                assert w.scc == (before if scc is None else scc), (a, b)


# s[4:5] = f(s[0:1], s[2:3]), and whether SCC tells that the result is nonzero.
PAIRS: dict[str, tuple[Callable[[int, int], int], bool]] = {
    "s_and_b64 s[4:5], s[0:1], s[2:3]": (lambda a, b: a & b, True),
    "s_or_b64 s[4:5], s[0:1], s[2:3]": (lambda a, b: a | b, True),
    "s_xor_b64 s[4:5], s[0:1], s[2:3]": (lambda a, b: a ^ b, True),
    "s_andn2_b64 s[4:5], s[0:1], s[2:3]": (lambda a, b: a & ~b, True),
    "s_orn2_b64 s[4:5], s[0:1], s[2:3]": (lambda a, b: a | ~b, True),
    "s_not_b64 s[4:5], s[0:1]": (lambda a, b: ~a, True),
    "s_mov_b64 s[4:5], s[0:1]": (lambda a, b: a, False),
    "s_mov_b64 s[4:5], -1": (lambda a, b: -1, False),
    "s_lshl_b64 s[4:5], s[0:1], s2": (lambda a, b: a << b % 64, True),
    "s_lshr_b64 s[4:5], s[0:1], s2": (lambda a, b: a >> b % 64, True),
    "s_ashr_i64 s[4:5], s[0:1], s2": (lambda a, b: signed(a, 64) >> b % 64, True),
}


@pytest.mark.parametrize("text", PAIRS)
def test_pairs(text: str) -> None:
    fn, tells = PAIRS[text]
    for a in WIDE:
        for b in WIDE:
            w = wave(scalar={0: a & M32, 1: a >> 32, 2: b & M32, 3: b >> 32})
            w.put_scc(0)
            run(w, text)
            assert scalar(w, 4, 2) == fn(a, b) & M64, (a, b)
            assert w.scc == (tells and fn(a, b) & M64 != 0)


def test_bits_of_pairs() -> None:
    w = execute("s_bcnt1_i32_b64 s4, s[0:1]\ns_ff1_i32_b64 s5, s[0:1]", scalar={0: 0, 1: 12})
    assert (scalar(w, 4), scalar(w, 5)) == (2, 34)


@pytest.mark.parametrize("size", [0, 1, 7, 31, 32])
@pytest.mark.parametrize("offset", [0, 5, 31])
def test_bit_fields(offset: int, size: int) -> None:
    for a in EDGES:
        text = "s_bfe_u32 s2, s0, s1\ns_bfe_i32 s3, s0, s1"
        w = execute(text, scalar={0: a, 1: size << 16 | offset})
        field = a >> offset & ((1 << size) - 1)
        # A field that reaches beyond bit 31 is filled up: with zeros, or with the sign.
        wide = signed(a) >> offset & ((1 << size) - 1)
        assert scalar(w, 2) == field
        assert scalar(w, 3) == (signed(wide, size) & M32 if size else 0)


COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "s_cmp_eq_u32 s0, s1": lambda a, b: a == b,
    "s_cmp_lg_u32 s0, s1": lambda a, b: a != b,
    "s_cmp_gt_u32 s0, s1": lambda a, b: a > b,
    "s_cmp_ge_u32 s0, s1": lambda a, b: a >= b,
    "s_cmp_lt_u32 s0, s1": lambda a, b: a < b,
    "s_cmp_le_u32 s0, s1": lambda a, b: a <= b,
    "s_cmp_eq_i32 s0, s1": lambda a, b: a == b,
    "s_cmp_gt_i32 s0, s1": lambda a, b: signed(a) > signed(b),
    "s_cmp_ge_i32 s0, s1": lambda a, b: signed(a) >= signed(b),
    "s_cmp_lt_i32 s0, s1": lambda a, b: signed(a) < signed(b),
    "s_cmp_le_i32 s0, s1": lambda a, b: signed(a) <= signed(b),
    "s_cmpk_lt_u32 s0, 0x8000": lambda a, b: a < 0x8000,
    "s_cmpk_gt_i32 s0, 0x8000": lambda a, b: signed(a) > -0x8000,
    "s_bitcmp0_b32 s0, s1": lambda a, b: not a >> b % 32 & 1,
    "s_bitcmp1_b32 s0, s1": lambda a, b: bool(a >> b % 32 & 1),
    "s_cmp_eq_u64 s[0:1], s[2:3]": lambda a, b: a + (b << 32) == 0x100000001,
}


@pytest.mark.parametrize("text", COMPARISONS)
def test_comparisons(text: str) -> None:
    for a in EDGES:
        for b in EDGES:
            w = execute(text, scalar={0: a, 1: b, 2: 1, 3: 1})
            assert w.scc == COMPARISONS[text](a, b), (a, b)


def test_carry_chain() -> None:
    for a in WIDE:
        for b in WIDE:
            text = """s_add_u32 s4, s0, s2
                s_addc_u32 s5, s1, s3
                s_sub_u32 s6, s0, s2
                s_subb_u32 s7, s1, s3"""
            w = execute(text, scalar={0: a & M32, 1: a >> 32, 2: b & M32, 3: b >> 32})
            assert scalar(w, 4, 2) == a + b & M64
            assert scalar(w, 6, 2) == a - b & M64
            assert w.scc == (a < b)


def test_immediates_and_bits() -> None:
    text = """s_addk_i32 s0, 0xffff
        s_mulk_i32 s1, 0xfffe
        s_bitset1_b32 s2, 4
        s_bitset0_b32 s3, 0"""
    w = execute(text, scalar={0: 1 << 31, 1: 3, 2: 0, 3: 3})
    assert [scalar(w, i) for i in range(4)] == [0x7FFFFFFF, -6 & M32, 16, 2]
    assert w.scc == 1  # the addition overflowed


@pytest.mark.parametrize("scc", [0, 1])
def test_selection(scc: int) -> None:
    w = wave(scalar={0: 3, 1: 4, 2: 5, 3: 6, 8: 7})
    w.put_scc(scc)
    run(w, "s_cselect_b32 s4, s0, s1\ns_cselect_b64 s[6:7], s[0:1], s[2:3]\ns_cmov_b32 s8, s0")
    assert scalar(w, 4) == (3 if scc else 4)
    assert scalar(w, 6, 2) == (3 + (4 << 32) if scc else 5 + (6 << 32))
    assert scalar(w, 8) == (3 if scc else 7)


SAVES: dict[str, Callable[[int, int], int]] = {
    "s_and_saveexec_b64 s[2:3], s[0:1]": lambda a, e: a & e,
    "s_or_saveexec_b64 s[2:3], s[0:1]": lambda a, e: a | e,
    "s_xor_saveexec_b64 s[2:3], s[0:1]": lambda a, e: a ^ e,
    "s_andn2_saveexec_b64 s[2:3], s[0:1]": lambda a, e: a & ~e,
}


@pytest.mark.parametrize("text", SAVES)
def test_save_exec(text: str) -> None:
    for a in WIDE:
        for before in WIDE:
            w = execute(text, scalar={0: a & M32, 1: a >> 32}, exec_mask=before)
            assert scalar(w, 2, 2) == before
            assert w.exec == SAVES[text](a, before) & M64 == scalar(w, EXEC, 2)
            assert w.scc == (w.exec != 0)
            assert w.full == (w.exec == M64)


def test_exec_by_name_and_by_halves() -> None:
    w = execute(
        "s_mov_b64 exec, s[0:1]\ns_mov_b32 exec_lo, 6\ns_mov_b64 vcc, exec", scalar={0: 1, 1: 2}
    )
    assert w.exec == 6 + (2 << 32) == scalar(w, VCC, 2)
    assert list(w.mask.nonzero()[0]) == [1, 2, 33]


def test_undefined_bits_pass_and_are_refused() -> None:
    # s1 was never written; a defined 0 or 1 beside it decides.
    w = execute("s_and_b32 s2, s1, 0\ns_or_b32 s3, s1, -1", scalar={})
    assert (scalar(w, 2), scalar(w, 3)) == (0, M32)
    w = execute("s_and_b32 s2, s1, 1\ns_add_i32 s3, s1, 1\ns_mov_b32 s4, s1")
    for register in (2, 3, 4):
        with pytest.raises(EmulationError, match="undefined"):
            scalar(w, register)
    assert w.scc_undefined
    with pytest.raises(EmulationError, match="EXEC"):
        run(w, "s_and_saveexec_b64 s[6:7], s[0:1]")
