"""The text of a kernel and its launch in the emulator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from .emulator import EmulationError, Program, launch, unknown_instructions
from .emulator.parse import parse_instruction, parse_kernel

DESCRIPTOR = {
    "group_segment_fixed_size": 0,
    "private_segment_fixed_size": 0,
    "kernarg_size": 32,
    "user_sgpr_count": 2,
    "user_sgpr_kernarg_segment_ptr": 1,
    "user_sgpr_kernarg_preload_length": 0,
    "user_sgpr_kernarg_preload_offset": 0,
    "system_sgpr_workgroup_id_x": 1,
    "system_sgpr_workgroup_id_y": 1,
    "system_sgpr_workgroup_id_z": 1,
    "next_free_vgpr": 16,
    "next_free_sgpr": 32,
    "accum_offset": 16,
    "float_round_mode_32": 0,
    "float_round_mode_16_64": 0,
    "float_denorm_mode_32": 3,
    "float_denorm_mode_16_64": 3,
    "dx10_clamp": 1,
    "ieee_mode": 1,
}
ARGUMENTS = [
    (0, 8, "global_buffer"),
    (8, 8, "global_buffer"),
    (16, 4, "by_value"),
    (24, 8, "by_value"),
]


def text(body: str, **fields: int) -> str:
    """A kernel k(pointer, pointer, 32 bits, 64 bits)."""
    lines = "\n".join(f"\t\t.amdhsa_{k} {v}" for k, v in (DESCRIPTOR | fields).items())
    table = "\n".join(
        f"      - .offset: {o}\n        .size: {s}\n        .value_kind: {k}"
        for o, s, k in ARGUMENTS
    )
    return f"""\t.amdgcn_target "amdgcn-amd-amdhsa--gfx950"
\t.text
\t.p2align\t8
k:                                      ; @k
{body}
.Lfunc_end0:
\t.section\t.rodata,"a",@progbits
\t.amdhsa_kernel k
{lines}
\t.end_amdhsa_kernel
\t.amdgpu_metadata
---
amdhsa.kernels:
  - .agpr_count:     0
    .args:
{table}
    .group_segment_fixed_size: 0
    .name:           k
