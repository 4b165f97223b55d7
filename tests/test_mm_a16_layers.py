"""Layers whose activations are not quantised."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from common import Path, Product, assert_same_bits, every_dtype, every_path, quantized_values
from linears import K, N, assert_same_layer, float_linear, float_mlp, mx_linear, random_x, swap
from oracle import decode, quantize_tensor
from torch import nn

from mxfp4_ops import Mxfp4Linear


def a16_linear(**options: Any) -> Mxfp4Linear:
    return Mxfp4Linear.from_linear(float_linear(**options), activation="bf16")


@every_path
@every_dtype
@pytest.mark.parametrize("bias", [True, False])
def test_forward(path: Path, dtype: torch.dtype, bias: bool) -> None:
    linear, x = float_linear(bias=bias, dtype=dtype), random_x(2, 3, K, dtype=dtype)
    weight = decode(*quantize_tensor(linear.weight.detach(), "ceil"))
    added = linear.bias.detach().clone() if bias else None
    with path.active(), torch.no_grad():
        layer = Mxfp4Linear.from_linear(
            linear.to(path.device), scale_mode="ceil", activation="bf16"
        )
        y = layer(x.to(path.device))
    assert y.dtype == dtype
    Product.of(x.double().flatten(0, 1), weight, added).check(y.flatten(0, 1))


def test_it_is_closer_to_the_float_layer() -> None:
    linear, x = float_linear(), random_x(20, K)
    errors = [
        (layer(x) - linear(x)).norm() for layer in (a16_linear(), Mxfp4Linear.from_linear(linear))
    ]
    without_weights = Product.of(quantized_values(x), linear.weight.detach().double())
    assert errors[0] < errors[1]
    assert (without_weights.exact - x.double() @ linear.weight.detach().double().T).norm() > 0


def test_the_weight_is_that_of_any_other_layer() -> None:
    assert_same_layer(a16_linear(), mx_linear())
    assert_same_layer(Mxfp4Linear(K, N, activation="bf16"), Mxfp4Linear(K, N))


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, copy.copy, lambda layer: pickle.loads(pickle.dumps(layer))]
)
def test_copies_keep_it(copied: Any) -> None:
    layer, x = a16_linear(), random_x(5, K)
    again = copied(layer)
    assert again.activation == "bf16"
    assert_same_bits(again(x), layer(x))
    assert not torch.equal(mx_linear()(x), layer(x))


def test_a_state_dict_is_that_of_any_other_layer() -> None:
    layer, x = Mxfp4Linear(K, N, activation="bf16"), random_x(5, K)
    layer.load_state_dict(mx_linear().state_dict())
    assert layer.activation == "bf16"
    assert_same_bits(layer(x), a16_linear()(x))


def test_it_shows() -> None:
    assert "activation='bf16'" in repr(a16_linear())
    assert "activation" not in repr(mx_linear())


def test_swapped_models() -> None:
    model, other, x = float_mlp(), float_mlp(), random_x(4, 64)
    swap(model, activation="bf16", scale_mode="floor")
    swap(other, scale_mode="floor")
    layers = [m for m in model if isinstance(m, Mxfp4Linear)]
    assert [layer.activation for layer in layers] == ["bf16", "bf16"]
    assert [layer.scale_mode for layer in layers] == ["floor", "floor"]
    assert_same_layer(model, other)
    assert not torch.equal(model(x), other(x))
    shared = nn.Linear(32, 32)
    tied = nn.Sequential(shared, nn.Linear(32, 32))
    tied[1].weight = shared.weight
    swap(tied, activation="bf16")
    assert tied[0].weight is tied[1].weight
    assert tied[1].activation == "bf16"


@pytest.mark.parametrize("activation", ["", "fp16", "BF16", None])
def test_other_activations_are_refused_and_change_nothing(activation: Any) -> None:
    message = "activation must be 'mxfp4' or 'bf16'"
    model = float_mlp()
    with pytest.raises(ValueError, match=message):
        Mxfp4Linear(K, N, activation=activation)
    with pytest.raises(ValueError, match=message):
        Mxfp4Linear.from_linear(float_linear(), activation=activation)
    with pytest.raises(ValueError, match=message):
        swap(model, activation=activation)
    assert all(type(m) is not Mxfp4Linear for m in model)


def test_training_and_autocast() -> None:
    layer, x = a16_linear(), random_x(5, K).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
    assert y.dtype == torch.bfloat16
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == torch.float32
    assert layer.bias is not None
    assert layer.bias.grad is not None


def test_compiled() -> None:
    torch._dynamo.reset()
    model = float_mlp()
    swap(model.requires_grad_(False), activation="bf16")
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for m in (1, 5, 9):
        x = random_x(m, 64)
        assert_same_bits(compiled(x), model(x))
