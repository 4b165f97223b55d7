"""A submission to the public leaderboard `amd-mxfp4-mm`, served by `mxfp4_ops`.

    python examples/popcorn_submission.py --help

The task hands over (A, B, B_q, B_shuffle, B_scale_sh): activations A [M, K] and a weight B [N, K]
in bfloat16, B's MXFP4 codes, and these codes and their scales in AITER's shuffled layout. Wanted is
C [M, N] in bfloat16: A, quantised to MXFP4, times B. `custom_kernel` is the whole submission; the
rest checks it by the task's rule on this machine's device, whatever it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor

import mxfp4_ops

Data = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]

TESTS = [(8, 2112, 7168), (16, 3072, 1536), (64, 3072, 1536), (256, 2880, 512)]
BENCHMARKS = [
    (4, 2880, 512),
    (16, 2112, 7168),
    (32, 4096, 512),
    (32, 2880, 512),
    (64, 7168, 2048),
    (256, 3072, 1536),
]
SMALL = [(4, 64, 512), (33, 192, 256)]

RTOL = ATOL = 1e-2


def custom_kernel(data: Data) -> Tensor:
    a, _, _, weight, weight_scale = data
    return torch.ops.mxfp4.quant_mm(a, weight, weight_scale, shuffled=True)


def generate_input(m: int, n: int, k: int, seed: int, device: str) -> Data:
    """Random operands as the task makes them."""
    generator = torch.Generator(device).manual_seed(seed)
    a, b = (
        torch.randn(rows, k, dtype=torch.bfloat16, device=device, generator=generator)
        for rows in (m, n)
    )
    codes, scales = mxfp4_ops.quantize(b)
    weight, weight_scale = mxfp4_ops.shuffle(codes, scales)
    fp4, e8m0 = torch.float4_e2m1fn_x2, torch.float8_e8m0fnu
    return a, b, codes.view(fp4), weight.view(fp4), weight_scale.view(e8m0)


def expected(data: Data) -> Tensor:
    """Quantised, dequantised and multiplied."""
    a, b = (
        mxfp4_ops.dequantize(*mxfp4_ops.quantize(t), dtype=torch.float32)
        for t in (data[0], data[1])
    )
    return (a @ b.T).to(torch.bfloat16)


def shapes(small: bool) -> Iterator[tuple[str, tuple[int, int, int]]]:
    for name, of_it in (
        (("small", SMALL),) if small else (("test", TESTS), ("benchmark", BENCHMARKS))
    ):
        for shape in of_it:
            yield name, shape


def main(
    device: Annotated[
        str, typer.Option(help="Where to compute.", show_default="a GPU, if there is one")
    ] = "cuda" if torch.cuda.is_available() else "cpu",
    small: Annotated[bool, typer.Option("--small", help="Two small shapes only.")] = False,
) -> None:
    """Check `custom_kernel` on the task's shapes, with its rtol = atol = 1e-2."""
    table = Table("shapes", "M", "N", "K", "largest error", "elements beyond the tolerance")
    beyond = 0
    for seed, (name, (m, n, k)) in enumerate(shapes(small)):
        data = generate_input(m, n, k, seed, device)
        actual, wanted = custom_kernel(data).float(), expected(data).float()
        wrong = int((~torch.isclose(actual, wanted, rtol=RTOL, atol=ATOL)).sum())
        error = float((actual - wanted).abs().max())
        table.add_row(name, *map(str, (m, n, k)), f"{error:.3g}", str(wrong))
        beyond += wrong
    Console().print(table)
    if beyond:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
