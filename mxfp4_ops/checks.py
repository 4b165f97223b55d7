"""What each operator takes. Every wrong argument is a `ValueError` that names it, says what was
given and what is needed. The C++ kernels check the same in the same words (csrc_stubs/checks.h).

Each function returns the problem's sizes, so that nothing behind it has to work them out again.
"""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from .formats import (
    ACTIVATIONS,
    BLOCK,
    CODE_DTYPES,
    FLOAT_DTYPES,
    OFFSET_DTYPES,
    SCALE_DTYPES,
    SCALE_MODES,
)
from .layout import shuffled_shapes


class Sizes(NamedTuple):
    """y[M, N] = x[M, K] @ weight[N, K].T, with x's leading dimensions folded into M."""

    m: int
    n: int
    k: int


def _need(ok: bool, message: str) -> None:
    if not ok:
        raise ValueError(message)


def dtype_names(*dtypes: torch.dtype) -> str:
    return " or ".join(str(d).removeprefix("torch.") for d in dtypes)


def _dtype(name: str, given: torch.dtype, allowed: tuple[torch.dtype, ...]) -> None:
    _need(
        given in allowed,
        f"{name} must be {dtype_names(*allowed)}, got {dtype_names(given)}",
    )


def _strided(name: str, t: Tensor) -> None:
    _need(t.layout == torch.strided, f"{name} must be a dense (strided) tensor, got {t.layout}")


def _device(name: str, t: Tensor, device: torch.device) -> None:
    _need(t.device == device, f"{name} is on {t.device}, but the first argument is on {device}")


def mode(scale_mode: str) -> None:
    _need(
        scale_mode in SCALE_MODES,
        f"scale_mode must be 'even', 'floor' or 'ceil', got '{scale_mode}'",
    )


def activation(activation: str) -> None:
    _need(activation in ACTIVATIONS, f"activation must be 'mxfp4' or 'bf16', got '{activation}'")


def _rows_contiguous(name: str, t: Tensor) -> None:
    _need(
        t.shape[-1] <= 1 or t.stride(-1) == 1,
        f"{name} must be contiguous in its last dimension, got strides {list(t.stride())}; "
        "call .contiguous()",
    )


def _activation(x: Tensor, name: str = "x") -> int:
    """Check a float tensor `[..., K]`; returns K."""
    _strided(name, x)
    _dtype(name, x.dtype, FLOAT_DTYPES)
    _need(x.dim() >= 1, f"{name} must have at least one dimension, got a 0-d tensor")
    k = x.shape[-1]
    _need(k % BLOCK == 0, f"{name}'s last dimension K must be a multiple of 32, got {k}")
    return k


