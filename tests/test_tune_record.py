"""The table that the tuner writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from mxfp4_ops.backends.devices import Target
from mxfp4_ops.backends.triton.plan import ProductPlan
from mxfp4_ops.tuning import lookup
from mxfp4_ops.tuning.record import Record

GPU = Target("sm_123", 100)
SHAPE = (16, 4096, 8192)


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
