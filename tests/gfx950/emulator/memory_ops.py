"""Vector memory instructions: buffers by their descriptor, global addresses, loads into LDS."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from .access import reader, register, scalar_reader, scalar_register
from .errors import EmulationError
from .memory import Mask
from .operands import M0, Operand
from .parse import Instruction
from .scalar import signed
from .vector import only
from .wave import LANE, LANES, M32, Pending, Row, Step, Wave, name

# Name of the access: bytes, whether it extends the sign, and the half that it fills or stores.
ACCESSES: dict[str, tuple[int, bool, str]] = {
    "ubyte": (1, False, ""),
    "sbyte": (1, True, ""),
    "ushort": (2, False, ""),
    "sshort": (2, True, ""),
    "ubyte_d16": (1, False, "lo"),
    "ubyte_d16_hi": (1, False, "hi"),
    "sbyte_d16": (1, True, "lo"),
    "sbyte_d16_hi": (1, True, "hi"),
    "short_d16": (2, False, "lo"),
    "short_d16_hi": (2, False, "hi"),
    "byte": (1, False, ""),
    "byte_d16_hi": (1, False, "hi"),
    "short": (2, False, ""),
    "dword": (4, False, ""),
    "dwordx2": (8, False, ""),
    "dwordx3": (12, False, ""),
    "dwordx4": (16, False, ""),
}
HINTS = ("nt", "sc0", "sc1")  # of caches, which are not modelled
HALF = {"": M32, "lo": 0xFFFF, "hi": 0xFFFF0000}

# Addresses of the active lanes, those among them that are in range, and loads of zero beside them.
Place = Callable[[Wave], tuple[Row, Mask]]


def extend(words: Row, size: int, sign: bool, half: str) -> Row:
    """Bytes and halves as the register gets them."""
    if sign:
        top = np.uint32(1 << (8 * size - 1))
        words = (words ^ top) - top
    return words << np.uint32(16) if half == "hi" else words


def stored(w: Wave, row: int, count: int, half: str, mask: Mask, what: str) -> Row:
    """The registers to store, none of them undefined."""
    for r in range(row, row + count):
        if w.flags[r]:
            w.touch(r)
            bad = (w.shadow_of(r) != 0) & mask
            w.taint = None
            if bad.any():
                raise EmulationError(f"{what} of {name(r)}, undefined in lane {int(bad.argmax())}")
    words = w.bits[row : row + count]
    return words >> np.uint32(16) if half == "hi" else words


def _load(place: Place, dst: Operand, access: tuple[int, bool, str]) -> Step:
    size, sign, half = access
    count = max(size // 4, 1)
    rows = range(register(dst, count), register(dst, count) + count)

    def step(w: Wave) -> None:
        addresses, active = place(w)
        data = fetch(w, addresses, active, size)
        w.issue(w.vm, w.landing(rows, extend(data, size, sign, half), HALF[half], None))

    return step


def fetch(w: Wave, addresses: Row, active: Mask, size: int) -> Row:
    """Words of the lanes in range, 0 for the others. A row of `active` stands for one word."""
    count = max(size // 4, 1)
    if active.ndim == 1:
        if active.all():
            return w.memory.load(addresses, active, size)
        if not active.any():
            return np.zeros((count, LANES), np.uint32)
        return np.where(active, w.memory.load(addresses, active, size), np.uint32(0))
    words = [fetch(w, addresses + 4 * i, active[i], 4) for i in range(count)]
    return np.concatenate(words)


def _store(place: Place, src: Operand, access: tuple[int, bool, str]) -> Step:
    size, _, half = access
    count = max(size // 4, 1)
    row = register(src, count)

    def step(w: Wave) -> None:
        addresses, active = place(w)
        for i in range(count if active.ndim == 2 else 1):
            part, width = (active[i], 4) if active.ndim == 2 else (active, size)
            if part.any():
                words = stored(w, row + i, max(width // 4, 1), half, part, "store")
                w.memory.store(addresses + 4 * i, part, width, words)
        w.issue(w.vm, Pending())

    return step


def _into_lds(place: Place, size: int, offset: int) -> Step:
    """Lane l's bytes go to M0 + offset + l * 4, or l * 16 where they are three or four words."""
    stride = 4 if size <= 4 else 16

    def step(w: Wave) -> None:
        if w.sx[M0]:
            raise EmulationError("M0 is undefined")
        addresses, active = place(w)
        if size < 4:
            raise EmulationError("loads of less than a word into LDS are not modelled")
        words = fetch(w, addresses, active, size)
        where = (w.s[M0] & 0x3FFFF) + offset + LANE * stride
        if not w.exec:
            w.issue(w.vm, Pending())
        else:
            w.issue(w.vm, w.local.begin(w, where, w.mask, size, words))

    return step


