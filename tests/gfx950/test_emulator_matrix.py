"""Conversions to and from E2M1, and the matrix instructions of the emulator."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import oracle
import pytest
import torch

from .emulator import EmulationError
from .single import U32, bits, execute, integers, read, run, wave

NAN = 0x7FC00000
CONVERT = """v_cvt_scalef32_pk_fp4_bf16 v2, v0, v1
    v_cvt_scalef32_pk_fp4_bf16 v2, v0, v1 op_sel:[0,0,1,0]
    v_cvt_scalef32_pk_fp4_bf16 v2, v0, v1 op_sel:[0,0,0,1]
    v_cvt_scalef32_pk_fp4_bf16 v2, v0, v1 op_sel:[0,0,1,1]"""


EVEN_FIRST = np.array([0, 2, 4, 6, 1, 3, 5, 7])
MAGNITUDES = np.array([float(oracle.MAGNITUDES[c]) for c in EVEN_FIRST])


def codes_of(dtype: torch.dtype, patterns: U32, byte: int) -> np.ndarray:
    """The nearest E2M1 codes of numbers over 2**(byte - 127), the even ones in a tie; -1: none."""
    values = oracle.from_bits(patterns.astype(np.int64), dtype).double().numpy()
    scaled = np.minimum(np.abs(np.ldexp(values, 127 - byte)), 8)  # 6 is nearest from there on
    distances = np.abs(scaled[:, None] - MAGNITUDES)  # exact where they decide
    codes = EVEN_FIRST[distances.argmin(1)] + np.where(np.signbit(values), 8, 0)
    return np.where(np.isfinite(values), codes, -1)


def test_the_codes_expected_here() -> None:
    """Against exact fractions."""
    patterns = np.arange(0, 65536, 37, dtype=np.uint32)
    for byte in (1, 127, 253):
        for pattern, got in zip(
            patterns.tolist(), codes_of(torch.bfloat16, patterns, byte), strict=True
        ):
            size = oracle.magnitude(pattern, oracle.FORMATS[torch.bfloat16])
            if size is not None:
                scaled = size / Fraction(2) ** (byte - 127)
                key = [(abs(scaled - m), c & 1, c) for c, m in enumerate(oracle.MAGNITUDES)]
                assert got == min(key)[2] + 8 * (pattern >> 15)


@pytest.mark.parametrize("byte", [0, 1, 100, 127, 130, 253, 254])
def test_every_bfloat16(byte: int) -> None:
    """All 65,536 patterns, the other bytes of the register staying as they are."""
    patterns = np.arange(65536, dtype=np.uint32)
    want = codes_of(torch.bfloat16, patterns, byte)
    pairs = patterns[0::2] | patterns[1::2] << np.uint32(16)
    for start in range(0, len(pairs), 64):
        made = execute(
            "v_cvt_scalef32_pk_fp4_bf16 v2, v0, v1 op_sel:[0,0,1,0]",
            {0: pairs[start : start + 64], 1: byte << 23 | 0x12345, 2: 0xAABBCCDD},
        )
        low, high = want[2 * start : 2 * start + 128 : 2], want[2 * start + 1 : 2 * start + 128 : 2]
        known = (low >= 0) & (high >= 0)
        expected = 0xAABB00DD | (low | high << 4) << 8
        assert (made.bits[2][known] == expected[known]).all()
        # What the hardware makes of Inf and NaN is unknown.
        assert (made.shadow_of(2) == np.where(known, 0, 0xFF00)).all()


def test_bytes_of_one_register() -> None:
    values = np.resize(np.array([0.25, -0.75, 5.1, 100, -0.0, 2.5, 3.5, 0.26], np.float32), 128)
    halves = oracle.bits_of(torch.from_numpy(values).bfloat16()).astype(np.uint32)
    words = halves[0::2] | halves[1::2] << np.uint32(16)
    made = execute(CONVERT, {0: words, 1: 127 << 23})
    codes = codes_of(torch.bfloat16, halves, 127)
    assert (read(made, 2) == (codes[0::2] | codes[1::2] << 4) * 0x01010101).all()


@pytest.mark.parametrize("byte", [1, 115, 127, 140])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_other_sources(dtype: torch.dtype, byte: int) -> None:
    g = np.random.default_rng(byte)
    ties = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 0.0, 6.0, 7.0, -5.0, -0.25] * 12)
    values = np.concatenate((ties, g.uniform(-8, 8, 112))) * 2.0 ** (byte - 127)
    nudged = np.where(g.integers(0, 2, 256), values, values * (1 + 2.0**-9))
    patterns = oracle.bits_of(torch.from_numpy(nudged).to(dtype)).astype(np.uint32)
    codes = codes_of(dtype, patterns, byte)
    for start in range(0, 256, 128):
        part, want = patterns[start : start + 128], codes[start : start + 128]
        if dtype == torch.float32:
            text = "v_cvt_scalef32_pk_fp4_f32 v2, v0, v1, v3 op_sel:[0,0,0,1]"
            made = execute(text, {0: part[0::2], 1: part[1::2], 2: 0, 3: byte << 23})
        else:
            text = "v_cvt_scalef32_pk_fp4_f16 v2, v0, v3 op_sel:[0,0,0,1]"
            words = part[0::2] | part[1::2] << np.uint32(16)
            made = execute(text, {0: words, 2: 0, 3: byte << 23})
        assert (read(made, 2) == (want[0::2] | want[1::2] << 4) << 16).all()


@pytest.mark.parametrize("byte", [100, 127, 140])
def test_from_fp4(byte: int) -> None:
    words = integers(4)
    text = """v_cvt_scalef32_pk_f32_fp4 v[4:5], v0, v1
        v_cvt_scalef32_pk_bf16_fp4 v6, v0, v1 op_sel:[1,0,0]
        v_cvt_scalef32_pk_f16_fp4 v7, v0, v1 op_sel:[1,1,0]"""
    made = execute(text, {0: words, 1: byte << 23})
    packed = torch.from_numpy(words.view(np.uint8).reshape(64, 4).copy())
    values = oracle.decode(
        torch.cat((packed, torch.zeros(64, 12, dtype=torch.uint8)), 1),
        torch.full((64, 1), byte, dtype=torch.uint8),
    )
    assert read(made, 4, 2).tolist() == bits_of(values[:, 0:2], torch.float32).tolist()
    for register, first, dtype in ((6, 2, torch.bfloat16), (7, 6, torch.float16)):
        pair = bits_of(values[:, first : first + 2], dtype)
        assert read(made, register).tolist() == (pair[:, 0] | pair[:, 1] << 16).tolist()


def bits_of(values: torch.Tensor, dtype: torch.dtype) -> np.ndarray:
    return oracle.bits_of(values.to(dtype))


def nearest(exact: np.ndarray) -> U32:
    return bits_of(torch.from_numpy(exact), torch.float32).astype(np.uint32)


def scaled_operands(rows: int, depth: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 256, (rows, depth // 2), dtype=torch.uint8, generator=g)
    return codes, torch.randint(100, 140, (rows, depth // 32), dtype=torch.uint8, generator=g)


def place(codes: torch.Tensor, first: int) -> dict[int, np.ndarray]:
    """Lane l holds row l % rows and the l // rows-th block of 32, in four registers."""
    rows = len(codes)
    blocks = codes.numpy().reshape(rows, -1, 16).transpose(1, 0, 2).reshape(64, 16)
    words = np.ascontiguousarray(blocks).view(np.uint32)
    return {first + i: words[:, i] for i in range(4)}