def _codes_and_scale(
    q: Tensor, scale: Tensor, q_name: str, scale_name: str, device: torch.device
) -> int:
    """Check plain codes `[..., K/2]` and their scales `[..., K/32]`; returns K."""
    _strided(q_name, q)
    _strided(scale_name, scale)
    _dtype(q_name, q.dtype, CODE_DTYPES)
    _dtype(scale_name, scale.dtype, SCALE_DTYPES)
    _need(q.dim() >= 1, f"{q_name} must have at least one dimension, got a 0-d tensor")
    k = q.shape[-1] * 2
    _need(k % BLOCK == 0, f"{q_name} holds K = {k} elements a row; K must be a multiple of 32")
    needed = [*q.shape[:-1], k // BLOCK]
    _need(
        list(scale.shape) == needed,
        f"{scale_name} must have shape {needed} for {q_name} of shape {list(q.shape)}, "
        f"got {list(scale.shape)}",
    )
    _device(q_name, q, device)
    _device(scale_name, scale, device)
    _rows_contiguous(q_name, q)
    _rows_contiguous(scale_name, scale)
    return k


def _weight(
    k: int,
    weight: Tensor,
    weight_scale: Tensor,
    shuffled: bool,
    names: tuple[str, str, str],
    device: torch.device,
) -> int:
    """Check a weight against the other side's K; returns N."""
    other, name, scale_name = names
    _need(weight.dim() == 2, f"{name} must be 2-d, got shape {list(weight.shape)}")
    if not shuffled:
        weight_k = _codes_and_scale(weight, weight_scale, name, scale_name, device)
        _need(weight_k == k, f"{other} has K = {k}, but {name} has K = {weight_k}")
        return weight.shape[0]
    shuffled_weight(weight, weight_scale, weight.shape[0], k, name, scale_name, device)
    return weight.shape[0]


def shuffled_weight(
    weight: Tensor,
    weight_scale: Tensor,
    n: int,
    k: int,
    name: str,
    scale_name: str,
    device: torch.device,
) -> None:
    """Check a shuffled weight of `n` rows and `k` elements a row."""
    _strided(name, weight)
    _strided(scale_name, weight_scale)
    _dtype(name, weight.dtype, CODE_DTYPES)
    _dtype(scale_name, weight_scale.dtype, SCALE_DTYPES)
    code_shape, scale_shape = shuffled_shapes(n, k)
    for what, t, needed in (
        (name, weight, code_shape),
        (scale_name, weight_scale, scale_shape),
    ):
        _need(
            tuple(t.shape) == needed,
            f"{what}, shuffled, must have shape {list(needed)} for N = {n} and K = {k}, "
            f"got {list(t.shape)}",
        )
        _device(what, t, device)
        _need(
            t.is_contiguous(),
            f"{what}, shuffled, must be contiguous, got strides {list(t.stride())}",
        )


def _bias(bias: Tensor | None, shape: list[int], device: torch.device) -> None:
    if bias is None:
        return
    _strided("bias", bias)
    _dtype("bias", bias.dtype, FLOAT_DTYPES)
    _need(
        list(bias.shape) == shape,
        f"bias must have shape {shape}, one value for each row of the weight, "
        f"got {list(bias.shape)}",
    )
    _device("bias", bias, device)


def quant_mm(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None,
    out_dtype: torch.dtype | None,
    shuffled: bool,
    scale_mode: str,
) -> Sizes:
    mode(scale_mode)
    return mm_a16(x, weight, weight_scale, bias, out_dtype, shuffled)


def mm_a16(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None,
    out_dtype: torch.dtype | None,
    shuffled: bool,
) -> Sizes:
    k = _activation(x)
    if out_dtype is not None:
        _dtype("out_dtype", out_dtype, FLOAT_DTYPES)
    names = ("x", "weight", "weight_scale")
    n = _weight(k, weight, weight_scale, shuffled, names, x.device)
    _bias(bias, [n], x.device)
    return Sizes(prod(x.shape[:-1]), n, k)


def mm(
    a: Tensor,
    a_scale: Tensor,
    b: Tensor,
    b_scale: Tensor,
    bias: Tensor | None,
    out_dtype: torch.dtype,
    shuffled: bool,
) -> Sizes:
    k = _codes_and_scale(a, a_scale, "a", "a_scale", a.device)
    _dtype("out_dtype", out_dtype, FLOAT_DTYPES)
    n = _weight(k, b, b_scale, shuffled, ("a", "b", "b_scale"), a.device)
    _bias(bias, [n], a.device)
    return Sizes(prod(a.shape[:-1]), n, k)


def grouped_quant_mm(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    offsets: Tensor,
    bias: Tensor | None,
    out_dtype: torch.dtype | None,
    scale_mode: str,
) -> Sizes:
    """Everything but what the offsets hold."""
    mode(scale_mode)
    k = _activation(x)
    _need(x.dim() == 2, f"x must be 2-d, got shape {list(x.shape)}")
    if out_dtype is not None:
        _dtype("out_dtype", out_dtype, FLOAT_DTYPES)
    _need(weight.dim() == 3, f"weight must be 3-d, got shape {list(weight.shape)}")
    weight_k = _codes_and_scale(weight, weight_scale, "weight", "weight_scale", x.device)
    _need(weight_k == k, f"x has K = {k}, but weight has K = {weight_k}")
    experts, n, _ = weight.shape
    _strided("offsets", offsets)
    _dtype("offsets", offsets.dtype, OFFSET_DTYPES)
    _need(
        list(offsets.shape) == [experts + 1],
        f"offsets must have shape [{experts + 1}], one more than there are experts, "
        f"got {list(offsets.shape)}",
    )
    _device("offsets", offsets, x.device)
    _bias(bias, [experts, n], x.device)
    return Sizes(x.shape[0], n, k)


def offsets_in_order(offsets: Tensor, rows: int) -> None:
    """What offsets hold, where it can be looked at without waiting for a GPU."""
    values = offsets.tolist()
    _need(values[0] == 0, f"offsets must begin with 0, got {values[0]}")
    for i, (a, b) in enumerate(pairwise(values)):
        _need(a <= b, f"offsets must not decrease, but number {i} is {a} and the next is {b}")
    _need(
        values[-1] == rows,
        f"offsets must end with {rows}, the number of rows of x, got {values[-1]}",
    )


def quantize(x: Tensor, scale_mode: str) -> Sizes:
    mode(scale_mode)
    k = _activation(x)
    return Sizes(prod(x.shape[:-1]), 0, k)


def dequantize(q: Tensor, scale: Tensor, dtype: torch.dtype) -> Sizes:
    k = _codes_and_scale(q, scale, "q", "scale", q.device)
    _dtype("dtype", dtype, FLOAT_DTYPES)
    return Sizes(prod(q.shape[:-1]), 0, k)


def shuffle(weight: Tensor, weight_scale: Tensor) -> Sizes:
    _need(weight.dim() == 2, f"weight must be 2-d, got shape {list(weight.shape)}")
    k = _codes_and_scale(weight, weight_scale, "weight", "weight_scale", weight.device)
    return Sizes(0, weight.shape[0], k)


def unshuffle(weight: Tensor, weight_scale: Tensor, n: int, k: int) -> Sizes:
    _need(n >= 0, f"n must not be negative, got {n}")
    _need(k >= 0 and k % BLOCK == 0, f"k must be a multiple of 32, got {k}")
    _need(weight.dim() == 2, f"weight must be 2-d, got shape {list(weight.shape)}")
    shuffled_weight(weight, weight_scale, n, k, "weight", "weight_scale", weight.device)
    return Sizes(0, n, k)
