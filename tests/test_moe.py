"""`Mxfp4Experts` and `swap_experts` against Transformers' own experts."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from typing import Any

import pytest
import torch
from common import Path, assert_same_bits, every_backend, generator
from torch import Tensor, nn

import mxfp4_ops
from mxfp4_ops import Mxfp4Experts, swap_experts

pytest.importorskip("transformers", reason="Transformers is not installed")

from tiny_gpt_oss import (
    QuantizedActivations,
    float_experts,
    float_model,
    on_mxfp4_weights,
    quantized,
)

ACTIVATIONS: tuple[Any, ...] = ("mxfp4", "bf16")
every_activation = pytest.mark.parametrize("activation", ACTIVATIONS)


def routed(
    tokens: int, top_k: int = 2, *, among: int = 4, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens with their experts, all different, and weights."""
    g = generator(tokens)
    x = 2 * torch.randn(tokens, 64, generator=g)
    scores = torch.randn(tokens, among, generator=g)
    values, indices = scores.topk(top_k)
    return x.to(dtype), indices, values.softmax(-1).to(dtype)


def to(device: str, *tensors: Tensor) -> list[Tensor]:
    return [t.to(device) for t in tensors]


@every_backend
@every_activation
@pytest.mark.parametrize("tokens", [1, 3, 40])
@pytest.mark.parametrize("top_k", [1, 2, 4])
def test_as_transformers_does_it(path: Path, activation: Any, tokens: int, top_k: int) -> None:
    """In float64, on the same weights, with activations quantised or not."""
    float_ones = float_experts()
    x, indices, weights = routed(tokens, top_k)
    reference = on_mxfp4_weights(float_ones)
    with QuantizedActivations(activation == "mxfp4") as seen, torch.no_grad():
        exact = reference(x.double(), indices, weights.double())
    with path.active(), torch.no_grad():
        layer = Mxfp4Experts.from_experts(float_ones.to(path.device), activation=activation)
        y = layer(*to(path.device, x, indices, weights)).cpu()
    assert y.dtype == torch.float32

    first, second = (max(s.max() for s in seen.sizes[i::2]) for i in (0, 1))
    tolerance = 2e-6 * second
    if activation == "bf16":
        # No gate or value changes the SwiGLU by more than 10 times its own change.
        tolerance += 2 * 10 * 1e-6 * first * reference.down_proj.abs().sum(1).max()
    assert (y.double() - exact).abs().max() <= tolerance
    assert exact.abs().max() > 1000 * tolerance


def test_what_the_test_above_relies_on() -> None:
    """Gates and values reach their limits, and quantising activations makes a difference."""
    reference = on_mxfp4_weights(float_experts())
    x, indices, weights = routed(40)
    results = []
    for active in (False, True):
        with QuantizedActivations(active) as seen, torch.no_grad():
            results.append(reference(x.double(), indices, weights.double()))
    gate_up = seen.given[0] @ reference.gate_up_proj[0] + reference.gate_up_proj_bias[0]
    assert (gate_up[:, ::2] > 7).any()
    assert (gate_up[:, 1::2].abs() > 7).any()
    assert (results[0] - results[1]).abs().max() > 0.1


@every_backend
@every_activation
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_16_bits(path: Path, activation: Any, dtype: torch.dtype) -> None:
    """As close to float64 as Transformers' experts of that dtype, on the same weights."""
    float_ones = float_experts()
    x, indices, weights = routed(40, dtype=dtype)
    exact = on_mxfp4_weights(float_ones)
    theirs = on_mxfp4_weights(float_ones, dtype)
    with QuantizedActivations(activation == "mxfp4"), torch.no_grad():
        expected = exact(x.double(), indices, weights.double())
        error = (theirs(x, indices, weights).double() - expected).norm()
    layer = Mxfp4Experts.from_experts(float_ones, activation=activation).to(path.device, dtype)
    with path.active(), torch.no_grad():
        y = layer(*to(path.device, x, indices, weights)).cpu()
    assert y.dtype == dtype
    assert layer.gate_up_proj.dtype == torch.uint8
    assert (y.double() - expected).norm() <= 1.1 * error


