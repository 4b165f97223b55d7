"""`report` measures what it says, on models small enough to work it out again."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from common import activation, generator, quantized_values
from torch import Tensor, nn

import mxfp4_ops
from benchmarks import accuracy, accuracy_plot
from benchmarks.machine import describe
from benchmarks.models import Missing
from mxfp4_ops.report import Report, report

ERRORS = ("weight", "own", "accumulated")


def models() -> tuple[nn.Sequential, nn.Sequential]:
    """Two layers with a dropout between, in MXFP4 and in float."""
    torch.manual_seed(0)
    float_model = nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Dropout(0.5), nn.Linear(96, 32))
    model = copy.deepcopy(float_model)
    mxfp4_ops.swap_linear(model, progress=False)
    return model, float_model


def relative(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).norm() / expected.norm())


def worked_out(x: Tensor, linear: nn.Module) -> tuple[Tensor, Tensor]:
    """The layer's output in float and with both sides quantised, in float64."""
    assert isinstance(linear, nn.Linear)
    weight, bias = linear.weight.detach(), linear.bias.detach().double()
    quantised = quantized_values(x.float()) @ quantized_values(weight).T + bias
    return x.double() @ weight.double().T + bias, quantised


def test_errors_of_layers_and_output() -> None:
    model, float_model = models()
    x = activation(50, 64, dtype=torch.float32)
    result = report(model, float_model, x)

    first, second = float_model[0], float_model[3]
    gelu = nn.GELU()
    float_hidden, hidden = worked_out(x, first)
    float_out, own_out = worked_out(gelu(float_hidden), second)
    _, out = worked_out(gelu(hidden), second)
    names = [(row.name, row.out_features, row.in_features) for row in result.rows]
    assert names == [("0", 96, 64), ("3", 32, 96)]
    expected = [
        (first.weight, relative(hidden, float_hidden), relative(hidden, float_hidden)),
        (second.weight, relative(own_out, float_out), relative(out, float_out)),
    ]
    # float32 sums, which may now and then round to another code, against float64.
    for row, (weight, own, accumulated) in zip(result.rows, expected, strict=True):
        assert isinstance(weight, Tensor)
        weight = weight.detach()
        assert row.weight == pytest.approx(relative(quantized_values(weight), weight.double()))
        assert row.own == pytest.approx(own, rel=1e-2)
        assert row.accumulated == pytest.approx(accumulated, rel=1e-2)
    assert result.output.error == pytest.approx(relative(out, float_out), rel=1e-2)
    cosine = torch.cosine_similarity(out, float_out, dim=-1).mean().item()
    assert result.output.cosine == pytest.approx(cosine, rel=1e-3)
    assert (result.output.top1, result.output.kl) == (None, None)


