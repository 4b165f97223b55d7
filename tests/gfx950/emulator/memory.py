"""Global memory: every buffer far from every other, every access checked against its bounds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from .errors import EmulationError
from .wave import Row

# Buffer k lies in the middle of its own 2**SPACING addresses, so that one outside of it is in none.
SPACING = 40

Mask = npt.NDArray[np.bool_]


class Octets:
    """Bytes, also seen as rows of words."""

    def __init__(self, data: npt.NDArray[np.uint8]) -> None:
        self.data = data
        self._rows: dict[int, npt.NDArray[np.uint32]] = {}

    def words(self, width: int) -> npt.NDArray[np.uint32]:
        """Rows of `width` words, without an incomplete one at the end."""
        if width not in self._rows:
            whole = self.data[: len(self.data) // (4 * width) * 4 * width]
            self._rows[width] = whole.view(np.uint32).reshape(-1, width)
        return self._rows[width]

    def gather(self, offsets: Row, size: int) -> Row:
        """`size` bytes at each offset as words `[words, lanes]`."""
        if size < 4:
            value = self.data[offsets].astype(np.uint32)
            if size == 2:
                value |= self.data[offsets + 1].astype(np.uint32) << np.uint32(8)
            return value[None]
        if size in (8, 16) and not (offsets & (size - 1)).any():
            return np.take(self.words(size // 4), offsets // size, axis=0).T
        where = np.add.outer(np.arange(size // 4), offsets >> 2)
        return np.take(self.words(1)[:, 0], where)


@dataclass
class Buffer:
    """Bytes at an address, under the name that messages give them."""

    name: str
    base: int
    octets: Octets
    writable: bool = True
    # Which workgroup (counted from 1) wrote a byte in this launch; made with the first store.
    owner: npt.NDArray[np.int32] | None = None

    @property
    def size(self) -> int:
        return len(self.octets.data)


class Memory:
    """The buffers of one launch."""

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        self._known: dict[int, Buffer] = {}
        self.workgroup = 1

    def add(self, name: str, data: npt.NDArray[np.uint8], writable: bool = True) -> Buffer:
        base = (2 * len(self.buffers) + 3) << SPACING - 1
        buffer = Buffer(name, base, Octets(data), writable)
        self.buffers.append(buffer)
        return buffer

    def address_of(self, tensor: torch.Tensor, name: str) -> int:
        """The address of a tensor's first element; its whole storage becomes one buffer."""
        storage = tensor.untyped_storage()
        key = storage.data_ptr()
        if key not in self._known or not key:
            whole = torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),), (1,))
            self._known[key] = self.add(name, whole.numpy())
        return self._known[key].base + int(tensor.storage_offset()) * tensor.element_size()

    def locate(self, addresses: Row, mask: Mask, size: int, what: str) -> tuple[Buffer, Row]:
        """The one buffer that the active lanes address, and every lane's offset in it.

        Inactive lanes get the offset of the first active one.
        """
        first = int(mask.argmax())
        if not mask.all():
            addresses = np.where(mask, addresses, addresses[first])
        number = (int(addresses[first]) >> SPACING) - 1
        if not 0 <= number < len(self.buffers):
            raise EmulationError(f"{what} of address {int(addresses[first]):#x}, lane {first}")
        buffer = self.buffers[number]
        offsets = addresses - buffer.base
        if int(offsets.min()) < 0 or int(offsets.max()) + size > buffer.size:
            wrong = (offsets < 0) | (offsets + size > buffer.size)
            lane = int(wrong.argmax())
            raise EmulationError(
                f"{what} of {size} bytes at offset {int(offsets[lane])} of {buffer.name}, "
                f"which has {buffer.size} bytes, lane {lane}"
            )
        if size >= 4 and (offsets & 3).any():
            raise EmulationError(f"{what} of {size} bytes in {buffer.name} is not 4-byte aligned")
        return buffer, offsets

    def load(self, addresses: Row, mask: Mask, size: int) -> Row:
        """`size` bytes a lane as words `[words, 64]`; what inactive lanes get means nothing."""
        buffer, offsets = self.locate(addresses, mask, size, "load")
        if buffer.owner is not None:
            owners = buffer.owner[byte_offsets(offsets, size)]
            if ((owners != 0) & (owners != self.workgroup)).any():
                raise EmulationError(f"load of what another workgroup stored in {buffer.name}")
        return buffer.octets.gather(offsets, size)

    def store(self, addresses: Row, mask: Mask, size: int, words: Row) -> None:
        """Store the low `size` bytes of words `[words, 64]` of the active lanes."""
        buffer, offsets = self.locate(addresses, mask, size, "store")
        if not buffer.writable:
            raise EmulationError(f"store to {buffer.name}")
        octets = np.ascontiguousarray(words.T).view(np.uint8)[:, :size]
        where, data = byte_offsets(offsets, size), buffer.octets.data
        if not mask.all():
            octets, where = octets[mask], where[mask]
        if buffer.owner is None:
            buffer.owner = np.zeros(buffer.size, np.int32)
        owners = buffer.owner[where]
        foreign = (owners != 0) & (owners != self.workgroup)
        if foreign.any() and (data[where] != octets)[foreign].any():
            raise EmulationError(f"two workgroups store different values in {buffer.name}")
        data[where] = octets
        buffer.owner[where] = self.workgroup
        if (data[where] != octets).any():
            raise EmulationError(f"two lanes store different values in {buffer.name}")


def byte_offsets(offsets: Row, size: int) -> Row:
    """The offsets of `size` bytes a lane, `[lanes, size]`."""
    return np.add.outer(offsets, np.arange(size))
