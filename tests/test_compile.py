"""Shape functions and compilation: fake and meta tensors, symbolic sizes, export, torch.compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from common import (
    Path,
    Weight,
    activation,
    assert_same_bits,
    every_backend,
    every_dtype,
    on_meta,
    random_codes,
    random_weight,
)
from layouts import Layout, every_layout
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves, tree_map_only

ops = torch.ops.mxfp4


def assert_described(op: Callable[..., Any], *arguments: Any, **keywords: Any) -> None:
    """Fake and meta tensors give the sizes, strides, dtypes and devices of the real result."""
    real = tree_leaves(op(*arguments, **keywords))
    with FakeTensorMode() as mode:
        fake = tree_leaves(op(*tree_map_only(Tensor, mode.from_tensor, arguments), **keywords))
    meta = tree_leaves(op(*tree_map_only(Tensor, on_meta, arguments), **keywords))
    for r, f, m in zip(real, fake, meta, strict=True):
        assert r.shape == f.shape == m.shape
        assert r.stride() == f.stride() == m.stride()
        assert r.dtype == f.dtype == m.dtype
        assert r.device == f.device
        assert m.device.type == "meta"
        assert f.storage_offset() == m.storage_offset() == r.storage_offset()


@every_backend
@every_dtype
@every_layout
def test_shape_functions_for_every_layout(path: Path, dtype: torch.dtype, layout: Layout) -> None:
    x = layout(dtype, path.device)
    weight = random_weight(24, x.shape[-1])
    with path.active():
        for shuffled in (False, True):
            operands = weight.on(path.device, shuffled)
            assert_described(ops.quant_mm, x, *operands, shuffled=shuffled)
        assert_described(ops.quantize, x)


@every_backend
@every_dtype
@pytest.mark.parametrize("shuffled", [False, True], ids=["plain", "shuffled"])
@pytest.mark.parametrize("lead", [(), (5,), (0,), (1, 2), (2, 0, 3)], ids=str)
def test_shape_functions_of_mm_and_dequantize(
    path: Path, dtype: torch.dtype, shuffled: bool, lead: tuple[int, ...]
) -> None:
    a, a_scale = (t.to(path.device) for t in random_codes(*lead, 96))
    right = random_weight(24, 96).on(path.device, shuffled)
    bias = torch.zeros(len(right[0]), device=path.device)
    with path.active():
        assert_described(ops.mm, a, a_scale, *right, bias, out_dtype=dtype, shuffled=shuffled)
        assert_described(ops.dequantize, a, a_scale, dtype=dtype)
        if len(lead) > 1:
            swapped = a.transpose(0, 1), a_scale.transpose(0, 1)
            assert_described(ops.mm, *swapped, *right, out_dtype=dtype, shuffled=shuffled)
            assert_described(ops.dequantize, *swapped, dtype=dtype)


@pytest.mark.parametrize(("n", "k"), [(1, 32), (24, 96), (256, 512), (0, 32), (5, 0)])
def test_shape_functions_of_shuffle(n: int, k: int) -> None:
    codes, scales = random_codes(n, k)
    for plain in (
        (codes, scales),
        (codes.view(torch.float4_e2m1fn_x2), scales.view(torch.float8_e8m0fnu)),
    ):
        assert_described(ops.shuffle, *plain)
        assert_described(ops.unshuffle, *ops.shuffle(*plain), n, k)


def _function(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    q, q_scale = ops.quantize(x.relu())
    again = ops.mm(q, q_scale, weight, scale)
    return ops.quant_mm(x.relu(), weight, scale, bias) + again.to(x.dtype)


def _arguments(path: Path, m: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    weight = random_weight(24, 96)
    bias = torch.linspace(-1, 1, 24, device=path.device)
    x = activation(m, 96, dtype=torch.bfloat16).to(path.device)
    return (x, *weight.on(path.device), bias)


@every_backend
def test_symbolic_trace(path: Path) -> None:
    """A graph traced at one size holds for all."""
    with path.active():
        graph = make_fx(_function, tracing_mode="symbolic")(*_arguments(path, 7))
        for m in (2, 7, 40):
            assert_same_bits(graph(*_arguments(path, m)), _function(*_arguments(path, m)))
    targets = {node.target for node in graph.graph.nodes}
    assert {ops.quant_mm.default, ops.quantize.default, ops.mm.default} <= targets


class _Layer(torch.nn.Module):
    def __init__(self, weight: Weight, device: str, shuffled: bool) -> None:
        super().__init__()
        codes, scales = weight.on(device, shuffled)
        self.register_buffer("codes", codes)
        self.register_buffer("scales", scales)
        self.shuffled = shuffled

    def forward(self, x: Tensor) -> Tensor:
        y = ops.quant_mm(x.relu(), self.codes, self.scales, shuffled=self.shuffled)
        return y.exp()


@every_backend
@pytest.mark.parametrize("shuffled", [False, True], ids=["plain", "shuffled"])
@pytest.mark.parametrize("m", [1, 2, 33])
def test_export_keeps_the_range_of_m(path: Path, shuffled: bool, m: int) -> None:
    layer = _Layer(random_weight(24, 96), path.device, shuffled)
    x = activation(max(m, 2), 96, dtype=torch.bfloat16).to(path.device)
    batch = torch.export.Dim("m", min=0, max=1 << 20)
    with path.active():
        program = torch.export.export(layer, (x,), dynamic_shapes=({0: batch},))
        (interval,) = program.range_constraints.values()
        assert (interval.lower, interval.upper) == (0, 1 << 20)
        for size in (0, 1, 2, m, 70):
            x = activation(size, 96, dtype=torch.bfloat16).to(path.device)
            assert_same_bits(program.module()(x), layer(x))


@every_backend
@pytest.mark.parametrize("grad", [False, True], ids=["forward", "backward"])
def test_compiles_at_most_twice(path: Path, grad: bool) -> None:
    """Once for the first M and once for all others (Dynamo itself sets M = 1 apart)."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(_function, backend=counter, fullgraph=True, dynamic=None)
    for sizes, compilations in ((16, 2, 3, 17, 33, 64, 65, 256, 1000), 2), ((1,), 3):
        for m in sizes:
            x, *rest = _arguments(path, m)
            ours, theirs = (x.clone().requires_grad_(grad) for _ in range(2))
            with path.active():
                y, expected = compiled(ours, *rest), _function(theirs, *rest)
                assert_same_bits(y.detach(), expected.detach())
                if grad:
                    y.sum().backward()
                    expected.sum().backward()
                    assert ours.grad is not None
                    assert theirs.grad is not None
                    assert_same_bits(ours.grad, theirs.grad)
        assert counter.frame_count <= compilations


@every_backend
def test_compiled_with_x_in_other_layouts(path: Path) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(_function, backend="aot_eager", fullgraph=True)
    x, *rest = _arguments(path, 8)
    with path.active():
        for view in (x, x[::2], x.expand(3, 8, 96), x.unflatten(0, (2, 4)).transpose(0, 1)):
            assert_same_bits(compiled(view, *rest), _function(view, *rest))