@every_activation
def test_tokens_do_not_depend_on_each_other(activation: Any) -> None:
    layer = Mxfp4Experts.from_experts(float_experts(), activation=activation)
    x, indices, weights = routed(20)
    with torch.no_grad():
        y = layer(x, indices, weights)
        for t in (0, 7, 19):
            one = layer(x[t : t + 1], indices[t : t + 1], weights[t : t + 1])
            assert_same_bits(one, y[t : t + 1])
        swapped = layer(x, indices.flip(1), weights.flip(1))
        assert_same_bits(swapped, y)
        assert layer(x[:0], indices[:0], weights[:0]).shape == (0, 64)
        assert_same_bits(layer(x, indices.int(), weights), y)


@every_backend
@every_activation
def test_gradients_are_those_of_the_dequantised_weights(path: Path, activation: Any) -> None:
    """Of float experts that are given what this layer multiplies."""
    float_ones = float_experts()
    layer = Mxfp4Experts.from_experts(float_ones.to(path.device), activation=activation)
    x, indices, weights = to(path.device, *routed(10))
    x.requires_grad_()
    weights.requires_grad_()
    with path.active():
        layer(x, indices, weights).square().sum().backward()
    assert layer.down_proj_bias.grad is not None
    assert weights.grad is not None
    if activation == "bf16":
        reference, theirs = on_mxfp4_weights(float_ones.cpu()), x.detach().cpu().double()
        theirs.requires_grad_()
        reference(theirs, indices.cpu(), weights.detach().cpu().double()).square().sum().backward()
        assert x.grad is not None
        assert theirs.grad is not None
        pairs: tuple[tuple[Any, Any], ...] = (
            (x.grad, theirs.grad),
            (layer.gate_up_proj_bias.grad, reference.gate_up_proj_bias.grad),
            (layer.down_proj_bias.grad, reference.down_proj_bias.grad),
        )
        for ours, exact in pairs:
            assert (ours.cpu().double() - exact).norm() <= 1e-5 * exact.norm()


def test_from_codes() -> None:
    layer = Mxfp4Experts.from_experts(float_experts(), scale_mode="ceil")
    files: dict[str, Any] = {
        name: (
            getattr(layer, name).unflatten(2, (-1, 16)),
            getattr(layer, f"{name}_scale"),
            getattr(layer, f"{name}_bias"),
        )
        for name in ("gate_up_proj", "down_proj")
    }
    again = Mxfp4Experts.from_codes(**files, scale_mode="ceil")
    assert again.gate_up_proj.data_ptr() == layer.gate_up_proj.data_ptr()
    assert again.down_proj_bias is layer.down_proj_bias
    with torch.no_grad():
        assert_same_bits(again(*routed(5)), layer(*routed(5)))

    codes, scales, bias = files["down_proj"]
    for wrong in (
        (codes[:, :32], scales, bias),
        (codes, scales[:3], bias),
        (codes, scales.float(), bias),
        (codes, scales, bias[:, :3]),
        (codes, scales, bias.double()),
        (codes[0, 0], scales, bias),
    ):
        with pytest.raises(ValueError, match=r"^(gate_up|down)_proj\w* must be"):
            Mxfp4Experts.from_codes(files["gate_up_proj"], wrong)


@every_activation
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies(activation: Any, copied: Any) -> None:
    layer = Mxfp4Experts.from_experts(float_experts(), activation=activation)
    again = copied(layer)
    assert again.activation == activation
    with torch.no_grad():
        assert_same_bits(again(*routed(5)), layer(*routed(5)))
    assert (activation in repr(layer)) == (activation == "bf16")


