"""Process groups whose ranks run tests: `on_every_rank` with the fixture `ranks`, and `group`."""

from __future__ import annotations

import importlib
import inspect
import multiprocessing as mp
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache, wraps
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

TIMEOUT = 120.0
"""Seconds after which a test has failed."""

# What takes longest to import. A server that has done so forks ranks quickly; it has no threads to
# lose, and asks for no GPU, which its forks could not use.
PRELOAD = [
    "torch.distributed.tensor.parallel",
    "torch.distributed.fsdp",
    "torch.distributed.checkpoint",
]

# Where a host's own name has no address, Gloo needs to be told.
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}


@dataclass
class Ranks:
    """A process group. It starts when it is first needed, and again after a failure."""

    size: int
    backend: str = "gloo"
    connections: list[Connection] = field(default_factory=list)
    processes: list[Any] = field(default_factory=list)
    folder: tempfile.TemporaryDirectory[str] | None = None

    def start(self) -> None:
        context = mp.get_context("forkserver")
        context.set_forkserver_preload(PRELOAD)
        self.folder = tempfile.TemporaryDirectory()
        store = Path(self.folder.name) / "store"
        for rank in range(self.size):
            here, there = context.Pipe()
            arguments = rank, self.size, self.backend, store, there
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            there.close()
            self.connections.append(here)
            self.processes.append(process)

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()
        if self.folder:
            self.folder.cleanup()
        self.connections, self.processes = [], []

    def run(self, function: Callable[..., None], **arguments: Any) -> None:
        """Call a function of a module on every rank with a mesh of them all; fail if one fails."""
        if not self.processes:
            self.start()
        for connection in self.connections:
            with suppress(BrokenPipeError):  # which receiving will notice
                connection.send((function.__module__, function.__name__, arguments))
        waiting, deadline = list(self.connections), time.monotonic() + TIMEOUT
        while waiting:
            ready = cast(list[Connection], wait(waiting, deadline - time.monotonic()))
            error = None if ready else f"{len(waiting)} ranks gave no answer in {TIMEOUT} seconds"
            for connection in ready:
                waiting.remove(connection)
                try:
                    error = error or connection.recv()
                except EOFError:
                    error = "a rank died"
            if error is not None:
                self.stop()  # the others may wait for that one for ever
                pytest.fail(error, pytrace=False)


def _mesh(rank: int, size: int, backend: str, store: Path) -> DeviceMesh:
    torch.set_num_threads(1)
    os.environ.update(LOOPBACK)
    device = "cuda" if backend == "nccl" else "cpu"
    if device == "cuda":
        torch.cuda.set_device(rank)
    timeout = timedelta(seconds=TIMEOUT)
    dist.init_process_group(
        backend, init_method=f"file://{store}", rank=rank, world_size=size, timeout=timeout
    )
    return init_device_mesh(device, (size,), mesh_dim_names=("tp",))


def _serve(rank: int, size: int, backend: str, store: Path, orders: Connection) -> None:
    mesh: DeviceMesh | None = None
    while True:
        try:
            module, name, arguments = orders.recv()
        except EOFError:
            return
        try:
            mesh = mesh or _mesh(rank, size, backend, store)
            function = getattr(importlib.import_module(module), name)
            inspect.unwrap(function)(mesh, **arguments)
        except BaseException:
            orders.send(f"rank {rank} of {size}, {backend}:\n{traceback.format_exc()}")
        else:
            orders.send(None)


def on_every_rank(test: Callable[..., None]) -> Callable[..., None]:
    """A test that runs on each rank of the fixture `ranks`, with a mesh of them all to begin with.

    Its other arguments, which must be picklable, are pytest's.
    """

    @wraps(test)
    def run(ranks: Ranks, **arguments: Any) -> None:
        ranks.run(test, **arguments)

    _, *others = inspect.signature(test).parameters.values()
    mesh = inspect.Parameter("ranks", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    run.__signature__ = inspect.Signature([mesh, *others])  # type: ignore[attr-defined]
    return run


_needs_two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


@cache
def group(size: int, backend: str = "gloo") -> Ranks:
    """One for all tests. Its ranks end with this process."""
    return Ranks(size, backend)


@pytest.fixture(
    params=[
        pytest.param((2, "gloo"), id="2"),
        pytest.param((4, "gloo"), id="4"),
        pytest.param((2, "nccl"), id="2-gpus", marks=[pytest.mark.gpu, _needs_two_gpus]),
    ],
)
def ranks(request: pytest.FixtureRequest) -> Ranks:
    return group(*request.param)
