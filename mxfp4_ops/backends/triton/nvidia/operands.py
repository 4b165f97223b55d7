"""How a step of K comes from memory to the matrix units, bit for bit.

In the narrow kernel both operands are bfloat16. The weight is 2**-64 times what its codes and
scales stand for, and x is 2**64 times its quantised value, which leaves the product as it is: a
code's magnitude, put where bfloat16's exponent ends and its mantissa starts, is the number times
2**-126, and multiplied by 2**62 times the block scale, which bfloat16 can hold, it is the operand.
That is exact for scale bytes of the weight from 64 to 191, numbers from 2**-64 to 6 * 2**64, and
for those of x from `SMALLEST` to `LARGEST`. `exact.py` has what lies outside.

In the wide kernel both are floats of 8 bits, 5 of them the exponent. The weight is 2**-14 times
what its codes stand for: a code's magnitude, put where the exponent ends and the mantissa starts,
is that number. A row of x is given 2**(`BELOW` / 2) as its largest block scale; blocks whose scale
is up to 2**`BELOW` times smaller have numbers that are not subnormal.

In the integer kernel both are integers of 8 bits where scales allow (`prepare_integer.py`), and as
in the wide kernel where they do not.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .. import offsets
from ..indices import along

scale_rows = gluon.jit(offsets.scale_rows.fn)

EXPONENT = 64
"""Of the power of two by which x is larger and the weight smaller than it is."""

SMALLEST, LARGEST = 72, 188
"""Scale bytes of x whose blocks bfloat16 can hold so, with products that float32 can."""

BELOW = 26

REFERENCE = gl.constexpr(127 + BELOW // 2 - 14)
"""The scale byte of a row's largest block with which its 8-bit floats need no scaling."""

STEP = gl.constexpr(128)
"""Elements of K in a step."""

SCALE_BIAS = gl.constexpr(126 - EXPONENT)
TWICE = gl.constexpr(0x00800080)
"""A bfloat16 exponent of 1 in both halves of a word."""


def _unpack_word(word: str, scale: str, first: int, multiply: str) -> str:
    """PTX for the 4 pairs of bfloat16 in a word of 8 codes: 0 and 4, 1 and 5, 2 and 6, 3 and 7.

    LOP3 0xE4 takes the magnitude, under the mask, from the word shifted so that it lies in bits 6
    to 8 of each half, and the sign, outside, from signs shifted to bit 15: all other signs are
    under the mask then.
    """
    lines = [f"and.b32 e, {word}, 0x08080808; and.b32 o, {word}, 0x80808080;"]
    shifts = (
        ("shl.b32", 6, "e", 12),
        ("shl.b32", 2, "o", 8),
        ("shr.u32", 2, "e", 4),
        ("shr.u32", 6, "o", 0),
    )
    for i, (shift, by, signs, signs_by) in enumerate(shifts):
        lines.append(f"{shift} m, {word}, {by}; shl.b32 s, {signs}, {signs_by};")
        lines.append("lop3.b32 m, m, s, 0x01C001C0, 0xE4;")
        lines.append(multiply.format(f"${first + i}, m, {scale}"))
    return "\n".join(lines)


def _unpack(multiply: str) -> str:
    words = _unpack_word("$8", "$10", 0, multiply), _unpack_word("$9", "$11", 4, multiply)
    return "\n".join(["{", ".reg .b32 e, o, m, s, z;", "mov.b32 z, 0x80008000;", *words, "}"])


UNPACK = gl.constexpr(_unpack("mul.rn.bf16x2 {};"))
UNPACK_BY_FMA = gl.constexpr(_unpack("fma.rn.bf16x2 {}, z;"))
"""For GPUs before sm_90, which lack the multiplication; x + -0 is x, also for -0."""


@gluon.jit
def word_rows(row: gl.tensor, stride: gl.tensor, SHUFFLED: gl.constexpr) -> gl.tensor:
    """Offsets, in 32-bit words, of rows (int64) of codes, whose stride counts 16 bytes."""
    return row // 16 * stride * 64 + row % 16 * 4 if SHUFFLED else row * stride * 4


@gluon.jit
def word_blocks(block: gl.tensor, SHUFFLED: gl.constexpr) -> gl.tensor:
    return block * (64 if SHUFFLED else 4)


