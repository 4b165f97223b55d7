"""The tuner: how it searches, what it makes of what it finds, and the command."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from mxfp4_ops import cli
from mxfp4_ops.backends.devices import Target
from mxfp4_ops.backends.triton.plan import ProductPlan, product_plan
from mxfp4_ops.tuning import candidates, command, lookup
from mxfp4_ops.tuning.bench import WrongResultError
from mxfp4_ops.tuning.candidates import Family, Shape
from mxfp4_ops.tuning.record import Record
from mxfp4_ops.tuning.search import WORTH, Result, search

GPU, CPU = Target("sm_123", 100), torch.device("cpu")
SHAPE = (16, 4096, 8192)
ON = "measured on a GPU of the tests"


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    monkeypatch.setattr(lookup, "directory", str(tmp_path))
    lookup.table.cache_clear()
    yield tmp_path
    lookup.table.cache_clear()


@dataclass
class Fake:
    """Candidates are whole numbers and take as many microseconds as they are far from `best`."""

    best: int = 0
    wrong: tuple[Any, ...] = ()
    times: dict[Any, float] = field(default_factory=dict)
    checked: list[Any] = field(default_factory=list)
    timed: list[Any] = field(default_factory=list)
    prepared: list[Any] = field(default_factory=list)
    now: float = 0

    def prepare(self, plans: Sequence[Any]) -> None:
        assert not set(plans) & set(self.checked)
        self.prepared += plans

    def check(self, candidate: Any) -> None:
        self.checked.append(candidate)
        self.now += 1
        if candidate in self.wrong:
            raise WrongResultError("compiled with a warning\n3 of 8 results are wrong")

    def time(self, candidate: Any) -> float:
        self.timed.append(candidate)
        return self.times.get(candidate) or 1 + abs(candidate - self.best)

    def clock(self) -> float:
        return self.now


def beside(candidate: int) -> Iterator[int]:
    yield from (candidate - 1, candidate + 1)


def found(fake: Fake, *starts: int, seconds: float = 1000, others: tuple[str, ...] = ()) -> Result:
    return search(Family(starts, beside), fake, seconds, others, fake.clock)


@given(st.integers(-20, 20), st.lists(st.integers(-20, 20), min_size=1, max_size=3))
def test_it_arrives_at_the_best(best: int, starts: list[int]) -> None:
    fake = Fake(best)
    result = found(fake, *starts)
    assert min(result.times, key=result.times.__getitem__) == best
    assert len(set(fake.checked)) == len(fake.checked), "tried twice"
    assert fake.checked == fake.timed == list(result.times)
    assert set(fake.checked) == {starts[0], *fake.prepared}


def test_a_wrong_result_is_never_timed() -> None:
    fake = Fake(best=5, wrong=(5,))
    result = found(fake, 3)
    assert 5 in fake.checked
    assert 5 not in fake.timed
    assert result.best == 4
    assert result.rejected == {5: "WrongResultError: 3 of 8 results are wrong"}


def test_nothing_that_is_right() -> None:
    result = found(Fake(wrong=(7, 8)), 7, 8)
    assert (result.best, list(result.rejected)) == (None, [7, 8])


def test_a_rule_that_does_not_run() -> None:
    result = found(Fake(best=1, wrong=(7,)), 7, 2)
    assert result.best == 1


def test_a_small_gain_is_none() -> None:
    rule, other = 7, 100
    for time, best in ((WORTH * 50 + 1e-6, rule), (WORTH * 50, other)):
        assert (
            found(
                Fake(times={rule: 50, 6: 60, 8: 60, 99: 60, 101: 60, other: time}), rule, other
            ).best
            == best
        )


def test_time_is_up() -> None:
    """The rule and other backends are tried in any case; nothing begins later."""
    fake = Fake(best=50, times={"aiter": 200})
    assert list(found(fake, 0, 1, seconds=0, others=("aiter",)).times) == [0, "aiter"]
    fake = Fake(best=50)
    assert len(found(fake, 0, seconds=5).times) == 5


def test_another_backend_may_be_the_best() -> None:
    """The search goes on from the best plan all the same."""
    fake = Fake(best=3, times={"aiter": 0.5})
    result = found(fake, 0, others=("aiter",))
    assert result.best == "aiter"
    assert 3 in result.times
    slow = Fake(best=3, times={"aiter": 100.0})
    assert found(slow, 0, others=("aiter",)).best == 3


def tuned(
    folder: Path, *products: Shape, again: bool = False, best: int = 32, **fake: Any
) -> tuple[list[str], list[Shape]]:
    """What is told of products and which of them were measured; plans differ in `block_n`."""
    measured = []

    class Plans(Fake):
        def time(self, plan: ProductPlan) -> float:
            return 10 + abs(plan.block_n - self.best)

    def make_bench(shape: Shape, *_: Any) -> Fake:
        measured.append(shape)
        if shape == fake.get("interrupted"):
            raise KeyboardInterrupt
        return Plans(best, wrong=fake.get("wrong", ()))

    family = candidates.family
    told = command.tune_all(
        products, Record(folder, GPU, ON), CPU, GPU, 1000, again, family, make_bench
    )
    return told, measured


def test_tuning(fresh: Path) -> None:
    products = (SHAPE, (64, 512, 256))
    told, measured = tuned(fresh, *products, best=64)
    assert measured == list(products)
    assert "10 us, by rule" in told[0]
    lookup.table.cache_clear()
    plans = lookup.plans(GPU.arch, ProductPlan)
    assert [plans[shape].block_n for shape in products] == [64, 64]


def test_an_interruption(fresh: Path) -> None:
    """What was finished is kept, and not measured again."""
    products = [SHAPE, (64, 512, 256), (1, 512, 256)]
    with pytest.raises(KeyboardInterrupt):
        tuned(fresh, *products, interrupted=products[1])
    told, measured = tuned(fresh, *products)
    assert measured == products[1:]
    assert told[0].endswith("measured before")
    assert tuned(fresh, *products, again=True)[1] == products


def test_nothing_runs(fresh: Path) -> None:
    rule = product_plan(*SHAPE, GPU.compute_units)
    neighbours = candidates.family(SHAPE, GPU, False).neighbours(rule)
    told, _ = tuned(fresh, SHAPE, wrong=(rule, *neighbours))
    assert "nothing ran (WrongResultError" in told[0]
    assert not list(fresh.iterdir())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu() -> None:
    result = CliRunner().invoke(cli.app, ("tune", "--shape", "64x64"))
    assert result.exit_code == 1
    assert "no GPU" in result.stdout


@pytest.mark.parametrize(
    "arguments",
    [(), ("--shape", "64"), ("--shape", "64x33"), ("--shape", "64x64", "--m", "0")],
    ids=" ".join,
)
def test_wrong_arguments(arguments: tuple[str, ...]) -> None:
    result = CliRunner().invoke(cli.app, ("tune", *arguments))
    assert result.exit_code == 2


def test_products_of_all_sources(tmp_path: Path) -> None:
    model, recorded = tmp_path / "config.json", tmp_path / "shapes.txt"
    model.write_text(json.dumps({"hidden_size": 64, "num_attention_heads": 2}))
    recorded.write_text("7 32 32\n1 64 64\n")
    found = command._products(["96x32"], model, recorded, "1,2")
    assert found == [(1, 96, 32), (2, 96, 32), (1, 64, 64), (2, 64, 64), (7, 32, 32)]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_tuning_on_a_gpu(fresh: Path) -> None:
    arguments = ("--shape", "512x512", "--m", "4,128", "--seconds", "1", "--out", str(fresh))
    result = CliRunner().invoke(cli.app, ("tune", *arguments))
    assert result.exit_code == 0, result.output
    (path,) = fresh.glob("*.json")
    written = lookup.read(path, path.stem)
    measured = [entry for entry in written if entry.provenance.startswith("measured on")]
    assert {(4, 512, 512), (128, 512, 512)} <= {(e.m, e.n, e.k) for e in measured}
    assert all(entry.microseconds and entry.microseconds > 0 for entry in measured)
