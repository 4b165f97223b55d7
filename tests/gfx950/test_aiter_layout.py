"""The shuffled layout and the backend "aiter" against AITER's own code: its functions that shuffle,
and its Triton kernels with the host code around them, executed in emulation."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import metadata
from types import ModuleType
from typing import Any

import pytest
import torch
from common import (
    Product,
    Weight,
    activation,
    every_dtype,
    plain_and_shuffled,
    quantized_values,
    random_codes,
    random_weight,
)
from torch import Tensor

from mxfp4_ops.backends import aiter
from mxfp4_ops.layout import shuffle

from .aiter_kernels import emulated, first_of, root, without_init

ROOT = root()

pytestmark = pytest.mark.skipif(ROOT is None, reason="AMD's package amd-aiter is not installed")


@pytest.fixture(scope="module")
def modules() -> Iterator[None]:
    assert ROOT is not None
    with without_init(ROOT):
        yield


@pytest.fixture(scope="module")
def gemm(modules: None) -> ModuleType:
    return first_of(*(f"aiter.ops.triton.{name}" for name in aiter.TRITON_MODULES))


def part_of_aiter(name: str) -> Any:
    return pytest.importorskip(
        name, reason=f"{name} of this release needs all of AITER", exc_type=ImportError
    )


@pytest.mark.usefixtures("modules")
def test_codes_are_shuffled_as_aiter_does() -> None:
    codes, scales = random_codes(48, 256)
    theirs = part_of_aiter("aiter.ops.shuffle").shuffle_weight(codes, layout=(16, 16))
    assert torch.equal(shuffle(codes, scales)[0], theirs)


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize("n", [256, 96])
def test_scales_are_shuffled_as_aiter_does(monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    """But for the bytes beyond N, which AITER leaves as they are."""
    # Their module of dtypes asks the machine for a GPU; this function has no use for it.
    monkeypatch.setitem(sys.modules, "aiter.utility.dtypes", ModuleType("dtypes"))
    codes, scales = random_codes(n, 512)
    theirs = part_of_aiter("aiter.utility.fp4_utils").e8m0_shuffle(scales)
    ours = shuffle(codes, scales)[1]
    assert theirs.shape == ours.shape
    held = shuffle(codes, torch.full_like(scales, 255))[1] == 255
    assert held.sum() == scales.numel()
    assert torch.equal(ours[held], theirs[held])


def in_groups(scales: Tensor) -> Tensor:
    """Shuffled scales as AITER's Triton kernels take them: 32 rows make one."""
    return scales.view(scales.shape[0] // 32, 32 * scales.shape[1])


@pytest.mark.parametrize("m", [5, 16, 33, 64])
@pytest.mark.parametrize(("n", "k"), [(64, 512), (128, 1024), (192, 256)])
def test_shuffled_operands(gemm: ModuleType, m: int, n: int, k: int) -> None:
    """A kernel that reads both operands' scales shuffled, and the weight's codes: from 32 rows."""
    a, b = Weight.of(*random_codes(m, k, seed=1)), random_weight(n, k)
    codes, scales = b.on("cpu", shuffled=True)
    a_scales = in_groups(shuffle(a.codes, a.scales)[1]) if m >= 32 else a.scales
    multiply = emulated(gemm.gemm_afp4wfp4_preshuffled_weight_scales)
    y = multiply(a.codes, codes.view(n // 16, 8 * k), a_scales, in_groups(scales))
    Product.of(a.values, b.values).check(y)


@pytest.fixture
def functions(monkeypatch: pytest.MonkeyPatch, gemm: ModuleType) -> None:
    """The backend calls AITER's `gemm_afp4wfp4`; kernels in assembly cannot be emulated."""
    found = aiter.Functions(None, emulated(gemm.gemm_afp4wfp4))
    monkeypatch.setattr(aiter, "_functions", lambda: found)
    monkeypatch.setattr(aiter, "_version", lambda: metadata.version("amd-aiter"))


@pytest.mark.usefixtures("functions")
@plain_and_shuffled
@every_dtype
@pytest.mark.parametrize("bias", [False, True])
def test_the_backend(shuffled: bool, dtype: torch.dtype, bias: bool) -> None:
    x, weight = activation(3, 512, dtype=dtype), random_weight(48, 512)
    b = torch.randn(48) if bias else None
    y = aiter.quant_mm(x, *weight.on("cpu", shuffled), b, None, shuffled, "even")
    assert y.dtype == dtype
    Product.of(quantized_values(x), weight.values, b).check(y)


@pytest.mark.usefixtures("functions")
@plain_and_shuffled
@pytest.mark.parametrize("m", [1, 40])
@pytest.mark.parametrize("k", [32, 160, 288, 1120])
def test_parts_of_tiles(shuffled: bool, m: int, k: int) -> None:
    """Beyond K lie scales of other rows, NaN among them, and bytes that belong to no tensor."""
    a, b = Weight.of(*random_codes(m, k, seed=1)), random_codes(16, k)
    b[1][1::2, 0] = 255
    weight = Weight.of(*b)
    y = aiter.mm(*a.on("cpu"), *weight.on("cpu", shuffled), None, torch.float32, shuffled)
    Product.of(a.values, weight.values).check(y)


def test_no_tile_of_k_is_larger() -> None:
    assert ROOT is not None
    tables = ROOT.joinpath("aiter", "ops", "triton", "configs").rglob("*AFP4WFP4*.json")
    tiles = {
        entry["BLOCK_SIZE_K"]
        for table in tables
        for entry in json.loads(table.read_text()).values()
        if isinstance(entry, dict)
    }
    assert tiles
    assert all(aiter.LARGEST_TILE % tile == 0 for tile in tiles)