@gluon.jit
def weight_words(
    first: gl.tensor,
    n: gl.tensor,
    begin: gl.tensor,
    stride: gl.tensor,
    SHUFFLED: gl.constexpr,
    layout: gl.constexpr,
) -> tuple[gl.tensor, gl.tensor]:
    """(offsets, blocks) of the first step's words of rows from `first` on; `layout` is theirs.

    Rows beyond the last one are read from that one.
    """
    row = gl.cast(gl.minimum(first + along(1, layout.shape[1], layout, 3), n - 1), gl.int64)
    word = along(2, 16, layout, 3)
    block = begin + along(0, layout.shape[0], layout, 3) * 4 + word // 4
    offset = word_rows(row, stride, SHUFFLED) + word % 4
    offset += gl.cast(word_blocks(block, SHUFFLED), gl.int64)
    return gl.max_contiguous(gl.multiple_of(offset, [1, 1, 4]), [1, 1, 4]), block


@gluon.jit
def weight_bytes(
    scales: gl.tensor,
    first: gl.tensor,
    n: gl.tensor,
    begin: gl.tensor,
    stride: gl.tensor,
    SPLITS: gl.constexpr,
    BLOCK_N: gl.constexpr,
    SHUFFLED: gl.constexpr,
    layout: gl.constexpr,
) -> tuple[gl.tensor, gl.tensor]:
    """(pointers to the rows, blocks) of the words' scale bytes."""
    row = gl.cast(gl.minimum(first + along(1, BLOCK_N, layout, 3), n - 1), gl.int64)
    block = begin + along(0, SPLITS, layout, 3) * 4 + along(2, 4, layout, 3)
    return scales + scale_rows(row, stride, SHUFFLED), block


@gluon.jit
def in_range(byte: gl.tensor) -> gl.tensor:
    """Bit 7 tells whether a scale byte of the weight is one from 64 to 191."""
    return byte ^ (byte << 1)


@gluon.jit
def unpack(words: gl.tensor, byte: gl.tensor, HAS_MUL: gl.constexpr) -> tuple[gl.tensor, ...]:
    """8 pieces [splits, rows, 16] of the weight, of words of codes and [splits, rows, 4] bytes."""
    splits: gl.constexpr = words.shape[0]
    rows: gl.constexpr = words.shape[1]
    scale = gl.expand_dims((byte + SCALE_BIAS) * TWICE, 3).broadcast_to([splits, rows, 4, 4])
    scale = gl.reshape(scale, [splits, rows, 16])
    scale = gl.convert_layout(scale, words.type.layout, assert_trivial=True)
    return gl.inline_asm_elementwise(
        UNPACK if HAS_MUL else UNPACK_BY_FMA,
        "=r,=r,=r,=r,=r,=r,=r,=r,r,r,r,r",
        [words, scale],
        dtype=(gl.bfloat16,) * 8,
        is_pure=True,
        pack=2,
    )


@gluon.jit
def pieces(x: gl.tensor) -> tuple[gl.tensor, gl.tensor]:
    """The two pieces [splits, rows, 16] in a quarter [splits, rows, 16] of x's step, as words."""
    splits: gl.constexpr = x.shape[0]
    rows: gl.constexpr = x.shape[1]
    # Registers are only renamed: each of two words becomes a pair of neighbours.
    first, second = gl.inline_asm_elementwise(
        "mov.b32 $0, $2; mov.b32 $1, $3;", "=r,=r,r,r", [x], (gl.bfloat16, gl.bfloat16), True, 2
    )
    both = gl.reshape(gl.join(first, second), [splits, rows, 4, 2, 2, 2])
    even, odd = gl.split(gl.permute(both, [0, 1, 2, 5, 4, 3]))
    flat: gl.constexpr = [splits, rows, 16]
    return gl.reshape(even, flat), gl.reshape(odd, flat)


@gluon.jit
def warp_operand(piece: gl.tensor, INDEX: gl.constexpr, layout: gl.constexpr) -> gl.tensor:
    """A piece, of which a lane has 4 neighbours, as an operand of mma: there they are 8 apart."""
    splits: gl.constexpr = piece.shape[0]
    rows: gl.constexpr = piece.shape[1]
    piece = gl.permute(gl.reshape(piece, [splits, rows, 4, 2, 2]), [0, 1, 3, 2, 4])
    piece = gl.reshape(piece, [splits, rows, 16])
    if INDEX == 1:
        piece = gl.permute(piece, [0, 2, 1])
    operand: gl.constexpr = gl.DotOperandLayout(INDEX, layout, 2)
    return gl.convert_layout(piece, operand, assert_trivial=True)


FLOAT8 = gl.constexpr("""{
.reg .b32 signs, m, s;
and.b32 signs, $2, 0x88888888;
shl.b32 m, $2, 1; shl.b32 s, signs, 4; lop3.b32 $0, m, s, 0x0E0E0E0E, 0xE4;
shr.u32 m, $2, 3; lop3.b32 $1, m, signs, 0x0E0E0E0E, 0xE4;
}""")
"""PTX for the 8-bit floats in a word of 8 codes, the even ones and the odd ones."""


