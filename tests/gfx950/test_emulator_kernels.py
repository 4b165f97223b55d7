"""Whole kernels, compiled by Triton and run in emulation, against torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

triton = pytest.importorskip("triton", reason="triton is not installed")

from triton import knobs  # noqa: E402

if knobs.runtime.interpret:
    pytest.skip("with TRITON_INTERPRET, kernels are not compiled", allow_module_level=True)

import oracle  # noqa: E402

from . import samples  # noqa: E402
from .samples import random  # noqa: E402

# Of Triton 3.9: that the default of a later release will be another one.
pytestmark = pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")

FLOATS = (torch.bfloat16, torch.float16, torch.float32)
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64)
Form = dict[str, Any]
Values = dict[str, object]
every_form = pytest.mark.parametrize(
    "form",
    [
        {"specialised": False},
        {"specialised": True, "order": "descending"},
        {"specialised": True, "order": "interleaved"},
    ],
    ids=["plain", "specialised", "interleaved"],
)


either_layout = pytest.mark.parametrize("transposed", [False, True], ids=["rows", "columns"])


def in_layout(b: Tensor, transposed: bool) -> Tensor:
    """B as it is, or with its columns in one piece: the loads from LDS transpose it then."""
    return b.T.contiguous().T if transposed else b


@every_form
@pytest.mark.parametrize("dtype", [*FLOATS, torch.float64, *INTEGERS], ids=str)
def test_add(dtype: torch.dtype, form: Form) -> None:
    x, y, z = random(dtype, 800), random(dtype, 800, seed=1), torch.zeros(800, dtype=dtype)
    arguments: Values = {"X": x, "Y": y, "Z": z, "n": 777}
    samples.run(samples.add, (2, 1, 1), arguments, {"BLOCK": 512}, **form)
    assert torch.equal(z[:777], (x + y)[:777])
    assert not z[777:].any()


@every_form
@pytest.mark.parametrize("target", FLOATS, ids=str)
@pytest.mark.parametrize("source", FLOATS, ids=str)
def test_convert(source: torch.dtype, target: torch.dtype, form: Form) -> None:
    x, z = random(source, 512) * 2.0**-12, torch.zeros(512, dtype=target)
    arguments: Values = {"X": x, "Z": z, "n": 512}
    samples.run(samples.convert, (2, 1, 1), arguments, {"BLOCK": 256}, **form)
    assert torch.equal(z, x.to(target))


@every_form
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_strides(dtype: torch.dtype, form: Form) -> None:
    base = random(dtype, 3, 70, 41)
    x, z = base[1].T[:, ::2], torch.zeros(41, 35, dtype=dtype)
    arguments: Values = {"X": x, "Z": z, "M": 41, "N": 35}
    arguments |= {"row_stride": x.stride(0), "column_stride": x.stride(1)}
    constants: Values = {"BM": 16, "BN": 32}
    samples.run(samples.scale_strided, (3, 2, 1), arguments, constants, **form)
    expected = torch.where(x > 0, x.float() * 2, x.float() / 3).to(dtype)
    assert torch.equal(z, expected)


@every_form
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_softmax(dtype: torch.dtype, form: Form) -> None:
    x, z = random(dtype, 3, 800), torch.zeros(3, 800, dtype=dtype)
    arguments: Values = {"X": x, "Z": z, "N": 800}
    samples.run(samples.softmax, (3, 1, 1), arguments, {"BLOCK": 1024}, **form)
    expected = torch.softmax(x.double(), 1)
    # The sum and the exponential are within a few units of float32, then comes one rounding.
    bound = (2.0**-20 + torch.finfo(dtype).eps / 2) * expected + torch.finfo(dtype).tiny
    assert ((z.double() - expected).abs() <= bound).all()


@every_form
@pytest.mark.parametrize(("rows", "columns"), [(16, 128), (4, 512)])
def test_reductions(rows: int, columns: int, form: Form) -> None:
    x, z = random(torch.int16, rows, 600), torch.zeros(2, rows, dtype=torch.int32)
    arguments: Values = {"X": x, "Z": z, "N": 600}
    constants: Values = {"BM": rows, "BN": columns}
    samples.run(samples.row_sums, (1, 1, 1), arguments, constants, **form)
    assert torch.equal(z[0], x.sum(1).int())
    assert torch.equal(z[1], (x & 0x7FFF).amax(1).int())


@every_form
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers(dtype: torch.dtype, form: Form) -> None:
    x, y = random(dtype, 400), random(dtype, 400, seed=1) >> 3
    y[y == 0] = 3
    z = torch.zeros_like(x)
    arguments: Values = {"X": x, "Y": y, "Z": z, "n": 400}
    samples.run(samples.integers, (2, 1, 1), arguments, {"BLOCK": 256}, **form)
    quotient = torch.div(x, y, rounding_mode="trunc")
    mixed = quotient * 7 + torch.fmod(x, y) ^ (x >> 3) | (y << 2) & x
    assert torch.equal(z, torch.where(x < y, torch.minimum(mixed, x), torch.maximum(mixed, y)))


@every_form
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_moves_through_lds(dtype: torch.dtype, form: Form) -> None:
    x, z = random(dtype, 80, 48), torch.zeros(48, 80, dtype=dtype)
    arguments: Values = {"X": x, "Z": z, "M": 80, "N": 48}
    constants: Values = {"BM": 64, "BN": 32}
    samples.run(samples.transpose, (2, 2, 1), arguments, constants, **form)
    assert torch.equal(z, x.T)
    x, z = random(dtype, 2048), torch.zeros(2048, dtype=dtype)
    constants = {"A": 16, "B": 16, "C": 8}
    samples.run(
        samples.permute,
        (1, 1, 1),
        {"X": x, "Z": z},
        constants,
        **form,
    )
    assert torch.equal(z, x.view(16, 16, 8).permute(2, 0, 1).flatten())


@every_form
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_scan(dtype: torch.dtype, form: Form) -> None:
    x, z = random(dtype, 1024), torch.zeros(1024, dtype=dtype)
    arguments: Values = {"X": x, "Z": z}
    samples.run(
        samples.running_sum,
        (1, 1, 1),
        arguments,
        {"BLOCK": 1024},
        **form,
    )
    assert torch.equal(z, x.cumsum(0).to(dtype))


@every_form
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_split_sum(dtype: torch.dtype, form: Form) -> None:
    x, bias, z = random(torch.float32, 4, 700), random(dtype, 50), torch.zeros(700, dtype=dtype)
    arguments: Values = {"X": x, "BIAS": bias, "Z": z, "MN": 700, "N": 50}
    constants: Values = {"SPLITS": 4, "BLOCK": 512}
    samples.run(samples.split_sum, (2, 1, 1), arguments, constants, **form)
    expected = x[0] + x[1] + x[2] + x[3] + bias.float().repeat(14)
    assert torch.equal(z, expected.to(dtype))


@every_form
@either_layout
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_matmul(dtype: torch.dtype, transposed: bool, form: Form) -> None:
    a, b = random(dtype, 48, 96), in_layout(random(dtype, 80, 96, seed=1), transposed)
    z = torch.zeros(48, 80)
    arguments: Values = {"A": a, "B": b, "Z": z, "M": 48, "N": 80, "K": 96}
    arguments |= {"b_row": b.stride(0), "b_column": b.stride(1)}
    constants: Values = {"BM": 32, "BN": 64, "BK": 32}
    stats = samples.run(samples.matmul, (2, 2, 1), arguments, constants, **form)
    if transposed and form["specialised"] and dtype != torch.float32:
        assert stats.by_mnemonic()["ds_read_b64_tr_b16"]
    a, b = a.double(), b.double()
    assert ((z - a @ b.T).abs() <= 96 * 2.0**-24 * (a.abs() @ b.abs().T)).all()


@every_form
@either_layout
@pytest.mark.parametrize(
    ("instruction", "shape"), [(16, (32, 64, 256)), (32, (64, 128, 128))], ids=str
)
def test_scaled_matmul(
    shape: tuple[int, int, int], instruction: int, transposed: bool, form: Form
) -> None:
    m, n, k = 72, 144, 320
    codes = random(torch.uint8, m, k // 2), random(torch.uint8, n, k // 2, seed=1)
    scales = [120 + random(torch.uint8, rows, k // 32, seed=2) % 12 for rows in (m, n)]
    z = torch.zeros(m, n)
    arguments: Values = {"A": codes[0], "SA": scales[0], "B": codes[1], "SB": scales[1]}
    arguments["B"] = b_codes = in_layout(codes[1], transposed)
    arguments |= {"Z": z, "M": m, "N": n, "K": k}
    arguments |= {"b_row": b_codes.stride(0), "b_column": b_codes.stride(1)}
    constants: Values = dict(zip(("BM", "BN", "BK"), shape, strict=True))
    grid = (-(-m // shape[0]), -(-n // shape[1]), 1)
    stats = samples.run(
        samples.scaled_matmul,
        grid,
        arguments,
        constants,
        **form,
        matrix_instr_nonkdim=instruction,
    )
    executed = stats.by_mnemonic()
    assert any(name.startswith(f"v_mfma_scale_f32_{instruction}x") for name in executed)
    if transposed:
        assert executed["ds_read_b64_tr_b8"]
    a, b = (oracle.decode(q, s) for q, s in zip(codes, scales, strict=True))
    assert ((z - a @ b.T).abs() <= k / 32 * 2.0**-24 * (a.abs() @ b.abs().T)).all()
