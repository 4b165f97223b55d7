"""gemlite's Triton kernels for MXFP4 weights, which it tunes in the first call of a size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec

import torch
from torch import Tensor, nn

import mxfp4_ops


def missing() -> str | None:
    return None if find_spec("gemlite") else "gemlite is not installed"


def _layers(
    kind: str, weights: Sequence[tuple[Tensor, Tensor]], x: Tensor
) -> list[Callable[[], Tensor]]:
    from gemlite import helper

    layers = []
    for w in weights:
        n, k = len(w[0]), x.shape[1]
        linear = nn.Linear(k, n, bias=False, device=x.device, dtype=torch.bfloat16)
        linear.weight.data = mxfp4_ops.dequantize(*w, dtype=torch.bfloat16)
        processor = getattr(helper, kind)(device=str(x.device), dtype=torch.bfloat16)
        layers.append(processor.from_linear(linear))
    return [lambda layer=layer: layer(x) for layer in layers]  # type: ignore[misc]


def a4w4(weights: Sequence[tuple[Tensor, Tensor]], x: Tensor) -> list[Callable[[], Tensor]]:
    return _layers("A4W4_MXFP_dynamic", weights, x)


def a16w4(weights: Sequence[tuple[Tensor, Tensor]], x: Tensor) -> list[Callable[[], Tensor]]:
    return _layers("A16W4_MXFP", weights, x)
