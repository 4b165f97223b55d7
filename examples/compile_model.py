"""Compile a transformer block with MXFP4 layers: one graph, two compilations for any sequence.

    python examples/compile_model.py --device cuda --mode max-autotune

The first length compiles for itself, the second one for all others. From then on a compilation
would be an error here. Times are those of this machine in this run.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated, Any

import torch
import torch.nn.functional as F
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import mxfp4_ops

WARM_UP = (16, 24)
LENGTHS = (2, 7, 16, 33, 64, 100, 256)


class Block(nn.Module):
    """Attention and an MLP, each behind a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.mlp_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(self.attention_norm(x)).chunk(3, -1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in qkv)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.mlp_norm(x))))


@dataclass(frozen=True)
class Row:
    """One sequence length: milliseconds a call, and how far the two results are apart."""

    length: int
    eager_ms: float
    compiled_ms: float
    relative_difference: float


def milliseconds(function: Callable[[], Any], device: str) -> float:
    times = []
    for _ in range(5):
        start = time.perf_counter()
        function()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times)


@torch.inference_mode()
def measure(device: str, mode: str, width: int) -> list[Row]:
    torch.manual_seed(0)
    model = Block(width, heads=8).to(device).eval()
    mxfp4_ops.swap_linear(model, progress=False)
    compiled = torch.compile(model, fullgraph=True, mode=mode)
    for length in WARM_UP:
        compiled(torch.randn(2, length, width, device=device))

    rows = []
    with torch.compiler.set_stance("fail_on_recompile"):
        for length in LENGTHS:
            x = torch.randn(2, length, width, device=device)
            expected, actual = model(x), compiled(x).clone()
            rows.append(
                Row(
                    length,
                    milliseconds(partial(model, x), device),
                    milliseconds(partial(compiled, x), device),
                    ((actual - expected).norm() / expected.norm()).item(),
                )
            )
    return rows


def main(
    device: Annotated[str, typer.Option(help="cpu or cuda (ROCm too).")] = "cpu",
    mode: Annotated[str, typer.Option(help="Of torch.compile.")] = "default",
    width: Annotated[int, typer.Option(help="A multiple of 256.")] = 512,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Compile a transformer block with MXFP4 layers and run it on several sequence lengths."""
    rows = measure(device, mode, width)
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return
    table = Table("length", "eager", "compiled", "relative difference")
    for row in rows:
        table.add_row(
            str(row.length),
            f"{row.eager_ms:.2f} ms",
            f"{row.compiled_ms:.2f} ms",
            f"{row.relative_difference:.1e}",
        )
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
