"""What the scalar unit computes; None stands for a number that is not known."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable

Result = tuple[int | None, int | None]
"""The destination and the SCC flag after an instruction."""

# By name without type. Inputs are signed for instructions of type i, unsigned for others.
_UNARY: dict[str, Callable[[int], int]] = {
    "mov": lambda a: a,
    "not": operator.invert,
    "abs": abs,
}
_BINARY: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "mul_hi": lambda a, b: a * b >> 32,
    "min": min,
    "max": max,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "andn2": lambda a, b: a & ~b,
    "orn2": lambda a, b: a | ~b,
    "nand": lambda a, b: ~(a & b),
    "nor": lambda a, b: ~(a | b),
    "xnor": lambda a, b: ~(a ^ b),
    "lshl": operator.lshift,
    "lshr": operator.rshift,
    "ashr": operator.rshift,
    "lshl1_add": lambda a, b: (a << 1) + b,
    "lshl2_add": lambda a, b: (a << 2) + b,
    "lshl3_add": lambda a, b: (a << 3) + b,
    "lshl4_add": lambda a, b: (a << 4) + b,
}
_WITH_CARRY: dict[str, Callable[[int, int, int], int]] = {
    "addc": lambda a, b, carry: a + b + carry,
    "subb": lambda a, b, carry: a - b - carry,
}
_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "eq": operator.eq,
    "lg": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "bit0": lambda a, b: not a >> b & 1,
    "bit1": lambda a, b: bool(a >> b & 1),
}
_SHIFTS = ("lshl", "lshr", "ashr", "bit0", "bit1")

# What SCC becomes: whether a result does not fit, whether the first input is the result, ...
_OVERFLOW = ("add", "sub", *(f"lshl{n}_add" for n in (1, 2, 3, 4)))
_CHOICE = {"min": operator.lt, "max": operator.gt}
_KEPT = ("mov", "mul", "mul_hi")  # ... what it was; else whether the result is not zero


def _split(mnemonic: str) -> tuple[str, str, int]:
    """`s_ashr_i64` is `("ashr", "i", 64)`, `s_cmp_lt_u32` is `("lt", "u", 32)`."""
    found = re.fullmatch(r"s_(?:cmp_)?(\w+?)(?:_([biu])(16|32|64))?", mnemonic)
    assert found is not None
    return found[1].replace("bitcmp", "bit"), found[2] or "b", int(found[3] or 32)


def widths(mnemonic: str) -> tuple[int, int]:
    """Bits of the inputs; the result is as wide as the first one."""
    name, _, bits = _split(mnemonic)
    return bits, 32 if name in _SHIFTS else bits


def _number(value: int, kind: str, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if kind == "i" and value >> (bits - 1) else value


def evaluate(mnemonic: str, a: int | None, b: int | None, scc: int | None) -> Result:
    """An instruction of one or two inputs; what is not modelled gives what is not known."""
    name, kind, bits = _split(mnemonic)
    if name == "cselect":
        return (None if scc is None else a if scc else b), scc
    mask = (1 << bits) - 1
    decided = {"and": 0, "or": mask}.get(name)
    if decided is not None and decided in (a, b):  # whatever the other one is
        return decided, int(decided != 0)
    kept = scc if name in _KEPT else None
    if a is None:
        return None, kept
    a = _number(a, kind, bits)
    if name in _UNARY:
        value = _UNARY[name](a) & mask
        return value, kept if name in _KEPT else int(value != 0)
    if b is None:
        return None, kept
    b = b % bits if name in _SHIFTS else _number(b, kind, bits)
    if name in _COMPARISONS:
        return None, int(_COMPARISONS[name](a, b))
    if name in _WITH_CARRY:
        if scc is None:
            return None, None
        total = _WITH_CARRY[name](a, b, scc)
        return total & mask, int(total != total & mask)
    if name not in _BINARY:
        return None, None
    total = _BINARY[name](a, b)
    if name in _OVERFLOW:
        scc = int(total != _number(total, kind, bits))
    elif name in _CHOICE:
        scc = int(_CHOICE[name](a, b))
    elif name not in _KEPT:
        scc = int(total & mask != 0)
    return total & mask, scc
