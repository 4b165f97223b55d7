"""The portable Triton kernels by themselves: plans, layouts and buffers that a user's call does not
reach on this machine. On a GPU, and on the CPU under TRITON_INTERPRET=1."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import oracle
import pytest
import torch
from blocks import special_blocks
from common import (
    DTYPES,
    TRITON_DEVICES,
    Product,
    Weight,
    activation,
    assert_same_bits,
    every_dtype,
    every_mode,
    every_triton_device,
    generator,
    plain_and_shuffled,
    quantized_values,
    random_codes,
    random_weight,
)
from torch import Tensor

from mxfp4_ops import layout
from mxfp4_ops.backends.triton.launch import Launch
from mxfp4_ops.backends.triton.plan import (
    ProductPlan,
    RowsPlan,
    product_plan,
    rows_plan,
)
from mxfp4_ops.formats import quantize_reference

if not TRITON_DEVICES:
    pytest.skip("Triton has no GPU here and does not interpret", allow_module_level=True)

from mxfp4_ops.backends.triton import gemm, portable
from mxfp4_ops.backends.triton.dequantize import dequantize
from mxfp4_ops.backends.triton.quantize import quantize
from mxfp4_ops.backends.triton.reduce import reduce

GUARD = 4096
"""Bytes on either side of a buffer."""
FILL = 0xA5


def run(launches: list[Launch]) -> None:
    with np.errstate(all="ignore"):  # infinities and NaN in the interpreter
        for launch in launches:
            launch.run()


@contextmanager
def guarded(device: str) -> Iterator[Callable[..., Tensor]]:
    """Makes tensors; at the end, nothing beside them has been written."""
    memories: list[tuple[Tensor, int]] = []

    def empty(*shape: int, dtype: torch.dtype = torch.uint8) -> Tensor:
        size = torch.Size(shape).numel() * dtype.itemsize
        memory = torch.full((size + 2 * GUARD,), FILL, dtype=torch.uint8, device=device)
        memories.append((memory, size))
        return memory[GUARD : GUARD + size].view(dtype).view(shape)

    yield empty
    for memory, size in memories:
        assert (memory[:GUARD] == FILL).all()
        assert (memory[GUARD + size :] == FILL).all()


def quantized(x: Tensor, mode: str, plan: RowsPlan, codes: bool, scales: bool) -> Any:
    """Codes and scales of x[M, K], each in the shuffled layout or not."""
    m, k = x.shape
    plain = (m, k // 2), (m, k // 32)
    shuffled = layout.shuffled_shapes(m, k)
    with guarded(x.device.type) as empty:
        outputs = (
            empty(*(shuffled if codes else plain)[0]),
            empty(*(shuffled if scales else plain)[1]),
        )
        run(quantize(x, *outputs, mode, plan, codes, scales))
    return outputs


@every_triton_device
@pytest.mark.parametrize(("m", "k"), [(1, 32), (5, 96), (37, 288), (300, 64)])
@pytest.mark.parametrize("codes", [False, True], ids=["plain-codes", "shuffled-codes"])
@pytest.mark.parametrize("scales", [False, True], ids=["plain-scales", "shuffled-scales"])
def test_quantize_writes_each_layout(
    device: str, m: int, k: int, codes: bool, scales: bool
) -> None:
    """The pad too, and nothing else."""
    x = activation(m, k, dtype=torch.bfloat16)
    plain = quantize_reference(x)
    shuffled = layout.shuffle(*plain)
    for wide in (False, True):
        actual = quantized(x.to(device), "even", rows_plan(k, wide), codes, scales)
        assert_same_bits(actual[0], (shuffled if codes else plain)[0])
        assert_same_bits(actual[1], (shuffled if scales else plain)[1])


@every_triton_device
@every_dtype
@every_mode
def test_quantize_special_blocks_with_gpu_tiles(device: str, dtype: torch.dtype, mode: str) -> None:
    x = oracle.from_bits(special_blocks(dtype), dtype)
    for blocks in (1, 2):
        rows = x[: len(x) // blocks * blocks].view(-1, 32 * blocks)
        expected = quantize_reference(rows, mode)
        for wide in (False, True):
            plan = rows_plan(rows.shape[1], wide)
            actual = quantized(rows.to(device), mode, plan, False, False)
            assert_same_bits(actual[0], expected[0])
            assert_same_bits(actual[1], expected[1])


@every_triton_device
@every_dtype
@pytest.mark.parametrize(("m", "k"), [(1, 32), (7, 96), (33, 288)])
def test_dequantize_with_gpu_tiles(device: str, dtype: torch.dtype, m: int, k: int) -> None:
    codes, scales = random_codes(m, k, low=0, high=254)
    with guarded(device) as empty:
        out = empty(m, k, dtype=dtype)
        run(dequantize(codes.to(device), scales.to(device), out))
    assert_same_bits(out, oracle.decode(codes, scales).to(dtype))


PLANS = {
    "gpu-few-rows": ProductPlan(16, 32, 8),
    "gpu-wide": ProductPlan(16, 128, 4),
    "gpu-rows": ProductPlan(64, 32, 4),
    "gpu-square": ProductPlan(64, 128, 1, num_warps=8),
    "split-2": ProductPlan(16, 64, 1, split_k=2),
    "split-3": ProductPlan(32, 64, 4, split_k=3),
    "split-16": ProductPlan(64, 64, 1, split_k=16),
}
every_plan = pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)


class Operands:
    """What a product takes on a device, and what must come of it."""

    def __init__(
        self, device: str, m: int, n: int, k: int, shuffled: bool, dtype: torch.dtype
    ) -> None:
        self.device, self.shuffled, self.dtype = device, shuffled, dtype
        self.x = activation(m, k, dtype=dtype)
        self.weight = random_weight(n, k)
        self.values = self.weight.padded_values(shuffled)
        self.bias = torch.randn(len(self.values), generator=generator(n))
        self.right = self.weight.on(device, shuffled)

    @property
    def expected(self) -> Product:
        return Product.of(quantized_values(self.x), self.values, self.bias)

    def fused(self, plan: ProductPlan) -> Tensor:
        return self._guarded(gemm.quant_mm, (self.x,), plan, "even")

    def apart(self, plan: ProductPlan) -> Tensor:
        return self._guarded(gemm.mm, quantize_reference(self.x), plan)

    def _guarded(
        self,
        host: Callable[..., list[Launch]],
        left: tuple[Tensor, ...],
        plan: ProductPlan,
        *mode: str,
    ) -> Tensor:
        with guarded(self.device) as empty:
            out = empty(len(self.x), len(self.values), dtype=self.dtype)
            left = tuple(t.to(self.device) for t in left)
            bias = self.bias.to(self.device)
            run(host(*left, *self.right, bias, out, self.shuffled, *mode, plan))
        return out


@every_triton_device
@plain_and_shuffled
@every_plan
@pytest.mark.parametrize(("m", "n", "k"), [(3, 31, 96), (37, 70, 288)])
def test_plans(device: str, plan: ProductPlan, m: int, n: int, k: int, shuffled: bool) -> None:
    """Tiles and splits that do not divide the sizes; some splits have nothing to add."""
    operands = Operands(device, m, n, k, shuffled, torch.bfloat16)
    fused, apart = operands.fused(plan), operands.apart(plan)
    operands.expected.check(fused)
    operands.expected.check(apart)
    assert_same_bits(fused, apart)


@every_triton_device
@every_dtype
def test_plans_of_every_dtype(device: str, dtype: torch.dtype) -> None:
    operands = Operands(device, 20, 40, 160, False, dtype)
    for plan in PLANS["gpu-few-rows"], PLANS["split-3"]:
        operands.expected.check(operands.fused(plan))


@every_triton_device
@plain_and_shuffled
@pytest.mark.parametrize(("m", "n", "k"), [(1, 96, 2880), (33, 31, 1440), (17, 300, 512)])
@pytest.mark.parametrize("units", [4, 132])
def test_plans_that_gpus_get(
    device: str, m: int, n: int, k: int, units: int, shuffled: bool
) -> None:
    operands = Operands(device, m, n, k, shuffled, torch.bfloat16)
    plan = product_plan(m, len(operands.values), k, units)
    operands.expected.check(operands.fused(plan))
    operands.expected.check(operands.apart(plan))


@every_triton_device
@every_plan
def test_the_same_bits_again(device: str, plan: ProductPlan) -> None:
    operands = Operands(device, 20, 70, 288, False, torch.float32)
    first = operands.fused(plan)
    for _ in range(1 if device == "cpu" else 20):
        assert_same_bits(operands.fused(plan), first)


@every_triton_device
@plain_and_shuffled
@every_plan
def test_nan_reaches_its_row_and_column_through_every_split(
    device: str, plan: ProductPlan, shuffled: bool
) -> None:
    operands = Operands(device, 20, 40, 288, shuffled, torch.bfloat16)
    operands.x[3, 0], operands.x[11, 190], operands.x[19, 287] = torch.nan, torch.inf, -torch.inf
    codes, scales = operands.weight.codes, operands.weight.scales.clone()
    scales[5, 0], scales[39, 8] = 255, 255
    weight = Weight.of(codes, scales)
    operands.weight, operands.right = weight, weight.on(device, shuffled)
    operands.values = weight.padded_values(shuffled)
    for y in (operands.fused(plan), operands.apart(plan)):
        operands.expected.check(y)
        assert y[[3, 11, 19]].isnan().all()
        assert y[:, [5, 39]].isnan().all()


@every_triton_device
@pytest.mark.parametrize("layout_of_x", ["transposed", "step", "expanded"])
@every_plan
def test_strides_of_x(device: str, plan: ProductPlan, layout_of_x: str) -> None:
    operands = Operands(device, 20, 40, 160, False, torch.float16)
    x = operands.x
    operands.x = {
        "transposed": x.T.contiguous().T,
        "step": x.repeat_interleave(3, 1)[:, ::3],
        "expanded": x[:1].expand(20, -1),
    }[layout_of_x]
    strides = operands.x.stride()
    operands.x = operands.x if device == "cpu" else operands.x.to(device)
    assert device != "cpu" or operands.x.stride() == strides
    operands.expected.check(operands.fused(plan))


def _sum_in_order(partials: Tensor, bias: Tensor | None) -> Tensor:
    total = partials[0].clone()
    for partial in partials[1:]:
        total += partial
    return total if bias is None else total + bias.float()


@every_triton_device
@pytest.mark.parametrize("bias_dtype", [None, *DTYPES], ids=str)
@every_dtype
@pytest.mark.parametrize(("splits", "m", "n"), [(1, 1, 1), (2, 3, 31), (5, 40, 96), (16, 1, 2112)])
def test_reduce_adds_in_order(
    device: str,
    dtype: torch.dtype,
    bias_dtype: torch.dtype | None,
    splits: int,
    m: int,
    n: int,
) -> None:
    """The very bits of adding one partial product after the other, and rounding once."""
    g = generator(n)
    partials = torch.randn(splits, m, n, generator=g) * torch.randn(1, m, n, generator=g).exp2()
    partials[0, 0, 0], partials[-1, -1, -1] = torch.nan, torch.inf
    bias = None
    if bias_dtype is not None:
        bias = torch.randn(2 * n, generator=g).to(bias_dtype)[::2]
    expected = _sum_in_order(partials, bias).to(dtype)
    moved = bias if bias is None or device == "cpu" else bias.to(device)
    with guarded(device) as empty:
        out = empty(m, n, dtype=dtype)
        run(reduce(partials.to(device), moved, out))
    nan = expected.isnan()
    assert torch.equal(out.cpu().isnan(), nan)
    assert_same_bits(out.cpu()[~nan], expected[~nan])


@every_triton_device
def test_launches_of_an_operator(device: str) -> None:
    """Few rows take one launch, many a pass that quantises, and split-K one more."""
    weight = random_weight(40, 1024).on(device)

    def launches(m: int, compute_units: int) -> list[str]:
        x, out = torch.ones(m, 1024, device=device), torch.empty(m, 40, device=device)
        plan = product_plan(m, 40, 1024, compute_units)
        decided = portable.quant_mm(x, *weight, None, out, False, "even", plan)
        return [launch.kernel.__name__ for launch in decided]

    assert launches(64, 1) == ["mxfp4_gemm"]
    assert launches(64, 16) == ["mxfp4_gemm", "mxfp4_reduce"]
    assert launches(65, 1) == ["mxfp4_quantize", "mxfp4_gemm"]
    assert launches(65, 16) == ["mxfp4_quantize", "mxfp4_gemm", "mxfp4_reduce"]
