"""torch's own checks of a custom operator, for every operator and kind of argument."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from common import (
    DTYPES,
    MODES,
    Path,
    activation,
    every_backend,
    every_dtype,
    plain_and_shuffled,
    random_codes,
    random_weight,
)
from experts import Experts
from torch import Tensor
from torch.library import opcheck

from mxfp4_ops.schema import SCHEMAS

UTILS = (
    "test_schema",
    "test_autograd_registration",
    "test_faketensor",
    "test_aot_dispatch_dynamic",
)
# test_schema clones its arguments, and torch's CPU copy_ does not take Float4_e2m1fn_x2.
UTILS_FOR_FLOAT4 = UTILS[1:]


@dataclass(frozen=True)
class Case:
    op: str
    arguments: tuple[Any, ...]
    keywords: dict[str, Any] = field(default_factory=dict)

    def check(self, path: Path) -> None:
        def put(t: Any) -> Any:
            if not isinstance(t, Tensor):
                return t
            return t.to(path.device).detach().requires_grad_(t.requires_grad)

        tensors = [t for t in self.arguments if isinstance(t, Tensor)]
        float4 = any(t.dtype == torch.float4_e2m1fn_x2 for t in tensors)
        with path.active():
            opcheck(
                getattr(torch.ops.mxfp4, self.op).default,
                tuple(map(put, self.arguments)),
                self.keywords,
                test_utils=UTILS_FOR_FLOAT4 if float4 else UTILS,
            )


def _typed(codes: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
    return codes.view(torch.float4_e2m1fn_x2), scales.view(torch.float8_e8m0fnu)


def _same(codes: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
    return codes, scales


Cast = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
CASTS: dict[str, Cast] = {"bytes": _same, "float4": _typed}
every_cast = pytest.mark.parametrize("cast", CASTS.values(), ids=CASTS)

N, K = 24, 96


def _bias(shuffled: bool, dtype: torch.dtype) -> Tensor:
    return torch.randn(32 if shuffled else N, dtype=dtype)


@every_backend
@every_dtype
@plain_and_shuffled
@pytest.mark.parametrize("variant", ["bare", "bias", "gradients"])
def test_quant_mm(path: Path, dtype: torch.dtype, shuffled: bool, variant: str) -> None:
    grad = variant == "gradients"
    x = activation(2, 3, K, dtype=dtype).requires_grad_(grad)
    bias = None if variant == "bare" else _bias(shuffled, dtype).requires_grad_(grad)
    weight = random_weight(N, K).on("cpu", shuffled)
    Case("quant_mm", (x, *weight, bias), {"shuffled": shuffled}).check(path)


@every_backend
@plain_and_shuffled
def test_quant_mm_of_torch_dtypes(path: Path, shuffled: bool) -> None:
    x = activation(5, K, dtype=torch.bfloat16).requires_grad_()
    weight = _typed(*random_weight(N, K).on("cpu", shuffled))
    Case("quant_mm", (x, *weight), {"shuffled": shuffled}).check(path)


@every_backend
@pytest.mark.parametrize("requires", ["x", "bias"])
@pytest.mark.parametrize("out_dtype", DTYPES, ids=str)
def test_quant_mm_with_one_gradient(path: Path, out_dtype: torch.dtype, requires: str) -> None:
    x = activation(5, K, dtype=torch.bfloat16).requires_grad_(requires == "x")
    bias = _bias(False, torch.float32).requires_grad_(requires == "bias")
    weight = random_weight(N, K).on("cpu")
    keywords = {"out_dtype": out_dtype, "scale_mode": "ceil"}
    Case("quant_mm", (x, *weight, bias), keywords).check(path)


@every_backend
def test_quant_mm_of_views(path: Path) -> None:
    weight = random_weight(N, K).on("cpu")
    for x in (
        activation(1, K, dtype=torch.bfloat16)[0],
        activation(0, K, dtype=torch.float16),
        activation(3, 2, K, dtype=torch.float32).transpose(0, 1),
        activation(4, 2 * K, dtype=torch.bfloat16)[:, ::2],
    ):
        Case("quant_mm", (x, *weight, None)).check(path)


@every_backend
@every_dtype
@plain_and_shuffled
@pytest.mark.parametrize("with_bias", [False, True], ids=["bare", "bias"])
def test_mm(path: Path, dtype: torch.dtype, shuffled: bool, with_bias: bool) -> None:
    right = random_weight(N, K).on("cpu", shuffled)
    bias = _bias(shuffled, dtype).requires_grad_() if with_bias else None
    keywords = {"out_dtype": dtype, "shuffled": shuffled}
    Case("mm", (*random_codes(2, 3, K), *right, bias), keywords).check(path)


@every_backend
@plain_and_shuffled
def test_mm_of_torch_dtypes(path: Path, shuffled: bool) -> None:
    right = _typed(*random_weight(N, K).on("cpu", shuffled))
    Case("mm", (*_typed(*random_codes(5, K)), *right), {"shuffled": shuffled}).check(path)


@every_backend
@every_dtype
@plain_and_shuffled
@pytest.mark.parametrize("grad", [False, True], ids=["bare", "gradients"])
def test_mm_a16(path: Path, dtype: torch.dtype, shuffled: bool, grad: bool) -> None:
    x = activation(2, 3, K, dtype=dtype).requires_grad_(grad)
    bias = _bias(shuffled, torch.float32).requires_grad_() if grad else None
    weight = random_weight(N, K).on("cpu", shuffled)
    keywords = {"shuffled": shuffled, "out_dtype": torch.float16}
    Case("mm_a16", (x, *weight, bias), keywords).check(path)
    Case("mm_a16", (x.mT.contiguous().mT, *_typed(*weight)), {"shuffled": shuffled}).check(path)


@every_backend
@every_dtype
@pytest.mark.parametrize("grad", [False, True], ids=["bare", "gradients"])
def test_grouped_quant_mm(path: Path, dtype: torch.dtype, grad: bool) -> None:
    case = Experts.of([3, 0, 2], N, K, dtype=dtype, bias=torch.float32)
    x, codes, scales, offsets, bias = case.arguments()
    x, bias = x.requires_grad_(grad), bias.requires_grad_(grad)
    keywords = {"out_dtype": torch.bfloat16, "scale_mode": "floor"}
    Case("grouped_quant_mm", (x, codes, scales, offsets, bias), keywords).check(path)
    Case("grouped_quant_mm", (x, *_typed(codes, scales), offsets.long())).check(path)


@every_backend
@every_dtype
@pytest.mark.parametrize("mode", MODES)
def test_quantize(path: Path, dtype: torch.dtype, mode: str) -> None:
    Case("quantize", (activation(2, 3, K, dtype=dtype),), {"scale_mode": mode}).check(path)
    Case("quantize", (activation(2, K, 32, dtype=dtype).mT,)).check(path)


@every_backend
@every_dtype
@every_cast
def test_dequantize(path: Path, dtype: torch.dtype, cast: Cast) -> None:
    Case("dequantize", cast(*random_codes(2, 3, K)), {"dtype": dtype}).check(path)


@every_cast
@pytest.mark.parametrize(("n", "k"), [(N, K), (16, 64), (1, 32)])
def test_shuffle_and_unshuffle(cast: Cast, n: int, k: int) -> None:
    path = Path("reference", "cpu")
    plain = cast(*random_codes(n, k))
    Case("shuffle", plain).check(path)
    Case("unshuffle", (*torch.ops.mxfp4.shuffle(*plain), n, k)).check(path)


def test_schemas_are_tagged_and_functional() -> None:
    for name in SCHEMAS:
        op = getattr(torch.ops.mxfp4, name).default
        assert torch.Tag.pt2_compliant_tag in op.tags
        assert not op._schema.is_mutable
        assert all(r.alias_info is None for r in op._schema.returns)
