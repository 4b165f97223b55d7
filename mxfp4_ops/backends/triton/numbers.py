"""The MXFP4 format in Triton: the parts that the kernels share.

Blocks are quantised and decoded with integer arithmetic on float32 bit patterns, so that nothing
depends on how a device treats subnormal floats.
"""

from __future__ import annotations

import triton
import triton.language as tl

SCALE_ROUNDING = {"even": 0x200000, "floor": 0, "ceil": 0x3FFFFF}
"""What a scale mode adds to amax's pattern, so that a carry into the exponent rounds it up."""

BLOCK = tl.constexpr(32)
HALF_BLOCK = tl.constexpr(16)
INFINITY = tl.constexpr(0x7F800000)
NAN = tl.constexpr(0x7FC00000)
NAN_SCALE = tl.constexpr(255)
BIAS = tl.constexpr(127)
INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


@triton.jit
def float32_bits(x: tl.tensor) -> tl.tensor:
    """Bit patterns, as int32, of the float32 numbers that equal `x`, of any float dtype."""
    if x.dtype == tl.bfloat16:
        bits = x.to(tl.int16, bitcast=True).to(tl.int32) << 16
    else:
        bits = x.to(tl.float32).to(tl.int32, bitcast=True)
    return bits


@triton.jit
def as_float32(x: tl.tensor) -> tl.tensor:
    return float32_bits(x).to(tl.float32, bitcast=True)


@triton.jit
def rounded_to(x: tl.tensor, dtype: tl.constexpr) -> tl.tensor:
    """float32 to another float dtype, to nearest, ties to even."""
    if dtype == tl.bfloat16 and INTERPRETED:  # the interpreter cuts off
        bits = x.to(tl.int32, bitcast=True)
        nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        nearest = tl.where((bits & 0x7FFFFFFF) > INFINITY, NAN >> 16, nearest)
        result = nearest.to(tl.int16).to(tl.bfloat16, bitcast=True)
    else:
        result = x.to(dtype)
    return result


@triton.jit
def block_amax(bits: tl.tensor) -> tl.tensor:
    """Pattern of the largest magnitude along the last dimension; a NaN is larger than all."""
    return tl.max(bits & 0x7FFFFFFF, len(bits.shape) - 1)


@triton.jit
def scale_byte(amax: tl.tensor, ROUNDING: tl.constexpr) -> tl.tensor:
    """Scale byte of a block from the pattern of its largest magnitude."""
    byte = tl.maximum(((amax + ROUNDING) >> 23) - 2, 0)
    return tl.where(amax >= INFINITY, NAN_SCALE, byte)


@triton.jit
def e2m1_codes(bits: tl.tensor, byte: tl.tensor) -> tl.tensor:
    """The 4-bit codes of float32 patterns in blocks of scale `byte`; to nearest, ties to even.

    A magnitude's code is the number of midpoints that it lies beyond. Those above an odd code are
    reached in a tie as well.
    """
    magnitude = bits & 0x7FFFFFFF
    # A subnormal number gets the pattern that a format with more exponents would give it.
    wide = magnitude.to(tl.float32).to(tl.int32, bitcast=True) - (149 << 23)
    wide = tl.where(magnitude < 0x800000, wide, magnitude)
    # Divided by the scale; what is far too small for a code may become larger.
    scale = (byte - BIAS) << 23
    wide = tl.maximum(wide, scale + (100 << 23)) - scale
    code = (wide > 0x3E800000).to(tl.int32)  # 0.25
    code += (wide >= 0x3F400000).to(tl.int32)  # 0.75
    code += (wide > 0x3FA00000).to(tl.int32)  # 1.25
    code += (wide >= 0x3FE00000).to(tl.int32)  # 1.75
    code += (wide > 0x40200000).to(tl.int32)  # 2.5
    code += (wide >= 0x40600000).to(tl.int32)  # 3.5
    code += (wide > 0x40A00000).to(tl.int32)  # 5
    return code | ((bits >> 28) & 8)


@triton.jit
def e2m1_values(codes: tl.tensor, byte: tl.tensor) -> tl.tensor:
    """What 4-bit codes (int32) stand for, in float16, twice that under an odd scale byte.

    A code's three low bits, put where float16 has the end of its exponent and the start of its
    mantissa, are the number times 2**-14. That of 0.5 is subnormal, which float16 multiplication
    keeps on every GPU.
    """
    pattern = ((codes & 7) << 9) | ((codes & 8) << 12)
    unit = (0x7400 + ((byte & 1) << 10)).to(tl.int16).to(tl.float16, bitcast=True)
    return pattern.to(tl.int16).to(tl.float16, bitcast=True) * unit


@triton.jit
def scaled(product: tl.tensor, a_byte: tl.tensor, b_byte: tl.tensor) -> tl.tensor:
    """A product of `e2m1_values`, times what is left of the two blocks' scales.

    The scales' product can lie outside float32 where the result does not; its square root cannot.
    With odd bytes accounted for, that is a power of two whose exponent field is the sum of the
    halved bytes. (0 stands for the least one, 2**-127, whose square is as good as 0.)
    """
    root = (((a_byte >> 1) + (b_byte >> 1)) << 23).to(tl.float32, bitcast=True)
    return product * root * root


@triton.jit
def times_scale(magnitude: tl.tensor, byte: tl.tensor) -> tl.tensor:
    """Pattern of an E2M1 magnitude, given by its pattern, times 2**(byte - 127)."""
    field = (magnitude >> 23) + byte - BIAS
    normal = magnitude + ((byte - BIAS) << 23)
    significand = (magnitude & 0x7FFFFF) | 0x800000
    subnormal = significand >> tl.maximum(1 - field, 0)  # exact, with so few bits
    product = tl.where(field > 0, normal, subnormal)
    product = tl.where(field >= 255, INFINITY, product)
    return tl.where(magnitude == 0, 0, product)
