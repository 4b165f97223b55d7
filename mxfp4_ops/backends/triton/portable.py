"""The kernels for every GPU that Triton supports, in the order in which a call launches them."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from ... import formats
from . import gemm
from .dequantize import dequantize as _dequantize
from .launch import Launch
from .plan import (
    FUSED_ROWS,
    ProductPlan,
    RowsPlan,
    interpreted_product_plan,
    interpreted_rows_plan,
    product_plan,
    rows_plan,
)
from .quantize import quantize as _quantize


@cache
def _compute_units(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def _product_plan(out: Tensor, k: int) -> ProductPlan:
    m, n = out.shape
    if out.device.type == "cpu":
        return interpreted_product_plan(m, n)
    return product_plan(m, n, k, _compute_units(out.device))


def _rows_plan(t: Tensor, k: int) -> RowsPlan:
    """For a tensor [M, ...] that holds K elements a row."""
    if t.device.type == "cpu":
        return interpreted_rows_plan(k)
    return rows_plan(k, neighbours_in_k=t.stride(1) <= t.stride(0))


def quantize(
    x: Tensor,
    codes: Tensor,
    scales: Tensor,
    scale_mode: str,
    shuffled_codes: bool = False,
    shuffled_scales: bool = False,
) -> list[Launch]:
    plan = _rows_plan(x, x.shape[1])
    return _quantize(x, codes, scales, scale_mode, plan, shuffled_codes, shuffled_scales)


def dequantize(codes: Tensor, scales: Tensor, out: Tensor) -> list[Launch]:
    return _dequantize(codes, scales, out, _rows_plan(out, out.shape[1]))


def mm(
    a: Tensor,
    a_scale: Tensor,
    b: Tensor,
    b_scale: Tensor,
    bias: Tensor | None,
    out: Tensor,
    shuffled: bool,
    plan: ProductPlan | None = None,
) -> list[Launch]:
    plan = plan or _product_plan(out, 2 * a.shape[1])
    return gemm.mm(a, a_scale, b, b_scale, bias, out, shuffled, plan)


def quant_mm(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None,
    out: Tensor,
    shuffled: bool,
    scale_mode: str,
    plan: ProductPlan | None = None,
) -> list[Launch]:
    m, k = x.shape
    plan = plan or _product_plan(out, k)
    if m <= FUSED_ROWS:
        return gemm.quant_mm(x, weight, weight_scale, bias, out, shuffled, scale_mode, plan)
    codes = x.new_empty(m, k // 2, dtype=torch.uint8)
    scales = x.new_empty(m, k // formats.BLOCK, dtype=torch.uint8)
    product = gemm.mm(codes, scales, weight, weight_scale, bias, out, shuffled, plan)
    return [*quantize(x, codes, scales, scale_mode), *product]
