"""MXFP4 worked out a second time, from the OCP MX v1.0 text, in exact arithmetic.

Nothing here comes from the package. `quantize_block` and `encode` follow the definitions with
fractions, one block or number at a time; `quantize` does the same on whole arrays of bit patterns,
with integers.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Bits = npt.NDArray[np.int64]

MODES = ("even", "floor", "ceil")
TWO = Fraction(2)


@dataclass(frozen=True)
class FloatFormat:
    """An IEEE-like binary format: sign, exponent and mantissa fields, subnormals, Inf and NaN."""

    exponent_bits: int
    mantissa_bits: int

    @property
    def emin(self) -> int:
        """Exponent of the smallest normal number, and of every subnormal's leading place."""
        return 2 - (1 << (self.exponent_bits - 1))

    @property
    def infinity(self) -> int:
        return ((1 << self.exponent_bits) - 1) << self.mantissa_bits

    @property
    def sign(self) -> int:
        return 1 << (self.exponent_bits + self.mantissa_bits)


FORMATS = {
    torch.bfloat16: FloatFormat(8, 7),
    torch.float16: FloatFormat(5, 10),
    torch.float32: FloatFormat(8, 23),
}

_INTEGERS = {2: torch.int16, 4: torch.int32}


def bits_of(x: Tensor) -> Bits:
    """The bit patterns of a float tensor, as non-negative integers."""
    integers = x.contiguous().view(_INTEGERS[x.element_size()]).to(torch.int64)
    return (integers & ((1 << 8 * x.element_size()) - 1)).numpy()


def from_bits(bits: Bits, dtype: torch.dtype) -> Tensor:
    """The float tensor with these bit patterns."""
    width = dtype.itemsize
    return torch.from_numpy(bits.astype(f"<u{width}").view(f"<i{width}")).view(dtype)


def _e2m1(code: int) -> Fraction:
    """Magnitude of a 3-bit code: 2 exponent bits with bias 1, 1 mantissa bit, subnormals."""
    exponent, mantissa = code >> 1, code & 1
    if exponent == 0:
        return Fraction(mantissa, 2)
    return (1 + Fraction(mantissa, 2)) * TWO ** (exponent - 1)


MAGNITUDES = [_e2m1(code) for code in range(8)]


def _floor_log2(value: Fraction) -> int:
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    return exponent if value >= TWO**exponent else exponent - 1


def quantize_block(block: list[Fraction | None], mode: str) -> tuple[list[int], int]:
    """3-bit magnitude codes and scale byte of one block of magnitudes; None is a NaN or an Inf."""
    magnitudes = [v for v in block if v is not None]
    if len(magnitudes) < len(block):
        return [0] * len(block), 255
    amax = max(magnitudes)
    if amax == 0:
        return [0] * len(block), 0
    shared = _floor_log2(amax) - 2
    if mode == "even" and amax >= Fraction(7, 4) * TWO ** _floor_log2(amax):
        shared += 1
    if mode == "ceil":
        shared = next(s for s in range(shared - 2, shared + 3) if amax <= 6 * TWO**s)
    byte = min(max(shared + 127, 0), 254)
    scaled = [v / TWO ** (byte - 127) for v in magnitudes]
    return [min(range(8), key=lambda c: (abs(v - MAGNITUDES[c]), c & 1)) for v in scaled], byte


def magnitude(bits: int, fmt: FloatFormat) -> Fraction | None:
    """|x| of one bit pattern, None for NaN and Inf."""
    bits &= fmt.sign - 1
    if bits >= fmt.infinity:
        return None
    field, mantissa = divmod(bits, 1 << fmt.mantissa_bits)
    hidden = (1 << fmt.mantissa_bits) if field else 0
    return (hidden + mantissa) * TWO ** (fmt.emin + max(field, 1) - 1 - fmt.mantissa_bits)


