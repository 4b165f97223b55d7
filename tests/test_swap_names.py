"""Choosing what `swap_linear` swaps by name and by function."""

from __future__ import annotations

import warnings

import pytest
from linears import Lm, float_mlp, linears, swap
from torch import nn

from mxfp4_ops.swap_plan import matches


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("lm_head", "lm_head", True),
        ("lm_head", "model.lm_head", True),
        ("lm_head", "lm_head.dense", True),
        ("lm_head", "my_lm_head", False),
        ("lm_head", "lm_head2", False),
        ("layers.1", "model.layers.1.mlp.up", True),
        ("layers.1", "layers.1", True),
        ("layers.1", "layers.10", False),
        ("layers.1", "layers.10.mlp", False),
        ("layers.1", "layers.mlp.1", False),
        ("layers.1", "my_layers.1", False),
        ("layers.*.mlp", "model.layers.10.mlp.up", True),
        ("layers.*.mlp", "layers.mlp", False),
        ("layers.*.mlp", "layers.1.attn.mlp", False),
        ("layers.[0-3]", "layers.2.attn", True),
        ("layers.[0-3]", "layers.4.attn", False),
        ("*_proj", "layers.0.q_proj", True),
        ("*_proj", "layers.0.proj", False),
        ("Attn", "attn", False),
        ("a.b.c", "a.b", False),
    ],
)
def test_patterns(pattern: str, name: str, expected: bool) -> None:
    assert matches(pattern, name) is expected


def test_skip() -> None:
    model = Lm()
    report = swap(model, skip=("layers.1", "layers.*.mlp.up", "embed"))
    for name, layer in linears(model).items():
        kept = name.startswith("layers.1.") or name.endswith("up")
        assert (type(layer) is nn.Linear) is kept, name
        assert (name in report.skipped) is kept
        assert (name in report.swapped) is not kept
    assert report.skipped["layers.1.attn"] == "skip pattern 'layers.1'"
    assert report.skipped["layers.10.mlp.up"] == "skip pattern 'layers.*.mlp.up'"


def test_idle_pattern_warns_at_the_caller() -> None:
    with pytest.warns(UserWarning, match=r"skip pattern 'layers\.5' matches no module") as caught:
        swap(Lm(2), skip=("lm_head", "layers.5", "layers.*.attn"))
    assert [w.filename for w in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        swap(float_mlp())


def test_skip_must_be_a_list() -> None:
    with pytest.raises(ValueError, match="a list of patterns, got the string 'lm_head'"):
        swap(float_mlp(), skip="lm_head")


def test_filter_fn() -> None:
    model = Lm(2)
    asked = {}

    def wide(name: str, module: nn.Module) -> bool:
        asked[name] = module
        return isinstance(module, nn.Linear) and module.out_features > 32

    before = linears(model)
    report = swap(model, filter_fn=wide)
    assert report.swapped == ["layers.0.mlp.up", "layers.1.mlp.up"]
    assert {n for n, reason in report.skipped.items() if reason == "filter_fn"} == {
        f"layers.{i}.{layer}" for i in (0, 1) for layer in ("attn", "mlp.down")
    }
    assert asked == {n: m for n, m in before.items() if n != "lm_head"}
