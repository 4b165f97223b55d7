"""The text of one kernel: instructions, labels, descriptor and argument table."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from .errors import EmulationError
from .operands import Operand, parse_operand

# Directives that may stand between instructions: they place no byte that is executed.
_HARMLESS = re.compile(r"\.(loc|file|cfi_\w+|p2align|p2alignl|set|size|type|globl|text)\b")
_SUFFIX = re.compile(r"_(e32|e64|sdwa|dpp|e64_dpp)$")


@dataclass(frozen=True)
class Instruction:
    """One instruction with its operands and modifiers, e.g. `{"offset": "16", "offen": ""}`."""

    line: int
    text: str
    mnemonic: str
    operands: tuple[Operand, ...]
    modifiers: dict[str, str]
    encoding: str = ""

    def modifier(self, name: str, default: int = 0) -> int:
        """An integer modifier."""
        return int(self.modifiers[name], 0) if name in self.modifiers else default

    def flags(self, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
        """A modifier that is a list, `default` filling what it leaves off."""
        given = [int(x, 0) for x in self.modifiers.get(name, "").strip("[]").split(",") if x]
        if len(given) > len(default):
            raise EmulationError(f"{name} has more than {len(default)} entries")
        return (*given, *default[len(given) :])


@dataclass(frozen=True)
class Argument:
    """One row of the kernel's argument table."""

    offset: int
    size: int
    kind: str


@dataclass(frozen=True)
class Kernel:
    """A kernel as the text holds it."""

    name: str
    instructions: tuple[Instruction, ...]
    labels: dict[str, int]
    preloaded_entry: int | None
    descriptor: dict[str, int]
    arguments: tuple[Argument, ...]

    def field(self, name: str) -> int:
        """A value of the kernel descriptor, 0 where the text does not name it."""
        return self.descriptor.get(name, 0)


def parse_kernel(text: str, name: str | None = None) -> Kernel:
    """The kernel `name` of `text`, or its only one."""
    names = re.findall(r"^\s*\.amdhsa_kernel\s+(\S+)", text, re.M)
    if name is None and len(names) != 1:
        raise EmulationError(f"the text holds the kernels {names}; name one")
    if not re.search(r"^\s*\.amdgcn_target \"[^\"]*-gfx950\"", text, re.M):
        raise EmulationError("the text is not for gfx950")
    name = name or names[0]
    block = re.search(
        rf"^\s*\.amdhsa_kernel\s+{re.escape(name)}$(.*?)^\s*\.end_amdhsa_kernel", text, re.M | re.S
    )
    if block is None:
        raise EmulationError(f"no kernel {name}")
    descriptor = {k: int(v, 0) for k, v in re.findall(r"\.amdhsa_(\w+)\s+(\w+)", block[1])}
    instructions, labels, entry = _body(text, name)
    return Kernel(name, instructions, labels, entry, descriptor, _arguments(text, name))


def _arguments(text: str, name: str) -> tuple[Argument, ...]:
    metadata = text.partition(".amdgpu_metadata")[2].partition(".end_amdgpu_metadata")[0]
    for kernel in re.split(r"^  - ", metadata, flags=re.M)[1:]:
        if re.search(rf"^    \.name:\s+{re.escape(name)}$", kernel, re.M):
            rows = re.split(r"^      - ", kernel.partition(".args:")[2], flags=re.M)[1:]
            fields = [
                dict(re.findall(r"\.(\w+):\s+(\S+)", row.split("\n    .")[0])) for row in rows
            ]
            return tuple(
                Argument(int(f["offset"]), int(f["size"]), f["value_kind"]) for f in fields
            )
    raise EmulationError(f"no metadata of {name}")


def _lines(text: str, name: str) -> Iterator[tuple[int, str]]:
    """The numbered lines of the kernel's body, without comments."""
    inside = False
    for number, raw in enumerate(text.splitlines(), 1):
        line = re.split(r";|//", raw, maxsplit=1)[0].strip()
        if line.startswith((".Lfunc_end", ".section")):
            if inside:
                return
        elif inside and line:
            yield number, line
        elif line == f"{name}:":
            inside = True


def _body(text: str, name: str) -> tuple[tuple[Instruction, ...], dict[str, int], int | None]:
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    entry = None
    for number, line in _lines(text, name):
        if label := re.fullmatch(r"([.\w$]+):", line):
            labels[label[1]] = len(instructions)
        elif line.startswith("."):
            if not _HARMLESS.match(line):
                raise EmulationError(f"line {number}: unknown directive {line!r}")
            # Arguments that arrive in registers: execution begins 256 bytes on, after the code
            # that loads them where the firmware does not.
            if entry is None and line.split() == [".p2align", "8"]:
                entry = len(instructions)
        else:
            try:
                instructions.append(parse_instruction(line, number))
            except EmulationError as error:
                raise EmulationError(f"line {number}: {line}: {error}") from None
    if not instructions:
        raise EmulationError(f"no instructions of {name}")
    return tuple(instructions), labels, entry


def parse_instruction(line: str, number: int = 0) -> Instruction:
    """One line of assembly."""
    mnemonic, _, rest = line.partition(" ")
    mnemonic, _, tail = mnemonic.partition("\t")
    encoding = suffix[1] if (suffix := _SUFFIX.search(mnemonic)) else ""
    base = _SUFFIX.sub("", mnemonic)
    operands, modifiers = _split_operands(base, f"{tail} {rest}".strip())
    return Instruction(number, line, base, operands, modifiers, encoding)


def _split_operands(mnemonic: str, rest: str) -> tuple[tuple[Operand, ...], dict[str, str]]:
    if mnemonic == "s_waitcnt":
        return (), _wait_counts(rest)
    chunks = _split(rest, ",")
    words = [_split(chunk, " ") for chunk in chunks]
    if any(len(w) != 1 for w in words[:-1]):
        raise EmulationError("operands without a comma between them")
    operands = [w[0] for w in words]
    modifiers: dict[str, str] = {}
    for word in words[-1][1:] if words else []:
        key, _, value = word.partition(":")
        if key in modifiers:
            raise EmulationError(f"{key} twice")
        modifiers[key] = value
    return tuple(parse_operand(o) for o in operands), modifiers


def _split(text: str, separator: str) -> list[str]:
    """Split outside of brackets, dropping what is empty."""
    parts, depth = [""], 0
    for char in text:
        depth += (char in "([") - (char in ")]")
        if char == separator and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return [p.strip() for p in parts if p.strip()]


def _wait_counts(rest: str) -> dict[str, str]:
    """`vmcnt(3) lgkmcnt(0)`, or the encoded number."""
    if re.fullmatch(r"0x[0-9a-fA-F]+|\d+", rest):
        code = int(rest, 0)
        vm = (code & 15) | (code >> 14 & 3) << 4
        counts = {"vmcnt": vm, "expcnt": code >> 4 & 7, "lgkmcnt": code >> 8 & 15}
        return {k: str(v) for k, v in counts.items()}
    found = re.findall(r"(\w+)\((\d+)\)", rest)
    if re.sub(r"\w+\(\d+\)|[\s&,]", "", rest) or not found:
        raise EmulationError(f"unknown wait {rest!r}")
    return dict(found)
