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


def _check(folder: Path, activation: Any, saved: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = load(folder, Mxfp4OpsConfig(activation=activation), dtype=torch.float32)
    assert len(swapped(model)) == 30 * 7
    assert model.lm_head.weight is model.model.embed_tokens.weight
    batch = {"input_ids": tokenizer(models.text()[:400], return_tensors="pt")["input_ids"]}
    float_model = load(folder, dtype=torch.float32)
    float_loss, loss = (math.log(perplexity(m, [batch])) for m in (float_model, model))
    ignorance = math.log(model.config.vocab_size)
    assert loss - float_loss < (ignorance - float_loss) / 2
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
    for activation in ("mxfp4", "bf16"):
        _check(folder, activation, tmp_path / activation)
