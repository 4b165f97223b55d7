"""Checking and timing of candidates on a GPU."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from .. import formats, layout
from ..backends import REGISTRY, Call, triton
from ..backends.devices import Target
from ..backends.triton.launch import Launch
from .candidates import Shape

MOST_COPIES = 256
ROUNDS = 5

INFINITY_CACHE = 256 << 20
"""Bytes of AMD's last cache, which torch does not know of."""

COLUMNS = 4096
"""Of the expected result, computed at a time in float64."""


class WrongResultError(Exception):
    """A candidate does not compute the product, so its time means nothing."""


def _activation(m: int, k: int, device: torch.device, uneven: bool) -> Tensor:
    """Normal numbers; `uneven` ones are of different size in each block."""
    x = torch.randn(m, k // formats.BLOCK, formats.BLOCK, device=device)
    if uneven:
        x *= torch.randint(-3, 4, x.shape[:2], device=device).exp2().unsqueeze(-1)
    return x.flatten(1).to(torch.bfloat16)


def _weight(n: int, k: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """With scales that differ as those of normal numbers do."""
    codes = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, device=device)
    scales = (n, k // formats.BLOCK)
    return codes, torch.randint(126, 129, scales, dtype=torch.uint8, device=device)


def _cache_bytes(device: torch.device) -> int:
    largest: int = torch.cuda.get_device_properties(device).L2_cache_size
    return largest if torch.version.hip is None else largest + INFINITY_CACHE


class GpuBench:
    """A product of random operands, of which there are so many copies that none stays in a cache.

    Each candidate's result is compared with one in float64, within the bound that holds for every
    backend. The calls that are timed are one CUDA graph, so that no host code is timed.
    """

    def __init__(
        self,
        shape: Shape,
        device: torch.device,
        target: Target,
        shuffled: bool,
        uneven: bool = False,
    ) -> None:
        m, n, k = shape
        self.call = Call("quant_mm", device, torch.bfloat16, m, n, k, shuffled, target)
        copies = min(MOST_COPIES, 2 + 2 * _cache_bytes(device) // (n * k // 2 + 2 * m * k))
        plain = [_weight(n, k, device) for _ in range(copies)]
        self.weights = [layout.shuffle(*w) if shuffled else w for w in plain]
        self.x = [_activation(m, k, device, uneven) for _ in range(copies)]
        a = formats.dequantize_reference(*formats.quantize_reference(self.x[0]), torch.float64)
        exact, bound = [], []
        for codes, scales in zip(*(t.split(COLUMNS) for t in plain[0]), strict=True):
            b = formats.dequantize_reference(codes, scales, torch.float64)
            exact.append(a @ b.T)
            bound.append(1e-6 * (a.abs() @ b.abs().T) + 2.0**-126)
        self.exact, self.bound = torch.cat(exact, 1), torch.cat(bound, 1)

    def _launches(self, plan: Any, copy: int) -> tuple[Tensor, list[Launch]]:
        x, weight = self.x[copy], self.weights[copy]
        out = x.new_empty(len(x), len(weight[0]))
        kernels = triton.kernels_for(x.device)
        launches = kernels.quant_mm(x, *weight, None, out, self.call.shuffled, "even", plan)
        return out, launches

    def _run(self, candidate: Any, copy: int) -> Callable[[], Tensor]:
        """What calls a candidate once."""
        if isinstance(candidate, str):
            arguments = self.x[copy], *self.weights[copy], None, None, self.call.shuffled, "even"
            return lambda: REGISTRY[candidate].run(self.call, *arguments)
        out, launches = self._launches(candidate, copy)

        def run() -> Tensor:
            for launch in launches:
                launch.run()
            return out

        return run

    def prepare(self, plans: Sequence[Any]) -> None:
        """Compile the plans' kernels in parallel. What does not compile fails again later."""
        from triton import AsyncCompileMode

        # Triton parses Python in these threads. The parser is not reentrant: a collection inside
        # of it would let another thread parse ("AST constructor recursion depth mismatch").
        collects = gc.isenabled()
        gc.disable()
        try:
            with ThreadPoolExecutor() as threads, AsyncCompileMode(threads, ignore_errors=True):
                for plan in plans:
                    for launch in self._launches(plan, 0)[1]:
                        launch.compile()
        finally:
            if collects:
                gc.enable()

    def check(self, candidate: Any) -> None:
        y = self._run(candidate, 0)().double()
        rounding = torch.finfo(torch.bfloat16).eps / 2 * (self.exact.abs() + self.bound)
        wrong = ~((y - self.exact).abs() <= self.bound + rounding)  # NaN is wrong as well
        if wrong.any():
            raise WrongResultError(f"{int(wrong.sum())} of {wrong.numel()} results are wrong")

    def time(self, candidate: Any) -> float:
        runs = [self._run(candidate, copy) for copy in range(len(self.x))]
        runs[0]()  # what is done once
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for run in runs:
                run()
        graph.replay()
        times = []
        for _ in range(ROUNDS):
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            stop.record()
            stop.synchronize()
            times.append(start.elapsed_time(stop) * 1e3 / len(runs))
        return statistics.median(times)
