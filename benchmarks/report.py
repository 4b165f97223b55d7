"""What comes out of a measurement: rows, their shares of the limits, the table and the JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table

from .machine import WEIGHT_BITS, Limits, Machine
from .measure import Timing
from .peers import BASELINE, Peer


@dataclass(frozen=True)
class Implementation:
    """What was measured, or the reason why it was not.

    Attributes:
        bits: what an element of a weight takes, scales included.
        reason: why it was not measured, or None.
    """

    name: str
    weights: str
    activations: str
    bits: float
    detail: str
    reason: str | None

    @classmethod
    def of(cls, peer: Peer) -> Implementation:
        reason = peer.unavailable()
        return cls(peer.name, peer.weights, peer.activations, peer.bits, "", reason)


@dataclass(frozen=True)
class Row:
    """One product: weight `[n, k]`, `m` rows of activations.

    Attributes:
        bits: what an element of the weight takes.
        copies: of the weight, taken in turn.
        error: relative, of the worst copy.
        others_busy: share of the processors' time that other processes took meanwhile.
    """

    name: str
    m: int
    n: int
    k: int
    bits: float
    copies: int
    error: float
    others_busy: float | None
    timing: Timing

    @property
    def multiply_adds(self) -> float:
        """Per second."""
        return self.m * self.n * self.k / self.timing.median

    @property
    def intensity(self) -> float:
        """Multiply-adds for a byte of the weight."""
        return self.m * 8 / self.bits


@dataclass(frozen=True)
class Shares:
    """A row beside the baseline and the limits; None where one of these was not measured.

    Attributes:
        speedup: how many times as fast as the baseline.
        floor: the time below which a product by an MXFP4 weight cannot be done, of that taken.
        read: of the bandwidth of memory, counting the bytes of an MXFP4 weight; for one row only.
        multiply: of the multiply-adds that vectors do.
    """

    speedup: float | None
    floor: float | None
    read: float | None
    multiply: float | None


@dataclass(frozen=True)
class Report:
    """All that is saved.

    Attributes:
        seconds: of timed calls, asked for.
        rotated_bytes: size of the copies of a weight together, asked for.
    """

    machine: Machine
    limits: Limits | None
    seconds: float
    rotated_bytes: int
    implementations: list[Implementation]
    rows: list[Row]
    notes: list[str]

    def shares(self, row: Row) -> Shares:
        time, shape = row.timing.median, (row.m, row.n, row.k)
        baseline = [
            other.timing.median
            for other in self.rows
            if other.name == BASELINE and (other.m, other.n, other.k) == shape
        ]
        floor = read = multiply = None
        if self.limits is not None:
            best = self.limits.floor(*shape)
            floor = best / time if best else None
            if row.m == 1:
                read = row.n * row.k * WEIGHT_BITS / 8 / time / self.limits.read
            if self.limits.vector_multiply is not None:
                multiply = row.multiply_adds / self.limits.vector_multiply
        return Shares(baseline[0] / time if baseline else None, floor, read, multiply)

    def save(self, path: Path) -> None:
        content = asdict(self)
        for entry, row in zip(content["rows"], self.rows, strict=True):
            entry |= {"multiply_adds": row.multiply_adds, "intensity": row.intensity}
            entry["shares"] = asdict(self.shares(row))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=1) + "\n")


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def summary(report: Report) -> Iterator[str]:
    """The machine and its limits, in lines."""
    machine, limits = report.machine, report.limits
    yield f"{machine.cpu}, {machine.threads} threads, {machine.date}"
    yield f"kernels: {machine.isa or 'none'} of {', '.join(machine.isas) or 'none'}"
    yield ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    if limits is not None:
        rotated = report.rotated_bytes / 2**20
        yield (
            f"R, reading memory: {limits.read / 1e9:.1f} GB/s "
            f"({limits.read_rotated / 1e9:.1f} GB/s from {rotated:.0f} MiB)"
        )
        for name, rate in limits.multiply.items():
            label = "V, " if name == limits.vector else ""
            yield f"{label}multiply-adds by {name}: {rate / 1e9:.0f} G/s"


def implementation_table(report: Report) -> Table:
    table = Table("implementation", "weights", "bits", "activations", "detail", box=SIMPLE_HEAD)
    for i in report.implementations:
        detail = f"NOT MEASURED: {i.reason}" if i.reason else i.detail
        table.add_row(i.name, i.weights, f"{i.bits:g}", i.activations, detail)
    return table


def result_tables(report: Report) -> Iterator[Table]:
    """One table for each weight."""
    for (n, k), rows in groupby(report.rows, lambda row: (row.n, row.k)):
        table = Table(title=f"N = {n}, K = {k}", box=SIMPLE_HEAD)
        table.add_column("M", justify="right")
        table.add_column("implementation", no_wrap=True)
        for name in ("ms", "spread", "x bf16", "GMAC/s", "of floor", "of R", "of V"):
            table.add_column(name, justify="right")
        for m, group in groupby(rows, lambda row: row.m):
            table.add_section()
            for row in group:
                shares, timing = report.shares(row), row.timing
                table.add_row(
                    str(m),
                    row.name,
                    f"{timing.median * 1e3:.3f}",
                    _percent((timing.upper - timing.lower) / timing.median),
                    "" if shares.speedup is None else f"{shares.speedup:.2f}",
                    f"{row.multiply_adds / 1e9:.1f}",
                    _percent(shares.floor),
                    _percent(shares.read),
                    _percent(shares.multiply),
                )
        yield table


LEGEND = (
    "spread: upper minus lower quartile, of the median. x bf16: times as fast as torch-bf16. "
    "floor: the longer of reading an MXFP4 weight at R and multiplying at V; share reached. "
    "of R: bandwidth, counting the bytes of an MXFP4 weight."
)
