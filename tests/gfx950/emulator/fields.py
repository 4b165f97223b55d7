"""Parts of registers as operands: the halves of VOP3, the fields of SDWA, the lanes of DPP."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .access import DTYPE, Reader, Writer, reader, register
from .errors import EmulationError
from .operands import Operand
from .parse import Instruction
from .wave import LANE, LANES, M32, U32, Row, Wave

SELECTS = {
    "DWORD": (0, 32),
    "WORD_0": (0, 16),
    "WORD_1": (16, 16),
    **{f"BYTE_{n}": (8 * n, 8) for n in range(4)},
}
SDWA = ("dst_sel", "dst_unused", "src0_sel", "src1_sel")
DPP = {"row_mask", "bank_mask", "bound_ctrl"}


def half_reader(op: Operand, type_: str, slot: int, high: int) -> Reader:
    """One half of a register as a 16-bit type, with its sign modifiers."""
    read = _field_reader(replace(op, neg=False, abs=False), slot, 16 * high, 16, type_)
    return _signs(op, lambda w: read(w).astype(np.uint16).view(DTYPE[type_[0]] + "16"))


def _signs(op: Operand, read: Reader) -> Reader:
    if op.abs and op.neg:
        return lambda w: np.negative(np.abs(read(w)))
    if op.abs or op.neg:
        fn = np.abs if op.abs else np.negative
        return lambda w: fn(read(w))
    return read


def _field_reader(op: Operand, slot: int, shift: int, width: int, type_: str = "u32") -> Reader:
    """A field of a 32-bit operand, moved to bit 0, of which nothing else is read."""
    ones = (1 << width) - 1
    if op.kind not in ("v", "a"):
        word = reader(op, type_ if op.constant and type_.endswith("16") else "u32", slot)

        def read_any(w: Wave) -> Row:
            value = word(w)
            value = value.view(f"u{value.dtype.itemsize}").astype(np.uint32)
            return value >> np.uint32(shift) & np.uint32(ones)

        return read_any
    row, bits = register(op), ones << shift

    def read(w: Wave) -> Row:
        if w.flags[row]:
            w.touch(row, bits)
        return w.v[U32][row] >> np.uint32(shift) & np.uint32(ones)

    return read


# SDWA


def sdwa_readers(ins: Instruction, types: tuple[str, ...], skip: int = 1) -> list[Reader]:
    """The sources, each a byte, a half or the whole of its operand."""
    readers = []
    for i, (op, type_) in enumerate(zip(ins.operands[skip:], types, strict=False)):
        shift, width = SELECTS[ins.modifiers.get(f"src{i}_sel", "DWORD")]
        plain = replace(op, neg=False, abs=False, sext=False)
        field = _field_reader(plain, i, shift, width)
        read = _typed(field, type_, width, op.sext)
        readers.append(_signs(op, read) if type_[0] == "f" else read)
    return readers


def _typed(field: Reader, type_: str, width: int, sext: bool) -> Reader:
    if sext and type_[0] == "f":
        raise EmulationError("sext of a float")
    size, kind = int(type_[1:]), DTYPE[type_[0]] + type_[1:]
    top = np.uint32(1 << (width - 1))

    def read(w: Wave) -> Row:
        value = field(w)
        if sext:
            value = (value ^ top) - top
        if size == 16:
            value = value.astype(np.uint16)
        return value.view(kind)

    return read


def sdwa_writer(ins: Instruction) -> Writer:
    """The result into a field of the destination; the rest becomes 0, the sign, or stays."""
    row = register(ins.operands[0])
    shift, width = SELECTS[ins.modifiers.get("dst_sel", "DWORD")]
    rest = ins.modifiers.get("dst_unused", "UNUSED_PAD")
    ones, top = np.uint32((1 << width) - 1), np.uint32(1 << (width - 1))
    if rest not in ("UNUSED_PAD", "UNUSED_SEXT", "UNUSED_PRESERVE"):
        raise EmulationError(f"unknown dst_unused {rest}")
    bits = int(ones) << shift if rest == "UNUSED_PRESERVE" else M32

    def write(w: Wave, value: Row) -> None:
        word = value.view(f"u{value.dtype.itemsize}").astype(np.uint32) & ones
        if rest == "UNUSED_SEXT":
            word = (word ^ top) - top
        undefined = None
        if w.taint is not None:
            # What is filled up with zeros is defined.
            mark = M32 if rest == "UNUSED_SEXT" else int(ones) << shift
            undefined = np.where(w.taint, np.uint32(mark), np.uint32(0))
        w.put(row, word << np.uint32(shift), bits, undefined)

    return write


# DPP


def dpp_source(ins: Instruction) -> tuple[Row, Row, Row]:
    """For every lane: where source 0 comes from, whether that is in range, and whether to write."""
    controls = {k: v for k, v in ins.modifiers.items() if k not in DPP and k != "clamp"}
    if len(controls) != 1:
        raise EmulationError(f"unknown DPP control {sorted(controls)}")
    ((control, text),) = controls.items()
    base, place = LANE & ~15, LANE & 15
    count = int(text, 0) if text and text[0] != "[" else 0
    valid = np.ones(LANES, np.bool_)
    if control == "quad_perm":
        order = np.array(ins.flags("quad_perm", (0, 0, 0, 0)))
        source = (LANE & ~3) + order[LANE & 3]
    elif control == "row_shl":
        source, valid = LANE + count, place + count < 16
    elif control == "row_shr":
        source, valid = LANE - count, place >= count
    elif control == "row_ror":
        source = base + (place - count & 15)
    elif control == "row_mirror":
        source = base + 15 - place
    elif control == "row_half_mirror":
        source = (LANE & ~7) + 7 - (LANE & 7)
    elif control == "row_bcast" and count == 15:
        source, valid = base - 1, LANE > 15
    elif control == "row_bcast" and count == 31:
        source, valid = (LANE & 32) - 1, LANE > 31
    elif control == "row_newbcast":
        source = base + count
    elif control == "wave_shr" and count == 1:
        source, valid = LANE - 1, LANE > 0
    elif control == "wave_shl" and count == 1:
        source, valid = LANE + 1, LANE < 63
    else:
        raise EmulationError(f"unknown DPP control {control}:{text}")
    rows, banks = ins.modifier("row_mask", 15), ins.modifier("bank_mask", 15)
    enabled = (rows >> (LANE // 16) & 1).astype(np.bool_) & (banks >> (place // 4) & 1).astype(bool)
    return np.where(valid, source, 0), valid, enabled
