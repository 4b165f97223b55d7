"""Readers and writers of operands, resolved once when the program is decoded.

A type names what an instruction sees: u32 i32 f32, u16 i16 f16 (the low half of a register) and
u64 i64 f64 (a pair). `mask` is a pair of scalar registers as one boolean a lane.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from .errors import EmulationError
from .operands import SGPRS, Operand
from .wave import (
    ACC,
    F16,
    F32,
    I16,
    I32,
    LANES,
    M32,
    M64,
    U16,
    U32,
    UNDEFINED,
    Row,
    Wave,
    lanes,
)

Reader = Callable[[Wave], Row]
ScalarReader = Callable[[Wave], int]
Mask = npt.NDArray[np.bool_]
Writer = Callable[[Wave, Row], None]

VIEW = {"u32": U32, "i32": I32, "f32": F32, "u16": U16, "i16": I16, "f16": F16}
DTYPE = {"u": "uint", "i": "int", "f": "float"}


def register(op: Operand, count: int = 1) -> int:
    """The row in the register file of a vector or accumulation operand of `count` registers."""
    if op.kind not in ("v", "a") or op.count != count:
        raise EmulationError(f"{op.text} is no range of {count} vector registers")
    return op.index + (ACC if op.kind == "a" else 0)


def scalar_register(op: Operand, count: int = 1) -> int:
    if op.kind != "s" or op.count != count or op.index + count > SGPRS:
        raise EmulationError(f"{op.text} is no range of {count} scalar registers")
    return op.index


def constant(op: Operand, type_: str) -> Row:
    """A constant in every lane."""
    width = type_[1:]
    row = np.full(LANES, op.bits(type_) & ((1 << int(width)) - 1), f"uint{width}")
    row = row.view(DTYPE[type_[0]] + width)
    row.flags.writeable = False
    return row


def reader(op: Operand, type_: str, slot: int = 0) -> Reader:
    """What yields the operand's lanes; `slot` keeps the scalar sources of one instruction apart."""
    if op.sext:
        raise EmulationError(f"{op.text}: sext outside of SDWA")
    plain = _plain_reader(op, type_, slot)
    if not (op.neg or op.abs):
        return plain
    if type_[0] != "f":
        raise EmulationError(f"{op.text}: a sign modifier on {type_}")
    if op.neg and op.abs:
        return lambda w: np.negative(np.abs(plain(w)))
    return (lambda w: np.negative(plain(w))) if op.neg else (lambda w: np.abs(plain(w)))


def _plain_reader(op: Operand, type_: str, slot: int) -> Reader:
    wide = type_.endswith("64")
    if op.constant:
        row = constant(op, type_)
        return lambda w: row
    if op.kind in ("v", "a"):
        return _pair_reader(op, type_) if wide else _vector_reader(op, type_)
    index = scalar_register(op, 2 if wide else 1)
    if wide:
        dtype = DTYPE[type_[0]] + "64"

        def spread_pair(w: Wave) -> Row:
            if w.sx[index] or w.sx[index + 1]:
                _taint_all(w, index, index + 1)
            w.wide[slot].fill(w.s[index] | w.s[index + 1] << 32)
            return w.wide[slot].view(dtype)

        return spread_pair
    view, half = VIEW[type_], M32 if type_.endswith("32") else 0xFFFF

    def spread(w: Wave) -> Row:
        if w.sx[index] & (half | 1 << 32):
            _taint_all(w, index)
        w.slots[U32][slot].fill(w.s[index])
        return w.slots[view][slot]

    return spread


def _taint_all(w: Wave, *indices: int) -> None:
    for index in indices:
        w.touch_scalar(index)
    w.scalar_taint = 0
    w.taint = np.ones(LANES, np.bool_)


def _vector_reader(op: Operand, type_: str) -> Reader:
    row, view = register(op), VIEW[type_]
    bits = M32 if type_.endswith("32") else 0xFFFF

    def read(w: Wave) -> Row:
        if w.flags[row]:
            w.touch(row, bits)
        return w.v[view][row]

    return read


def _pair_reader(op: Operand, type_: str) -> Reader:
    row, dtype = register(op, 2), DTYPE[type_[0]] + "64"

    def read_pair(w: Wave) -> Row:
        if w.flags[row] or w.flags[row + 1]:
            w.touch(row)
            w.touch(row + 1)
        value = w.v[U32][row + 1].astype(np.uint64)
        value <<= np.uint64(32)
        value |= w.v[U32][row]
        return value.view(dtype)

    return read_pair


