"""What only a GPU can show: large tensors, several devices, streams and graphs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from common import (
    PATHS,
    Product,
    activation,
    assert_same_bits,
    every_dtype,
    plain_and_shuffled,
    quantized_values,
    random_weight,
)
from torch import Tensor

import mxfp4_ops
from mxfp4_ops.backends import Call, select

ON_GPU = any(p.backend == "triton" and p.device == "cuda" for p in PATHS)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not ON_GPU, reason="there is no GPU that Triton supports"),
]

FAR = 1 << 31
"""Elements from row to row."""


@pytest.fixture(autouse=True)
def triton_kernels() -> Iterator[None]:
    with mxfp4_ops.use_backend("triton"):
        yield
    torch.cuda.empty_cache()


def needs_memory(gibibytes: int) -> None:
    free, _ = torch.cuda.mem_get_info()
    if free < gibibytes << 30:
        pytest.skip(f"needs {gibibytes} GiB of GPU memory")


def far_rows(rows: Tensor) -> Tensor:
    """A copy of `rows` on the GPU whose rows lie 2**31 elements apart."""
    n, columns = rows.shape
    memory = torch.empty((n - 1) * FAR + columns, dtype=rows.dtype, device="cuda")
    return memory.as_strided(rows.shape, (FAR, 1)).copy_(rows)


@pytest.mark.parametrize("op", ["quant_mm", "mm", "quantize", "dequantize"])
def test_automatic_choice(op: str) -> None:
    call = Call(op, torch.device("cuda", 0), torch.bfloat16, 16, 16, 256)
    assert select(call, None).name == "triton"


def test_activation_rows_far_apart() -> None:
    needs_memory(12)
    x, weight = activation(3, 96, dtype=torch.bfloat16), random_weight(31, 96).on("cuda")
    far, near = far_rows(x), x.cuda()
    for ours, theirs in zip(mxfp4_ops.quantize(far), mxfp4_ops.quantize(near), strict=True):
        assert_same_bits(ours, theirs)
    assert_same_bits(mxfp4_ops.quant_mm(far, *weight), mxfp4_ops.quant_mm(near, *weight))


def test_activation_columns_far_apart() -> None:
    needs_memory(12)
    x, weight = activation(3, 32, dtype=torch.bfloat16).cuda(), random_weight(31, 32).on("cuda")
    memory = torch.empty((FAR >> 3) * 31 + 3, dtype=x.dtype, device="cuda")
    far = memory.as_strided(x.shape, (1, FAR >> 3)).copy_(x)
    for ours, theirs in zip(mxfp4_ops.quantize(far), mxfp4_ops.quantize(x), strict=True):
        assert_same_bits(ours, theirs)
    assert_same_bits(mxfp4_ops.quant_mm(far, *weight), mxfp4_ops.quant_mm(x, *weight))


def test_weight_rows_far_apart() -> None:
    needs_memory(12)
    x, weight = activation(17, 96, dtype=torch.float32).cuda(), random_weight(3, 96)
    near = weight.on("cuda")
    far = far_rows(weight.codes), far_rows(weight.scales)
    assert_same_bits(mxfp4_ops.quant_mm(x, *far), mxfp4_ops.quant_mm(x, *near))
    assert_same_bits(mxfp4_ops.dequantize(*far), mxfp4_ops.dequantize(*near))
    left = mxfp4_ops.quantize(x)
    assert_same_bits(mxfp4_ops.mm(*far, *left), mxfp4_ops.mm(*near, *left))


@plain_and_shuffled
def test_more_than_2_to_the_31_elements(shuffled: bool) -> None:
    """Of x, of the result and, with each shape, of the codes in between."""
    needs_memory(24)
    m, n, k = (1 << 16) + 3, 1 << 15, 64
    rows, weight = activation(3, k, dtype=torch.bfloat16), random_weight(n, k)
    x = rows.cuda().repeat(m // 3 + 1, 1)[:m]
    y = mxfp4_ops.quant_mm(x, *weight.on("cuda", shuffled), shuffled=shuffled)
    assert y.numel() > 1 << 31
    Product.of(quantized_values(rows), weight.values).check(y[:3])
    for first in range(0, m - m % 3, 6 * 1024):
        part = y[first : first + 6 * 1024]
        whole = part[: len(part) // 3 * 3].view(-1, 3, n)
        assert torch.equal(whole, y[:3].expand_as(whole))
    assert torch.equal(y[-1], y[(m - 1) % 3])


@every_dtype
def test_quantize_more_than_2_to_the_31_elements(dtype: torch.dtype) -> None:
    needs_memory(32)
    rows = activation(2, 64, dtype=dtype).cuda()
    x = rows.repeat((1 << 24) + 5, 1)
    assert x.numel() > 1 << 31
    codes, scales = mxfp4_ops.quantize(x)
    expected_codes, expected_scales = mxfp4_ops.quantize(rows)
    assert (codes.view(-1, 2, 32) == expected_codes).all()
    assert (scales.view(-1, 2, 2) == expected_scales).all()
    values = mxfp4_ops.dequantize(codes, scales, dtype=dtype)
    expected = mxfp4_ops.dequantize(expected_codes, expected_scales, dtype=dtype)
    assert (values.view(-1, 2, 64) == expected).all()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_tensors_of_a_device_that_is_not_the_current_one() -> None:
    x, weight = activation(5, 96, dtype=torch.bfloat16), random_weight(31, 96)
    with torch.cuda.device(0):
        on_second = [t.to("cuda:1") for t in (x, weight.codes, weight.scales)]
        y = mxfp4_ops.quant_mm(*on_second)
        q = mxfp4_ops.quantize(on_second[0])
        assert torch.cuda.current_device() == 0
    assert y.device == q[0].device == torch.device("cuda:1")
    Product.of(quantized_values(x), weight.values).check(y)


def test_the_current_stream() -> None:
    """A result on another stream comes after the work that is already in that stream."""
    weight = random_weight(512, 4096).on("cuda")
    x = torch.zeros(64, 4096, dtype=torch.bfloat16, device="cuda")
    ones = mxfp4_ops.quant_mm(torch.ones_like(x), *weight)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(10_000_000)
        x.fill_(1)
        y = mxfp4_ops.quant_mm(x, *weight)
    torch.cuda.synchronize()
    assert_same_bits(y, ones)


@pytest.mark.parametrize(("m", "n", "k"), [(4, 96, 160), (17, 64, 7168), (100, 200, 512)])
def test_a_graph_replays_with_other_numbers(m: int, n: int, k: int) -> None:
    weight = random_weight(n, k).on("cuda")
    inputs = [activation(m, k, dtype=torch.bfloat16, seed=seed).cuda() for seed in (1, 2)]
    expected = [mxfp4_ops.quant_mm(x, *weight) for x in inputs]
    x = inputs[0].clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = mxfp4_ops.quant_mm(x, *weight)
    for given, wanted in zip(inputs, expected, strict=True):
        x.copy_(given)
        graph.replay()
        assert_same_bits(y, wanted)