class Head(nn.Module):
    """Gives logits as Transformers' models do."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> SimpleNamespace:
        return SimpleNamespace(logits=self.body(x), attentions=None)


def test_logits() -> None:
    model, float_model = models()
    x = activation(9, 7, 64, dtype=torch.float32)
    result = report(Head(model), Head(float_model), x).output
    with torch.no_grad():
        ours, theirs = (m.eval()(x).double() for m in (model, float_model))
    p, q = theirs.softmax(-1), ours.softmax(-1)
    assert result.top1 == (ours.argmax(-1) == theirs.argmax(-1)).double().mean().item()
    assert result.top1 not in (0, 1)
    assert result.kl == pytest.approx((p * (p / q).log()).sum(-1).mean().item(), rel=1e-4)
    assert report(model, float_model, x, logits=True).output == result
    assert report(Head(model), Head(float_model), x, logits=False).output.top1 is None


def figures(result: Report) -> dict[str, float | None]:
    data = json.loads(result.to_json())
    rows = {f"{row['name']}.{key}": row[key] for row in data["layers"] for key in ERRORS}
    return rows | data["output"]


def test_batches_add_up() -> None:
    model, float_model = models()
    x = activation(10, 64, dtype=torch.float32)
    whole = report(model, float_model, x, logits=True)
    parts = report(model, float_model, [x[:3], (x[3:],)], logits=True)
    assert figures(parts) == pytest.approx(figures(whole), rel=1e-5)


def test_masked_positions_do_not_count() -> None:
    model, float_model = map(Head, models())
    x, mask = activation(4, 6, 64, dtype=torch.float32), torch.ones(4, 6, dtype=torch.int64)
    mask[1, 2:] = mask[3, 5:] = 0
    x[~mask.bool()] *= 1000
    masked = figures(report(model, float_model, {"x": x, "attention_mask": mask}))
    assert masked == pytest.approx(figures(report(model, float_model, x[mask.bool()])), rel=1e-5)
    unmasked = figures(report(model, float_model, {"x": x}))
    assert masked["body.3.own"] != pytest.approx(unmasked["body.3.own"], rel=1e-2)


class Twice(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(input=self.layer(x))  # the second time as a keyword


def test_a_layer_that_is_called_twice() -> None:
    torch.manual_seed(0)
    float_model = Twice(nn.Linear(64, 64))
    model = copy.deepcopy(float_model)
    mxfp4_ops.swap_linear(model, progress=False)
    x = activation(20, 64, dtype=torch.float32)
    (row,) = report(model, float_model, x).rows
    with torch.no_grad():
        theirs = [float_model.layer(x), float_model(x)]
        ours = [model.layer(x), model(x)]
        own = [model.layer(x), model.layer(theirs[0])]
    assert row.accumulated == pytest.approx(relative(torch.cat(ours), torch.cat(theirs)), rel=1e-5)
    assert row.own == pytest.approx(relative(torch.cat(own), torch.cat(theirs)), rel=1e-5)


def test_leaves_the_models_as_they_were() -> None:
    model, float_model = models()
    model.train()
    float_model.eval()[0].train()
    before = [[m.training for m in each.modules()] for each in (model, float_model)]
    states = copy.deepcopy([model.state_dict(), float_model.state_dict()])
    report(model, float_model, activation(3, 64, dtype=torch.float32))
    for each, state, modes in zip((model, float_model), states, before, strict=True):
        assert [m.training for m in each.modules()] == modes
        assert not any(m._forward_hooks for m in each.modules())
        assert all(torch.equal(t, state[name]) for name, t in each.state_dict().items())


def test_half_precision_and_numbers_that_are_none() -> None:
    model, float_model = (m.bfloat16() for m in models())
    x = activation(5, 64, dtype=torch.bfloat16)
    assert 0.01 < report(model, float_model, x).rows[0].own < 1
    x[2] = torch.nan
    result = report(model, float_model, x)
    assert math.isnan(result.rows[1].own)
    assert json.loads(result.to_json())["layers"][1]["own"] is None
    assert "nan" in str(result)


def test_zeros_are_no_error() -> None:
    linear = nn.Linear(32, 8, bias=False)
    nn.init.zeros_(linear.weight)
    layer = mxfp4_ops.Mxfp4Linear.from_linear(linear)
    model, float_model = nn.Sequential(layer), nn.Sequential(linear)
    (row,) = report(model, float_model, torch.ones(2, 32)).rows
    assert (row.weight, row.own, row.accumulated) == (0, 0, 0)
    layer.weight.fill_(1)
    layer.weight_scale.fill_(127)
    assert report(model, float_model, torch.ones(2, 32)).rows[0].own == math.inf


def test_views(tmp_path: Path) -> None:
    model, float_model = models()
    result = report(model, float_model, torch.randn(5, 64, generator=generator()), logits=True)
    text = str(result)
    for row in result.rows:
        line = next(line for line in text.splitlines() if f"│ {row.name} " in line)
        shape = f"{row.out_features} x {row.in_features}"
        for figure in (shape, *(f"{e:.4f}" for e in (row.weight, row.own, row.accumulated))):
            assert figure in line
    assert f"{result.output.top1:.2%}" in text
    assert f"{result.output.kl:.4f}" in text
    result.plot(tmp_path / "report.png")
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")


def test_a_real_model(tmp_path: Path) -> None:
    """As the benchmark measures it, on a few sentences."""
    try:
        results = list(accuracy.minilm(4))
    except Missing as missing:
        pytest.skip(str(missing))
    assert [result.settings for result in results] == [str(s) for s in accuracy.SETTINGS]
    for result in results:
        layers = result.report["layers"]
        assert len(layers) == 36
        assert all(0 < layer[key] < 1 for layer in layers for key in ERRORS)
    by_settings = {result.settings: result.report["output"]["error"] for result in results}
    assert by_settings["W4A16, even"] < by_settings["W4A4, even"]

    accuracy.save(describe(1, ["torch"]), results, tmp_path / "accuracy.json")
    saved = json.loads((tmp_path / "accuracy.json").read_text())["results"]
    assert [accuracy.columns(accuracy.Result(**result)) for result in saved] == [
        accuracy.columns(result) for result in results
    ]
    accuracy_plot.draw(saved, tmp_path / "accuracy.png")
    assert (tmp_path / "accuracy.png").read_bytes().startswith(b"\x89PNG")


def test_what_cannot_be_compared() -> None:
    model, float_model = models()
    x = torch.randn(2, 64)
    wrong: list[tuple[nn.Module, nn.Module, Any, str]] = [
        (float_model, float_model, x, "model has no Mxfp4Linear layers"),
        (model, model, x, "float_model must have an nn.Linear at '0', but has a Mxfp4Linear"),
        (model, nn.Sequential(nn.GELU()), x, "nn.Linear at '0', but has a GELU"),
        (model, float_model[:2], x, "nn.Linear at '3', but has nothing"),
        (model, nn.Sequential(nn.Linear(64, 32)), x, "'0' is Linear.*in float_model, but Mxfp4"),
        (model, float_model, [], "at least one batch"),
    ]
    for ours, theirs, inputs, message in wrong:
        with pytest.raises(ValueError, match=message):
            report(ours, theirs, inputs)
    ours, theirs = (nn.Sequential(m, Named()) for m in (model, float_model))
    with pytest.raises(ValueError, match="the models return a str, in which no tensor is first"):
        report(ours, theirs, x)


class Named(nn.Module):
    def forward(self, x: Tensor) -> str:
        return "no tensor"
