"""The tuner: what it tries, what it makes of it, and the table that it writes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from mxfp4_ops import cli
from mxfp4_ops.backends import triton
from mxfp4_ops.backends.devices import Target
from mxfp4_ops.backends.triton.plan import ProductPlan, product_plan
from mxfp4_ops.tuning import bench as bench_module
from mxfp4_ops.tuning import candidates, command, lookup, shapes
from mxfp4_ops.tuning.bench import GpuBench, WrongResultError
from mxfp4_ops.tuning.candidates import Family, Shape
from mxfp4_ops.tuning.record import Record
from mxfp4_ops.tuning.search import WORTH, Result, search

GPU, CPU = Target("sm_123", 100), torch.device("cpu")
SHAPE = (16, 4096, 8192)

needs_gluon = pytest.mark.skipif(
    triton.BACKEND.unavailable() is not None or triton.interpreted(),
    reason="Triton is not installed, or it interprets",
)


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


# Candidates.

sizes = st.tuples(
    st.integers(1, 4096), st.integers(1, 32768), st.integers(1, 512).map(lambda b: 32 * b)
)


@settings(deadline=None)
@given(sizes)
def test_portable_candidates(shape: Shape) -> None:
    family = candidates.family(shape, GPU, shuffled=False)
    rule = family.starts[0]
    assert rule == product_plan(*shape, GPU.compute_units)
    m, _, k = shape
    plans = list(family.neighbours(rule))
    assert rule not in plans
    assert len(set(plans)) == len(plans)
    for plan in plans:
        assert plan.num_warps > 1
        assert (plan.split_k - 1) * plan.blocks_per_split(k) < max(k // 32, 1)
        assert plan.block_m <= max(16, 2 * m)
        changed = [a for a, value in vars(plan).items() if value != getattr(rule, a)]
        assert len(changed) == 1
    # What can be reached can be left again.
    assert all(rule in set(family.neighbours(p)) for p in plans if p.split_k == rule.split_k)


@needs_gluon
@settings(deadline=None)
@given(sizes, st.booleans())
def test_gfx950_candidates(shape: Shape, shuffled: bool) -> None:
    from mxfp4_ops.backends.triton.gfx950.plan import can_run, quant_mm_plan

    target = Target("gfx950", 256)
    family = candidates.family(shape, target, shuffled)
    assert quant_mm_plan(*shape, shuffled) in family.starts
    for plan in family.neighbours(family.starts[0]):
        assert plan not in family.starts[:1]
        assert can_run(plan, shuffled)
        assert plan.num_warps > 1 or shape[1] <= 32
        assert plan.block_m * plan.block_n <= 64 * 64 * plan.num_warps


@needs_gluon
def test_tiles_of_other_kernels_are_tried_first() -> None:
    """As far as ours have such tiles."""
    from mxfp4_ops.backends.triton.gfx950.plan import Plan

    starts = candidates.family((16, 2112, 7168), Target("gfx950", 256), True).starts
    for split_k in (7, 14):
        assert Plan(True, 16, 128, 512, split_k=split_k) in starts
    elsewhere = candidates.family((16, 2112, 7168 + 32), Target("gfx950", 256), True).starts
    assert len(set(elsewhere)) == 1


# Shapes.


def test_weights() -> None:
    assert shapes.weight("4096x2048") == (4096, 2048)
    for wrong in ("4096", "4096x2048x1", "ax32", "0x32", "16x33", ""):
        with pytest.raises(ValueError, match="must be"):
            shapes.weight(wrong)


def test_recorded(tmp_path: Path) -> None:
    path = tmp_path / "shapes.txt"
    path.write_text("# M N K\n16 4096 2048\n1, 64, 32  # a head\n\n16x4096x2048\n")
    assert shapes.recorded(path) == [(16, 4096, 2048), (1, 64, 32)]
    path.write_text("16 4096\n")
    with pytest.raises(ValueError, match="16 4096 2048"):
        shapes.recorded(path)


LLAMA = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}
LLAMA_WEIGHTS = [(4096, 4096), (1024, 4096), (14336, 4096), (4096, 14336)]


@pytest.mark.parametrize(
    ("config", "weights"),
    [
        (LLAMA, LLAMA_WEIGHTS),
        ({"text_config": LLAMA, "hidden_size": 1}, LLAMA_WEIGHTS),
        (
            {**LLAMA, "head_dim": 256},
            [(8192, 4096), (2048, 4096), (4096, 8192), *LLAMA_WEIGHTS[2:]],
        ),
        ({"n_embd": 768, "n_head": 12, "n_inner": None}, [(768, 768)]),
        ({**LLAMA, "intermediate_size": 1000}, [*LLAMA_WEIGHTS[:2], (1000, 4096)]),
    ],
)  # fmt: skip
def test_models(tmp_path: Path, config: dict[str, Any], weights: list[tuple[int, int]]) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    assert shapes.of_model(path) == weights


def test_a_model_of_another_kind(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("{}")
    with pytest.raises(ValueError, match="hidden_size"):
        shapes.of_model(path)


# The table.


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    monkeypatch.setattr(lookup, "directory", str(tmp_path))
    lookup.table.cache_clear()
    yield tmp_path
    lookup.table.cache_clear()


FIGURES = {"microseconds": 12.5}
ON = "measured on a GPU of the tests"


def test_what_is_written_is_found(fresh: Path) -> None:
    table = Record(fresh, GPU, ON)
    plan = ProductPlan(16, 64, 8, split_k=3, num_stages=4)
    table.add(SHAPE, plan, "now", FIGURES)
    table.add((1, 32, 64), "aiter", "now", FIGURES)
    found = lookup.table(GPU.arch)
    assert found is not None
    first, second = found
    assert (first.title, first.microseconds) == (f"{fresh}/sm_123.json, M=16 N=4096 K=8192", 12.5)
    assert first.provenance == f"{ON}, now"
    assert second.backend == "aiter"
    assert lookup.plans(GPU.arch, ProductPlan) == {SHAPE: plan}
    assert [path.name for path in fresh.iterdir()] == ["sm_123.json"]


def test_a_table_grows(fresh: Path) -> None:
    plan = ProductPlan(16, 64, 8)
    for rows in (64, 4, 16, 4):
        Record(fresh, GPU, ON).add((rows, *SHAPE[1:]), plan, "now", FIGURES)
    found = lookup.table(GPU.arch)
    assert found is not None
    assert [entry.m for entry in found] == [4, 16, 64]


def test_what_was_measured(fresh: Path) -> None:
    table = Record(fresh, GPU, ON)
    assert not table.has(SHAPE)
    table.add(SHAPE, ProductPlan(16, 64, 8), "now", FIGURES)
    assert table.has(SHAPE)
    assert Record(fresh, GPU, ON).has(SHAPE)
    assert not Record(fresh, GPU, "measured on another").has(SHAPE)
    assert not table.has((16, 4096, 4096))


def test_a_new_table_begins_with_ours(fresh: Path) -> None:
    shipped = lookup.table("gfx950")
    assert shipped is not None
    Record(fresh, shipped.target, ON).add(SHAPE, "aiter", "now", FIGURES)
    lookup.table.cache_clear()
    grown = lookup.table("gfx950")
    assert grown is not None
    assert grown.source != shipped.source
    assert grown.entries.keys() == {*shipped.entries, SHAPE[1:]}
    assert "other_kernels" in json.loads((fresh / "gfx950.json").read_text())


def test_a_table_for_other_compute_units(fresh: Path) -> None:
    """Ours is left out, and the user's is not written into."""
    part = Target("gfx950", 32)
    Record(fresh, part, ON).add(SHAPE, "aiter", "now", FIGURES)
    lookup.table.cache_clear()
    found = lookup.table("gfx950")
    assert found is not None
    assert (found.target, list(found.entries)) == (part, [SHAPE[1:]])
    with pytest.raises(ValueError, match="for 32 compute units"):
        Record(fresh, Target("gfx950", 256), ON)


