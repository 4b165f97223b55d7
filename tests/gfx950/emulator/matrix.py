"""Matrix instructions: D[M, N] = A[M, K] B[K, N] + C over the lanes of a wave.

Every sum is formed in float64 and rounded once; the order of the hardware's additions is unknown.
EXEC has no part in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from . import fp4
from .access import register
from .errors import EmulationError
from .operands import Operand
from .parse import Instruction
from .vector import only
from .wave import F32, LANES, M32, U32, Row, Step, Wave

Decoded = tuple[Row, Row | None]  # elements [64, per lane], and which of them are undefined
Decoder = Callable[[Wave], Decoded]


def _words(w: Wave, row: int, count: int) -> tuple[Row, Row | None]:
    """Registers as `[64, count]` words, and their undefined bits."""
    bad = None
    for r in range(row, row + count):
        if w.flags[r]:
            w.touch(r)
            bad = np.ones(0)
    w.taint = None
    if bad is not None:
        bad = np.stack([w.shadow_of(r) for r in range(row, row + count)], axis=1)
    return np.ascontiguousarray(w.bits[row : row + count].T), bad


def _decoder(op: Operand, type_: str, per_lane: int) -> Decoder:
    """`per_lane` elements of a lane's registers in float64."""
    width = {"f32": 4, "f16": 2, "bf16": 2}[type_]
    count = per_lane * width // 4
    row = register(op, count)

    def numbers(octets: Row) -> Row:
        if type_ == "bf16":
            return (octets.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
        return octets.view(np.float32 if type_ == "f32" else np.float16)

    def decode(w: Wave) -> Decoded:
        words, bad = _words(w, row, count)
        undefined = None if bad is None else bad.view(f"u{width}") != 0
        return numbers(words).astype(np.float64), undefined

    return decode


def _scaled_fp4(op: Operand, scale: Operand, select: int) -> Decoder:
    """32 elements of E2M1 a lane, times the power of two in one byte of the lane's scale."""
    row, scale_row = register(op, 4), register(scale)
    shift, bits = np.uint32(8 * select), 255 << 8 * select

    def decode(w: Wave) -> Decoded:
        words, bad = _words(w, row, 4)
        octets = words.view(np.uint8)
        unknown = np.zeros(LANES, np.bool_)
        if w.flags[scale_row]:
            w.touch(scale_row, bits)
            unknown, w.taint = w.taint if w.taint is not None else unknown, None
        byte = w.v[U32][scale_row] >> shift & np.uint32(255)
        elements = fp4.PAIRS[octets].reshape(LANES, 32) * fp4.SCALES[byte][:, None]
        if bad is None and not unknown.any():
            return elements, None
        nibbles: Row = np.zeros((LANES, 32), np.bool_)
        if bad is not None:
            marks = bad.view(np.uint8)
            nibbles = np.stack((marks & 15 != 0, marks >> 4 != 0), axis=2).reshape(LANES, 32)
        # Under a NaN scale every element is NaN, whatever its code.
        nibbles &= (byte != 255)[:, None]
        return elements, nibbles | unknown[:, None]

    return decode


def _matrix(lanes: Row, size: int) -> Row:
    """Lane l holds row l % size and the l // size-th run of K: as `[size, K]`."""
    return lanes.reshape(LANES // size, size, -1).transpose(1, 0, 2).reshape(size, -1)


def _to_lanes(d: Row, size: int) -> Row:
    """Result register r of lane l is row 4 * (l // 16) + r, column l % 16; alike in 32 x 32."""
    groups = LANES // size
    rows = d.reshape(size // (4 * groups), groups, 4, size)
    return rows.transpose(0, 2, 1, 3).reshape(-1, LANES)


def _multiply(dst: Operand, addend: Operand, a: Decoder, b: Decoder, size: int) -> Step:
    count = size * size // LANES
    row = register(dst, count)
    start = None if addend.constant else register(addend, count)
    constant = 0.0
    if start is None:
        constant = float(np.array([addend.bits("f32")], np.uint32).view(np.float32)[0])

    def step(w: Wave) -> None:
        left, bad_left = a(w)
        right, bad_right = b(w)
        total = _to_lanes(_matrix(left, size) @ _matrix(right, size).T, size)
        bad = None
        if start is None:
            total += constant
        else:
            for r in range(start, start + count):
                if w.flags[r]:
                    w.touch(r)
                    bad = np.zeros((count, LANES), np.bool_)
            w.taint = None
            if bad is not None:
                bad = np.stack([w.shadow_of(r) for r in range(start, start + count)]) != 0
            total += np.stack(w.v[F32][start : start + count])
        if bad_left is not None or bad_right is not None:
            rows = _unknown(bad_left, size)[:, None] | _unknown(bad_right, size)[None, :]
            lanes = _to_lanes(rows, size)
            bad = lanes if bad is None else bad | lanes
        result = total.astype(np.float32).view(np.uint32)
        if bad is None and not any(w.flags[row : row + count]):
            w.bits[row : row + count] = result
            return
        everyone = np.ones(LANES, np.bool_)
        for i in range(count):
            lost = np.zeros(LANES, np.uint32)
            if bad is not None:
                lost = np.where(bad[i] & ~np.isnan(total[i]), np.uint32(M32), np.uint32(0))
            w.put_lanes(row + i, result[i], everyone, undefined=lost)

    return step


def _unknown(bad: Row | None, size: int) -> Row:
    """Which rows of a matrix have an undefined element."""
    everything: Row = np.zeros((size, 1), np.bool_) if bad is None else _matrix(bad, size)
    return np.logical_or.reduce(everything, axis=1)


def scaled(ins: Instruction) -> Step:
    """v_mfma_scale_f32_{16x16x128,32x32x64}_f8f6f4 on E2M1, a scale for every 32 elements of K."""
    only(ins, "op_sel", "op_sel_hi", "cbsz", "blgp")
    if (ins.modifier("cbsz"), ins.modifier("blgp")) != (4, 4):
        raise EmulationError("a format other than E2M1 (cbsz:4 blgp:4)")
    low, high = ins.flags("op_sel", (0, 0, 0)), ins.flags("op_sel_hi", (1, 1, 1))
    dst, a, b, c, scale_a, scale_b = ins.operands
    left = _scaled_fp4(a, scale_a, low[0] + 2 * high[0])
    right = _scaled_fp4(b, scale_b, low[1] + 2 * high[1])
    return _multiply(dst, c, left, right, 16 if "16x16" in ins.mnemonic else 32)


SHAPES = {
    "f16": ("16x16x16", "32x32x8", "16x16x32", "32x32x16"),
    "bf16": ("16x16x16", "32x32x8", "16x16x32", "32x32x16"),
    "f32": ("16x16x4", "32x32x2"),
}


def plain(ins: Instruction) -> Step:
    """v_mfma_f32_<M>x<N>x<K>_<type> with one block."""
    only(ins)
    parts = re.fullmatch(r"v_mfma_f32_(\d+)x\d+x(\d+)_(f16|bf16|f32)", ins.mnemonic)
    if parts is None:
        raise EmulationError(f"unknown instruction {ins.mnemonic}")
    size, depth, type_ = int(parts[1]), int(parts[2]), parts[3]
    dst, a, b, c = ins.operands
    per_lane = depth * size // LANES
    return _multiply(dst, c, _decoder(a, type_, per_lane), _decoder(b, type_, per_lane), size)


BUILDERS: dict[str, Callable[[Instruction], Step]] = {
    "v_mfma_scale_f32_16x16x128_f8f6f4": scaled,
    "v_mfma_scale_f32_32x32x64_f8f6f4": scaled,
    **{f"v_mfma_f32_{s}_{t}": plain for t, shapes in SHAPES.items() for s in shapes},
}
