"""The LDS of one workgroup: bounds, undefined bytes, and races between its waves.

Between two barriers a byte that one wave writes belongs to that wave alone, and a byte that waves
read may not be written by another. An operation that its wave has not waited for when it reaches a
barrier may still happen after it, and counts on both sides.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from .errors import EmulationError
from .memory import Mask, Octets, byte_offsets
from .wave import Pending, Row, Wave

SEVERAL = 255  # more than one wave has read a byte


class Lds:
    """Bytes shared by the waves of a workgroup."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.octets, self.undefined = self._plane(), self._plane()
        # The wave, counted from 1, that wrote or read a byte since the last barrier.
        self.written, self.read = self._plane(), self._plane()
        self.loading = self._plane()  # bytes that loads will write that bypass the registers
        self.in_flight = 0  # such loads
        self.reset()

    def _plane(self) -> Octets:
        return Octets(np.zeros(-(-self.size // 16) * 16, np.uint8))

    def reset(self) -> None:
        """As a workgroup finds it."""
        self.octets.data.fill(0xAD)
        self.undefined.data.fill(0xFF)
        self.in_flight = 0
        for plane in (self.written, self.read, self.loading):
            plane.data.fill(0)

    def release(self, waves: Iterable[Wave]) -> None:
        """A barrier that every wave has reached: forget accesses but those still under way."""
        self.written.data.fill(0)
        self.read.data.fill(0)
        for wave in waves:
            for pending in (*wave.ds, *wave.vm):
                if pending.lds is not None:
                    where, write = pending.lds
                    self._mark(self.written if write else self.read, where, wave.number + 1)

    @staticmethod
    def _mark(plane: Octets, where: Row, wave: int) -> None:
        old = plane.data[where]
        plane.data[where] = np.where((old == 0) | (old == wave), wave, SEVERAL)

    def _offsets(self, addresses: Row, mask: Mask, size: int, what: str) -> Row:
        if not mask.all():
            addresses = np.where(mask, addresses, addresses[int(mask.argmax())])
        if int(addresses.min()) < 0 or int(addresses.max()) + size > self.size:
            lane = int(((addresses < 0) | (addresses + size > self.size)).argmax())
            raise EmulationError(
                f"LDS {what} of {size} bytes at {int(addresses[lane])}, "
                f"of which the workgroup has {self.size}, lane {lane}"
            )
        if (addresses & (min(size, 4) - 1)).any():
            raise EmulationError(f"LDS {what} of {size} bytes is not aligned")
        return addresses

    def load(
        self, wave: Wave, addresses: Row, mask: Mask, size: int
    ) -> tuple[Row, Row | None, tuple[Row, bool]]:
        """Words `[words, 64]`, their undefined bits if any, and the bytes for a `Pending`."""
        offsets = self._offsets(addresses, mask, size, "load")
        if self.in_flight:
            self._check(self.loading, offsets, size, 0, "read while a load into them flies")
        me = wave.number + 1
        self._check(self.written, offsets, size, me, "written by another wave since the barrier")
        where = byte_offsets(offsets, size)
        if not np.array_equal(self.read.gather(offsets, size), _pattern(me, size)):
            self._mark(self.read, where, me)
        undefined = self.undefined.gather(offsets, size)
        bad = undefined if undefined.any() else None
        return self.octets.gather(offsets, size), bad, (where, False)

    def store(
        self, wave: Wave, addresses: Row, mask: Mask, size: int, words: Row, undefined: Row | None
    ) -> tuple[Row, bool]:
        """Write the low `size` bytes of words `[words, 64]`; the bytes for a `Pending`."""
        offsets = self._offsets(addresses, mask, size, "store")
        if self.in_flight:
            self._check(self.loading, offsets, size, 0, "written while a load into them flies")
        me = wave.number + 1
        self._check(self.read, offsets, size, me, "read by another wave since the barrier")
        where = byte_offsets(offsets, size)
        octets, bad = _octets(words, size), _octets(undefined, size)
        if not mask.all():
            octets, bad, where = octets[mask], bad[mask], where[mask]
        data = self.octets.data
        owner = self.written.data[where]
        foreign = (owner != 0) & (owner != me)
        if foreign.any() and (data[where] != octets)[foreign].any():
            raise EmulationError("LDS bytes written by another wave since the barrier")
        data[where] = octets
        self.undefined.data[where] = bad
        self.written.data[where] = me
        if ((data[where] != octets) & (bad == 0)).any():
            raise EmulationError("two lanes store different values in the same bytes of LDS")
        return where, True

    def begin(self, wave: Wave, addresses: Row, mask: Mask, size: int, words: Row) -> Pending:
        """A load from global memory straight into LDS: the bytes change when it lands."""
        offsets = self._offsets(addresses, mask, size, "store")
        where, octets = byte_offsets(offsets, size)[mask], _octets(words, size)[mask]
        self._check(self.read, offsets, size, wave.number + 1, "read by another wave")
        self._check(self.written, offsets, size, wave.number + 1, "written by another wave")
        self.loading.data[where] += 1
        self.in_flight += 1

        def land() -> None:
            self.in_flight -= 1
            self.loading.data[where] -= 1
            self.octets.data[where] = octets
            self.undefined.data[where] = 0
            self.written.data[where] = wave.number + 1

        return Pending((), land, (where, True))

    @staticmethod
    def _check(plane: Octets, offsets: Row, size: int, me: int, what: str) -> None:
        """Fail unless the plane's bytes are 0 or `me`."""
        marks = plane.gather(offsets, size)
        if marks.any():
            octets = _octets(marks, size)
            wrong = ((octets != 0) & (octets != me)).any(axis=1)
            if wrong.any():
                lane = int(wrong.argmax())
                raise EmulationError(f"LDS bytes at {int(offsets[lane])} are {what}, lane {lane}")


def _pattern(me: int, size: int) -> Row:
    """What `gather` yields where every byte is `me`."""
    if size < 4:
        return np.full((1, 64), int.from_bytes(bytes([me]) * size, "little"), np.uint32)
    return np.full((size // 4, 64), me * 0x01010101, np.uint32)


def _octets(words: Row | None, size: int) -> Row:
    """The low `size` bytes of words `[words, lanes]` as `[lanes, size]`."""
    if words is None:
        return np.zeros((64, size), np.uint8)
    return np.ascontiguousarray(words.T).view(np.uint8)[:, :size]