def buffer(ins: Instruction) -> Step:
    """buffer_load_<access> and buffer_store_<access>."""
    only(ins, "offen", "offset", "lds", *HINTS)
    kind, access = _split(ins)
    size = ACCESSES[access][0]
    into_lds = "lds" in ins.modifiers
    data, (address, resource, base) = ins.operands[: not into_lds], ins.operands[not into_lds :]
    offset = ins.modifier("offset")
    place = _buffer_place(address, resource, base, offset, "offen" in ins.modifiers, size)
    if into_lds:
        return _into_lds(place, size, offset)
    if kind == "load":
        return _load(place, data[0], ACCESSES[access])
    return _store(place, data[0], ACCESSES[access])


def _split(ins: Instruction) -> tuple[str, str]:
    parts = re.fullmatch(r"(?:buffer|global)_(load|store)_(?:lds_)?(\w+)", ins.mnemonic)
    if parts is None or parts[2] not in ACCESSES:
        raise EmulationError(f"unknown instruction {ins.mnemonic}")
    wrong = ("byte", "short", "byte_d16_hi") if parts[1] == "load" else ("ubyte", "sbyte")
    if parts[2] in wrong:
        raise EmulationError(f"unknown instruction {ins.mnemonic}")
    return parts[1], parts[2]


def _buffer_place(
    address: Operand, resource: Operand, base: Operand, offset: int, offen: bool, size: int
) -> Place:
    first = scalar_register(resource, 4)
    scalar = scalar_reader(base)
    vector = reader(address, "u32") if offen else None
    if not offen and address.kind != "off":
        raise EmulationError("an address register without offen")

    def place(w: Wave) -> tuple[Row, Mask]:
        for i in range(first, first + 4):
            if w.sx[i]:
                w.touch_scalar(i)
        extra = scalar(w)
        w.demand_scalar("the buffer's descriptor or offset")
        start, records = w.s[first] | (w.s[first + 1] & 0xFFFF) << 32, w.s[first + 2]
        if w.s[first + 1] >> 31 or w.s[first + 3] >> 23 & 1 or w.s[first + 3] >> 30:
            raise EmulationError("a swizzled, thread-indexed or foreign descriptor")
        if vector is None:
            within = np.full(LANES, offset, np.int64)
        else:
            within = vector(w).astype(np.int64) + offset
            w.demand("the address")
        where = within + (start + extra)
        if w.full and int(within.max()) + size <= records:
            return where, w.mask
        # The range is checked word by word, and the scalar offset has no part in it.
        unit = min(size, 4)
        inside = [w.mask & (within + i + unit <= records) for i in range(0, size, unit)]
        if (w.mask & (within < records) & (within + unit > records)).any():
            raise EmulationError("an access across the end of the descriptor's range")
        if np.array_equal(inside[0], inside[-1]):
            return where, inside[0]
        return where, np.stack(inside)

    return place


def globally(ins: Instruction) -> Step:
    """global_load_<access>, global_store_<access> and global_load_lds_<access>."""
    only(ins, "offset", *HINTS)
    kind, access = _split(ins)
    size = ACCESSES[access][0]
    offset = ins.modifier("offset")
    operands = list(ins.operands)
    if "_lds_" in ins.mnemonic:
        return _into_lds(_global_place(operands[0], operands[1], offset), size, offset)
    if kind == "load":
        return _load(_global_place(operands[1], operands[2], offset), operands[0], ACCESSES[access])
    return _store(_global_place(operands[0], operands[2], offset), operands[1], ACCESSES[access])


def _global_place(vector: Operand, scalar: Operand, offset: int) -> Place:
    if scalar.kind == "off":
        address = reader(vector, "u64")

        def far(w: Wave) -> tuple[Row, Mask]:
            where = address(w).view(np.int64) + offset
            w.demand("the address")
            return where, w.mask

        return far
    near, base = reader(vector, "u32"), scalar_reader(scalar, 64)

    def relative(w: Wave) -> tuple[Row, Mask]:
        start = signed(base(w), 64)
        w.demand_scalar("the address")
        where = near(w).astype(np.int64) + (start + offset)
        w.demand("the address")
        return where, w.mask

    return relative


BUILDERS: dict[str, Callable[[Instruction], Step]] = {"buffer_": buffer, "global_": globally}
