"""That instructions of assembly text are told apart, and counted as often as they are executed."""

from __future__ import annotations

from math import ceil

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from benchmarks.gfx950 import mca, scalar
from benchmarks.gfx950.assembly import CLASSES, Assembly, Instruction
from benchmarks.gfx950.walk import Executed, UnknownBranch, Wave, executed

ONE = (1, 1, 1)


def text(body: str) -> str:
    """A kernel of two arguments, a pointer and an integer; workgroups are numbered by s2 and s3."""
    return f"""
        .text
hand_written:                           ; @hand_written
.Lfunc_begin0:
{body}
        s_endpgm
.Lfunc_end0:
        .amdhsa_kernel hand_written
                .amdhsa_user_sgpr_count 2
                .amdhsa_user_sgpr_dispatch_ptr 0
                .amdhsa_user_sgpr_queue_ptr 0
                .amdhsa_user_sgpr_kernarg_segment_ptr 1
                .amdhsa_system_sgpr_workgroup_id_x 1
                .amdhsa_system_sgpr_workgroup_id_y 1
                .amdhsa_system_sgpr_workgroup_id_z 0
                .amdhsa_next_free_vgpr 12
        .end_amdhsa_kernel
        .amdgpu_metadata
---
amdhsa.kernels:
  - .agpr_count:     0
    .args:
      - .address_space:  global
        .offset:         0
        .size:           8
        .value_kind:     global_buffer
      - .offset:         8
        .size:           4
        .value_kind:     by_value
    .group_segment_fixed_size: 0
    .name:           hand_written
    .vgpr_count:     12
    .vgpr_spill_count: 3
...
        .end_amdgpu_metadata
"""


LOOP = """
        s_load_dword s4, s[0:1], 0x8
        s_waitcnt lgkmcnt(0)
        s_mov_b32 s5, 0
.LBB0_1:                                ; a loop
        v_mfma_scale_f32_16x16x128_f8f6f4 v[0:3], v[4:7], v[8:11], v[0:3], v0, v1 op_sel:[0,0,0]
        s_add_i32 s5, s5, 1
        s_cmp_lt_i32 s5, s4
        s_cbranch_scc1 .LBB0_1
"""


def count(body: str, n: int = 0, grid: tuple[int, int, int] = ONE) -> Executed:
    return executed(Assembly.parse(text(body)), [None, n], grid)


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("v_mfma_scale_f32_16x16x128_f8f6f4 v[0:3], v[4:7], v[8:11], v[0:3], v0, v1", "mfma"),
        ("v_cvt_scalef32_pk_fp4_bf16 v0, v1, v2 op_sel:[0,0,1,0]", "cvt"),
        ("v_cvt_f32_u32_e32 v0, v1", "valu"),
        ("v_max_i32_sdwa v0, v0, sext(v1) dst_sel:DWORD src0_sel:WORD_0", "valu"),
        ("v_mov_b32_dpp v0, v1 quad_perm:[1,0,3,2]", "xlane"),
        ("v_permlane32_swap_b32_e32 v0, v1", "xlane"),
        ("v_readfirstlane_b32 s0, v0", "valu"),
        ("ds_bpermute_b32 v0, v1, v2", "xlane"),
        ("ds_read_b64_tr_b8 v[0:1], v2", "lds_read"),
        ("ds_write2st64_b32 v0, v1, v2 offset1:1", "lds_write"),
        ("ds_add_u32 v0, v1", "lds_other"),
        ("buffer_load_dwordx4 v[0:3], v4, s[0:3], 0 offen offset:16", "vmem"),
        ("global_store_short v[0:1], v2, off", "vmem"),
        ("scratch_load_dword v0, off, s0", "scratch"),
        ("s_load_dwordx8 s[4:11], s[0:1], 0x8", "smem"),
        ("s_waitcnt vmcnt(0)", "wait"),
        ("s_nop 1", "wait"),
        ("s_barrier", "barrier"),
        ("s_cbranch_execz .LBB0_1", "branch"),
        ("s_endpgm", "branch"),
        ("s_mov_b64 exec, s[0:1]", "salu"),
    ],
)
def test_kinds(line: str, kind: str) -> None:
    assert Instruction.parse(line).kind == kind
    assert kind in CLASSES


def test_unknown_kind() -> None:
    with pytest.raises(ValueError, match="tensor_load"):
        _ = Instruction.parse("tensor_load v0, v1").kind


def test_parse() -> None:
    body = """
        .loc 1 2 3
        ;;#ASMSTART
        v_add_u32_e32 v0, s[2:3], v1 // made up
v_pk_max_u16 v0, v1, v2
        ;;#ASMEND
.LBB0_1:
        buffer_load_dword v3, v0, s[4:7], 0 offen offset:4
        s_branch .LBB0_1
"""
    assembly = Assembly.parse(text(body))
    assert assembly.name == "hand_written"
    assert [(i.mnemonic, i.operands) for i in assembly.instructions] == [
        ("v_add_u32_e32", ("v0", "s[2:3]", "v1")),
        ("v_pk_max_u16", ("v0", "v1", "v2")),
        ("buffer_load_dword", ("v3", "v0", "s[4:7]", "0")),
        ("s_branch", (".LBB0_1",)),
        ("s_endpgm", ()),
    ]
    assert assembly.labels[".LBB0_1"] == 2
    assert assembly.descriptor["next_free_vgpr"] == 12
    assert assembly.metadata["vgpr_spill_count"] == 3
    assert "size" not in assembly.metadata
    assert [(a.offset, a.size, a.pointer) for a in assembly.arguments] == [
        (0, 8, True),
        (8, 4, False),
    ]


