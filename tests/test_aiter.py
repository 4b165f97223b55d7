"""The backend "aiter" on a strict stand-in for AITER, with CPU tensors that pass for gfx950's."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import aiter_standin
import pytest
import torch
from aiter_standin import Release
from blocks import special_blocks
from common import (
    DTYPES,
    Product,
    Weight,
    activation,
    every_dtype,
    every_mode,
    half_ulp,
    plain_and_shuffled,
    quantized_values,
    random_codes,
    random_weight,
)
from oracle import from_bits
from torch import Tensor

import mxfp4_ops
from mxfp4_ops.backends import REGISTRY, Call, aiter, devices, failures, forced_backend, run, select
from mxfp4_ops.backends.devices import Target

pytestmark = pytest.mark.skipif(
    forced_backend() is not None, reason="MXFP4_OPS_BACKEND leaves no automatic choice"
)

ops = torch.ops.mxfp4

CPU, MI355X = torch.device("cpu"), Target("gfx950", 256)

NEWEST = Release("0.1.20.post1")
RELEASES = [
    NEWEST,
    Release("0.1.11", masked=False),
    Release("0.1.9", "gemm_afp4wfp4", masked=False),
    Release("0.1.7.post2.dev18", "gemm_afp4wfp4", masked=False),
    Release(None),
    Release("0.1.20", a4w4=False),
]
WITH_A4W4 = ("0.1.20.post1", "0.1.11", "0.1.9")

CACHES = (aiter._folder, aiter._version, aiter._functions)


def forget() -> None:
    for cache in CACHES:
        cache.cache_clear()
    for name in [m for m in sys.modules if m.partition(".")[0] == "aiter"]:
        del sys.modules[name]
    aiter_standin.calls.clear()


Install = Callable[[Release], None]


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A folder of packages, for a ROCm torch whose CPU is an MI355X."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(torch.version, "hip", "7.0")
    monkeypatch.setattr(devices, "target", lambda device: MI355X)
    forget()
    yield tmp_path
    forget()


@pytest.fixture
def install(site: Path) -> Install:
    return lambda release: release.install(site)


@pytest.fixture
def newest(install: Install) -> None:
    install(NEWEST)


def rows(t: Tensor) -> Tensor:
    return t.reshape(t.shape[:-1].numel(), t.shape[-1])


def check(
    x: Tensor,
    weight: Weight,
    shuffled: bool,
    bias: Tensor | None = None,
    *,
    mode: str = "even",
    out_dtype: torch.dtype | None = None,
) -> None:
    """Within the bound of every backend; `gemm_a4w4` rounds once more where there is a bias."""
    aiter_standin.calls.clear()
    with mxfp4_ops.use_backend("aiter"):
        y = ops.quant_mm(
            x, *weight.on("cpu", shuffled), bias,
            out_dtype=out_dtype, shuffled=shuffled, scale_mode=mode,
        )  # fmt: skip
    assert y.dtype == (out_dtype or x.dtype)
    assert y.shape[:-1] == x.shape[:-1]
    a, b = quantized_values(rows(x), mode), weight.padded_values(shuffled)
    expected = Product.of(a, b, bias)
    if bias is not None and aiter_standin.calls == ["gemm_a4w4"]:
        first = Product.of(a, b)
        once_more = half_ulp(first.exact.abs() + first.bound, torch.bfloat16)
        expected = Product(expected.exact, expected.bound + once_more)
    expected.check(rows(y))


@pytest.mark.parametrize("release", RELEASES, ids=str)
@plain_and_shuffled
@every_dtype
@pytest.mark.parametrize("k", [256, 288, 2048])
def test_releases(
    install: Install, release: Release, shuffled: bool, dtype: torch.dtype, k: int
) -> None:
    install(release)
    x, weight = activation(3, k, dtype=torch.bfloat16), random_weight(32, k)
    assembly = shuffled and k % 256 == 0 and dtype == torch.bfloat16
    assembly = assembly and release.version in WITH_A4W4
    for bias in (None, torch.randn(32).to(dtype)):
        check(x, weight, shuffled, bias, out_dtype=dtype)
        assert aiter_standin.calls == ["gemm_a4w4" if assembly else "gemm_afp4wfp4"]


@pytest.mark.usefixtures("newest")
@plain_and_shuffled
@pytest.mark.parametrize("m", [1, 31, 33, 257])
@pytest.mark.parametrize("n", [24, 40, 272])
@pytest.mark.parametrize("k", [32, 512, 768])
def test_sizes(shuffled: bool, m: int, n: int, k: int) -> None:
    check(activation(m, k, dtype=torch.bfloat16), random_weight(n, k), shuffled)


@pytest.mark.usefixtures("newest")
@plain_and_shuffled
@every_mode
@every_dtype
def test_scale_modes_and_dtypes_of_x(shuffled: bool, mode: str, dtype: torch.dtype) -> None:
    x = activation(5, 256, dtype=dtype)
    for out_dtype in DTYPES:
        check(x, random_weight(32, 256), shuffled, mode=mode, out_dtype=out_dtype)


@pytest.mark.usefixtures("newest")
@plain_and_shuffled
def test_leading_dimensions_and_strides(shuffled: bool) -> None:
    x = activation(2, 3, 512, dtype=torch.bfloat16)
    for strided in (x, x.transpose(0, 1), x[:, :, ::2], x[0, 0], x[:0]):
        check(strided, random_weight(32, strided.shape[-1]), shuffled, torch.randn(32))


@pytest.mark.usefixtures("newest")
def test_strides_of_plain_weights() -> None:
    weight = random_weight(32, 256)
    apart = (torch.cat((t, t), 1)[:, : t.shape[1]] for t in (weight.codes, weight.scales))
    check(activation(3, 256, dtype=torch.bfloat16), Weight.of(*apart), False)


@pytest.mark.usefixtures("newest")
@plain_and_shuffled
@pytest.mark.parametrize(("m", "n", "k"), [(0, 32, 256), (3, 0, 256), (3, 32, 0)])
def test_nothing_to_multiply(shuffled: bool, m: int, n: int, k: int) -> None:
    x = torch.ones(m, k, dtype=torch.bfloat16)
    check(x, random_weight(n, k), shuffled, torch.randn(n))
    assert aiter_standin.calls == []


@pytest.mark.usefixtures("newest")
@plain_and_shuffled
def test_special_blocks(shuffled: bool) -> None:
    """NaN and infinities, in activations and in weights, stay in their rows and columns."""
    x = from_bits(special_blocks(torch.bfloat16), torch.bfloat16).reshape(-1, 32)
    x = torch.nn.functional.pad(x, (0, 224), value=1)
    codes, scales = random_codes(32, 256)
    scales[7, 3] = 255
    check(x, Weight.of(codes, scales), shuffled)


@pytest.mark.usefixtures("newest")
@plain_and_shuffled
@every_dtype
def test_mm(shuffled: bool, dtype: torch.dtype) -> None:
    a, weight = Weight.of(*random_codes(6, 256, seed=1)), random_weight(32, 256)
    types = torch.float4_e2m1fn_x2, torch.float8_e8m0fnu
    left = [t.unflatten(0, (2, 3)) for t in a.on("cpu")]
    right = weight.on("cpu", shuffled)
    with mxfp4_ops.use_backend("aiter"):
        y = ops.mm(*left, *right, out_dtype=dtype, shuffled=shuffled)
        viewed = [t.view(d) for t, d in zip((*left, *right), types * 2, strict=True)]
        assert torch.equal(ops.mm(*viewed, out_dtype=dtype, shuffled=shuffled), y)
    assert y.dtype == dtype
    assert y.shape == (2, 3, 32)
    Product.of(a.values, weight.values).check(rows(y))


@pytest.mark.usefixtures("newest")
def test_results_are_new() -> None:
    x, weight = activation(3, 256, dtype=torch.bfloat16), random_weight(32, 256).on("cpu", True)
    with mxfp4_ops.use_backend("aiter"):
        first, second = (ops.quant_mm(x, *weight, shuffled=True) for _ in range(2))
    assert first.data_ptr() != second.data_ptr()
    assert first.stride() == (32, 1)


@pytest.mark.usefixtures("newest")
def test_imported_once_and_late() -> None:
    status = {s.name: s for s in mxfp4_ops.backends()}["aiter"]
    assert status.available
    assert status.detail == "AITER 0.1.20.post1"
    with mxfp4_ops.use_backend("aiter"):
        assert "aiter" not in sys.modules
        for _ in range(2):
            ops.quant_mm(torch.ones(3, 256), *random_weight(32, 256).on("cpu"))
    assert "aiter" in sys.modules
    assert aiter._functions.cache_info().misses == 1


def unavailable() -> str | None:
    with pytest.raises(RuntimeError) as raised:
        mxfp4_ops.use_backend("aiter").__enter__()
    reason = {s.name: s for s in mxfp4_ops.backends()}["aiter"].reason
    assert reason is not None
    assert reason in str(raised.value)
    return reason


@pytest.mark.usefixtures("site")
def test_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aiter, "find_spec", lambda name: None)
    assert "not installed" in str(unavailable())


def test_another_project_of_that_name(site: Path) -> None:
    (site / "aiter").mkdir()
    (site / "aiter" / "__init__.py").write_text("raise AssertionError")
    assert "not installed" in str(unavailable())


@pytest.mark.usefixtures("newest")
def test_not_rocm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", None)
    assert "ROCm" in str(unavailable())


@pytest.mark.usefixtures("newest")
@pytest.mark.parametrize("arch", ["gfx942", "gfx1250", "cpu"])
def test_other_devices(monkeypatch: pytest.MonkeyPatch, arch: str) -> None:
    monkeypatch.setattr(devices, "target", lambda device: Target(arch))
    with mxfp4_ops.use_backend("aiter"), pytest.raises(RuntimeError, match=rf"gfx950.*\({arch}\)"):
        ops.quant_mm(torch.ones(3, 256), *random_weight(32, 256).on("cpu"))


@pytest.mark.usefixtures("newest")
@pytest.mark.parametrize("op", ["quantize", "dequantize"])
def test_conversions_are_not_served(op: str) -> None:
    arguments = (torch.ones(3, 256),) if op == "quantize" else random_codes(3, 256)
    with mxfp4_ops.use_backend("aiter"), pytest.raises(RuntimeError, match=f"'aiter'.*{op}"):
        getattr(ops, op)(*arguments)


@pytest.mark.usefixtures("newest")
def test_codes_beyond_32_bit_offsets() -> None:
    def refusal(m: int, n: int, k: int) -> str | None:
        return aiter.BACKEND.refuses(Call("mm", CPU, torch.uint8, m, n, k))

    assert refusal(16, 2**17, 2**15) is None
    for m, n in ((16, 2**17 + 1), (2**17 + 1, 16)):
        assert "32-bit" in str(refusal(m, n, 2**15))


@pytest.fixture
def automatic() -> Iterator[None]:
    """CPU tensors are left to the backends of GPUs."""
    with patch.dict(REGISTRY), patch.dict(failures._reasons, clear=True):
        del REGISTRY["cpu"]
        yield


CALL = Call("mm", CPU, torch.uint8, 3, 32, 256, target=MI355X)


@pytest.mark.usefixtures("newest", "automatic")
def test_automatic_choice() -> None:
    assert list(REGISTRY).index("triton") < list(REGISTRY).index("aiter")
    assert select(CALL, None).name == "aiter"
    assert select(replace(CALL, op="quantize"), None).name == "reference"


@pytest.mark.usefixtures("automatic")
def test_an_import_that_fails(site: Path) -> None:
    """Automatic choice goes on, once and for all; an explicit one raises."""
    NEWEST.install(site)
    site.joinpath("aiter", "__init__.py").write_text("raise ImportError('libhip is missing')")
    a, b = Weight.of(*random_codes(3, 256)), random_weight(32, 256)
    arguments = (*a.on("cpu"), *b.on("cpu"), None, torch.float32, False)
    with mxfp4_ops.use_backend("aiter"), pytest.raises(ImportError, match="libhip"):
        run(CALL, *arguments)
    with pytest.warns(RuntimeWarning, match=r"'aiter'.*'reference'.*libhip is missing"):
        run(CALL, *arguments)
    y = run(CALL, *arguments)
    assert isinstance(y, Tensor)
    Product.of(a.values, b.values).check(y)
    assert "libhip" in {s.name: s for s in mxfp4_ops.backends()}["aiter"].detail
