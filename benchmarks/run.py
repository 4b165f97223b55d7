"""One measurement: loads implementations, checks what they compute, lets them take turns."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import ceil

import torch
from rich.progress import Progress
from torch import Tensor

from .machine import OtherLoad
from .measure import ROUNDS, Candidate, take_turns, warm_up
from .peers import Bound, Peer
from .report import Implementation, Row

LEAST_COPIES = 3

BUSY = 0.05
"""Share of the processors' time from which on other processes are a part of what is measured."""


@dataclass(frozen=True)
class _Ready:
    """An implementation with its weights, and the product that is expected of it."""

    peer: Peer
    bind: Callable[[Tensor], Bound]
    copies: int
    expected: Tensor


class Run:
    """Measures shape after shape; what it finds is in `found`, `rows` and `notes`."""

    def __init__(
        self, peers: Iterable[Peer], threads: int, seconds: float, rotated: int, progress: Progress
    ) -> None:
        self.threads = threads
        self.seconds = seconds
        self.rotated = rotated
        self.progress = progress
        self.found = {peer: Implementation.of(peer) for peer in peers}
        self.rows: list[Row] = []
        self.notes: list[str] = []

    def shape(self, n: int, k: int, sizes: list[int]) -> None:
        """Measure products by a weight `[n, k]` with each of `sizes` rows of activations."""
        peers = [peer for peer, found in self.found.items() if found.reason is None]
        where = f"N = {n}, K = {k}"
        total = len(peers) * (1 + len(sizes) * (1 + ROUNDS))
        task = self.progress.add_task(where, total=total)

        def step(what: str) -> None:
            self.progress.update(task, description=f"{where}, {what}", advance=1)

        generator = torch.Generator().manual_seed(0)
        weight = torch.randn(n, k, generator=generator) / k**0.5
        x = torch.randn(max(sizes), k, generator=generator).bfloat16().float()
        ready = []
        for peer in peers:
            step(f"loading {peer.name}")
            try:
                ready.append(self._load(peer, weight, x))
            except Exception as error:  # a peer's failure is a finding, not the end of the run
                self.notes.append(f"{peer.name} is not measured for {where}: {error}")
        for m in sizes:
            self._size(m, x, ready, step)
        self.progress.remove_task(task)

    def _load(self, peer: Peer, weight: Tensor, x: Tensor) -> _Ready:
        n, k = weight.shape
        reason = peer.refuses(n, k)
        if reason is not None:
            raise ValueError(reason)
        copies = max(LEAST_COPIES, ceil(self.rotated / (n * k * peer.bits / 8)))
        loaded = peer.load(weight, copies, self.threads)
        self.found[peer] = replace(self.found[peer], detail=loaded.detail)
        return _Ready(peer, loaded.bind, copies, peer.rounded(x) @ loaded.values.T)

    def _size(self, m: int, x: Tensor, ready: list[_Ready], step: Callable[[str], None]) -> None:
        (_, k), n = x.shape, ready[0].expected.shape[1]
        errors: dict[Peer, float] = {}
        candidates = []
        for r in ready:
            step(f"M = {m}: checking {r.peer.name}")
            try:
                bound = r.bind(x[:m].clone())
                errors[r.peer] = warm_up(r.peer, bound, r.expected[:m])
            except Exception as error:
                self.notes.append(
                    f"{r.peer.name} is not measured for M = {m}, N = {n}, K = {k}: {error}"
                )
            else:
                candidates.append(Candidate(r.peer, bound))
        load = OtherLoad()
        take_turns(candidates, self.seconds, lambda: step(f"M = {m}"))
        busy = load.share()
        if busy is not None and busy > BUSY:
            self.notes.append(
                f"other processes took {busy:.0%} of the processors' time "
                f"while M = {m}, N = {n}, K = {k} was measured"
            )
        copies = {r.peer: r.copies for r in ready}
        for c in candidates:
            self.rows.append(
                Row(
                    name=c.peer.name,
                    m=m,
                    n=n,
                    k=k,
                    bits=c.peer.bits,
                    copies=copies[c.peer],
                    error=errors[c.peer],
                    others_busy=busy,
                    timing=c.timing(),
                )
            )
