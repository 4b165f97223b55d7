"""The benchmarks, on tiny weights: that they measure what they say, not how fast anything is."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import oracle
import pytest
import torch
import typer
from common import activation, random_codes
from rich.progress import Progress
from torch import Tensor

from benchmarks import cpu, cpu_conversion, machine, measure, plot
from benchmarks.machine import LimitProgram, Limits, OtherLoad
from benchmarks.measure import ROUNDS, Candidate, take_turns
from benchmarks.peers import BASELINE, PEERS, Bound, Loaded, Peer
from benchmarks.peers.ggml import blocks
from benchmarks.peers.int4 import quantize_int4
from benchmarks.run import LEAST_COPIES, Run

ROOT = Path(__file__).parent.parent
SHAPES, SIZES = [(64, 256), (32, 128)], [1, 5]


@dataclass(frozen=True)
class Outcome:
    printed: str
    saved: dict[str, Any]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """What the command prints and saves, with all implementations that are installed."""
    saved = tmp_path_factory.mktemp("benchmark") / "cpu.json"
    command = [sys.executable, "-m", "benchmarks.cpu", "--no-limits", "--threads", "1"]
    command += ["--shapes", ",".join(f"{n}x{k}" for n, k in SHAPES)]
    command += ["--m", ",".join(map(str, SIZES)), "--seconds", "0", "--rotate-mb", "0"]
    command += ["--json", str(saved)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return Outcome(run.stdout, json.loads(saved.read_text()))


@pytest.mark.parametrize("name", PEERS)
def test_implementation(outcome: Outcome, name: str) -> None:
    (found,) = (i for i in outcome.saved["implementations"] if i["name"] == name)
    if found["reason"] is not None:
        pytest.skip(found["reason"])
    assert not [note for note in outcome.saved["notes"] if note.startswith(f"{name} ")]
    rows = [row for row in outcome.saved["rows"] if row["name"] == name]
    assert [(r["n"], r["k"], r["m"]) for r in rows] == [(*s, m) for s in SHAPES for m in SIZES]


def test_rows(outcome: Outcome) -> None:
    assert outcome.saved["machine"]["threads"] == 1
    rows = outcome.saved["rows"]
    ours = [row for row in rows if row["name"].startswith("mxfp4 (")]
    assert len(ours) == len(SHAPES) * len(SIZES)
    for row in rows:
        timing = row["timing"]
        assert 0 < timing["lower"] <= timing["median"] <= timing["upper"]
        assert timing["calls"] >= ROUNDS
        assert row["copies"] == LEAST_COPIES
        macs = row["m"] * row["n"] * row["k"]
        assert row["multiply_adds"] * timing["median"] == pytest.approx(macs)
        assert row["intensity"] * row["n"] * row["k"] * row["bits"] / 8 == pytest.approx(macs)
        if row["name"] == BASELINE:
            assert row["shares"]["speedup"] == 1


def test_tables(outcome: Outcome) -> None:
    for n, k in SHAPES:
        assert f"N = {n}, K = {k}" in outcome.printed
    for row in outcome.saved["rows"]:
        line = f"{row['m']}   {row['name']} "
        assert any(text.strip().startswith(line) for text in outcome.printed.splitlines())


class Fake(Peer):
    """Multiplies in float32 and then does what `spoil` says to the result."""

    weights, bits, activations = "float32", 32, "float32"

    def __init__(self, name: str, spoil: Any = lambda y: y) -> None:
        self.name = name
        self.spoil = spoil

    def load(self, weight: Tensor, copies: int, threads: int) -> Loaded:
        def bind(x: Tensor) -> Bound:
            return Bound([lambda: self.spoil(x @ weight.T)] * copies, Tensor.float)

        return Loaded(bind, weight, f"{copies} copies")


def measured(*peers: Peer, rotated: int = 0) -> Run:
    run = Run(peers, 1, 0.0, rotated, Progress(disable=True))
    run.shape(8, 32, [1, 3])
    return run


def notes(run: Run) -> list[str]:
    """All but those on how busy the machine was."""
    return [note for note in run.notes if not note.startswith("other processes")]


def test_other_load_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OtherLoad, "share", lambda _: 0.25)
    run = measured(Fake("right"))
    assert [row.others_busy for row in run.rows] == [0.25, 0.25]
    for note, m in zip(run.notes, (1, 3), strict=True):
        assert note.startswith("other processes took 25% of the processors' time")
        assert f"M = {m}, N = 8, K = 32" in note


def fails(_: Tensor) -> Tensor:
    raise RuntimeError("no such kernel")


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (torch.zeros_like, "relative error 1"),
        (lambda y: y * 1.1, "relative error 0.1"),
        (lambda y: y * math.nan, "relative error nan"),
        (lambda y: y.roll(1, -1), "relative error"),
        (fails, "no such kernel"),
    ],
)
def test_wrong_results_are_not_timed(spoil: Any, why: str) -> None:
    run = measured(Fake("right"), Fake("wrong", spoil))
    assert [row.name for row in run.rows] == ["right"] * 2
    for note, m in zip(notes(run), (1, 3), strict=True):
        assert note.startswith(f"wrong is not measured for M = {m}, N = 8, K = 32: {why}")


def test_every_copy_is_checked() -> None:
    calls = itertools.count(1)
    run = measured(Fake("wrong", lambda y: y if next(calls) % LEAST_COPIES else -y))
    assert not run.rows
    assert len(notes(run)) == 2


def test_what_cannot_be_measured() -> None:
    class Absent(Fake):
        def unavailable(self) -> str:
            return "not installed: absent"

    class Refusing(Fake):
        def refuses(self, n: int, k: int) -> str:
            return f"K = {k} is odd"

    run = measured(Absent("absent"), Refusing("refusing"), Fake("right"))
    reasons = {found.name: found.reason for found in run.found.values()}
    assert reasons == {"absent": "not installed: absent", "refusing": None, "right": None}
    assert notes(run) == ["refusing is not measured for N = 8, K = 32: K = 32 is odd"]
    assert {row.name for row in run.rows} == {"right"}


@pytest.mark.parametrize(("rotated", "copies"), [(0, 3), (3 * 1024, 3), (3 * 1024 + 1, 4)])
def test_copies_are_as_large_as_asked(rotated: int, copies: int) -> None:
    run = measured(Fake("right"), rotated=rotated)  # its weight takes 1024 bytes
    assert {row.copies for row in run.rows} == {copies}
    assert [found.detail for found in run.found.values()] == [f"{copies} copies"]


def test_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "SETTLE", 0.0)
    called: list[tuple[str, int]] = []

    def candidate(name: str) -> Candidate:
        calls = [lambda i=i: called.append((name, i)) for i in range(3)]
        return Candidate(Fake(name), Bound(calls, Tensor.float))

    candidates = [candidate(name) for name in "abc"]
    turns: list[int] = []
    take_turns(candidates, 0.0, lambda: turns.append(len(called)))
    assert len(turns) == 3 * ROUNDS
    # Within a turn one implementation is called, and in each round everyone has one turn.
    starts = [0, *turns[:-1]]
    names = ["".join({name for name, _ in called[a:b]}) for a, b in zip(starts, turns, strict=True)]
    rounds = [names[i : i + 3] for i in range(0, len(names), 3)]
    assert all(sorted(r) == ["a", "b", "c"] for r in rounds)
    assert len({tuple(r) for r in rounds}) > 1
    # Everyone goes round its copies.
    for name in "abc":
        copies = [i for n, i in called if n == name]
        assert copies == [i % 3 for i in range(len(copies))]
    # A call of each turn, the first one, is not timed.
    assert sum(len(c.times) for c in candidates) == len(called) - len(turns)


def test_blocks_of_ggml() -> None:
    codes, scales = random_codes(3, 64)
    halves = blocks(codes, scales).view(3, 2, 17)
    low, high = halves[..., 1:] & 15, halves[..., 1:] >> 4
    elements = torch.cat((low, high), -1).flatten(-2)  # element i beside element i + 16
    assert torch.equal(elements[..., 0::2] | elements[..., 1::2] << 4, codes)
    assert torch.equal(halves[..., 0], scales)


def test_int4() -> None:
    weight = activation(8, 256, dtype=torch.float32)
    weight[0, :64] = 0
    integers, scales, values = quantize_int4(weight, 32, torch.float32)
    assert integers.dtype == torch.int8
    assert integers.shape == (8, 8, 32)
    assert integers.abs().amax() == 7
    assert torch.equal((integers * scales).flatten(-2), values)
    half_step = scales / 2 * (1 + 1e-6)
    assert ((values - weight).unflatten(-1, (-1, 32)).abs() <= half_step).all()


LIMITS = Limits(read=1e9, read_rotated=2e9, multiply={"amx_int8": 8e12, "avx512_vnni": 1e12})


def test_floor() -> None:
    n, k = 64, 256
    codes, scales = random_codes(n, k)
    assert LIMITS.floor(1, n, k) == pytest.approx((codes.nbytes + scales.nbytes) / 1e9)
    assert LIMITS.floor(10**6, n, k) == pytest.approx(10**6 * n * k / 1e12)
    assert Limits(1e9, 1e9, {}).floor(1, n, k) is None
    faster = Limits(read=3e9, read_rotated=1e9, multiply={"amx_int8": 9e12, "avx512_vnni": 1e11})
    best = Limits(read=3e9, read_rotated=2e9, multiply={"amx_int8": 9e12, "avx512_vnni": 1e12})
    assert Limits.best_of([LIMITS, faster]) == best
    assert Limits.best_of([]) is None


class KnownLimits:
    """Limits that need no measurement."""

    def measure(self, threads: int, rotated: int) -> Limits:
        return LIMITS


def test_shares_and_plot(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cpu, "LimitProgram", KnownLimits)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    drawn = None if plot.unavailable() else tmp_path / "roofline.png"
    saved = tmp_path / "cpu.json"
    cpu.measure("64x256", "1,2", BASELINE, "", 1, 0.0, 0, True, saved, drawn)
    rows = json.loads(saved.read_text())["rows"]
    assert {row["m"] for row in rows} == {1, 2}
    for row in rows:
        time, shares = row["timing"]["median"], row["shares"]
        assert shares["floor"] == pytest.approx(LIMITS.floor(row["m"], 64, 256) / time)
        assert shares["multiply"] == pytest.approx(row["m"] * 64 * 256 / time / 1e12)
        # One row is limited by bandwidth here, so that its share of it is that of the floor.
        assert shares["read"] == (pytest.approx(shares["floor"]) if row["m"] == 1 else None)
    printed = capsys.readouterr().out
    assert "avx512_vnni: 1000 G/s" in printed
    assert "raise --rotate-mb" in printed  # the rotated weights are read at twice the speed
    if drawn is None:
        pytest.skip(f"the plot is not tested: {plot.unavailable()}")
    assert drawn.read_bytes().startswith(b"\x89PNG")


@pytest.fixture(scope="module")
def program() -> LimitProgram:
    try:
        return LimitProgram()
    except RuntimeError as error:
        pytest.skip(str(error))


def test_limits_are_measured(program: LimitProgram) -> None:
    found = program.measure(2, rotated=1 << 20, far=1 << 22, seconds=1e-4)
    assert found.read > 0
    assert found.read_rotated > 0
    assert all(rate > 0 for rate in found.multiply.values())
    if machine.describe(1, []).torch_isa in ("AVX2", "AVX512"):
        assert found.vector is not None


def test_limits_without_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(RuntimeError, match="there is no C\\+\\+ compiler 'no-such-compiler'"):
        LimitProgram()


def test_machine() -> None:
    found = machine.describe(3, ["no-such-package"])
    assert found.threads == 3
    assert found.cores >= 1
    assert found.versions.keys() == {"python", "mxfp4_ops", "torch"}


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="the system tells no processor times")
def test_other_load() -> None:
    load = OtherLoad()
    spin = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-c", spin], check=True)
    share = load.share()
    assert share is not None
    assert 0 < share <= 1


@pytest.mark.parametrize("text", ["4096", "4096x", "axb", "1x2x3", ""])
def test_bad_shapes(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="4096x4096"):
        cpu._shapes(text)


def test_names() -> None:
    assert cpu._named("all", ["a", "b"]) == ["a", "b"]
    assert cpu._named("b", ["a", "b"]) == ["b"]
    assert cpu._named("", ["a", "b"]) == []
    with pytest.raises(typer.BadParameter, match="'c' is none of a, b"):
        cpu._named("a,c", ["a", "b"])


def test_rounded_activations_are_those_of_the_format() -> None:
    from benchmarks.peers import QuantMm

    x = activation(4, 64, dtype=torch.float32)
    expected = oracle.decode(*oracle.quantize_tensor(x, "even"))
    assert torch.equal(QuantMm(None).rounded(x).double(), expected)


def test_conversions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_conversion, "SHAPE", (64, 256))
    monkeypatch.setattr(cpu_conversion, "REPEATS", 2)
    saved = tmp_path / "conversion.json"
    cpu_conversion.measure(megabytes=1, threads=1, path=saved)
    for found in json.loads(saved.read_text())["measurements"]:
        rates = (found["bytes"] / found["seconds"], found["beside_bytes"] / found["beside_seconds"])
        assert found["share"] == pytest.approx(rates[0] / rates[1])
