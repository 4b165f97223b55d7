"""The kernels for AMD's MI355X (gfx950), which multiplies MXFP4 in hardware.

They are written in Gluon, Triton's dialect in which layouts are explicit. Each function decides on
launches and returns them in order; tensors are 2-d here, and `out` is new and contiguous. `mm_a16`,
whose activations no FP4 unit takes, is the portable one.
"""

from __future__ import annotations

from math import ceil
from typing import Any

import torch
from torch import Tensor

from ....formats import BLOCK
from ....layout import shuffled_shapes
from ...base import Call, Work
from ...devices import Target, target
from .. import portable
from ..alignment import ALIGNMENT, aligned
from ..dequantize import dequantize
from ..grouped import expert_bias_arguments, padded_groups, row_tiles
from ..launch import Launch
from ..plan import product_plan
from ..reduce import bias_arguments, split_sums
from .fused import mxfp4_quant_mm
from .gemm import mxfp4_gemm
from .grouped import mxfp4_grouped_quant_mm
from .plan import WHOLE, Plan, can_run, found_plan, grouped_plan, mm_plan, quant_mm_plan
from .quantize import mxfp4_quantize

__all__ = ["dequantize", "grouped_quant_mm", "mm", "mm_a16", "quant_mm", "quantize", "work"]

QUANTIZE_ROWS, QUANTIZE_CHUNK, QUANTIZE_WAVES = 16, 512, 4
"""A block for each lane: the activations of few rows must still reach many compute units."""


OFFSET_LIMIT = 2**31
"""Bytes from a tile's first element that the kernels' 32-bit offsets reach."""


def _target(t: Tensor) -> Target:
    """The GPU that `t` is on, or a whole one where the launches are for one that is not there."""
    return target(t.device) if t.is_cuda else WHOLE


def work(call: Call) -> Work:
    """What the functions below launch for a call."""
    if call.op in ("quantize", "dequantize"):
        return Work((f"mxfp4_{call.op}",))
    if call.op == "mm_a16":
        return portable.work(call)
    if call.op == "grouped_quant_mm":
        plan = grouped_plan(call.m, call.n, call.k, call.experts, call.target.compute_units)
        return Work(("mxfp4_grouped_quant_mm",), plan, "rule")
    found = found_plan(call.op, call.m, call.n, call.k, call.shuffled, call.target)
    plan = found.plan
    if call.op == "mm":
        kernels = ["mxfp4_gemm"]
    else:
        kernels = ["mxfp4_quant_mm"] if plan.fused else ["mxfp4_quantize", "mxfp4_gemm"]
    if plan.split_k > 1:
        kernels.append("mxfp4_reduce")
    return Work(tuple(kernels), plan, found.origin)


def _reachable(t: Tensor, rows: int) -> Tensor:
    """`t`, or a contiguous copy if `rows` rows of it lie too far apart."""
    reach = (rows - 1) * t.stride(-2) + (t.shape[-1] - 1) * t.stride(-1) + 1
    return t if reach * t.element_size() <= OFFSET_LIMIT else t.contiguous()


def _activations(x: Tensor, rows: int) -> tuple[Tensor, dict[str, Any], bool]:
    """x, its strides, and whether its rows can be read as 32-bit words of two elements."""
    x = _reachable(x, rows)
    stride_m, stride_k = x.stride() if len(x) > 1 else (x.shape[1], x.stride(1))
    words = stride_k == 1 and stride_m % 2 == 0 and x.data_ptr() % 4 == 0
    return x, {"x_stride_m": stride_m, "x_stride_k": stride_k}, words and x.element_size() == 2


def quantize(
    x: Tensor, codes: Tensor, scales: Tensor, scale_mode: str, *, shuffled: bool = False
) -> list[Launch]:
    """Quantise x[M, K], of any strides, into contiguous codes and scales.

    With `shuffled` they have the sizes of that layout (`layout.shuffled_shapes`), whose pad is left
    as it is.
    """
    m, k = x.shape
    x, strides, packed = _activations(x, QUANTIZE_ROWS)
    constants = {"K": k, "MODE": scale_mode, "PACKED": packed, "SHUFFLED": shuffled}
    constants |= {"BM": QUANTIZE_ROWS, "KC": QUANTIZE_CHUNK, "MASK_M": m % QUANTIZE_ROWS != 0}
    return [
        Launch(
            mxfp4_quantize,
            (ceil(k / QUANTIZE_CHUNK), ceil(m / QUANTIZE_ROWS), 1),
            {"x": x, "codes": codes, "scales": scales, "m": m, **strides},
            constants,
            {"num_warps": QUANTIZE_WAVES},
            writes=("codes", "scales"),
        )
    ]


def _product(
    kernel: Any, arguments: dict[str, Any], constants: dict[str, Any], bias: Tensor | None,
    out: Tensor, shuffled: bool, plan: Plan,
) -> list[Launch]:  # fmt: skip
    """One launch of a product kernel, and with split-K that of the sum."""
    (m, n), split = out.shape, plan.split_k
    sums, bias_here, last = split_sums(split, bias, out)
    bias_given, bias_absent = bias_arguments(bias_here)
    arguments |= {"out": sums, "m": m, "n": n, **bias_given}
    constants |= {"BM": plan.block_m, "BN": plan.block_n, "KC": plan.chunk_k, "SPLIT": split}
    # Tiles of shuffled weights begin at multiples of 32 rows, so the last cannot always be shifted.
    constants |= {"MASK_N": n < plan.block_n or (shuffled and n % 32 != 0), **bias_absent}
    grid = (ceil(n / plan.block_n), ceil(m / plan.block_m), split)
    return [Launch(kernel, grid, arguments, constants, {"num_warps": plan.num_warps}), *last]