def test_state_dicts() -> None:
    layer = Mxfp4Experts.from_experts(float_experts())
    state = layer.state_dict()
    again = Mxfp4Experts(4, 64, 96)
    with torch.no_grad():
        assert_same_bits(again(*routed(5)), torch.zeros(5, 64))
    typed = state | {
        "down_proj": state["down_proj"].view(torch.float4_e2m1fn_x2),
        "down_proj_scale": state["down_proj_scale"].view(torch.float8_e8m0fnu),
    }
    again.load_state_dict(typed)
    for name, value in again.state_dict().items():
        assert_same_bits(value, state[name])
    with pytest.raises(RuntimeError, match="down_proj must be uint8 or"):
        again.load_state_dict(state | {"down_proj": float_experts().down_proj.detach()})


def test_dequantize() -> None:
    float_ones = float_experts()
    values = Mxfp4Experts.from_experts(float_ones).dequantize()
    exact = on_mxfp4_weights(float_ones)
    for name in ("gate_up_proj", "down_proj"):
        assert_same_bits(values[name], getattr(exact, name).detach().float())


def _parametrized() -> Any:
    experts = float_experts()
    nn.utils.parametrizations.weight_norm(experts, "down_proj")
    return experts


def _hooked() -> Any:
    experts = float_experts()
    experts._hf_hook = object()
    return experts


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.Linear(32, 32), "it is a Linear, not a GptOssExperts"),
        (lambda: float_experts(hidden_size=40), "hidden_size must be a multiple of 32, but is 40"),
        (lambda: float_experts(intermediate_size=48), "intermediate_size must be a multiple"),
        (lambda: float_experts(torch.float64), "its gate_up_proj is float64"),
        (_parametrized, "ParametrizedGptOssExperts, not a GptOssExperts"),
        (_hooked, "accelerate has hooked its forward"),
    ],
)
def test_what_cannot_be_converted(make: Any, message: str) -> None:
    experts = make()
    with pytest.raises(ValueError, match=message):
        Mxfp4Experts.from_experts(experts)
    if "GptOssExperts" in type(experts).__name__:
        model = nn.ModuleDict({"experts": experts})
        report = swap_experts(model, progress=False)
        assert message in report.skipped["experts"]
        assert model["experts"] is experts


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden_size": 40}, "hidden_size must be a multiple of 32"),
        ({"intermediate_size": 1}, "intermediate_size must be a multiple of 32"),
        ({"scale_mode": "round"}, "scale_mode must be"),
        ({"activation": "fp8"}, "activation must be"),
        ({"dtype": torch.float64}, "dtype must be"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], message: str) -> None:
    sizes = {"num_experts": 2, "hidden_size": 32, "intermediate_size": 32}
    with pytest.raises(ValueError, match=message):
        Mxfp4Experts(**sizes | options)


def test_swap_experts() -> None:
    model = float_model()
    report = swap_experts(
        model, skip=["layers.1"], scale_mode="floor", activation="bf16", progress=False
    )
    names = [f"model.layers.{i}.mlp.experts" for i in (0, 1)]
    assert report.swapped == names[:1]
    assert report.skipped == {names[1]: "skip pattern 'layers.1'"}
    assert str(report).startswith("1 experts swapped, 1 skipped; ")
    assert report.bytes_saved > 0
    layer = model.get_submodule(names[0])
    assert (layer.activation, layer.scale_mode) == ("bf16", "floor")
    assert not layer.training
    again = swap_experts(model, filter_fn=lambda name, module: False, progress=False)
    assert again.skipped == {names[0]: "already swapped", names[1]: "filter_fn"}
    swap_experts(model, progress=False)
    assert isinstance(model.get_submodule(names[1]), Mxfp4Experts)
    mistakes: list[dict[str, Any]] = [{"skip": "experts"}, {"activation": "fp8"}]
    for wrong in [*mistakes, {"scale_mode": "x"}]:
        with pytest.raises(ValueError, match=next(iter(wrong))):
            swap_experts(model, progress=False, **wrong)
    with pytest.raises(ValueError, match="cannot be replaced in place"):
        swap_experts(float_experts())


