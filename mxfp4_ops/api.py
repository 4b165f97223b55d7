"""The functions that users import. Each is `torch.ops.mxfp4.<name>` with a docstring; products of
float activations also follow autocast, which the raw operators do not."""

from __future__ import annotations

import torch
from torch import Tensor

from .formats import ScaleMode


def autocast_input(x: Tensor) -> Tensor:
    """`x` in autocast's dtype where autocast is on, as `nn.functional.linear` would take it."""
    device = x.device.type
    # Meta tensors have no autocast; torch 2.11 cannot compile the question whether there is one.
    if device != "meta" and torch.is_autocast_enabled(device):
        return x.to(torch.get_autocast_dtype(device))
    return x


def quant_mm(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None = None,
    *,
    out_dtype: torch.dtype | None = None,
    shuffled: bool = False,
    scale_mode: ScaleMode = "even",
) -> Tensor:
    """Quantise `x` to MXFP4 and multiply it by an MXFP4 weight: `Q(x) @ W.T + bias`.

    Args:
        x: activations `[..., K]` in bfloat16, float16 or float32, any strides; K a multiple of 32.
            `[K]` gives `[N]`. Under autocast it is cast first.
        weight: E2M1 codes `[N, K/2]`, two to a byte with the even index in the low nibble, uint8 or
            float4_e2m1fn_x2, contiguous in the last dimension.
        weight_scale: E8M0 scales `[N, K/32]`, one for 32 elements of K, uint8 or float8_e8m0fnu.
        bias: `[N]` in bfloat16, float16 or float32; added in float32 before the result is rounded.
        out_dtype: bfloat16, float16 or float32; `x.dtype` if None.
        shuffled: the weight is in the device layout that `shuffle` makes. The result then has as
            many columns as `weight` has rows, N rounded up to 16; the added columns are zero (plus
            bias, which must be as long).
        scale_mode: how the scale of a block of `x` follows from its largest magnitude: `even`
            (AMD Quark, AITER), `floor` (OCP MX v1.0, 6.3) or `ceil` (no element saturates).

    Returns:
        A new tensor `[..., N]`. Sums are float32; backends differ from each other by the order of
        the additions only, at most 1e-6 * sum(|Q(x)| * |W|) before the result is rounded to
        `out_dtype`.
        A NaN or an infinity in a row of `x` makes that row of the result NaN.

    Gradients: straight-through for `x` (as if it had not been quantised) and exact for `bias`.

    Raises:
        ValueError: an argument has the wrong shape, dtype, device or layout.
        RuntimeError: the backend that `use_backend` asked for cannot take this call.
    """
    return torch.ops.mxfp4.quant_mm.default(
        autocast_input(x),
        weight,
        weight_scale,
        bias,
        out_dtype=out_dtype,
        shuffled=shuffled,
        scale_mode=scale_mode,
    )


def mm(
    a: Tensor,
    a_scale: Tensor,
    b: Tensor,
    b_scale: Tensor,
    bias: Tensor | None = None,
    *,
    out_dtype: torch.dtype = torch.bfloat16,
    shuffled: bool = False,
) -> Tensor:
    """Multiply two MXFP4 matrices: `A @ B.T + bias`.

    Args:
        a: codes `[..., K/2]`, uint8 or float4_e2m1fn_x2, as `quantize` makes them.
        a_scale: scales `[..., K/32]`, uint8 or float8_e8m0fnu.
        b: codes `[N, K/2]`.
        b_scale: scales `[N, K/32]`.
        bias: `[N]` in bfloat16, float16 or float32.
        out_dtype: bfloat16, float16 or float32.
        shuffled: `b` is in the device layout, as in `quant_mm`; `a` is always plain.

    Returns:
        A new tensor `[..., N]`, as accurate as `quant_mm` says. Only `bias` has a gradient.

    Raises:
        ValueError: an argument has the wrong shape, dtype, device or layout.
        RuntimeError: the backend that `use_backend` asked for cannot take this call.
    """
    return torch.ops.mxfp4.mm.default(
        a, a_scale, b, b_scale, bias, out_dtype=out_dtype, shuffled=shuffled
    )


def mm_a16(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None = None,
    *,
    out_dtype: torch.dtype | None = None,
    shuffled: bool = False,
) -> Tensor:
    """Multiply `x`, kept in its own dtype, by an MXFP4 weight: `x @ W.T + bias`.

    More accurate than `quant_mm`, which quantises `x` as well, and no more work for a GPU without
    matrix units for FP4. CPUs multiply quantised activations faster.

    Args:
        x: activations `[..., K]` in bfloat16, float16 or float32, any strides; K a multiple of 32.
            `[K]` gives `[N]`. Under autocast it is cast first.
        weight: codes `[N, K/2]`, as in `quant_mm`.
        weight_scale: scales `[N, K/32]`.
        bias: `[N]` in bfloat16, float16 or float32; added in float32 before the result is rounded.
        out_dtype: bfloat16, float16 or float32; `x.dtype` if None.
        shuffled: the weight is in the device layout, as in `quant_mm`.

    Returns:
        A new tensor `[..., N]`, within 1e-6 * sum(|x| * |W|) of the exact one, plus 2**-126, before
        it is rounded to `out_dtype`. Infinities and NaNs follow IEEE 754 as in a float product; a
        weight's scale byte 255 makes its column of the result NaN.

    Gradients: `x` gets `grad_y @ W`, `bias` the sum over the rows.

    Raises:
        ValueError: an argument has the wrong shape, dtype, device or layout.
        RuntimeError: the backend that `use_backend` asked for cannot take this call.
    """
    return torch.ops.mxfp4.mm_a16.default(
        autocast_input(x), weight, weight_scale, bias, out_dtype=out_dtype, shuffled=shuffled
    )


