"""Fields of registers (SDWA), lanes (DPP, permutations), scalar lanes, swizzles."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from .emulator import EmulationError
from .emulator.operands import VCC
from .single import bits, execute, integers, per_lane, read, run, scalar, wave

M32 = (1 << 32) - 1
OLD = 0x55667788
LANE = np.arange(64)


def signed(x: int, width: int) -> int:
    return x - (1 << width) if x >> (width - 1) else x


# SDWA: v4 = f(v0, v1).
SDWA: dict[str, Callable[[int, int], int]] = {
    "v_or_b32_sdwa v4, v0, v1 dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:DWORD": (
        lambda a, b: (a | b) << 16
    ),
    (
        "v_or_b32_sdwa v4, v0, v1 "
        "dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_0 src1_sel:BYTE_3"
    ): (lambda a, b: a & 0xFFFF | b >> 24),
    (
        "v_add_u32_sdwa v4, v0, v1 "
        "dst_sel:BYTE_2 dst_unused:UNUSED_PRESERVE src0_sel:BYTE_1 src1_sel:BYTE_0"
    ): (lambda a, b: OLD & 0xFF00FFFF | ((a >> 8) + b & 255) << 16),
    (
        "v_add_u32_sdwa v4, v0, v1 "
        "dst_sel:WORD_0 dst_unused:UNUSED_SEXT src0_sel:WORD_1 src1_sel:DWORD"
    ): (lambda a, b: signed((a >> 16) + b & 0xFFFF, 16)),
    (
        "v_max_i32_sdwa v4, v0, sext(v1) "
        "dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_0 src1_sel:WORD_1"
    ): (lambda a, b: max(a & 0xFFFF, signed(b >> 16, 16))),
    (
        "v_add_u16_sdwa v4, v0, v1 "
        "dst_sel:BYTE_1 dst_unused:UNUSED_PAD src0_sel:BYTE_1 src1_sel:BYTE_1"
    ): (lambda a, b: ((a >> 8) + (b >> 8) & 255) << 8),
    (
        "v_min_i16_sdwa v4, sext(v0), sext(v1) "
        "dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_0 src1_sel:BYTE_2"
    ): (lambda a, b: min(signed(a & 255, 8), signed(b >> 16 & 255, 8)) & 0xFFFF),
    (
        "v_and_b32_sdwa v4, v0, s0 "
        "dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_1 src1_sel:DWORD"
    ): (lambda a, b: a >> 16 & 0xF0F0F0F0),
    "v_cvt_f32_i32_sdwa v4, sext(v0) dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_3": (
        lambda a, b: int(bits(float(signed(a >> 24, 8)), "float32")[0])
    ),
}


@pytest.mark.parametrize("text", SDWA)
def test_fields(text: str) -> None:
    a, b = integers(1), integers(2)
    w = execute(text, {0: a, 1: b, 4: OLD}, {0: 0xF0F0F0F0})
    assert read(w, 4).tolist() == [x & M32 for x in per_lane(SDWA[text], a, b)]


def test_float_fields() -> None:
    a = integers(4)
    text = "v_cvt_f32_f16_sdwa v4, -v0 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_1"
    got = read(execute(text, {0: a}), 4).view(np.float32)
    want = -(a >> np.uint32(16)).astype(np.uint16).view(np.float16).astype(np.float32)
    assert np.array_equal(got, want, equal_nan=True)


def test_comparison_and_selection_of_fields() -> None:
    a, b = integers(1), integers(2)
    text = (
        "v_cmp_lt_i16_sdwa vcc, sext(v0), sext(v1) src0_sel:BYTE_0 src1_sel:BYTE_1\n"
        "v_cndmask_b32_sdwa v4, v0, v1, vcc "
        "dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:WORD_1"
    )
    w = execute(text, {0: a, 1: b})
    less = per_lane(lambda x, y: signed(x & 255, 8) < signed(y >> 8 & 255, 8), a, b)
    assert scalar(w, VCC, 2) == sum(t << i for i, t in enumerate(less))
    assert read(w, 4).tolist() == per_lane(lambda x, y, t: y >> 16 if t else x, a, b, less)


# DPP: the lane that lane n reads, None where there is none.
DPP: dict[str, Callable[[int], int | None]] = {
    "v_add_u32_dpp v4, v0, v1 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf": lambda n: n ^ 1,
    "v_add_u32_dpp v4, v0, v1 quad_perm:[2,2,0,3] row_mask:0xf bank_mask:0xf": lambda n: (
        n & ~3 | (2, 2, 0, 3)[n & 3]
    ),
    "v_add_u32_dpp v4, v0, v1 row_shl:3 row_mask:0xf bank_mask:0xf": lambda n: (
        n + 3 if n % 16 < 13 else None
    ),
    "v_add_u32_dpp v4, v0, v1 row_shr:8 row_mask:0xf bank_mask:0xf": lambda n: (
        n - 8 if n % 16 >= 8 else None
    ),
    "v_add_u32_dpp v4, v0, v1 row_ror:5 row_mask:0xf bank_mask:0xf": lambda n: (
        n & ~15 | (n - 5) % 16
    ),
    "v_add_u32_dpp v4, v0, v1 row_mirror row_mask:0xf bank_mask:0xf": lambda n: n ^ 15,
    "v_add_u32_dpp v4, v0, v1 row_half_mirror row_mask:0xf bank_mask:0xf": lambda n: n ^ 7,
    "v_add_u32_dpp v4, v0, v1 row_bcast:15 row_mask:0xf bank_mask:0xf": lambda n: (
        n // 16 * 16 - 1 if n >= 16 else None
    ),
    "v_add_u32_dpp v4, v0, v1 row_bcast:31 row_mask:0xf bank_mask:0xf": lambda n: (
        31 if n >= 32 else None
    ),
    "v_add_u32_dpp v4, v0, v1 row_newbcast:6 row_mask:0xf bank_mask:0xf": lambda n: n & ~15 | 6,
    "v_add_u32_dpp v4, v0, v1 wave_shr:1 row_mask:0xf bank_mask:0xf": lambda n: (
        n - 1 if n else None
    ),
    "v_add_u32_dpp v4, v0, v1 wave_shl:1 row_mask:0xf bank_mask:0xf": lambda n: (
        n + 1 if n < 63 else None
    ),
}


@pytest.mark.parametrize("text", DPP)
@pytest.mark.parametrize("zero", [False, True], ids=["keep", "zero"])
@pytest.mark.parametrize(("rows", "banks"), [(15, 15), (10, 15), (15, 12)])
def test_dpp(text: str, zero: bool, rows: int, banks: int) -> None:
    a, b = integers(1), integers(2)
    masks = {"row_mask:0xf": f"row_mask:{rows:#x}", "bank_mask:0xf": f"bank_mask:{banks:#x}"}
    line = text
    for plain, chosen in masks.items():
        line = line.replace(plain, chosen)
    line += " bound_ctrl:1" if zero else ""
    for mask in (M32 << 32 | M32, 0xFFFF_00FF_FFF0_FFFF):
        w = execute(line, {0: a, 1: b, 4: OLD}, exec_mask=mask)
        for n in range(64):
            source = DPP[text](n)
            missing = source is None or not mask >> source & 1
            off = not (mask >> n & rows >> n // 16 & banks >> n % 16 // 4 & 1)
            if off or (missing and not zero):
                expected = OLD
            else:
                expected = (0 if missing or source is None else int(a[source])) + int(b[n]) & M32
            assert int(w.bits[4][n]) == expected, n


def test_dpp_into_itself_reads_before_it_writes() -> None:
    a = integers(1)
    w = execute("v_mov_b32_dpp v0, v0 row_ror:4 row_mask:0xf bank_mask:0xf", {0: a})
    assert read(w, 0).tolist() == [int(a[n & ~15 | (n - 4) % 16]) for n in range(64)]


def test_scalar_lanes() -> None:
    a = integers(1)
    text = """v_readfirstlane_b32 s4, v0
        v_readlane_b32 s5, v0, 63
        v_readlane_b32 s6, v0, s0
        v_writelane_b32 v4, s1, 7
        v_writelane_b32 v4, 5, s0"""
    w = execute(text, {0: a, 4: OLD}, {0: 40, 1: 99}, exec_mask=0xF00)
    assert [scalar(w, i) for i in (4, 5, 6)] == [a[8], a[63], a[40]]
    expected = np.full(64, OLD)
    expected[[7, 40]] = 99, 5
    assert w.bits[4].tolist() == expected.tolist()
    assert scalar(execute("v_readfirstlane_b32 s4, v0", {0: a}, exec_mask=0), 4) == a[0]


@pytest.mark.parametrize("width", [16, 32])
def test_swapped_rows(width: int) -> None:
    a, b = integers(1), integers(2)
    texts = {16: "v_permlane16_swap_b32_e32 v0, v1", 32: "v_permlane32_swap_b32_e32 v0, v1"}
    w = execute(texts[width], {0: a, 1: b})
    rows = np.stack((a, b)).reshape(2, 64 // (2 * width), 2, width)
    # The odd rows of the first register against the even ones of the second.
    expected = rows.copy()
    expected[0, :, 1], expected[1, :, 0] = rows[1, :, 0], rows[0, :, 1]
    assert w.bits[:2].tolist() == expected.reshape(2, 64).tolist()


def test_count_of_lanes_below() -> None:
    text = "v_mbcnt_lo_u32_b32 v1, s0, 0\nv_mbcnt_hi_u32_b32 v1, s1, v1"
    mask = 0x8421_F00F_1234_5679
    w = execute(text, scalar={0: mask & M32, 1: mask >> 32})
    assert read(w, 1).tolist() == [(mask & (1 << n) - 1).bit_count() for n in range(64)]


def test_permutes_through_lds() -> None:
    a = integers(1)
    index = np.random.default_rng(0).permutation(64)
    made = wave({0: a, 1: index * 4, 4: OLD}, exec_mask=M32 << 32 | 0xFFFF)
    run(made, "ds_bpermute_b32 v4, v1, v0\nds_permute_b32 v5, v1, v0")
    with pytest.raises(EmulationError, match="in flight"):
        read(made, 4)
    run(made, "s_waitcnt lgkmcnt(0)")
    active = made.mask
    for n in np.flatnonzero(active):
        assert made.bits[4][n] == (a[index[n]] if active[index[n]] else 0)
        source = int(np.flatnonzero(index == n)[0])
        assert made.bits[5][n] == (a[source] if active[source] else 0)
    assert (made.bits[4][~active] == OLD).all()


SWIZZLES: dict[str, Callable[[int], int]] = {
    "ds_swizzle_b32 v1, v0 offset:swizzle(SWAP,16)": lambda n: n ^ 16,
    "ds_swizzle_b32 v1, v0 offset:swizzle(REVERSE,8)": lambda n: n ^ 7,
    "ds_swizzle_b32 v1, v0 offset:swizzle(BROADCAST,4,2)": lambda n: n & ~3 | 2,
    "ds_swizzle_b32 v1, v0 offset:swizzle(QUAD_PERM,3,1,0,2)": lambda n: (
        n & ~3 | (3, 1, 0, 2)[n & 3]
    ),
    'ds_swizzle_b32 v1, v0 offset:swizzle(BITMASK_PERM,"01pip")': lambda n: (
        n & 32 | (n & 7 | 8) ^ 2
    ),
    "ds_swizzle_b32 v1, v0 offset:0x401f": lambda n: n ^ 16,
    "ds_swizzle_b32 v1, v0 offset:0x80b1": lambda n: n ^ 1,
}


@pytest.mark.parametrize("text", SWIZZLES)
def test_swizzles(text: str) -> None:
    a = integers(1)
    w = execute(text + "\ns_waitcnt lgkmcnt(0)", {0: a})
    assert read(w, 1).tolist() == [int(a[SWIZZLES[text](n)]) for n in range(64)]


def test_undefined_lanes_move_along() -> None:
    made = wave({0: 1}, exec_mask=0xFFFF)
    run(made, "v_mov_b32_e32 v9, v0\ns_mov_b64 exec, -1")
    run(made, "v_mov_b32_dpp v4, v9 row_bcast:15 row_mask:0xf bank_mask:0xf bound_ctrl:1")
    run(made, "v_readlane_b32 s0, v9, 15\nv_readlane_b32 s1, v9, 16")
    assert scalar(made, 0) == 1
    with pytest.raises(EmulationError, match="undefined"):
        scalar(made, 1)
    made.set_exec(0xFFFF_FFFF)  # lanes 16.. read lane 15, lanes 0.. get zero
    assert read(made, 4)[:32].tolist() == [0] * 16 + [1] * 16
    made.set_exec(0x1_FFFF_FFFF)  # lane 32 reads lane 31, which is undefined
    with pytest.raises(EmulationError, match="lane 32"):
        read(made, 4)
