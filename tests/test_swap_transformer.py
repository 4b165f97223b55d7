"""Swapped layers inside torch's own encoder, whose fused inference path reads float weights."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from common import assert_same_bits, generator
from torch import Tensor, nn

from mxfp4_ops import Mxfp4Linear, swap_linear

Calls = list[tuple[Mxfp4Linear, Tensor, Tensor]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Layer, input and output of each forward. Not by hooks, which turn the fused path off."""
    recorded: Calls = []
    forward = Mxfp4Linear.forward

    def record(self: Mxfp4Linear, input: Tensor) -> Tensor:
        output = forward(self, input)
        recorded.append((self, input, output))
        return output

    monkeypatch.setattr(Mxfp4Linear, "forward", record)
    return recorded


def encoder_layer(**options: object) -> nn.TransformerEncoderLayer:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 96, batch_first=True, **options)  # type: ignore[arg-type]
    return layer.eval()


def check_feed_forward(layer: nn.TransformerEncoderLayer, calls: Calls, out: Tensor) -> None:
    """That `out` is what the two swapped layers make of the input that they got."""
    (first, x, up), (second, h, down) = calls
    assert first is layer.linear1
    assert second is layer.linear2
    assert_same_bits(h, layer.activation(up))
    assert_same_bits(out, layer.norm2(x + down))


every_context = pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
every_duplicate = pytest.mark.parametrize(
    "duplicate",
    [lambda m: m, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))],
    ids=["itself", "deepcopy", "pickle"],
)


@every_context
@every_duplicate
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("skip", [(), ("linear1",), ("linear2",)])
def test_encoder_layer(
    context: Callable[[], torch.no_grad],
    duplicate: Callable[[nn.Module], nn.TransformerEncoderLayer],
    activation: str,
    skip: tuple[str, ...],
    calls: Calls,
) -> None:
    layer = encoder_layer(activation=activation)
    x = torch.randn(2, 5, 64, generator=generator())
    report = swap_linear(layer, skip=skip, progress=False)
    assert set(report.swapped) == {"linear1", "linear2"} - set(skip)
    layer = duplicate(layer)
    with context():
        out = layer(x)
        hidden = layer.norm1(x + layer.self_attn(x, x, x, need_weights=False)[0])
        if skip:
            expected = layer.norm2(hidden + layer.linear2(layer.activation(layer.linear1(hidden))))
            torch.testing.assert_close(out, expected)
        else:
            torch.testing.assert_close(calls[0][1], hidden)
            check_feed_forward(layer, calls, out)


@every_context
def test_encoder_with_padding(context: Callable[[], torch.no_grad], calls: Calls) -> None:
    encoder = nn.TransformerEncoder(encoder_layer(), 2).eval()
    assert encoder.use_nested_tensor, "the fused path would be taken"
    swap_linear(encoder, progress=False)
    x = torch.randn(2, 5, 64, generator=generator())
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    with context():
        out = encoder(x, src_key_padding_mask=padding)
        assert len(calls) == 4
        last = encoder.layers[1]
        assert isinstance(last, nn.TransformerEncoderLayer)
        check_feed_forward(last, calls[2:], out)
        other = x.clone()
        other[1, 3:] = 7.0
        assert_same_bits(encoder(other, src_key_padding_mask=padding)[1, :3], out[1, :3])


def test_fused_path_stays_where_nothing_is_swapped() -> None:
    model = nn.ModuleDict(
        {"kept": nn.TransformerEncoder(encoder_layer(), 1), "other": nn.Linear(32, 32)}
    )
    swap_linear(model, skip=("kept",), progress=False)
    encoder = model["kept"]
    assert isinstance(encoder, nn.TransformerEncoder)
    assert encoder.use_nested_tensor
    layer = encoder.layers[0]
    assert isinstance(layer, nn.TransformerEncoderLayer)
    assert layer.activation_relu_or_gelu == 1
