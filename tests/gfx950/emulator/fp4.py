"""E2M1: conversions to and from it, and the decoding that the matrix units do."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from . import floats as fl
from .access import reader, register
from .bits import pack_f16
from .errors import EmulationError
from .fields import half_reader
from .operands import Operand
from .parse import Instruction
from .vector import only
from .wave import M32, Row, Step, Wave

VALUES: Row = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
VALUES = np.concatenate((VALUES, -VALUES))
# Of a byte: the element of its low nibble, then of its high one.
PAIRS: Row = np.stack((VALUES[np.arange(256) & 15], VALUES[np.arange(256) >> 4]), axis=1)
# 2**(byte - 127), NaN for 255.
SCALES: Row = np.append(np.ldexp(1.0, np.arange(255) - 127), np.nan)

# Where the next code begins: halfway, and from there on if that code is even.
_MIDDLES: Row = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5])
_THRESHOLDS: Row = np.where(np.arange(7) % 2 == 0, np.nextafter(_MIDDLES, np.inf), _MIDDLES)


def encode(x: Row) -> Row:
    """The nearest E2M1 codes of float64, ties to even, saturating."""
    return np.searchsorted(_THRESHOLDS, np.abs(x), side="right") | np.where(np.signbit(x), 8, 0)


def _bf16(op: Operand, slot: int, high: int) -> Callable[[Wave], Row]:
    read = half_reader(op, "u16", slot, high)
    return lambda w: (read(w).astype(np.uint32) << np.uint32(16)).view(np.float32)


def to_fp4(ins: Instruction) -> Step:
    """v_cvt_scalef32_pk_fp4_{f32,f16,bf16}: two values over a power of two, into one byte.

    What becomes of Inf and NaN, and under a NaN scale, is not known here: it counts as undefined.
    """
    only(ins, "op_sel")
    type_ = ins.mnemonic.rpartition("_")[2]
    dst, *sources, scale = ins.operands
    if len(sources) != (2 if type_ == "f32" else 1):
        raise EmulationError("wrong number of operands")
    *source_halves, low, high = ins.flags("op_sel", (0, 0, 0, 0))
    if any(source_halves):
        raise EmulationError("op_sel of a source")
    reads: list[Callable[[Wave], Row]]
    if type_ == "f32":
        reads = [reader(op, "f32", i) for i, op in enumerate(sources)]
    elif type_ == "bf16":
        reads = [_bf16(sources[0], 0, half) for half in range(2)]
    else:
        reads = [half_reader(sources[0], "f16", 0, half) for half in range(2)]
    read_scale, row, shift = reader(scale, "f32", 2), register(dst), 8 * (low + 2 * high)

    def step(w: Wave) -> None:
        first, second = (r(w).astype(np.float64) for r in reads)
        field = fl.exponent(read_scale(w))
        factor = SCALES[field]
        byte = encode(first / factor) | encode(second / factor) << 4
        unknown = (field == 255) | ~np.isfinite(first) | ~np.isfinite(second)
        if unknown.any():
            w.taint = unknown if w.taint is None else w.taint | unknown
        w.put(row, byte.astype(np.uint32) << np.uint32(shift), 255 << shift)

    return step


def from_fp4(ins: Instruction) -> Step:
    """v_cvt_scalef32_pk_{f32,f16,bf16}_fp4: the two elements of a byte times a power of two."""
    only(ins, "op_sel")
    type_ = ins.mnemonic.split("_")[4]
    dst, source, scale = ins.operands
    low, high, *rest = ins.flags("op_sel", (0, 0, 0, 0))
    if any(rest):
        raise EmulationError("op_sel of the destination")
    read, read_scale, shift = (
        reader(source, "u32", 0),
        reader(scale, "f32", 1),
        8 * (low + 2 * high),
    )
    row = register(dst, 2 if type_ == "f32" else 1)

    def step(w: Wave) -> None:
        byte = read(w) >> np.uint32(shift) & np.uint32(255)
        pair = PAIRS[byte] * SCALES[fl.exponent(read_scale(w))][:, None]
        first, second = np.ascontiguousarray(pair.T)
        if type_ == "f32":
            taint = w.taint
            w.put(row, first.astype(np.float32).view(np.uint32))
            w.taint = taint
            w.put(row + 1, second.astype(np.float32).view(np.uint32))
        elif type_ == "f16":
            w.put(row, pack_f16(first, second))
        else:
            w.put(row, fl.to_bf16(first) | fl.to_bf16(second) << np.uint32(16), M32)

    return step


BUILDERS: dict[str, Callable[[Instruction], Step]] = {
    **{f"v_cvt_scalef32_pk_fp4_{t}": to_fp4 for t in ("f32", "f16", "bf16")},
    **{f"v_cvt_scalef32_pk_{t}_fp4": from_fp4 for t in ("f32", "f16", "bf16")},
}
