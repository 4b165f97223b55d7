"""Checkpoints that the tools themselves wrote, now or, in samples, earlier."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import pytest
import torch
from checkpoint_files import MADE_NOW, SAMPLES, assert_same, expected, run_tool, write
from checkpoint_tools import KEPT, llama
from common import assert_same_bits
from safetensors.torch import load_file

from mxfp4_ops import Mxfp4Linear, checkpoint

SETTINGS = {
    "compressed-tensors": checkpoint.Settings("even", "mxfp4"),
    "quark": checkpoint.Settings("even", "mxfp4"),
    "torchao": checkpoint.Settings("ceil", "mxfp4"),
    "torchao-plain": checkpoint.Settings("even", "bf16"),
    "gguf": checkpoint.Settings("even", "bf16"),
    "gpt-oss": checkpoint.Settings("even", "bf16"),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """What a tool writes, once for all tests."""

    @lru_cache
    def make(tool: str) -> Path:
        return run_tool(tool, tmp_path_factory.mktemp(tool))

    return make


def check(tool: str, folder: Path) -> checkpoint.Checkpoint:
    """Read it, and compare with what the tool itself reads in it."""
    opened = checkpoint.open(folder / "checkpoint")
    assert opened.format == tool.removesuffix("-plain")
    assert opened.settings == SETTINGS[tool]
    weights = expected(folder)
    assert opened.quantized()
    assert set(opened.quantized()) <= set(weights)
    for name, weight in weights.items():
        value = opened.read(name)
        if isinstance(value, checkpoint.Mxfp4Weight):
            assert opened.entries[name].shape == tuple(weight.shape)
            assert_same_bits(value.dequantize(weight.dtype), weight)
        else:
            assert_same_bits(value.to(weight.dtype), weight)
    return opened


def check_others_are_float(opened: checkpoint.Checkpoint) -> None:
    model = llama().state_dict()
    assert set(opened.names()) == set(model)
    for name in set(opened.names()) - set(opened.quantized()):
        value = opened.read(name)
        assert isinstance(value, torch.Tensor)
        assert_same_bits(value, model[name])
    assert f"{KEPT}.weight" not in opened.quantized()
    assert len(opened.quantized()) == 6


@pytest.mark.parametrize("tool", MADE_NOW)
def test_made_now(tool: str, made: Callable[[str], Path], tmp_path: Path) -> None:
    opened = check(tool, made(tool))
    if tool not in ("gguf", "gpt-oss"):
        check_others_are_float(opened)
    converted = checkpoint.convert(opened, tmp_path / "ours", progress=False)
    assert converted.settings == opened.settings
    again = checkpoint.open(tmp_path / "ours")
    assert again.format == "mxfp4_ops"
    assert again.settings == opened.settings
    assert_same(again, opened)


@pytest.mark.parametrize("tool", ["quark", "torchao"])
def test_sample(tool: str) -> None:
    check_others_are_float(check(tool, SAMPLES / tool))


@pytest.mark.parametrize("tool", ["quark", "torchao"])
def test_sample_into_a_model(tool: str) -> None:
    """A float model with other numbers takes the sample's, and keeps in float what it does."""
    model = llama()
    for parameter in model.parameters():
        parameter.data.zero_()
    report = checkpoint.load(model, SAMPLES / tool / "checkpoint", progress=False)
    weights = expected(SAMPLES / tool)
    layers = {n: m for n, m in model.named_modules() if isinstance(m, Mxfp4Linear)}
    assert sorted(report.quantized) == sorted(weights) == sorted(f"{n}.weight" for n in layers)
    for name, layer in layers.items():
        assert (layer.scale_mode, layer.activation) == (SETTINGS[tool].scale_mode, "mxfp4")
        assert_same_bits(layer.dequantize(), weights[f"{name}.weight"])
    assert_same_bits(model.model.embed_tokens.weight, llama().model.embed_tokens.weight)
    assert model(torch.arange(5)[None]).logits.isfinite().all()


@pytest.mark.parametrize("tool", ["quark", "torchao"])
def test_sample_under_another_format(tool: str, tmp_path: Path) -> None:
    """Converted to compressed-tensors and from there to ours, it holds the same bits."""
    opened = checkpoint.open(SAMPLES / tool / "checkpoint")
    checkpoint.convert(opened, tmp_path / "packed", to="compressed-tensors", progress=False)
    packed = checkpoint.open(tmp_path / "packed")
    assert packed.format == "compressed-tensors"
    checkpoint.convert(packed, tmp_path / "ours", progress=False)
    assert_same(packed, opened)
    assert_same(checkpoint.open(tmp_path / "ours"), opened)


def test_compressed_tensors_reads_what_is_written(tmp_path: Path) -> None:
    llama().save_pretrained(tmp_path / "float")
    folder = tmp_path / "checkpoint"
    checkpoint.convert(tmp_path / "float", folder, to="compressed-tensors", progress=False)
    opened = checkpoint.open(folder)
    read = expected(run_tool("read-compressed-tensors", tmp_path))
    assert set(read) == set(opened.names())
    for name, value in opened.items():
        if isinstance(value, checkpoint.Mxfp4Weight):
            value = value.dequantize()
        assert_same_bits(read[name], value)


def test_original_names_of_gpt_oss(made: Callable[[str], Path], tmp_path: Path) -> None:
    """OpenAI's own files: the same tensors under other names, and no word in a config.json."""
    folder = made("gpt-oss")
    hugging_face = load_file(folder / "checkpoint" / "model.safetensors")
    experts = "model.layers.0.mlp.experts."
    original = {
        name.replace(f"{experts}gate_up_proj", "block.0.mlp.mlp1_weight")
        .replace(f"{experts}down_proj", "block.0.mlp.mlp2_weight")
        .replace("_blocks", ".blocks")
        .replace("_scales", ".scales"): tensor
        for name, tensor in hugging_face.items()
    }
    opened = checkpoint.open(write(tmp_path / "original", original))
    assert opened.format == "gpt-oss"
    weights = expected(folder)
    for ours, theirs in (("mlp1_weight", "gate_up_proj"), ("mlp2_weight", "down_proj")):
        value = opened.read(f"block.0.mlp.{ours}")
        assert isinstance(value, checkpoint.Mxfp4Weight)
        weight = weights[f"{experts}{theirs}"]
        assert_same_bits(value.dequantize(weight.dtype), weight)
        codes, scales = value
        count, n, k = weight.shape
        assert codes.shape == (count, n, k // 2)
        assert scales.shape == (count, n, k // 32)


def test_gguf_needs_no_name(made: Callable[[str], Path], tmp_path: Path) -> None:
    """A GGUF file is known by its first bytes, whatever it is called."""
    folder = made("gguf")
    renamed = tmp_path / "weights.bin"
    shutil.copy(folder / "checkpoint" / "model.gguf", renamed)
    assert_same(checkpoint.open(renamed), checkpoint.open(folder / "checkpoint"))
