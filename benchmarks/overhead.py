"""What a call costs the host, beside torch's own products and a launch by hand.

    python -m benchmarks.overhead

Sizes are so small that the device is never waited for: what is timed is Python and C++ around the
kernel. On a GPU "by hand" allocates the result and launches the same Triton kernels, once through
Triton's launcher (`kernel[grid](...)`) and once as a compiled kernel. On the CPU the C++ kernel's
own work on one block is part of the figure, as torch's is.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import mxfp4_ops

M, N, K = 1, 32, 32


def microseconds(
    call: Callable[[], Any], device: str, calls: int = 2000, rounds: int = 15
) -> float:
    """Median over rounds of the mean time of a call."""

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    for _ in range(calls):
        call()
    times = []
    for _ in range(rounds):
        wait()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - start) / calls * 1e6)
        wait()
    return statistics.median(times)


def by_hand(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> dict[str, Any]:
    """Calls that launch the kernels of `quant_mm` and do nothing else."""
    from mxfp4_ops.backends import triton
    from mxfp4_ops.backends.triton.operators import quant_mm

    kernels = triton.kernels_for(x.device)

    def parts() -> Any:
        return quant_mm(kernels, x, weight, scale, None, None, False, "even")[1]

    launches = parts()
    compiled = [launch.run() for launch in launches]
    runners = [
        (
            kernel[launch.grid],
            [{**launch.constants, **launch.arguments}[p.name] for p in launch.kernel.params],
        )
        for launch, kernel in zip(launches, compiled, strict=True)
    ]

    def through_triton() -> None:
        x.new_empty(M, N)
        for launch in launches:
            launch.run()

    def compiled_kernel() -> None:
        x.new_empty(M, N)
        for runner, arguments in runners:
            runner(*arguments)

    return {"by hand, kernel[grid](...)": through_triton, "by hand, compiled": compiled_kernel}


def main() -> None:
    """Print the time that the host needs for a call, in microseconds."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.randn(M, K, device=device, dtype=torch.bfloat16)
    dense = torch.randn(N, K, device=device, dtype=torch.bfloat16)
    weight, scale = mxfp4_ops.quantize(dense)
    layer = mxfp4_ops.Mxfp4Linear.from_linear(torch.nn.Linear(K, N, bias=False, device=device))
    transposed = dense.t()
    calls: dict[str, Callable[[], Any]] = {
        "torch.ops.mxfp4.quant_mm": lambda: torch.ops.mxfp4.quant_mm(x, weight, scale),
        "mxfp4_ops.quant_mm": lambda: mxfp4_ops.quant_mm(x, weight, scale),
        "Mxfp4Linear": lambda: layer(x),
        "torch.mm": lambda: torch.mm(x, transposed),
        "F.linear": lambda: F.linear(x, dense),
    }
    if device == "cuda":
        calls |= by_hand(x, weight, scale)
    table = Table(title=f"host time of a call on {device}, M, N, K = {M}, {N}, {K}")
    table.add_column("call")
    table.add_column("us", justify="right")
    with torch.inference_mode():
        for name, call in calls.items():
            table.add_row(escape(name), f"{microseconds(call, device):.1f}")
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
