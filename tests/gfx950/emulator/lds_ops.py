"""LDS instructions, and those that borrow its crossbar to move data between lanes."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from .access import reader, register
from .errors import EmulationError
from .memory_ops import HALF, extend
from .operands import Operand
from .parse import Instruction
from .vector import only
from .wave import LANE, LANES, M32, Pending, Row, Step, Wave

SIZES = {"8": 1, "16": 2, "32": 4, "64": 8, "96": 12, "128": 16}
Address = Callable[[Wave, int], Row]


def _address(op: Operand) -> Address:
    """The operand plus an offset, in 32 bits: the operand may be negative."""
    read = reader(op, "u32")

    def address(w: Wave, offset: int) -> Row:
        value = read(w).astype(np.int64) + offset & M32
        w.demand("the LDS address")
        return value

    return address


def _offsets(ins: Instruction, size: int, two: bool, stride: bool) -> list[int]:
    if not two:
        only(ins, "offset")
        return [ins.modifier("offset")]
    only(ins, "offset0", "offset1")
    unit = size * (64 if stride else 1)
    return [ins.modifier("offset0") * unit, ins.modifier("offset1") * unit]


def read(ins: Instruction) -> Step:
    """ds_read_{b32,...}, ds_read_{u8,i8,u16,i16}[_d16[_hi]], ds_read2[st64]_{b32,b64}."""
    parts = re.fullmatch(r"ds_read(2)?(st64)?_([bui])(\d+)(_d16|_d16_hi)?", ins.mnemonic)
    if parts is None:
        raise EmulationError(f"unknown instruction {ins.mnemonic}")
    two, stride, kind, bits, d16 = parts.groups()
    size, half = SIZES[bits], {"_d16": "lo", "_d16_hi": "hi"}.get(d16, "")
    if (kind == "b") != (size >= 4) or (two and size not in (4, 8)) or (half and size > 2):
        raise EmulationError(f"unknown instruction {ins.mnemonic}")
    offsets = _offsets(ins, size, bool(two), bool(stride))
    dst, source = ins.operands
    words = max(size // 4, 1)
    first, address = register(dst, words * len(offsets)), _address(source)
    rows = range(first, first + words * len(offsets))

    def step(w: Wave) -> None:
        if not w.exec:
            return w.issue(w.ds, Pending())
        found = [w.local.load(w, address(w, offset), w.mask, size) for offset in offsets]
        data = np.concatenate([extend(f[0], size, kind == "i", half) for f in found])
        undefined = None
        if any(f[1] is not None for f in found):
            undefined = np.concatenate(
                [_marks(f[1], size, kind == "i", half, words) for f in found]
            )
        pending = w.landing(rows, data, HALF[half], undefined)
        pending.lds = _together([f[2] for f in found])
        return w.issue(w.ds, pending)

    return step


def _marks(bad: Row | None, size: int, sign: bool, half: str, words: int) -> Row:
    if bad is None:
        return np.zeros((words, LANES), np.uint32)
    return extend(bad, size, sign, half)


def _together(marks: list[tuple[Row, bool]]) -> tuple[Row, bool]:
    return np.concatenate([m[0].ravel() for m in marks]), marks[0][1]


def write(ins: Instruction) -> Step:
    """ds_write_{b8,...,b128}[_d16_hi], ds_write2[st64]_{b32,b64}."""
    parts = re.fullmatch(r"ds_write(2)?(st64)?_b(\d+)(_d16_hi)?", ins.mnemonic)
    if parts is None:
        raise EmulationError(f"unknown instruction {ins.mnemonic}")
    two, stride, bits, high = parts.groups()
    size = SIZES[bits]
    if (two and size not in (4, 8)) or (high and size > 2):
        raise EmulationError(f"unknown instruction {ins.mnemonic}")
    offsets = _offsets(ins, size, bool(two), bool(stride))
    target, *sources = ins.operands
    words = max(size // 4, 1)
    address, rows = _address(target), [register(op, words) for op in sources]
    if len(rows) != len(offsets):
        raise EmulationError("wrong number of operands")

    def step(w: Wave) -> None:
        if not w.exec:
            return w.issue(w.ds, Pending())
        marks = []
        for row, offset in zip(rows, offsets, strict=True):
            data, bad = _registers(w, row, words)
            if high:
                data, bad = data >> np.uint32(16), None if bad is None else bad >> np.uint32(16)
            marks.append(w.local.store(w, address(w, offset), w.mask, size, data, bad))
        return w.issue(w.ds, Pending(lds=_together(marks)))

    return step


def _registers(w: Wave, row: int, count: int) -> tuple[Row, Row | None]:
    """Registers and their undefined bits, if any."""
    if not any(w.flags[row : row + count]):
        return w.bits[row : row + count], None
    for r in range(row, row + count):
        if w.flags[r]:
            w.touch(r)
    w.taint = None
    return w.bits[row : row + count], np.stack([w.shadow_of(r) for r in range(row, row + count)])


def transpose(ins: Instruction) -> Step:
    """ds_read_b64_tr_b{4,8,16}: 64 bits a lane, transposed within 16 lanes.

    The 16 lanes read a matrix of 16 columns row by row, and each gets one column.
    """
    only(ins, "offset")
    bits = int(ins.mnemonic.rpartition("_b")[2])
    dst, source = ins.operands
    first, address, offset = register(dst, 2), _address(source), ins.modifier("offset")

    def turn(words: Row) -> Row:
        elements: Row = np.ascontiguousarray(words.T).view(np.uint8).reshape(4, 128)
        if bits == 16:
            elements = elements.view(np.uint16)
        elif bits == 4:
            elements = np.stack((elements & 15, elements >> 4), axis=2)
        columns: Row = elements.reshape(4, -1, 16).transpose(0, 2, 1)
        columns = np.ascontiguousarray(columns).reshape(LANES, -1)
        if bits == 4:
            columns = columns[:, 0::2] | columns[:, 1::2] << 4
        return np.ascontiguousarray(np.ascontiguousarray(columns).view(np.uint32).T)

    def step(w: Wave) -> None:
        if not w.full:
            raise EmulationError("a transposing load with lanes switched off")
        where = address(w, offset)
        if (where & 7).any():
            raise EmulationError("a transposing load that is not 8-byte aligned")
        words, bad, marks = w.local.load(w, where, w.mask, 8)
        undefined = None if bad is None else turn(bad)
        pending = w.landing(range(first, first + 2), turn(words), M32, undefined)
        pending.lds = marks
        w.issue(w.ds, pending)

    return step


def permute(ins: Instruction) -> Step:
    """ds_bpermute_b32: the value of the lane that the address names; ds_permute_b32: to it."""
    only(ins, "offset")
    dst, select, data = ins.operands
    to, row, address = register(dst), register(data), _address(select)
    offset, forward = ins.modifier("offset"), ins.mnemonic == "ds_permute_b32"

    def step(w: Wave) -> None:
        lane = (address(w, offset)) >> 2 & 63
        words, bad = _registers(w, row, 1)

        def moved(values: Row) -> Row:
            if not forward:  # a lane that is switched off holds 0
                return np.where(w.mask[lane], values[:, lane], np.uint32(0))
            result = np.zeros_like(values)
            result[:, lane[w.mask]] = values[:, w.mask]
            return result

        undefined = None if bad is None else moved(bad)
        w.issue(w.ds, w.landing([to], moved(words), M32, undefined))

    return step


def swizzle(ins: Instruction) -> Step:
    """ds_swizzle_b32: a fixed pattern within 32 or 4 lanes."""
    only(ins, "offset")
    source = swizzle_source(ins.modifiers.get("offset", "0"))
    to, row = (register(op) for op in ins.operands)

    def step(w: Wave) -> None:
        words, bad = _registers(w, row, 1)
        active = w.mask[source]
        undefined = None
        if bad is not None:
            undefined = np.where(active, bad[0][source], np.uint32(0))[None]
        data = np.where(active, words[0][source], np.uint32(0))[None]
        w.issue(w.ds, w.landing([to], data, M32, undefined))

    return step


def swizzle_source(text: str) -> Row:
    """The lane that each lane reads."""
    named = re.fullmatch(r"swizzle\((\w+),(.*)\)", text.replace(" ", ""))
    if named is None:
        code = int(text, 0)
        if code & 0x8000:
            return (LANE & ~3) + (code >> 2 * (LANE & 3) & 3)
        return _by_masks(code & 31, code >> 5 & 31, code >> 10 & 31)
    mode, arguments = named[1], named[2].split(",")
    if mode == "BITMASK_PERM":
        pattern = arguments[0].strip('"')
        place = {c: int("".join("1" if p == c else "0" for p in pattern), 2) for c in "01pi"}
        return _by_masks(place["p"] | place["i"], place["1"], place["i"])
    numbers = [int(a, 0) for a in arguments]
    if mode == "SWAP":
        return _by_masks(31, 0, numbers[0])
    if mode == "REVERSE":
        return _by_masks(31, 0, numbers[0] - 1)
    if mode == "BROADCAST":
        return _by_masks(32 - numbers[0], numbers[1], 0)
    if mode == "QUAD_PERM":
        return (LANE & ~3) + np.array(numbers)[LANE & 3]
    raise EmulationError(f"unknown swizzle {text}")


def _by_masks(keep: int, fix: int, flip: int) -> Row:
    return (LANE & 32) | ((LANE & keep | fix) ^ flip) & 31


def builder(mnemonic: str) -> Callable[[Instruction], Step]:
    """What builds the step of a `ds_` instruction."""
    if mnemonic in ("ds_bpermute_b32", "ds_permute_b32"):
        return permute
    if mnemonic == "ds_swizzle_b32":
        return swizzle
    if re.fullmatch(r"ds_read_b64_tr_b(4|8|16)", mnemonic):
        return transpose
    if mnemonic.startswith("ds_read"):
        return read
    if mnemonic.startswith("ds_write"):
        return write
    raise EmulationError(f"unknown instruction {mnemonic}")
