"""Operands of an instruction as the text writes them."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, replace
from typing import Literal

from .errors import EmulationError

Kind = Literal["v", "a", "s", "const", "float", "scc", "vccz", "execz", "off", "label"]

VCC, M0, EXEC, SGPRS = 106, 124, 126, 128

# Scalar registers with a name: where they lie in the register file, and how many.
NAMED = {
    "flat_scratch": (102, 2),
    "xnack_mask": (104, 2),
    "vcc": (VCC, 2),
    "vcc_lo": (VCC, 1),
    "vcc_hi": (VCC + 1, 1),
    "m0": (M0, 1),
    "exec": (EXEC, 2),
    "exec_lo": (EXEC, 1),
    "exec_hi": (EXEC + 1, 1),
}
CONDITIONS: dict[str, Kind] = {
    "src_scc": "scc",
    "src_vccz": "vccz",
    "src_execz": "execz",
}
INLINE_FLOATS = {0.5, 1.0, 2.0, 4.0}
INVERSE_2PI = 0.15915494  # as the assembler prints 1 / (2 pi)

_REGISTER = re.compile(r"([vsa])(?:(\d+)|\[(\d+)(?::(\d+))?\])")
_INTEGER = re.compile(r"-?(?:0x[0-9a-fA-F]+|\d+)")
_FLOAT = re.compile(r"-?\d+\.\d+")


@dataclass(frozen=True)
class Operand:
    """A register range, a constant or a name, with the modifiers written around it."""

    text: str
    kind: Kind
    index: int = 0
    count: int = 1
    value: int = 0
    number: float = 0.0
    neg: bool = False
    abs: bool = False
    sext: bool = False

    @property
    def constant(self) -> bool:
        return self.kind in ("const", "float")

    def bits(self, type_: str) -> int:
        """The bit pattern of a constant where an operand of `type_` is expected."""
        width = 64 if type_.endswith("64") else 32
        if self.kind == "const":
            # A literal of a 64-bit float is its upper half; inline integers keep their value.
            if type_ == "f64" and not -16 <= self.value <= 64:
                return (self.value & 0xFFFFFFFF) << 32
            return self.value & ((1 << width) - 1)
        if abs(self.number) not in INLINE_FLOATS | {INVERSE_2PI}:
            raise EmulationError(f"{self.text} is no inline constant")
        code = {"16": "<H", "64": "<Q"}.get(type_[-2:], "<I")
        if abs(self.number) == INVERSE_2PI:
            pattern = {"<H": 0x3118, "<I": 0x3E22F983, "<Q": 0x3FC45F306DC9C882}[code]
            sign = 1 << (8 * struct.calcsize(code) - 1)
            return pattern | (sign if self.number < 0 else 0)
        packed = struct.pack({"<H": "<e", "<I": "<f", "<Q": "<d"}[code], self.number)
        return int(struct.unpack(code, packed)[0])


def parse_operand(text: str) -> Operand:
    """One operand, e.g. `v[0:3]`, `-|s4|`, `sext(v1)`, `vcc`, `0x7f`, `0.5`, `off`, `.LBB0_1`."""
    inner, marks = text, {"neg": False, "abs": False, "sext": False}
    while True:
        if inner.startswith("|") and inner.endswith("|") and len(inner) > 2:
            inner, marks["abs"] = inner[1:-1], True
        elif wrapped := re.fullmatch(r"(neg|abs|sext)\((.*)\)", inner):
            inner, marks[wrapped[1]] = wrapped[2], True
        elif inner.startswith("-") and not (_INTEGER.fullmatch(inner) or _FLOAT.fullmatch(inner)):
            inner, marks["neg"] = inner[1:], True
        else:
            break
    return replace(_bare(inner, text), neg=marks["neg"], abs=marks["abs"], sext=marks["sext"])


def _bare(inner: str, text: str) -> Operand:
    if register := _REGISTER.fullmatch(inner):
        kind, single, first, last = register.groups()
        start = int(single or first)
        kinds: dict[str, Kind] = {"v": "v", "s": "s", "a": "a"}
        return Operand(text, kinds[kind], start, int(last or start) - start + 1)
    if inner in NAMED:
        return Operand(text, "s", *NAMED[inner])
    if inner in CONDITIONS:
        return Operand(text, CONDITIONS[inner])
    if inner == "off":
        return Operand(text, "off")
    if _INTEGER.fullmatch(inner):
        return Operand(text, "const", value=int(inner, 0))
    if _FLOAT.fullmatch(inner):
        return Operand(text, "float", number=float(inner))
    if inner.startswith("."):
        return Operand(inner, "label")
    raise EmulationError(f"unknown operand {text!r}")
