"""What the emulator refuses: unknown instructions, and use of what is undefined."""

from __future__ import annotations

import pytest

from .emulator import EmulationError
from .single import execute, read, run, wave


def test_undefined_operands_taint_what_depends_on_them() -> None:
    # v9 was never written.
    w = execute("v_add_u32_e32 v4, v9, v0", {0: 1})
    with pytest.raises(EmulationError, match="undefined in lane 0"):
        read(w, 4)
    w = execute("v_and_b32_e32 v4, 0, v9\nv_perm_b32 v5, v9, v0, s0", {0: 1}, {0: 0x03020100})
    assert read(w, 4).tolist() == [0] * 64
    assert read(w, 5).tolist() == [1] * 64
    # The low word of a sum knows nothing of the high words.
    w = execute("v_mad_u64_u32 v[4:5], s[0:1], v0, v0, v[2:3]", {0: 3, 2: 4})
    assert read(w, 4).tolist() == [13] * 64
    with pytest.raises(EmulationError, match="undefined"):
        read(w, 5)


def test_undefined_only_where_exec_left_it_out() -> None:
    made = wave({0: 5}, exec_mask=0xF)
    text = "v_mov_b32_e32 v9, v0\ns_mov_b64 exec, -1\nv_add_u32_e32 v4, v9, v0"
    run(made, text)
    made.set_exec(0xF)
    assert read(made, 4)[:4].tolist() == [10] * 4
    made.set_exec(0x1F)
    with pytest.raises(EmulationError, match="lane 4"):
        read(made, 4)


@pytest.mark.parametrize(
    "text",
    [
        "v_add_u32 v0, v1, v2 clamp mul:2",
        "v_frobnicate_b32 v0, v1",
        "v_and_b32 v0, -v1, v2",
        "v_add_u32 v0, v1",
        "v_add_u32 v0, sext(v1), v2",
        "v_lshlrev_b32 v0, v1, v2 op_sel:[1,0,0]",
        "v_mov_b32_dpp v0, v1 row_shr:1 row_mask:0xf bank_mask:0xf fi:1",
        "v_mov_b32_e32 v0, 0.3",
        "s_add_u32 s0, s1, s2 nt",
        "s_frobnicate s0",
        "s_waitcnt vscnt(0)",
        "ds_read_b32 v0, v1 gds",
        "ds_append v0",
        "buffer_load_dword v0, v1, s[0:3], 0 idxen",
        "buffer_load_format_x v0, v1, s[0:3], 0 offen",
        "global_atomic_add v[0:1], v2, off",
        "v_mfma_f32_4x4x4_16b_f16 v[0:3], v[4:5], v[6:7], v[0:3]",
        "v_mfma_f32_16x16x32_bf16 v[0:3], v[4:7], v[8:11], v[0:3] cbsz:1",
        "v_mfma_scale_f32_16x16x128_f8f6f4 v[0:3], v[4:11], v[12:19], v[0:3], v20, v21",
    ],
)
def test_what_is_unknown_is_an_error(text: str) -> None:
    with pytest.raises(EmulationError):
        execute(text, dict.fromkeys(range(22), 0), dict.fromkeys(range(4), 0))
