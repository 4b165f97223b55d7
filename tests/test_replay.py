"""Calls that are made again: no second look, the same results, and never the wrong tensors."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from weakref import ref

import pytest
import torch
from common import Product, activation, assert_same_bits, quantized_values, random_weight
from experts import Experts
from torch import Tensor

import mxfp4_ops
from mxfp4_ops.backends.triton import replay
from mxfp4_ops.backends.triton.launch import Launch

quant_mm = torch.ops.mxfp4.quant_mm


@pytest.fixture(autouse=True)
def _nothing_remember() -> Iterator[None]:
    replay._recordings.clear()
    yield
    replay._recordings.clear()


class Parameter:
    def __init__(self, name: str) -> None:
        self.name = name


class Kernel:
    """Adds `a` and `b` into `out`, by the pointers that it is given."""

    params = tuple(Parameter(name) for name in ("a", "b", "out", "factor"))

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getitem__(self, grid: tuple[int, int, int]) -> Any:
        return lambda *args: self.calls.append(args)


@pytest.fixture
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "_launcher", lambda kernel, grid, device: kernel[grid])


def remember(a: Tensor, b: Tensor, *, result: Tensor | None = None, used: Any = None) -> Kernel:
    """Remember a call with `a` and `b`, if that can be; its kernel reads `used` for `a`."""
    kernel, out = Kernel(), torch.empty(2) if result is None else result
    given = {"a": a if used is None else used, "b": b, "out": out}
    launch = Launch(kernel, (1, 1, 1), given, {"factor": 3}, writes=("out",))
    replay.remember("op", None, (a, b, "mode"), out, [launch], [kernel])
    return kernel


def kind(*args: Any, op: str = "op", forced: str | None = None) -> bool:
    """Whether a call counts as one that was remembered."""
    return replay._kind(op, forced, args)[0] in replay._recordings


@pytest.mark.usefixtures("no_driver")
def test_what_distinguishes_a_call() -> None:
    a, b = torch.zeros(4, 8), torch.zeros(2)
    remember(a, b)
    assert kind(a.clone(), b.clone(), "mode")
    assert not kind(a, b, "other mode")
    assert not kind(a, b, "mode", op="other op")
    assert not kind(a, b, "mode", forced="reference")
    assert not kind(a[:3], b, "mode")
    assert not kind(torch.zeros(8, 8)[::2], b, "mode")
    assert not kind(a.bfloat16(), b, "mode")
    assert not kind(torch.zeros(33)[1:].view(4, 8), b, "mode"), "alignment"
    assert not kind(a, None, "mode")


@pytest.mark.usefixtures("no_driver")
def test_descriptors_are_made_anew() -> None:
    """With the tensors of the call, and none of the call before is kept."""
    a, b = torch.zeros(4, 8), torch.zeros(2)
    kernel = remember(a, b, used=SimpleNamespace(base=a.view(2, 16), block_shape=[1, 16]))
    (recording,) = replay._recordings.values()
    for _ in range(2):
        others = torch.ones(4, 8), torch.ones(2), torch.empty(2)
        recording._launch(list(others))
        descriptor, *rest = kernel.calls[-1]
        assert descriptor.base is others[0]
        assert descriptor.block_shape == [1, 16]
        assert all(given is other for given, other in zip(rest[:2], others[1:], strict=True))
        assert rest[2] == 3
    assert kernel.calls[0][0] is not kernel.calls[1][0]
    gone = ref(a)
    del a
    assert gone() is None


def test_one_tensor_given_twice_is_not_remember() -> None:
    a = torch.zeros(2)
    remember(a, a)
    assert not replay._recordings


def test_a_copy_made_by_the_host_is_not_remember() -> None:
    a, b = torch.zeros(2), torch.zeros(2)
    remember(a, b, used=a.clone())
    assert not replay._recordings


def test_empty_results_are_not_remember() -> None:
    remember(torch.zeros(2), torch.zeros(2), result=torch.empty(0))
    assert not replay._recordings


@pytest.mark.usefixtures("no_driver")
def test_memory_of_it_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "LIMIT", 3)
    for size in range(1, 10):
        remember(torch.zeros(size), torch.zeros(2))
        assert 1 <= len(replay._recordings) <= 3


def test_sparse_tensors_are_left_to_the_checks() -> None:
    assert replay.find("op", None, (torch.zeros(2, 2).to_sparse(), None)) is None


gpu = pytest.mark.gpu
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


@gpu
@needs_gpu
@pytest.mark.parametrize("shuffled", [False, True], ids=["plain", "shuffled"])
@pytest.mark.parametrize("m", [1, 17, 300])
def test_second_calls_compute_with_their_own_tensors(m: int, shuffled: bool) -> None:
    weight = random_weight(96, 4096)
    operands = weight.on("cuda", shuffled)
    bias = torch.randn(96)
    kept = []
    for seed in range(4):
        x = activation(m, 4096, dtype=torch.bfloat16, seed=seed)
        before = len(replay._recordings)
        y = quant_mm(x.cuda(), *operands, bias.cuda() * seed, shuffled=shuffled)
        assert len(replay._recordings) == (before if seed else before + 1)
        kept.append((Product.of(quantized_values(x), weight.values, bias * seed), y))
    for expected, y in kept:
        expected.check(y)


@gpu
@needs_gpu
@pytest.mark.parametrize("m", [1, 17, 300])
def test_second_calls_of_the_other_products(m: int) -> None:
    """Those of float activations, and of experts whose groups change from call to call."""
    weight, bias = random_weight(96, 4096), torch.randn(96)
    for seed in range(4):
        x = activation(m, 4096, dtype=torch.bfloat16, seed=seed)
        begins = [0, m * seed // 4, m // 2 + m * seed // 8, m]
        codes, scales = (t.view(3, 32, -1) for t in weight.on("cpu"))
        experts = Experts(x, codes, scales, begins)
        before = len(replay._recordings)
        y = torch.ops.mxfp4.mm_a16(x.cuda(), *weight.on("cuda"), bias.cuda() * seed)
        z = torch.ops.mxfp4.grouped_quant_mm(*experts.arguments("cuda"))
        assert len(replay._recordings) == (before if seed else before + 2)
        Product.of(x.double(), weight.values, bias * seed).check(y)
        experts.check(z)


@gpu
@needs_gpu
def test_calls_with_one_tensor_twice_teach_nothing() -> None:
    a, b = (mxfp4_ops.quantize(torch.randn(64, 256, device="cuda")) for _ in range(2))
    mm = torch.ops.mxfp4.mm
    square = mm(*a, *a)
    assert_same_bits(mm(*a, *a), square)
    with mxfp4_ops.use_backend("reference"):
        expected = mm(*a, *b)
    assert_same_bits(mm(*a, *b), expected)


@gpu
@needs_gpu
def test_wrong_arguments_are_still_refused() -> None:
    weight, scale = random_weight(96, 256).on("cuda")
    x = torch.randn(4, 256, device="cuda")
    quant_mm(x, weight, scale)
    with pytest.raises(ValueError, match="weight_scale"):
        quant_mm(x, weight, scale[:, :4])
    with pytest.raises(ValueError, match="cpu"):
        quant_mm(x, weight.cpu(), scale)
    with pytest.raises(ValueError, match="scale_mode"):
        quant_mm(x, weight, scale, scale_mode="odd")


@gpu
@needs_gpu
def test_profilers_of_triton_see_repeated_launches() -> None:
    from triton import knobs

    operands = random_weight(96, 256).on("cuda")
    x = torch.randn(4, 256, device="cuda")
    quant_mm(x, *operands)
    seen: list[Any] = []
    hook = knobs.runtime.launch_enter_hook
    hook.add(seen.append)
    try:
        quant_mm(x, *operands)
    finally:
        hook.remove(seen.append)
    assert seen
    seen.clear()
    quant_mm(x, *operands)
    assert not seen


@gpu
@needs_gpu
def test_another_stream_and_another_thread() -> None:
    weight = random_weight(96, 256)
    operands = weight.on("cuda")
    x = activation(5, 256, dtype=torch.bfloat16)
    first = quant_mm(x.cuda(), *operands)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10_000_000)
        later = quant_mm(x.cuda(), *operands)
    stream.synchronize()
    assert_same_bits(later, first)


@gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_the_tensors_device_and_not_the_current_one() -> None:
    weight = random_weight(96, 256)
    x = activation(5, 256, dtype=torch.bfloat16)
    for _ in range(2):
        y = quant_mm(x.to("cuda:1"), *weight.on("cuda:1"))
        assert y.device == torch.device("cuda:1")
        Product.of(quantized_values(x), weight.values).check(y)
