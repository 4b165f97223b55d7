"""Instructions that move data between lanes and scalar registers, without LDS."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .access import reader, register, scalar_reader, scalar_register, shadow_reader, writer
from .errors import EmulationError
from .parse import Instruction
from .vector import only
from .wave import LANE, U32, Row, Step, Wave


def _lane_value(w: Wave, row: int, lane: int) -> tuple[int, int]:
    """One lane of a register and its undefined bits."""
    if w.flags[row]:
        w.touch(row)
        w.taint = None
    return int(w.v[U32][row][lane]), int(w.shadow_of(row)[lane])


def read_first(ins: Instruction) -> Step:
    """v_readfirstlane_b32: the first active lane, or lane 0."""
    only(ins)
    dst, row = scalar_register(ins.operands[0]), register(ins.operands[1])

    def step(w: Wave) -> None:
        lane = (w.exec & -w.exec).bit_length() - 1 if w.exec else 0
        w.put_scalar(dst, *_lane_value(w, row, lane))

    return step


def read_lane(ins: Instruction) -> Step:
    only(ins)
    dst, source, select = ins.operands
    to, row, lane = scalar_register(dst), register(source), scalar_reader(select)

    def step(w: Wave) -> None:
        number = lane(w) & 63
        w.demand_scalar("the lane")
        w.put_scalar(to, *_lane_value(w, row, number))

    return step


def write_lane(ins: Instruction) -> Step:
    only(ins)
    dst, source, select = ins.operands
    row, value, lane = register(dst), reader(source, "u32"), scalar_reader(select)
    shadow = shadow_reader(source)

    def step(w: Wave) -> None:
        number = lane(w) & 63
        w.demand_scalar("the lane")
        word = value(w)
        w.taint = None
        w.put_lanes(row, word, np.equal(LANE, number), undefined=shadow(w))

    return step


def swap(ins: Instruction) -> Step:
    """v_permlane16_swap_b32: odd rows of 16 lanes against even rows; 32: the halves."""
    only(ins)
    width = 16 if "16" in ins.mnemonic else 32
    first, second = (register(op) for op in ins.operands)
    lower = np.flatnonzero(LANE & width == 0)
    upper = lower + width

    def step(w: Wave) -> None:
        if not w.full:
            raise EmulationError("a swap of rows with lanes switched off")
        for row in (first, second):
            if w.flags[row]:
                w.touch(row)
        w.taint = None
        a, b = w.v[U32][first].copy(), w.v[U32][second].copy()
        bad_a, bad_b = w.shadow_of(first).copy(), w.shadow_of(second).copy()
        for x, y in ((a, b), (bad_a, bad_b)):
            x[upper], y[lower] = y[lower], x[upper].copy()
        w.put(first, a, undefined=bad_a)
        w.put(second, b, undefined=bad_b)

    return step


def count_below(ins: Instruction) -> Step:
    """v_mbcnt_lo_u32_b32, v_mbcnt_hi_u32_b32: bits of a mask below this lane, added."""
    only(ins)
    dst, mask, addend = ins.operands
    read, plus, write = reader(mask, "u32", 0), reader(addend, "u32", 1), writer(dst, "u32")
    first = 32 if "_hi_" in ins.mnemonic else 0
    below = np.clip(LANE - first, 0, 32)
    ones: Row = ((1 << below.astype(np.uint64)) - 1).astype(np.uint32)
    return lambda w: write(w, np.bitwise_count(read(w) & ones) + plus(w))


BUILDERS: dict[str, Callable[[Instruction], Step]] = {
    "v_readfirstlane_b32": read_first,
    "v_readlane_b32": read_lane,
    "v_writelane_b32": write_lane,
    "v_permlane16_swap_b32": swap,
    "v_permlane32_swap_b32": swap,
    "v_mbcnt_lo_u32_b32": count_below,
    "v_mbcnt_hi_u32_b32": count_below,
}
