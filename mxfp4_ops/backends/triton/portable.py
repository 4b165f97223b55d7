"""The kernels for every GPU that Triton supports, in the order in which a call launches them."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import torch
from torch import Tensor

from ... import formats
from ..base import Call, Work
from ..devices import Target, target
from . import gemm, grouped
from .dequantize import dequantize as _dequantize
from .launch import Launch
from .mm_a16 import mm_a16 as _mm_a16
from .plan import (
    ProductPlan,
    RowsPlan,
    found_plan,
    interpreted_product_plan,
    interpreted_rows_plan,
    product_plan,
    rows_plan,
)
from .quantize import quantize as _quantize


def work(call: Call) -> Work:
    """What the functions below launch for a call."""
    if call.op in ("quantize", "dequantize"):
        return Work((f"mxfp4_{call.op}",))
    m, n, k = call.m, call.n, call.k
    if call.op == "mm_a16":
        plan, origin = _plan_by_rule(m, n, k, call.target), "rule"
        reduced = ["mxfp4_reduce"] if plan.split_k > 1 else []
        return Work(("mxfp4_mm_a16", *reduced), plan, origin)
    if call.op == "grouped_quant_mm":
        plan = _grouped_plan(m, n, k, call.experts, call.target)
        return Work(("mxfp4_quantize", "mxfp4_grouped_gemm"), plan, "rule")
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


def _plan_by_rule(m: int, n: int, k: int, on: Target) -> ProductPlan:
    """For products without a table."""
    if on.arch == "cpu":
        return interpreted_product_plan(m, n, k)
    return product_plan(m, n, k, on.compute_units)


def _grouped_plan(m: int, n: int, k: int, experts: int, on: Target) -> ProductPlan:
    """For `grouped_quant_mm`: as for one of the experts, if each had as many rows and as much of
    the GPU as the next."""
    experts = max(experts, 1)
    rows, units = ceil(m / experts), ceil(on.compute_units / experts)
    return replace(_plan_by_rule(rows, n, k, Target(on.arch, units)), split_k=1, fused=False)


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


def mm_a16(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None,
    out: Tensor,
    shuffled: bool,
    plan: ProductPlan | None = None,
) -> list[Launch]:
    m, n = out.shape
    plan = plan or _plan_by_rule(m, n, x.shape[1], target(out.device))
    return _mm_a16(x, weight, weight_scale, bias, out, shuffled, plan)


def grouped_quant_mm(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    offsets: Tensor,
    bias: Tensor | None,
    out: Tensor,
    scale_mode: str,
    plan: ProductPlan | None = None,
) -> list[Launch]:
    (m, k), (experts, n, _) = x.shape, weight.shape
    plan = plan or _grouped_plan(m, n, k, experts, target(out.device))
    codes = x.new_empty(m, k // 2, dtype=torch.uint8)
    scales = x.new_empty(m, k // formats.BLOCK, dtype=torch.uint8)
    product = grouped.grouped_mm(codes, scales, weight, weight_scale, offsets, bias, out, plan)
    return [*quantize(x, codes, scales, scale_mode), *product]
