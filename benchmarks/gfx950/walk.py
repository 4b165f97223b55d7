"""Count what one wave executes, by following the scalar instructions alone.

Which way a kernel goes depends on its arguments and on which workgroup it is: all of that is
scalar. What vectors compute stays unknown. A branch on whether any lane is active is not taken
then: in some wave of the launch there is one.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import scalar
from .assembly import Assembly, Instruction

VCC, M0, EXEC = 106, 124, 126
_NAMED = {
    "vcc": (VCC, VCC + 1),
    "vcc_lo": (VCC,),
    "vcc_hi": (VCC + 1,),
    "m0": (M0,),
    "exec": (EXEC, EXEC + 1),
    "exec_lo": (EXEC,),
    "exec_hi": (EXEC + 1,),
}
_KERNEL_ARGUMENTS = 1 << 40
"""An address for them."""

# Vector instructions with a scalar result behind the vector one.
_CARRIES = re.compile(r"v_(add|sub|subrev)c?b?(rev)?_co|v_div_scale|v_mad_[iu]64")
_BRANCHES = {
    "s_cbranch_scc0": ("scc", False),
    "s_cbranch_scc1": ("scc", True),
    "s_cbranch_vccz": ("vcc", False),
    "s_cbranch_vccnz": ("vcc", True),
    "s_cbranch_execz": ("exec", False),
    "s_cbranch_execnz": ("exec", True),
}
_LIMIT = 10_000_000


class UnknownBranch(ValueError):
    """Where the wave goes cannot be told from the arguments."""


def registers(operand: str) -> tuple[int, ...]:
    """The scalar registers that an operand names."""
    if found := re.fullmatch(r"s(\d+)", operand):
        return (int(found[1]),)
    if found := re.fullmatch(r"s\[(\d+):(\d+)\]", operand):
        return tuple(range(int(found[1]), int(found[2]) + 1))
    return _NAMED.get(operand, ())


class Wave:
    """The first wave of a workgroup."""

    def __init__(
        self, assembly: Assembly, arguments: Sequence[Any], workgroup: tuple[int, int, int]
    ) -> None:
        self.assembly = assembly
        self.executed: Counter[int] = Counter()
        self.words: dict[int, int | None] = {EXEC: 0xFFFFFFFF, EXEC + 1: 0xFFFFFFFF}
        self.scc: int | None = None
        self.memory: dict[int, int | None] = {}
        for place, value in zip(assembly.arguments, arguments, strict=True):
            for i in range(0, place.size, 4):
                word = value >> 8 * i & 0xFFFFFFFF if isinstance(value, int) else None
                self.memory[_KERNEL_ARGUMENTS + place.offset + i] = word
        descriptor = assembly.descriptor
        if not descriptor["user_sgpr_kernarg_segment_ptr"]:
            raise ValueError("the kernel has no pointer to its arguments")
        first = 2 * (descriptor["user_sgpr_dispatch_ptr"] + descriptor["user_sgpr_queue_ptr"])
        self._write((first, first + 1), _KERNEL_ARGUMENTS)
        register = descriptor["user_sgpr_count"]
        for axis, number in zip("xyz", workgroup, strict=True):
            if descriptor[f"system_sgpr_workgroup_id_{axis}"]:
                self._write((register,), number)
                register += 1

    def run(self) -> Counter[int]:
        """How often it executes each instruction of the kernel."""
        at, instructions = 0, self.assembly.instructions
        for _ in range(_LIMIT):
            instruction = instructions[at]
            self.executed[at] += 1
            if instruction.mnemonic == "s_endpgm":
                return self.executed
            at = self._next(at, instruction)
        raise UnknownBranch("the kernel does not end")

    def _next(self, at: int, instruction: Instruction) -> int:
        label = instruction.target
        if label is None:
            if instruction.mnemonic.startswith(("s_setpc", "s_swappc", "s_call")):
                raise UnknownBranch(instruction.text)
            self._execute(instruction)
            return at + 1
        to = self.assembly.labels[label]
        return to if self._taken(instruction, backwards=to <= at) else at + 1

    def _taken(self, instruction: Instruction, backwards: bool) -> bool:
        if instruction.mnemonic == "s_branch":
            return True
        name, wanted = _BRANCHES[instruction.mnemonic]
        value = self.scc if name == "scc" else self._read(name, 64)
        if value is not None:
            return bool(value) is wanted
        if name == "exec" and not backwards:
            return False
        raise UnknownBranch(instruction.text)

    def _read(self, operand: str, bits: int) -> int | None:
        if found := registers(operand):
            words = [self.words.get(r) for r in found[: bits // 32]]
            return _join(words)
        try:
            return int(operand, 0) & ((1 << bits) - 1)
        except ValueError:
            return None

    def _write(self, where: Sequence[int], value: int | None) -> None:
        for i, register in enumerate(where):
            self.words[register] = None if value is None else value >> 32 * i & 0xFFFFFFFF

    def _execute(self, instruction: Instruction) -> None:
        name, operands = instruction.mnemonic, instruction.operands
        written = [r for o in operands[: 1 + bool(_CARRIES.match(name))] for r in registers(o)]
        if name.startswith("v_cmpx"):
            written += _NAMED["exec"]
        if instruction.kind == "smem":
            self._load(operands, written)
        elif instruction.kind == "salu":
            self._scalar(name, operands, written)
        else:
            self._write(written, None)

    def _load(self, operands: Sequence[str], written: Sequence[int]) -> None:
        base, offset = self._read(operands[1], 64), self._read(operands[2], 32)
        for i, register in enumerate(written):
            if base is None or offset is None:
                self.words[register] = None
            else:
                self.words[register] = self.memory.get(base + offset + 4 * i)

    def _scalar(self, name: str, operands: Sequence[str], written: Sequence[int]) -> None:
        if name.endswith("_saveexec_b64"):
            self._save_exec(name, operands[1], written)
            return
        compares = name.startswith(("s_cmp", "s_bitcmp"))
        if not (written or compares):
            return  # it only waits, or sets a mode
        sources = list(operands if compares else operands[1:])
        if found := re.fullmatch(r"(s_(?:mov|add|mul|cmp))k(\w*_([iu])32)", name):
            name = found[1] + found[2]
            if found[3] == "i":
                sources[-1] = str((int(sources[-1], 0) ^ 0x8000) - 0x8000)  # 16 bits, signed
            if name in ("s_add_i32", "s_mul_i32"):
                sources.insert(0, operands[0])
        inputs = zip((*sources, "?")[:2], scalar.widths(name), strict=True)
        a, b = (self._read(operand, bits) for operand, bits in inputs)
        value, self.scc = scalar.evaluate(name, a, b, self.scc)
        if not compares:
            self._write(written, value)

    def _save_exec(self, name: str, operand: str, written: Sequence[int]) -> None:
        before, other = self._read("exec", 64), self._read(operand, 64)
        after, self.scc = scalar.evaluate(name.replace("_saveexec", ""), other, before, self.scc)
        self._write(written, before)
        self._write(_NAMED["exec"], after)


def _join(words: Sequence[int | None]) -> int | None:
    value = 0
    for i, word in enumerate(words):
        if word is None:
            return None
        value |= word << 32 * i
    return value


@dataclass(frozen=True)
class Executed:
    """Instructions that are executed.

    Attributes:
        wave: by the wave that executes the most.
        workgroups: by one wave of every workgroup, together.
    """

    wave: int
    workgroups: int


def executed(assembly: Assembly, arguments: Sequence[Any], grid: tuple[int, int, int]) -> Executed:
    """Count for a launch; all workgroups are followed only where those at the corners differ."""

    def counts(axes: Sequence[Sequence[int]]) -> list[int]:
        walks = (Wave(assembly, arguments, (x, y, z)) for x, y, z in itertools.product(*axes))
        return [wave.run().total() for wave in walks]

    found = counts([sorted({0, n - 1}) for n in grid])
    if len(set(found)) > 1:
        found = counts([range(n) for n in grid])
        return Executed(max(found), sum(found))
    return Executed(found[0], found[0] * grid[0] * grid[1] * grid[2])
