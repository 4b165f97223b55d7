"""Tables of plans: what is found in them, the user's own, and what is wrong with one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mxfp4_ops.backends.devices import Target
from mxfp4_ops.backends.triton.plan import ProductPlan, found_plan, product_plan
from mxfp4_ops.tuning import lookup

GPU = Target("sm_123", 100)
N, K = 4096, 8192
CONFIGS = Path(lookup.__file__).parent / "configs"

few: dict[str, Any] = {
    "block_m": 16,
    "block_n": 64,
    "blocks": 8,
    "split_k": 1,
    "num_warps": 4,
    "fused": True,
}
many: dict[str, Any] = {"block_m": 64, "block_n": 128, "blocks": 1, "num_warps": 8, "fused": False}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(lookup, "directory", str(tmp_path))
    lookup.table.cache_clear()
    yield tmp_path
    lookup.table.cache_clear()


def record(m: int, **others: Any) -> dict[str, Any]:
    return {"m": m, "provenance": "measured on a GPU of the tests", **others}


def write(folder: Path, *plans: dict[str, Any], **others: Any) -> Path:
    content = {"architecture": GPU.arch, "compute_units": GPU.compute_units}
    content |= {"products": [{"n": N, "k": K, "plans": list(plans)}], **others}
    path = folder / f"{GPU.arch}.json"
    path.write_text(json.dumps(content))
    lookup.table.cache_clear()
    return path


def find(m: int, n: int = N, op: str = "quant_mm") -> tuple[ProductPlan, str]:
    found = found_plan(op, m, n, K, GPU)
    return found.plan, found.origin


def by_rule(m: int, n: int = N) -> ProductPlan:
    return product_plan(m, n, K, GPU.compute_units)


def test_the_sizes_of_an_entry(folder: Path) -> None:
    path = write(folder, record(16, plan=few), record(256, plan=many))
    for m, plan in ((16, few), (256, many)):
        found, origin = find(m)
        assert found == ProductPlan(**plan)
        assert origin.startswith("table, these sizes")
        assert all(part in origin for part in (str(path), f"M={m} N={N} K={K}", "measured on"))


def test_an_entry_is_used_as_it_is(folder: Path) -> None:
    """Also where no rule would make such a plan: it was measured."""
    odd = {**few, "block_m": 64, "split_k": 16, "fused": False}
    write(folder, record(4, plan=odd))
    assert find(4)[0] == ProductPlan(**odd)
    assert find(5)[0] == by_rule(5)


@pytest.mark.parametrize(
    ("m", "entry"),
    [(9, 8), (11, 8), (12, 16), (1, 8), (17, 16), (32, 16), (33, None), (64, None), (65, 256),
     (500, 256), (512, 256), (513, None)],
)  # fmt: skip
def test_the_nearest_rows(folder: Path, m: int, entry: int | None) -> None:
    """Up to twice as many tiles, and in as many passes as by rule."""
    plans = {8: {**few, "block_n": 32}, 16: few, 256: many}
    write(folder, *(record(m, plan=plan) for m, plan in plans.items()))
    found, origin = find(m)
    if entry is None:
        assert found == by_rule(m)
        assert origin.startswith("rule, for")
        assert "so many rows" in origin
    else:
        assert found == ProductPlan(**plans[entry])
        assert origin.startswith("table, nearest M")
        assert f"M={entry} " in origin


def test_splits_must_not_wait(folder: Path) -> None:
    split = {**few, "block_n": 256, "split_k": 5}  # 16 tiles for 16 rows
    write(folder, record(16, plan=split))
    assert find(16)[0] == find(9)[0] == ProductPlan(**split)
    assert find(17)[0] == by_rule(17)


def test_no_high_tile_for_few_rows(folder: Path) -> None:
    write(folder, record(64, plan={**few, "block_m": 64}))
    assert find(33)[0].block_m == 64
    assert find(32)[0] == by_rule(32)


def test_a_second_choice(folder: Path) -> None:
    """The nearest entry does not carry over, the next does."""
    write(folder, record(24, plan={**few, "block_m": 64}), record(12, plan=few))
    assert find(18)[0] == ProductPlan(**few)


def test_entries_of_other_backends_are_no_plans(folder: Path) -> None:
    write(folder, record(16, backend="aiter"), record(12, plan=few))
    assert find(16)[0] == ProductPlan(**few)
    assert lookup.plans(GPU.arch, ProductPlan) == {(12, N, K): ProductPlan(**few)}


def test_products_of_codes_take_plans_without_quantising(folder: Path) -> None:
    write(folder, record(16, plan=few), record(256, plan=many))
    assert find(256, op="mm")[0] == ProductPlan(**many)
    assert find(16, op="mm")[0] == replace(by_rule(16), fused=False)


def test_other_columns_and_compute_units(folder: Path) -> None:
    write(folder, record(16, plan=few))
    plan, origin = find(16, N + 16)
    assert plan == by_rule(16, N + 16)
    assert f"nothing for N={N + 16}" in origin
    smaller = found_plan("quant_mm", 16, N, K, replace(GPU, compute_units=90))
    assert smaller.plan == product_plan(16, N, K, 90)
    assert "for 100 compute units" in smaller.origin
    unknown = found_plan("quant_mm", 16, N, K, Target("sm_999", 100))
    assert "no table for sm_999" in unknown.origin


@given(m=st.integers(0, 1 << 14), n=st.integers(0, 1 << 14))
def test_without_entries_the_rule_decides(m: int, n: int) -> None:
    assert found_plan("quant_mm", m, n, K, GPU).plan == by_rule(m, n)


def test_the_users_table_stands_in_for_ours(folder: Path) -> None:
    ours = lookup.table("gfx950")
    assert ours is not None
    assert len(list(ours)) > 1
    content = json.loads((CONFIGS / "gfx950.json").read_text())
    content["products"] = content["products"][:1]
    own = folder / "gfx950.json"
    own.write_text(json.dumps(content))
    lookup.table.cache_clear()
    table = lookup.table("gfx950")
    assert table is not None
    assert table.source == str(own)
    assert len(table.entries) == 1


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"architecture": "sm_90"}, r"the file: 'architecture' must be 'sm_123'"),
        ({"compute_units": "100"}, r"the file: 'compute_units' must be a whole number.*'100'"),
        ({"products": None}, r"the file: "),
        ({"products": [{"n": 16}]}, r"products\[0\]: 'k' must be"),
        ({"products": [{"n": 16, "k": 32}]}, r"products\[0\]: there is no 'plans'"),
        ({"products": [{"n": 0, "k": 32, "plans": []}]}, r"products\[0\]: 'n' must be.*not 0"),
    ],
)
def test_malformed_files(folder: Path, change: dict[str, Any], complaint: str) -> None:
    path = write(folder, **change)
    with pytest.raises(ValueError, match=rf"{path} is malformed at {complaint}"):
        find(16)


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"m": 0, "plan": few}, "'m' must be a whole number, at least 1, not 0"),
        ({"m": True, "plan": few}, "'m' must be a whole number"),
        ({"plan": few, "backend": "aiter"}, "there must be either a 'plan' or a 'backend'"),
        ({}, "there must be either a 'plan' or a 'backend'"),
        ({"plan": few, "provenance": ""}, "'provenance' must say"),
        ({"plan": {**few, "block_m": 16.0}}, "'block_m' must be a whole number, not 16.0"),
        ({"plan": [16, 64]}, ""),
        (None, ""),
    ],
)
def test_malformed_entries(folder: Path, wrong: dict[str, Any] | None, complaint: str) -> None:
    entry: Any = None if wrong is None else {**record(16), **wrong}
    path = write(folder, record(8, plan=few), entry)
    where = rf"products\[0\].plans\[1\] \(N={N} K={K}\): {complaint}"
    with pytest.raises(ValueError, match=rf"{path} is malformed at {where}"):
        find(8)


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"block_m": 24}, "powers of two"),
        ({"block_m": 8}, "too small"),
        ({"split_k": 0}, "too small"),
        ({"tile": 3}, "tile"),
    ],
)
def test_plans_that_no_kernel_has(folder: Path, wrong: dict[str, int], complaint: str) -> None:
    path = write(folder, record(16, plan={**few, **wrong}))
    with pytest.raises(ValueError, match=rf"{path}, M=16 N={N} K={K}: .*{complaint}"):
        find(16)


def test_no_json(folder: Path) -> None:
    write(folder).write_text("{")
    with pytest.raises(ValueError, match=r"sm_123\.json is malformed at the file"):
        find(16)


def test_a_directory_that_is_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "directory", str(folder / "missing"))
    with pytest.raises(ValueError, match=r"MXFP4_OPS_CONFIG_DIR is .*missing"):
        find(16)


def test_the_variable_is_read_once(tmp_path: Path) -> None:
    code = (
        "import os, mxfp4_ops; from mxfp4_ops.tuning import lookup\n"
        "os.environ['MXFP4_OPS_CONFIG_DIR'] = 'elsewhere'; print(lookup.directory)"
    )
    environment = os.environ | {
        "MXFP4_OPS_CONFIG_DIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    command = [sys.executable, "-c", code]
    printed = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    assert printed.stdout.strip() == str(tmp_path)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.json")), ids=lambda path: path.stem)
def test_shipped_tables(path: Path) -> None:
    """Each entry says how it was found, and no two are for the same product."""
    table = lookup.read(path, path.stem)
    sizes = [(entry.m, entry.n, entry.k) for entry in table]
    assert sizes
    assert len(set(sizes)) == len(sizes)
    assert all(k % 32 == 0 for _, _, k in sizes)
    if path.stem.startswith("sm_"):
        pytest.importorskip("triton", reason="Triton is not installed")
        from mxfp4_ops.backends.triton.nvidia.plan import Plan

        assert len(lookup.plans(path.stem, Plan)) == len(sizes)


def test_figures_of_other_kernels_are_kept_apart() -> None:
    """They were tuned on an MI355X, and they plan no call."""
    content = json.loads((CONFIGS / "gfx950.json").read_text())
    others = content["other_kernels"]["kernels"]
    tuned = {(p["m"], p["n"], p["k"]) for kernel in others for p in kernel["products"]}
    assert tuned == {
        (4, 2880, 512), (16, 2112, 7168), (32, 4096, 512),
        (32, 2880, 512), (64, 7168, 2048), (256, 3072, 1536),
    }  # fmt: skip
    for kernel in others:
        assert "MI355X" in kernel["provenance"]
    for product in content["products"]:
        for plan in product["plans"]:
            how = plan["provenance"]
            assert "not timed on an MI355X" in how or how.startswith("measured on ")
