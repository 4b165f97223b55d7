"""Copies, state dicts and files of `Mxfp4Linear`, and that nothing loads as other numbers."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path as FilePath

import pytest
import safetensors.torch
import torch
from common import assert_same_bits
from linears import K, N, assert_same_layer, float_linear, mx_linear, random_x
from torch import Tensor, nn

from mxfp4_ops import Mxfp4Linear


def _saved(layer: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert isinstance(loaded, nn.Module)
    return loaded


@pytest.mark.parametrize(
    "duplicate",
    [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer)), _saved],
    ids=["deepcopy", "pickle", "torch.save"],
)
def test_duplicates(duplicate: Callable[[Mxfp4Linear], Mxfp4Linear]) -> None:
    layer = Mxfp4Linear.from_linear(float_linear(), scale_mode="ceil").eval()
    new = duplicate(layer)
    assert type(new) is Mxfp4Linear
    assert (new.scale_mode, new.training) == ("ceil", False)
    assert_same_layer(new, layer)
    assert not new.weight.requires_grad
    x = random_x(4, K)
    assert_same_bits(new(x), layer(x))
    new.reset_parameters()
    assert_same_layer(layer, Mxfp4Linear.from_linear(float_linear(), scale_mode="ceil"))


def test_state_dict_is_plain() -> None:
    state = mx_linear().state_dict()
    shapes = {name: (tuple(t.shape), t.dtype) for name, t in state.items()}
    assert shapes == {
        "weight": ((N, K // 2), torch.uint8),
        "weight_scale": ((N, K // 32), torch.uint8),
        "bias": ((N,), torch.float32),
    }


def copied() -> Mxfp4Linear:
    return Mxfp4Linear(K, N)


def emptied() -> Mxfp4Linear:
    return Mxfp4Linear(K, N, device="meta").to_empty(device="cpu")


def on_meta() -> Mxfp4Linear:
    return Mxfp4Linear(K, N, device="meta")


every_target = pytest.mark.parametrize(
    ("make", "assign"), [(copied, False), (emptied, False), (copied, True), (on_meta, True)]
)


@every_target
@pytest.mark.parametrize("native", [False, True], ids=["uint8", "float4"])
def test_load_state_dict(make: Callable[[], Mxfp4Linear], assign: bool, native: bool) -> None:
    source = mx_linear()
    state = source.state_dict()
    if native:
        state["weight"] = state["weight"].view(torch.float4_e2m1fn_x2)
        state["weight_scale"] = state["weight_scale"].view(torch.float8_e8m0fnu)
    given = dict(state)
    layer = make()
    layer.load_state_dict(state, assign=assign)
    assert_same_layer(layer, source)
    assert all(state[name] is given[name] for name in given)
    assert [n for n, p in layer.named_parameters() if p.requires_grad] == ["bias"]
    assert_same_bits(layer(random_x(2, K)), source(random_x(2, K)))


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("assign", [True, False])
@pytest.mark.parametrize("prefix", ["", "0."])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weight": torch.zeros(N, K)}, "weight must be uint8 or float4_e2m1fn_x2, got float32"),
        ({"weight": torch.zeros(N, K // 2)}, "weight must be uint8 or .*, got float32"),
        ({"weight": torch.zeros(N, K // 2, dtype=torch.int8)}, "weight must be .*, got int8"),
        (
            {"weight_scale": torch.ones(N, K // 32)},
            "weight_scale must be uint8 or float8_e8m0fnu, got float32",
        ),
        (
            {"weight_scale": torch.ones(N, K // 32).to(torch.float8_e4m3fn)},
            "weight_scale must be .*, got float8_e4m3fn",
        ),
        (
            {"weight": torch.zeros(N, K, dtype=torch.uint8)},
            r"size mismatch for (0\.)?weight: .*\[48, 96\].*\[48, 48\]",
        ),
        (
            {"weight_scale": torch.zeros(1, K // 32, dtype=torch.uint8)},
            r"size mismatch for (0\.)?weight_scale",
        ),
    ],
)
def test_load_state_dict_refuses(
    changes: dict[str, Tensor], message: str, prefix: str, assign: bool, strict: bool
) -> None:
    layer = mx_linear()
    model = nn.Sequential(layer) if prefix else layer
    state = {prefix + k: v for k, v in (mx_linear(seed=1).state_dict() | changes).items()}
    with pytest.raises(RuntimeError, match=message):
        model.load_state_dict(state, strict=strict, assign=assign)
    changed = next(iter(changes))
    assert_same_bits(layer.state_dict()[changed], mx_linear().state_dict()[changed])


@pytest.mark.parametrize("strict", [True, False])
def test_float_and_mxfp4_state_dicts_do_not_mix(strict: bool) -> None:
    layer, linear = mx_linear(), float_linear()
    with pytest.raises(RuntimeError, match="load a float checkpoint into the float model"):
        layer.load_state_dict(linear.state_dict(), strict=strict)
    with pytest.raises(RuntimeError, match="size mismatch for weight"):
        linear.load_state_dict(layer.state_dict(), strict=strict)
    assert_same_layer(layer, mx_linear())
    assert_same_layer(linear, float_linear())


@pytest.mark.parametrize("missing", ["weight", "weight_scale", "bias"])
def test_strict_loading_wants_every_tensor(missing: str) -> None:
    state = mx_linear(seed=1).state_dict()
    del state[missing]
    with pytest.raises(RuntimeError, match=f'Missing key.*"{missing}"'):
        mx_linear().load_state_dict(state)
    layer = mx_linear()
    result = layer.load_state_dict(state, strict=False)
    assert result.missing_keys == [missing]
    assert_same_bits(layer.state_dict()[missing], mx_linear().state_dict()[missing])


def test_strict_loading_wants_no_other_tensor() -> None:
    with pytest.raises(RuntimeError, match=r'Unexpected key.*"bias"'):
        mx_linear(bias=False).load_state_dict(mx_linear().state_dict())


@every_target
@pytest.mark.parametrize("native", [False, True], ids=["uint8", "e8m0"])
def test_safetensors_file(
    tmp_path: FilePath, make: Callable[[], Mxfp4Linear], assign: bool, native: bool
) -> None:
    source, file = mx_linear(), tmp_path / "layer.safetensors"
    state = source.state_dict()
    if native:
        state["weight_scale"] = state["weight_scale"].view(torch.float8_e8m0fnu)
    safetensors.torch.save_file(state, file)
    layer = make()
    layer.load_state_dict(safetensors.torch.load_file(file), assign=assign)
    assert_same_layer(layer, source)


def test_safetensors_model(tmp_path: FilePath) -> None:
    source, file = nn.Sequential(mx_linear(), nn.ReLU(), mx_linear(N + 16, N)), tmp_path / "model"
    safetensors.torch.save_model(source, str(file))
    model = nn.Sequential(Mxfp4Linear(K, N), nn.ReLU(), Mxfp4Linear(N + 16, N))
    missing, unexpected = safetensors.torch.load_model(model, file)
    assert not missing
    assert not unexpected
    assert_same_layer(model, source)
    floats = nn.Sequential(float_linear(), nn.ReLU(), float_linear(N + 16, N))
    safetensors.torch.save_model(floats, str(file))
    with pytest.raises(RuntimeError, match=r"0\.weight must be uint8"):
        safetensors.torch.load_model(model, file)
