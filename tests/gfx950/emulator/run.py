"""Decode a program once, and run workgroups of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from .arguments import Value, hidden_values, place
from .errors import EmulationError
from .lds import Lds
from .memory import Memory
from .parse import Kernel
from .program import Program
from .wave import ACC, LANES, M32, Wave

ORDERS = ("ascending", "descending", "interleaved")
Index = tuple[int, int, int]

LDS_LIMIT = 160 * 1024


@dataclass
class Stats:
    """What was executed: of every wave, how often each instruction of the text."""

    kernel: Kernel
    waves: dict[tuple[Index, int], list[int]] = field(default_factory=dict)

    def executed(self, program: Index | None = None, wave: int | None = None) -> int:
        """Instructions of all waves, or of those of one workgroup or number."""
        return sum(self.by_mnemonic(program, wave).values())

    def by_mnemonic(self, program: Index | None = None, wave: int | None = None) -> Counter[str]:
        """The same by mnemonic, without the suffix of the encoding."""
        total: Counter[str] = Counter()
        for (where, number), counts in self.waves.items():
            if program in (None, where) and wave in (None, number):
                for ins, count in zip(self.kernel.instructions, counts, strict=True):
                    if count:
                        total[ins.mnemonic] += count
        return total


def launch(
    program: Program,
    grid: Sequence[int],
    arguments: Sequence[Value],
    *,
    num_warps: int = 4,
    lds_bytes: int = 0,
    order: str = "ascending",
    programs: Iterable[Index] | None = None,
    limit: int = 1_000_000,
    preload: bool = True,
) -> Stats:
    """Run the workgroups of a grid, or only `programs` of it.

    Args:
        arguments: values in the order of the kernel's argument table; tensors are on the CPU and
            written in place. What is left off at the end is 0 (pointers to scratch memory).
        lds_bytes: dynamic LDS, `metadata.shared` of the compiled kernel.
        order: which wave runs first between two barriers, or one instruction of each in turn.
        limit: instructions that one wave may execute.
        preload: whether arguments arrive in registers, where the kernel asks for that.
    """
    kernel = program.kernel
    if order not in ORDERS:
        raise ValueError(f"order {order!r} is none of {ORDERS}")
    memory = Memory()
    kernarg = place(kernel, arguments, memory, hidden_values(grid, num_warps))
    lds_bytes += kernel.field("group_segment_fixed_size")
    if lds_bytes > LDS_LIMIT:
        raise EmulationError(f"{lds_bytes} bytes of LDS, of which there are {LDS_LIMIT}")
    local = Lds(lds_bytes)
    accumulation = kernel.field("next_free_vgpr") - kernel.field("accum_offset")
    waves = [
        Wave(min(kernel.field("accum_offset"), ACC), max(accumulation, 0), memory, local)
        for _ in range(num_warps)
    ]
    everything = product(*(range(n) for n in reversed((*grid, 1, 1)[:3])))
    chosen = [(x, y, z) for z, y, x in everything] if programs is None else list(programs)
    stats = Stats(kernel)
    with np.errstate(all="ignore"):
        for number, index in enumerate(chosen, 1):
            memory.workgroup = number
            local.reset()
            for i, wave in enumerate(waves):
                wave.reset(i, index)
                _start(wave, kernel, kernarg, memory, preload)
                stats.waves[index, i] = [0] * len(program.steps)
            _workgroup(program, waves, stats, order, limit)
    return stats


def _start(wave: Wave, kernel: Kernel, kernarg: int, memory: Memory, preload: bool) -> None:
    """The registers that a wave finds set."""
    # Pointers to the dispatch and the queue come first. What they point to is not modelled.
    register = 2 * (kernel.field("user_sgpr_dispatch_ptr") + kernel.field("user_sgpr_queue_ptr"))
    wave.put_pair(register, kernarg)
    register += 2 + 2 * kernel.field("user_sgpr_dispatch_id")
    register += kernel.field("user_sgpr_private_segment_size")
    count, first = (kernel.field(f"user_sgpr_kernarg_preload_{n}") for n in ("length", "offset"))
    if count and preload:
        if kernel.preloaded_entry is None:
            raise EmulationError("arguments in registers, but no entry for them")
        words = memory.buffers[0].octets.words(1)[:, 0]
        for i in range(count):
            wave.put_scalar(register + i, int(words[first + i]) if first + i < len(words) else 0)
        wave.pc = kernel.preloaded_entry
    register = kernel.field("user_sgpr_count")
    for axis, index in zip("xyz", wave.program, strict=True):
        if kernel.field(f"system_sgpr_workgroup_id_{axis}"):
            wave.put_scalar(register, index)
            register += 1
    wave.put(0, np.arange(LANES, dtype=np.uint32) + np.uint32(LANES * wave.number))


def _workgroup(program: Program, waves: list[Wave], stats: Stats, order: str, limit: int) -> None:
    """Run a workgroup to its end."""
    in_order = waves[::-1] if order == "descending" else waves
    budget = 1 if order == "interleaved" else M32
    while any(not w.done for w in waves):
        for wave in in_order:
            if not (wave.done or wave.at_barrier):
                _run(program, wave, stats.waves[wave.program, wave.number], budget, limit)
        alive = [w for w in waves if not w.done]
        if alive and all(w.at_barrier for w in alive):
            waves[0].local.release(waves)
            for wave in alive:
                wave.at_barrier = False


def _run(program: Program, wave: Wave, counts: list[int], budget: int, limit: int) -> None:
    """Execute a wave until its end, a barrier or `budget` instructions."""
    steps, pc = program.steps, wave.pc
    end = len(steps)
    try:
        for _ in range(min(budget, limit - wave.executed + 1)):
            if pc >= end:
                raise EmulationError("execution runs off the end")
            counts[pc] += 1
            target = steps[pc](wave)
            pc = pc + 1 if target is None else target
            wave.executed += 1
            if wave.done or wave.at_barrier:
                break
        if wave.executed > limit:
            raise EmulationError(f"more than {limit} instructions")
    except EmulationError as error:
        raise EmulationError(f"{_place(program, wave, pc)}: {error}") from error
    except Exception as error:
        raise RuntimeError(f"the emulator failed at {_place(program, wave, pc)}") from error
    wave.pc = pc


def _place(program: Program, wave: Wave, pc: int) -> str:
    where = f"{program.kernel.name}, workgroup {wave.program}, wave {wave.number}"
    if pc >= len(program.steps):
        return where
    ins = program.kernel.instructions[pc]
    return f"{where}, line {ins.line}, {ins.text!r}"
