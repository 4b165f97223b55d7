"""The kernels for every GPU that Triton supports, in the order in which a call launches them."""

from __future__ import annotations

import torch
from torch import Tensor

from ... import formats
from ..base import Call, Work
from ..devices import target
from . import gemm
from .dequantize import dequantize as _dequantize
from .launch import Launch
from .plan import (
    ProductPlan,
    RowsPlan,
    found_plan,
    interpreted_product_plan,
    interpreted_rows_plan,
    rows_plan,
)
from .quantize import quantize as _quantize


def work(call: Call) -> Work:
    """What the functions below launch for a call."""
    if call.op not in ("quant_mm", "mm"):
        return Work((f"{call.op}_kernel",))
    m, n, k = call.m, call.n, call.k
    if call.device.type == "cpu":
        plan, origin = interpreted_product_plan(m, n, k), "rule for Triton's interpreter"
    else:
        found = found_plan(call.op, m, n, k, call.target)
        plan, origin = found.plan, found.origin
    quantised = plan.fused or call.op == "mm"
    kernels = ["mxfp4_gemm"] if quantised else ["mxfp4_quantize", "mxfp4_gemm"]
    if plan.split_k > 1:
        kernels.append("mxfp4_reduce")
    return Work(tuple(kernels), plan, origin)


def _product_plan(op: str, out: Tensor, k: int) -> ProductPlan:
    m, n = out.shape
    if out.device.type == "cpu":
        return interpreted_product_plan(m, n, k)
    return found_plan(op, m, n, k, target(out.device)).plan


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
    plan = plan or _product_plan("mm", out, 2 * a.shape[1])
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
    plan = plan or _product_plan("quant_mm", out, k)
    if plan.fused:
        return gemm.quant_mm(x, weight, weight_scale, bias, out, shuffled, scale_mode, plan)
    codes = x.new_empty(m, k // 2, dtype=torch.uint8)
    scales = x.new_empty(m, k // formats.BLOCK, dtype=torch.uint8)
    product = gemm.mm(codes, scales, weight, weight_scale, bias, out, shuffled, plan)
    return [*quantize(x, codes, scales, scale_mode), *product]
