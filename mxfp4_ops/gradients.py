"""The operators' gradients.

Quantisation is a staircase, so its true derivative is useless: x gets the straight-through
gradient, as if it had not been quantised: the true one of `mm_a16`. Codes and scales get none.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .backends.reference import groups
from .schema import GROUPED_FLOAT_MM, NAMESPACE


def _float_dtype(grad: Tensor) -> torch.dtype:
    """In which a gradient and a weight are multiplied.

    bfloat16 holds every weight exactly; float16 would overflow.
    """
    return torch.bfloat16 if grad.dtype == torch.bfloat16 else torch.float32


def _save_for_product(
    ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: Tensor
) -> None:
    x, weight, weight_scale, bias = inputs
    ctx.save_for_backward(weight, weight_scale)
    ctx.shuffled = keyword_only_inputs["shuffled"]
    ctx.x_dtype, ctx.k = x.dtype, x.shape[-1]
    ctx.bias_dtype = None if bias is None else bias.dtype


def _product_gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    grad_x = None
    if ctx.needs_input_grad[0]:
        weight, weight_scale = ctx.saved_tensors
        n = weight.shape[0]
        if ctx.shuffled:
            weight, weight_scale = torch.ops.mxfp4.unshuffle(weight, weight_scale, n, ctx.k)
        dtype = _float_dtype(grad)
        w = torch.ops.mxfp4.dequantize(weight, weight_scale, dtype=dtype)
        grad_x = (grad.to(dtype) @ w).to(ctx.x_dtype)
    return grad_x, None, None, _bias_gradient(ctx, grad, 3)


def _save_for_mm(
    ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: Tensor
) -> None:
    bias = inputs[4]
    ctx.bias_dtype = None if bias is None else bias.dtype


def _mm_gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return None, None, None, None, _bias_gradient(ctx, grad, 4)


def _bias_gradient(ctx: Any, grad: Tensor, position: int) -> Tensor | None:
    # The dispatcher drops arguments that equal their default, so without a bias there is no entry.
    if ctx.bias_dtype is None or not ctx.needs_input_grad[position]:
        return None
    leading = list(range(grad.dim() - 1))
    return (grad.sum(leading, dtype=torch.float32) if leading else grad).to(ctx.bias_dtype)


# Of experts. How many rows each has decides about the shapes of what is multiplied, so that the
# product is an operator by itself, into which no compiler looks.


def _grouped_float_mm(
    x: Tensor, weight: Tensor, weight_scale: Tensor, offsets: Tensor, transposed: bool
) -> Tensor:
    """x @ W, or with `transposed` x @ W.T, with W that of the row's expert; 0 if it has none."""
    out = _grouped_float_mm_shape(x, weight, weight_scale, offsets, transposed).zero_()
    for expert, (first, end) in enumerate(groups(offsets, len(x))):
        if first < end:
            weight_of = weight[expert], weight_scale[expert]
            w = torch.ops.mxfp4.dequantize(*weight_of, dtype=x.dtype)
            out[first:end] = x[first:end] @ (w.T if transposed else w)
    return out


def _grouped_float_mm_shape(
    x: Tensor, weight: Tensor, weight_scale: Tensor, offsets: Tensor, transposed: bool
) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[1] if transposed else 2 * weight.shape[2])


def _save_for_grouped_float_mm(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, weight, weight_scale, offsets, ctx.transposed = inputs
    ctx.save_for_backward(weight, weight_scale, offsets)


def _grouped_float_mm_gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    operands = ctx.saved_tensors
    grad_x = torch.ops.mxfp4_python.grouped_float_mm(grad, *operands, not ctx.transposed)
    return grad_x, None, None, None, None


def _save_for_grouped(
    ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: Tensor
) -> None:
    x, weight, weight_scale, offsets, bias = inputs
    ctx.save_for_backward(weight, weight_scale, offsets)
    ctx.x_dtype = x.dtype
    ctx.bias_dtype = None if bias is None else bias.dtype


def _grouped_gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    weight, weight_scale, offsets = ctx.saved_tensors
    grad_x = grad_bias = None
    if ctx.needs_input_grad[0]:
        g = grad.to(_float_dtype(grad))
        grad_x = torch.ops.mxfp4_python.grouped_float_mm(g, weight, weight_scale, offsets, False)
        grad_x = grad_x.to(ctx.x_dtype)
    if ctx.bias_dtype is not None and ctx.needs_input_grad[4]:
        rows, (experts, n, _) = grad.shape[0], weight.shape
        ends = offsets.clamp(0, rows).cummax(0).values
        # 0 for the rows before the first expert's.
        group = torch.searchsorted(ends, torch.arange(rows, device=grad.device), right=True)
        sums = grad.new_zeros(experts + 2, n, dtype=torch.float32)
        grad_bias = sums.index_add(0, group, grad.float())[1:-1].to(ctx.bias_dtype)
    return grad_x, None, None, None, grad_bias


def register(library: torch.library.Library, python_library: torch.library.Library) -> None:
    """Give the operators of `library` their gradients, with the help of one in another library."""

    def formula(name: str, backward: Any, save: Any, where: torch.library.Library) -> None:
        torch.library.register_autograd(name, backward, setup_context=save, lib=where)

    python_library.define(GROUPED_FLOAT_MM, tags=(torch.Tag.pt2_compliant_tag,))
    python_library.impl("grouped_float_mm", _grouped_float_mm, "CompositeExplicitAutograd")
    helper = f"{NAMESPACE}_python::grouped_float_mm"
    torch.library.register_fake(helper, _grouped_float_mm_shape, lib=python_library)
    formula(helper, _grouped_float_mm_gradients, _save_for_grouped_float_mm, python_library)

    for name in ("quant_mm", "mm_a16"):
        formula(f"{NAMESPACE}::{name}", _product_gradients, _save_for_product, library)
    formula(f"{NAMESPACE}::mm", _mm_gradients, _save_for_mm, library)
    formula(f"{NAMESPACE}::grouped_quant_mm", _grouped_gradients, _save_for_grouped, library)