def low_taint(operands: Sequence[Operand]) -> Callable[[Wave], Mask | None]:
    """The undefined lanes that a sum's low word knows of: not those of the high words of pairs."""
    rows = [register(op, op.count) for op in operands if op.kind in ("v", "a")]
    scalars = [op.index for op in operands if op.kind == "s"]

    def taint(w: Wave) -> Mask | None:
        for row in rows:
            if w.flags[row]:
                w.touch(row)
        for index in scalars:
            if w.sx[index]:
                _taint_all(w, index)
        found, w.taint = w.taint, None
        return found

    return taint


def put_sum(w: Wave, row: int, value: Row, low: Mask | None) -> None:
    """Write a pair of registers whose words may be undefined apart from one another."""
    words, high = value.view(np.uint32), w.taint
    w.taint = low
    w.put(row, words[0::2])
    w.taint = high
    w.put(row + 1, words[1::2])


def mask_reader(op: Operand) -> Callable[[Wave], Mask]:
    """A pair of scalar registers as booleans; its undefined bits taint their lanes."""
    index = scalar_register(op, 2)

    def read(w: Wave) -> Mask:
        if w.sx[index] or w.sx[index + 1]:
            w.touch_scalar(index)
            w.touch_scalar(index + 1)
            w.scalar_taint = 0
            bad = lanes(w.sx[index] | w.sx[index + 1] << 32)
            w.taint = bad if w.taint is None else w.taint | bad
        return lanes(w.s[index] | w.s[index + 1] << 32)

    return read


def shadow_reader(op: Operand) -> Reader:
    """The undefined bits of a 32-bit operand."""
    if op.kind in ("v", "a"):
        row = register(op)
        return lambda w: w.shadow_of(row)
    if op.kind == "s":
        index = scalar_register(op)
        return lambda w: np.full(LANES, w.sx[index], np.uint32)
    none = np.zeros(LANES, np.uint32)
    return lambda w: none


def writer(op: Operand, type_: str, keep_high: bool = False) -> Writer:
    """What writes a result where EXEC is set. 16-bit results clear the high half or keep it."""
    if type_.endswith("64"):
        return _pair_writer(op)
    row = register(op)
    if type_.endswith("32"):
        view = VIEW[type_]

        def write(w: Wave, value: Row) -> None:
            if w.full and w.taint is None and w.flags[row] <= UNDEFINED:
                w.flags[row] = 0
                w.v[view][row][:] = value
            else:
                w.put(row, value.astype(w.v[view][row].dtype, copy=False).view(np.uint32))

        return write
    bits = 0xFFFF if keep_high else M32

    view, ready = (U16, 0) if keep_high else (U32, UNDEFINED)

    def write_half(w: Wave, value: Row) -> None:
        if w.full and w.taint is None and w.flags[row] <= ready:
            w.flags[row] = 0
            w.v[view][row][:] = value.view(np.uint16)
        else:
            w.put(row, value.view(np.uint16).astype(np.uint32), bits)

    return write_half


def _pair_writer(op: Operand) -> Writer:
    row = register(op, 2)

    return lambda w, value: put_sum(w, row, value, w.taint)


def scalar_reader(op: Operand, width: int = 32) -> ScalarReader:
    """A scalar operand as an integer."""
    if op.neg or op.abs or op.sext:
        raise EmulationError(f"{op.text}: a modifier on a scalar operand")
    if op.constant:
        value = op.bits(f"u{width}")
        return lambda w: value
    if op.kind == "scc":

        def read_scc(w: Wave) -> int:
            w.scalar_taint |= int(w.scc_undefined)
            return w.scc

        return read_scc
    index = scalar_register(op, width // 32)
    if width == 32:

        def read(w: Wave) -> int:
            if w.sx[index]:
                w.touch_scalar(index)
            return w.s[index]

        return read

    def read_pair(w: Wave) -> int:
        if w.sx[index] or w.sx[index + 1]:
            w.touch_scalar(index)
            w.touch_scalar(index + 1)
        return w.s[index] | w.s[index + 1] << 32

    return read_pair


def scalar_shadow(op: Operand, width: int) -> ScalarReader:
    """The undefined bits of a scalar operand."""
    if op.kind != "s":
        return lambda w: 0
    index = scalar_register(op, width // 32)
    if width == 32:
        return lambda w: w.sx[index]
    return lambda w: w.sx[index] | w.sx[index + 1] << 32


def scalar_writer(op: Operand, width: int = 32) -> Callable[[Wave, int, int], None]:
    """What writes an integer and its undefined bits."""
    index = scalar_register(op, width // 32)
    if width == 32:
        return lambda w, value, undefined: w.put_scalar(index, value, undefined)
    return lambda w, value, undefined: w.put_pair(index, value & M64, undefined)
