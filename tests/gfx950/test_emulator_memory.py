"""Loads, stores and waits of the emulator: values, bounds, and what may not be read yet."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from .emulator import EmulationError
from .emulator.lds import Lds
from .emulator.memory import Memory
from .emulator.operands import M0
from .emulator.wave import Wave
from .single import execute, integers, read, run, scalar, wave

M32 = (1 << 32) - 1
LANE = np.arange(64)
OLD = 0x55667788


def octets(count: int = 4096) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(7).integers(0, 256, count, dtype=np.uint8))


def buffer_wave(data: torch.Tensor, offsets: object, records: int = 1 << 30, **more: int) -> Wave:
    """v0: offsets; s[0:3]: the descriptor of `data`; s[4:5]: its address; s6: 8."""
    memory = Memory()
    base = memory.address_of(data, "the data")
    scalars = {0: base & M32, 1: base >> 32, 2: records, 3: 0x27000}
    scalars |= {4: base & M32, 5: base >> 32, 6: 8}
    vector = {0: offsets, 4: OLD, 5: OLD, 6: OLD, 7: OLD}
    return wave(vector, scalars, memory=memory, **more)  # type: ignore[arg-type]


def expected(data: torch.Tensor, offsets: np.ndarray, size: int) -> list[int]:
    raw = data.numpy().tobytes()
    return [int.from_bytes(raw[o : o + size], "little") for o in offsets.tolist()]


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
        "global_store_short_d16_hi v0, v4, s[4:5]\nbuffer_store_byte_d16_hi v4, v0, s[0:3], 0 offen offset:2",
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
        "buffer_load_dword v4, v0, s[0:3], 0 offen\nbuffer_load_dword v4, v0, s[0:3], 0 offen offset:4",
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


LDS_PAIRS = [
    ("ds_write_b8 v0, v4", "ds_read_u8 v8, v0", lambda x: x & 255),
    ("ds_write_b16 v0, v4 offset:4", "ds_read_u16 v8, v0 offset:4", lambda x: x & 0xFFFF),
    ("ds_write_b8_d16_hi v0, v4", "ds_read_u8 v8, v0", lambda x: x >> 16 & 255),
    ("ds_write_b16_d16_hi v0, v4", "ds_read_u16 v8, v0", lambda x: x >> 16),
    ("ds_write_b32 v0, v4", "ds_read_b32 v8, v0", lambda x: x),
    ("ds_write_b8 v0, v4", "ds_read_i8 v8, v0", lambda x: (x & 255 ^ 128) - 128 & M32),
    ("ds_write_b16 v0, v4", "ds_read_i16 v8, v0", lambda x: (x & 0xFFFF ^ 0x8000) - 0x8000 & M32),
    (
        "ds_write_b8 v0, v4",
        "ds_read_u8_d16 v9, v0\nv_mov_b32_e32 v8, v9",
        lambda x: x & 255 | OLD & 0xFFFF0000,
    ),
    (
        "ds_write_b16 v0, v4",
        "ds_read_u16_d16_hi v9, v0\nv_mov_b32_e32 v8, v9",
        lambda x: x << 16 & M32 | OLD & 0xFFFF,
    ),
]


@pytest.mark.parametrize(("store", "load", "fn"), LDS_PAIRS, ids=lambda x: str(x)[:24])
def test_lds_of_up_to_a_word(store: str, load: str, fn: object) -> None:
    a = integers(5)
    made = wave({0: LANE[::-1] * 8, 4: a, 9: OLD}, lds=1024)
    head, _, tail = load.partition("\n")
    run(made, f"{store}\n{head}\ns_waitcnt lgkmcnt(0)\n{tail}")
    assert callable(fn)
    assert read(made, 8).tolist() == [fn(int(x)) for x in a]


LDS_WIDE = {
    "ds_write_b64 v0, v[4:5]": ("ds_read_b64 v[8:9], v0", [0, 4]),
    "ds_write_b96 v0, v[4:6]": ("ds_read_b96 v[8:10], v0", [0, 4, 8]),
    "ds_write_b128 v0, v[4:7] offset:64": ("ds_read_b128 v[8:11], v0 offset:64", [64, 68, 72, 76]),
    "ds_write2_b32 v0, v4, v5 offset0:2 offset1:5": (
        "ds_read2_b32 v[8:9], v0 offset0:2 offset1:5",
        [8, 20],
    ),
    "ds_write2_b64 v0, v[4:5], v[6:7] offset1:3": (
        "ds_read2_b64 v[8:11], v0 offset1:3",
        [0, 4, 24, 28],
    ),
    "ds_write2st64_b32 v0, v4, v5 offset1:9": ("ds_read2st64_b32 v[8:9], v0 offset1:9", [0, 2304]),
    "ds_write2st64_b64 v0, v[4:5], v[6:7] offset1:5": (
        "ds_read2st64_b64 v[8:11], v0 offset1:5",
        [0, 4, 2560, 2564],
    ),
}


@pytest.mark.parametrize("store", LDS_WIDE)
def test_lds_of_several_words(store: str) -> None:
    load, places = LDS_WIDE[store]
    words = [integers(i) for i in range(4)]
    made = wave({0: LANE * 32, **{4 + i: x for i, x in enumerate(words)}}, lds=8192)
    run(made, f"{store}\n{load}\ns_waitcnt lgkmcnt(0)")
    for i, place in enumerate(places):
        assert read(made, 8 + i).tolist() == words[i].tolist()
        where = np.add.outer(LANE * 32 + place, np.arange(4))
        assert made.local.octets.data[where].view(np.uint32)[:, 0].tolist() == words[i].tolist()


@pytest.mark.parametrize("bits", [4, 8, 16])
def test_transposing_loads(bits: int) -> None:
    """16 lanes read 16 columns row by row, and lane n of them gets column n."""
    texts = {
        4: "ds_read_b64_tr_b4 v[8:9], v0",
        8: "ds_read_b64_tr_b8 v[8:9], v0",
        16: "ds_read_b64_tr_b16 v[8:9], v0",
    }
    low, high = integers(1), integers(2)
    made = wave({0: LANE[::-1] * 8, 4: low, 5: high}, lds=512)
    run(made, f"ds_write_b64 v0, v[4:5]\n{texts[bits]}\ns_waitcnt lgkmcnt(0)")
    count = 64 // bits
    for group in range(4):
        stream = [
            (int(low[n]) | int(high[n]) << 32) >> bits * i & (1 << bits) - 1
            for n in range(16 * group, 16 * group + 16)
            for i in range(count)
        ]
        for n in range(16):
            column = stream[n::16]
            assert len(column) == count
            value = sum(x << bits * i for i, x in enumerate(column))
            got = read(made, 8, 2)[16 * group + n]
            assert int(got[0]) | int(got[1]) << 32 == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "ds_read_b32 v4, v0",
            "LDS load of 4 bytes at 256, of which the workgroup has 256, lane 63",
        ),
        ("ds_write_b64 v0, v[4:5]", "LDS store of 8 bytes at 256"),
        ("ds_read_b128 v[4:7], v0 offset:65520", "LDS load of 16 bytes at 65520"),
    ],
)
def test_outside_of_lds(text: str, message: str) -> None:
    with pytest.raises(EmulationError, match=message):
        execute(text, {0: LANE * 4 + 4 * (LANE == 63), 4: 0, 5: 0}, lds=256)


def test_lds_starts_undefined() -> None:
    made = wave({0: LANE * 4, 4: 7}, lds=256)
    run(made, "ds_write_b8 v0, v4\nds_read_b32 v5, v0\nds_read_u8 v6, v0\ns_waitcnt lgkmcnt(0)")
    assert read(made, 6).tolist() == [7] * 64
    run(made, "v_and_b32_e32 v7, 0xff, v5")
    assert read(made, 7).tolist() == [7] * 64
    with pytest.raises(EmulationError, match="undefined"):
        read(made, 5)


def test_undefined_values_are_neither_stored_nor_addresses() -> None:
    made = buffer_wave(octets(), LANE * 4)
    with pytest.raises(EmulationError, match="store of v9, undefined"):
        run(made, "buffer_store_dword v9, v0, s[0:3], 0 offen")
    with pytest.raises(EmulationError, match="address is undefined"):
        run(made, "buffer_load_dword v4, v9, s[0:3], 0 offen")
    with pytest.raises(EmulationError, match="descriptor"):
        run(made, "buffer_load_dword v4, v0, s[8:11], 0 offen")


def two_waves() -> tuple[Wave, Wave, Lds]:
    local = Lds(512)
    a = wave({0: LANE * 4, 4: 1}, local=local)
    b = wave({0: LANE * 4, 4: 2}, local=local, number=1)
    return a, b, local


def test_races_between_waves() -> None:
    a, b, local = two_waves()
    run(a, "ds_write_b32 v0, v4\ns_waitcnt lgkmcnt(0)")
    with pytest.raises(EmulationError, match="written by another wave"):
        run(b, "ds_read_b32 v5, v0")
    with pytest.raises(EmulationError, match="written by another wave"):
        run(b, "ds_write_b32 v0, v4")
    local.release([a, b])
    run(b, "ds_read_b32 v5, v0\ns_waitcnt lgkmcnt(0)")
    assert read(b, 5).tolist() == [1] * 64
    with pytest.raises(EmulationError, match="read by another wave"):
        run(a, "ds_write_b32 v0, v4")


def test_a_barrier_without_the_wait_before_it() -> None:
    a, b, local = two_waves()
    run(a, "ds_write_b32 v0, v4")  # may reach LDS after the barrier
    local.release([a, b])
    with pytest.raises(EmulationError, match="written by another wave"):
        run(b, "ds_read_b32 v5, v0")
    a, b, local = two_waves()
    run(a, "ds_write_b32 v0, v4\ns_waitcnt lgkmcnt(0)\nds_read_b32 v5, v0")
    local.release([a, b])
    with pytest.raises(EmulationError, match="read by another wave"):
        run(b, "ds_write_b32 v0, v4")


@pytest.mark.parametrize("wide", [False, True])
def test_loads_into_lds(wide: bool) -> None:
    data, stride = octets(), 16 if wide else 4
    made = buffer_wave(data, LANE[::-1] * 16, lds=2048)
    other = wave({0: LANE * stride + 96}, local=made.local, number=1)
    made.put_scalar(M0, 64)
    load = (
        "buffer_load_dwordx4 v0, s[0:3], 0 offen offset:32 lds"
        if wide
        else ("buffer_load_dword v0, s[0:3], 0 offen offset:32 lds")
    )
    run(made, load)
    with pytest.raises(EmulationError, match="load into them"):
        run(other, "ds_read_b32 v4, v0")
    run(made, "s_waitcnt vmcnt(0)")
    made.local.release([made, other])
    run(other, "ds_read_b32 v4, v0\ns_waitcnt lgkmcnt(0)")
    assert read(other, 4).tolist() == expected(data, LANE[::-1] * 16 + 32, 4)


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
    made.put(4, 1)
    with pytest.raises(EmulationError, match="two workgroups"):
        run(made, "buffer_store_dword v4, v0, s[0:3], 0 offen")