def quantize(bits: Bits, fmt: FloatFormat, mode: str) -> tuple[npt.NDArray[np.uint8], Bits]:
    """4-bit codes and scale bytes of blocks `[..., 32]` of bit patterns."""
    absolute = bits & (fmt.sign - 1)
    poisoned = (absolute >= fmt.infinity).any(-1, keepdims=True)
    absolute = np.where(poisoned, 0, absolute)
    field, mantissa = absolute >> fmt.mantissa_bits, absolute & ((1 << fmt.mantissa_bits) - 1)
    significand = mantissa + np.where(field > 0, 1 << fmt.mantissa_bits, 0)
    exponent = fmt.emin + np.maximum(field, 1) - 1 - fmt.mantissa_bits  # |x| = sig * 2**exponent

    top = absolute.argmax(-1)[..., None]  # magnitudes are ordered as their bit patterns are
    shared = _shared_exponent(
        np.take_along_axis(significand, top, -1), np.take_along_axis(exponent, top, -1), mode
    )
    byte = np.clip(shared + 127, 0, 254)

    # Quarters of the scale, cut to an integer; `rest` says that something was cut off.
    shift = exponent + 2 - (byte - 127)
    left, right = np.clip(shift, 0, 30), np.clip(-shift, 0, 62)
    quarters = (significand << left) >> right
    rest = (quarters << right) != significand << left
    codes = np.zeros_like(quarters)
    for lower, (a, b) in enumerate(pairwise(MAGNITUDES)):
        midpoint = int(2 * (a + b))
        tie = (quarters == midpoint) & ~rest
        codes += (quarters >= midpoint) & ~(tie & (lower % 2 == 0))
    codes |= np.where(bits & fmt.sign, 8, 0)
    codes = np.where(poisoned, 0, codes)
    byte = np.where(significand.any(-1, keepdims=True), byte, 0)
    return codes.astype(np.uint8), np.where(poisoned, 255, byte)[..., 0]


def _shared_exponent(significand: Bits, exponent: Bits, mode: str) -> Bits:
    amax = np.ldexp(np.maximum(significand, 1).astype(np.float64), exponent)  # exact
    floor = np.frexp(amax)[1].astype(np.int64) - 1 - 2
    if mode == "even":  # on float32's bits, as the vendor's kernels have it
        pattern = amax.astype(np.float32).view(np.uint32).astype(np.int64)
        return ((pattern + 0x200000) >> 23) - 127 - 2
    if mode == "ceil":
        return np.where(amax <= np.ldexp(6.0, floor), floor, floor + 1)
    return floor


def pack(codes: npt.NDArray[np.uint8]) -> Tensor:
    """Two codes to a byte, the even index in the low nibble."""
    return torch.from_numpy(codes[..., 0::2] | (codes[..., 1::2] << 4))


def quantize_tensor(x: Tensor, mode: str) -> tuple[Tensor, Tensor]:
    """Packed codes `[..., K/2]` and scale bytes `[..., K/32]` of a float tensor."""
    bits = bits_of(x.cpu())
    blocks = bits.reshape(*bits.shape[:-1], bits.shape[-1] // 32, 32)
    codes, byte = quantize(blocks, FORMATS[x.dtype], mode)
    return pack(codes.reshape(bits.shape)), torch.from_numpy(byte.astype(np.uint8))


def ldexp(values: Tensor, exponents: Tensor) -> Tensor:
    """values * 2**exponents in float64, exactly (torch.ldexp goes through float32)."""
    return torch.from_numpy(np.ldexp(values.double().numpy(), exponents.numpy()))


def decode(q: Tensor, scale: Tensor) -> Tensor:
    """The numbers that packed codes and scale bytes stand for, in float64, which holds them all."""
    q, scale = (t.cpu().contiguous().view(torch.uint8) for t in (q, scale))
    values = torch.tensor([float(m) for m in MAGNITUDES] + [-float(m) for m in MAGNITUDES])
    elements = values.double()[torch.stack((q & 15, q >> 4), -1).int()].flatten(-2)
    factors = ldexp(torch.ones(scale.shape), scale.int() - 127)
    factors[scale == 255] = torch.nan
    return elements * factors.repeat_interleave(32, -1)


def encode(value: Fraction, negative: bool, fmt: FloatFormat) -> int:
    """Bit pattern of a magnitude and sign, rounded to nearest, ties to even."""
    bits = 0
    if value:
        exponent = max(_floor_log2(value), fmt.emin)
        steps = round(value / TWO ** (exponent - fmt.mantissa_bits))
        # A significand's leading one lands on the exponent field and adds the 1 it lacks.
        bits = min(((exponent - fmt.emin) << fmt.mantissa_bits) + steps, fmt.infinity)
    return bits | (fmt.sign if negative else 0)