def _operand(codes: Tensor, scales: Tensor, shuffled: bool, rows: int) -> tuple[Tensor, Tensor]:
    """Codes and scales as the kernels can read them."""
    if shuffled:
        return aligned(codes), aligned(scales)
    return aligned(_reachable(codes, rows), rows=True), _reachable(scales, rows)


def _row_strides(name: str, codes: Tensor, scales: Tensor) -> dict[str, int]:
    return {
        f"{name}_stride": codes.stride(-2) // ALIGNMENT,
        f"{name}_scale_stride": scales.stride(-2),
    }


def _gemm(
    a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor], bias: Tensor | None, out: Tensor, k: int,
    a_shuffled: bool, b_shuffled: bool, plan: Plan,
) -> list[Launch]:  # fmt: skip
    b = _operand(*b, b_shuffled, plan.block_n)
    m = len(out)
    arguments: dict[str, Any] = {"a": a[0], "a_scale": a[1], "b": b[0], "b_scale": b[1]}
    arguments |= _row_strides("a", *a) | _row_strides("b", *b)
    constants = {"K": k, "A_SHUFFLED": a_shuffled, "B_SHUFFLED": b_shuffled, "WM": plan.waves_m}
    constants |= {"MASK_M": m < plan.block_m or (a_shuffled and m % 32 != 0)}
    return _product(mxfp4_gemm, arguments, constants, bias, out, b_shuffled, plan)


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
    """out[M, N] = a @ b.T + bias of two MXFP4 operands, the first in the plain layout."""
    k = 2 * a.shape[1]
    m, n = out.shape
    plan = plan or mm_plan(m, n, k, _target(out))
    left = _operand(a, a_scale, False, plan.block_m)
    return _gemm(left, (b, b_scale), bias, out, k, False, shuffled, plan)


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
    """out[M, N] = quantise(x) @ weight.T + bias."""
    (m, k), n = x.shape, out.shape[1]
    plan = plan or quant_mm_plan(m, n, k, shuffled, _target(out))
    if not plan.fused:
        if not can_run(plan, shuffled):
            raise ValueError(f"{plan} leaves a wave less than the 32 rows of shuffled scales")
        shapes = shuffled_shapes(m, k) if shuffled else ((m, k // 2), (m, k // BLOCK))
        a = x.new_empty(shapes[0], dtype=torch.uint8), x.new_empty(shapes[1], dtype=torch.uint8)
        passes = quantize(x, a[0], a[1], scale_mode, shuffled=shuffled)
        return passes + _gemm(a, (weight, weight_scale), bias, out, k, shuffled, shuffled, plan)
    weight, weight_scale = _operand(weight, weight_scale, shuffled, plan.block_n)
    x, strides, packed = _activations(x, plan.block_m)
    arguments: dict[str, Any] = {"x": x, "weight": weight, "weight_scale": weight_scale, **strides}
    arguments |= _row_strides("weight", weight, weight_scale)
    constants = {"K": k, "MODE": scale_mode, "PACKED": packed, "SHUFFLED": shuffled}
    constants |= {"MASK_M": m < plan.block_m}
    return _product(mxfp4_quant_mm, arguments, constants, bias, out, shuffled, plan)


def mm_a16(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None,
    out: Tensor,
    shuffled: bool,
) -> list[Launch]:
    """out[M, N] = x @ weight.T + bias, with x as it is."""
    (m, k), n = x.shape, out.shape[1]
    plan = product_plan(m, n, k, _target(out).compute_units)
    return portable.mm_a16(x, weight, weight_scale, bias, out, shuffled, plan)


def grouped_quant_mm(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    offsets: Tensor,
    bias: Tensor | None,
    out: Tensor,
    scale_mode: str,
    plan: Plan | None = None,
) -> list[Launch]:
    """out[T, N] = quantise(x) @ weight[expert of the row].T + bias of that expert."""
    (m, k), (experts, n, _) = x.shape, weight.shape
    plan = plan or grouped_plan(m, n, k, experts, _target(out).compute_units)
    weight, weight_scale = _operand(weight, weight_scale, False, plan.block_n)
    x, strides, packed = _activations(x, plan.block_m)
    arguments: dict[str, Any] = {"x": x, "weight": weight, "weight_scale": weight_scale, **strides}
    arguments |= _row_strides("weight", weight, weight_scale)
    arguments |= {"weight_stride_e": weight.stride(0) // ALIGNMENT}
    arguments |= {"weight_scale_stride_e": weight_scale.stride(0)}
    arguments |= {"offsets": offsets, "offset_stride": offsets.stride(0), "experts": experts}
    arguments |= {"out": out, "m": m, "n": n}
    given, absent = expert_bias_arguments(bias)
    constants = {"K": k, "MODE": scale_mode, "PACKED": packed, "GROUPS": padded_groups(experts)}
    constants |= {"BM": plan.block_m, "BN": plan.block_n, "KC": plan.chunk_k}
    constants |= {"MASK_N": n < plan.block_n}
    grid = ceil(n / plan.block_n), row_tiles(m, experts, plan.block_m), 1
    options = {"num_warps": plan.num_warps}
    return [Launch(mxfp4_grouped_quant_mm, grid, arguments | given, constants | absent, options)]