@gluon.jit
def float8_blocks(words: gl.tensor) -> gl.tuple:
    """The four blocks of a step as 8-bit floats, four in an int32, of words [rows, 16] of codes.

    Dimensions are 16 rows, lane, quarter of the block, row 8, and even or odd.
    """
    even, odd = gl.inline_asm_elementwise(
        FLOAT8, "=r,=r,r", [words], dtype=(gl.int32, gl.int32), is_pure=True, pack=1
    )
    both = gl.reshape(gl.join(even, odd), [words.shape[0] // 16, 2, 8, 2, 2, 4, 2])
    low, high = gl.split(gl.permute(both, [0, 2, 5, 1, 6, 4, 3]))
    first, second = gl.split(low)
    third, fourth = gl.split(high)
    return first, second, third, fourth


@gluon.jit
def float8_operand(block: gl.tensor, layout: gl.constexpr) -> gl.tensor:
    """A block as wgmma's operand [rows, 32]: first its even elements, then its odd ones."""
    # Registers are only renamed: which element of an int32, and which int32, change places.
    t = gl.inline_asm_elementwise(
        "mov.b32 $0, $4; mov.b32 $1, $5; mov.b32 $2, $6; mov.b32 $3, $7;",
        "=r,=r,=r,=r,r,r,r,r",
        [block],
        dtype=(gl.float8e5,) * 4,
        is_pure=True,
        pack=4,
    )
    both = gl.join(gl.join(t[0], t[1]), gl.join(t[2], t[3]))
    both = gl.reshape(gl.permute(both, [0, 6, 1, 5, 2, 3, 4]), [block.shape[0] * 16, 32])
    return gl.convert_layout(both, gl.DotOperandLayout(0, layout, 4), assert_trivial=True)


def _integers() -> str:
    """PTX for four words of 8 codes and a shift: two words of 4 integers for each of them.

    They are 0 with a shift of 32 or more.

    PRMT finds four magnitudes in a table of 8 bytes by the codes' low bits, and 0 (the sign of what
    it finds) where the fourth bit is set: once for what is positive, once, with that bit flipped,
    for what is negative. 128 in each byte keeps the difference of both from borrowing.
    """
    lines = ["{", ".reg .b32 low, high, n, u, v, p, q;"]
    lines.append("shl.b32 low, 0x03020100, $12; shl.b32 high, 0x0C080604, $12;")
    for i in range(4):
        word = f"${8 + i}"
        lines.append(f"xor.b32 n, {word}, 0x88888888; shr.u32 u, {word}, 16; shr.u32 v, n, 16;")
        for positive, negative, to in ((word, "n", 2 * i), ("u", "v", 2 * i + 1)):
            lines += [
                f"prmt.b32 p, low, high, {positive}; prmt.b32 q, low, high, {negative};",
                f"add.u32 p, p, 0x80808080; sub.u32 p, p, q; xor.b32 ${to}, p, 0x80808080;",
            ]
    return "\n".join([*lines, "}"])


INTEGERS = gl.constexpr(_integers())


@gluon.jit
def integer_operand(words: gl.tensor, shift: gl.tensor, layout: gl.constexpr) -> gl.tensor:
    """Words [64, 16] of codes as integers, wgmma's operand [64, 128], of shifts [64, 4]."""
    shift = gl.reshape(gl.expand_dims(shift, 2).broadcast_to([64, 4, 4]), [64, 16])
    shift = gl.convert_layout(shift, words.type.layout, assert_trivial=True)
    # Of each block t[2 * i + half] has four codes of word i.
    t = gl.inline_asm_elementwise(
        INTEGERS,
        "=r,=r,=r,=r,=r,=r,=r,=r,r,r,r,r,r,r,r,r",
        [words, shift],
        dtype=(gl.int8,) * 8,
        is_pure=False,
        pack=4,
    )
    first = gl.join(gl.join(t[0], t[1]), gl.join(t[2], t[3]))
    second = gl.join(gl.join(t[4], t[5]), gl.join(t[6], t[7]))
    both = gl.reshape(gl.join(first, second), [64, 4, 4, 2, 2, 2])
    both = gl.reshape(gl.permute(both, [0, 5, 4, 3, 1, 2]), [64, 128])
    return gl.convert_layout(both, gl.DotOperandLayout(0, layout, 4), assert_trivial=True)
