"""A real language model goes from `from_pretrained` to `generate` and back to the disk."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_llama import assert_same_state, load, swapped

from benchmarks import models
from benchmarks.accuracy import answer, perplexity
from mxfp4_ops.integrations.transformers import Mxfp4OpsConfig


def _check(model: Any, tokenizer: Any, saved: Path) -> None:
    assert len(swapped(model)) == 30 * 7
    assert model.lm_head.weight is model.model.embed_tokens.weight
    said = answer(model, tokenizer, tokens=8)
    assert said.split()

    model.save_pretrained(saved)
    again = load(saved)
    assert_same_state(again, model)
    assert answer(again, tokenizer, tokens=8) == said


def test_a_real_language_model(tmp_path: Path) -> None:
    try:  # unpacking it takes longer than all that follows
        folder = models.smollm2(tmp_path / "float")
    except models.Missing as missing:
        pytest.skip(str(missing))
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokens = tokenizer(models.text()[:400], return_tensors="pt")["input_ids"]

    def loss(model: Any) -> float:
        return math.log(perplexity(model, [{"input_ids": tokens}]))

    float_loss, ignorance = loss(load(folder, dtype=torch.float32)), math.log(len(tokenizer))
    for activation in ("mxfp4", "bf16"):
        model = load(folder, Mxfp4OpsConfig(activation=activation), dtype=torch.float32)
        assert loss(model) - float_loss < (ignorance - float_loss) / 2
        _check(model, tokenizer, tmp_path / activation)
