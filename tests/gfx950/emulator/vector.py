"""Vector instructions of the regular kind, in their plain, SDWA and DPP encodings."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from . import floats as fl
from .access import Reader, Writer, reader, register, shadow_reader, writer
from .errors import EmulationError
from .fields import SDWA, dpp_source, half_reader, sdwa_readers, sdwa_writer
from .parse import Instruction
from .tables import SATURATES, TABLE, Alu, saturating
from .wave import LANES, M32, Row, Step, Wave


def only(ins: Instruction, *allowed: str) -> None:
    """Fail on a modifier that is not `allowed`."""
    if unknown := ins.modifiers.keys() - set(allowed):
        raise EmulationError(f"unknown modifiers {sorted(unknown)}")


def build(ins: Instruction) -> Step:
    """The step of an instruction of `TABLE`."""
    alu = TABLE[ins.mnemonic]
    if len(ins.operands) != 1 + len(alu.sources):
        raise EmulationError("wrong number of operands")
    fn = alu.fn
    allowed = ("clamp",)
    if "clamp" in ins.modifiers:
        if ins.mnemonic in SATURATES:
            fn = saturating(fn, alu.result)
        elif alu.result == "f32":
            fn = _clamped(fn)
        else:
            raise EmulationError(f"clamp on {ins.mnemonic}")
    if ins.encoding == "dpp":
        return _dpp(ins, alu, fn)
    if ins.encoding == "sdwa":
        only(ins, *SDWA)
        return _step(ins, sdwa_readers(ins, alu.sources), sdwa_writer(ins), fn)
    if "op_sel" in ins.modifiers:
        only(ins, "op_sel", *allowed)
        return _half_step(ins, alu, fn)
    only(ins, *allowed)
    sources = ins.operands[1:]
    readers = [reader(op, t, i) for i, (op, t) in enumerate(zip(sources, alu.sources, strict=True))]
    step = _step(ins, readers, writer(ins.operands[0], alu.result, alu.keeps_high), fn)
    return _precise(ins, alu, readers, step) if ins.mnemonic in BITWISE else step


def _clamped(fn: Callable[..., Row]) -> Callable[..., Row]:
    return lambda *args: fl.clamp(fn(*args))


def _step(ins: Instruction, readers: list[Reader], write: Writer, fn: Callable[..., Row]) -> Step:
    if len(readers) == 1:
        (first,) = readers
        return lambda w: write(w, fn(first(w)))
    if len(readers) == 2:
        first, second = readers
        return lambda w: write(w, fn(first(w), second(w)))
    first, second, third = readers
    return lambda w: write(w, fn(first(w), second(w), third(w)))


# Bitwise instructions: how undefined bits pass, given values and undefined bits.


def _both(values: list[Row], bad: list[Row]) -> Row:
    """AND: a defined 0 decides."""
    return (bad[0] & (values[1] | bad[1])) | (bad[1] & (values[0] | bad[0]))


def _either(values: list[Row], bad: list[Row]) -> Row:
    """OR: a defined 1 decides."""
    return (bad[0] & (~values[1] | bad[1])) | (bad[1] & (~values[0] | bad[0]))


def _chain(
    first: Callable[[list[Row], list[Row]], Row],
    fn: Callable[[Row, Row], Row],
    second: Callable[[list[Row], list[Row]], Row],
) -> Callable[[list[Row], list[Row]], Row]:
    def rule(v: list[Row], s: list[Row]) -> Row:
        return second([fn(v[0], v[1]), v[2]], [first(v[:2], s[:2]), s[2]])

    return rule


def _moved(name: str, *data: int) -> Callable[[list[Row], list[Row]], Row]:
    """Bits only move: apply the instruction to the undefined bits of its `data` operands."""

    def rule(values: list[Row], bad: list[Row]) -> Row:
        control = [s for i, s in enumerate(bad) if i not in data]
        args = [bad[i] if i in data else v for i, v in enumerate(values)]
        unknown = np.zeros(LANES, np.bool_)
        for s in control:
            unknown = unknown | (s != 0)
        return np.where(unknown, np.uint32(M32), TABLE[name].fn(*args))

    return rule


def _shift_left(values: list[Row], bad: list[Row]) -> Row:
    shifted = bad[0] << (values[1] & np.uint32(31))
    return np.where(bad[1] != 0, np.uint32(M32), shifted)


BITWISE: dict[str, Callable[[list[Row], list[Row]], Row]] = {
    "v_and_b32": _both,
    "v_or_b32": _either,
    "v_xor_b32": lambda v, s: s[0] | s[1],
    "v_not_b32": lambda v, s: s[0],
    "v_or3_b32": _chain(_either, np.bitwise_or, _either),
    "v_and_or_b32": _chain(_both, np.bitwise_and, _either),
    "v_lshl_or_b32": _chain(_shift_left, lambda a, b: a << (b & np.uint32(31)), _either),
    **{
        name: _moved(name, *data)
        for name, data in {
            "v_mov_b32": (0,),
            "v_accvgpr_read_b32": (0,),
            "v_accvgpr_write_b32": (0,),
            "v_accvgpr_mov_b32": (0,),
            "v_lshlrev_b32": (1,),
            "v_lshrrev_b32": (1,),
            "v_perm_b32": (0, 1),
            "v_alignbit_b32": (0, 1),
            "v_alignbyte_b32": (0, 1),
            "v_bfe_u32": (0,),
        }.items()
    },
}


def _precise(ins: Instruction, alu: Alu, readers: list[Reader], plain: Step) -> Step:
    """Follow undefined bits one by one where there are any."""
    rule, fn, row = BITWISE[ins.mnemonic], alu.fn, register(ins.operands[0])
    shadows = [shadow_reader(op) for op in ins.operands[1:]]
    rows = [register(op) for op in ins.operands[1:] if op.kind in ("v", "a")]
    scalars = [op.index for op in ins.operands[1:] if op.kind == "s"]

    def step(w: Wave) -> None:
        flags = w.flags
        for r in rows:
            if flags[r]:
                return careful(w)
        for s in scalars:
            if w.sx[s]:
                return careful(w)
        plain(w)
        return None

    def careful(w: Wave) -> None:
        values = [r(w) for r in readers]
        w.taint = None
        undefined = rule(values, [s(w) for s in shadows])
        w.put(row, fn(*values), M32, undefined)

    return step


def _half_step(ins: Instruction, alu: Alu, fn: Callable[..., Row]) -> Step:
    if not alu.keeps_high:
        raise EmulationError(f"op_sel on {ins.mnemonic}")
    *halves, high = ins.flags("op_sel", (0,) * (len(alu.sources) + 1))
    sources = zip(ins.operands[1:], alu.sources, halves, strict=True)
    readers = [half_reader(op, t, i, h) for i, (op, t, h) in enumerate(sources)]
    row = register(ins.operands[0])

    def write(w: Wave, value: Row) -> None:
        word = value.view(np.uint16).astype(np.uint32)
        w.put(row, word << np.uint32(16 * high), 0xFFFF << 16 * high)

    return _step(ins, readers, write, fn)


def _dpp(ins: Instruction, alu: Alu, fn: Callable[..., Row]) -> Step:
    if any(t.endswith("64") for t in (alu.result, *alu.sources)):
        raise EmulationError("DPP on 64 bits")
    source, valid, enabled = dpp_source(ins)
    zero = ins.modifier("bound_ctrl") == 1
    sources = zip(ins.operands[1:], alu.sources, strict=True)
    first, *others = (reader(op, t, i) for i, (op, t) in enumerate(sources))
    row = register(ins.operands[0])

    def step(w: Wave) -> None:
        value = first(w)[source]
        if w.taint is not None:
            w.taint = w.taint[source] & valid
        good = valid if w.full else valid & w.mask[source]
        if zero:
            value = np.where(good, value, value.dtype.type(0))
        result = fn(value, *(r(w) for r in others))
        word = result.view(f"u{result.dtype.itemsize}").astype(np.uint32, copy=False)
        w.put_lanes(row, word, w.mask & enabled & (True if zero else good))

    return step
