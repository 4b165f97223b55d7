"""Gradients against float64, FLOP counts, autocast."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from common import (
    DTYPES,
    Path,
    Product,
    activation,
    assert_same_bits,
    every_backend,
    every_dtype,
    plain_and_shuffled,
    random_codes,
    random_weight,
)
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import mxfp4_ops

ops = torch.ops.mxfp4


def gradient_of_x(grad: Tensor, values: Tensor) -> Product:
    """grad @ W in float64. A float32 sum of n terms is off by at most n * 2**-24 of their sizes."""
    exact, sizes = grad.cpu().double() @ values, grad.cpu().double().abs() @ values.abs()
    bound = len(values) * 2.0**-24 * sizes
    if grad.dtype == torch.bfloat16:  # the product itself is rounded to bfloat16
        bound = bound + 2.0**-8 * (exact.abs() + bound)
    return Product(exact, bound)


def gradient_of_bias(grad: Tensor) -> Product:
    """Column sums of grad in float64, with the same bound on a float32 sum."""
    rows = grad.cpu().double().reshape(-1, grad.shape[-1])
    return Product(rows.sum(0), len(rows) * 2.0**-24 * rows.abs().sum(0))


def given(t: Tensor) -> Tensor:
    assert t.grad is not None
    return t.grad


@every_backend
@every_dtype
@pytest.mark.parametrize("out_dtype", DTYPES, ids=str)
@plain_and_shuffled
@pytest.mark.parametrize("lead", [(), (6,), (2, 3), (0,)], ids=str)
@pytest.mark.parametrize("op", [ops.quant_mm, ops.mm_a16], ids=str)
def test_products_of_floats(
    path: Path,
    op: Callable[..., Tensor],
    dtype: torch.dtype,
    out_dtype: torch.dtype,
    shuffled: bool,
    lead: tuple[int, ...],
) -> None:
    weight = random_weight(40, 96)
    values = weight.padded_values(shuffled)
    x = activation(*lead, 96, dtype=dtype).to(path.device).requires_grad_()
    bias = torch.randn(len(values), dtype=dtype, device=path.device, requires_grad=True)
    with path.active():
        operands = weight.on(path.device, shuffled)
        y = op(x, *operands, bias, out_dtype=out_dtype, shuffled=shuffled)
        grad = torch.randn(y.shape).to(y)
        y.backward(grad)
    gradient_of_x(grad, values).check(given(x))
    gradient_of_bias(grad).check(given(bias))
    assert given(x).dtype == dtype
    assert given(bias).dtype == dtype


@every_backend
@every_dtype
@plain_and_shuffled
@pytest.mark.parametrize("lead", [(), (6,), (2, 3)], ids=str)
def test_bias_of_mm(path: Path, dtype: torch.dtype, shuffled: bool, lead: tuple[int, ...]) -> None:
    operands = random_weight(40, 96).on(path.device, shuffled)
    left = (t.to(path.device) for t in random_codes(*lead, 96))
    bias = torch.randn(len(operands[0]), device=path.device, requires_grad=True)
    with path.active():
        y = ops.mm(*left, *operands, bias, out_dtype=dtype, shuffled=shuffled)
        grad = torch.randn(y.shape).to(y)
        y.backward(grad)
    gradient_of_bias(grad).check(given(bias))


@every_backend
def test_only_what_asks_gets_a_gradient(path: Path) -> None:
    operands = random_weight(40, 96).on(path.device)
    for x_asks, bias_asks in ((True, False), (False, True)):
        x = torch.randn(3, 96, device=path.device, requires_grad=x_asks)
        bias = torch.randn(40, device=path.device, requires_grad=bias_asks)
        with path.active():
            ops.quant_mm(x, *operands, bias).sum().backward()
        assert (x.grad is not None) == x_asks
        assert (bias.grad is not None) == bias_asks
    with path.active():
        without = ops.quant_mm(torch.randn(3, 96, device=path.device), *operands)
    assert not without.requires_grad


@every_backend
def test_scales_in_torchs_float_dtype_get_no_gradient(path: Path) -> None:
    codes, scales = random_weight(40, 96).on(path.device)
    scales = scales.view(torch.float8_e8m0fnu).requires_grad_()
    x = torch.randn(3, 96, device=path.device, requires_grad=True)
    with path.active():
        ops.quant_mm(x, codes, scales).sum().backward()
    assert scales.grad is None
    assert x.grad is not None


@every_backend
def test_used_twice(path: Path) -> None:
    """Gradients of two uses of x, and of two uses of a result, add up."""
    first, second = random_weight(40, 96), random_weight(24, 96)
    x = activation(5, 96, dtype=torch.float32).to(path.device).requires_grad_()
    with path.active():
        y = ops.quant_mm(x, *first.on(path.device))
        z = ops.quant_mm(x, *second.on(path.device))
        (2 * y.sum() + y[:, 0].sum() + z.sum()).backward()
    weights = torch.cat((first.values, second.values))
    grad = torch.tensor([2.0] * 40 + [1.0] * 24)
    grad[0] += 1
    gradient_of_x(grad.expand(5, -1), weights).check(given(x))


@every_backend
def test_through_a_view_of_x(path: Path) -> None:
    weight = random_weight(40, 96)
    base = torch.randn(96, 10, device=path.device, requires_grad=True)
    with path.active():
        y = ops.quant_mm(base.T[::2], *weight.on(path.device))
        y.sum().backward()
    expected = gradient_of_x(torch.ones(5, 40), weight.values)
    expected.check(given(base).T[::2])
    assert torch.count_nonzero(given(base).T[1::2]) == 0


@every_backend
def test_gradient_of_the_gradient(path: Path) -> None:
    """grad_x is linear in grad_y: its derivative along v is v @ W.T."""
    weight = random_weight(40, 96)
    x = torch.randn(5, 96, device=path.device, requires_grad=True)
    grad = torch.randn(5, 40, device=path.device, requires_grad=True)
    v = torch.randn(5, 96)
    with path.active():
        y = ops.quant_mm(x, *weight.on(path.device))
        (grad_x,) = torch.autograd.grad(y, x, grad, create_graph=True)
        (actual,) = torch.autograd.grad(grad_x, grad, v.to(path.device))
    gradient_of_x(v, weight.values.T).check(actual)


@every_backend
@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_straight_through_even_where_x_is_not_finite(path: Path, poison: float) -> None:
    weight = random_weight(40, 96)
    x = torch.randn(3, 96)
    x[1, 7] = poison
    x = x.to(path.device).requires_grad_()
    with path.active():
        ops.quant_mm(x, *weight.on(path.device)).backward(torch.ones(3, 40, device=path.device))
    gradient_of_x(torch.ones(3, 40), weight.values).check(given(x))


@every_backend
@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
def test_without_gradients(path: Path, off: type[torch.no_grad | torch.inference_mode]) -> None:
    operands = random_weight(40, 96).on(path.device)
    x = torch.randn(3, 96, device=path.device, requires_grad=True)
    bias = torch.randn(40, device=path.device, requires_grad=True)
    with path.active():
        tracked = ops.quant_mm(x, *operands, bias)
        with off():
            y = ops.quant_mm(x, *operands, bias)
    assert tracked.requires_grad
    assert not y.requires_grad
    assert y.is_inference() == (off is torch.inference_mode)
    assert_same_bits(y, tracked.detach())


@every_backend
@pytest.mark.parametrize("lead", [(), (6,), (2, 3), (0,)], ids=str)
def test_flop_counts(path: Path, lead: tuple[int, ...]) -> None:
    m = torch.Size(lead).numel()
    operands = random_weight(40, 96).on(path.device)
    left = tuple(t.to(path.device) for t in random_codes(*lead, 96))
    x = torch.randn(*lead, 96, device=path.device)
    for op, arguments in ((ops.quant_mm, (x,)), (ops.mm, left), (ops.mm_a16, (x,))):
        with path.active(), FlopCounterMode(display=False) as counter:
            op(*arguments, *operands)
        assert counter.get_total_flops() == 2 * m * 40 * 96
        assert counter.get_flop_counts()["Global"] == {op: 2 * m * 40 * 96}


@every_backend
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast(path: Path, dtype: torch.dtype) -> None:
    """x is cast, codes and scales are not, and the gradient comes back in x's dtype."""
    codes, scales = random_weight(40, 96).on(path.device)
    operands = codes.view(torch.float4_e2m1fn_x2), scales.view(torch.float8_e8m0fnu)
    x = activation(5, 96, dtype=torch.float32).to(path.device).requires_grad_()
    with path.active():
        expected = mxfp4_ops.quant_mm(x.detach().to(dtype), *operands)
        with torch.autocast(path.device, dtype=dtype):
            y = mxfp4_ops.quant_mm(x, *operands)
            wide = mxfp4_ops.quant_mm(x, *operands, out_dtype=torch.float32)
            with torch.autocast(path.device, enabled=False):
                untouched = mxfp4_ops.quant_mm(x, *operands)
            raw = ops.quant_mm(x, *operands)
        y.sum().backward()
        without = ops.quant_mm(x, *operands)
    assert_same_bits(y.detach(), expected)
    assert wide.dtype == torch.float32
    assert_same_bits(untouched, without)
    assert_same_bits(raw, without)
    assert given(x).dtype == torch.float32
