"""`swap_linear`: its numbers, what it keeps, and what it reports."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import pytest
import torch
from common import MODES, Path, Product, assert_same_bits, every_path
from linears import Lm, float_mlp, linears, mx, random_x, swap
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor

import mxfp4_ops
from mxfp4_ops import Mxfp4Linear, ScaleMode, SwapReport
from mxfp4_ops.formats import dequantize_reference, quantize_reference


@every_path
@pytest.mark.parametrize("mode", MODES)
def test_numbers(path: Path, mode: ScaleMode) -> None:
    model, x = float_mlp().to(path.device), random_x(5, 64)
    weights = [m.weight.detach().cpu() for m in linears(model).values()]
    with path.active(), torch.no_grad():
        report = swap(model, scale_mode=mode)
        first, second = mx(model, "0"), mx(model, "2")
        hidden = first(x.to(path.device)).relu()
        y = model(x.to(path.device))
        assert_same_bits(y, second(hidden))
    assert report.swapped == ["0", "2"]
    assert report.skipped == {}
    w = dequantize_reference(*quantize_reference(weights[1], mode), torch.float64)
    a = dequantize_reference(*quantize_reference(hidden.cpu(), mode), torch.float64)
    Product.of(a, w, second.bias).check(y)
    for layer, weight in zip((first, second), weights, strict=True):
        assert layer.scale_mode == mode
        codes, scales = quantize_reference(weight, mode)
        assert_same_bits(layer.weight, codes)
        assert_same_bits(layer.weight_scale, scales)


def test_default_skips_lm_head_only() -> None:
    model = Lm(1)
    report = swap(model)
    assert report.swapped == ["layers.0.attn", "layers.0.mlp.up", "layers.0.mlp.down"]
    assert report.skipped == {"lm_head": "skip pattern 'lm_head'"}
    assert type(model.lm_head) is nn.Linear
    assert [name for name, m in linears(model).items() if type(m) is Mxfp4Linear] == report.swapped
    assert type(model.embed) is nn.Embedding


def test_second_swap_does_nothing() -> None:
    model = float_mlp()
    first = swap(model)
    layers = list(model)
    second = swap(model)
    assert second.swapped == []
    assert second.skipped == dict.fromkeys(first.swapped, "already swapped")
    assert second.bytes_before == second.bytes_after == first.bytes_after
    assert all(a is b for a, b in zip(layers, model, strict=True))


def test_model_that_is_a_linear_layer() -> None:
    with pytest.raises(ValueError, match=r"itself a Linear, .* use Mxfp4Linear\.from_linear"):
        swap(nn.Linear(32, 32))


def test_unknown_scale_mode_leaves_the_model_alone() -> None:
    model = float_mlp()
    with pytest.raises(ValueError, match="scale_mode must be 'even', 'floor' or 'ceil'"):
        swap(model, scale_mode="odd")  # type: ignore[arg-type]
    assert type(model[0]) is nn.Linear


def test_hooks_are_kept_and_can_still_be_removed() -> None:
    model, calls = float_mlp(), []
    old = model[0]
    handles = [
        old.register_forward_pre_hook(lambda m, args: calls.append(("pre", m))),
        old.register_forward_hook(lambda m, args, kwargs, y: y + 1, with_kwargs=True),
        old.register_forward_hook(lambda m, args, y: calls.append(("post", m)), always_call=True),
        old.register_full_backward_pre_hook(lambda m, g: calls.append(("back pre", m))),
        old.register_full_backward_hook(lambda m, gx, gy: calls.append(("back", m))),
    ]
    swap(model)
    new, x = mx(model, "0"), random_x(3, 64)
    with torch.no_grad():
        plain = mxfp4_ops.quant_mm(x, new.weight, new.weight_scale, new.bias)
    y = new(x.clone().requires_grad_())
    assert torch.equal(y, plain + 1)
    y.sum().backward()
    assert [what for what, _ in calls] == ["pre", "post", "back pre", "back"]
    assert all(module is new for _, module in calls)
    for handle in handles:
        handle.remove()
    calls.clear()
    assert torch.equal(new(x), plain)
    assert calls == []


def test_attributes_are_kept() -> None:
    model = float_mlp()
    old = model[0].eval()
    vars(old)["tag"] = "mine"
    vars(old)["weight_scale"] = "not a tensor"
    bias = old.bias
    swap(model)
    new = mx(model, "0")
    assert vars(new)["tag"] == "mine"
    assert new.bias is bias
    assert (model.training, new.training, mx(model, "2").training) == (True, False, True)
    assert new.weight_scale.dtype == torch.uint8


def test_duplicates_of_a_swapped_model() -> None:
    model, x = float_mlp(), random_x(3, 64)
    swap(model)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert_same_bits(twin(x), model(x))


def test_state_dict_into_a_model_swapped_on_meta() -> None:
    trained, x = float_mlp(torch.bfloat16), random_x(3, 64, dtype=torch.bfloat16)
    report = swap(trained)
    with torch.device("meta"):
        empty = float_mlp(torch.bfloat16)
    assert dataclasses.asdict(swap(empty)) == dataclasses.asdict(report)
    assert {p.device.type for p in empty.parameters()} == {"meta"}
    loaded = copy.deepcopy(empty)
    loaded.load_state_dict(trained.state_dict(), assign=True)
    assert_same_bits(loaded(x), trained(x))
    emptied = empty.to_empty(device="cpu")
    emptied.load_state_dict(trained.state_dict())
    assert_same_bits(emptied(x), trained(x))


def test_float_and_swapped_state_dicts_do_not_mix() -> None:
    floats, swapped = float_mlp(), float_mlp()
    swap(swapped)
    for strict in (True, False):
        with pytest.raises(RuntimeError, match=r"2\.weight must be uint8 .* got float32"):
            swapped.load_state_dict(floats.state_dict(), strict=strict)
        with pytest.raises(RuntimeError, match=r"size mismatch for 2\.weight"):
            floats.load_state_dict(swapped.state_dict(), strict=strict)


def test_fake_tensors() -> None:
    with FakeTensorMode():
        model = nn.Sequential(nn.Linear(64, 96), nn.Linear(96, 32))
        report = swap(model)
        assert model(torch.empty(3, 64)).shape == (3, 32)
    assert report.swapped == ["0", "1"]
    weight = mx(model, "0").weight
    assert type(weight) is FakeTensor
    assert (weight.shape, weight.dtype) == ((96, 32), torch.uint8)


def test_report() -> None:
    model = Lm(5)
    table = torch.zeros(100, dtype=torch.int64)
    model.register_buffer("table", table)
    model.register_buffer("same_table", table[:50])
    report = swap(model, skip=("lm_head", "attn"))
    outside = (8 * 32 * 2 + 5 * (32 * 32 + 32)) * 4 + 800
    biases = 5 * (64 + 32) * 4
    assert report.bytes_before == outside + biases + 5 * 2 * 32 * 64 * 4
    assert report.bytes_after == outside + biases + 5 * 2 * 32 * 64 * 17 // 32
    assert report.bytes_saved == report.bytes_before - report.bytes_after
    attns = [f"layers.{i}.attn" for i in range(5)]
    assert report.skipped_by_reason == {
        "skip pattern 'attn'": attns,
        "skip pattern 'lm_head'": ["lm_head"],
    }
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.bytes_after = 0  # type: ignore[misc]


def test_report_reads_well() -> None:
    skipped = {f"layers.{i}": "filter_fn" for i in range(5)} | {"lm_head": "skip pattern 'lm_head'"}
    assert str(SwapReport(["a", "b"], skipped, 3 << 20, 3 << 18)) == (
        "2 linear layers swapped, 6 skipped; 3.0 MiB -> 0.8 MiB\n"
        "  skipped layers.0, layers.1, layers.2 and 2 more: filter_fn\n"
        "  skipped lm_head: skip pattern 'lm_head'"
    )


def test_bytes_of_odd_tensors() -> None:
    """None for tensors without data, and those inside of a wrapper."""
    model = nn.ModuleDict({"lazy": nn.LazyLinear(32), "plain": nn.Linear(32, 32, bias=False)})
    two = TwoTensor(torch.ones(4, 4), torch.ones(4, 4))
    model.register_parameter("two", nn.Parameter(two))
    report = swap(model)
    assert report.bytes_before == 2 * 64 + 32 * 32 * 4
    assert report.bytes_after == 2 * 64 + 32 * 17


def test_progress(capfd: pytest.CaptureFixture[str]) -> None:
    mxfp4_ops.swap_linear(Lm(2))
    out, err = capfd.readouterr()
    assert out == ""
    assert "6/6 linear layers" in err
    mxfp4_ops.swap_linear(Lm(2), progress=False)
    assert capfd.readouterr() == ("", "")
