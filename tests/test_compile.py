"""Shape functions and compilation: fake and meta tensors, symbolic sizes, torch.compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from common import (
    Path,
    activation,
    assert_same_bits,
    every_backend,
    every_dtype,
    on_meta,
    random_codes,
    random_weight,
)
from compiling import backends_on, every_device, needs_inductor, swapped_block, tokens
from layouts import Layout, every_layout
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental import _config as symbolic_shapes
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves, tree_map_only

import mxfp4_ops

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


@every_backend
@pytest.mark.parametrize("grad", [False, True], ids=["forward", "backward"])
def test_compiles_at_most_twice(path: Path, grad: bool) -> None:
    """Once for the first M and once for all others (Dynamo itself sets M = 1 apart)."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(_function, backend=counter, fullgraph=True, dynamic=None)
    many = (16, 2, 3, 17, 33, *(() if path.slow else (64, 65, 256, 1000)))
    for sizes, compilations in (many, 2), ((1,), 3):
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


# 14 of them. The first is not 2 like the batch: torch would take the two for one size.
SIZES = (3, 2, 4, 7, 8, 15, 16, 17, 31, 33, 64, 100, 129, 256)


def assert_block_is_right(compiled: Callable[[Tensor], Any], device: str, m: int) -> None:
    """Each linear layer gave, to the bit, what it gives eagerly for the very input that it got."""
    block = swapped_block(device)
    for path in backends_on(device):
        with path.active():
            y, pairs = compiled(tokens(m, device))
            assert y.shape == (2, m, 64)
            for linear, (into, out) in zip(block.linears(), pairs, strict=True):
                assert_same_bits(out, linear(into))


@needs_inductor
@every_device
@pytest.mark.parametrize(
    ("mode", "dynamic"), [("default", None), ("max-autotune-no-cudagraphs", True)]
)
def test_transformer_block(device: str, mode: str, dynamic: bool | None) -> None:
    """One graph, at most two compilations for 14 values of M, and eager's bits on each backend."""
    torch._dynamo.reset()
    block = swapped_block(device)
    compiled = torch.compile(block, fullgraph=True, mode=mode, dynamic=dynamic)
    for m in SIZES[:2]:
        compiled(tokens(m, device))
    with torch.compiler.set_stance("fail_on_recompile"):
        for m in SIZES:
            assert_block_is_right(compiled, device, m)


@every_device
@pytest.mark.parametrize("dynamic", [None, True], ids=["automatic", "dynamic"])
def test_transformer_block_without_fusion(device: str, dynamic: bool | None) -> None:
    """Where nothing but the linear layers could differ, the whole block gives eager's bits."""
    torch._dynamo.reset()
    block = swapped_block(device)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(block, fullgraph=True, backend=counter, dynamic=dynamic)
    for path in backends_on(device):
        with path.active():
            for m in SIZES:
                x = tokens(m, device)
                assert_same_bits(compiled(x)[0], block(x)[0])
    assert counter.frame_count <= 2


@every_device
def test_one_row_is_no_third_compilation_where_torch_is_told(device: str) -> None:
    torch._dynamo.reset()
    block = swapped_block(device)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(block, fullgraph=True, backend=counter)
    with symbolic_shapes.patch(backed_size_oblivious=True):  # type: ignore[attr-defined]
        for m in (*SIZES, 1):
            x = tokens(m, device)
            assert_same_bits(compiled(x)[0], block(x)[0])
    assert counter.frame_count <= 2


@needs_inductor
@every_device
def test_inductor_with_gradients(device: str) -> None:
    """The operators between the kernels that Inductor writes, forward and backward."""
    torch._dynamo.reset()
    compiled = torch.compile(_scaled, fullgraph=True, dynamic=True)
    codes, scales = random_weight(24, 96).on(device)
    for path in backends_on(device):
        with path.active():
            for m in (2, 33):
                x = activation(m, 96, dtype=torch.bfloat16).to(device)
                ours, theirs = (x.clone().requires_grad_() for _ in range(2))
                y, expected = (
                    f(t, codes, scales) for f, t in ((compiled, ours), (_scaled, theirs))
                )
                assert_same_bits(y.detach(), expected.detach())
                for result in (y, expected):
                    result.backward(torch.ones_like(result))
                assert ours.grad is not None
                assert theirs.grad is not None
                assert_same_bits(ours.grad, theirs.grad)


def _scaled(x: Tensor, codes: Tensor, scales: Tensor) -> Tensor:
    """Powers of two, so that Inductor's arithmetic rounds like eager's."""
    return ops.quant_mm(x.relu() * 2, codes, scales) * 0.5


@every_backend
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast(path: Path, dtype: torch.dtype) -> None:
    """Autocast inside of what is compiled, and around it."""
    torch._dynamo.reset()
    codes, scales = random_weight(24, 96).on(path.device)

    def inside(x: Tensor) -> Tensor:
        with torch.autocast(path.device, dtype=dtype):
            return mxfp4_ops.quant_mm(x, codes, scales)

    def bare(x: Tensor) -> Tensor:
        return mxfp4_ops.quant_mm(x, codes, scales)

    x = activation(5, 96, dtype=torch.float32).to(path.device)
    with path.active():
        expected = bare(x.to(dtype))
        assert_same_bits(torch.compile(inside, backend="aot_eager", fullgraph=True)(x), expected)
        compiled = torch.compile(bare, backend="aot_eager", fullgraph=True)
        with torch.autocast(path.device, dtype=dtype):
            assert_same_bits(compiled(x), expected)
        assert_same_bits(compiled(x), bare(x))


@every_backend
def test_rows_whose_number_depends_on_data(path: Path) -> None:
    """As in a mixture of experts: M is known only when the mask is."""
    torch._dynamo.reset()
    codes, scales = random_weight(24, 96).on(path.device)

    def chosen(x: Tensor, mask: Tensor) -> Tensor:
        rows = x[mask]
        q, q_scale = ops.quantize(rows)
        return ops.quant_mm(rows, codes, scales) + ops.mm(q, q_scale, codes, scales).to(x.dtype)

    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(chosen, backend=counter, fullgraph=True)
    x = activation(40, 96, dtype=torch.bfloat16).to(path.device)
    with path.active(), torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        for rows in (7, 0, 1, 40):
            mask = torch.arange(40, device=path.device) < rows
            assert_same_bits(compiled(x, mask), chosen(x, mask))
    assert counter.frame_count == 1
