"""CUDA and HIP graphs: capture, replay with other inputs, memory, `mode="reduce-overhead"`."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from common import (
    DTYPES,
    PATHS,
    Path,
    Product,
    activation,
    assert_same_bits,
    plain_and_shuffled,
    random_codes,
    random_weight,
)
from compiling import needs_inductor, swapped_block, tokens
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils._pytree import tree_map

import mxfp4_ops

ops = torch.ops.mxfp4

# The reference is for checking and not made to be captured.
every_fast_path = pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=pytest.mark.gpu)
        for path in PATHS
        if path.device == "cuda" and path.backend != "reference"
    ],
    ids=str,
)

# One row; few; many, in two kernels; few but with so long a K that it is split.
SIZES = ((1, 40, 96), (16, 40, 256), (300, 64, 96), (8, 32, 16384))
every_size = pytest.mark.parametrize(("m", "n", "k"), SIZES)


def captured(function: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """Warm up on a stream of its own, as torch wants it, then capture one call."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = function()
    return graph, out


def check_replays(function: Callable[[], Any], change: Callable[[int], None]) -> None:
    """A captured call gives eager's bits, each time that its inputs have changed."""
    graph, out = captured(function)
    for step in range(3):
        change(step)
        graph.replay()
        actual = tree_map(torch.clone, out)
        tree_map(assert_same_bits, actual, function())


@every_fast_path
@every_size
@plain_and_shuffled
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_quant_mm(path: Path, m: int, n: int, k: int, shuffled: bool, dtype: torch.dtype) -> None:
    """x, weight, scales and bias may all change between replays."""
    codes, scales = random_weight(n, k).on(path.device, shuffled)
    bias = torch.zeros(len(codes), device=path.device)
    x = activation(m, k, dtype=dtype).to(path.device)

    def change(step: int) -> None:
        x.copy_(activation(m, k, dtype=dtype, seed=step))
        bias.fill_(step)
        codes.copy_(codes.flip(0))

    with path.active():
        check_replays(lambda: ops.quant_mm(x, codes, scales, bias, shuffled=shuffled), change)


@every_fast_path
@every_size
def test_the_other_operators(path: Path, m: int, n: int, k: int) -> None:
    weight = random_weight(n, k).on(path.device)
    x = activation(m, k, dtype=torch.bfloat16).to(path.device)
    q, q_scale = (t.to(path.device) for t in random_codes(m, k))

    def change(step: int) -> None:
        x.copy_(activation(m, k, dtype=torch.bfloat16, seed=step))
        q.copy_(random_codes(m, k, seed=step)[0])

    with path.active():
        for function in (
            lambda: ops.quantize(x),
            lambda: ops.dequantize(q, q_scale),
            lambda: ops.mm(q, q_scale, *weight),
            lambda: ops.mm(*ops.quantize(x), *weight),
            lambda: ops.shuffle(*weight),
        ):
            check_replays(function, change)


@pytest.fixture
def compilations() -> Iterator[list[str]]:
    """The names of the Triton kernels that are compiled during a test, as they are."""
    knobs = pytest.importorskip("triton").knobs.runtime
    names: list[str] = []
    before = knobs.jit_post_compile_hook
    knobs.jit_post_compile_hook = lambda **what: names.append(what["fn"].name)
    try:
        yield names
    finally:
        knobs.jit_post_compile_hook = before


@every_fast_path
def test_a_warm_up_compiles_everything(path: Path, compilations: list[str]) -> None:
    """After one call nothing is compiled, and no backend other than that call's is asked."""
    if path.backend != "triton":
        pytest.skip("it compiles nothing")
    chosen: list[str] = []
    backends = importlib.import_module("mxfp4_ops.backends")  # the function has its name as well
    select = backends.select

    def recording(*args: Any) -> Any:
        backend = select(*args)
        chosen.append(backend.name)
        return backend

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backends, "select", recording)
        # Sizes of which no other test has compiled anything.
        for m, n, k in ((1, 200, 32 * 7), (24, 200, 32 * 7), (333, 200, 32 * 7)):
            weight = random_weight(n, k).on(path.device)
            x = activation(m, k, dtype=torch.bfloat16).to(path.device)
            with mxfp4_ops.use_backend(None):
                ops.quant_mm(x, *weight)
                warm, warm_choice = len(compilations), chosen.copy()
                chosen.clear()
                graph, out = captured(partial(ops.quant_mm, x, *weight))
                assert compilations[warm:] == []
                assert set(chosen) <= set(warm_choice)  # a repeated call need not ask at all
                chosen.clear()
                graph.replay()
                assert chosen == []
                assert_same_bits(out, ops.quant_mm(x, *weight))
            chosen.clear()


