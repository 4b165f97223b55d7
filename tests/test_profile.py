"""What torch's profiler, its FLOP counter and its memory snapshots say of the operators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from common import Path, activation, every_backend, random_codes, random_weight
from compiling import every_device, every_gpu_path, swapped_block, tokens
from torch import nn
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

import mxfp4_ops

ops = torch.ops.mxfp4

M, N, K = 6, 40, 96


def calls(device: str) -> Iterator[tuple[str, list[list[int]], int]]:
    """Call each operator: its name, the shapes of its tensors, and the bytes of its results."""
    weight = random_weight(N, K).on(device)
    tiles = mxfp4_ops.shuffle(*weight)
    left = tuple(t.to(device) for t in random_codes(M, K))
    x = activation(M, K, dtype=torch.bfloat16).to(device)
    arguments: dict[str, tuple[Any, ...]] = {
        "quant_mm": (x, *weight),
        "mm": (*left, *weight),
        "quantize": (x,),
        "dequantize": weight,
        "shuffle": weight,
        "unshuffle": (*tiles, N, K),
    }
    for name, given in arguments.items():
        out = getattr(ops, name)(*given)
        results = out if isinstance(out, tuple) else (out,)
        shapes = [list(t.shape) for t in given if isinstance(t, torch.Tensor)]
        yield name, shapes, sum(t.nbytes for t in results)


@every_backend
def test_every_operator_is_one_event(path: Path) -> None:
    """Under its own name, with the shapes of what it got; on the CPU also with its memory."""
    with path.active():
        list(calls(path.device))  # what is loaded and compiled on first use is not measured
        with profile(
            activities=[ProfilerActivity.CPU],
            record_shapes=True,
            profile_memory=True,
            acc_events=True,
        ) as measured:
            expected = list(calls(path.device))
    # The first two shuffle; the events of the calls come after it, in order.
    events = [e for e in measured.events() or () if e.name.startswith("mxfp4::")][1:]
    assert [e.name for e in events] == [f"mxfp4::{name}" for name, _, _ in expected]
    for event, (_, shapes, size) in zip(events, expected, strict=True):
        assert event.input_shapes[: len(shapes)] == shapes
        if path.device == "cpu" and path.backend == "cpu":
            assert event.cpu_memory_usage == size


@every_backend
def test_backward_is_named_after_the_operator(path: Path) -> None:
    weight = random_weight(N, K).on(path.device)
    x = activation(M, K, dtype=torch.float32).to(path.device).requires_grad_()
    with path.active(), profile(activities=[ProfilerActivity.CPU], acc_events=True) as measured:
        ops.quant_mm(x, *weight).sum().backward()
    names = [e.name for e in measured.events() or ()]
    assert "mxfp4::dequantize" in names
    assert [n for n in names if "mxfp4_quant_mm" in n and "Backward" in n]


@every_backend
def test_flops_of_a_training_step(path: Path) -> None:
    """2 M N K forward and as many backward, found under the layer's name."""
    model = nn.Sequential(nn.Linear(K, N), nn.ReLU()).to(path.device)
    mxfp4_ops.swap_linear(model, progress=False)
    x = activation(M, K, dtype=torch.float32).to(path.device).requires_grad_()
    with path.active(), FlopCounterMode(display=False) as counter:
        y = model(x)
        forward = counter.get_total_flops()
        y.sum().backward()
    assert forward == 2 * M * N * K
    assert counter.get_total_flops() == 4 * M * N * K
    assert counter.get_flop_counts()["Sequential.0"][ops.quant_mm] == 2 * M * N * K


@every_device
def test_flops_of_a_transformer_block_are_those_of_the_float_one(device: str) -> None:
    swapped = swapped_block(device)
    plain = type(swapped)().to(device).eval()
    totals = []
    for block in (swapped, plain):
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            block(tokens(12, device))
        totals.append(counter.get_total_flops())
    assert totals[0] == totals[1] > 0


@every_gpu_path
def test_kernels_on_a_gpu_are_named_after_the_package(path: Path) -> None:
    """In the trace a person sees whose kernels they are; the reference uses torch's."""
    if path.backend == "reference":
        pytest.skip("it has no kernels of its own")
    weight = random_weight(N, K).on(path.device)
    x = activation(M, K, dtype=torch.bfloat16).to(path.device)
    with path.active():
        ops.quant_mm(x, *weight)
        torch.cuda.synchronize()
        with profile(
            activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True
        ) as measured:
            ops.quant_mm(x, *weight)
            torch.cuda.synchronize()
    kernels = [
        e.name
        for e in measured.events() or ()
        if e.device_type == DeviceType.CUDA and "mxfp4::" not in e.name
    ]
    assert [name for name in kernels if "mxfp4" in name], kernels
    (event,) = [
        e
        for e in measured.events() or ()
        if e.name == "mxfp4::quant_mm" and e.device_type == DeviceType.CPU
    ]
    assert event.device_time_total > 0  # the kernels are found under the operator


@every_gpu_path
def test_memory_snapshot_leads_to_the_operator(path: Path) -> None:
    """The block that holds a result names the line of Python that allocated it."""
    weight = random_weight(N, K).on(path.device)
    x = activation(4096, K, dtype=torch.float32).to(path.device)
    with path.active():
        ops.quant_mm(x, *weight)
        torch.cuda.memory._record_memory_history(stacks="python")
        try:
            y = ops.quant_mm(x, *weight)
            segments = torch.cuda.memory._snapshot()["segments"]
        finally:
            torch.cuda.memory._record_memory_history(enabled=None)
    blocks = [b for s in segments for b in s["blocks"] if b["address"] == y.data_ptr()]
    (block,) = blocks
    assert block["requested_size"] == y.nbytes
    functions = {frame["name"] for frame in block["frames"]}
    assert "quant_mm" in functions
    assert "test_memory_snapshot_leads_to_the_operator" in functions


@every_gpu_path
def test_a_call_keeps_only_its_result(path: Path) -> None:
    """No workspace stays behind, however often it is called."""
    weight = random_weight(N, K).on(path.device)
    x = activation(300, K, dtype=torch.bfloat16).to(path.device)
    with path.active():
        ops.quant_mm(x, *weight)
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        results = [ops.quant_mm(x, *weight) for _ in range(5)]
        torch.cuda.synchronize()
        kept = torch.cuda.memory_allocated() - before
    assert sum(y.nbytes for y in results) <= kept <= sum(y.nbytes + 511 for y in results)
