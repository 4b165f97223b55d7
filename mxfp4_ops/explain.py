"""What `mxfp4-ops info` says of tables and of single calls."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.table import Table

from .backends import Call, decide, devices, forced_backend
from .backends.devices import Target
from .tuning import lookup

COMPUTE_UNITS = {"gfx942": 304, "gfx950": 256, "sm_80": 108, "sm_90": 132, "sm_100": 148}
"""Of the best known GPU of an architecture: MI300X, MI355X, A100, H100 SXM and H200, B200."""


@dataclass(frozen=True)
class TableStatus:
    """Which table serves an architecture.

    Attributes:
        source: the file.
        entries: how many it holds.
        compute_units: of the GPUs that it is for.
        serves: devices here that it is used for.
        problem: what is wrong with it, or None.
    """

    arch: str
    source: str
    entries: int
    compute_units: int
    serves: list[str]
    problem: str | None


@dataclass(frozen=True)
class Explanation:
    """How a call would run, or why it would not."""

    device: str
    call: str
    backend: str | None
    because: str
    passed_over: dict[str, str]
    kernels: list[str]
    plan: dict[str, Any] | None
    origin: str


def gpus() -> dict[str, Target]:
    names = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    return {name: devices.target(torch.device(name)) for name in names}


def _status(arch: str, found: dict[str, Target]) -> TableStatus:
    try:
        table = lookup.table(arch)
    except ValueError as error:
        return TableStatus(arch, "", 0, 0, [], str(error))
    assert table is not None
    serves = [name for name, target in found.items() if target == table.target]
    units = table.target.compute_units
    return TableStatus(arch, table.source, len(list(table)), units, serves, None)


def tables() -> list[TableStatus]:
    found = gpus()
    return [_status(arch, found) for arch in lookup.architectures()]


def explain(
    sizes: tuple[int, int, int], shuffled: bool = False, target: Target | None = None
) -> list[Explanation]:
    """How `quant_mm` of M, N, K runs on every device here, or on one that is not here."""
    cpu = {"cpu": Target("cpu")}
    return [
        _explanation(name, sizes, shuffled, where)
        for name, where in ({"cuda": target} if target else cpu | gpus()).items()
    ]


def _explanation(
    device: str, sizes: tuple[int, int, int], shuffled: bool, target: Target
) -> Explanation:
    m, n, k = sizes
    n += -n % 16 if shuffled else 0
    call = Call("quant_mm", torch.device(device), torch.bfloat16, m, n, k, shuffled, target)
    layout = "shuffled" if shuffled else "plain"
    title = f"quant_mm, M={m} N={n} K={k}, bfloat16, {layout} weight"
    where = str(target) if device in ("cpu", "cuda") else f"{device} ({target})"
    try:
        found = decide(call, forced_backend())
    except (RuntimeError, ValueError) as error:
        return Explanation(where, title, None, str(error), {}, [], None, "")
    work = found.work
    plan = None if work.plan is None else asdict(work.plan)
    return Explanation(
        where,
        title,
        found.backend,
        found.because,
        dict(found.passed_over),
        list(work.kernels),
        plan,
        work.origin,
    )


def shown(explanation: Explanation) -> Table:
    """For people to read."""
    grid = Table.grid(padding=(0, 2))
    grid.add_row("backend", f"{explanation.backend or 'none'} ({explanation.because})")
    for name, reason in explanation.passed_over.items():
        grid.add_row(f"not {name}", reason)
    if explanation.kernels:
        grid.add_row("kernels", ", ".join(explanation.kernels))
    if explanation.plan:
        grid.add_row("plan", " ".join(f"{k}={v}" for k, v in explanation.plan.items()))
        grid.add_row("from", explanation.origin)
    return grid


def table_of_tables(statuses: list[TableStatus]) -> Table:
    table = Table("architecture", "compute units", "entries", "serves here", "file", title="Tables")
    for status in statuses:
        serves = ", ".join(status.serves) or "-"
        units, entries = str(status.compute_units), str(status.entries)
        table.add_row(status.arch, units, entries, serves, status.source or "malformed")
    return table
