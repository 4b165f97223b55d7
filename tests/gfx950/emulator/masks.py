"""Vector instructions that read or write a mask: comparisons, selection, carries, division."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from . import floats as fl
from .access import (
    low_taint,
    mask_reader,
    put_sum,
    reader,
    register,
    scalar_register,
    shadow_reader,
    writer,
)
from .errors import EmulationError
from .fields import sdwa_readers, sdwa_writer
from .operands import EXEC, Operand
from .parse import Instruction
from .vector import only
from .wave import LANES, M32, Row, Step, Wave, mask_of

Bools = npt.NDArray[np.bool_]


def _unordered(fn: Callable[[Row, Row], Bools]) -> Callable[[Row, Row], Bools]:
    return lambda a, b: ~fn(a, b)


INTEGER: dict[str, Callable[[Row, Row], Bools]] = {
    "lt": np.less,
    "eq": np.equal,
    "le": np.less_equal,
    "gt": np.greater,
    "ne": np.not_equal,
    "ge": np.greater_equal,
}
FLOAT: dict[str, Callable[[Row, Row], Bools]] = {
    **{k: v for k, v in INTEGER.items() if k != "ne"},
    "lg": lambda a, b: (a < b) | (a > b),
    "o": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "u": lambda a, b: np.isnan(a) | np.isnan(b),
    "nge": _unordered(np.greater_equal),
    "ngt": _unordered(np.greater),
    "nle": _unordered(np.less_equal),
    "nlt": _unordered(np.less),
    "neq": _unordered(np.equal),
    "nlg": lambda a, b: ~((a < b) | (a > b)),
}


def _put_mask(w: Wave, index: int, result: Bools) -> None:
    """Write a mask; what EXEC leaves out is 0."""
    undefined = 0
    if w.taint is not None:
        undefined, w.taint = mask_of(w.taint) & w.exec, None
    w.put_pair(index, mask_of(result) & w.exec & ~undefined, undefined)


def compare(ins: Instruction) -> Step:
    """v_cmp_<relation>_<type> into a mask, v_cmpx_... into EXEC as well."""
    kind, relation, type_ = ins.mnemonic.removeprefix("v_").split("_")
    test: Callable[[Row, Row], Bools]
    types: tuple[str, str] = (type_, type_)
    if relation == "class":
        test, types = fl.classify, (type_, "u32")
    else:
        table = FLOAT if type_[0] == "f" else INTEGER
        if relation not in table:
            raise EmulationError(f"unknown relation {relation}")
        test = table[relation]
    if len(ins.operands) != 3:
        raise EmulationError("wrong number of operands")
    dst = scalar_register(ins.operands[0], 2)
    if ins.encoding == "sdwa":
        only(ins, "src0_sel", "src1_sel")
        first, second = sdwa_readers(ins, types)
    else:
        only(ins)
        first, second = (reader(ins.operands[i + 1], types[i], i) for i in range(2))
    also_exec = kind == "cmpx" and dst != EXEC

    def step(w: Wave) -> None:
        _put_mask(w, dst, test(first(w), second(w)))
        if also_exec:
            w.put_pair(EXEC, w.s[dst] | w.s[dst + 1] << 32, w.sx[dst] | w.sx[dst + 1] << 32)

    return step


def select(ins: Instruction) -> Step:
    """v_cndmask_b32: source 1 where the mask is set, else source 0."""
    dst, a, b, mask = ins.operands
    condition = mask_reader(mask)
    if ins.encoding == "sdwa":
        only(ins, "dst_sel", "dst_unused", "src0_sel", "src1_sel")
        zero, one = sdwa_readers(ins, ("u32", "u32"))
        put = sdwa_writer(ins)
        return lambda w: put(w, np.where(condition(w), one(w), zero(w)))
    only(ins)
    # A sign modifier makes it a selection between floats.
    type_ = "f32" if a.neg or a.abs or b.neg or b.abs else "u32"
    zero, one = reader(a, type_, 0), reader(b, type_, 1)
    write, row = writer(dst, type_), register(dst)
    shadow_zero, shadow_one = shadow_reader(a), shadow_reader(b)

    def step(w: Wave) -> None:
        chosen = condition(w)
        unknown, w.taint = w.taint, None
        value = np.where(chosen, one(w), zero(w))
        doubts, w.taint = (unknown, w.taint), None
        if all(d is None for d in doubts):
            return write(w, value)
        undefined = np.where(chosen, shadow_one(w), shadow_zero(w))
        if unknown is not None:
            undefined = np.where(unknown, np.uint32(M32), undefined)
        return w.put(row, value.view(np.uint32), M32, undefined)

    return step


def carry(ins: Instruction) -> Step:
    """v_add_co_u32, v_sub_co_u32, v_addc_co_u32 and their relatives."""
    only(ins)
    dst, out, a, b, *rest = ins.operands
    name = ins.mnemonic.removeprefix("v_").removesuffix("_co_u32")
    takes_carry = 1 if name in ("addc", "subb", "subbrev") else 0
    if len(rest) != takes_carry:
        raise EmulationError("wrong operands")
    first, second = reader(a, "u32", 0), reader(b, "u32", 1)
    carried = mask_reader(rest[0]) if rest else None
    write, mask = writer(dst, "u32"), scalar_register(out, 2)
    reverse, subtract = name.endswith("rev"), name.startswith("sub")

    def step(w: Wave) -> None:
        x, y = first(w).astype(np.int64), second(w).astype(np.int64)
        if reverse:
            x, y = y, x
        extra = carried(w).astype(np.int64) if carried is not None else 0
        total = x - y - extra if subtract else x + y + extra
        taint = w.taint
        write(w, (total & M32).astype(np.uint32))
        w.taint = taint
        _put_mask(w, mask, (total < 0) | (total > M32))

    return step


def multiply_add_64(ins: Instruction) -> Step:
    """v_mad_u64_u32 and v_mad_i64_i32: a 32 by 32 bit product added to 64 bits."""
    only(ins)
    dst, out, a, b, c = ins.operands
    kind = "u" if ins.mnemonic == "v_mad_u64_u32" else "i"
    first, second = reader(a, f"{kind}32", 0), reader(b, f"{kind}32", 1)
    third, row, low = reader(c, f"{kind}64", 2), register(dst, 2), low_taint((a, b, c))
    mask, wide = scalar_register(out, 2), np.uint64 if kind == "u" else np.int64

    def step(w: Wave) -> None:
        bad = low(w)
        product = first(w).astype(wide) * second(w).astype(wide)
        addend = third(w)
        total = product + addend
        carry_out = total < product if kind == "u" else (product ^ total) & (addend ^ total) < 0
        taint = w.taint
        put_sum(w, row, total, bad)
        w.taint = taint
        _put_mask(w, mask, carry_out)

    return step


def shift_add_64(ins: Instruction) -> Step:
    """v_lshl_add_u64: a shift by 0 to 4 (0 for anything else), then a sum of 64 bits."""
    only(ins)
    dst, a, b, c = ins.operands
    first, second, third = reader(a, "u64", 0), reader(b, "u32", 1), reader(c, "u64", 2)
    row, low = register(dst, 2), low_taint((a, b, c))

    def step(w: Wave) -> None:
        bad = low(w)
        count = second(w) & np.uint32(7)
        count = np.where(count > 4, np.uint64(0), count.astype(np.uint64))
        put_sum(w, row, (first(w) << count) + third(w), bad)

    return step


def divide_scale(ins: Instruction) -> Step:
    """v_div_scale_f32: move a quotient's operands away from the ends of the range.

    Where the manual's text would not lead to the quotient, the scaling here does.
    """
    only(ins)
    dst, out, *sources = ins.operands
    reads = [reader(op, "f32", i) for i, op in enumerate(sources)]
    write, mask = writer(dst, "f32"), scalar_register(out, 2)

    def step(w: Wave) -> None:
        x, denominator, numerator = (r(w).copy() for r in reads)
        value, scaled = _scale(x, denominator, numerator)
        taint = w.taint
        write(w, value)
        w.taint = taint
        _put_mask(w, mask, scaled)

    return step


def _scale(x: Row, d: Row, n: Row) -> tuple[Row, Bools]:
    quotient = n.astype(np.float64) / d.astype(np.float64)
    up = fl.ldexp(x, np.full(LANES, 64))
    down = fl.ldexp(x, np.full(LANES, -64))
    same_d, same_n = x == d, x == n
    zero = (d == 0) | (n == 0)
    far = fl.exponent(n) - fl.exponent(d) >= 96
    tiny_d = (d != 0) & (np.abs(d) < fl.TINY)
    huge_d = np.abs(d) > np.float32(2.0**126)  # its reciprocal is a denormal
    tiny_q = (quotient != 0) & (np.abs(quotient) < float(fl.TINY))
    cases = [
        (zero, np.full(LANES, np.nan, np.float32), False),
        (far, np.where(same_d, up, x), True),
        (tiny_d, up, False),
        (huge_d & tiny_q, np.where(same_d, down, x), True),
        (huge_d, down, False),
        (tiny_q, np.where(same_n, up, x), True),
        (fl.exponent(n) <= 23, up, False),
    ]
    conditions = [c for c, _, _ in cases]
    value = np.select(conditions, [v for _, v, _ in cases], x)
    scaled = np.select(conditions, [np.full(LANES, s) for _, _, s in cases], np.zeros(LANES, bool))
    return value.astype(np.float32), scaled


def divide_fmas(ins: Instruction) -> Step:
    """v_div_fmas_f32: fma, scaled back where VCC says that the quotient was scaled."""
    only(ins)
    dst, *sources = ins.operands
    reads = [reader(op, "f32", i) for i, op in enumerate(sources)]
    write, condition = writer(dst, "f32"), mask_reader(Operand("vcc", "s", 106, 2))

    def step(w: Wave) -> None:
        a, b, c = (r(w) for r in reads)
        scaled = condition(w)
        factor = np.where(fl.exponent(c) > 127, 2.0**64, 2.0**-64)
        write(w, (fl.fused(a, b, c) * np.where(scaled, factor, 1.0)).astype(np.float32))

    return step


BUILDERS: dict[str, Callable[[Instruction], Step]] = {
    "v_cndmask_b32": select,
    **{f"v_{op}_co_u32": carry for op in ("add", "sub", "subrev", "addc", "subb", "subbrev")},
    "v_mad_u64_u32": multiply_add_64,
    "v_mad_i64_i32": multiply_add_64,
    "v_lshl_add_u64": shift_add_64,
    "v_div_scale_f32": divide_scale,
    "v_div_fmas_f32": divide_fmas,
}
