"""`Mxfp4Linear`: its numbers, and that its codes survive every conversion."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from common import DTYPES, MODES, Path, Product, assert_same_bits, every_path
from linears import K, N, assert_same_layer, float_linear, mx, mx_linear, mx_mlp, random_x
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune
from torch.testing._internal.two_tensor import TwoTensor

import mxfp4_ops
from mxfp4_ops import Mxfp4Linear, ScaleMode
from mxfp4_ops.formats import dequantize_reference, quantize_reference


@every_path
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("bias", [True, False])
def test_forward(path: Path, dtype: torch.dtype, mode: ScaleMode, bias: bool) -> None:
    linear = float_linear(bias=bias, dtype=dtype)
    x = random_x(2, 3, K, dtype=dtype)
    w = dequantize_reference(*quantize_reference(linear.weight.detach(), mode), torch.float64)
    a = dequantize_reference(*quantize_reference(x.flatten(0, 1), mode), torch.float64)
    with path.active(), torch.no_grad():
        layer = Mxfp4Linear.from_linear(linear.to(path.device), scale_mode=mode)
        y = layer(x.to(path.device))
        pieces = torch.ops.mxfp4.quant_mm(
            x.to(path.device), layer.weight, layer.weight_scale, layer.bias, scale_mode=mode
        )
    assert_same_bits(y, pieces)
    assert y.dtype == dtype
    Product.of(a, w, linear.bias).check(y.flatten(0, 1))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_from_linear_quantises_the_weight(dtype: torch.dtype, mode: ScaleMode) -> None:
    linear = float_linear(dtype=dtype)
    before = linear.weight.detach().clone()
    layer = Mxfp4Linear.from_linear(linear, scale_mode=mode)
    codes, scales = quantize_reference(before, mode)
    assert_same_bits(layer.weight, codes)
    assert_same_bits(layer.weight_scale, scales)
    assert layer.scale_mode == mode
    assert_same_bits(linear.weight, before)
    assert linear.weight.requires_grad


@pytest.mark.parametrize("training", [True, False])
def test_from_linear_keeps_bias_and_mode(training: bool) -> None:
    linear = float_linear().train(training)
    layer = Mxfp4Linear.from_linear(linear)
    assert layer.bias is linear.bias
    assert layer.training is training
    assert (layer.in_features, layer.out_features) == (K, N)
    assert isinstance(layer, nn.Linear)
    assert [n for n, p in layer.named_parameters() if p.requires_grad] == ["bias"]
    assert Mxfp4Linear.from_linear(float_linear(bias=False)).bias is None


def test_from_linear_reads_any_strides() -> None:
    linear = float_linear()
    linear.weight = nn.Parameter(linear.weight.detach().T.contiguous().T)
    assert not linear.weight.is_contiguous()
    assert_same_layer(Mxfp4Linear.from_linear(linear), mx_linear())


@pytest.mark.parametrize(("k", "n"), [(0, 5), (32, 0)])
def test_empty_layer(k: int, n: int) -> None:
    with pytest.warns(UserWarning, match="zero-element"):
        linear = nn.Linear(k, n)
    y = Mxfp4Linear.from_linear(linear)(torch.ones(3, k))
    assert_same_bits(y, linear.bias.detach().expand(3, n))


def test_layer_made_under_inference_mode_takes_part_in_a_backward_pass() -> None:
    linear = float_linear()
    with torch.inference_mode():
        layer = Mxfp4Linear.from_linear(linear)
    x = random_x(2, K).requires_grad_()
    layer(x).sum().backward()
    assert x.grad is not None


def _weight_norm() -> nn.Linear:
    with pytest.warns(FutureWarning, match="weight_norm"):
        linear = nn.utils.weight_norm(float_linear())
    assert isinstance(linear, nn.Linear)
    return linear


def _pruned_bias() -> nn.Linear:
    linear = float_linear()
    prune.l1_unstructured(linear, "bias", 3)
    return linear


def _with_weight(weight: Tensor) -> nn.Linear:
    linear = float_linear()
    linear.weight = nn.Parameter(weight)
    return linear


def _with_float64_bias() -> nn.Linear:
    linear = float_linear()
    linear.bias = nn.Parameter(torch.zeros(N, dtype=torch.float64))
    return linear


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: float_linear(k=40), "in_features must be a multiple of 32, but is 40"),
        (lambda: float_linear(dtype=torch.float64), "its weight is float64, not bfloat16 or"),
        (mx_linear, "its weight is uint8, not bfloat16 or"),
        (_with_float64_bias, "its bias is float64, not bfloat16 or"),
        (lambda: nn.Conv2d(32, 32, 1), "it is a Conv2d, not an nn.Linear"),
        (lambda: _with_weight(torch.zeros(64)), "its weight is a 1-d torch.strided tensor"),
        (lambda: _with_weight(torch.eye(32).to_sparse()), "its weight is a 2-d torch.sparse_coo"),
        (
            lambda: _with_weight(TwoTensor(torch.eye(32), torch.eye(32))),
            "its weight is a TwoTensor, not a plain tensor",
        ),
        (_weight_norm, "its weight or bias is computed"),
        (lambda: parametrizations.weight_norm(float_linear()), "its weight or bias is computed"),
        (_pruned_bias, "its weight or bias is computed"),
    ],
)
def test_from_linear_refuses(make: Callable[[], nn.Linear], message: str) -> None:
    linear = make()
    with pytest.raises(ValueError, match=message):
        Mxfp4Linear.from_linear(linear)


@pytest.mark.parametrize("bias", [True, False])
def test_constructor_makes_a_layer_of_zeros(bias: bool) -> None:
    layer = Mxfp4Linear(K, N, bias, dtype=torch.bfloat16)
    zeros = nn.Linear(K, N, bias, dtype=torch.bfloat16)
    for parameter in zeros.parameters():
        nn.init.zeros_(parameter)
    assert_same_layer(layer, Mxfp4Linear.from_linear(zeros))
    assert torch.equal(layer(random_x(2, K)), torch.zeros(2, N))


def test_reset_parameters_gives_zeros() -> None:
    layer = mx_linear()
    layer.reset_parameters()
    assert_same_layer(layer, Mxfp4Linear(K, N))
    with torch.device("meta"):
        layer = Mxfp4Linear(K, N)
    layer.to_empty(device="cpu").reset_parameters()
    assert_same_layer(layer, Mxfp4Linear(K, N))


def test_constructor_checks_its_arguments() -> None:
    with pytest.raises(ValueError, match="in_features must be a multiple of 32, but is 33"):
        Mxfp4Linear(33, 8)
    with pytest.raises(ValueError, match="scale_mode must be 'even', 'floor' or 'ceil', got 'odd'"):
        Mxfp4Linear(32, 8, scale_mode="odd")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="dtype must be bfloat16 or float16 or float32, got float"):
        Mxfp4Linear(32, 8, dtype=torch.float64)
    Mxfp4Linear(32, 8, bias=False, dtype=torch.float64)


@pytest.mark.parametrize(
    ("convert", "dtype"),
    [
        (lambda m: m.half(), torch.float16),
        (lambda m: m.bfloat16(), torch.bfloat16),
        (lambda m: m.double(), torch.float64),
        (lambda m: m.to(torch.bfloat16), torch.bfloat16),
        (lambda m: m.to("cpu", torch.float16), torch.float16),
        (lambda m: m.type(torch.float16), torch.float16),
        (lambda m: nn.Sequential(m).type(torch.float16), torch.float16),
        (lambda m: nn.Sequential(m).half().float(), torch.float32),
    ],
)
def test_dtype_conversions_reach_the_bias_only(
    convert: Callable[[nn.Module], nn.Module], dtype: torch.dtype
) -> None:
    layer, before = mx_linear(), mx_linear()
    convert(layer)
    assert_same_bits(layer.weight, before.weight)
    assert_same_bits(layer.weight_scale, before.weight_scale)
    assert layer.bias is not None
    assert layer.bias.dtype == dtype


def test_meta_device() -> None:
    for layer in (
        mx_linear().to("meta"),
        Mxfp4Linear.from_linear(float_linear().to("meta")),
        Mxfp4Linear(K, N, device="meta"),
    ):
        assert {p.device.type for p in layer.parameters()} == {"meta"}
        assert layer(torch.empty(5, K, device="meta")).shape == (5, N)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_to_gpu_and_back() -> None:
    layer, before = mx_linear(), mx_linear()
    layer.to("cuda")
    assert {p.device.type for p in layer.parameters()} == {"cuda"}
    assert_same_layer(layer.cpu(), before)


@pytest.mark.parametrize("dtype", [None, *DTYPES], ids=str)
def test_dequantize_and_to_linear(dtype: torch.dtype | None) -> None:
    layer = mx_linear().eval()
    expected = dequantize_reference(layer.weight, layer.weight_scale, dtype or torch.float32)
    assert_same_bits(layer.dequantize(dtype), expected)
    linear = layer.to_linear(dtype)
    assert type(linear) is nn.Linear
    assert not linear.training
    assert_same_bits(linear.weight, expected)
    assert layer.bias is not None
    assert linear.bias.data_ptr() != layer.bias.data_ptr()
    assert_same_bits(linear.bias, layer.bias.to(expected.dtype))
    assert all(p.requires_grad for p in linear.parameters())
    x = random_x(3, K, dtype=expected.dtype)
    assert_same_bits(linear(x), F.linear(x, expected, layer.bias.to(expected.dtype)))


def test_to_linear_without_bias_is_bfloat16_and_reversible() -> None:
    layer = mx_linear(bias=False)
    linear = layer.to_linear()
    assert linear.bias is None
    assert linear.weight.dtype == torch.bfloat16
    again = Mxfp4Linear.from_linear(linear)
    assert_same_bits(again.dequantize(torch.float32), layer.dequantize(torch.float32))


def test_repr() -> None:
    shown = "in_features=96, out_features=48, bias=False, scale_mode='ceil'"
    assert repr(Mxfp4Linear(96, 48, bias=False, scale_mode="ceil")) == f"Mxfp4Linear({shown})"


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("train", [False, True])
def test_compile(backend: str, autocast: bool, train: bool) -> None:
    torch.compiler.reset()
    model = mx_mlp().train(train)
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    for m in (1, 5, 17):
        x = random_x(m, 64).requires_grad_(train)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            y, expected = compiled(x), model(x)
        assert_same_bits(y, expected)
        if train:
            g = random_x(m, 32).to(y.dtype)
            (actual,), (grad,) = (torch.autograd.grad(t, x, g) for t in (y, expected))
            assert_same_bits(actual, grad)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_autocast_and_grad_modes(context: Callable[[], torch.no_grad]) -> None:
    model, x = mx_mlp(), random_x(3, 64)
    assert model(x).dtype == torch.float32
    with context(), torch.autocast("cpu", torch.bfloat16):
        y = model(x)
    assert y.dtype == torch.bfloat16
    first, second = mx(model, "0"), mx(model, "2")
    with torch.no_grad():
        h = mxfp4_ops.quant_mm(x.bfloat16(), first.weight, first.weight_scale, first.bias)
        expected = mxfp4_ops.quant_mm(h.relu(), second.weight, second.weight_scale, second.bias)
    assert_same_bits(y, expected)


def test_gradients() -> None:
    """Straight-through for x, exact for the biases, against the same chain in float64."""
    model = mx_mlp()
    first, second = mx(model, "0"), mx(model, "2")
    x = random_x(6, 64).requires_grad_()
    g = random_x(6, 32, seed=3)
    model(x).backward(g)

    w1, w2 = (m.dequantize(torch.float32).double() for m in (first, second))
    open_gates = (first(x) > 0).double()
    above = g.double() @ w2 * open_gates
    grads = {x: above @ w1, first.bias: above.sum(0), second.bias: g.double().sum(0)}
    sizes = g.double().abs() @ w2.abs() * open_gates
    # At most 32 + 96 float32 additions on the way to each value, and a rounding each of 3 results.
    eps = (32 + 96 + 3) * 2.0**-24
    bounds = {x: sizes @ w1.abs(), first.bias: sizes.sum(0), second.bias: g.double().abs().sum(0)}
    for t, expected in grads.items():
        assert t is not None
        assert t.grad is not None
        assert ((t.grad.double() - expected).abs() <= eps * bounds[t]).all()
    assert first.weight.grad is None
    assert first.weight_scale.grad is None


def test_an_optimizer_step_moves_the_biases_only() -> None:
    model, before = mx_mlp(), mx_mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(random_x(4, 64)).square().sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    for (name, actual), expected in zip(model.named_parameters(), before.parameters(), strict=True):
        assert torch.equal(actual, expected) is not name.endswith("bias")
