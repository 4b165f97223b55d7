"""The amdgcn text of a kernel, taken apart."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache

_VECTOR_MEMORY = ("buffer_", "global_", "flat_")
_CROSS_LANE = ("v_permlane", "v_readlane", "v_writelane")
_LDS_CROSS_LANE = ("ds_bpermute", "ds_permute", "ds_swizzle")

# The first prefix that fits decides.
_CLASSES = (
    ("mfma", ("v_mfma", "v_smfma")),
    ("cvt", ("v_cvt_scalef32",)),
    ("xlane", (*_CROSS_LANE, *_LDS_CROSS_LANE)),
    ("valu", ("v_",)),
    ("scratch", ("scratch_",)),
    ("vmem", _VECTOR_MEMORY),
    ("lds_read", ("ds_read",)),
    ("lds_write", ("ds_write",)),
    ("lds_other", ("ds_",)),
    ("wait", ("s_waitcnt", "s_nop")),
    ("barrier", ("s_barrier",)),
    ("branch", ("s_cbranch", "s_branch", "s_endpgm")),
    ("smem", ("s_load", "s_buffer_load")),
    ("salu", ("s_",)),
)

CLASSES = tuple(name for name, _ in _CLASSES)
"""What `Instruction.kind` can be."""


@dataclass(frozen=True)
class Instruction:
    """One instruction: `s_add_u32`, `("s0", "s1", "4")`."""

    text: str
    mnemonic: str
    operands: tuple[str, ...]

    @classmethod
    def parse(cls, line: str) -> Instruction:
        mnemonic, _, rest = line.partition(" ")
        operands = re.split(r",\s*(?![^\[]*\])", rest.strip())
        return cls(line, mnemonic, tuple(o.split()[0] for o in operands if o))

    @cached_property
    def kind(self) -> str:
        """What it keeps busy, one of `CLASSES`."""
        if self.mnemonic.endswith("_dpp"):
            return "xlane"
        for name, prefixes in _CLASSES:
            if self.mnemonic.startswith(prefixes):
                return name
        raise ValueError(f"what kind of instruction is {self.text!r}?")

    @property
    def target(self) -> str | None:
        """The label that a branch leads to."""
        return self.operands[-1] if self.mnemonic.startswith(("s_cbranch", "s_branch")) else None


@dataclass(frozen=True)
class Argument:
    """A place in the kernel's table of arguments."""

    offset: int
    size: int
    pointer: bool


@dataclass(frozen=True)
class Assembly:
    """A kernel.

    Attributes:
        labels: where each points, as an index of `instructions`.
        descriptor: the numbers of the `.amdhsa_` lines.
        metadata: the numbers of the `.amdgpu_metadata`, without those of the arguments.
    """

    name: str
    instructions: tuple[Instruction, ...]
    labels: dict[str, int]
    descriptor: dict[str, int]
    metadata: dict[str, int]
    arguments: tuple[Argument, ...]

    @classmethod
    @lru_cache(maxsize=64)
    def parse(cls, text: str) -> Assembly:
        """From a module with a single kernel."""
        name = _only(re.findall(r"^\s*\.amdhsa_kernel\s+(\S+)", text, re.M), "kernel")
        body = re.split(rf"^{re.escape(name)}:", text, maxsplit=1, flags=re.M)[1]
        instructions: list[Instruction] = []
        labels: dict[str, int] = {}
        for raw in body.split(".Lfunc_end", 1)[0].splitlines():
            line = re.split(";|//", raw, maxsplit=1)[0].strip()
            if line.endswith(":"):
                labels[line[:-1]] = len(instructions)
            elif line and not line.startswith("."):
                instructions.append(Instruction.parse(line))
        table = text.split(".amdgpu_metadata", 1)[1]
        return cls(
            name=name,
            instructions=tuple(instructions),
            labels=labels,
            descriptor=_numbers(re.findall(r"^\s*\.amdhsa_(\w+)\s+(\d+)\s*$", text, re.M)),
            metadata=_numbers(re.findall(r"^(?:  - |    )\.(\w+):\s+(\d+)$", table, re.M)),
            arguments=_arguments(table),
        )

    @cached_property
    def main(self) -> range:
        """The instructions of the innermost loop with the most MFMAs; all where no loop has any."""
        loops = [
            range(start, end + 1)
            for end, instruction in enumerate(self.instructions)
            if (start := self.labels.get(instruction.target or "", end + 1)) <= end
        ]
        innermost = [
            a for a in loops if not any(b != a and b[0] >= a[0] and b[-1] <= a[-1] for b in loops)
        ]
        best = max(innermost, key=self._mfmas, default=range(0))
        return best if self._mfmas(best) else range(len(self.instructions))

    @property
    def has_loop(self) -> bool:
        """Whether `main` is a loop."""
        return len(self.main) < len(self.instructions)

    def _mfmas(self, where: range) -> int:
        return sum(self.instructions[i].kind == "mfma" for i in where)


def _only(found: list[str], what: str) -> str:
    if len(found) != 1:
        raise ValueError(f"one {what} is expected, found {found}")
    return found[0]


def _numbers(pairs: list[tuple[str, str]]) -> dict[str, int]:
    return {name: int(value) for name, value in pairs}


def _arguments(table: str) -> tuple[Argument, ...]:
    found = re.findall(r"\.offset:\s+(\d+)\s+\.size:\s+(\d+)\s+\.value_kind:\s+(\w+)", table)
    return tuple(Argument(int(o), int(s), kind == "global_buffer") for o, s, kind in found)
