"""Blocks of 32 to MXFP4, by the conversion instructions of gfx950."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.runtime.jit import constexpr_function

from .activations import words_per_block


@gluon.jit
def _larger(a: gl.tensor, b: gl.tensor) -> gl.tensor:
    return gl.maximum(a, b)


@gluon.jit
def _larger_pair(a: gl.tensor, b: gl.tensor) -> gl.tensor:
    """The larger one of each of two unsigned 16-bit numbers."""
    return gl.inline_asm_elementwise(
        "v_pk_max_u16 $0, $1, $2", "=v,v,v", [a, b], dtype=gl.int32, is_pure=True, pack=1
    )


@constexpr_function
def rounding(mode: str, mantissa: int) -> int:
    """What is added to amax's bits so that its exponent field becomes the scale's, plus 2.

    `even` rounds up from a mantissa of 1.75 on, `ceil` above 1.5, `floor` never.
    """
    return {"even": 1 << mantissa - 2, "ceil": (1 << mantissa - 1) - 1, "floor": 0}[mode]


@gluon.jit
def scale_bytes(x: gl.tensor, dtype: gl.constexpr, mode: gl.constexpr) -> gl.tensor:
    """E8M0 bytes, int32 `[rows, blocks]`, of 32-bit words `[rows, blocks * words_per_block]`.

    The largest magnitude needs no float: without the sign, bits are ordered as the numbers are,
    infinities and NaN above all.
    """
    words: gl.constexpr = words_per_block(dtype)
    blocks: gl.constexpr = x.shape[1] // words
    x = gl.reshape(x, [x.shape[0], blocks, words])
    if dtype == gl.float32:
        amax = gl.reduce(x & 0x7FFFFFFF, 2, _larger)
    else:
        amax = gl.reduce(x & 0x7FFF7FFF, 2, _larger_pair)
        amax = gl.maximum(amax & 0xFFFF, amax >> 16)
    if dtype == gl.float16:  # its subnormals are normal numbers in float32
        amax = amax.to(gl.int16).to(gl.float16, bitcast=True).to(gl.float32)
        amax = amax.to(gl.int32, bitcast=True)
    mantissa: gl.constexpr = 7 if dtype == gl.bfloat16 else 23
    scale = gl.maximum((amax + rounding(mode, mantissa)) >> mantissa, 2) - 2
    return gl.where(amax >= 255 << mantissa, 255, scale)


@constexpr_function
def conversion(dtype: gl.dtype) -> tuple[str, str]:
    """Assembly that turns 8 elements into 8 codes, and its constraints.

    The instruction divides two elements by the power of two in the exponent field of its last
    operand, rounds to nearest even, saturates, and writes the byte that op_sel names.
    """
    name = {"bf16": "bf16", "fp16": "f16", "fp32": "f32"}[dtype.name]
    one_word = dtype.primitive_bitwidth == 16
    sources = 4 if one_word else 8
    lines = []
    for byte in range(4):
        source = f"${1 + byte}" if one_word else f"${1 + 2 * byte}, ${2 + 2 * byte}"
        select = f" op_sel:[0,0,{byte % 2},{byte // 2}]" if byte else ""
        lines.append(f"v_cvt_scalef32_pk_fp4_{name} $0, {source}, ${1 + sources}{select}")
    return "\n".join(lines), ",".join(["=&v"] + ["v"] * (sources + 1))


@gluon.jit
def halves(x: gl.tensor) -> tuple[gl.tensor, gl.tensor]:
    """The elements of even and of odd index along the last dimension."""
    return gl.split(gl.reshape(x, [x.shape[0], x.shape[1] // 2, 2]))


@gluon.jit
def to_codes(x: gl.tensor, scale: gl.tensor, dtype: gl.constexpr) -> gl.tensor:
    """Packed codes, int32 `[rows, K / 8]`, of 32-bit words; `scale` are the blocks' E8M0 bytes."""
    words: gl.constexpr = words_per_block(dtype)
    rows: gl.constexpr = x.shape[0]
    factor = gl.expand_dims(scale << 23, 2).broadcast_to([rows, scale.shape[1], 4])
    x0, x1 = halves(x)
    x00, x10 = halves(x0)
    x01, x11 = halves(x1)
    asm: gl.constexpr = conversion(dtype)
    factor = gl.convert_layout(
        gl.reshape(factor, [rows, scale.shape[1] * 4]),
        (x00 if words == 16 else halves(x00)[0]).type.layout,
        assert_trivial=True,
    )
    if words == 16:
        sources = [x00, x01, x10, x11, factor]
    else:
        x000, x100 = halves(x00)
        x001, x101 = halves(x01)
        x010, x110 = halves(x10)
        x011, x111 = halves(x11)
        sources = [x000, x001, x010, x011, x100, x101, x110, x111, factor]
    return gl.inline_asm_elementwise(asm[0], asm[1], sources, dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def to_bytes(words: gl.tensor) -> gl.tensor:
    """uint8 `[rows, 4 * n]` of int32 `[rows, n]`, the lowest byte first."""
    b0, b1 = words.to(gl.uint8), (words >> 8).to(gl.uint8)
    b2, b3 = (words >> 16).to(gl.uint8), (words >> 24).to(gl.uint8)
    together = gl.join(gl.join(b0, b2), gl.join(b1, b3))
    return gl.reshape(together, [words.shape[0], words.shape[1] * 4])
