"""The state of one wave, and what it means for a register to be undefined or in flight.

Undefined bits travel as in a memory checker: a value made from an undefined one is undefined, and
only what must not depend on such a value complains: an address, a stored value, a branch, EXEC. A
register that a load will write is another matter: no instruction may read or write it before the
wait that retires the load.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .errors import EmulationError
from .operands import EXEC, SGPRS

if TYPE_CHECKING:
    from .lds import Lds
    from .memory import Memory

Row = npt.NDArray[Any]

LANES = 64
M32, M64 = (1 << 32) - 1, (1 << 64) - 1
ACC = 256  # accumulation register a0 follows v255 in the register file

UNDEFINED, IN_FLIGHT = 1, 2  # flags of a vector register
LOADING = 1 << 32  # flag of a scalar register beside its 32 undefined bits

U32, I32, F32, U16, I16, F16 = range(6)  # the views of a register; 16-bit ones show its low half
_VIEWS: tuple[tuple[Any, Any], ...] = (
    (np.uint32, np.s_[:]),
    (np.int32, np.s_[:]),
    (np.float32, np.s_[:]),
    (np.uint16, np.s_[:, 0::2]),
    (np.int16, np.s_[:, 0::2]),
    (np.float16, np.s_[:, 0::2]),
)
ZERO: Row = np.zeros(LANES, np.uint32)
LANE: Row = np.arange(LANES)
_masks: dict[int, npt.NDArray[np.bool_]] = {}


def lanes(mask: int) -> npt.NDArray[np.bool_]:
    """A 64-bit mask as booleans; not to be written to."""
    row = _masks.get(mask)
    if row is None:
        if len(_masks) > 10_000:
            _masks.clear()
        octets = np.frombuffer(mask.to_bytes(8, "little"), np.uint8)
        row = _masks[mask] = np.unpackbits(octets, bitorder="little").view(np.bool_)
    return row


FULL = lanes(M64)


def mask_of(row: npt.NDArray[np.bool_]) -> int:
    """Booleans as a 64-bit mask."""
    return int.from_bytes(np.packbits(row, bitorder="little").tobytes(), "little")


def views(bits: npt.NDArray[np.uint32]) -> list[list[Row]]:
    """Every register of `bits`, in every view."""
    return [list(bits.view(dtype)[part]) for dtype, part in _VIEWS]


@dataclass(eq=False)
class Pending:
    """A memory operation that no wait has retired yet."""

    rows: Sequence[int] = ()  # vector registers that it will write
    land: Callable[[], None] | None = None
    # The bytes of LDS that it reads or writes, for the barriers that it outlives.
    lds: tuple[Row, bool] | None = None


Queue = deque[Pending]


class Wave:
    """Registers, masks, counters and position of one wave."""

    def __init__(self, vector: int, accumulation: int, memory: Memory, local: Lds) -> None:
        rows = ACC + accumulation if accumulation else vector
        self.bits = np.zeros((rows, LANES), np.uint32)
        self.undefined = np.zeros((rows, LANES), np.uint32)
        self.v = views(self.bits)
        self.shadow = list(self.undefined)
        slots = np.zeros((4, LANES), np.uint32)
        self.slots = views(slots)  # scalar operands spread over the lanes, one a source
        self.wide = np.zeros((4, LANES), np.uint64)
        self.memory, self.local = memory, local
        self.reset(0, (0, 0, 0))

    def reset(self, number: int, program: tuple[int, int, int]) -> None:
        """Make it the wave `number` of a workgroup at its start: everything undefined."""
        self.number, self.program = number, program
        self.flags = [UNDEFINED] * len(self.bits)
        self.undefined.fill(M32)
        self.bits.fill(0xDEADBEEF)
        self.taint: npt.NDArray[np.bool_] | None = None
        self.s = [0xDEADBEEF] * SGPRS
        self.sx = [M32] * SGPRS
        self.scalar_taint = 0
        self.scc, self.scc_undefined = 0, True
        self.set_exec(M64)
        self.pc = 0
        self.done = self.at_barrier = False
        self.executed = 0
        self.vm, self.ds, self.smem = Queue(), Queue(), Queue()  # by the counter and the unit
        self.loading: dict[int, tuple[Queue, Pending]] = {}  # the newest load into a register

    # EXEC

    def set_exec(self, mask: int) -> None:
        self.exec = mask
        self.full = mask == M64
        self.mask = FULL if self.full else lanes(mask)
        self.s[EXEC], self.s[EXEC + 1] = mask & M32, mask >> 32
        self.sx[EXEC] = self.sx[EXEC + 1] = 0

    # Vector registers

    def touch(self, row: int, bits: int = M32) -> None:
        """Read a register that may not be ready: fail if it is in flight, else note its lanes."""
        if self.flags[row] & IN_FLIGHT:
            raise EmulationError(f"{name(row)} is read while a load into it is in flight")
        if not self.flags[row]:
            return
        bad = (self.shadow[row] & np.uint32(bits)) != 0
        if bad.any():
            self.taint = bad if self.taint is None else self.taint | bad

    def put(self, row: int, value: Row, bits: int = M32, undefined: Row | None = None) -> None:
        """Write `bits` of a register where EXEC is set; `undefined` overrides the taint."""
        self.put_lanes(row, value, self.mask, bits, undefined)

    def put_lanes(
        self,
        row: int,
        value: Row,
        mask: npt.NDArray[np.bool_],
        bits: int = M32,
        undefined: Row | None = None,
    ) -> None:
        if self.flags[row] & IN_FLIGHT:
            raise EmulationError(f"{name(row)} is written while a load into it is in flight")
        if undefined is None:
            undefined = ZERO if self.taint is None else np.where(self.taint, M32, 0)
        self.taint = None
        self.deposit(row, value, mask, bits, undefined)

    def deposit(
        self, row: int, value: Row, mask: npt.NDArray[np.bool_], bits: int, undefined: Row
    ) -> None:
        old = self.v[U32][row]
        if bits == M32 and undefined is ZERO and mask is FULL:
            self.flags[row] &= ~UNDEFINED
            old[:] = value
            return
        new = value
        if bits != M32:
            new = (value & np.uint32(bits)) | (old & np.uint32(M32 ^ bits))
        np.copyto(old, new, where=mask, casting="unsafe")
        if self.flags[row] or undefined is not ZERO:
            shadow = self.shadow[row]
            if not self.flags[row] & UNDEFINED:
                shadow.fill(0)
            bad = (undefined & bits) | (shadow & np.uint32(M32 ^ bits))
            np.copyto(shadow, bad, where=mask, casting="unsafe")
            self.flags[row] = self.flags[row] & ~UNDEFINED | (UNDEFINED if shadow.any() else 0)

    def shadow_of(self, row: int) -> Row:
        """The undefined bits of a register."""
        return self.shadow[row] if self.flags[row] & UNDEFINED else ZERO

    def demand(self, what: str) -> None:
        """Fail if what was just read has an undefined active lane."""
        if self.taint is not None:
            bad = self.taint & self.mask
            self.taint = None
            if bad.any():
                raise EmulationError(f"{what} is undefined in lane {int(bad.argmax())}")

    # Scalar registers

    def touch_scalar(self, index: int) -> None:
        """Read a scalar register whose flags are set."""
        if self.sx[index] & LOADING:
            raise EmulationError(f"s{index} is read while a load into it is in flight")
        self.scalar_taint |= self.sx[index]

    def demand_scalar(self, what: str) -> None:
        if self.scalar_taint:
            self.scalar_taint = 0
            raise EmulationError(f"{what} is undefined")

    def put_scalar(self, index: int, value: int, undefined: int = 0) -> None:
        if self.sx[index] & LOADING:
            raise EmulationError(f"s{index} is written while a load into it is in flight")
        self.s[index] = value & M32
        self.sx[index] = undefined & M32
        if index >= EXEC:
            self._exec_half_written()

    def put_pair(self, index: int, value: int, undefined: int = 0) -> None:
        """Write 64 bits; to EXEC in one piece."""
        if index == EXEC:
            if undefined:
                raise EmulationError("EXEC becomes undefined")
            self.set_exec(value)
        else:
            self.put_scalar(index, value, undefined)
            self.put_scalar(index + 1, value >> 32, undefined >> 32)

    def _exec_half_written(self) -> None:
        if self.sx[EXEC] or self.sx[EXEC + 1]:
            raise EmulationError("EXEC becomes undefined")
        self.set_exec(self.s[EXEC] | self.s[EXEC + 1] << 32)

    def put_scc(self, value: int, undefined: bool = False) -> None:
        self.scc, self.scc_undefined = value, undefined

    # Waits

    def issue(self, queue: Queue, pending: Pending) -> None:
        """Begin a memory operation: its registers are in flight until a wait retires it."""
        for row in pending.rows:
            # Loads of one kind return in order, so that the newer value stays.
            if self.flags[row] & IN_FLIGHT and self.loading[row][0] is not queue:
                raise EmulationError(f"two loads into {name(row)} are in flight at once")
            self.flags[row] |= IN_FLIGHT
            self.loading[row] = queue, pending
        queue.append(pending)

    def landing(self, rows: Sequence[int], data: Row, bits: int, undefined: Row | None) -> Pending:
        """The load of `data[i]` into each register for the lanes that are active now."""
        mask = self.mask

        def land() -> None:
            for i, row in enumerate(rows):
                if self.loading[row][1] is pending:
                    self.flags[row] &= ~IN_FLIGHT
                self.deposit(row, data[i], mask, bits, ZERO if undefined is None else undefined[i])

        pending = Pending(rows, land)
        return pending

    def wait(self, queue: Queue, count: int) -> None:
        """Retire the oldest operations until `count` are left."""
        while len(queue) > count:
            pending = queue.popleft()
            if pending.land is not None:
                pending.land()


def name(row: int) -> str:
    """A vector register's name in the text."""
    return f"v{row}" if row < ACC else f"a{row - ACC}"


# Executes one instruction; yields where to go on if that is not the next one.
Step = Callable[[Wave], int | None]
