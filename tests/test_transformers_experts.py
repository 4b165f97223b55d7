"""Transformers quantises gpt-oss's experts while it loads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import oracle
import pytest
import torch
from common import assert_same_bits
from tiny_llama import TOKENS, assert_same_state, load, saved_again
from torch import nn

import mxfp4_ops
from mxfp4_ops import Mxfp4Experts

import transformers  # isort: skip  # tiny_llama skips these tests where it is missing
from safetensors.torch import load_file

from mxfp4_ops.integrations.transformers import Mxfp4OpsConfig

EXPERTS = [f"model.layers.{layer}.mlp.experts" for layer in range(2)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small float gpt-oss."""
    folder = tmp_path_factory.mktemp("gpt-oss")
    config = transformers.GptOssConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        num_local_experts=4,
        num_experts_per_tok=2,
        initializer_range=0.2,
        pad_token_id=0,
        eos_token_id=1,
    )
    torch.manual_seed(0)
    transformers.GptOssForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("activation", ["mxfp4", "bf16"])
def test_experts(folder: Path, tmp_path: Path, activation: Any) -> None:
    model = load(folder, Mxfp4OpsConfig(activation=activation), dtype=torch.bfloat16)
    weights = load_file(folder / "model.safetensors")
    for name in EXPERTS:
        experts = model.get_submodule(name)
        assert isinstance(experts, Mxfp4Experts)
        for weight in experts.packed:
            rows = weights[f"{name}.{weight}"].bfloat16().mT
            codes, scales = oracle.quantize_tensor(rows, "even")
            assert torch.equal(getattr(experts, weight), codes)
            assert torch.equal(getattr(experts, f"{weight}_scale"), scales)

    expected = load(folder, dtype=torch.bfloat16)
    mxfp4_ops.swap_linear(expected, activation=activation, progress=False)
    mxfp4_ops.swap_experts(expected, activation=activation, progress=False)
    assert_same_state(model, expected)
    again = saved_again(model, tmp_path)
    options = {"max_new_tokens": 6, "do_sample": False, "attention_mask": torch.ones_like(TOKENS)}
    for each in model, again:
        assert torch.equal(each(TOKENS).logits, expected(TOKENS).logits)
        assert torch.equal(each.generate(TOKENS, **options), expected.generate(TOKENS, **options))


def test_some_experts_stay_float(folder: Path, tmp_path: Path) -> None:
    names = ["lm_head", EXPERTS[0]]
    model = load(folder, Mxfp4OpsConfig(modules_to_not_convert=names))
    again = saved_again(model, tmp_path)
    for each in model, again:
        kinds = [type(each.get_submodule(name)).__name__ for name in EXPERTS]
        assert kinds == ["GptOssExperts", "Mxfp4Experts"]
        assert each.config.quantization_config.modules_to_not_convert == names


def test_a_checkpoint_whose_experts_are_float(folder: Path, tmp_path: Path) -> None:
    """As `mxfp4-ops convert` makes it of linear layers alone, without naming the experts."""
    load(folder, Mxfp4OpsConfig(modules_to_not_convert=["lm_head", *EXPERTS])).save_pretrained(
        tmp_path
    )
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"]["modules_to_not_convert"] = ["lm_head"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = load(tmp_path)
    assert all(type(model.get_submodule(name)).__name__ == "GptOssExperts" for name in EXPERTS)
    assert isinstance(model.model.layers[0].self_attn.q_proj, mxfp4_ops.Mxfp4Linear)


def test_dequantize(folder: Path) -> None:
    model = load(folder, Mxfp4OpsConfig(), dtype=torch.float32)
    packed = [model.get_submodule(name) for name in EXPERTS]
    model.dequantize()
    for name, old in zip(EXPERTS, packed, strict=True):
        new = model.get_submodule(name)
        assert type(new).__name__ == "GptOssExperts"
        for key, weight in old.dequantize(torch.float32).items():
            assert isinstance(getattr(new, key), nn.Parameter)
            assert_same_bits(getattr(new, key).detach(), weight)
            bias = f"{key}_bias"
            assert_same_bits(getattr(new, bias).detach(), getattr(old, bias).detach())
    assert model(TOKENS).logits.isfinite().all()
