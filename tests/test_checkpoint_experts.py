"""gpt-oss: checkpoints into models of Transformers, whose experts become `Mxfp4Experts`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from checkpoint_files import assert_unchanged, copies, write
from common import assert_same_bits
from tiny_gpt_oss import float_model
from torch import Tensor, nn

from mxfp4_ops import Mxfp4Experts, checkpoint, swap_experts, swap_linear

EXPERTS = "model.layers.0.mlp.experts"
TOKENS = torch.arange(12).view(1, 12)


def swapped(linears: bool = False) -> nn.Module:
    model: nn.Module = float_model()
    swap_experts(model, activation="bf16", progress=False)
    if linears:
        swap_linear(model, activation="bf16", progress=False)
    return model


def as_published(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of a swapped model under the names and in the shapes of gpt-oss's files."""
    tensors: dict[str, Tensor] = {}
    for name, t in model.state_dict().items():
        if name.endswith("_proj_scale"):
            tensors[f"{name.removesuffix('_scale')}_scales"] = t
        elif t.dtype == torch.uint8:
            tensors[f"{name}_blocks"] = t.unflatten(-1, (-1, 16))
        else:
            tensors[name] = t
    return tensors


@pytest.mark.parametrize("kind", ["float", "swapped"])
def test_as_published(kind: str, tmp_path: Path) -> None:
    saved = swapped()
    path = write(tmp_path, as_published(saved), {"quant_method": "mxfp4"})
    model = float_model(seed=1)
    if kind == "swapped":
        swap_experts(model, activation="bf16", progress=False)
    report = checkpoint.load(model, path, progress=False)
    assert report.format == "gpt-oss"
    experts = model.get_submodule(EXPERTS)
    assert isinstance(experts, Mxfp4Experts)
    assert experts.activation == "bf16"
    assert_unchanged(model, saved.state_dict())
    assert_same_bits(model(TOKENS).logits, saved(TOKENS).logits)


@pytest.mark.parametrize("linears", [False, True])
def test_round_trip(linears: bool, tmp_path: Path) -> None:
    saved = swapped(linears)
    checkpoint.save(saved, tmp_path / "c")
    model = float_model(seed=1)
    report = checkpoint.load(model, tmp_path / "c", progress=False)
    assert report.settings.activation == "bf16"
    assert_unchanged(model, saved.state_dict())
    assert_same_bits(model(TOKENS).logits, saved(TOKENS).logits)


def test_converted(tmp_path: Path) -> None:
    saved = swapped()
    path = write(tmp_path / "c", as_published(saved), {"quant_method": "mxfp4"})
    checkpoint.convert(path, tmp_path / "ours", progress=False)
    model = float_model(seed=1)
    checkpoint.load(model, tmp_path / "ours", progress=False)
    assert_unchanged(model, saved.state_dict())


def test_layers_that_run_differently_are_not_saved(tmp_path: Path) -> None:
    model = swapped()
    swap_linear(model, activation="mxfp4", progress=False)
    with pytest.raises(ValueError, match="they differ"):
        checkpoint.save(model, tmp_path / "c")


@pytest.mark.parametrize("what", ["one in float", "another shape"])
def test_refused(what: str, tmp_path: Path) -> None:
    tensors = as_published(swapped())
    model = float_model(seed=1)
    name = f"{EXPERTS}.down_proj"
    if what == "one in float":
        del tensors[f"{name}_blocks"], tensors[f"{name}_scales"]
        tensors[name] = model.get_parameter(name)
        message = f"{EXPERTS} cannot be: of gate_up_proj and down_proj only one is MXFP4"
    else:
        for end in ("blocks", "scales"):
            tensors[f"{name}_{end}"] = tensors[f"{name}_{end}"][:, :32]
        message = rf"{name} has shape \[4, 32, 96\], but the model's has \[4, 64, 96\]"
    path = write(tmp_path, tensors, {"quant_method": "mxfp4"})
    before, modules = copies(model), list(model.modules())
    with pytest.raises(ValueError, match=message):
        checkpoint.load(model, path, progress=False)
    assert_unchanged(model, before)
    assert list(model.modules()) == modules