def place_scales(scales: torch.Tensor, byte: int) -> np.ndarray:
    """The scale of each lane in one byte, something else in the others."""
    lanes = scales.numpy().T.reshape(64).astype(np.uint32)
    return np.uint32(0x81828384) & ~np.uint32(255 << 8 * byte) | lanes << np.uint32(8 * byte)


SCALED = {
    (16, 0, 0): (
        "v_mfma_scale_f32_16x16x128_f8f6f4 v[8:11], v[0:3], v[4:7], v[8:11], v30, v31 "
        "op_sel_hi:[0,0,0] cbsz:4 blgp:4"
    ),
    (16, 1, 2): (
        "v_mfma_scale_f32_16x16x128_f8f6f4 v[8:11], v[0:3], v[4:7], v[8:11], v30, v31 "
        "op_sel:[1,0,0] op_sel_hi:[0,1,0] cbsz:4 blgp:4"
    ),
    (16, 2, 3): (
        "v_mfma_scale_f32_16x16x128_f8f6f4 v[8:11], v[0:3], v[4:7], v[8:11], v30, v31 "
        "op_sel:[0,1,0] op_sel_hi:[1,1,0] cbsz:4 blgp:4"
    ),
    (32, 0, 1): (
        "v_mfma_scale_f32_32x32x64_f8f6f4 v[8:23], v[0:3], v[4:7], v[8:23], v30, v31 "
        "op_sel:[0,1,0] op_sel_hi:[0,0,0] cbsz:4 blgp:4"
    ),
    (32, 3, 2): (
        "v_mfma_scale_f32_32x32x64_f8f6f4 v[8:23], v[0:3], v[4:7], v[8:23], v30, v31 "
        "op_sel:[1,0,0] op_sel_hi:[1,1,0] cbsz:4 blgp:4"
    ),
}


