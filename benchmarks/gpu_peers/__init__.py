"""What `benchmarks.gpu` measures beside each other. To add one, write its function and list it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from . import dot_scaled, gemlite, ours, torch_mm

Weights = Sequence[tuple[Tensor, Tensor]]
"""Copies of one weight: codes [N, K/2] and scales [N, K/32], uint8."""


@dataclass(frozen=True)
class GpuPeer:
    """An implementation of x @ weight.T.

    Attributes:
        bind: takes copies of a weight and x[M, K] in bfloat16, and gives a call for each copy.
        missing: why it cannot run here, or None.
    """

    name: str
    weights: str
    activations: str
    bind: Callable[[Weights, Tensor], list[Callable[[], Tensor]]]
    missing: Callable[[], str | None] = lambda: None


BASELINE = "torch-bf16"

PEERS = {
    peer.name: peer
    for peer in (
        GpuPeer("quant_mm", "MXFP4", "quantised to MXFP4", ours.quant_mm),
        GpuPeer("mm_a16", "MXFP4", "bfloat16", ours.mm_a16),
        GpuPeer(BASELINE, "bfloat16", "bfloat16", torch_mm.mm),
        GpuPeer("dot_scaled", "MXFP4", "quantised to MXFP4", dot_scaled.mm, dot_scaled.missing),
        GpuPeer("gemlite-a4w4", "MXFP4", "quantised to MXFP4", gemlite.a4w4, gemlite.missing),
        GpuPeer("gemlite-a16w4", "MXFP4", "bfloat16", gemlite.a16w4, gemlite.missing),
    )
}
