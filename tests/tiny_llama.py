"""A small Llama on disk, and its ways through Transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from common import assert_same_bits
from torch import nn

from mxfp4_ops import Mxfp4Linear

pytest.importorskip("transformers", minversion="5.0")

import transformers

from mxfp4_ops.integrations.transformers import Mxfp4OpsConfig

TOKENS = torch.tensor([[5, 17, 99, 200, 3, 42]])
LINEARS = {
    f"model.layers.{layer}.{name}"
    for layer in range(2)
    for name in (
        *(f"self_attn.{p}_proj" for p in "qkvo"),
        *(f"mlp.{p}_proj" for p in ("gate", "up", "down")),
    )
}


def make(folder: Path, **changes: Any) -> Path:
    """Save a float model there."""
    sizes = {
        "vocab_size": 256,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "attention_bias": True,
        "initializer_range": 0.2,  # logits that differ by more than a rounding
    }
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes | changes))
    for parameter in model.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter)
    model.save_pretrained(folder)
    return folder


def load(folder: Path, config: Mxfp4OpsConfig | None = None, **options: Any) -> Any:
    options |= {} if config is None else {"quantization_config": config}
    return transformers.AutoModelForCausalLM.from_pretrained(folder, **options)


def swapped(model: nn.Module) -> set[str]:
    return {name for name, module in model.named_modules() if isinstance(module, Mxfp4Linear)}


def assert_same_state(actual: nn.Module, expected: nn.Module) -> None:
    states = actual.state_dict(), expected.state_dict()
    assert states[0].keys() == states[1].keys()
    for name, tensor in states[0].items():
        assert_same_bits(tensor, states[1][name])


def saved_again(model: Any, folder: Path) -> Any:
    """The model after a round trip, which must not change a bit."""
    model.save_pretrained(folder)
    again = load(folder)
    assert_same_state(again, model)
    assert swapped(again) == swapped(model)
    return again
