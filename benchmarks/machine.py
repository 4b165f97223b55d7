"""The machine: what it is, and how fast it reads and multiplies at most."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import torch

import mxfp4_ops
from mxfp4_ops.backends import cpu

WEIGHT_BITS = 4 + 8 / 32
"""Of an MXFP4 weight: 4 for an element and 8 for the scale of 32 of them."""

_SOURCE = Path(__file__).with_name("limits.cpp")
_FLAGS = ("-O3", "-std=c++17", "-shared", "-fPIC", "-pthread")

FAR_OVER_CACHES = 1 << 30
"""Bytes of the buffer with which the bandwidth of memory is measured."""


@dataclass(frozen=True)
class Machine:
    """What a measurement was taken on."""

    cpu: str
    caches: dict[str, str]
    cores: int
    threads: int
    isa: str | None
    isas: list[str]
    torch_isa: str
    system: str
    date: str
    load_average: tuple[float, float, float]
    versions: dict[str, str]


@dataclass(frozen=True)
class Limits:
    """The best that was measured, with as many threads as everything else.

    Attributes:
        read: bytes per second from memory.
        read_rotated: the same from a buffer as large as the weights that are taken in turn. It is
            higher where caches hold a part of them.
        multiply: multiply-adds of small integers per second, by instruction set, the fastest first.
    """

    read: float
    read_rotated: float
    multiply: dict[str, float]

    @property
    def vector(self) -> str | None:
        """The fastest instruction set that multiplies vectors, not tiles."""
        return next((name for name in self.multiply if not name.startswith("amx")), None)

    @property
    def vector_multiply(self) -> float | None:
        return self.multiply[self.vector] if self.vector else None

    def floor(self, m: int, n: int, k: int) -> float | None:
        """Seconds below which a product by an MXFP4 weight cannot be done in vectors."""
        if self.vector_multiply is None:
            return None
        return max(n * k * WEIGHT_BITS / 8 / self.read, m * n * k / self.vector_multiply)

    @classmethod
    def best_of(cls, measured: Sequence[Limits]) -> Limits | None:
        """Each limit as the highest of several; other load can only lower it."""
        if not measured:
            return None
        return cls(
            read=max(limits.read for limits in measured),
            read_rotated=max(limits.read_rotated for limits in measured),
            multiply={
                name: max(limits.multiply[name] for limits in measured)
                for name in measured[0].multiply
            },
        )


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _caches() -> dict[str, str]:
    """Size of each cache that the first processor sees, where Linux tells it."""
    found = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind, size = (
            (index / name).read_text().strip() for name in ("level", "type", "size")
        )
        found[f"L{level} {kind.lower()}"] = size
    return found


def describe(threads: int, packages: Iterable[str]) -> Machine:
    """This machine, and the versions of those `packages` that are installed."""
    versions = {"python": platform.python_version(), "mxfp4_ops": mxfp4_ops.__version__}
    for package in ("torch", *packages):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return Machine(
        cpu=_cpu_name(),
        caches=_caches(),
        cores=len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1,
        threads=threads,
        isa=cpu.isa(),
        isas=cpu.isas(),
        torch_isa=torch.backends.cpu.get_cpu_capability(),
        system=platform.platform(),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        load_average=os.getloadavg(),
        versions=versions,
    )


class OtherLoad:
    """How much of the processors' time goes to other processes, from now on."""

    def __init__(self) -> None:
        self._start = self._now()

    @staticmethod
    def _now() -> tuple[float, float, float] | None:
        """Seconds that processors were busy, that they existed, and that this process had."""
        stat = Path("/proc/stat")
        if not stat.exists():
            return None
        fields = [int(field) for field in stat.read_text().splitlines()[0].split()[1:9]]
        ticks = os.sysconf("SC_CLK_TCK")
        idle = fields[3] + fields[4]  # waiting for a disk included
        return (sum(fields) - idle) / ticks, sum(fields) / ticks, time.process_time()

    def share(self) -> float | None:
        """Of all processors' time since the start, or None where the system does not tell."""
        now = self._now()
        if now is None or self._start is None:
            return None
        busy, total, own = (b - a for a, b in zip(self._start, now, strict=True))
        return max(0.0, busy - own) / total if total else 0.0


class LimitProgram:
    """limits.cpp, compiled for this machine.

    Raises:
        RuntimeError: it cannot be compiled; the message says why.
    """

    def __init__(self) -> None:
        compiler = os.environ.get("CXX") or (sysconfig.get_config_var("CXX") or "c++").split()[0]
        if shutil.which(compiler) is None:
            raise RuntimeError(f"there is no C++ compiler {compiler!r}")
        with tempfile.TemporaryDirectory() as folder:
            built = Path(folder) / "limits.so"
            command = [compiler, *_FLAGS, str(_SOURCE), "-o", str(built)]
            run = subprocess.run(command, capture_output=True, text=True, check=False)
            if run.returncode != 0:
                raise RuntimeError(f"{compiler} does not compile {_SOURCE.name}: {run.stderr}")
            self._library = ctypes.CDLL(str(built))
        self._library.multiplies.restype = ctypes.c_char_p
        self._library.read_bandwidth.restype = ctypes.c_double
        self._library.read_bandwidth.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
        self._library.multiply_rate.restype = ctypes.c_double
        self._library.multiply_rate.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_double]

    def measure(
        self, threads: int, rotated: int, far: int = FAR_OVER_CACHES, seconds: float = 0.1
    ) -> Limits:
        """Measure; `rotated` and `far` are the sizes of the two buffers that are read, in bytes."""
        names = self._library.multiplies().decode().split()
        return Limits(
            read=self._library.read_bandwidth(threads, far, far),
            read_rotated=self._library.read_bandwidth(threads, rotated, far // 4),
            multiply={
                name: self._library.multiply_rate(name.encode(), threads, seconds) for name in names
            },
        )
