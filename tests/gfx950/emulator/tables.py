"""What the regular vector instructions compute.

An entry is the type of the result, the types of the sources and a function of NumPy arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from . import bits as bt
from . import floats as fl
from .wave import M32, Row

Fn = Callable[..., Row]


@dataclass(frozen=True)
class Alu:
    """A vector instruction without side effects.

    `keeps_high`: its 16-bit result leaves the upper half of the register as it is.
    """

    result: str
    sources: tuple[str, ...]
    fn: Fn
    keeps_high: bool = False


def _wide(fn: Fn, type_: str) -> Fn:
    """Compute in 64 bits and cut to `type_`."""
    wide = np.int64 if type_[0] == "i" else np.uint64

    def cut(*args: Row) -> Row:
        return fn(*(a.astype(wide) for a in args)).astype(np.dtype(_numpy(type_)))

    return cut


def _numpy(type_: str) -> str:
    return {"u": "uint", "i": "int", "f": "float"}[type_[0]] + type_[1:]


def limits(type_: str) -> tuple[int, int]:
    info = np.iinfo(_numpy(type_))
    return int(info.min), int(info.max)


def saturating(fn: Fn, type_: str) -> Fn:
    """An integer operation with the clamp bit: exact, then cut to the range of `type_`."""
    low, high = limits(type_)
    return lambda *a: np.clip(fn(*(x.astype(np.int64) for x in a)), low, high).astype(_numpy(type_))


U, I, F, H, P = "u32", "i32", "f32", "f16", "u64"  # noqa: E741

TABLE: dict[str, Alu] = {
    "v_mov_b32": Alu(U, (U,), lambda a: a),
    "v_mov_b64": Alu(P, (P,), lambda a: a),
    "v_accvgpr_read_b32": Alu(U, (U,), lambda a: a),
    "v_accvgpr_write_b32": Alu(U, (U,), lambda a: a),
    "v_accvgpr_mov_b32": Alu(U, (U,), lambda a: a),
    "v_not_b32": Alu(U, (U,), np.invert),
    "v_bfrev_b32": Alu(U, (U,), bt.bit_reverse),
    "v_ffbh_u32": Alu(U, (U,), bt.leading_zeros),
    "v_ffbl_b32": Alu(U, (U,), bt.trailing_zeros),
    "v_bcnt_u32_b32": Alu(U, (U, U), lambda a, b: np.bitwise_count(a) + b),
    "v_and_b32": Alu(U, (U, U), np.bitwise_and),
    "v_or_b32": Alu(U, (U, U), np.bitwise_or),
    "v_xor_b32": Alu(U, (U, U), np.bitwise_xor),
    "v_xnor_b32": Alu(U, (U, U), lambda a, b: ~(a ^ b)),
    "v_add_u32": Alu(U, (U, U), np.add),
    "v_sub_u32": Alu(U, (U, U), np.subtract),
    "v_subrev_u32": Alu(U, (U, U), lambda a, b: b - a),
    "v_add_i32": Alu(I, (I, I), np.add),
    "v_sub_i32": Alu(I, (I, I), np.subtract),
    "v_add3_u32": Alu(U, (U, U, U), bt.bitwise3(np.add, np.add)),
    "v_lshl_add_u32": Alu(U, (U, U, U), lambda a, b, c: (a << (b & 31)) + c),
    "v_add_lshl_u32": Alu(U, (U, U, U), lambda a, b, c: (a + b) << (c & 31)),
    "v_lshl_or_b32": Alu(U, (U, U, U), lambda a, b, c: a << (b & 31) | c),
    "v_and_or_b32": Alu(U, (U, U, U), bt.bitwise3(np.bitwise_and, np.bitwise_or)),
    "v_or3_b32": Alu(U, (U, U, U), bt.bitwise3(np.bitwise_or, np.bitwise_or)),
    "v_xad_u32": Alu(U, (U, U, U), bt.bitwise3(np.bitwise_xor, np.add)),
    "v_bfe_u32": Alu(U, (U, U, U), bt.extract),
    "v_bfe_i32": Alu(I, (I, U, U), bt.extract),
    "v_bfi_b32": Alu(U, (U, U, U), lambda a, b, c: (a & b) | (~a & c)),
    "v_bfm_b32": Alu(
        U, (U, U), lambda a, b: ((np.uint32(1) << (a & 31)) - np.uint32(1)) << (b & 31)
    ),
    "v_perm_b32": Alu(U, (U, U, U), bt.byte_permute),
    "v_alignbit_b32": Alu(U, (U, U, U), lambda a, b, c: bt.align_bytes(a, b, c, 1)),
    "v_alignbyte_b32": Alu(U, (U, U, U), lambda a, b, c: bt.align_bytes(a, b, c, 8)),
    "v_mul_lo_u32": Alu(U, (U, U), np.multiply),
    "v_mul_hi_u32": Alu(U, (U, U), _wide(lambda a, b: a * b >> np.uint64(32), U)),
    "v_mul_hi_i32": Alu(I, (I, I), _wide(lambda a, b: a * b >> 32, I)),
    "v_mul_u32_u24": Alu(U, (U, U), bt.mad24(False)),
    "v_mul_i32_i24": Alu(I, (I, I), bt.mad24(True)),
    "v_mul_hi_u32_u24": Alu(U, (U, U), bt.mad24(False, True)),
    "v_mad_u32_u24": Alu(U, (U, U, U), bt.mad24(False)),
    "v_mad_i32_i24": Alu(I, (I, I, I), bt.mad24(True)),
    "v_mad_u32_u16": Alu(U, ("u16", "u16", U), lambda a, b, c: a.astype(np.uint32) * b + c),
    "v_mad_i32_i16": Alu(I, ("i16", "i16", I), lambda a, b, c: a.astype(np.int32) * b + c),
    "v_sad_u32": Alu(U, (U, U, U), lambda a, b, c: np.maximum(a, b) - np.minimum(a, b) + c),
    "v_cvt_f32_u32": Alu(F, (U,), lambda a: a.astype(np.float32)),
    "v_cvt_f32_i32": Alu(F, (I,), lambda a: a.astype(np.float32)),
    "v_cvt_u32_f32": Alu(U, (F,), lambda a: fl.to_integer(a, 0, M32).astype(np.uint32)),
    "v_cvt_i32_f32": Alu(I, (F,), lambda a: fl.to_integer(a, -(1 << 31), (1 << 31) - 1)),
    "v_cvt_f32_f16": Alu(F, (H,), lambda a: fl.quiet(a.astype(np.float32))),
    "v_cvt_f16_f32": Alu(H, (F,), lambda a: a.astype(np.float16)),
    "v_cvt_f32_bf16": Alu(
        F, ("u16",), lambda a: fl.quiet((a.astype(np.uint32) << np.uint32(16)).view(np.float32))
    ),
    "v_cvt_f64_f32": Alu("f64", (F,), lambda a: a.astype(np.float64)),
    "v_cvt_f32_f64": Alu(F, ("f64",), lambda a: a.astype(np.float32)),
    "v_cvt_f64_i32": Alu("f64", (I,), lambda a: a.astype(np.float64)),
    "v_cvt_f64_u32": Alu("f64", (U,), lambda a: a.astype(np.float64)),
    "v_cvt_f16_u16": Alu(H, ("u16",), lambda a: a.astype(np.float16)),
    "v_cvt_f16_i16": Alu(H, ("i16",), lambda a: a.astype(np.float16)),
    "v_cvt_u16_f16": Alu("u16", (H,), lambda a: fl.to_integer(a, 0, 65535).astype(np.uint16)),
    "v_cvt_i16_f16": Alu("i16", (H,), lambda a: fl.to_integer(a, -32768, 32767).astype(np.int16)),
    "v_cvt_pk_bf16_f32": Alu(U, (F, F), bt.pack_bf16),
    "v_cvt_pk_f16_f32": Alu(U, (F, F), bt.pack_f16),
    "v_cvt_pkrtz_f16_f32": Alu(U, (F, F), bt.pack_f16_toward_zero),
    **{f"v_cvt_f32_ubyte{n}": Alu(F, (U,), bt.ubyte(n)) for n in range(4)},
    "v_add_f32": Alu(F, (F, F), np.add),
    "v_sub_f32": Alu(F, (F, F), np.subtract),
    "v_subrev_f32": Alu(F, (F, F), lambda a, b: b - a),
    "v_mul_f32": Alu(F, (F, F), np.multiply),
    "v_fma_f32": Alu(F, (F, F, F), fl.fma),
    "v_exp_f32": Alu(F, (F,), fl.exp2),
    "v_log_f32": Alu(F, (F,), fl.log2),
    "v_rcp_f32": Alu(F, (F,), fl.reciprocal),
    "v_rcp_iflag_f32": Alu(F, (F,), fl.reciprocal),
    "v_rsq_f32": Alu(F, (F,), fl.rsqrt),
    "v_sqrt_f32": Alu(F, (F,), fl.sqrt),
    "v_ldexp_f32": Alu(F, (F, I), fl.ldexp),
    "v_div_fixup_f32": Alu(F, (F, F, F), bt.div_fixup),
    "v_frexp_mant_f32": Alu(F, (F,), fl.frexp_fraction),
    "v_frexp_exp_i32_f32": Alu(I, (F,), fl.frexp_exponent),
    "v_add_f64": Alu("f64", ("f64", "f64"), np.add),
    "v_mul_f64": Alu("f64", ("f64", "f64"), np.multiply),
    "v_fma_f64": Alu("f64", ("f64", "f64", "f64"), fl.fma64),
    "v_fma_f16": Alu(H, (H, H, H), fl.fma, keeps_high=True),
    "v_mad_u16": Alu("u16", ("u16",) * 3, lambda a, b, c: a * b + c, keeps_high=True),
    "v_mad_i16": Alu("i16", ("i16",) * 3, lambda a, b, c: a * b + c, keeps_high=True),
    "v_mad_legacy_u16": Alu("u16", ("u16",) * 3, lambda a, b, c: a * b + c),
    "v_mad_legacy_i16": Alu("i16", ("i16",) * 3, lambda a, b, c: a * b + c),
    "v_mul_lo_u16": Alu("u16", ("u16",) * 2, np.multiply),
    "v_add_f16": Alu(H, (H, H), np.add),
    "v_sub_f16": Alu(H, (H, H), np.subtract),
    "v_subrev_f16": Alu(H, (H, H), lambda a, b: b - a),
    "v_mul_f16": Alu(H, (H, H), np.multiply),
    "v_ldexp_f16": Alu(H, (H, "i16"), fl.ldexp),
}
for _t in ("u16", "i16"):
    TABLE |= {
        f"v_add_{_t}": Alu(_t, (_t, _t), np.add, keeps_high=_t == "i16"),
        f"v_sub_{_t}": Alu(_t, (_t, _t), np.subtract, keeps_high=_t == "i16"),
    }
TABLE["v_subrev_u16"] = Alu("u16", ("u16", "u16"), lambda a, b: b - a)
for _name, _types in {
    "lshlrev_b": ("u16", "u32", "u64"),
    "lshrrev_b": ("u16", "u32", "u64"),
    "ashrrev_i": ("i16", "i32", "i64"),
}.items():
    for _t in _types:
        _count = "u16" if _t.endswith("16") else U
        _fn = bt.shift_left if _name == "lshlrev_b" else bt.shift_right
        TABLE[f"v_{_name}{_t[1:]}"] = Alu(_t, (_count, _t), _fn)
for _t in (U, I, "u16", "i16"):
    _high = _t.endswith("16")
    TABLE |= {
        f"v_min_{_t}": Alu(_t, (_t, _t), np.minimum),
        f"v_max_{_t}": Alu(_t, (_t, _t), np.maximum),
        f"v_min3_{_t}": Alu(_t, (_t,) * 3, bt.bitwise3(np.minimum, np.minimum), _high),
        f"v_max3_{_t}": Alu(_t, (_t,) * 3, bt.bitwise3(np.maximum, np.maximum), _high),
        f"v_med3_{_t}": Alu(
            _t, (_t,) * 3, lambda a, b, c: np.sort(np.stack((a, b, c)), axis=0)[1], _high
        ),
    }
for _t in (F, H):
    _high = _t == H
    TABLE |= {
        f"v_min_{_t}": Alu(_t, (_t, _t), fl.minimum),
        f"v_max_{_t}": Alu(_t, (_t, _t), fl.maximum),
        f"v_min3_{_t}": Alu(_t, (_t,) * 3, bt.bitwise3(fl.minimum, fl.minimum), _high),
        f"v_max3_{_t}": Alu(_t, (_t,) * 3, bt.bitwise3(fl.maximum, fl.maximum), _high),
        f"v_med3_{_t}": Alu(_t, (_t,) * 3, fl.median, _high),
        f"v_trunc_{_t}": Alu(_t, (_t,), np.trunc),
        f"v_floor_{_t}": Alu(_t, (_t,), np.floor),
        f"v_ceil_{_t}": Alu(_t, (_t,), np.ceil),
        f"v_rndne_{_t}": Alu(_t, (_t,), np.rint),
    }
TABLE["v_maximum3_f32"] = Alu(F, (F, F, F), bt.bitwise3(fl.ieee_maximum, fl.ieee_maximum))
TABLE["v_minimum3_f32"] = Alu(F, (F, F, F), bt.bitwise3(fl.ieee_minimum, fl.ieee_minimum))

# What `clamp` saturates; on float results it cuts to 0..1 instead.
SATURATES = frozenset(
    f"v_{op}_{t}"
    for op, types in {
        "add": (U, I, "u16", "i16"),
        "sub": (U, I, "u16", "i16"),
        "subrev": (U, "u16"),
        "mad": ("u16", "i16"),
    }.items()
    for t in types
)