# All together.


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


# The bench, with candidates that run on the CPU.


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> GpuBench:
    monkeypatch.setattr(bench_module, "_cache_bytes", lambda device: 0)
    monkeypatch.setattr(bench_module, "COLUMNS", 32)
    return GpuBench((5, 40, 288), CPU, Target("cpu"), shuffled=False)


def test_right_results_are_right(bench: GpuBench) -> None:
    bench.check("reference")


def test_a_wrong_result_is_noticed(bench: GpuBench, monkeypatch: pytest.MonkeyPatch) -> None:
    right = bench._run("reference", 0)
    for change in (1.01, float("nan")):

        def run(candidate: Any, copy: int, change: float = change) -> Any:
            y = right().clone()
            y[4, 39] *= change
            return lambda: y

        monkeypatch.setattr(bench, "_run", run)
        with pytest.raises(WrongResultError, match="1 of 200"):
            bench.check("reference")


@pytest.mark.skipif(
    triton.BACKEND.unavailable() is not None or not triton.interpreted(),
    reason="Triton is not installed, or does not interpret",
)
def test_triton_plans_are_checked(bench: GpuBench) -> None:
    for plan in (ProductPlan(16, 32, 8), ProductPlan(16, 32, 1, split_k=3, fused=False)):
        bench.check(plan)


@needs_gluon
@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")  # of Triton 3.9
def test_plans_are_compiled_ahead(bench: GpuBench) -> None:
    """All but those that do not compile, which are left for the trial to reject."""
    from triton.compiler import CompilationError

    from benchmarks.gfx950.compile import driver_of

    good, bad = ProductPlan(16, 32, 1), ProductPlan(1024, 2048, 1)  # Triton has no such tile
    with driver_of("gfx942"):
        bench.prepare([good, bad])
        (launch,) = bench._launches(good, 0)[1]
        cached = launch.kernel.device_caches["absent gfx942"][0]
        before = len(cached)
        assert before > 0
        launch.compile()
        assert len(cached) == before
        with pytest.raises(CompilationError):
            bench._launches(bad, 0)[1][0].compile().result()  # as a launch of a future does


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
