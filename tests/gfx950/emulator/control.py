"""Scalar instructions beside plain arithmetic: SCC, EXEC, branches, waits and loads."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .access import scalar_reader, scalar_register, scalar_shadow, scalar_writer
from .errors import EmulationError
from .operands import EXEC, VCC, Operand
from .parse import Instruction
from .scalar import BITWISE, OPS, add_signed, arithmetic, signed
from .wave import LOADING, M32, M64, Pending, Step, Wave

Builder = Callable[[Instruction, dict[str, int]], Step]

COMPARE: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b,
    "lg": lambda a, b: a != b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
}


def build(ins: Instruction, labels: dict[str, int]) -> Step:
    """The step of a scalar instruction."""
    name = ins.mnemonic
    if ins.modifiers and name != "s_waitcnt":
        raise EmulationError(f"unknown modifiers {ins.modifiers}")
    if name in OPS:
        return arithmetic(ins, OPS[name])
    if name in SPECIAL:
        return SPECIAL[name](ins, labels)
    for prefix, builder in PREFIXES.items():
        if name.startswith(prefix):
            return builder(ins, labels)
    raise EmulationError(f"unknown instruction {name}")


def _carry(ins: Instruction, labels: dict[str, int]) -> Step:
    dst, a, b = ins.operands
    read_a, read_b, write = scalar_reader(a), scalar_reader(b), scalar_writer(dst)
    subtract = ins.mnemonic == "s_subb_u32"

    def step(w: Wave) -> None:
        if w.scc_undefined:
            w.scalar_taint = M32
        x, y = read_a(w), read_b(w)
        total = x - y - w.scc if subtract else x + y + w.scc
        undefined = M32 if w.scalar_taint else 0
        w.scalar_taint = 0
        write(w, total & M32, undefined)
        w.put_scc(int(not 0 <= total <= M32), bool(undefined))

    return step


def _immediate(ins: Instruction, labels: dict[str, int]) -> Step:
    """s_movk_i32, s_addk_i32, s_mulk_i32: a signed 16-bit constant."""
    dst, source = ins.operands
    constant = signed(source.bits("u32") & 0xFFFF, 16) & M32
    read, write, name = scalar_reader(dst), scalar_writer(dst), ins.mnemonic

    def step(w: Wave) -> None:
        if name == "s_movk_i32":
            return write(w, constant, 0)
        value, flag = add_signed(read(w), constant)
        if name == "s_mulk_i32":
            value = read(w) * constant & M32
        undefined = M32 if w.scalar_taint else 0
        w.scalar_taint = 0
        write(w, value, undefined)
        if name == "s_addk_i32":
            w.put_scc(flag, bool(undefined))
        return None

    return step


def _compare(ins: Instruction, labels: dict[str, int]) -> Step:
    """s_cmp_<relation>_<type> and s_cmpk_<relation>_<type>."""
    kind, relation, type_ = ins.mnemonic.removeprefix("s_").split("_")
    a, b = ins.operands
    width = 64 if type_.endswith("64") else 32
    read_a, read_b, test = scalar_reader(a, width), scalar_reader(b, width), COMPARE[relation]
    if kind == "cmpk":
        constant = b.bits("u32") & 0xFFFF
        constant = signed(constant, 16) & M32 if type_ == "i32" else constant
        read_b = lambda w: constant  # noqa: E731
    convert = signed if type_ == "i32" else int

    def step(w: Wave) -> None:
        result = test(convert(read_a(w)), convert(read_b(w)))
        w.put_scc(int(result), bool(w.scalar_taint))
        w.scalar_taint = 0

    return step


def _bit_compare(ins: Instruction, labels: dict[str, int]) -> Step:
    """s_bitcmp0_b32, s_bitcmp1_b32, ..._b64."""
    width = int(ins.mnemonic[-2:])
    a, b = ins.operands
    read_a, read_b, wanted = scalar_reader(a, width), scalar_reader(b), ins.mnemonic[8] == "1"

    def step(w: Wave) -> None:
        bit = read_a(w) >> (read_b(w) & width - 1) & 1
        w.put_scc(int(bit == wanted), bool(w.scalar_taint))
        w.scalar_taint = 0

    return step


def _bit_set(ins: Instruction, labels: dict[str, int]) -> Step:
    """s_bitset0_b32, s_bitset1_b32."""
    dst, source = ins.operands
    read, old, write = scalar_reader(source), scalar_reader(dst), scalar_writer(dst)
    one = ins.mnemonic[8] == "1"

    def step(w: Wave) -> None:
        bit = 1 << (read(w) & 31)
        value = old(w) | bit if one else old(w) & ~bit
        undefined = M32 if w.scalar_taint else 0
        w.scalar_taint = 0
        write(w, value, undefined)

    return step


def _select(ins: Instruction, labels: dict[str, int]) -> Step:
    """s_cselect_b32, s_cselect_b64, s_cmov_b32, s_cmov_b64."""
    width = int(ins.mnemonic[-2:])
    dst, a = ins.operands[:2]
    b = dst if ins.mnemonic.startswith("s_cmov") else ins.operands[2]
    readers = scalar_reader(b, width), scalar_reader(a, width)
    shadows, write = (scalar_shadow(b, width), scalar_shadow(a, width)), scalar_writer(dst, width)

    def step(w: Wave) -> None:
        value, undefined = readers[w.scc](w), shadows[w.scc](w)
        w.scalar_taint = 0
        write(w, value, (1 << width) - 1 if w.scc_undefined else undefined)

    return step


def _save_exec(ins: Instruction, labels: dict[str, int]) -> Step:
    """s_<op>_saveexec_b64: save EXEC, then combine it with the operand."""
    dst, source = ins.operands
    op = ins.mnemonic.removesuffix("_saveexec_b64")
    fn = BITWISE[op]
    read, shadow, write = (
        scalar_reader(source, 64),
        scalar_shadow(source, 64),
        scalar_writer(dst, 64),
    )

    def step(w: Wave) -> None:
        value, bad, old = read(w), shadow(w), w.exec
        w.scalar_taint = 0
        if (op not in ("s_and", "s_andn2") and bad) or bad & old:
            raise EmulationError("EXEC becomes undefined")
        write(w, old, 0)
        w.set_exec(fn(value, old, M64))
        w.put_scc(int(w.exec != 0))

    return step


def _branch(ins: Instruction, labels: dict[str, int]) -> Step:
    (target,) = ins.operands
    if target.kind != "label" or target.text not in labels:
        raise EmulationError(f"unknown label {target.text}")
    to = labels[target.text]
    condition = ins.mnemonic.removeprefix("s_cbranch_")
    if condition == "s_branch":
        return lambda w: to
    register = {"vccz": VCC, "vccnz": VCC, "execz": EXEC, "execnz": EXEC}.get(condition)
    if register is None:
        wanted = {"scc0": 0, "scc1": 1}[condition]

        def on_scc(w: Wave) -> int | None:
            if w.scc_undefined:
                raise EmulationError("branch on undefined SCC")
            return to if w.scc == wanted else None

        return on_scc
    zero = condition.endswith("cz") and not condition.endswith("nz")

    def on_mask(w: Wave) -> int | None:
        mask = w.s[register] | w.s[register + 1] << 32
        bad = w.sx[register] | w.sx[register + 1] << 32
        if bad and not mask & ~bad:
            raise EmulationError("branch on an undefined mask")
        return to if (mask == 0) == zero else None

    return on_mask


def _wait(ins: Instruction, labels: dict[str, int]) -> Step:
    counts = {name: int(count) for name, count in ins.modifiers.items()}
    if unknown := counts.keys() - {"vmcnt", "lgkmcnt", "expcnt"}:
        raise EmulationError(f"unknown counters {sorted(unknown)}")
    vm, lgkm = counts.get("vmcnt", 63), counts.get("lgkmcnt", 15)

    def step(w: Wave) -> None:
        w.wait(w.vm, vm)
        # Scalar loads return in any order: only a count of 0 tells of them.
        w.wait(w.ds, lgkm)
        if lgkm == 0:
            w.wait(w.smem, 0)

    return step


def _load(ins: Instruction, labels: dict[str, int]) -> Step:
    """s_load_dword and its multiples: constants at an address."""
    count = int(ins.mnemonic.removeprefix("s_load_dword").removeprefix("x") or 1)
    dst, base, offset = ins.operands
    first, read_base, read_offset = (
        scalar_register(dst, count),
        scalar_reader(base, 64),
        _offset(offset),
    )
    registers = range(first, first + count)

    def step(w: Wave) -> None:
        address = read_base(w) + read_offset(w)
        w.demand_scalar("the address")
        if address & 3:
            raise EmulationError("scalar load that is not 4-byte aligned")
        where, active = np.full(1, address), np.ones(1, np.bool_)
        words = w.memory.load(where, active, 4 * count)[:, 0].tolist()
        if any(w.sx[r] & LOADING for r in registers):
            raise EmulationError("a load into these registers is in flight")

        def land() -> None:
            for r, word in zip(registers, words, strict=True):
                w.sx[r] = 0
                w.put_scalar(r, word)

        for r in registers:
            w.sx[r] |= LOADING
        w.smem.append(Pending(land=land))

    return step


def _offset(op: Operand) -> Callable[[Wave], int]:
    if op.constant:
        value = op.value
        return lambda w: value
    return scalar_reader(op)


def _barrier(ins: Instruction, labels: dict[str, int]) -> Step:
    def step(w: Wave) -> None:
        w.at_barrier = True

    return step


def _end(ins: Instruction, labels: dict[str, int]) -> Step:
    def step(w: Wave) -> None:
        w.done = True

    return step


def _nothing(ins: Instruction, labels: dict[str, int]) -> Step:
    return lambda w: None


SPECIAL: dict[str, Builder] = {
    "s_addc_u32": _carry,
    "s_subb_u32": _carry,
    "s_barrier": _barrier,
    "s_endpgm": _end,
    "s_waitcnt": _wait,
    "s_branch": _branch,
    **dict.fromkeys(("s_movk_i32", "s_addk_i32", "s_mulk_i32"), _immediate),
    **dict.fromkeys(("s_nop", "s_setprio", "s_sleep", "s_sched_barrier"), _nothing),
    **{f"s_load_dword{n}": _load for n in ("", "x2", "x4", "x8", "x16")},
    **{f"{op}_saveexec_b64": _save_exec for op in BITWISE},
    **{f"s_cbranch_{c}": _branch for c in ("scc0", "scc1", "vccz", "vccnz", "execz", "execnz")},
    **{f"s_cselect_b{n}": _select for n in (32, 64)},
    **{f"s_cmov_b{n}": _select for n in (32, 64)},
}
PREFIXES: dict[str, Builder] = {
    "s_cmp_": _compare,
    "s_cmpk_": _compare,
    "s_bitcmp": _bit_compare,
    "s_bitset": _bit_set,
}
