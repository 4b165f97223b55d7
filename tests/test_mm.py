"""`mm` on every backend against float64, and its agreement with `quant_mm`."""

from __future__ import annotations

import pytest
import torch
from common import (
    DTYPES,
    MODES,
    Path,
    Product,
    Weight,
    activation,
    assert_same_bits,
    every_dtype,
    every_path,
    plain_and_shuffled,
    random_codes,
    random_weight,
)
from oracle import decode
from torch import Tensor

import mxfp4_ops
from mxfp4_ops.backends import reference

mm = torch.ops.mxfp4.mm


@every_path
@plain_and_shuffled
@pytest.mark.parametrize("k", [32, 96, 160, 2880, 7168])
@pytest.mark.parametrize("n", [1, 31, 96])
def test_sizes(path: Path, n: int, k: int, shuffled: bool) -> None:
    a, a_scale = random_codes(33, k, seed=3)
    weight = random_weight(n, k)
    expected = Product.of(decode(a, a_scale), weight.padded_values(shuffled))
    a, a_scale = a.to(path.device), a_scale.to(path.device)
    operands = weight.on(path.device, shuffled)
    for m in (0, 1, 3, 17, 33):
        for dtype in DTYPES:
            with path.active():
                y = mm(a[:m], a_scale[:m], *operands, out_dtype=dtype, shuffled=shuffled)
            assert y.dtype == dtype
            expected[:m].check(y)


