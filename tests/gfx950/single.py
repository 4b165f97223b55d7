"""Run a few instructions on one wave whose registers a test sets and looks at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from .emulator.lds import Lds
from .emulator.memory import Memory
from .emulator.parse import parse_instruction
from .emulator.program import decode
from .emulator.wave import ACC, M64, Wave

U32 = npt.NDArray[np.uint32]
Values = npt.ArrayLike

# Integers at which something overflows, and what lies around them.
EDGES = [0, 1, 2, 31, 32, 63, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]


def integers(seed: int) -> U32:
    """64 patterns, the edges among them in an order of their own."""
    g = np.random.default_rng(seed)
    some = g.integers(0, 1 << 32, 64 - len(EDGES), dtype=np.uint32)
    return g.permutation(np.concatenate((np.array(EDGES, np.uint32), some)))


def bits(values: Values, dtype: str) -> U32:
    """Patterns of numbers of a NumPy type of up to 32 bits."""
    array = np.broadcast_to(np.asarray(values, dtype), (64,)).copy()
    return array.view(f"u{array.itemsize}").astype(np.uint32)


def wave(
    vector: Mapping[int, Values] | None = None,
    scalar: Mapping[int, int] | None = None,
    *,
    exec_mask: int = M64,
    lds: int = 0,
    memory: Memory | None = None,
    number: int = 0,
    local: Lds | None = None,
) -> Wave:
    """A wave with these registers set (64 patterns, or one for all lanes); 256.. are a0..."""
    accumulation = 32 if max(vector or [0]) >= ACC else 0
    made = Wave(48, accumulation, memory or Memory(), local or Lds(lds))
    made.reset(number, (0, 0, 0))
    for register, value in (vector or {}).items():
        made.put(register, np.broadcast_to(np.asarray(value), (64,)).astype(np.uint32))
    for register, word in (scalar or {}).items():
        made.put_scalar(register, word)
    made.set_exec(exec_mask)
    return made


def run(made: Wave, text: str) -> Wave:
    """Execute lines without branches."""
    with np.errstate(all="ignore"):
        for line in text.strip().splitlines():
            decode(parse_instruction(line.strip()), {})(made)
    return made


def execute(
    text: str,
    vector: Mapping[int, Values] | None = None,
    scalar: Mapping[int, int] | None = None,
    *,
    exec_mask: int = M64,
    lds: int = 0,
) -> Wave:
    """Execute lines on a new wave."""
    return run(wave(vector, scalar, exec_mask=exec_mask, lds=lds), text)


def read(made: Wave, register: int, count: int = 1) -> U32:
    """A vector register, which must be ready and defined; several as `[lanes, count]`."""
    for r in range(register, register + count):
        made.touch(r)
    made.demand(f"v{register}")
    words = made.bits[register : register + count].copy()
    return words[0] if count == 1 else words.T


def scalar(made: Wave, register: int, count: int = 1) -> int:
    """A scalar register or pair, which must be ready and defined."""
    for r in range(register, register + count):
        if made.sx[r]:
            made.touch_scalar(r)
    made.demand_scalar(f"s{register}")
    return sum(made.s[register + i] << 32 * i for i in range(count))


def per_lane(fn: Callable[..., int], *sources: Sequence[int] | U32) -> list[int]:
    """A function of Python integers in every lane."""
    return [fn(*(int(x) for x in lane)) for lane in zip(*sources, strict=True)]
