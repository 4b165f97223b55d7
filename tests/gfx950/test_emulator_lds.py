"""LDS in the emulator: values, bounds, undefined bytes, and races between waves."""

from __future__ import annotations

import numpy as np
import pytest

from .emulator import EmulationError
from .emulator.lds import Lds
from .emulator.operands import M0
from .emulator.wave import Wave
from .one_buffer import LANE, M32, OLD, buffer_wave, expected, octets
from .single import execute, integers, read, run, wave

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


def test_negative_addresses_with_an_offset() -> None:
    a = integers(1)
    made = wave({0: (LANE * 4 - 512) & M32, 4: a}, lds=256)
    run(made, "ds_write_b32 v0, v4 offset:512\nds_read_b32 v5, v0 offset:512\ns_waitcnt lgkmcnt(0)")
    assert read(made, 5).tolist() == a.tolist()
    assert made.local.octets.data.view(np.uint32).tolist() == a.tolist()


def test_lds_starts_undefined() -> None:
    made = wave({0: LANE * 4, 4: 7}, lds=256)
    run(made, "ds_write_b8 v0, v4\nds_read_b32 v5, v0\nds_read_u8 v6, v0\ns_waitcnt lgkmcnt(0)")
    assert read(made, 6).tolist() == [7] * 64
    run(made, "v_and_b32_e32 v7, 0xff, v5")
    assert read(made, 7).tolist() == [7] * 64
    with pytest.raises(EmulationError, match="undefined"):
        read(made, 5)


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
