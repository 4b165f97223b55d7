"""The segment of memory that holds a kernel's arguments."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from .errors import EmulationError
from .memory import Memory
from .parse import Argument, Kernel
from .wave import LANES

Value = torch.Tensor | int | float | None


def hidden_values(grid: Sequence[int], num_warps: int) -> dict[str, int]:
    """What a launch adds to the arguments, by its kind in the table; the rest of it is 0."""
    sizes = (*grid, 1, 1)[:3]
    group = (num_warps * LANES, 1, 1)
    return {
        f"hidden_{name}_{axis}": value
        for name, values in (("block_count", sizes), ("group_size", group))
        for axis, value in zip("xyz", values, strict=True)
    }


def place(
    kernel: Kernel, arguments: Sequence[Value], memory: Memory, hidden: Mapping[str, int]
) -> int:
    """Put the arguments into memory; the address of their segment."""
    rows = [row for row in kernel.arguments if not row.kind.startswith("hidden_")]
    given = [value for value in arguments[len(rows) :] if value is not None]
    if given:
        raise EmulationError(f"{len(arguments)} arguments for the {len(rows)} of {kernel.name}")
    values: list[Value] = [*arguments, *[None] * len(rows)][: len(rows)]
    data = np.zeros(max(kernel.field("kernarg_size"), 1), np.uint8)
    segment = memory.add("the kernel's arguments", data, writable=False)
    packed = [
        _pack(value, row, f"argument {i}", memory)
        for i, (row, value) in enumerate(zip(rows, values, strict=True))
    ]
    others = [row for row in kernel.arguments if row.kind.startswith("hidden_")]
    packed += [hidden.get(row.kind, 0).to_bytes(row.size, "little") for row in others]
    for row, octets in zip((*rows, *others), packed, strict=True):
        data[row.offset : row.offset + row.size] = np.frombuffer(octets, np.uint8)
    return segment.base


def _pack(value: Value, row: Argument, name: str, memory: Memory) -> bytes:
    pointer, size = row.kind == "global_buffer", row.size
    if not pointer and row.kind != "by_value":
        raise EmulationError(f"{name} is a {row.kind}")
    if isinstance(value, torch.Tensor):
        if not pointer or value.device.type != "cpu":
            raise EmulationError(f"{name}: a tensor on {value.device} for {row.kind}")
        return memory.address_of(value, name).to_bytes(8, "little")
    if value is None:
        return bytes(size)
    if pointer:
        raise EmulationError(f"{name} is a pointer, not {value}")
    if isinstance(value, float):
        return struct.pack({2: "<e", 4: "<f", 8: "<d"}[size], value)
    return (value & ((1 << 8 * size) - 1)).to_bytes(size, "little")