amdhsa.target:   amdgcn-amd-amdhsa--gfx950
...
\t.end_amdgpu_metadata
"""


# Every lane adds the 32-bit argument to its word of the first buffer.
ADD = """\ts_load_dwordx2 s[6:7], s[0:1], 0x0
\ts_load_dword s8, s[0:1], 0x10
\tv_lshlrev_b32_e32 v1, 2, v0             ; a comment
\t;;#ASMSTART
\ts_nop 0
\t;;#ASMEND
\ts_waitcnt lgkmcnt(0)
\tglobal_load_dword v2, v1, s[6:7]
\ts_cmp_eq_u32 s8, 0
\ts_cbranch_scc1 .LBB0_2
\ts_waitcnt vmcnt(0)
\tv_add_u32_e32 v2, s8, v2
\tglobal_store_dword v1, v2, s[6:7]
.LBB0_2:                                ; %done
\ts_endpgm
"""


def test_parse() -> None:
    kernel = parse_kernel(text(ADD))
    assert kernel.name == "k"
    assert [i.mnemonic for i in kernel.instructions[:3]] == [
        "s_load_dwordx2",
        "s_load_dword",
        "v_lshlrev_b32",
    ]
    assert kernel.labels == {".LBB0_2": 11}
    assert kernel.instructions[11].mnemonic == "s_endpgm"
    assert kernel.field("next_free_vgpr") == 16
    assert [(a.offset, a.size, a.kind) for a in kernel.arguments] == ARGUMENTS
    line = text(ADD).splitlines()[kernel.instructions[5].line - 1]
    assert line.split() == kernel.instructions[5].text.split()


def test_parse_operands_and_modifiers() -> None:
    ins = parse_instruction("v_fma_f32 v[2:3], -|s4|, abs(v5), 0.5 op_sel:[0,1] clamp offset:0x10")
    first, second, third, fourth = ins.operands
    assert (first.kind, first.index, first.count) == ("v", 2, 2)
    assert (second.kind, second.index, second.neg, second.abs) == ("s", 4, True, True)
    assert (third.kind, third.index, third.neg, third.abs) == ("v", 5, False, True)
    assert fourth.bits("f32") == 0x3F000000
    assert fourth.bits("f16") == 0x3800
    assert ins.flags("op_sel", (0, 0, 1)) == (0, 1, 1)
    assert ins.modifier("offset") == 16
    assert "clamp" in ins.modifiers
    assert parse_instruction("s_waitcnt vmcnt(3) lgkmcnt(0)").modifiers == {
        "vmcnt": "3",
        "lgkmcnt": "0",
    }
    assert parse_instruction("s_waitcnt 0x4f7f").modifiers["vmcnt"] == str(0x1F)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("\tv_frobnicate v0\n\ts_endpgm", "line 5: v_frobnicate v0: unknown instruction"),
        ("\ts_branch .LBB0_9\n\ts_endpgm", "unknown label .LBB0_9"),
        ("\tv_mov_b32_e32 v16, 0\n\ts_endpgm", "v16 is beyond the 16 registers"),
        ("\tv_accvgpr_read_b32 v0, a0\n\ts_endpgm", "a0 is beyond the 0 registers"),
        ("\t.long 17\n\ts_endpgm", "unknown directive"),
        ("\tv_mov_b32_e32 v0, v1 v2\n\ts_endpgm", "modifiers"),
        ("\ts_mov_b32 s0 s1, s2\n\ts_endpgm", "comma"),
        ("", "no instructions"),
    ],
)
def test_texts_that_are_refused(body: str, message: str) -> None:
    with pytest.raises(EmulationError, match=message):
        Program.parse(text(body))


@pytest.mark.parametrize(
    "field", ["ieee_mode", "float_round_mode_32", "private_segment_fixed_size"]
)
def test_modes_that_are_not_modelled(field: str) -> None:
    with pytest.raises(EmulationError, match=field):
        Program.parse(text(ADD, **{field: 1 - DESCRIPTOR[field]}))


def test_the_list_of_unknown_instructions() -> None:
    body = "\tv_frobnicate v0\n\tv_mov_b32_e32 v0, 0\n\ts_endpgm"
    assert [line.split(":")[1].strip() for line in unknown_instructions(text(body))] == [
        "v_frobnicate v0"
    ]


@pytest.mark.parametrize("order", ["ascending", "descending", "interleaved"])
def test_launch(order: str) -> None:
    data = torch.arange(100, 232, dtype=torch.int32)
    # The pointer is that of the fourth element.
    stats = launch(
        Program.parse(text(ADD)), (1, 1, 1), [data[3:], None, 1000], num_warps=2, order=order
    )
    assert data.tolist() == [100, 101, 102, *range(1103, 1231), 231]
    assert stats.executed() == 2 * 12
    assert stats.executed(wave=1) == stats.executed((0, 0, 0), 0) == 12
    assert stats.by_mnemonic()["s_load_dwordx2"] == 2
    stats = launch(Program.parse(text(ADD)), (1, 1, 1), [data, None, 0], num_warps=1)
    assert stats.by_mnemonic(wave=0)["v_add_u32"] == 0
    assert stats.executed(wave=0) == 9


def test_messages_name_the_place() -> None:
    data = torch.zeros(100, dtype=torch.int32)
    program = Program.parse(text(ADD))
    message = r"k, workgroup \(0, 0, 0\), wave 1, line 12, 'global_load_dword v2, v1, s\[6:7\]': "
    message += "load of 4 bytes at offset 400 of argument 0, which has 400 bytes, lane 36"
    with pytest.raises(EmulationError, match=message):
        launch(program, (1, 1, 1), [data, None, 1], num_warps=2)


def test_arguments() -> None:
    program = Program.parse(text(ADD))
    data = torch.zeros(64, dtype=torch.int32)
    launch(program, (1, 1, 1), [data, data, 1.0], num_warps=1)
    assert data.view(torch.float32).tolist() == [1.0] * 64
    launch(program, (1, 1, 1), [data.zero_(), None, -1], num_warps=1)
    assert data.tolist() == [-1] * 64
    refused: list[list[Any]] = [[data, 5, 1], [data, None, data], [1, None, 1], [data] * 5]
    for wrong in refused:
        with pytest.raises(EmulationError, match="argument"):
            launch(program, (1, 1, 1), wrong, num_warps=1)
    with pytest.raises(ValueError, match="order"):
        launch(program, (1, 1, 1), [data, None, 1], order="random")


# Where a workgroup's place arrives; and how far apart the two pointers are, into one buffer.
PLACES = """\ts_load_dwordx4 s[8:11], s[0:1], 0x0
\ts_lshl_b32 s3, s3, 1
\ts_lshl_b32 s4, s4, 2
\ts_add_i32 s2, s2, s3
\ts_add_i32 s2, s2, s4
\ts_lshl_b32 s5, s2, 2
\tv_mov_b32_e32 v1, s5
\tv_mov_b32_e32 v2, s2
\ts_waitcnt lgkmcnt(0)
\ts_sub_u32 s6, s10, s8
\tv_add_u32_e32 v2, s6, v2
\tglobal_store_dword v1, v2, s[8:9]
\ts_endpgm
"""


def test_places_in_the_grid() -> None:
    data = torch.full((8,), -1, dtype=torch.int32)
    launch(Program.parse(text(PLACES)), (2, 2, 2), [data, data[2:]], num_warps=1)
    assert data.tolist() == [8 + i for i in range(8)]
    data.fill_(-1)
    stats = launch(Program.parse(text(PLACES)), (2, 2, 2), [data, data], programs=[(1, 0, 1)])
    assert data.tolist() == [-1] * 5 + [5, -1, -1]
    assert stats.waves.keys() == {((1, 0, 1), wave) for wave in range(4)}


PRELOADED = """\ts_load_dwordx2 s[2:3], s[0:1], 0x0
\ts_load_dword s4, s[0:1], 0x10
\ts_waitcnt lgkmcnt(0)
\ts_branch .LBB0_0
\t.p2align\t8
.LBB0_0:
\tv_lshlrev_b32_e32 v1, 2, v0
\tv_mov_b32_e32 v2, s4
\tglobal_store_dword v1, v2, s[2:3]
\ts_endpgm
"""


@pytest.mark.parametrize("preload", [False, True])
def test_arguments_in_registers(preload: bool) -> None:
    """s[2:] hold the segment's words from the given one on; the code that loads them is skipped."""
    moved = PRELOADED.replace("s4", "s6") if preload else PRELOADED
    fields = {"user_sgpr_count": 7, "user_sgpr_kernarg_preload_length": 5}
    data = torch.zeros(64, dtype=torch.int32)
    program = Program.parse(text(moved, **fields))
    stats = launch(program, (1, 1, 1), [data, None, 77], num_warps=1, preload=preload)
    assert data.tolist() == [77] * 64
    assert stats.executed() == (4 if preload else 8)


