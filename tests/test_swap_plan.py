"""Which layers `swap_linear` leaves alone and why, and what becomes of what layers share."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path as FilePath

import pytest
import safetensors.torch
import torch
from common import assert_same_bits, generator
from linears import Block, float_mlp, mx, random_x, swap
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.testing._internal.two_tensor import TwoTensor

import mxfp4_ops
from mxfp4_ops import ScaleMode

linear = partial(nn.Linear, 32, 32)


class MyLinear(nn.Linear):
    pass


def _with(change: Callable[[nn.Linear], object]) -> Callable[[], nn.Linear]:
    def make() -> nn.Linear:
        layer = linear()
        change(layer)
        return layer

    return make


def _hook_as_accelerate_does(linear: nn.Linear) -> None:
    linear._hf_hook = object()  # type: ignore[assignment]
    linear.forward = linear.forward  # type: ignore[method-assign]


def _weight_norm(linear: nn.Linear) -> None:
    with pytest.warns(FutureWarning, match="weight_norm"):
        nn.utils.weight_norm(linear)


def _set_weight(weight: Tensor) -> Callable[[], nn.Linear]:
    return _with(lambda m: setattr(m, "weight", nn.Parameter(weight)))


LEFT_ALONE: dict[str, tuple[Callable[[], nn.Linear], str]] = {
    "subclass": (lambda: MyLinear(32, 32), "it is a MyLinear, a subclass of nn.Linear"),
    "lazy": (lambda: nn.LazyLinear(32), "it is a LazyLinear, a subclass of nn.Linear"),
    "parametrized": (lambda: parametrizations.weight_norm(linear()), "it is parametrized"),
    "weight_norm": (
        _with(_weight_norm),
        "its weight or bias is computed (parametrization, weight_norm or pruning)",
    ),
    "float64": (
        lambda: linear(dtype=torch.float64),
        "its weight is float64, not bfloat16 or float16 or float32",
    ),
    "k": (lambda: nn.Linear(40, 32), "in_features must be a multiple of 32, but is 40"),
    "wrapper": (
        _set_weight(TwoTensor(torch.ones(32, 32), torch.ones(32, 32))),
        "its weight is a TwoTensor, not a plain tensor",
    ),
    "partitioned": (
        _set_weight(torch.empty(0)),
        "its weight is a 1-d torch.strided tensor, not a dense matrix",
    ),
    "sparse": (
        _set_weight(torch.eye(32).to_sparse()),
        "its weight is a 2-d torch.sparse_coo tensor, not a dense matrix",
    ),
    "accelerate": (_with(_hook_as_accelerate_does), "accelerate has hooked its forward"),
    "forward": (
        _with(lambda m: setattr(m, "forward", lambda x: x)),
        "its forward has been replaced on the object",
    ),
    "compiled": (_with(lambda m: m.compile(backend="eager")), "it has been compiled by itself"),
    "state dict": (
        _with(lambda m: m.register_state_dict_post_hook(lambda *_: None)),
        "it has state dict hooks",
    ),
    "load": (
        _with(lambda m: m.register_load_state_dict_pre_hook(lambda *_: None)),
        "it has state dict hooks",
    ),
    "buffer": (
        _with(lambda m: m.register_buffer("mask", torch.ones(1))),
        "it has a parameter, buffer or module of its own, mask",
    ),
    "parameter": (
        _with(lambda m: m.register_parameter("lora", nn.Parameter(torch.ones(1)))),
        "it has a parameter, buffer or module of its own, lora",
    ),
}


@pytest.mark.parametrize(("make", "reason"), LEFT_ALONE.values(), ids=LEFT_ALONE)
def test_left_alone(make: Callable[[], nn.Linear], reason: str) -> None:
    layer = make()
    model = nn.ModuleDict({"odd": layer, "conv": nn.Conv1d(1, 1, 1), "plain": linear()})
    report = swap(model)
    assert report.swapped == ["plain"]
    assert report.skipped == {"odd": reason}
    assert model["odd"] is layer


def test_attention_keeps_its_projection() -> None:
    attention = nn.MultiheadAttention(32, 2, batch_first=True).eval()
    model = nn.ModuleDict({"attention": attention, "plain": linear()})
    x = random_x(2, 3, 32)
    with torch.no_grad():
        before, _ = attention(x, x, x)
        report = swap(model)
        after, _ = attention(x, x, x)
    assert report.skipped == {
        "attention.out_proj": ("it is a NonDynamicallyQuantizableLinear, a subclass of nn.Linear")
    }
    assert_same_bits(after, before)


def test_a_layer_under_several_names_stays_one_layer() -> None:
    shared, block = linear(), Block()
    model = nn.ModuleDict({"a": shared, "b": nn.Sequential(shared), "c": block, "d": block})
    report = swap(model)
    assert report.swapped == ["a", "c.attn", "c.mlp.up", "c.mlp.down"]
    assert mx(model, "a") is mx(model, "b.0")
    for name in ("attn", "mlp.up", "mlp.down"):
        assert mx(model, f"c.{name}") is mx(model, f"d.{name}")


@pytest.mark.parametrize("skip", ["a", "b"])
def test_a_layer_is_skipped_under_any_of_its_names(skip: str) -> None:
    shared = linear()
    report = swap(nn.ModuleDict({"a": shared, "b": nn.Sequential(shared)}), skip=(skip,))
    assert report.swapped == []
    assert report.skipped == {"a": f"skip pattern '{skip}'"}


def test_layers_with_one_weight_keep_one_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = {"a": linear(), "b": linear().eval(), "c": linear(bias=False)}
    layers["b"].weight = layers["c"].weight = layers["a"].weight
    biases = [layer.bias for layer in layers.values()]
    model = nn.ModuleDict(layers)
    quantize, quantised = mxfp4_ops.api.quantize, []

    def spy(weight: Tensor, *, scale_mode: ScaleMode) -> tuple[Tensor, Tensor]:
        quantised.append(weight)
        return quantize(weight, scale_mode=scale_mode)

    monkeypatch.setattr(mxfp4_ops.api, "quantize", spy)
    report = swap(model)
    assert len(quantised) == 1
    assert report.swapped == ["a", "b", "c"]
    a, b, c = (mx(model, name) for name in "abc")
    assert a.weight is b.weight is c.weight
    assert a.weight_scale is b.weight_scale is c.weight_scale
    assert all(new.bias is old for new, old in zip((a, b, c), biases, strict=True))
    assert (a.training, b.training) == (True, False)
    assert report.bytes_before == (32 * 32 + 2 * 32) * 4
    assert report.bytes_after == 32 * 17 + 2 * 32 * 4
    twin = copy.deepcopy(model)
    assert mx(twin, "a").weight is mx(twin, "c").weight


def test_tied_embedding() -> None:
    embed, out = nn.Embedding(8, 32), nn.Linear(32, 8)
    out.weight = embed.weight
    report = swap(nn.ModuleDict({"embed": embed, "out": out}))
    assert report.swapped == []
    assert report.skipped == {"out": "its weight is shared with embed.weight, which stays as it is"}
    assert out.weight is embed.weight


@pytest.mark.parametrize("other", ["skip", "subclass", "bias"])
def test_weight_shared_with_a_layer_that_stays(other: str) -> None:
    stays = MyLinear(32, 32) if other == "subclass" else linear()
    if other == "bias":
        stays.bias = nn.Parameter(torch.zeros(32, dtype=torch.float64))
    layers = {"a": linear(), "b": linear(), "stays": stays}
    layers["a"].weight = layers["b"].weight = stays.weight
    model = nn.ModuleDict(layers)
    report = swap(model, skip=("stays",) if other == "skip" else ())
    reason = "its weight is shared with stays.weight, which stays as it is"
    assert report.swapped == []
    assert (report.skipped["a"], report.skipped["b"]) == (reason, reason)
    assert dict(model.items()) == layers


def test_weights_in_the_same_memory() -> None:
    fused = torch.randn(96, 32, generator=generator())
    layers = {name: linear() for name in "abcde"}
    layers["a"].weight = nn.Parameter(fused[:32])
    layers["b"].weight = nn.Parameter(fused[32:64])
    layers["c"].weight = nn.Parameter(layers["d"].weight.detach())
    model = nn.ModuleDict(layers)
    model.register_buffer("last", layers["e"].weight.detach()[:1])
    report = swap(model)
    assert report.swapped == []
    assert {name: reason.split()[-1] for name, reason in report.skipped.items()} == {
        "a": "b.weight",
        "b": "a.weight",
        "c": "d.weight",
        "d": "c.weight",
        "e": "last",
    }
    assert report.skipped["a"] == "its weight lies in the same memory as b.weight"


def test_weights_read_from_a_safetensors_file_are_separate(tmp_path: FilePath) -> None:
    model = float_mlp()
    safetensors.torch.save_model(model, str(tmp_path / "model"))
    model.load_state_dict(safetensors.torch.load_file(tmp_path / "model"), assign=True)
    assert swap(model).swapped == ["0", "2"]