def where(size: int, register: int) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of the result that a register holds in every lane."""
    lane = np.arange(64)
    if size == 16:
        return 4 * (lane // 16) + register, lane % 16
    return 8 * (register // 4) + 4 * (lane // 32) + register % 4, lane % 32


@pytest.mark.parametrize(("size", "byte_a", "byte_b"), SCALED)
def test_scaled_products(size: int, byte_a: int, byte_b: int) -> None:
    depth, count = 2048 // size, size * size // 64
    a, b = scaled_operands(size, depth, 1), scaled_operands(size, depth, 2)
    c = np.random.default_rng(3).standard_normal((size, size)).astype(np.float32)
    registers = place(a[0], 0) | place(b[0], 4)
    registers |= {30: place_scales(a[1], byte_a), 31: place_scales(b[1], byte_b)}
    registers |= {8 + r: c[where(size, r)].view(np.uint32) for r in range(count)}
    # EXEC has no part in it.
    made = execute(SCALED[size, byte_a, byte_b], registers, exec_mask=0xFF)
    exact = (oracle.decode(*a) @ oracle.decode(*b).T).numpy() + c
    for r in range(count):
        assert made.bits[8 + r].tolist() == nearest(exact[where(size, r)]).tolist()


def test_constant_addends() -> None:
    a, b = scaled_operands(16, 128, 1), scaled_operands(16, 128, 2)
    text = (
        "v_mfma_scale_f32_16x16x128_f8f6f4 a[0:3], v[0:3], v[4:7], 1.0, v30, v31 "
        "op_sel_hi:[0,0,0] cbsz:4 blgp:4"
    )
    registers = place(a[0], 0) | place(b[0], 4)
    registers |= {30: place_scales(a[1], 0), 31: place_scales(b[1], 0), 256: np.zeros(64)}
    made = execute(text + "\nv_accvgpr_read_b32 v9, a2", registers)
    exact = (oracle.decode(*a) @ oracle.decode(*b).T).numpy() + 1
    assert read(made, 9).tolist() == nearest(exact[where(16, 2)]).tolist()


def test_nan_scales_and_undefined_elements() -> None:
    a, b = scaled_operands(16, 128, 1), scaled_operands(16, 128, 2)
    a[1][3, 1] = 255
    registers = place(a[0], 0) | place(b[0], 4)
    registers |= {30: place_scales(a[1], 0), 31: place_scales(b[1], 0)}
    made = wave(registers)
    # Undefined codes of row 3 under its NaN scale do not matter, those of row 5 do.
    everyone = np.ones(64, np.bool_)
    for lane in (16 + 3, 5):
        hit = np.where(np.arange(64) == lane, 0x10, 0).astype(np.uint32)
        made.deposit(1, made.bits[1].copy(), everyone, 0xFFFFFFFF, made.shadow_of(1) | hit)
    text = (
        "v_mfma_scale_f32_16x16x128_f8f6f4 v[8:11], v[0:3], v[4:7], 0, v30, v31 "
        "op_sel_hi:[0,0,0] cbsz:4 blgp:4"
    )
    run(made, text)
    for r in range(4):
        rows, _ = where(16, r)
        assert np.isnan(made.v[2][8 + r][rows == 3]).all()
        assert (made.shadow_of(8 + r) != 0).tolist() == (rows == 5).tolist()
    with pytest.raises(EmulationError, match="undefined"):
        read(made, 9)


PLAIN = {
    "v_mfma_f32_16x16x32_bf16 v[16:19], v[0:3], v[4:7], 0": (16, 32, torch.bfloat16, 4),
    "v_mfma_f32_32x32x16_bf16 v[16:31], v[0:3], v[4:7], 0": (32, 16, torch.bfloat16, 4),
    "v_mfma_f32_16x16x32_f16 v[16:19], v[0:3], v[4:7], 0": (16, 32, torch.float16, 4),
    "v_mfma_f32_32x32x16_f16 v[16:31], v[0:3], v[4:7], 0": (32, 16, torch.float16, 4),
    "v_mfma_f32_16x16x16_f16 v[16:19], v[0:1], v[4:5], 0": (16, 16, torch.float16, 2),
    "v_mfma_f32_16x16x16_bf16 v[16:19], v[0:1], v[4:5], 0": (16, 16, torch.bfloat16, 2),
    "v_mfma_f32_32x32x8_f16 v[16:31], v[0:1], v[4:5], 0": (32, 8, torch.float16, 2),
    "v_mfma_f32_32x32x8_bf16 v[16:31], v[0:1], v[4:5], 0": (32, 8, torch.bfloat16, 2),
    "v_mfma_f32_16x16x4_f32 v[16:19], v0, v4, 0": (16, 4, torch.float32, 1),
    "v_mfma_f32_32x32x2_f32 v[16:31], v0, v4, 0": (32, 2, torch.float32, 1),
}


@pytest.mark.parametrize("text", PLAIN)
def test_plain_products(text: str) -> None:
    size, depth, dtype, count = PLAIN[text]
    g = torch.Generator().manual_seed(5)
    a, b = (torch.randn(size, depth, generator=g).to(dtype) for _ in range(2))
    registers: dict[int, np.ndarray] = {}
    for first, x in ((0, a), (4, b)):
        runs = x.view(size, 64 // size, -1).transpose(0, 1).reshape(64, -1).contiguous()
        words = runs.view(torch.uint8).numpy().view(np.uint32)
        registers |= {first + i: words[:, i] for i in range(count)}
    made = execute(text, registers)
    exact = (a.double() @ b.double().T).numpy()
    for r in range(size * size // 64):
        assert read(made, 16 + r).tolist() == nearest(exact[where(size, r)]).tolist()


def test_accumulation_registers() -> None:
    text = """v_accvgpr_write_b32 a3, v0
        v_accvgpr_mov_b32 a4, a3
        v_accvgpr_read_b32 v1, a4
        v_accvgpr_write_b32 a5, 1.0
        v_accvgpr_read_b32 v2, a5"""
    a = integers(6)
    made = execute(text, {0: a, 256: 0})
    assert read(made, 1).tolist() == a.tolist()
    assert read(made, 2).tolist() == bits(1.0, "float32").tolist()
