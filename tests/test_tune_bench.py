"""The tuner's bench, with candidates that run on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mxfp4_ops.backends import triton
from mxfp4_ops.backends.devices import Target
from mxfp4_ops.backends.triton.plan import ProductPlan
from mxfp4_ops.formats import quantize_reference
from mxfp4_ops.tuning import bench as bench_module
from mxfp4_ops.tuning.bench import GpuBench, WrongResultError

CPU = torch.device("cpu")

needs_gluon = pytest.mark.skipif(
    triton.BACKEND.unavailable() is not None or triton.interpreted(),
    reason="Triton is not installed, or it interprets",
)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> GpuBench:
    monkeypatch.setattr(bench_module, "_cache_bytes", lambda device: 0)
    monkeypatch.setattr(bench_module, "COLUMNS", 32)
    return GpuBench((5, 40, 288), CPU, Target("cpu"), shuffled=False)


def test_right_results_are_right(bench: GpuBench) -> None:
    bench.check("reference")


@pytest.mark.parametrize("uneven", [False, True])
def test_activations(monkeypatch: pytest.MonkeyPatch, uneven: bool) -> None:
    """Only those of uneven rows have block scales that differ by more than 2**3."""
    monkeypatch.setattr(bench_module, "_cache_bytes", lambda device: 0)
    bench = GpuBench((5, 40, 2048), CPU, Target("cpu"), False, uneven)
    for x in bench.x:
        scales = quantize_reference(x)[1].int()
        spread = scales.max(1).values - scales.min(1).values
        assert (spread > 3).all() == (spread > 3).any() == uneven
    for _, scales in bench.weights:
        assert scales.max().int() - scales.min().int() <= 3


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
