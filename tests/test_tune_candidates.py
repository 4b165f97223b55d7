"""Which plans the tuner tries, and for which products."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mxfp4_ops.backends import triton
from mxfp4_ops.backends.devices import Target
from mxfp4_ops.backends.triton.plan import product_plan
from mxfp4_ops.tuning import candidates, shapes
from mxfp4_ops.tuning.candidates import Shape

GPU = Target("sm_123", 100)

needs_gluon = pytest.mark.skipif(
    triton.BACKEND.unavailable() is not None or triton.interpreted(),
    reason="Triton is not installed, or it interprets",
)


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
