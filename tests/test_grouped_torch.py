"""`grouped_quant_mm` inside PyTorch: gradients, FLOPs, vmap, compile, export, graphs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from common import DTYPES, Path, assert_same_bits, every_backend, every_dtype
from experts import Experts
from test_autograd import given, gradient_of_bias, gradient_of_x
from torch import Tensor, vmap
from torch.utils.flop_counter import FlopCounterMode

grouped_quant_mm = torch.ops.mxfp4.grouped_quant_mm


@every_backend
@every_dtype
@pytest.mark.parametrize("out_dtype", DTYPES, ids=str)
def test_gradients(path: Path, dtype: torch.dtype, out_dtype: torch.dtype) -> None:
    case = Experts.of([3, 0, 18, 1], 40, 96, dtype=dtype, bias=dtype)
    x, codes, scales, offsets, bias = case.arguments(path.device)
    x, bias = x.requires_grad_(), bias.requires_grad_()
    with path.active():
        y = grouped_quant_mm(x, codes, scales, offsets, bias, out_dtype=out_dtype)
        grad = torch.randn(y.shape).to(y)
        y.backward(grad)
    assert given(x).dtype == dtype
    assert given(bias).dtype == dtype
    for expert, rows in enumerate(case.groups):
        gradient_of_x(grad[rows], case.values(expert)).check(given(x)[rows])
        gradient_of_bias(grad[rows]).check(given(bias)[expert])


@every_backend
def test_only_what_asks_gets_a_gradient(path: Path) -> None:
    for asks in ((True, False), (False, True)):
        case = Experts.of([3, 0, 2], 40, 96, dtype=torch.float32, bias=torch.float32)
        x, *middle, bias = case.arguments(path.device)
        with path.active():
            x.requires_grad_(asks[0])
            bias.requires_grad_(asks[1])
            grouped_quant_mm(x, *middle, bias).sum().backward()
        assert (x.grad is not None, bias.grad is not None) == asks


@every_backend
def test_gradient_of_the_gradient(path: Path) -> None:
    case = Experts.of([3, 0, 2], 40, 96, dtype=torch.float32)
    x, *rest = case.arguments(path.device)
    grad = torch.randn(5, 40, device=path.device, requires_grad=True)
    v = torch.randn(5, 96)
    with path.active():
        y = grouped_quant_mm(x.requires_grad_(), *rest)
        (grad_x,) = torch.autograd.grad(y, x, grad, create_graph=True)
        (actual,) = torch.autograd.grad(grad_x, grad, v.to(path.device))
    for expert, rows in enumerate(case.groups):
        gradient_of_x(v[rows], case.values(expert).T).check(actual[rows])


@every_backend
def test_flops(path: Path) -> None:
    case = Experts.of([3, 0, 18, 1], 40, 96)
    with path.active(), FlopCounterMode(display=False) as counter:
        grouped_quant_mm(*case.arguments(path.device))
    assert counter.get_total_flops() == 2 * 22 * 40 * 96


@every_backend
def test_vmap_is_a_loop(path: Path) -> None:
    cases = [Experts.of([3, 0, 2], 24, 96, seed=seed) for seed in range(3)]
    each = [case.arguments(path.device)[:-1] for case in cases]
    with path.active():
        batch = vmap(grouped_quant_mm)(*map(torch.stack, zip(*each, strict=True)))
        for y, arguments in zip(batch, each, strict=True):
            assert_same_bits(y, grouped_quant_mm(*arguments))


@every_backend
@pytest.mark.parametrize("training", [False, True])
def test_compiled(path: Path, training: bool) -> None:
    torch._dynamo.reset()

    def function(*args: Tensor) -> Any:
        return grouped_quant_mm(*args).float() * 2

    compiled = torch.compile(function, backend="aot_eager", fullgraph=True, dynamic=True)
    for counts in ([3, 0, 2], [1, 1, 6], [4, 2, 0]):
        case = Experts.of(counts, 24, 96, bias=torch.float32)
        gradients = []
        for call in (function, compiled):
            x, *rest = case.arguments(path.device)
            with path.active():
                y = call(x.requires_grad_(training), *rest)
                if training:
                    y.sum().backward()
            gradients.append((y.detach(), x.grad))
        assert_same_bits(gradients[0][0], gradients[1][0])
        if training:
            assert_same_bits(gradients[0][1], gradients[1][1])


def test_exported_for_any_number_of_rows() -> None:
    class Layer(torch.nn.Module):
        def forward(self, *args: Tensor) -> Any:
            return grouped_quant_mm(*args)

    case = Experts.of([3, 0, 2], 24, 96)
    rows = torch.export.Dim("rows", min=1, max=4096)
    shapes = (({0: rows}, None, None, None),)
    program = torch.export.export(Layer(), tuple(case.arguments()[:-1]), dynamic_shapes=shapes)
    for counts in ([1, 0, 0], [7, 9, 300]):
        other = Experts.of(counts, 24, 96)
        other.check(program.module()(*other.arguments()[:-1]))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_captured_in_a_graph() -> None:
    """Offsets may change from replay to replay: nobody looked at them."""
    case = Experts.of([3, 0, 18, 1], 40, 96, bias=torch.bfloat16)
    x, codes, scales, offsets, bias = case.arguments("cuda")
    grouped_quant_mm(x, codes, scales, offsets, bias)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = grouped_quant_mm(x, codes, scales, offsets, bias)
    for counts in ([3, 0, 18, 1], [0, 22, 0, 0], [5, 5, 6, 6]):
        other = Experts.of(counts, 40, 96, bias=torch.bfloat16, seed=len(set(counts)))
        for mine, theirs in zip(
            (x, codes, scales, offsets, bias), other.arguments("cuda"), strict=True
        ):
            mine.copy_(theirs)
        graph.replay()
        other.check(y.cpu())
        assert_same_bits(y, grouped_quant_mm(x, codes, scales, offsets, bias))
