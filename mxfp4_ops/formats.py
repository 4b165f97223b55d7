"""The MXFP4 format (OCP Microscaling Formats v1.0): constants and the reference conversions.

A block is 32 consecutive elements along K. Its elements are E2M1 codes (4 bits each, two to a byte,
the even index in the low nibble) and share one E8M0 scale byte b, worth 2**(b - 127).

The two functions here follow the format's definition in float64, where every step is exact. They
are what the fast paths are compared with, bit for bit; they are not meant to be fast.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

BLOCK = 32
"""Elements that share one scale."""

E2M1_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""What the three low bits of a code are worth; the fourth bit is the sign."""

E2M1_MIDPOINTS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
"""Halfway between neighbouring magnitudes: the inputs that round to the even code."""

E8M0_BIAS = 127
E8M0_MAX = 254
E8M0_NAN = 255
"""The one scale byte without a value: every element of its block is NaN."""

E2M1_EMAX = 2
"""Exponent of the largest E2M1 magnitude, 6 = 1.5 * 2**2."""

ScaleMode = Literal["even", "floor", "ceil"]
SCALE_MODES: tuple[str, ...] = get_args(ScaleMode)

Activation = Literal["mxfp4", "bf16"]
ACTIVATIONS: tuple[str, ...] = get_args(Activation)
"""What a layer's activations are multiplied as: quantised, or in their own 16- or 32-bit dtype."""

FLOAT_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
"""What activations, biases and results may be."""

OFFSET_DTYPES = (torch.int32, torch.int64)
"""Row numbers at which experts begin."""

CODE_DTYPES = (torch.uint8, torch.float4_e2m1fn_x2)
SCALE_DTYPES = (torch.uint8, torch.float8_e8m0fnu)
"""Packed codes and scales are bytes; torch's own dtypes for them are accepted as well."""


def _scale_exponent(amax: Tensor, scale_mode: str) -> Tensor:
    """Exponent e of the scale 2**e for blocks of maximum magnitude `amax` (float64, > 0)."""
    mantissa, exponent = torch.frexp(amax)
    mantissa, exponent = mantissa * 2, exponent - 1  # amax = mantissa * 2**exponent, 1 <= m < 2
    if scale_mode == "floor":  # OCP MX v1.0, 6.3
        return exponent - E2M1_EMAX
    if scale_mode == "even":  # AMD Quark: amax counts as the next power of two from 1.75 on
        return exponent - E2M1_EMAX + (mantissa >= 1.75).int()
    if scale_mode == "ceil":  # the smallest scale with which amax does not exceed 6
        return exponent - E2M1_EMAX + (mantissa > 1.5).int()
    raise ValueError(f"scale_mode must be one of {SCALE_MODES}, got {scale_mode!r}")


def quantize_reference(x: Tensor, scale_mode: str = "even") -> tuple[Tensor, Tensor]:
    """Quantise to MXFP4 by the definition.

    Args:
        x: `[..., K]`, bfloat16, float16 or float32, K a multiple of 32.
        scale_mode: how a block's scale follows from its largest magnitude amax:
            `floor` is 2**(floor(log2(amax)) - 2) (OCP MX v1.0, 6.3); `ceil` is
            2**ceil(log2(amax / 6)) (no element saturates); `even` is `floor`, one exponent higher
            if amax is at least 1.75 times a power of two (AMD Quark's and AITER's rule).

    Returns:
        Codes uint8 `[..., K/2]` and scale bytes uint8 `[..., K/32]`.

    An element is x / scale, rounded to the nearest E2M1 value (ties to the even code), at most 6 in
    magnitude; zero keeps its sign. A block of zeros has scale byte 0. A block that holds a NaN or
    an infinity has scale byte 255 and codes 0.
    """
    blocks = x.to(torch.float64).unflatten(-1, (-1, BLOCK))
    amax = blocks.abs().amax(-1, keepdim=True)
    finite = torch.isfinite(blocks).all(-1, keepdim=True)

    exponent = _scale_exponent(torch.where(finite & (amax > 0), amax, 1.0), scale_mode)
    byte = (exponent + E8M0_BIAS).clamp(0, E8M0_MAX)
    byte = torch.where(amax > 0, byte, 0)
    byte = torch.where(finite, byte, E8M0_NAN)

    scaled = blocks / torch.exp2((byte - E8M0_BIAS).to(torch.float64))
    magnitude = scaled.abs()
    code = torch.zeros_like(magnitude, dtype=torch.uint8)
    for lower, midpoint in enumerate(E2M1_MIDPOINTS):
        tie_goes_up = lower % 2 == 1
        code += magnitude >= midpoint if tie_goes_up else magnitude > midpoint
    code |= torch.signbit(scaled).to(torch.uint8) << 3
    code = torch.where(finite, code, 0).flatten(-2)
    return code[..., 0::2] | (code[..., 1::2] << 4), byte.squeeze(-1).to(torch.uint8)


def dequantize_reference(q: Tensor, scale: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Decode MXFP4 by the definition.

    Args:
        q: codes `[..., K/2]`, uint8 or float4_e2m1fn_x2.
        scale: scale bytes `[..., K/32]`, uint8 or float8_e8m0fnu.
        dtype: of the result. bfloat16 and float32 hold every value exactly, up to their largest;
            float16 rounds to nearest, ties to even. Overflow gives infinity.

    Returns:
        `[..., K]` in `dtype`: magnitude * 2**(scale - 127), NaN where the scale byte is 255.
    """
    q, scale = q.view(torch.uint8), scale.view(torch.uint8)
    signed = E2M1_MAGNITUDES + tuple(-m for m in E2M1_MAGNITUDES)
    table = torch.tensor(signed, dtype=torch.float64, device=q.device)
    codes = torch.stack((q & 15, q >> 4), -1).flatten(-2)
    factor = torch.exp2(scale.to(torch.float64) - E8M0_BIAS)
    factor = torch.where(scale == E8M0_NAN, torch.nan, factor)
    values = table[codes.int()].unflatten(-1, (-1, BLOCK)) * factor.unsqueeze(-1)
    return values.flatten(-2).to(dtype)