def _left_views(a: Tensor, a_scale: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Views of `[4, 3, K]` that are contiguous in the last dimension."""
    return {
        "vector": (a[3, 1], a_scale[3, 1]),
        "matrix": (a[0], a_scale[0]),
        "3d": (a, a_scale),
        "swapped": (a.transpose(0, 1), a_scale.transpose(0, 1)),
        "rows-step": (a[::2, 1:], a_scale[::2, 1:]),
        "expanded": (a[:1, :1].expand(2, 3, -1), a_scale[:1, :1].expand(2, 3, -1)),
        "4d": (a.unflatten(0, (2, 2)), a_scale.unflatten(0, (2, 2))),
        "codes-only-swapped": (a[:3].transpose(0, 1), a_scale[:3].transpose(0, 1).contiguous()),
        "empty": (a[:, :0], a_scale[:, :0]),
        "float4": (a.view(torch.float4_e2m1fn_x2), a_scale.view(torch.float8_e8m0fnu)),
    }


@every_path
@plain_and_shuffled
@pytest.mark.parametrize("view", _left_views(*random_codes(4, 3, 32)))
def test_layouts_of_a(path: Path, view: str, shuffled: bool) -> None:
    left = _left_views(*(t.to(path.device) for t in random_codes(4, 3, 96)))[view]
    weight = random_weight(20, 96)
    with path.active():
        y = mm(*left, *weight.on(path.device, shuffled), shuffled=shuffled)
    Product.of(decode(*left), weight.padded_values(shuffled)).check(y)
    assert y.is_contiguous()


@every_path
def test_layouts_of_b(path: Path) -> None:
    codes, scales = (t.to(path.device) for t in random_codes(60, 288))
    left = tuple(t.to(path.device) for t in random_codes(5, 96, seed=5))
    for b, b_scale in (
        (codes[::3, :48], scales[::3, :3]),
        (codes[:20, 48:96], scales[:20, 3:6]),
        (codes[:1, :48].expand(20, -1), scales[:1, :3].expand(20, -1)),
        (codes[:20, 7:55], scales[:20, 1:4]),
    ):
        with path.active():
            y = mm(*left, b, b_scale)
        Product.of(decode(*left), decode(b, b_scale)).check(y)


@every_path
@plain_and_shuffled
@pytest.mark.parametrize("bias_dtype", DTYPES, ids=str)
@every_dtype
def test_bias(path: Path, dtype: torch.dtype, bias_dtype: torch.dtype, shuffled: bool) -> None:
    a, a_scale = random_codes(2, 3, 160, seed=3)
    weight = random_weight(37, 160)
    values = weight.padded_values(shuffled)
    bias = 50 * torch.randn(len(values)).to(bias_dtype)
    with path.active():
        y = mm(
            a.to(path.device),
            a_scale.to(path.device),
            *weight.on(path.device, shuffled),
            bias.to(path.device),
            out_dtype=dtype,
            shuffled=shuffled,
        )
    Product.of(decode(a, a_scale), values, bias).check(y)


@every_path
@pytest.mark.parametrize(("m", "n", "k"), [(0, 8, 64), (3, 0, 64), (0, 0, 0), (3, 8, 0)])
def test_empty_sizes(path: Path, m: int, n: int, k: int) -> None:
    left, right = random_codes(m, k), random_codes(n, k)
    bias = torch.randn(n)
    with path.active():
        y = mm(*(t.to(path.device) for t in (*left, *right, bias)))
    assert torch.equal(y.cpu(), bias.bfloat16().expand(m, n))


@every_path
@plain_and_shuffled
def test_nan_scales(path: Path, shuffled: bool) -> None:
    a, a_scale = random_codes(18, 96, seed=3)
    b, b_scale = random_codes(20, 96)
    a_scale[2, 1], a_scale[17, 0], b_scale[0, 0], b_scale[19, 2] = 255, 255, 255, 255
    weight = Weight.of(b, b_scale)
    expected = Product.of(decode(a, a_scale), weight.padded_values(shuffled))
    with path.active():
        y = mm(
            a.to(path.device),
            a_scale.to(path.device),
            *weight.on(path.device, shuffled),
            shuffled=shuffled,
        )
    expected.check(y)
    assert y[[2, 17]].isnan().all()
    assert y[:, [0, 19]].isnan().all()
    # A NaN scale in a row of `a` reaches the columns that the layout adds, one in `b` does not.
    assert y[:, 20:].isnan().sum() == 2 * (y.shape[1] - 20)


@every_path
@plain_and_shuffled
@pytest.mark.parametrize(("a_byte", "b_byte"), [(0, 254), (254, 0), (1, 250), (0, 127), (254, 10)])
def test_scale_bytes_at_their_limits(path: Path, a_byte: int, b_byte: int, shuffled: bool) -> None:
    a, a_scale = random_codes(9, 96, seed=3)
    b, b_scale = random_codes(20, 96)
    weight = Weight.of(b, b_scale.fill_(b_byte))
    a_scale.fill_(a_byte)
    with path.active():
        y = mm(
            a.to(path.device),
            a_scale.to(path.device),
            *weight.on(path.device, shuffled),
            out_dtype=torch.float32,
            shuffled=shuffled,
        )
    Product.of(decode(a, a_scale), weight.padded_values(shuffled)).check(y)


@every_path
def test_default_out_dtype_is_bfloat16(path: Path) -> None:
    left, right = random_codes(2, 32), random_codes(3, 32)
    with path.active():
        assert mxfp4_ops.mm(*(t.to(path.device) for t in (*left, *right))).dtype == torch.bfloat16


@every_path
@every_dtype
@pytest.mark.parametrize("mode", MODES)
def test_quant_mm_is_quantize_and_mm(path: Path, dtype: torch.dtype, mode: str) -> None:
    """Within the bound: a fused kernel may add in another order."""
    x, weight = activation(7, 288, dtype=dtype).to(path.device), random_weight(33, 288)
    with path.active():
        q, scale = torch.ops.mxfp4.quantize(x, scale_mode=mode)
        fused = torch.ops.mxfp4.quant_mm(
            x, *weight.on(path.device), out_dtype=torch.float32, scale_mode=mode
        )
        apart = mm(q, scale, *weight.on(path.device), out_dtype=torch.float32)
    expected = Product.of(decode(q, scale), weight.values)
    expected.check(fused)
    expected.check(apart)
    if path.backend in ("cpu", "reference"):
        assert_same_bits(fused, apart)


def test_the_reference_works_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    left, right = random_codes(7, 96), random_codes(50, 96)
    bias = torch.randn(50)
    arguments = (*left, *right, bias, torch.float32, False)
    whole = reference.mm(*arguments)
    monkeypatch.setattr(reference, "CHUNK", 300)  # three rows of the weight
    expected = Product.of(decode(*left), decode(*right), bias)
    expected.check(whole)
    expected.check(reference.mm(*arguments))