def test_registers_that_the_dispatch_takes() -> None:
    fields = {"user_sgpr_count": 8, "user_sgpr_dispatch_ptr": 1, "user_sgpr_queue_ptr": 1}
    data = torch.zeros(64, dtype=torch.int32)
    moved = ADD.replace("s[0:1]", "s[4:5]").replace("s[6:7]", "s[10:11]").replace("s8", "s12")
    launch(Program.parse(text(moved, **fields)), (1, 1, 1), [data, None, 5], num_warps=1)
    assert data.tolist() == [5] * 64
    with pytest.raises(EmulationError, match="address is undefined"):
        launch(Program.parse(text(ADD, **fields)), (1, 1, 1), [data, None, 5], num_warps=1)


ENDLESS = "k2:\n\ts_branch k2\n".replace("k2", ".LBB0_1") + "\ts_endpgm\n"


def test_endless_loops_and_missing_ends() -> None:
    with pytest.raises(EmulationError, match="more than 50 instructions"):
        launch(Program.parse(text(ENDLESS)), (1, 1, 1), [], limit=50)
    with pytest.raises(EmulationError, match="off the end"):
        launch(Program.parse(text("\ts_nop 0\n")), (1, 1, 1), [])


# Wave 0 ends at once; the others meet at the barrier without it.
EARLY_END = """\tv_readfirstlane_b32 s6, v0
\ts_cmp_lt_u32 s6, 64
\ts_cbranch_scc1 .LBB0_1
\ts_barrier
.LBB0_1:
\ts_endpgm
"""


@pytest.mark.parametrize("order", ["ascending", "descending", "interleaved"])
def test_a_barrier_waits_for_the_waves_that_are_left(order: str) -> None:
    stats = launch(Program.parse(text(EARLY_END)), (1, 1, 1), [], num_warps=3, order=order)
    assert stats.by_mnemonic()["s_barrier"] == 2


def test_registers_start_undefined() -> None:
    body = "\tv_lshlrev_b32_e32 v1, 2, v0\n\tglobal_store_dword v1, v2, s[2:3]\n\ts_endpgm\n"
    with pytest.raises(EmulationError, match="the address is undefined"):
        launch(Program.parse(text(body, user_sgpr_count=8)), (1, 1, 1), [])


def test_lds_is_limited() -> None:
    program = Program.parse(text("\ts_endpgm\n"))
    launch(program, (1, 1, 1), [], lds_bytes=160 * 1024)
    with pytest.raises(EmulationError, match="LDS"):
        launch(program, (1, 1, 1), [], lds_bytes=160 * 1024 + 1)


def test_a_buffer_that_is_no_multiple_of_a_word() -> None:
    raw = torch.from_numpy(np.zeros(259, np.uint8))
    launch(Program.parse(text(ADD)), (1, 1, 1), [raw, None, 1], num_warps=1)
    assert raw[:256].view(torch.int32).tolist() == [1] * 64
    assert raw[256:].tolist() == [0] * 3
