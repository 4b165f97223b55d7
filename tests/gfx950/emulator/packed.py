"""Packed arithmetic, three-operand bit logic, and the forms that accumulate into a register."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from . import floats as fl
from .access import reader, register, shadow_reader
from .errors import EmulationError
from .fields import half_reader
from .operands import Operand
from .parse import Instruction
from .tables import TABLE, saturating
from .vector import build, only
from .wave import M32, Row, Step, Wave

# Name of the packed instruction without v_pk_: type of the halves, and the plain instruction.
HALVES = {
    **{
        f"{op}_{t}": (t, f"v_{op}_{t}")
        for op in ("add", "sub", "min", "max")
        for t in ("u16", "i16")
    },
    "mul_lo_u16": ("u16", "v_mul_lo_u16"),
    "mad_u16": ("u16", "v_mad_u16"),
    "mad_i16": ("i16", "v_mad_i16"),
    "lshlrev_b16": ("u16", "v_lshlrev_b16"),
    "lshrrev_b16": ("u16", "v_lshrrev_b16"),
    "ashrrev_i16": ("i16", "v_ashrrev_i16"),
    **{f"{op}_f16": ("f16", f"v_{op}_f16") for op in ("add", "mul", "fma", "min", "max")},
}


def halves(ins: Instruction) -> Step:
    """v_pk_<op>_<16-bit type>: the same on the low and the high halves that op_sel picks."""
    type_, plain = HALVES[ins.mnemonic.removeprefix("v_pk_")]
    count = len(TABLE[plain].sources)
    dst, *sources = ins.operands
    if len(sources) != count or ins.encoding in ("sdwa", "dpp"):
        raise EmulationError("wrong operands")
    only(ins, "op_sel", "op_sel_hi", "neg_lo", "neg_hi", "clamp")
    fn = TABLE[plain].fn
    if "clamp" in ins.modifiers:
        if type_ == "f16":
            raise EmulationError("clamp on packed floats")
        fn = saturating(fn, type_)
    parts = []
    for side, names, default in ((0, ("op_sel", "neg_lo"), 0), (1, ("op_sel_hi", "neg_hi"), 1)):
        picks = ins.flags(names[0], (default,) * count)
        signs = ins.flags(names[1], (0,) * count)
        types = [t if t.endswith("16") else "u16" for t in TABLE[plain].sources]
        readers = [
            _packed_half(_negated(op, neg, type_), t, i, pick)
            for i, (op, t, pick, neg) in enumerate(zip(sources, types, picks, signs, strict=True))
        ]
        parts.append((side, readers))
    row = register(dst)
    low, high = parts[0][1], parts[1][1]

    def step(w: Wave) -> None:
        a = fn(*(r(w) for r in low)).view(np.uint16).astype(np.uint32)
        bad_low, w.taint = w.taint, None
        b = fn(*(r(w) for r in high)).view(np.uint16).astype(np.uint32)
        bad_high, w.taint = w.taint, None
        undefined = None
        if bad_low is not None or bad_high is not None:
            undefined = _fill(bad_low, 0xFFFF) | _fill(bad_high, 0xFFFF0000)
        w.put(row, a | b << np.uint32(16), M32, undefined)

    return step


def _fill(bad: Row | None, bits: int) -> Row:
    return np.where(bad if bad is not None else False, np.uint32(bits), np.uint32(0))


def _negated(op: Operand, neg: int, type_: str) -> Operand:
    if neg and type_[0] != "f":
        raise EmulationError("a sign modifier on integers")
    return replace(op, neg=op.neg != bool(neg))


def _packed_half(op: Operand, type_: str, slot: int, high: int) -> Callable[[Wave], Row]:
    """A half; the upper one of an inline float is 0."""
    if op.kind == "float" and high:
        return half_reader(Operand("0", "const", neg=op.neg), type_, slot, 0)
    return half_reader(op, type_, slot, high)


WORDS: dict[str, tuple[str, Callable[..., Row]]] = {
    "v_pk_add_f32": ("f32", np.add),
    "v_pk_mul_f32": ("f32", np.multiply),
    "v_pk_fma_f32": ("f32", fl.fma),
}


def words(ins: Instruction) -> Step:
    """v_pk_{add,mul,fma}_f32 on pairs of registers, and v_pk_mov_b32."""
    move = ins.mnemonic == "v_pk_mov_b32"
    type_, fn = ("u32", lambda a: a) if move else WORDS[ins.mnemonic]
    dst, *sources = ins.operands
    count = len(sources)
    only(ins, "op_sel", "op_sel_hi", "neg_lo", "neg_hi")
    picks = ins.flags("op_sel", (0,) * count), ins.flags("op_sel_hi", (1,) * count)
    signs = ins.flags("neg_lo", (0,) * count), ins.flags("neg_hi", (0,) * count)
    sides = []
    for side in range(2):
        operands = list(enumerate(sources))
        if move:  # the low word of source 0, the high word of source 1, each as op_sel says
            operands = [operands[side]]
            chosen = [picks[0][side]]
        else:
            chosen = list(picks[side])
        sides.append(
            [
                reader(_negated(_word(op, pick), signs[side][i], type_), type_, i)
                for (i, op), pick in zip(operands, chosen, strict=True)
            ]
        )
    row = register(dst, 2)

    def step(w: Wave) -> None:
        results = []
        for readers in sides:
            value = fn(*(r(w) for r in readers)).view(np.uint32)
            results.append((value.copy(), w.taint))
            w.taint = None
        for i, (value, taint) in enumerate(results):
            w.taint = taint
            w.put(row + i, value)

    return step


def _word(op: Operand, high: int) -> Operand:
    if op.constant:
        return op if not high else Operand("0", "const")
    if op.count != 2:
        raise EmulationError(f"{op.text} is no pair")
    return replace(op, index=op.index + high, count=1)


def bit_logic(ins: Instruction) -> Step:
    """v_bitop3_b32, v_bitop3_b16: a truth table of three bits."""
    only(ins, "bitop3", "op_sel")
    if "op_sel" in ins.modifiers:
        raise EmulationError("op_sel on bitop3")
    truth = ins.modifier("bitop3")
    half = ins.mnemonic.endswith("16")
    bits, type_ = (0xFFFF, "u16") if half else (M32, "u32")
    readers = [reader(op, type_, i) for i, op in enumerate(ins.operands[1:])]
    shadows = [shadow_reader(op) for op in ins.operands[1:]]
    row = register(ins.operands[0])

    def table(a: Row, b: Row, c: Row) -> Row:
        result = np.zeros_like(a)
        for i in range(8):
            if truth >> i & 1:
                term = a if i & 4 else ~a
                term = term & (b if i & 2 else ~b)
                result |= term & (c if i & 1 else ~c)
        return result

    def step(w: Wave) -> None:
        values = [r(w) for r in readers]
        result = table(*values).astype(np.uint32)
        undefined = None
        if w.taint is not None:
            w.taint = None
            undefined = _sensitivity(table, values, [s(w) for s in shadows])
        w.put(row, result, bits, undefined)

    return step


def _sensitivity(table: Callable[..., Row], values: list[Row], bad: list[Row]) -> Row:
    """Bits of the result that some choice of the undefined bits changes."""
    shadows = [s.astype(v.dtype) for v, s in zip(values, bad, strict=True)]
    first = table(*values)
    changed = np.zeros_like(first)
    for i in range(1, 8):
        flipped = [
            v ^ s if i >> k & 1 else v for k, (v, s) in enumerate(zip(values, shadows, strict=True))
        ]
        changed |= table(*flipped) ^ first
    return changed.astype(np.uint32)


def accumulate(ins: Instruction) -> Step:
    """v_fmac_f32 d, a, b; v_fmamk_f32 d, a, k, b; v_fmaak_f32 d, a, b, k: as v_fma_f32."""
    operands = ins.operands
    if ins.mnemonic == "v_fmac_f32":
        operands = (*operands, operands[0])
    return build(replace(ins, mnemonic="v_fma_f32", operands=operands))


def mixed(ins: Instruction) -> Step:
    """v_fma_mix_f32, v_fma_mixlo_f16, v_fma_mixhi_f16: fma of float32 and halves of registers."""
    only(ins, "op_sel", "op_sel_hi", "clamp")
    half, high = ins.flags("op_sel_hi", (0, 0, 0)), ins.flags("op_sel", (0, 0, 0))
    readers = [
        half_reader(op, "f16", i, high[i]) if half[i] else reader(op, "f32", i)
        for i, op in enumerate(ins.operands[1:])
    ]
    row, clamped = register(ins.operands[0]), "clamp" in ins.modifiers
    shift, bits = {
        "v_fma_mix_f32": (0, M32),
        "v_fma_mixlo_f16": (0, 0xFFFF),
        "v_fma_mixhi_f16": (16, 0xFFFF0000),
    }[ins.mnemonic]

    def step(w: Wave) -> None:
        a, b, c = (r(w) for r in readers)
        value = fl.fused(a, b, c)
        # The halves come from float32, rounded a second time.
        result = value.astype(np.float32)
        if clamped:
            result = fl.clamp(result)
        if bits == M32:
            return w.put(row, result.view(np.uint32))
        word = result.astype(np.float16).view(np.uint16).astype(np.uint32)
        return w.put(row, word << np.uint32(shift), bits)

    return step


BUILDERS: dict[str, Callable[[Instruction], Step]] = {
    **{f"v_pk_{name}": halves for name in HALVES},
    **dict.fromkeys((*WORDS, "v_pk_mov_b32"), words),
    "v_bitop3_b32": bit_logic,
    "v_bitop3_b16": bit_logic,
    **dict.fromkeys(("v_fma_mix_f32", "v_fma_mixlo_f16", "v_fma_mixhi_f16"), mixed),
    **dict.fromkeys(("v_fmac_f32", "v_fmamk_f32", "v_fmaak_f32"), accumulate),
}
