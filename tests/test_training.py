"""Training around frozen layers: checkpointing, and adapters beside them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from calls import Calls
from common import (
    Path,
    Product,
    activation,
    assert_same_bits,
    every_backend,
    every_dtype,
    random_weight,
)
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import mxfp4_ops

ops = torch.ops.mxfp4


def given(t: Tensor | None) -> Tensor:
    assert t is not None
    assert t.grad is not None
    return t.grad


def mlp(device: str) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(96, 64), nn.GELU(), nn.Linear(64, 40)).to(device)
    mxfp4_ops.swap_linear(model, progress=False)
    return model


@every_backend
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "autocast"])
def test_checkpoint(path: Path, reentrant: bool, autocast: bool) -> None:
    """Recomputed activations give the very gradients of those that were kept."""
    gradients = []
    for recompute in (False, True):
        model = mlp(path.device)
        x = activation(5, 96, dtype=torch.float32).to(path.device).requires_grad_()
        with path.active(), Calls() as calls:
            with torch.autocast(path.device, dtype=torch.bfloat16, enabled=autocast):
                y = checkpoint(model, x, use_reentrant=reentrant) if recompute else model(x)
            y.sum().backward()
        assert calls.counts["quant_mm"] == (4 if recompute else 2)
        biases = [given(layer.bias) for layer in model if isinstance(layer, nn.Linear)]
        gradients.append((given(x), *biases))
    for kept, recomputed in zip(*gradients, strict=True):
        assert_same_bits(recomputed, kept)


@every_backend
def test_selective_checkpoint_keeps_the_products(path: Path) -> None:
    """A policy that names the operator recomputes all but it."""

    def contexts() -> Any:
        return create_selective_checkpoint_contexts([ops.quant_mm.default])

    model = mlp(path.device)
    x = activation(5, 96, dtype=torch.float32).to(path.device).requires_grad_()
    with path.active():
        with Calls() as calls:
            checkpoint(model, x, use_reentrant=False, context_fn=contexts).sum().backward()
        actual, x.grad = given(x), None
        model(x).sum().backward()
    assert calls.counts["quant_mm"] == 2
    assert_same_bits(actual, given(x))


@every_backend
@every_dtype
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_adapter_on_a_frozen_layer(path: Path, dtype: torch.dtype, compiled: bool) -> None:
    """y = Q(x) @ W.T + x @ A.T @ B.T: gradients of x, A and B as float64 has them."""
    weight = random_weight(40, 96)
    codes, scales = weight.on(path.device)
    x, a, b, grad = (
        activation(*shape, dtype=torch.float32, seed=seed).div(8).to(path.device, dtype)
        for seed, shape in enumerate([(12, 96), (32, 96), (64, 32), (12, 64)])
    )
    b, grad = b[:40], grad[:, :40]

    def adapted(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return mxfp4_ops.quant_mm(x, codes, scales) + x @ a.T @ b.T

    if compiled:
        torch._dynamo.reset()
        adapted = torch.compile(adapted, backend="aot_eager", fullgraph=True)
    leaves = [t.clone().requires_grad_() for t in (x, a, b)]
    with path.active():
        adapted(*leaves).backward(grad)

    x, a, b, grad = (t.cpu().double() for t in (x, a, b, grad))
    w = weight.values
    exact = (grad @ w + grad @ b @ a, (grad @ b).T @ x, grad.T @ (x @ a.T))
    x, a, b, grad, w = (t.abs() for t in (x, a, b, grad, w))
    sizes = (grad @ w + grad @ b @ a, (grad @ b).T @ x, grad.T @ (x @ a.T))
    # Two products in a row and a sum, each rounded to dtype; each adds up at most 96 terms.
    relative = 2 * torch.finfo(dtype).eps + 2 * 96 * 2.0**-24
    for leaf, value, size in zip(leaves, exact, sizes, strict=True):
        assert given(leaf).dtype == dtype
        Product(value, relative * size).check(given(leaf))
