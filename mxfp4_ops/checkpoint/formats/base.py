"""What a file format has to say of itself, and what formats with pairs of tensors share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from ..entries import BYTES, Entry, Mxfp4Weight, Settings, pair_entry, plain_entry
from ..source import Source


class Format(ABC):
    """A way to store MXFP4 weights in files."""

    name: ClassVar[str]

    @abstractmethod
    def stated(self, source: Source) -> str | None:
        """What says in config.json or the files' metadata that this is the format, or None."""

    @abstractmethod
    def seen(self, source: Source) -> str | None:
        """A tensor whose name and dtype are those of this format, or None."""

    @abstractmethod
    def entries(self, source: Source) -> dict[str, Entry]:
        """What the files hold, by name.

        Raises:
            ValueError: something is missing or of another kind; the message names file and tensor.
        """

    def read(self, source: Source, entry: Entry) -> Mxfp4Weight:
        """A quantised weight in the plain layout."""
        codes, scales = (source.read(part).view(torch.uint8) for part in entry.parts)
        return self.plain(codes, scales)

    def plain(self, codes: Tensor, scales: Tensor) -> Mxfp4Weight:
        """The plain layout of what the file holds."""
        return Mxfp4Weight(codes, scales)

    def settings(self, source: Source) -> Settings:
        """How the layers are meant to run."""
        return Settings()

    def excluded(self, source: Source) -> list[str]:
        """Modules that the configuration leaves in float, as far as it names them in full."""
        return []


class Ends(NamedTuple):
    """How the names of codes, scales and the weight itself end, after a common stem."""

    codes: str
    scales: str
    weight: str


class PairFormat(Format):
    """A format that holds a weight as two tensors, codes and scales."""

    ends: ClassVar[tuple[Ends, ...]]

    def entry(self, source: Source, weight: str, codes: str, scales: str) -> Entry:
        return pair_entry(weight, (codes, source.tensors[codes]), (scales, source.tensors[scales]))

    def seen(self, source: Source) -> str | None:
        for name in source.tensors:
            partner = self._partner(name)
            if partner and is_bytes(source, name) and is_bytes(source, partner.scales):
                return name
        return None

    def entries(self, source: Source) -> dict[str, Entry]:
        found: dict[str, Entry] = {}
        used: set[str] = set()
        for name in source.tensors:
            pair = self._partner(name)
            if pair is None or not self._must_be_codes(source, pair):
                continue
            check_pair(source, pair)
            found[pair.weight] = self.entry(source, pair.weight, pair.codes, pair.scales)
            used |= {pair.codes, pair.scales}
        for name, tensor in source.tensors.items():
            if name not in used:
                self._check_alone(source, name)
                found[name] = plain_entry(name, tensor)
        return found

    def _partner(self, codes: str) -> Ends | None:
        """The three names, if this one may be that of codes."""
        for ends in self.ends:
            if codes.endswith(ends.codes):
                stem = codes.removesuffix(ends.codes)
                return Ends(codes, stem + ends.scales, stem + ends.weight)
        return None

    def _must_be_codes(self, source: Source, pair: Ends) -> bool:
        return True

    def _check_alone(self, source: Source, name: str) -> None:
        """A tensor that belongs to no pair must not be the scales of one."""
        for ends in self.ends:
            if name.endswith(ends.scales):
                stem = name.removesuffix(ends.scales)
                weight = stem + ends.weight
                if weight in source.tensors:
                    raise other_scheme(source, weight, name)
                raise missing(source, name, stem + ends.codes)


def is_bytes(source: Source, name: str) -> bool:
    tensor = source.tensors.get(name)
    return tensor is not None and tensor.dtype in BYTES


def check_pair(source: Source, pair: Ends) -> None:
    if pair.scales not in source.tensors:
        raise missing(source, pair.codes, pair.scales)
    if not (is_bytes(source, pair.codes) and is_bytes(source, pair.scales)):
        raise other_scheme(source, pair.codes, pair.scales)


def missing(source: Source, name: str, partner: str) -> ValueError:
    return ValueError(f"{source.tensors[name].file}: {name} is there, but {partner} is missing")


def other_scheme(source: Source, name: str, partner: str) -> ValueError:
    tensor, other = source.tensors[name], source.tensors[partner]
    return ValueError(
        f"{tensor.file}: {name} ({tensor.dtype}) and {partner} ({other.dtype}) are quantised, but "
        "not as MXFP4, whose codes and scales are both bytes (U8)"
    )
