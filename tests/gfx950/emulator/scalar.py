"""Scalar arithmetic and bit logic: a table of functions of integers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .access import scalar_reader, scalar_shadow, scalar_writer
from .errors import EmulationError
from .parse import Instruction
from .wave import M32, M64, Step, Wave


def signed(value: int, width: int = 32) -> int:
    return value - (1 << width) if value >> (width - 1) & 1 else value


def add_signed(a: int, b: int) -> tuple[int, int]:
    total = signed(a) + signed(b)
    return total & M32, int(not -(1 << 31) <= total < 1 << 31)


def _sub(a: int, b: int) -> tuple[int, int]:
    difference = signed(a) - signed(b)
    return difference & M32, int(not -(1 << 31) <= difference < 1 << 31)


def _nonzero(fn: Callable[..., int]) -> Callable[..., tuple[int, int]]:
    def with_scc(*args: int) -> tuple[int, int]:
        value = fn(*args)
        return value, int(value != 0)

    return with_scc


def _lshl_add(shift: int) -> Callable[[int, int], tuple[int, int]]:
    def add(a: int, b: int) -> tuple[int, int]:
        total = (a << shift) + b
        return total & M32, int(total > M32)

    return add


def _bfe(width: int, sign: bool) -> Callable[[int, int], int]:
    def extract(a: int, field: int) -> int:
        offset, size = field & (width - 1), min(field >> 16 & 0x7F, width)
        if size == 0:
            return 0
        base = signed(a, width) if sign else a
        value = base >> offset & ((1 << size) - 1)
        return (signed(value, size) if sign else value) & ((1 << width) - 1)

    return extract


def _first_one(a: int) -> int:
    return (a & -a).bit_length() - 1 & M32


def _leading(width: int) -> Callable[[int], int]:
    return lambda a: (width - a.bit_length()) if a else M32


def _choose_abs(a: int) -> int:
    return abs(signed(a)) & M32


@dataclass(frozen=True)
class Op:
    """Width of the result and of each source, and the function; it yields SCC too where `scc`."""

    result: int
    sources: tuple[int, ...]
    fn: Callable[..., Any]
    scc: bool = False


def _pairs(name: str, fn: Callable[[int, int, int], int], scc: bool = True) -> dict[str, Op]:
    """A bitwise operation on 32 and 64 bits; `fn` gets the mask of the width."""
    table = {}
    for width in (32, 64):
        ones = (1 << width) - 1

        def op(a: int, b: int, ones: int = ones) -> int:
            return fn(a, b, ones) & ones

        table[f"{name}_b{width}"] = Op(width, (width, width), _nonzero(op) if scc else op, scc)
    return table


BITWISE: dict[str, Callable[[int, int, int], int]] = {
    "s_and": lambda a, b, ones: a & b,
    "s_or": lambda a, b, ones: a | b,
    "s_xor": lambda a, b, ones: a ^ b,
    "s_andn2": lambda a, b, ones: a & (b ^ ones),
    "s_orn2": lambda a, b, ones: a | (b ^ ones),
    "s_nand": lambda a, b, ones: a & b ^ ones,
    "s_nor": lambda a, b, ones: (a | b) ^ ones,
    "s_xnor": lambda a, b, ones: a ^ b ^ ones,
}

OPS: dict[str, Op] = {
    "s_add_u32": Op(32, (32, 32), lambda a, b: (a + b & M32, int(a + b > M32)), True),
    "s_sub_u32": Op(32, (32, 32), lambda a, b: (a - b & M32, int(b > a)), True),
    "s_add_i32": Op(32, (32, 32), add_signed, True),
    "s_sub_i32": Op(32, (32, 32), _sub, True),
    "s_mul_i32": Op(32, (32, 32), lambda a, b: a * b & M32),
    "s_mul_hi_u32": Op(32, (32, 32), lambda a, b: a * b >> 32),
    "s_mul_hi_i32": Op(32, (32, 32), lambda a, b: signed(a) * signed(b) >> 32 & M32),
    "s_min_i32": Op(
        32, (32, 32), lambda a, b: (min(a, b, key=signed), signed(a) < signed(b)), True
    ),
    "s_max_i32": Op(
        32, (32, 32), lambda a, b: (max(a, b, key=signed), signed(a) > signed(b)), True
    ),
    "s_min_u32": Op(32, (32, 32), lambda a, b: (min(a, b), int(a < b)), True),
    "s_max_u32": Op(32, (32, 32), lambda a, b: (max(a, b), int(a > b)), True),
    "s_mov_b32": Op(32, (32,), lambda a: a),
    "s_mov_b64": Op(64, (64,), lambda a: a),
    "s_not_b32": Op(32, (32,), _nonzero(lambda a: a ^ M32), True),
    "s_not_b64": Op(64, (64,), _nonzero(lambda a: a ^ M64), True),
    "s_abs_i32": Op(32, (32,), _nonzero(_choose_abs), True),
    "s_sext_i32_i8": Op(32, (32,), lambda a: signed(a & 0xFF, 8) & M32),
    "s_sext_i32_i16": Op(32, (32,), lambda a: signed(a & 0xFFFF, 16) & M32),
    "s_brev_b32": Op(32, (32,), lambda a: int(f"{a:032b}"[::-1], 2)),
    "s_bcnt1_i32_b32": Op(32, (32,), _nonzero(int.bit_count), True),
    "s_bcnt1_i32_b64": Op(32, (64,), _nonzero(int.bit_count), True),
    "s_ff1_i32_b32": Op(32, (32,), _first_one),
    "s_ff1_i32_b64": Op(32, (64,), _first_one),
    "s_flbit_i32_b32": Op(32, (32,), _leading(32)),
    "s_flbit_i32_b64": Op(32, (64,), _leading(64)),
    "s_lshl_b32": Op(32, (32, 32), _nonzero(lambda a, b: a << (b & 31) & M32), True),
    "s_lshl_b64": Op(64, (64, 32), _nonzero(lambda a, b: a << (b & 63) & M64), True),
    "s_lshr_b32": Op(32, (32, 32), _nonzero(lambda a, b: a >> (b & 31)), True),
    "s_lshr_b64": Op(64, (64, 32), _nonzero(lambda a, b: a >> (b & 63)), True),
    "s_ashr_i32": Op(32, (32, 32), _nonzero(lambda a, b: signed(a) >> (b & 31) & M32), True),
    "s_ashr_i64": Op(64, (64, 32), _nonzero(lambda a, b: signed(a, 64) >> (b & 63) & M64), True),
    "s_bfe_u32": Op(32, (32, 32), _nonzero(_bfe(32, False)), True),
    "s_bfe_i32": Op(32, (32, 32), _nonzero(_bfe(32, True)), True),
    "s_bfe_u64": Op(64, (64, 32), _nonzero(_bfe(64, False)), True),
    "s_bfe_i64": Op(64, (64, 32), _nonzero(_bfe(64, True)), True),
    "s_bfm_b32": Op(32, (32, 32), lambda a, b: ((1 << (a & 31)) - 1) << (b & 31) & M32),
    "s_pack_ll_b32_b16": Op(32, (32, 32), lambda a, b: a & 0xFFFF | (b & 0xFFFF) << 16),
    "s_pack_lh_b32_b16": Op(32, (32, 32), lambda a, b: a & 0xFFFF | b & 0xFFFF0000),
    "s_pack_hh_b32_b16": Op(32, (32, 32), lambda a, b: a >> 16 | b & 0xFFFF0000),
    "s_absdiff_i32": Op(
        32, (32, 32), _nonzero(lambda a, b: abs(signed(a) - signed(b)) & M32), True
    ),
    **{f"s_lshl{k}_add_u32": Op(32, (32, 32), _lshl_add(k), True) for k in range(1, 5)},
}
for _name, _fn in BITWISE.items():
    OPS |= _pairs(_name, _fn)


def arithmetic(ins: Instruction, op: Op) -> Step:
    dst, *sources = ins.operands
    if len(sources) != len(op.sources):
        raise EmulationError("wrong number of operands")
    read = [scalar_reader(s, width) for s, width in zip(sources, op.sources, strict=True)]
    shadows = [scalar_shadow(s, width) for s, width in zip(sources, op.sources, strict=True)]
    write, fn, scc, ones = scalar_writer(dst, op.result), op.fn, op.scc, (1 << op.result) - 1
    precise = PRECISE.get(ins.mnemonic.rpartition("_")[0])

    def step(w: Wave) -> None:
        values = [r(w) for r in read]
        result = fn(*values)
        value, flag = result if scc else (result, 0)
        undefined = 0
        if w.scalar_taint:
            w.scalar_taint = 0
            undefined = precise(values, [s(w) for s in shadows], ones) if precise else ones
        write(w, value, undefined)
        if scc:
            # A bit that is set for certain makes the result nonzero for certain.
            certain = precise is not None and value & ~undefined & ones
            w.put_scc(int(flag), bool(undefined) and not certain)

    return step


def _and_shadow(v: list[int], s: list[int], ones: int) -> int:
    return (s[0] & (v[1] | s[1])) | (s[1] & (v[0] | s[0]))


def _or_shadow(v: list[int], s: list[int], ones: int) -> int:
    return (s[0] & (v[1] ^ ones | s[1])) | (s[1] & (v[0] ^ ones | s[0]))


# How undefined bits pass through bitwise operations, given values and undefined bits.
PRECISE: dict[str, Callable[[list[int], list[int], int], int]] = {
    "s_mov": lambda v, s, ones: s[0],
    "s_not": lambda v, s, ones: s[0],
    "s_and": _and_shadow,
    "s_or": _or_shadow,
    "s_xor": lambda v, s, ones: s[0] | s[1],
    "s_andn2": lambda v, s, ones: _and_shadow([v[0], v[1] ^ ones], s, ones),
    "s_orn2": lambda v, s, ones: _or_shadow([v[0], v[1] ^ ones], s, ones),
}
