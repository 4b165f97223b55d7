"""A wave with one buffer to load from and store to."""

from __future__ import annotations

import numpy as np
import torch

from .emulator.memory import Memory
from .emulator.wave import Wave
from .single import wave

M32 = (1 << 32) - 1
LANE = np.arange(64)
OLD = 0x55667788


def octets(count: int = 4096) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(7).integers(0, 256, count, dtype=np.uint8))


def buffer_wave(data: torch.Tensor, offsets: object, records: int = 1 << 30, **more: int) -> Wave:
    """v0: offsets; s[0:3]: the descriptor of `data`; s[4:5]: its address; s6: 8."""
    memory = Memory()
    base = memory.address_of(data, "the data")
    scalars = {0: base & M32, 1: base >> 32, 2: records, 3: 0x27000}
    scalars |= {4: base & M32, 5: base >> 32, 6: 8}
    vector = {0: offsets, 4: OLD, 5: OLD, 6: OLD, 7: OLD}
    return wave(vector, scalars, memory=memory, **more)  # type: ignore[arg-type]


def expected(data: torch.Tensor, offsets: np.ndarray, size: int) -> list[int]:
    raw = data.numpy().tobytes()
    return [int.from_bytes(raw[o : o + size], "little") for o in offsets.tolist()]
