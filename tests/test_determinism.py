"""The same inputs give the same bits: again, and on other threads, batches and kernels."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from common import (
    CPU_PATHS,
    Path,
    activation,
    assert_same_bits,
    every_cpu_path,
    every_dtype,
    every_path,
    needs_cpu_kernels,
    plain_and_shuffled,
    random_codes,
    random_weight,
)
from torch import Tensor

SIZES = [(1, 31, 96), (5, 17, 2880), (33, 96, 160), (70, 200, 512), (400, 70, 192)]


@pytest.fixture
def _restore_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def quant_mm(path: Path, x: Tensor, n: int, shuffled: bool = False) -> Tensor:
    operands = random_weight(n, x.shape[-1]).on(path.device, shuffled)
    with path.active():
        return torch.ops.mxfp4.quant_mm(
            x.to(path.device), *operands, out_dtype=torch.float32, shuffled=shuffled
        )


@every_path
@plain_and_shuffled
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_again(path: Path, m: int, n: int, k: int, shuffled: bool) -> None:
    x = activation(m, k, dtype=torch.bfloat16)
    first = quant_mm(path, x, n, shuffled)
    for _ in range(3):
        assert_same_bits(quant_mm(path, x, n, shuffled), first)


@needs_cpu_kernels
@every_cpu_path
@plain_and_shuffled
@pytest.mark.usefixtures("_restore_threads")
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_number_of_threads(path: Path, m: int, n: int, k: int, shuffled: bool) -> None:
    x = activation(m, k, dtype=torch.bfloat16)
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append(quant_mm(path, x, n, shuffled))
    assert_same_bits(results[1], results[0])
    assert_same_bits(results[2], results[0])


@needs_cpu_kernels
@every_cpu_path
@pytest.mark.usefixtures("_restore_threads")
@every_dtype
@pytest.mark.parametrize(("m", "k"), [(1, 65536), (7, 7168), (3000, 32)])
def test_number_of_threads_that_convert(path: Path, dtype: torch.dtype, m: int, k: int) -> None:
    x = activation(m, k, dtype=dtype)
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        with path.active():
            q, scale = torch.ops.mxfp4.quantize(x)
            values = torch.ops.mxfp4.dequantize(q, scale, dtype=dtype)
        if threads == 1:
            expected = q, scale, values
        for actual, wanted in zip((q, scale, values), expected, strict=True):
            assert_same_bits(actual, wanted)


@needs_cpu_kernels
@every_cpu_path
@plain_and_shuffled
@every_dtype
@pytest.mark.parametrize(("n", "k"), [(31, 96), (96, 2880), (200, 512)])
def test_batches(path: Path, dtype: torch.dtype, n: int, k: int, shuffled: bool) -> None:
    """A row's result does not depend on the rows beside it."""
    x = activation(33, k, dtype=dtype)
    whole = quant_mm(path, x, n, shuffled)
    for m in (1, 2, 3, 4, 7, 8, 16, 31):
        parts = [quant_mm(path, part, n, shuffled) for part in x.split(m)]
        assert_same_bits(torch.cat(parts), whole)
    assert_same_bits(quant_mm(path, x.view(11, 3, k), n, shuffled), whole.view(11, 3, -1))


@needs_cpu_kernels
@every_cpu_path
@pytest.mark.parametrize(("n", "k"), [(31, 96), (96, 2880)])
def test_shuffled_equals_plain(path: Path, n: int, k: int) -> None:
    x = activation(9, k, dtype=torch.bfloat16)
    assert_same_bits(quant_mm(path, x, n, shuffled=True)[:, :n], quant_mm(path, x, n))


@needs_cpu_kernels
@every_dtype
@plain_and_shuffled
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_instruction_sets(dtype: torch.dtype, m: int, n: int, k: int, shuffled: bool) -> None:
    x = activation(m, k, dtype=dtype)
    x[m // 2, 5] = torch.nan
    first, *others = (quant_mm(path, x, n, shuffled) for path in CPU_PATHS)
    for other in others:
        assert_same_bits(other, first)


@needs_cpu_kernels
@every_dtype
def test_instruction_sets_of_mm(dtype: torch.dtype) -> None:
    left = random_codes(33, 160, seed=1, low=0, high=255)
    right = random_codes(96, 160, seed=2, low=0, high=255)
    bias = torch.randn(96)
    results = []
    for path in CPU_PATHS:
        with path.active():
            results.append(torch.ops.mxfp4.mm(*left, *right, bias, out_dtype=dtype))
    for other in results[1:]:
        assert_same_bits(other, results[0])
