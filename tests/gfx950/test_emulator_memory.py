"""Loads, stores and waits of the emulator: values, bounds, and what may not be read yet."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from .emulator import EmulationError
from .one_buffer import LANE, M32, OLD, buffer_wave, expected, octets
from .single import execute, integers, read, run, scalar, wave

LOADS = {
    "buffer_load_ubyte v4, v0, s[0:3], 0 offen": (1, 0),
    "buffer_load_ushort v4, v0, s[0:3], 0 offen offset:6": (2, 6),
    "buffer_load_dword v4, v0, s[0:3], 0 offen": (4, 0),
    "buffer_load_dwordx2 v[4:5], v0, s[0:3], 0 offen offset:16 nt": (8, 16),
    "buffer_load_dwordx3 v[4:6], v0, s[0:3], 0 offen": (12, 0),
    "buffer_load_dwordx4 v[4:7], v0, s[0:3], s6 offen offset:4 sc0 nt": (16, 12),
    "global_load_ubyte v4, v0, s[4:5] offset:3": (1, 3),
    "global_load_ushort v4, v0, s[4:5]": (2, 0),
    "global_load_dword v4, v0, s[4:5] offset:8": (4, 8),
    "global_load_dwordx2 v[4:5], v0, s[4:5]": (8, 0),
    "global_load_dwordx3 v[4:6], v0, s[4:5]": (12, 0),
    "global_load_dwordx4 v[4:7], v0, s[4:5] sc1": (16, 0),
}


@pytest.mark.parametrize("text", LOADS)
def test_loads(text: str) -> None:
    size, extra = LOADS[text]
    data, offsets = octets(), np.random.default_rng(1).permutation(64) * 32
    for mask in (M32 << 32 | M32, 0xF0F0_0000_0001_0002):
        made = run(buffer_wave(data, offsets, exec_mask=mask), text + "\ns_waitcnt vmcnt(0)")
        values = expected(data, offsets + extra, size)
        for i in range(max(size // 4, 1)):
            want = [v >> 32 * i & M32 if mask >> n & 1 else OLD for n, v in enumerate(values)]
            assert made.bits[4 + i].tolist() == want


def test_signs_and_halves() -> None:
    data, offsets = octets(), LANE * 2
    text = """buffer_load_sbyte v8, v0, s[0:3], 0 offen
        buffer_load_sshort v9, v0, s[0:3], 0 offen
        buffer_load_ubyte_d16 v4, v0, s[0:3], 0 offen
        buffer_load_short_d16_hi v5, v0, s[0:3], 0 offen
        buffer_load_sbyte_d16_hi v6, v0, s[0:3], 0 offen
        global_load_short_d16 v7, v0, s[4:5]
        s_waitcnt vmcnt(0)"""
    made = run(buffer_wave(data, offsets), text)
    raw = data.numpy()
    half = raw[:128].view(np.uint16).astype(np.uint32)
    byte = raw[:128:2].copy()
    assert (read(made, 8).view(np.int32) == byte.view(np.int8)).all()
    assert (read(made, 9).view(np.int32) == half.astype(np.uint16).view(np.int16)).all()
    assert (read(made, 4) == byte.astype(np.uint32) | OLD & 0xFFFF0000).all()
    assert (read(made, 5) == half << 16 | OLD & 0xFFFF).all()
    extended = byte.view(np.int8).astype(np.int16).view(np.uint16).astype(np.uint32)
    assert (read(made, 6) == extended << 16 | OLD & 0xFFFF).all()
    assert (read(made, 7) == half | OLD & 0xFFFF0000).all()


STORES = {
    "buffer_store_byte v4, v0, s[0:3], 0 offen": (1, 0),
    "buffer_store_short v4, v0, s[0:3], 0 offen offset:2": (2, 2),
    "buffer_store_dword v4, v0, s[0:3], 0 offen": (4, 0),
    "buffer_store_dwordx2 v[4:5], v0, s[0:3], 0 offen": (8, 0),
    "buffer_store_dwordx3 v[4:6], v0, s[0:3], 0 offen": (12, 0),
    "buffer_store_dwordx4 v[4:7], v0, s[0:3], s6 offen": (16, 8),
    "global_store_byte v0, v4, s[4:5] offset:5": (1, 5),
    "global_store_short v0, v4, s[4:5]": (2, 0),
    "global_store_dword v0, v4, s[4:5]": (4, 0),
    "global_store_dwordx2 v0, v[4:5], s[4:5]": (8, 0),
    "global_store_dwordx4 v0, v[4:7], s[4:5]": (16, 0),
}


@pytest.mark.parametrize("text", STORES)
def test_stores(text: str) -> None:
    size, extra = STORES[text]
    offsets, mask = np.random.default_rng(2).permutation(64) * 32, 0xFFFF_0F0F_FFFF_FFF7
    data, words = octets(), [integers(i) for i in range(4)]
    before = data.numpy().copy()
    made = buffer_wave(data, offsets, exec_mask=M32 << 32 | M32)
    for i, word in enumerate(words):
        made.put(4 + i, word)
    made.set_exec(mask)
    run(made, text)
    want = before.copy()
    for n in range(64):
        if mask >> n & 1:
            value = b"".join(int(word[n]).to_bytes(4, "little") for word in words)[:size]
            want[offsets[n] + extra : offsets[n] + extra + size] = np.frombuffer(value, np.uint8)
    assert (data.numpy() == want).all()
    assert len(made.vm) == 1  # it counts, until a wait


def test_stores_of_upper_halves() -> None:
    data, word = torch.zeros(512, dtype=torch.uint8), integers(3)
    made = buffer_wave(data, LANE * 4)
    made.put(4, word)
    run(
        made,
        "global_store_short_d16_hi v0, v4, s[4:5]\n"
        "buffer_store_byte_d16_hi v4, v0, s[0:3], 0 offen offset:2",
    )
    got = data.numpy()[:256].reshape(64, 4)
    assert (got[:, :2].copy().view(np.uint16)[:, 0] == word >> 16).all()
    assert (got[:, 2] == (word >> 16 & 255)).all()


def test_full_addresses() -> None:
    data = octets()
    made = buffer_wave(data, 0)
    base = scalar(made, 4, 2)
    address = (base + LANE * 8).astype(np.uint64)
    made.put(2, address.astype(np.uint32))
    made.put(3, (address >> np.uint64(32)).astype(np.uint32))
    run(made, "global_load_dword v4, v[2:3], off offset:4\ns_waitcnt vmcnt(0)")
    assert read(made, 4).tolist() == expected(data, LANE * 8 + 4, 4)


def test_out_of_a_descriptors_range() -> None:
    """Loads give 0 and stores are dropped, word by word, without touching the buffer."""
    data, offsets = octets(256), np.where(LANE % 2, LANE * 4, 0x80000000)
    text = "buffer_load_dwordx2 v[4:5], v0, s[0:3], 0 offen\ns_waitcnt vmcnt(0)"
    made = run(buffer_wave(data, offsets, records=128), text)
    want = [v if n % 2 and n * 4 < 128 else 0 for n, v in enumerate(expected(data, LANE * 4, 4))]
    assert read(made, 4).tolist() == want
    want = [
        v if n % 2 and n * 4 < 124 else 0 for n, v in enumerate(expected(data, LANE * 4 + 4, 4))
    ]
    assert read(made, 5).tolist() == want
    before = data.clone()
    run(made, "buffer_store_dwordx2 v[6:7], v0, s[0:3], 0 offen")
    changed = (data != before).view(64, 4).any(1).nonzero()[:, 0].tolist()
    assert changed == list(range(1, 32))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("buffer_load_dword v4, v0, s[0:3], 0 offen", "load of 4 bytes at offset 4096 of the data"),
        ("buffer_store_dword v4, v0, s[0:3], 0 offen", "store of 4 bytes at offset 4096"),
        ("global_load_dword v4, v0, s[4:5]", "which has 4096 bytes, lane 63"),
        ("global_load_dword v4, v0, s[4:5] offset:-4096", "offset -64 of the data"),
    ],
)
def test_outside_of_a_buffer(text: str, message: str) -> None:
    step = np.where(LANE == 63, 4096, LANE * 4 + (4032 if "-" in text else 0))
    with pytest.raises(EmulationError, match=message):
        run(buffer_wave(octets(), step), text)


def test_misaligned() -> None:
    with pytest.raises(EmulationError, match="not 4-byte aligned"):
        run(buffer_wave(octets(), LANE * 4), "buffer_load_dword v4, v0, s[0:3], 0 offen offset:2")
    with pytest.raises(EmulationError, match="not aligned"):
        execute("ds_read_b32 v4, v0 offset:2", {0: LANE * 4}, lds=512)
    with pytest.raises(EmulationError, match="8-byte aligned"):
        execute("ds_read_b64_tr_b8 v[4:5], v0 offset:4", {0: LANE * 8}, lds=1024)


def test_a_wild_address() -> None:
    with pytest.raises(EmulationError, match="address"):
        execute("global_load_dword v4, v[0:1], off", {0: 16, 1: 0})


def test_values_appear_with_the_wait_that_retires_them() -> None:
    data = octets()
    made = buffer_wave(data, LANE * 8)
    text = "\n".join(
        f"buffer_load_dword v{4 + i}, v0, s[0:3], 0 offen offset:{4 * i}" for i in range(3)
    )
    run(made, text)
    for register in (4, 5, 6):
        with pytest.raises(EmulationError, match="read while a load"):
            run(made, f"v_mov_b32_e32 v8, v{register}")
        with pytest.raises(EmulationError, match="written while a load"):
            run(made, f"v_mov_b32_e32 v{register}, 0")
    run(made, "s_waitcnt vmcnt(1)")
    assert read(made, 4).tolist() == expected(data, LANE * 8, 4)
    assert read(made, 5).tolist() == expected(data, LANE * 8 + 4, 4)
    with pytest.raises(EmulationError, match="in flight"):
        read(made, 6)
    with pytest.raises(EmulationError, match="in flight"):
        run(made, "buffer_store_dword v6, v0, s[0:3], 0 offen")
    run(made, "s_waitcnt lgkmcnt(0)")
    with pytest.raises(EmulationError, match="in flight"):
        read(made, 6)
    run(made, "s_waitcnt 0")
    assert read(made, 6).tolist() == expected(data, LANE * 8 + 8, 4)


def test_a_second_load_into_a_register() -> None:
    data = octets()
    made = buffer_wave(data, LANE * 4, lds=256)
    run(
        made,
        "buffer_load_dword v4, v0, s[0:3], 0 offen\n"
        "buffer_load_dword v4, v0, s[0:3], 0 offen offset:4",
    )
    run(made, "s_waitcnt vmcnt(1)")
    with pytest.raises(EmulationError, match="in flight"):
        read(made, 4)
    run(made, "s_waitcnt vmcnt(0)")
    assert read(made, 4).tolist() == expected(data, LANE * 4 + 4, 4)
    run(made, "buffer_load_dword v4, v0, s[0:3], 0 offen\nds_write_b32 v0, v5")
    with pytest.raises(EmulationError, match="two loads"):
        run(made, "ds_read_b32 v4, v0")


def test_scalar_loads_return_in_any_order() -> None:
    data = octets()
    made = buffer_wave(data, LANE * 4, lds=256)
    text = """s_load_dword s8, s[4:5], 0x10
        s_load_dwordx2 s[10:11], s[4:5], s6
        s_load_dwordx8 s[16:23], s[4:5], 0x0
        ds_write_b32 v0, v4
        s_waitcnt lgkmcnt(1)"""
    run(made, text)
    for register in (8, 10, 16):
        with pytest.raises(EmulationError, match="in flight"):
            run(made, f"s_mov_b32 s30, s{register}")
    with pytest.raises(EmulationError, match="in flight"):
        run(made, "s_mov_b32 s8, 0")
    run(made, "s_waitcnt lgkmcnt(0)")
    assert scalar(made, 8) == expected(data, np.array([16]), 4)[0]
    assert scalar(made, 10, 2) == expected(data, np.array([8]), 8)[0]
    assert [scalar(made, 16 + i) for i in range(8)] == expected(data, np.arange(8) * 4, 4)


def test_undefined_values_are_neither_stored_nor_addresses() -> None:
    made = buffer_wave(octets(), LANE * 4)
    with pytest.raises(EmulationError, match="store of v9, undefined"):
        run(made, "buffer_store_dword v9, v0, s[0:3], 0 offen")
    with pytest.raises(EmulationError, match="address is undefined"):
        run(made, "buffer_load_dword v4, v9, s[0:3], 0 offen")
    with pytest.raises(EmulationError, match="descriptor"):
        run(made, "buffer_load_dword v4, v0, s[8:11], 0 offen")


def test_one_instruction_storing_two_values_at_one_place() -> None:
    made = buffer_wave(octets(), LANE // 2 * 4)
    made.put(4, LANE)
    with pytest.raises(EmulationError, match="two lanes"):
        run(made, "buffer_store_dword v4, v0, s[0:3], 0 offen")
    made = wave({0: LANE // 2 * 4, 4: LANE}, lds=256)
    with pytest.raises(EmulationError, match="two lanes"):
        run(made, "ds_write_b32 v0, v4")
    run(made, "v_mov_b32_e32 v4, 3\nds_write_b32 v0, v4")


def test_workgroups_do_not_see_one_another() -> None:
    data = octets()
    made = buffer_wave(data, LANE * 4)
    run(made, "buffer_store_dword v4, v0, s[0:3], 0 offen")
    made.memory.workgroup = 2
    run(made, "buffer_store_dword v4, v0, s[0:3], 0 offen")  # the same values
    made.memory.workgroup = 3
    with pytest.raises(EmulationError, match="another workgroup"):
        run(made, "buffer_load_dword v8, v0, s[0:3], 0 offen")
    made.put(4, LANE + 1)
    with pytest.raises(EmulationError, match="two workgroups"):
        run(made, "buffer_store_dword v4, v0, s[0:3], 0 offen")
