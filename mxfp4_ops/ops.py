"""The operators `torch.ops.mxfp4.*`: registration, shape functions, vmap, FLOP counts.

They are opaque to the compiler. A function that branches on M would be specialised to each branch
if Dynamo saw inside of it; this way a model compiles once and each call picks its kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import register_flop_formula

from . import checks, gradients, layout
from .backends import Call, cpu, repeat, run
from .formats import BLOCK
from .schema import NAMESPACE, SCHEMAS

_library = torch.library.Library(NAMESPACE, "DEF")

# The same operators without the C++ kernels, which send here what `use_backend` wants elsewhere.
_python_library = torch.library.Library(f"{NAMESPACE}_python", "DEF")


def _register(implementation: Callable[..., Any], shape_function: Callable[..., Any]) -> None:
    name = implementation.__name__
    for library in (_library, _python_library):
        library.define(SCHEMAS[name], tags=(torch.Tag.pt2_compliant_tag,))
    _library.impl(name, implementation, "CompositeExplicitAutograd")
    _python_library.impl(name, cpu.reporting(implementation), "CompositeExplicitAutograd")
    torch.library.register_fake(f"{NAMESPACE}::{name}", shape_function, lib=_library)


def quant_mm(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None = None,
    *,
    out_dtype: torch.dtype | None = None,
    shuffled: bool = False,
    scale_mode: str = "even",
) -> Any:
    args = (x, weight, weight_scale, bias, out_dtype, shuffled, scale_mode)
    if x.is_cuda and (result := repeat("quant_mm", args)) is not None:
        return result
    m, n, k = checks.quant_mm(*args)
    return run(Call("quant_mm", x.device, x.dtype, m, n, k, shuffled), *args)


def _quant_mm_shape(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None = None,
    *,
    out_dtype: torch.dtype | None = None,
    shuffled: bool = False,
    scale_mode: str = "even",
) -> Tensor:
    n = checks.quant_mm(x, weight, weight_scale, bias, out_dtype, shuffled, scale_mode).n
    return x.new_empty(*x.shape[:-1], n, dtype=out_dtype or x.dtype)


def mm(
    a: Tensor,
    a_scale: Tensor,
    b: Tensor,
    b_scale: Tensor,
    bias: Tensor | None = None,
    *,
    out_dtype: torch.dtype = torch.bfloat16,
    shuffled: bool = False,
) -> Any:
    args = (a, a_scale, b, b_scale, bias, out_dtype, shuffled)
    if a.is_cuda and (result := repeat("mm", args)) is not None:
        return result
    m, n, k = checks.mm(*args)
    return run(Call("mm", a.device, a.dtype, m, n, k, shuffled), *args)


def _mm_shape(
    a: Tensor,
    a_scale: Tensor,
    b: Tensor,
    b_scale: Tensor,
    bias: Tensor | None = None,
    *,
    out_dtype: torch.dtype = torch.bfloat16,
    shuffled: bool = False,
) -> Tensor:
    n = checks.mm(a, a_scale, b, b_scale, bias, out_dtype, shuffled).n
    return a.new_empty(*a.shape[:-1], n, dtype=out_dtype)


def mm_a16(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None = None,
    *,
    out_dtype: torch.dtype | None = None,
    shuffled: bool = False,
) -> Any:
    args = (x, weight, weight_scale, bias, out_dtype, shuffled)
    if x.is_cuda and (result := repeat("mm_a16", args)) is not None:
        return result
    m, n, k = checks.mm_a16(*args)
    return run(Call("mm_a16", x.device, x.dtype, m, n, k, shuffled), *args)


def _mm_a16_shape(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None = None,
    *,
    out_dtype: torch.dtype | None = None,
    shuffled: bool = False,
) -> Tensor:
    n = checks.mm_a16(x, weight, weight_scale, bias, out_dtype, shuffled).n
    return x.new_empty(*x.shape[:-1], n, dtype=out_dtype or x.dtype)


def grouped_quant_mm(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    offsets: Tensor,
    bias: Tensor | None = None,
    *,
    out_dtype: torch.dtype | None = None,
    scale_mode: str = "even",
) -> Any:
    args = (x, weight, weight_scale, offsets, bias, out_dtype, scale_mode)
    if x.is_cuda and (result := repeat("grouped_quant_mm", args)) is not None:
        return result
    m, n, k = checks.grouped_quant_mm(*args)
    if offsets.device.type == "cpu":
        checks.offsets_in_order(offsets, m)
    call = Call("grouped_quant_mm", x.device, x.dtype, m, n, k, experts=len(weight))
    return run(call, *args)


def _grouped_quant_mm_shape(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    offsets: Tensor,
    bias: Tensor | None = None,
    *,
    out_dtype: torch.dtype | None = None,
    scale_mode: str = "even",
) -> Tensor:
    args = (x, weight, weight_scale, offsets, bias, out_dtype, scale_mode)
    m, n, _ = checks.grouped_quant_mm(*args)
    return x.new_empty(m, n, dtype=out_dtype or x.dtype)


def quantize(x: Tensor, *, scale_mode: str = "even") -> Any:
    args = (x, scale_mode)
    if x.is_cuda and (result := repeat("quantize", args)) is not None:
        return result
    m, n, k = checks.quantize(*args)
    return run(Call("quantize", x.device, x.dtype, m, n, k), *args)


def _quantize_shape(x: Tensor, *, scale_mode: str = "even") -> tuple[Tensor, Tensor]:
    k = checks.quantize(x, scale_mode).k
    lead = x.shape[:-1]
    return (
        x.new_empty(*lead, k // 2, dtype=torch.uint8),
        x.new_empty(*lead, k // BLOCK, dtype=torch.uint8),
    )


def dequantize(q: Tensor, scale: Tensor, *, dtype: torch.dtype = torch.bfloat16) -> Any:
    args = (q, scale, dtype)
    if q.is_cuda and (result := repeat("dequantize", args)) is not None:
        return result
    m, n, k = checks.dequantize(*args)
    return run(Call("dequantize", q.device, q.dtype, m, n, k), *args)


def _dequantize_shape(q: Tensor, scale: Tensor, *, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    k = checks.dequantize(q, scale, dtype).k
    return q.new_empty(*q.shape[:-1], k, dtype=dtype)


def shuffle(weight: Tensor, weight_scale: Tensor) -> tuple[Tensor, Tensor]:
    checks.shuffle(weight, weight_scale)
    return layout.shuffle(weight, weight_scale)


def _shuffle_shape(weight: Tensor, weight_scale: Tensor) -> tuple[Tensor, Tensor]:
    _, n, k = checks.shuffle(weight, weight_scale)
    code_shape, scale_shape = layout.shuffled_shapes(n, k)
    return weight.new_empty(code_shape), weight_scale.new_empty(scale_shape)


def unshuffle(weight: Tensor, weight_scale: Tensor, n: int, k: int) -> tuple[Tensor, Tensor]:
    checks.unshuffle(weight, weight_scale, n, k)
    return layout.unshuffle(weight, weight_scale, n, k)


def _unshuffle_shape(weight: Tensor, weight_scale: Tensor, n: int, k: int) -> tuple[Tensor, Tensor]:
    checks.unshuffle(weight, weight_scale, n, k)
    return weight.new_empty(n, k // 2), weight_scale.new_empty(n, k // BLOCK)


_register(quant_mm, _quant_mm_shape)
_register(mm, _mm_shape)
_register(mm_a16, _mm_a16_shape)
_register(grouped_quant_mm, _grouped_quant_mm_shape)
_register(quantize, _quantize_shape)
_register(dequantize, _dequantize_shape)
_register(shuffle, _shuffle_shape)
_register(unshuffle, _unshuffle_shape)


gradients.register(_library, _python_library)


# vmap. A batch of rows is more rows. Weights, biases and layouts cannot be folded like that: a
# batch of them is a loop.


def _register_vmap(name: str, row_arguments: int) -> None:
    """Give an operator its rule; its first `row_arguments` arguments are those with rows."""
    op = getattr(torch.ops.mxfp4, name).default

    def rule(info: Any, in_dims: tuple[int | None, ...], *args: Any, **kwargs: Any) -> Any:
        size, given = info.batch_size, list(zip(args, in_dims, strict=True))
        if all(dim is None for dim in in_dims[row_arguments:]):
            rows = (
                t.expand(size, *t.shape) if dim is None else t.movedim(dim, 0)
                for t, dim in given[:row_arguments]
            )
            out = op(*rows, *args[row_arguments:], **kwargs)
        elif size == 0:
            raise ValueError(f"{op} under vmap needs at least one weight, got a batch of 0")
        else:
            of_each = (
                (t if dim is None else t.select(dim, i) for t, dim in given) for i in range(size)
            )
            out = tree_map(lambda *ts: torch.stack(ts), *(op(*each, **kwargs) for each in of_each))
        return out, tree_map(lambda _: 0, out)

    torch.library.register_vmap(f"{NAMESPACE}::{name}", rule, lib=_library)


for _name, _row_arguments in {
    "quant_mm": 1,
    "mm": 2,
    "mm_a16": 1,
    "grouped_quant_mm": 0,
    "quantize": 1,
    "dequantize": 2,
    "shuffle": 0,
    "unshuffle": 0,
}.items():
    _register_vmap(_name, _row_arguments)


# FLOPs are those of the product, 2 M N K; the work of quantising is not counted.


_OF_FLOATS = [getattr(torch.ops.mxfp4, n) for n in ("quant_mm", "mm_a16", "grouped_quant_mm")]


@register_flop_formula(_OF_FLOATS)
def _quant_mm_flops(x_shape: torch.Size, *_: Any, out_shape: torch.Size, **__: Any) -> int:
    return 2 * out_shape.numel() * x_shape[-1]


@register_flop_formula(torch.ops.mxfp4.mm)
def _mm_flops(a_shape: torch.Size, *_: Any, out_shape: torch.Size, **__: Any) -> int:
    return 2 * out_shape.numel() * (a_shape[-1] * 2)
