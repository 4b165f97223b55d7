"""The kernels for NVIDIA's GPUs from Ampere on, which multiply bfloat16 but not MXFP4.

They are written in Gluon, Triton's dialect in which layouts are explicit. x is quantised by a small
kernel of its own and kept as bfloat16; the weight's codes become bfloat16 in registers, on their
way to the matrix units. What has no kernel here is the portable one.
"""

from __future__ import annotations

from math import ceil
from typing import Any

import torch
from torch import Tensor

from ....formats import BLOCK
from ...base import Call, Work
from ...devices import target
from .. import portable
from ..alignment import ALIGNMENT, aligned
from ..gemm import codes_operand, float_operand
from ..launch import Launch
from ..portable import dequantize, grouped_quant_mm, mm_a16, quantize
from ..reduce import bias_arguments, split_sums
from .narrow import mxfp4_gemm_narrow
from .plan import STEP_BLOCKS, Plan, capability, found_plan
from .prepare import mxfp4_prepare
from .wide import mxfp4_gemm_wide

__all__ = ["dequantize", "grouped_quant_mm", "mm", "mm_a16", "quant_mm", "quantize", "work"]

STEP = STEP_BLOCKS * BLOCK


def work(call: Call) -> Work:
    """What the functions below launch for a call."""
    if call.op not in ("quant_mm", "mm"):
        return portable.work(call)
    found = found_plan(call.m, call.n, call.k, call.target)
    kernels = ["mxfp4_prepare", f"mxfp4_gemm_{found.plan.kernel}"]
    if found.plan.split_k > 1:
        kernels.append("mxfp4_reduce")
    return Work(tuple(kernels), found.plan, found.origin)


def _product(
    left: dict[str, Any],
    constants: dict[str, Any],
    k: int,
    codes: Tensor,
    scales: Tensor,
    bias: Tensor | None,
    out: Tensor,
    shuffled: bool,
    plan: Plan | None,
) -> list[Launch]:
    """x prepared, the product, and with split-K the sum."""
    m, n = out.shape
    on = target(out.device)
    plan = plan or found_plan(m, n, k, on).plan
    dependent = capability(on.arch) >= 90  # programmatic launches, and mul.bf16x2
    blocks, per_split = k // BLOCK, plan.blocks_per_split(k)
    if plan.wide:
        stored, padded_m = 1, ceil(m / plan.block_m) * plan.block_m
    else:
        # A power of two, for the kernel is compiled for it.
        padded_m = 1 << max(m - 1, 0).bit_length()
        stored = min(8, padded_m)
    padded_k = plan.split_k * per_split * BLOCK
    # The narrow kernel loads a step of each warp more than it uses.
    steps = padded_k // STEP + (0 if plan.wide else plan.warps_k)
    operand = out.new_empty(steps, padded_m, STEP, dtype=torch.bfloat16)
    options: dict[str, Any] = {"launch_pdl": True} if dependent else {}
    constants = constants | {"DEPENDENT": dependent}

    # Few rows are to reach many units, and many rows are not to need many programs.
    prepared_blocks = 8 if m * blocks <= 4096 else 32
    prepare = Launch(
        mxfp4_prepare,
        (m * ceil(padded_k // BLOCK / prepared_blocks), 1, 1),
        left | {"operand": operand, "m": m, "k": k, "padded_k": padded_k, "padded_m": padded_m},
        constants | {"WIDE": plan.wide, "STORED": stored, "BLOCKS": prepared_blocks},
        options,
        writes=("operand",),
    )
    sums, bias_here, last = split_sums(plan.split_k, bias, out)
    codes = aligned(codes, rows=True)
    bias_given, bias_absent = bias_arguments(bias_here)
    arguments = left | bias_given | {"operand": operand, "codes": codes, "scales": scales}
    arguments |= {"out": sums, "m": m, "n": n, "blocks": blocks, "blocks_per_split": per_split}
    code_stride = codes.stride(0) if len(codes) > 1 else codes.shape[1]
    arguments |= {"code_stride": code_stride // ALIGNMENT, "scale_stride": scales.stride(0)}
    constants |= bias_absent | {"SHUFFLED": shuffled}
    constants |= {"BLOCK_N": plan.block_n, "BLOCK_M": plan.block_m}
    options = options | {"num_warps": plan.num_warps}
    down, across = ceil(n / plan.block_n), ceil(m / plan.block_m)
    if plan.wide:
        kernel, grid = mxfp4_gemm_wide, (across, down, plan.split_k)
        arguments |= {"padded_m": padded_m}
        constants |= {"STAGES": plan.stages}
        options = options | {"maxnreg": plan.registers}
    else:
        kernel, grid = mxfp4_gemm_narrow, (down, across, plan.split_k)
        constants |= {"padded_m": padded_m, "STORED": stored, "HAS_MUL": dependent}
        constants |= {"SPLITS": plan.warps_k, "AHEAD": plan.stages}
    return [prepare, Launch(kernel, grid, arguments, constants, options), *last]


def mm(
    a: Tensor,
    a_scale: Tensor,
    b: Tensor,
    b_scale: Tensor,
    bias: Tensor | None,
    out: Tensor,
    shuffled: bool,
    plan: Plan | None = None,
) -> list[Launch]:
    """out[M, N] = decode(a[M, K/2]) @ decode(b).T + bias."""
    k = 2 * a.shape[1]
    return _product(*codes_operand(a, a_scale), k, b, b_scale, bias, out, shuffled, plan)


def quant_mm(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None,
    out: Tensor,
    shuffled: bool,
    scale_mode: str,
    plan: Plan | None = None,
) -> list[Launch]:
    """out[M, N] = quantised(x[M, K]) @ decode(weight).T + bias; x may have any strides."""
    left, k = float_operand(x, scale_mode), x.shape[1]
    return _product(*left, k, weight, weight_scale, bias, out, shuffled, plan)
