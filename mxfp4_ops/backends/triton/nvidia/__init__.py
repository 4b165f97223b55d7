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
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from ....formats import BLOCK
from ...base import Call, Work
from ...devices import target
from .. import portable
from ..alignment import ALIGNMENT, aligned
from ..gemm import codes_operand, float_operand
from ..launch import Launch
from ..portable import dequantize, grouped_quant_mm, mm_a16, quantize
from ..reduce import bias_arguments, split_sums
from .integer import mxfp4_gemm_integer
from .narrow import mxfp4_gemm_narrow
from .plan import LONG_STEPS, STEP_BLOCKS, Plan, capability, found_plan
from .prepare import STEP, prepared
from .prepare_integer import prepared_integer
from .wide import mxfp4_gemm_wide

MOST_PARTIAL_SUMS = 1 << 26
"""Of a split product at a time, a quarter of a gibibyte: those of more rows of x come after."""

__all__ = ["dequantize", "grouped_quant_mm", "mm", "mm_a16", "quant_mm", "quantize", "work"]


def work(call: Call) -> Work:
    """What the functions below launch for a call."""
    if call.op not in ("quant_mm", "mm"):
        return portable.work(call)
    found = found_plan(call.m, call.n, call.k, call.target, integer=not call.shuffled)
    kernel = found.plan.kernel
    prepare = "mxfp4_prepare" if kernel == "narrow" else f"mxfp4_prepare_{kernel}"
    kernels = [prepare, f"mxfp4_gemm_{kernel}"]
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
    """x prepared, the product, and with split-K the sum; of many rows one part after the other."""
    m, n = out.shape
    if 0 in out.shape:
        return []  # and nothing for a descriptor to describe
    on = target(out.device)
    plan = (plan or found_plan(m, n, k, on, integer=not shuffled).plan).for_depth(k)
    codes = aligned(codes, rows=True)
    code_stride = codes.stride(0) if len(codes) > 1 else codes.shape[1]
    right = {"codes": codes, "scales": scales, "scale_stride": scales.stride(0)}
    right |= {"code_stride": code_stride // ALIGNMENT, "n": n, "blocks": k // BLOCK}
    # Programmatic launches, and mul.bf16x2.
    constants = constants | {"DEPENDENT": capability(on.arch) >= 90}
    tiled = 0 < k <= 2 * code_stride and not shuffled  # and so no rows that overlap
    if not tiled:
        plan = plan.as_wide().for_depth(k)
    if plan.specialized:
        right["code_tiles"] = _tiles(codes, code_stride, plan.block_n, STEP // 2) if tiled else None
    most = MOST_PARTIAL_SUMS // (plan.split_k * n) // plan.block_m * plan.block_m
    rows = max(most, plan.block_m)
    if plan.split_k == 1 or m <= rows:
        return _part(left, right, constants, k, bias, out, shuffled, plan, None)
    memory = out.new_empty(plan.split_k * rows * n, dtype=torch.float32)
    launches = []
    for top in range(0, m, rows):
        part = slice(top, top + rows)
        of_x = {name: t[part] if isinstance(t, Tensor) else t for name, t in left.items()}
        launches += _part(of_x, right, constants, k, bias, out[part], shuffled, plan, memory)
    return launches


def _tiles(t: Tensor, stride: int, rows: int, columns: int) -> TensorDescriptor:
    """A matrix of bytes, so many from row to row, as the GPU copies it in tiles [rows, columns]."""
    layout = gl.NVMMASharedLayout(columns, 8, rank=2)
    return TensorDescriptor(t, list(t.shape), [stride, 1], [rows, columns], layout)


def _part(
    left: dict[str, Any],
    right: dict[str, Any],
    constants: dict[str, Any],
    k: int,
    bias: Tensor | None,
    out: Tensor,
    shuffled: bool,
    plan: Plan,
    memory: Tensor | None,
) -> list[Launch]:
    """The launches for some rows, whose partial sums lie in `memory` if it is given."""
    m, n = out.shape
    per_split = plan.blocks_per_split(k)
    padded_k = plan.split_k * per_split * BLOCK
    options: dict[str, Any] = {"launch_pdl": True} if constants["DEPENDENT"] else {}
    scales, blocks = right["scales"], right["blocks"]
    words = plan.specialized and all(
        i % 4 == 0 for i in (blocks, scales.data_ptr(), scales.stride(0))
    )
    if plan.integer:
        prepare = prepared_integer(left, right, constants, options, k, padded_k, out, plan, words)
    else:
        prepare = prepared(left, constants, options, k, padded_k, out, plan)
    made = {name: prepare.arguments[name] for name in prepare.writes}
    sums, bias_here, last = split_sums(plan.split_k, bias, out, memory)
    bias_given, bias_absent = bias_arguments(bias_here)
    arguments = left | right | bias_given | made
    arguments |= {"out": sums, "m": m, "blocks_per_split": per_split}
    constants = constants | bias_absent
    constants |= {"BLOCK_N": plan.block_n, "BLOCK_M": plan.block_m}
    down, across = ceil(n / plan.block_n), ceil(m / plan.block_m)
    if plan.specialized:
        constants |= {"STAGES": plan.stages}
        options = options | {"maxnreg": plan.registers}
        part = prepare.constants["BLOCK_M"]
        arguments["operand"] = _tiles(made["operand"].view(-1, STEP), STEP, part, STEP)
        arguments["padded_m"] = prepare.arguments["padded_m"]
    if plan.integer:
        kernel, tiles = mxfp4_gemm_integer, down * across * plan.split_k
        programs = plan.programs(m, n, target(out.device).compute_units)
        grid = (programs, 1, 1)
        arguments["integer"] = _tiles(made["integer"], padded_k, plan.block_m, STEP)
        if sums.element_size() == 2 and n % 8 == 0 and sums.data_ptr() % ALIGNMENT == 0:
            layout = gl.NVMMASharedLayout(128, 16, rank=2)
            arguments["out_tiles"] = TensorDescriptor(out, [m, n], [n, 1], [64, 64], layout)
        else:
            constants["out_tiles"] = None
        if per_split > LONG_STEPS * STEP_BLOCKS:
            size = programs * plan.block_n * part
            arguments["held"] = out.new_empty(size, dtype=torch.float32)
        else:
            constants["held"] = None
        arguments |= {"tiles": tiles, "padded_n": prepare.arguments["padded_n"]}
    elif plan.wide:
        kernel, grid = mxfp4_gemm_wide, (across, down, plan.split_k)
        constants |= {"ALIGNED": words and blocks > 0 and not shuffled, "SHUFFLED": shuffled}
    else:
        kernel, grid = mxfp4_gemm_narrow, (down, across, plan.split_k)
        constants["padded_m"] = prepare.arguments["padded_m"]  # compiled for it
        constants |= {"STORED": prepare.constants["STORED"], "HAS_MUL": constants["DEPENDENT"]}
        constants |= {"SPLITS": plan.warps_k, "AHEAD": plan.stages, "SHUFFLED": shuffled}
    options = options | {"num_warps": plan.num_warps}
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