def grouped_quant_mm(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    offsets: Tensor,
    bias: Tensor | None = None,
    *,
    out_dtype: torch.dtype | None = None,
    scale_mode: ScaleMode = "even",
) -> Tensor:
    """`quant_mm` with a weight for each group of rows, as a mixture of experts needs it.

    Args:
        x: activations `[T, K]`, sorted by expert, in bfloat16, float16 or float32, any strides; K a
            multiple of 32. Under autocast it is cast first.
        weight: codes `[E, N, K/2]`, contiguous in the last dimension, as in `quant_mm`.
        weight_scale: scales `[E, N, K/32]`.
        offsets: `[E + 1]`, int32 or int64, on x's device: rows `offsets[e]` up to, not including,
            `offsets[e + 1]` are those of expert e. They begin with 0, end with T and do not
            decrease. An expert may have no rows.
        bias: `[E, N]` in bfloat16, float16 or float32.
        out_dtype: bfloat16, float16 or float32; `x.dtype` if None.
        scale_mode: as in `quant_mm`.

    Returns:
        A new tensor `[T, N]` whose rows of expert e are those of
        `quant_mm(x, weight[e], weight_scale[e], bias[e])`, with the same guarantees.

    On a GPU nobody waits for the offsets in order to check them. There each is cut to 0..T, and one
    that is smaller than another before it counts as that one; rows that belong to no expert then
    are zero. Nothing out of bounds is read or written. So it works in CUDA graphs.

    Gradients: as those of `quant_mm`. The backward pass of `x` reads the offsets on the host.

    Raises:
        ValueError: an argument has the wrong shape, dtype, device or layout; on the CPU, the
            offsets are not in order.
        RuntimeError: the backend that `use_backend` asked for cannot take this call.
    """
    return torch.ops.mxfp4.grouped_quant_mm.default(
        autocast_input(x),
        weight,
        weight_scale,
        offsets,
        bias,
        out_dtype=out_dtype,
        scale_mode=scale_mode,
    )


def quantize(x: Tensor, *, scale_mode: ScaleMode = "even") -> tuple[Tensor, Tensor]:
    """Quantise to MXFP4 (OCP MX v1.0), the same bits on every backend.

    Args:
        x: `[..., K]` in bfloat16, float16 or float32, any strides; K a multiple of 32.
        scale_mode: how a block's scale follows from its largest magnitude amax:
            `floor`: 2**(floor(log2(amax)) - 2) (OCP MX v1.0, 6.3);
            `even`: the same, one exponent higher from amax = 1.75 * 2**n on (AMD Quark, AITER);
            `ceil`: 2**ceil(log2(amax / 6)), with which no element saturates.

    Returns:
        Codes uint8 `[..., K/2]`, two to a byte with the even index in the low nibble, and E8M0
        scale bytes uint8 `[..., K/32]`. Elements round to nearest, ties to the even code, and
        saturate at +-6 times the scale; zeros keep their sign. A block of zeros has scale byte 0;
        one that holds a NaN or an infinity has scale byte 255 (NaN) and codes 0.

    Raises:
        ValueError: an argument has the wrong shape or dtype.
    """
    return torch.ops.mxfp4.quantize.default(x, scale_mode=scale_mode)


def dequantize(q: Tensor, scale: Tensor, *, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Decode MXFP4.

    Args:
        q: codes `[..., K/2]`, uint8 or float4_e2m1fn_x2.
        scale: scales `[..., K/32]`, uint8 or float8_e8m0fnu.
        dtype: bfloat16 and float32 hold every value exactly, up to their largest; float16 rounds to
            nearest, ties to even. Overflow gives infinity.

    Returns:
        A new tensor `[..., K]`; NaN where the scale byte is 255.

    Raises:
        ValueError: an argument has the wrong shape, dtype, device or layout.
    """
    return torch.ops.mxfp4.dequantize.default(q, scale, dtype=dtype)


def shuffle(weight: Tensor, weight_scale: Tensor) -> tuple[Tensor, Tensor]:
    """Bring a weight into the layout that the MI355X kernels (and AITER's) read.

    Args:
        weight: plain codes `[N, K/2]`, uint8 or float4_e2m1fn_x2.
        weight_scale: plain scales `[N, K/32]`, uint8 or float8_e8m0fnu.

    Returns:
        New tensors of the same dtypes, padded to whole tiles: codes `[N', K'/2]` with N rounded up
        to 16 and K to 64, scales with rows rounded up to 256 and columns to 8. The pad is code 0
        and scale byte 127, which adds nothing to a product.

    Raises:
        ValueError: an argument has the wrong shape, dtype, device or layout.
    """
    return torch.ops.mxfp4.shuffle.default(weight, weight_scale)


def unshuffle(weight: Tensor, weight_scale: Tensor, n: int, k: int) -> tuple[Tensor, Tensor]:
    """Undo `shuffle` exactly.

    Args:
        weight: shuffled codes.
        weight_scale: shuffled scales.
        n: rows N of the plain weight.
        k: elements K of a row; a multiple of 32.

    Returns:
        New tensors, plain: codes `[n, k/2]` and scales `[n, k/32]`.

    Raises:
        ValueError: an argument has the wrong shape, dtype, device or layout.
    """
    return torch.ops.mxfp4.unshuffle.default(weight, weight_scale, n, k)
