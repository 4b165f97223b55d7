"""Integer vector instructions of the emulator, against Python's integers lane by lane."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from .emulator.operands import VCC
from .single import EDGES, U32, execute, integers, per_lane, read, scalar

M16, M32, M64 = (1 << 16) - 1, (1 << 32) - 1, (1 << 64) - 1
OLD = 0xABCD1234  # what the destination holds before


def signed(x: int, width: int = 32) -> int:
    x &= (1 << width) - 1
    return x - (1 << width) if x >> (width - 1) else x


def clip(x: int, low: int, high: int) -> int:
    return min(max(x, low), high)


def field(x: int, offset: int, size: int) -> int:
    return x >> offset % 32 & ((1 << size % 32) - 1)


def byte_permute(high: int, low: int, selector: int) -> int:
    octets = [(high << 32 | low) >> 8 * i & 255 for i in range(8)]
    result = 0
    for i in range(4):
        choice = selector >> 8 * i & 255
        if choice >= 13:
            byte = 255
        elif choice == 12:
            byte = 0
        elif choice >= 8:
            byte = 255 * (octets[2 * (choice - 8) + 1] >> 7)
        else:
            byte = octets[choice]
        result |= byte << 8 * i
    return result


def halves(x: int) -> tuple[int, int]:
    return x & M16, x >> 16


def packed(fn: Callable[..., int]) -> Callable[[int, int, int], int]:
    def both(a: int, b: int, c: int) -> int:
        low, high = zip(halves(a), halves(b), halves(c), strict=True)
        return fn(*low) & M16 | (fn(*high) & M16) << 16

    return both


def kept(x: int) -> int:
    """A 16-bit result that leaves the upper half alone."""
    return x & M16 | OLD & 0xFFFF0000


Three = Callable[[int, int, int], int]

# v4 = f(v0, v1, v2), cut to 32 bits.
CASES: dict[str, Three] = {
    "v_mov_b32_e32 v4, v0": lambda a, b, c: a,
    "v_mov_b32_e32 v4, 0xdeadbeef": lambda a, b, c: 0xDEADBEEF,
    "v_mov_b32_e32 v4, 1.0": lambda a, b, c: 0x3F800000,
    "v_not_b32_e32 v4, v0": lambda a, b, c: ~a,
    "v_bfrev_b32_e32 v4, v0": lambda a, b, c: int(f"{a:032b}"[::-1], 2),
    "v_ffbh_u32_e32 v4, v0": lambda a, b, c: f"{a:032b}".find("1"),
    "v_ffbl_b32_e32 v4, v0": lambda a, b, c: f"{a:032b}"[::-1].find("1"),
    "v_bcnt_u32_b32 v4, v0, v1": lambda a, b, c: f"{a:b}".count("1") + b,
    "v_and_b32_e32 v4, v0, v1": lambda a, b, c: a & b,
    "v_or_b32_e32 v4, 0x100, v1": lambda a, b, c: 0x100 | b,
    "v_xor_b32_e64 v4, v0, v1": lambda a, b, c: a ^ b,
    "v_xnor_b32_e64 v4, v0, v1": lambda a, b, c: ~(a ^ b),
    "v_add_u32_e32 v4, v0, v1": lambda a, b, c: a + b,
    "v_add_u32_e32 v4, s6, v1": lambda a, b, c: 0x89ABCDEF + b,
    "v_add_u32_e64 v4, v0, v1 clamp": lambda a, b, c: clip(a + b, 0, M32),
    "v_sub_u32_e32 v4, 3, v1": lambda a, b, c: 3 - b,
    "v_sub_u32_e64 v4, v0, 2 clamp": lambda a, b, c: clip(a - 2, 0, M32),
    "v_subrev_u32_e32 v4, v0, v1": lambda a, b, c: b - a,
    "v_add_i32 v4, v0, v1 clamp": lambda a, b, c: clip(
        signed(a) + signed(b), -(1 << 31), (1 << 31) - 1
    ),
    "v_sub_i32 v4, v0, v1": lambda a, b, c: a - b,
    "v_add3_u32 v4, v0, v1, v2": lambda a, b, c: a + b + c,
    "v_lshl_add_u32 v4, v0, v1, v2": lambda a, b, c: (a << b % 32) + c,
    "v_add_lshl_u32 v4, v0, v1, 2": lambda a, b, c: (a + b) << 2,
    "v_lshl_or_b32 v4, v0, 4, v1": lambda a, b, c: a << 4 | b,
    "v_and_or_b32 v4, v0, v1, v2": lambda a, b, c: a & b | c,
    "v_or3_b32 v4, v0, v1, 64": lambda a, b, c: a | b | 64,
    "v_xad_u32 v4, v0, v1, v2": lambda a, b, c: (a ^ b) + c,
    "v_lshlrev_b32_e32 v4, v0, v1": lambda a, b, c: b << a % 32,
    "v_lshrrev_b32_e32 v4, v0, v1": lambda a, b, c: b >> a % 32,
    "v_ashrrev_i32_e32 v4, v0, v1": lambda a, b, c: signed(b) >> a % 32,
    "v_bfe_u32 v4, v0, v1, v2": field,
    "v_bfe_i32 v4, v0, v1, 9": lambda a, b, c: signed((signed(a) >> b % 32) & 511, 9),
    "v_bfe_i32 v4, v0, 3, 0": lambda a, b, c: 0,
    "v_bfi_b32 v4, v0, v1, v2": lambda a, b, c: a & b | ~a & c,
    "v_bfm_b32 v4, v0, v1": lambda a, b, c: ((1 << a % 32) - 1) << b % 32,
    "v_perm_b32 v4, v0, v1, v2": byte_permute,
    "v_perm_b32 v4, v0, v1, s7": lambda a, b, c: byte_permute(a, b, 0x0C0D0904),
    "v_alignbit_b32 v4, v0, v1, v2": lambda a, b, c: (a << 32 | b) >> c % 32,
    "v_alignbyte_b32 v4, v0, v1, v2": lambda a, b, c: (a << 32 | b) >> 8 * (c % 4),
    "v_mul_lo_u32 v4, v0, v1": lambda a, b, c: a * b,
    "v_mul_hi_u32 v4, v0, v1": lambda a, b, c: a * b >> 32,
    "v_mul_hi_i32 v4, v0, v1": lambda a, b, c: signed(a) * signed(b) >> 32,
    "v_mul_u32_u24_e32 v4, v0, v1": lambda a, b, c: (a % (1 << 24)) * (b % (1 << 24)),
    "v_mul_hi_u32_u24_e32 v4, v0, v1": lambda a, b, c: (a % (1 << 24)) * (b % (1 << 24)) >> 32,
    "v_mul_i32_i24_e32 v4, v0, v1": lambda a, b, c: signed(a, 24) * signed(b, 24),
    "v_mad_u32_u24 v4, v0, v1, v2": lambda a, b, c: (a % (1 << 24)) * (b % (1 << 24)) + c,
    "v_mad_i32_i24 v4, v0, v1, v2": lambda a, b, c: signed(a, 24) * signed(b, 24) + c,
    "v_mad_u32_u16 v4, v0, v1, v2": lambda a, b, c: (a & M16) * (b & M16) + c,
    "v_mad_i32_i16 v4, v0, v1, v2": lambda a, b, c: signed(a, 16) * signed(b, 16) + c,
    "v_sad_u32 v4, v0, v1, v2": lambda a, b, c: abs(a - b) + c,
    "v_min_u32_e32 v4, v0, v1": lambda a, b, c: min(a, b),
    "v_max_u32_e32 v4, v0, v1": lambda a, b, c: max(a, b),
    "v_min_i32_e32 v4, v0, v1": lambda a, b, c: min(signed(a), signed(b)),
    "v_max_i32_e32 v4, v0, v1": lambda a, b, c: max(signed(a), signed(b)),
    "v_min3_u32 v4, v0, v1, v2": lambda a, b, c: min(a, b, c),
    "v_max3_u32 v4, v0, v1, v2": lambda a, b, c: max(a, b, c),
    "v_max3_i32 v4, v0, v1, v2": lambda a, b, c: max(signed(a), signed(b), signed(c)),
    "v_med3_i32 v4, v0, v1, v2": lambda a, b, c: sorted((signed(a), signed(b), signed(c)))[1],
    "v_med3_u32 v4, v0, v1, v2": lambda a, b, c: sorted((a, b, c))[1],
    # 16 bits: the old instructions clear the upper half, those that are VOP3 alone keep it
    "v_add_u16_e32 v4, v0, v1": lambda a, b, c: (a + b) & M16,
    "v_add_u16_e64 v4, v0, v1 clamp": lambda a, b, c: min((a & M16) + (b & M16), M16),
    "v_sub_u16_e32 v4, v0, v1": lambda a, b, c: (a - b) & M16,
    "v_subrev_u16_e32 v4, v0, v1": lambda a, b, c: (b - a) & M16,
    "v_mul_lo_u16_e32 v4, v0, v1": lambda a, b, c: a * b & M16,
    "v_max_u16_e32 v4, v0, v1": lambda a, b, c: max(a & M16, b & M16),
    "v_min_u16_e32 v4, v0, v1": lambda a, b, c: min(a & M16, b & M16),
    "v_max_i16_e32 v4, v0, v1": lambda a, b, c: max(signed(a, 16), signed(b, 16)) & M16,
    "v_min_i16_e32 v4, v0, v1": lambda a, b, c: min(signed(a, 16), signed(b, 16)) & M16,
    "v_lshlrev_b16_e32 v4, v0, v1": lambda a, b, c: b << a % 16 & M16,
    "v_lshrrev_b16_e32 v4, v0, v1": lambda a, b, c: (b & M16) >> a % 16,
    "v_ashrrev_i16_e32 v4, v0, v1": lambda a, b, c: signed(b, 16) >> a % 16 & M16,
    "v_mad_legacy_u16 v4, v0, 3, v2": lambda a, b, c: a * 3 + c & M16,
    "v_mad_u16 v4, v0, v1, v2": lambda a, b, c: kept(a * b + c),
    "v_mad_i16 v4, v0, v1, v2": lambda a, b, c: kept(a * b + c),
    "v_max3_i16 v4, v0, v1, v2": lambda a, b, c: kept(max(signed(x, 16) for x in (a, b, c))),
    "v_max3_u16 v4, v0, v1, v2": lambda a, b, c: kept(max(x & M16 for x in (a, b, c))),
    "v_min3_u16 v4, v0, v1, v2": lambda a, b, c: kept(min(x & M16 for x in (a, b, c))),
    "v_mad_u16 v4, v0, v1, v2 op_sel:[1,0,1,1]": lambda a, b, c: (
        ((a >> 16) * b + (c >> 16) & M16) << 16 | OLD & M16
    ),
    "v_bitop3_b32 v4, v0, v1, v2 bitop3:0x6c": lambda a, b, c: (a & c) ^ b,
    "v_bitop3_b32 v4, v0, v1, 28 bitop3:0xec": lambda a, b, c: a & 28 | b,
    "v_bitop3_b16 v4, v0, v1, v2 bitop3:0xfe": lambda a, b, c: kept(a | b | c),
    "v_pk_add_u16 v4, v0, v1": packed(lambda a, b, c: a + b),
    "v_pk_sub_i16 v4, v0, v1": packed(lambda a, b, c: a - b),
    "v_pk_add_u16 v4, v0, v1 clamp": packed(lambda a, b, c: min(a + b, M16)),
    "v_pk_max_u16 v4, v0, v1": packed(lambda a, b, c: max(a, b)),
    "v_pk_min_u16 v4, v0, v1": packed(lambda a, b, c: min(a, b)),
    "v_pk_max_i16 v4, v0, v1": packed(lambda a, b, c: max(signed(a, 16), signed(b, 16))),
    "v_pk_min_i16 v4, v0, v1": packed(lambda a, b, c: min(signed(a, 16), signed(b, 16))),
    "v_pk_mul_lo_u16 v4, v0, v1": packed(lambda a, b, c: a * b),
    "v_pk_mad_u16 v4, v0, v1, v2": packed(lambda a, b, c: a * b + c),
    "v_pk_lshlrev_b16 v4, v0, v1": packed(lambda a, b, c: b << a % 16),
    "v_pk_lshrrev_b16 v4, 12, v1 op_sel_hi:[0,1]": packed(lambda a, b, c: b >> 12),
    "v_pk_ashrrev_i16 v4, v0, v1": packed(lambda a, b, c: signed(b, 16) >> a % 16),
    "v_pk_max_u16 v4, v0, v1 op_sel:[1,0] op_sel_hi:[0,1]": lambda a, b, c: (
        max(a >> 16, b & M16) | max(a & M16, b >> 16) << 16
    ),
}


def sources() -> tuple[U32, U32, U32]:
    return integers(1), integers(2), integers(3)


@pytest.mark.parametrize("text", CASES)
def test_lanes(text: str) -> None:
    a, b, c = sources()
    w = execute(text, {0: a, 1: b, 2: c, 4: OLD}, {6: 0x89ABCDEF, 7: 0x0C0D0904})
    expected = [x & M32 for x in per_lane(CASES[text], a, b, c)]
    assert read(w, 4).tolist() == expected


@pytest.mark.parametrize("text", CASES)
def test_lanes_switched_off_stay(text: str) -> None:
    a, b, c = sources()
    mask = 0x8000_0000_FFFF_1234
    w = execute(text, {0: a, 1: b, 2: c, 4: OLD}, {6: 0x89ABCDEF, 7: 0x0C0D0904}, exec_mask=mask)
    everything = per_lane(CASES[text], a, b, c)
    expected = [x & M32 if mask >> i & 1 else OLD for i, x in enumerate(everything)]
    assert w.bits[4].tolist() == expected


WIDE: dict[str, Callable[[int, int, int, int], int]] = {
    "v_lshlrev_b64 v[4:5], v6, v[0:1]": lambda a, b, n, m: a << n % 64,
    "v_lshrrev_b64 v[4:5], v6, v[0:1]": lambda a, b, n, m: a >> n % 64,
    "v_ashrrev_i64 v[4:5], v6, v[0:1]": lambda a, b, n, m: signed(a, 64) >> n % 64,
    "v_lshl_add_u64 v[4:5], v[0:1], 3, v[2:3]": lambda a, b, n, m: (a << 3) + b,
    "v_lshl_add_u64 v[4:5], v[0:1], 0, s[2:3]": lambda a, b, n, m: a + (5 << 32 | 7),
    "v_mov_b64_e32 v[4:5], v[0:1]": lambda a, b, n, m: a,
    "v_mov_b64_e32 v[4:5], 0": lambda a, b, n, m: 0,
    "v_mad_u64_u32 v[4:5], s[0:1], v6, v7, v[0:1]": lambda a, b, n, m: n * m + a,
    "v_mad_u64_u32 v[4:5], vcc, v6, s2, 0": lambda a, b, n, m: n * 7,
    "v_mad_i64_i32 v[4:5], s[0:1], v6, v7, v[0:1]": lambda a, b, n, m: signed(n) * signed(m) + a,
}


@pytest.mark.parametrize("text", WIDE)
def test_pairs_of_registers(text: str) -> None:
    words = [integers(i) for i in range(6)]
    w = execute(text, dict(zip((0, 1, 2, 3, 6, 7), words, strict=True)), {2: 7, 3: 5})
    a, b = ([int(x) | int(y) << 32 for x, y in zip(*words[i : i + 2], strict=True)] for i in (0, 2))
    got = [int(x) | int(y) << 32 for x, y in read(w, 4, 2)]
    assert got == [x & M64 for x in map(WIDE[text], a, b, words[4].tolist(), words[5].tolist())]


CARRIES: dict[str, Callable[[int, int, int], int]] = {
    "v_add_co_u32_e32 v4, vcc, v0, v1": lambda a, b, c: a + b,
    "v_sub_co_u32_e32 v4, vcc, v0, v1": lambda a, b, c: a - b,
    "v_subrev_co_u32_e32 v4, vcc, v0, v1": lambda a, b, c: b - a,
    "v_addc_co_u32_e32 v4, vcc, v0, v1, vcc": lambda a, b, c: a + b + c,
    "v_subb_co_u32_e32 v4, vcc, v0, v1, vcc": lambda a, b, c: a - b - c,
    "v_subbrev_co_u32_e32 v4, vcc, v0, v1, vcc": lambda a, b, c: b - a - c,
    "v_addc_co_u32_e64 v4, vcc, 0, v1, vcc": lambda a, b, c: b + c,
}


@pytest.mark.parametrize("text", CARRIES)
def test_carries(text: str) -> None:
    a, b, _ = sources()
    carry = 0x0123_4567_89AB_CDEF
    mask = 0x7FFF_FFFF_FFFF_FFF7
    scalars = {VCC: carry & M32, VCC + 1: carry >> 32}
    w = execute(text, {0: a, 1: b, 4: OLD}, scalars, exec_mask=mask)
    exact = per_lane(CARRIES[text], a, b, [carry >> i & 1 for i in range(64)])
    out = sum((not 0 <= x <= M32) << i for i, x in enumerate(exact)) & mask
    assert scalar(w, VCC, 2) == out
    assert [x for i, x in enumerate(w.bits[4].tolist()) if mask >> i & 1] == [
        x & M32 for i, x in enumerate(exact) if mask >> i & 1
    ]


def test_selection_by_mask() -> None:
    a, b, _ = sources()
    text = """v_cmp_gt_u32_e64 s[2:3], v0, v1
        v_cndmask_b32_e64 v4, v0, v1, s[2:3]
        v_cmp_gt_u32_e32 vcc, v0, v1
        v_cndmask_b32_e32 v5, 7, v1, vcc
        v_cndmask_b32_e64 v6, v0, -v1, vcc"""
    w = execute(text, {0: a, 1: b})
    assert read(w, 4).tolist() == per_lane(min, a, b)
    assert read(w, 5).tolist() == per_lane(lambda x, y: y if x > y else 7, a, b)
    flipped = per_lane(lambda x, y: y ^ 1 << 31 if x > y else x, a, b)
    assert read(w, 6).tolist() == flipped


COMPARE: dict[str, Callable[[int, int], bool]] = {
    "v_cmp_lt_u32_e32 vcc, v0, v1": lambda a, b: a < b,
    "v_cmp_eq_u32_e32 vcc, v0, v1": lambda a, b: a == b,
    "v_cmp_le_u32_e32 vcc, v0, v1": lambda a, b: a <= b,
    "v_cmp_gt_i32_e32 vcc, v0, v1": lambda a, b: signed(a) > signed(b),
    "v_cmp_ne_u32_e32 vcc, v0, v1": lambda a, b: a != b,
    "v_cmp_ge_i32_e32 vcc, v0, v1": lambda a, b: signed(a) >= signed(b),
    "v_cmp_lt_i16_e32 vcc, v0, v1": lambda a, b: signed(a, 16) < signed(b, 16),
    "v_cmp_gt_u16_e32 vcc, 2, v1": lambda a, b: b & M16 < 2,
    "v_cmp_lt_i64_e32 vcc, v[0:1], v[2:3]": lambda a, b: False,
    "v_cmp_ne_u64_e32 vcc, v[0:1], v[2:3]": lambda a, b: False,
}


@pytest.mark.parametrize("text", COMPARE)
def test_comparisons(text: str) -> None:
    a, b = np.repeat(EDGES, 5)[:64].astype(np.uint32), np.resize(EDGES, 64).astype(np.uint32)
    mask = 0xFFFF_0FFF_FFFF_FFFF
    w = execute(text, {0: a, 1: b, 2: a, 3: b}, exec_mask=mask)
    expected = per_lane(COMPARE[text], a, b)
    assert scalar(w, VCC, 2) == sum(bool(x) << i for i, x in enumerate(expected)) & mask


def test_compare_into_exec() -> None:
    w = execute("v_cmpx_gt_u32_e32 vcc, 10, v0", {0: np.arange(64)}, exec_mask=0xFF0)
    assert w.exec == 0x3F0 == scalar(w, VCC, 2)
