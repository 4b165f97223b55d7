"""More than 2**31 elements: every offset must be a 64-bit one.

Inputs are sparse files mapped into memory, of which only the pages in use exist.
"""

from __future__ import annotations

from pathlib import Path as FilePath

import pytest
import torch
from common import Product, activation, assert_same_bits, needs_cpu_kernels, random_weight
from torch import Tensor

import mxfp4_ops

FAR = 1 << 31
"""Elements from row to row."""


def mapped(path: FilePath, elements: int, dtype: torch.dtype) -> Tensor:
    """Zeros on a sparse file."""
    with path.open("wb") as file:
        file.truncate(elements * dtype.itemsize)
    return torch.from_file(str(path), shared=True, size=elements, dtype=dtype)


def far_rows(path: FilePath, rows: Tensor, stride: int = FAR) -> Tensor:
    """A copy of `rows` whose rows lie `stride` elements apart."""
    n, columns = rows.shape
    far = mapped(path, (n - 1) * stride + columns, rows.dtype).as_strided(rows.shape, (stride, 1))
    return far.copy_(rows)


@needs_cpu_kernels
def test_activation_rows_far_apart(tmp_path: FilePath) -> None:
    x = activation(3, 96, dtype=torch.bfloat16)
    far = far_rows(tmp_path / "x", x)
    weight = random_weight(31, 96)
    for ours, theirs in zip(mxfp4_ops.quantize(far), mxfp4_ops.quantize(x), strict=True):
        assert_same_bits(ours, theirs)
    y = mxfp4_ops.quant_mm(far, weight.codes, weight.scales)
    assert_same_bits(y, mxfp4_ops.quant_mm(x, weight.codes, weight.scales))


@needs_cpu_kernels
@pytest.mark.parametrize("m", [1, 17])
def test_weight_rows_far_apart(tmp_path: FilePath, m: int) -> None:
    x, weight = activation(m, 96, dtype=torch.float32), random_weight(33, 96)
    # The scales' stride is the largest that the kernels take as it is, and the first that is not.
    for scale_stride in (FAR // 16 - 1, FAR // 16, FAR // 8 - 1, FAR):
        codes = far_rows(tmp_path / "codes", weight.codes)
        scales = far_rows(tmp_path / "scales", weight.scales, scale_stride)
        y = mxfp4_ops.quant_mm(x, codes, scales)
        assert_same_bits(y, mxfp4_ops.quant_mm(x, weight.codes, weight.scales))
        assert_same_bits(
            mxfp4_ops.dequantize(codes, scales), mxfp4_ops.dequantize(weight.codes, weight.scales)
        )


def _available_bytes() -> int:
    for line in FilePath("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0


needs_memory = pytest.mark.skipif(
    not FilePath("/proc/meminfo").exists() or _available_bytes() < 12 << 30,
    reason="needs 12 GiB of memory",
)


@needs_cpu_kernels
@needs_memory
def test_result_of_more_than_2_to_the_31_elements() -> None:
    m, n, k = (1 << 16) + 1, 1 << 15, 32
    rows = activation(3, k, dtype=torch.bfloat16)
    x = rows.repeat(m // 3 + 1, 1)[:m]
    weight = random_weight(n, k)
    y = mxfp4_ops.quant_mm(x, weight.codes, weight.scales)
    assert y.numel() > 1 << 31
    expected = mxfp4_ops.quant_mm(rows, weight.codes, weight.scales)
    Product.of(*map(_decoded, (mxfp4_ops.quantize(rows), (weight.codes, weight.scales)))).check(
        expected
    )
    for first in range(0, m, 4095):  # a multiple of 3
        part = y[first : first + 4095]
        whole = part[: len(part) // 3 * 3].view(-1, 3, n)
        assert torch.equal(whole, expected.expand_as(whole))
    assert torch.equal(y[-1], expected[(m - 1) % 3])


@needs_cpu_kernels
def test_quantize_more_than_2_to_the_31_elements() -> None:
    row = activation(1, 32, dtype=torch.float16)
    codes, scales = mxfp4_ops.quantize(row.expand((1 << 26) + 1, 32))
    assert codes.numel() * 2 > 1 << 31
    expected_codes, expected_scales = mxfp4_ops.quantize(row)
    assert torch.equal(codes, expected_codes.expand_as(codes))
    assert torch.equal(scales, expected_scales.expand_as(scales))


def _decoded(weight: tuple[Tensor, Tensor]) -> Tensor:
    return mxfp4_ops.dequantize(*weight, dtype=torch.float32).double()
