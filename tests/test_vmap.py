"""torch.func.vmap: a batch of rows is folded into one call, a batch of weights is a loop."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from calls import Calls
from common import (
    MODES,
    Path,
    activation,
    assert_same_bits,
    every_backend,
    every_dtype,
    plain_and_shuffled,
    random_codes,
    random_weight,
)
from torch import Tensor, nn, vmap
from torch.func import functional_call, stack_module_state
from torch.utils._pytree import tree_leaves

import mxfp4_ops

ops = torch.ops.mxfp4

BATCH = 4


def check(
    function: Callable[..., Any], in_dims: tuple[int | None, ...], *args: Tensor | None, calls: int
) -> None:
    """vmap gives what the function gives for each of the batch, in that many calls."""
    with Calls() as counted:
        actual = tree_leaves(vmap(function, in_dims)(*args))
    assert counted.counts.total() == calls
    for i in range(BATCH):
        each = [
            t if t is None or dim is None else t.select(dim, i)
            for t, dim in zip(args, in_dims, strict=True)
        ]
        expected = tree_leaves(function(*each))
        for batch, one in zip(actual, expected, strict=True):
            assert_same_bits(batch[i], one)


@every_backend
@every_dtype
@plain_and_shuffled
@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_rows_are_folded(path: Path, dtype: torch.dtype, shuffled: bool, dim: int) -> None:
    codes, scales = random_weight(24, 96).on(path.device, shuffled)
    bias = torch.linspace(-1, 1, len(codes), device=path.device)
    x = activation(BATCH, 3, 96, dtype=dtype).to(path.device).movedim(0, dim)
    quant_mm = partial(ops.quant_mm, shuffled=shuffled, scale_mode="ceil")
    for function in (quant_mm, partial(ops.mm_a16, shuffled=shuffled)):
        with path.active():
            check(function, (dim, None, None, None), x, codes, scales, bias, calls=1)
            check(lambda x, f=function: f(x, codes, scales), (dim,), x, calls=1)


@every_backend
@pytest.mark.parametrize("mode", MODES)
def test_quantize_and_dequantize(path: Path, mode: str) -> None:
    x = activation(3, BATCH, 96, dtype=torch.bfloat16).to(path.device)
    q, scale = (t.to(path.device) for t in random_codes(BATCH, 96))
    with path.active():
        check(partial(ops.quantize, scale_mode=mode), (1,), x, calls=1)
        check(ops.dequantize, (0, 0), q, scale, calls=1)
        check(ops.dequantize, (0, None), q, scale[0], calls=1)


@every_backend
def test_mm(path: Path) -> None:
    a, a_scale = (t.to(path.device) for t in random_codes(BATCH, 3, 96))
    weight = random_weight(24, 96).on(path.device)
    weights = [t.to(path.device) for t in random_codes(BATCH, 24, 96, seed=3)]
    with path.active():
        check(ops.mm, (0, 0, None, None), a, a_scale, *weight, calls=1)
        check(ops.mm, (0, None, None, None), a, a_scale[0], *weight, calls=1)
        check(ops.mm, (0, 0, 0, 0), a, a_scale, *weights, calls=BATCH)


@every_backend
@pytest.mark.parametrize("batched", ["x", "weight", "bias"])
def test_a_batch_of_weights_is_a_loop(path: Path, batched: str) -> None:
    """Each of them and all of them together."""
    weights = [t.to(path.device) for t in random_codes(BATCH, 24, 96)]
    bias = torch.randn(24, BATCH, device=path.device)
    x = activation(BATCH, 3, 96, dtype=torch.float32).to(path.device)
    one = weights[0][0], weights[1][0]
    with path.active():
        if batched == "weight":
            check(ops.quant_mm, (None, 0, 0), x, *weights, calls=BATCH)
        if batched == "bias":
            check(ops.quant_mm, (None, None, None, 1), x, *one, bias, calls=BATCH)
        check(ops.quant_mm, (0, 0, 0, 1), x, *weights, bias, calls=BATCH)


def test_layouts() -> None:
    codes, scales = random_codes(BATCH, 24, 96)
    check(ops.shuffle, (0, 0), codes, scales, calls=BATCH)
    tiles = vmap(ops.shuffle)(codes, scales)
    check(lambda w, s: ops.unshuffle(w, s, 24, 96), (0, 0), *tiles, calls=BATCH)


@every_backend
def test_inside_another_vmap(path: Path) -> None:
    weights = [t.to(path.device) for t in random_codes(BATCH, 24, 96)]
    x = activation(2, 3, 96, dtype=torch.float32).to(path.device)
    with path.active():
        rows = vmap(vmap(lambda t: ops.quant_mm(t, weights[0][0], weights[1][0])))(x)
        assert_same_bits(rows, ops.quant_mm(x, weights[0][0], weights[1][0]))
        grid = vmap(vmap(ops.quant_mm, (None, 0, 0)), (0, None, None))(x, *weights)
        for i in range(2):
            for j in range(BATCH):
                expected = ops.quant_mm(x[i], weights[0][j], weights[1][j])
                assert_same_bits(grid[i, j], expected)


@every_backend
def test_gradients(path: Path) -> None:
    codes, scales = random_weight(24, 96).on(path.device)
    x = activation(BATCH, 3, 96, dtype=torch.float32).to(path.device)
    ours, theirs = (x.clone().requires_grad_() for _ in range(2))
    with path.active():
        vmap(lambda t: ops.quant_mm(t, codes, scales))(ours).sum().backward()
        ops.quant_mm(theirs, codes, scales).sum().backward()
    assert ours.grad is not None
    assert theirs.grad is not None
    assert_same_bits(ours.grad, theirs.grad)


@every_backend
def test_an_ensemble_of_swapped_models(path: Path) -> None:
    models = [nn.Sequential(nn.Linear(96, 64), nn.ReLU(), nn.Linear(64, 8)) for _ in range(3)]
    for model in models:
        mxfp4_ops.swap_linear(model.to(path.device).requires_grad_(False), progress=False)
    parameters, buffers = stack_module_state(models)
    x = activation(5, 96, dtype=torch.float32).to(path.device)

    def call(parameters: Any, buffers: Any) -> Any:
        return functional_call(models[0], (parameters, buffers), (x,))

    with path.active():
        results = vmap(call)(parameters, buffers)
        for model, result in zip(models, results, strict=True):
            assert_same_bits(result, model(x))


@every_backend
def test_compiled(path: Path) -> None:
    torch._dynamo.reset()
    codes, scales = random_weight(24, 96).on(path.device)

    def function(x: Tensor) -> Any:
        return vmap(lambda t: ops.quant_mm(t, codes, scales), 1, 1)(x)

    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    with path.active():
        for m in (5, 2, 9):
            x = activation(m, BATCH, 96, dtype=torch.bfloat16).to(path.device)
            assert_same_bits(compiled(x), ops.quant_mm(x, codes, scales))


@every_backend
def test_a_batch_of_nothing(path: Path) -> None:
    codes, scales = random_weight(24, 96).on(path.device)
    x = torch.zeros(0, 3, 96, device=path.device)
    with path.active():
        assert vmap(lambda t: ops.quant_mm(t, codes, scales))(x).shape == (0, 3, 24)
        weights = codes[None][:0], scales[None][:0]
        with pytest.raises(ValueError, match="at least one weight"):
            vmap(lambda w, s: ops.quant_mm(x, w, s))(*weights)


def test_wrong_arguments_are_named() -> None:
    codes, scales = random_weight(24, 96).on("cpu")
    with pytest.raises(ValueError, match="x has K = 64, but weight has K = 96"):
        vmap(lambda t: ops.quant_mm(t, codes, scales))(torch.zeros(2, 5, 64))
