"""Run a small MXFP4 transformer on several ranks at once and compare with one.

    python examples/tensor_parallel.py --ranks 2

starts the ranks itself: on GPUs through NCCL if there are enough, else on the CPU through Gloo. Or

    torchrun --nproc-per-node 2 examples/tensor_parallel.py

Attention heads and the hidden units of each MLP are divided among the ranks: a column-parallel
layer feeds a row-parallel one, and one all-reduce ends each pair. Each rank keeps its part of the
codes and scales. The partial sums are added in float32 and the bias once, so that the result is as
exact as that of one rank, though not always the same to the last bit.
"""

from __future__ import annotations

import copy
import os
import tempfile
from pathlib import Path
from typing import Annotated

import torch
import torch.distributed as dist
import torch.nn.functional as F
import typer
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.multiprocessing.spawn import spawn

import mxfp4_ops
from mxfp4_ops.distributed import RowwiseParallel

WIDTH, HEADS, HIDDEN, BLOCKS = 512, 8, 2048, 2

PLAN = {
    "*.q": ColwiseParallel(),
    "*.k": ColwiseParallel(),
    "*.v": ColwiseParallel(),
    "*.out": RowwiseParallel(),
    "*.up": ColwiseParallel(),
    "*.down": RowwiseParallel(),
}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.attention_norm(x)
        # As many heads as this rank has columns for.
        q, k, v = (
            layer(normed).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(heads.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.mlp_norm(x))))


def weight_bytes(model: nn.Module) -> int:
    """What this rank holds of the codes and scales."""
    packed = (p for p in model.parameters() if not p.is_floating_point())
    return sum((p.to_local() if isinstance(p, DTensor) else p).numel() for p in packed)


@torch.inference_mode()
def compare(device: str) -> None:
    """Build the same model on every rank, shard a copy, and compare their results."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    with torch.device(device):
        model = nn.Sequential(*(Block() for _ in range(BLOCKS))).bfloat16().eval()
    mxfp4_ops.swap_linear(model, progress=False)
    x = torch.randn(4, 32, WIDTH).to(device, torch.bfloat16)

    sharded = copy.deepcopy(model)
    parallelize_module(sharded, init_device_mesh(device, (ranks,)), PLAN)
    expected, actual = model(x), sharded(x)

    equal = (actual == expected).float().mean().item()
    difference = ((actual - expected).abs().max() / expected.abs().max()).item()
    if rank == 0:
        print(f"{ranks} ranks on {device}, {BLOCKS} blocks, {x.shape[0] * x.shape[1]} tokens")
        print(f"codes and scales on one device: {weight_bytes(model):,} bytes")
        print(f"codes and scales on each rank:  {weight_bytes(sharded):,} bytes")
        print(f"outputs with the same bits as on one device: {equal:.2%}")
        print(f"largest difference: {difference:.1e} of the largest output")
    if difference > 2.0**-7:  # a bfloat16 holds 8 bits
        raise RuntimeError(f"rank {rank}: the results differ")


def run(rank: int, ranks: int, device: str, init_method: str) -> None:
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // ranks))
    if device == "cuda":
        torch.cuda.set_device(rank % torch.cuda.device_count())
    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=init_method, rank=rank, world_size=ranks)
    try:
        compare(device)
    finally:
        dist.destroy_process_group()


def main(
    ranks: Annotated[int, typer.Option(min=1, max=HEADS, help="Processes to start.")] = 2,
) -> None:
    """Compare a small MXFP4 transformer under tensor parallelism with the same on one device."""
    if "WORLD_SIZE" in os.environ:  # torchrun has started this process
        ranks = int(os.environ["WORLD_SIZE"])
    if HEADS % ranks:
        raise typer.BadParameter(f"{HEADS} heads cannot be divided among {ranks} ranks")
    device = "cuda" if torch.cuda.device_count() >= ranks else "cpu"
    if "RANK" in os.environ:
        run(int(os.environ["RANK"]), ranks, device, "env://")
        return
    with tempfile.TemporaryDirectory() as folder:
        store = (Path(folder) / "store").as_uri()
        spawn(run, (ranks, device, store), nprocs=ranks)


if __name__ == "__main__":
    typer.run(main)
