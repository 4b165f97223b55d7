"""The command line `mxfp4-ops`."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table

from . import __version__, explain
from .backends import ENVIRONMENT_VARIABLE, BackendStatus, backends, cpu, forced_backend
from .backends.devices import Target
from .checkpoint.command import convert, inspect
from .formats import BLOCK, SCALE_MODES
from .tuning.command import tune

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)


app.command()(tune)
app.command()(convert)
app.command()(inspect)


@app.callback()
def main() -> None:
    """MXFP4 quantise-and-multiply for PyTorch."""


@dataclass(frozen=True)
class Device:
    """A device that torch sees."""

    name: str
    kind: str


@dataclass(frozen=True)
class Info:
    """What `mxfp4-ops info` knows; the keys of its JSON."""

    mxfp4_ops: str
    torch: str
    python: str
    triton: str | None
    devices: list[Device]
    backends: list[BackendStatus]
    forced_backend: str | None
    cpu_isas: list[str]
    cpu_isa: str | None
    scale_modes: list[str]
    tables: list[explain.TableStatus]
    decisions: list[explain.Explanation]


def _triton_version() -> str | None:
    """Version of the installed package that holds the module `triton`, whatever it is called."""
    packages = metadata.packages_distributions().get("triton")
    return metadata.version(packages[0]) if packages else None


def _devices() -> list[Device]:
    found = [Device("cpu", f"{platform.machine()}, {torch.get_num_threads()} threads")]
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        # ROCm's torch names the architecture; CUDA's has a compute capability only.
        arch = getattr(properties, "gcnArchName", f"sm_{properties.major}{properties.minor}")
        found.append(Device(f"cuda:{index}", f"{properties.name}, {arch}"))
    return found


def _collect(decisions: list[explain.Explanation]) -> Info:
    return Info(
        mxfp4_ops=__version__,
        torch=torch.__version__,
        python=platform.python_version(),
        triton=_triton_version(),
        devices=_devices(),
        backends=backends(),
        forced_backend=forced_backend(),
        cpu_isas=cpu.isas(),
        cpu_isa=cpu.isa(),
        scale_modes=list(SCALE_MODES),
        tables=explain.tables(),
        decisions=decisions,
    )


def _facts(info: Info) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_row("mxfp4-ops", info.mxfp4_ops)
    table.add_row("torch", info.torch)
    table.add_row("Triton", info.triton or "not installed")
    table.add_row("Python", info.python)
    for device in info.devices:
        table.add_row(device.name, device.kind)
    if info.cpu_isa:
        sets = [f"{isa} (in use)" if isa == info.cpu_isa else isa for isa in info.cpu_isas]
        table.add_row("CPU kernels", ", ".join(sets))
    table.add_row("scale modes", ", ".join(info.scale_modes))
    return table


def _backend_table(info: Info) -> Table:
    table = Table("backend", "usable", "serves", "detail", title="Backends, the preferred first")
    for status in info.backends:
        usable = "yes" if status.available else "no"
        table.add_row(status.name, usable, status.serves, status.detail)
    return table


def _remarks(info: Info) -> list[str]:
    """What a reader should know but the tables do not say."""
    remarks = [
        f"{status.name} cannot be used: {status.reason}"
        for status in info.backends
        if not status.available
    ]
    remarks += [status.problem for status in info.tables if status.problem]
    usable = {status.name for status in info.backends if status.available}
    forced = info.forced_backend
    if forced is not None:
        remarks.append(f"{ENVIRONMENT_VARIABLE} is set: every call runs on {forced!r} or fails.")
        if forced not in usable:
            remarks.append(f"There is no usable backend {forced!r} here, so every call will fail.")
    elif "cpu" not in usable:
        remarks.append("Until then CPU tensors run on the reference: the same numbers, far slower.")
    return remarks


def _target(arch: str | None, compute_units: int | None) -> Target | None:
    if arch is None:
        return None
    units = compute_units or explain.COMPUTE_UNITS.get(arch)
    if units is None:
        raise typer.BadParameter(f"how many does a {arch} have?", param_hint="--compute-units")
    return Target(arch, units)


@app.command()
def info(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
    sizes: Annotated[
        tuple[int, int, int] | None,
        typer.Option("--explain", metavar="M N K", help="Say how a product would run, and why."),
    ] = None,
    shuffled: Annotated[bool, typer.Option(help="Explain it for a shuffled weight.")] = False,
    arch: Annotated[
        str | None, typer.Option(help="Explain it for a GPU that is not here, such as gfx950.")
    ] = None,
    compute_units: Annotated[int | None, typer.Option(help="Of that GPU.")] = None,
) -> None:
    """Say what is installed, which backends can be used here and why others cannot."""
    target = _target(arch, compute_units)
    if sizes and (min(sizes) < 0 or sizes[2] % BLOCK):
        raise typer.BadParameter(f"K must be a multiple of {BLOCK}", param_hint="--explain")
    if sizes is None and (target is not None or shuffled):
        raise typer.BadParameter("it goes with --explain", param_hint="--arch or --shuffled")
    decisions = explain.explain(sizes, shuffled, target) if sizes else []
    console = Console(markup=False, highlight=False)
    if decisions and not as_json:
        for decision in decisions:
            console.print(f"{decision.device}: {decision.call}")
            console.print(explain.shown(decision))
        return
    found = _collect(decisions)
    if as_json:
        print(json.dumps(asdict(found), indent=2))
        return
    console.print(_facts(found))
    console.print(_backend_table(found))
    console.print(explain.table_of_tables(found.tables))
    for remark in _remarks(found):
        console.print(remark, soft_wrap=True)  # so that a command in it can be copied