def test_a_single_kernel() -> None:
    with pytest.raises(ValueError, match="one kernel"):
        Assembly.parse(text("") + text(""))


def test_main_part() -> None:
    mfma = "v_mfma_f32_16x16x16_f16 v[0:3], v[0:1], v[2:3], v[0:3]\n"
    nested = f"""
        .LBB0_1:
        {mfma}
        .LBB0_2:
        {mfma}{mfma}
        s_cbranch_scc1 .LBB0_2
        s_cbranch_scc1 .LBB0_1
        .LBB0_3:
        {mfma}
        s_cbranch_scc1 .LBB0_3
"""
    assembly = Assembly.parse(text(nested))
    assert (assembly.main, assembly.has_loop) == (range(1, 4), True)
    without = Assembly.parse(text(nested.replace(mfma, "v_nop\n")))
    assert (without.main, without.has_loop) == (range(len(without.instructions)), False)


@pytest.mark.parametrize("n", [1, 2, 100])
def test_loop(n: int) -> None:
    assert count(LOOP, n) == Executed(wave=3 + 4 * n + 1, workgroups=3 + 4 * n + 1)
    once_more = LOOP.replace("s_cmp_lt_i32", "s_cmp_le_i32")
    assert count(once_more, n).wave == count(LOOP, n + 1).wave
    in_halves = LOOP.replace("s5, s5, 1", "s5, s5, 2")
    assert count(in_halves, n).wave == count(LOOP, ceil(n / 2)).wave


def test_all_workgroups_alike() -> None:
    assert count(LOOP, 2, grid=(2, 3, 4)) == Executed(wave=12, workgroups=24 * 12)


def test_counts_of_each_instruction() -> None:
    wave = Wave(Assembly.parse(text(LOOP)), [None, 5], (0, 0, 0))
    assert list(wave.run().values()) == [1, 1, 1, 5, 5, 5, 5, 1]


def test_loop_by_another_counter() -> None:
    """Down to zero in 64 bits, by a condition that is kept as a mask of lanes."""
    down = """
        s_load_dwordx2 s[4:5], s[0:1], 0x8
        s_mov_b32 s5, 0
.LBB0_1:
        s_add_u32 s4, s4, -1
        s_addc_u32 s5, s5, -1
        s_cmp_lg_u64 s[4:5], 0
        s_cselect_b64 s[6:7], -1, 0
        s_and_b64 vcc, exec, s[6:7]
        s_cbranch_vccnz .LBB0_1
"""
    assert count(down, 7).wave == 2 + 6 * 7 + 1


def test_workgroups_that_differ() -> None:
    """The first of each three in a row skips two instructions."""
    body = """
        s_mul_hi_u32 s4, s2, 0x55555556
        s_mul_i32 s4, s4, 3
        s_cmp_eq_u32 s4, s2
        s_cbranch_scc1 .LBB0_1
        v_nop
        v_nop
.LBB0_1:
"""
    assert count(body) == Executed(5, 5)
    assert count(body, grid=(9, 2, 1)) == Executed(wave=7, workgroups=2 * (3 * 5 + 6 * 7))


def test_lanes() -> None:
    """Some lane is active where a mask is not known; all are again after the mask is restored."""
    body = """
        v_cmp_gt_i32_e32 vcc, 3, v0
        s_and_saveexec_b64 s[4:5], vcc
        s_cbranch_execz .LBB0_1
        v_nop
.LBB0_1:
        s_or_b64 exec, exec, s[4:5]
        s_cbranch_execnz .LBB0_2
        v_nop
        v_nop
.LBB0_2:
"""
    assert count(body).wave == 7


@pytest.mark.parametrize(
    "changed",
    [
        "v_readfirstlane_b32 s4, v0",
        "v_cmp_lt_i32_e64 s[4:5], v0, v1",
        "v_add_co_u32_e64 v0, s[4:5], v0, v1",
        "s_load_dword s4, s[0:1], 0x0",
        "s_load_dword s4, s[8:9], 0x0",
        "s_bcnt1_i32_b64 s4, exec",
    ],
)
def test_unknown_trips(changed: str) -> None:
    before = ".LBB0_1:"
    with pytest.raises(UnknownBranch, match=r"s_cbranch_scc1 \.LBB0_1"):
        count(LOOP.replace(before, f"{changed}\n{before}"), 3)


def test_endless() -> None:
    with pytest.raises(UnknownBranch):
        count(LOOP.replace("s_cmp_lt_i32 s5, s4", "s_setpc_b64 s[4:5]"), 3)