@every_fast_path
@every_size
def test_memory_comes_from_the_graphs_pool(path: Path, m: int, n: int, k: int) -> None:
    weight = random_weight(n, k).on(path.device)
    x = activation(m, k, dtype=torch.bfloat16).to(path.device)
    pool = torch.cuda.graph_pool_handle()
    graph = torch.cuda.CUDAGraph()
    with path.active():
        ops.quant_mm(x, *weight)
        first = captured(x.clone)  # with which torch gets the random state that graphs share
        torch.cuda.synchronize()
        gc.collect()  # the capture does it, and frees what other tests have left

        def outside() -> int:
            """Bytes in use that belong to no graph."""
            return sum(
                segment["allocated_size"]
                for segment in torch.cuda.memory_snapshot()
                if tuple(segment["segment_pool_id"]) == (0, 0)
            )

        before = outside()
        with torch.cuda.graph(graph, pool=pool):
            out = ops.quant_mm(x, *weight)
        torch.cuda.synchronize()
        assert outside() == before

        holds_out = [
            tuple(s["segment_pool_id"])
            for s in torch.cuda.memory_snapshot()
            if s["address"] <= out.data_ptr() < s["address"] + s["total_size"]
        ]
        assert holds_out == [tuple(pool)]

        allocations = torch.cuda.memory_stats()["allocation.all.allocated"]
        for _ in range(3):
            graph.replay()
        torch.cuda.synchronize()
        assert torch.cuda.memory_stats()["allocation.all.allocated"] == allocations
        assert_same_bits(out, ops.quant_mm(x, *weight))
    del first


@every_fast_path
def test_two_graphs_in_one_pool(path: Path) -> None:
    """Graphs of several M share their memory, as servers have it, and keep their results apart."""
    weight = random_weight(64, 256).on(path.device)
    sizes = (300, 16, 1)
    xs = [activation(m, 256, dtype=torch.bfloat16).to(path.device) for m in sizes]
    pool = torch.cuda.graph_pool_handle()
    graphs, outs = [], []
    with path.active():
        for x in xs:
            ops.quant_mm(x, *weight)
        torch.cuda.synchronize()
        for x in xs:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                outs.append(ops.quant_mm(x, *weight))
            graphs.append(graph)
        for graph in graphs:
            graph.replay()
        for x, out in zip(xs, outs, strict=True):
            assert_same_bits(out, ops.quant_mm(x, *weight))


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream")
@every_fast_path
def test_training_step(path: Path) -> None:
    """Forward and backward of a layer, each as a graph."""
    linear = nn.Linear(96, 64, device=path.device)
    layer = mxfp4_ops.Mxfp4Linear.from_linear(linear)
    sample = torch.randn(8, 96, device=path.device, requires_grad=True)
    with path.active():
        values = layer.dequantize(torch.float32).cpu().double()
        with (
            torch.no_grad()
        ):  # what a backward pass would need must not be there before the capture
            expected = [
                layer(activation(8, 96, dtype=torch.float32, seed=s).cuda()) for s in range(3)
            ]
        graphed: Any = torch.cuda.make_graphed_callables(layer, (sample,))
        for step, y in enumerate(expected):
            x = activation(8, 96, dtype=torch.float32, seed=step).to(path.device).requires_grad_()
            out = graphed(x)
            assert_same_bits(out.detach(), y)
            grad = activation(8, 64, dtype=torch.float32, seed=step).to(path.device)
            out.backward(grad)
            assert x.grad is not None
            g = grad.cpu().double()
            Product(g @ values, 64 * 2.0**-24 * g.abs() @ values.abs()).check(x.grad)


@needs_inductor
@every_fast_path
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")  # with such a one torch begins
@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_compiled_into_graphs(path: Path, mode: str) -> None:
    """The linear layers give eager's bits, and a warm call runs no operator from Python."""
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters["inductor"]
    skipped = counters["cudagraph_skips"]
    block = swapped_block(path.device)
    compiled = torch.compile(block, fullgraph=True, mode=mode, dynamic=False)
    with path.active(), torch.inference_mode():
        for m in (1, 16, 40):
            for step in range(4):  # compiles, records, replays
                torch.compiler.cudagraph_mark_step_begin()
                x = tokens(m, path.device) + step
                with profile(activities=[ProfilerActivity.CPU], acc_events=True) as measured:
                    y, pairs = compiled(x)
                y, pairs = tree_map(_copy, (y, pairs))
                for linear, (into, out) in zip(block.linears(), pairs, strict=True):
                    assert_same_bits(out, linear(into))
            names = {event.name for event in measured.events() or ()}
            assert "mxfp4::quant_mm" not in names, "the last call was no replay"
    assert counters["cudagraph_skips"] == skipped


def _copy(t: Tensor) -> Tensor:
    """Out of the graph's memory, which the next call overwrites."""
    return t.clone()