def test_hooks_are_kept_and_can_be_removed() -> None:
    model = nn.ModuleDict({"experts": float_experts()})
    seen: list[str] = []
    handles = [
        model["experts"].register_forward_hook(lambda *_: seen.append("after")),
        model["experts"].register_forward_pre_hook(
            lambda *_: seen.append("before"), with_kwargs=True
        ),
    ]
    swap_experts(model, progress=False)
    model["experts"](*routed(3))
    assert seen == ["before", "after"]
    for handle in handles:
        handle.remove()
    model["experts"](*routed(3))
    assert seen == ["before", "after"]


def test_the_progress_bar_names_layers(capsys: pytest.CaptureFixture[str]) -> None:
    swap_experts(float_model())
    assert "2/2 experts" in capsys.readouterr().err


def test_on_the_meta_device() -> None:
    with torch.device("meta"):
        model = nn.ModuleDict({"experts": float_experts()})
    swap_experts(model, progress=False)
    assert {p.device.type for p in model.parameters()} == {"meta"}
    state = {
        f"experts.{name}": value
        for name, value in Mxfp4Experts.from_experts(float_experts()).state_dict().items()
    }
    model.load_state_dict(state, assign=True)
    with torch.no_grad():
        expected = Mxfp4Experts.from_experts(float_experts())(*routed(5))
        assert_same_bits(model["experts"](*routed(5)), expected)


def as_transformers(model: Any, activation: str) -> Any:
    """The float model on MXFP4 weights, its experts' activations quantised or not."""
    model = copy.deepcopy(model)
    for layer in model.model.layers:
        experts = on_mxfp4_weights(layer.mlp.experts, torch.float32)
        forward = experts.forward

        def run(*args: Any, _forward: Any = forward) -> Any:
            with QuantizedActivations(activation == "mxfp4"):
                return _forward(*args)

        experts.forward = run
        layer.mlp.experts = experts
    return model


@every_activation
def test_a_whole_model(activation: Any) -> None:
    """Logits and generated tokens of gpt-oss from its config, swapped, as Transformers has them."""
    model = float_model()
    expected = as_transformers(model, activation)
    float_logits = model(torch.arange(24).view(2, 12)).logits
    swap_experts(model, activation=activation, progress=False)
    tokens = torch.arange(24).view(2, 12)
    with torch.no_grad():
        logits, theirs = model(tokens).logits, expected(tokens).logits
        assert (logits - theirs).norm() <= 1e-5 * theirs.norm()
        assert (logits - float_logits).norm() > 1e-2 * theirs.norm()
        options = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
        generated = model.generate(tokens, **options)
        assert torch.equal(generated, expected.generate(tokens, **options))
    assert generated.shape == (2, 24)


def test_a_model_whose_linear_layers_are_swapped_too() -> None:
    model = float_model().bfloat16()
    experts = swap_experts(model, progress=False)
    linears = mxfp4_ops.swap_linear(model, skip=["lm_head"], progress=False)
    assert len(experts.swapped) == 2
    assert len(linears.swapped) == 8
    with torch.no_grad():
        out = model.generate(
            torch.arange(12).view(1, 12), max_new_tokens=4, do_sample=False, pad_token_id=0
        )
    assert out.shape == (1, 16)


def test_compiled() -> None:
    torch._dynamo.reset()
    layer = Mxfp4Experts.from_experts(float_experts()).requires_grad_(False)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True, dynamic=True)
    for tokens in (5, 9, 3):
        assert_same_bits(compiled(*routed(tokens)), layer(*routed(tokens)))


def test_autocast() -> None:
    layer = Mxfp4Experts.from_experts(float_experts(), activation="bf16").requires_grad_(False)
    x, indices, weights = routed(5)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x, indices, weights)
    assert y.dtype == torch.float32
    assert 0 < (y - layer(x, indices, weights)).norm() < 0.1 * y.norm()


def test_quantized_is_not_the_identity() -> None:
    x = torch.randn(4, 64)
    assert not torch.equal(quantized(x), x)


def test_importing_the_package_imports_no_transformers() -> None:
    code = "import sys, mxfp4_ops; print('transformers' in sys.modules)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