@pytest.mark.parametrize("branch", ["scc0", "scc1", "vccz", "vccnz"])
def test_unknown_way(branch: str) -> None:
    body = f"""
        s_load_dword s4, s[0:1], 0x0
        v_cmp_gt_i32_e32 vcc, 3, v0
        s_cmp_eq_u32 s4, 0
        s_cbranch_{branch} .LBB0_1
.LBB0_1:
"""
    with pytest.raises(UnknownBranch, match=branch):
        count(body)


words = st.integers(0, 2**32 - 1)
longs = st.integers(0, 2**64 - 1)


@given(longs, longs)
def test_64_bits_of_two_words(a: int, b: int) -> None:
    (a0, a1), (b0, b1) = ((v & 0xFFFFFFFF, v >> 32) for v in (a, b))
    for low, high, result in (("add", "addc", a + b), ("sub", "subb", a - b)):
        w0, carry = scalar.evaluate(f"s_{low}_u32", a0, b0, None)
        w1, carry = scalar.evaluate(f"s_{high}_u32", a1, b1, carry)
        assert w0 is not None
        assert w1 is not None
        assert w1 << 32 | w0 == result % 2**64
        assert carry == (not 0 <= result < 2**64)


def signed(word: int) -> int:
    return int.from_bytes(word.to_bytes(4, "little"), "little", signed=True)


@given(words, words)
@example(2**32 - 1, 2**32 - 1)
def test_words(a: int, b: int) -> None:
    def result(mnemonic: str) -> int | None:
        return scalar.evaluate(mnemonic, a, b, None)[0]

    def flag(mnemonic: str) -> int | None:
        return scalar.evaluate(mnemonic, a, b, None)[1]

    x, y = signed(a), signed(b)
    assert result("s_mul_i32") == a * b % 2**32
    assert result("s_mul_hi_u32") == a * b // 2**32
    assert result("s_mul_hi_i32") == x * y // 2**32 % 2**32
    assert result("s_min_i32") == min(x, y) % 2**32
    assert result("s_max_u32") == max(a, b)
    assert flag("s_max_u32") == (a > b)
    assert flag("s_cmp_lt_i32") == (x < y)
    assert flag("s_cmp_lt_u32") == (a < b)
    assert flag("s_cmp_lg_u32") == (a != b)
    assert flag("s_add_i32") == (not -(2**31) <= x + y < 2**31)
    assert result("s_lshl_b32") == (a << b % 32) % 2**32
    assert result("s_lshr_b32") == a >> b % 32
    assert result("s_ashr_i32") == (x >> b % 32) % 2**32
    assert result("s_andn2_b32") == a & (2**32 - 1 - b)
    assert flag("s_xor_b32") == (a != b)
    assert flag("s_nand_b32") == (a & b != 2**32 - 1)
    assert flag("s_bitcmp1_b32") == a >> b % 32 & 1
    assert result("s_abs_i32") == abs(x) % 2**32
    assert [scalar.evaluate("s_cselect_b32", a, b, scc)[0] for scc in (0, 1)] == [b, a]


@given(words)
def test_unknown_inputs(a: int) -> None:
    assert scalar.evaluate("s_and_b32", 0, None, None) == (0, 0)
    assert scalar.evaluate("s_or_b64", None, 2**64 - 1, None) == (2**64 - 1, 1)
    assert scalar.evaluate("s_and_b32", a | 1, None, 1) == (None, None)
    assert scalar.evaluate("s_mul_i32", a, None, 1) == (None, 1)  # leaves SCC alone
    assert scalar.evaluate("s_addc_u32", a, a, None) == (None, None)
    assert scalar.evaluate("s_cselect_b32", a, None, 1) == (a, 1)


def test_short_immediates_are_signed() -> None:
    body = LOOP.replace("s_mov_b32 s5, 0", "s_movk_i32 s5, 0xfffe").replace(
        "s_cmp_lt_i32 s5, s4", "s_cmpk_lt_i32 s5, 0xffff"
    )
    assert count(body).wave == count(LOOP, 1).wave
    added = LOOP.replace("s_add_i32 s5, s5, 1", "s_addk_i32 s5, 0xffff").replace("lt_i32", "gt_i32")
    assert count(added, (1 << 32) - 4).wave == count(LOOP, 4).wave


@pytest.mark.skipif(mca.program() is None, reason="there is no llvm-mca that knows gfx950")
def test_mca() -> None:
    def cycles(*lines: str, loop: bool = False) -> float:
        found = mca.cycles([Instruction.parse(line) for line in lines], loop)
        assert found is not None
        return found

    mfma = "v_mfma_scale_f32_16x16x128_f8f6f4 v[0:3], v[4:11], v[12:19], v[0:3], v20, v21"
    assert cycles(*[mfma] * 4) > cycles(mfma)
    assert cycles(mfma, "s_barrier", "s_branch .LBB0_1") == cycles(mfma)
    assert cycles(mfma, loop=True) < cycles(mfma)  # iterations overlap
