"""Checkpoints for tests: a small model, files of it, and those that the tools write."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_tools import TOOLS
from common import assert_same_bits
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mxfp4_ops import Mxfp4Linear, checkpoint, swap_linear

SAMPLES = Path(__file__).parent / "checkpoint_samples"
PACKAGES = {"compressed-tensors": "compressed_tensors", "torchao-plain": "torchao"}
PACKAGES |= {"read-compressed-tensors": "compressed_tensors", "gpt-oss": "transformers"}


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 3 * width)
        self.down = nn.Linear(3 * width, width, bias=False)
        self.register_buffer("steps", torch.tensor(3, dtype=torch.int32))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Net(nn.Module):
    """A model with an embedding, a head that is left in float, biases and a buffer."""

    def __init__(self, width: int = 32, tied: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.lm_head = nn.Linear(width, 10, bias=False)
        if tied:
            self.lm_head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.lm_head(x)
        return out


TOKENS = torch.arange(10).reshape(2, 5)
LINEARS = [f"blocks.{i}.{name}" for i in range(2) for name in ("up", "down")]
"""The layers that `swap_linear` takes."""


def net(tied: bool = False, seed: int = 0) -> Net:
    torch.manual_seed(seed)
    return Net(tied=tied).eval()


def swapped(tied: bool = False, seed: int = 0, **options: Any) -> Net:
    model = net(tied, seed)
    swap_linear(model, progress=False, **options)
    return model


def block(model: Net, index: int) -> Block:
    found = model.get_submodule(f"blocks.{index}")
    assert isinstance(found, Block)
    return found


def settings(layer: nn.Module) -> tuple[str, str]:
    """Scale mode and activation of a swapped layer."""
    assert isinstance(layer, Mxfp4Linear)
    return layer.scale_mode, layer.activation


def write(
    folder: Path,
    tensors: Mapping[str, Tensor],
    quantization: Mapping[str, Any] | None = None,
    metadata: Mapping[str, str] | None = None,
    file: str = "model.safetensors",
) -> Path:
    """Write a file, and a config.json if there is something to say in it."""
    folder.mkdir(parents=True, exist_ok=True)
    owned = {name: t.detach().contiguous().clone() for name, t in tensors.items()}
    save_file(owned, folder / file, dict(metadata or {}) or None)
    if quantization is not None:
        config = {"model_type": "net", "quantization_config": dict(quantization)}
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def copies(model: nn.Module) -> dict[str, Tensor]:
    return {name: t.detach().clone() for name, t in model.state_dict().items()}


def assert_unchanged(model: nn.Module, before: Mapping[str, Tensor]) -> None:
    after = model.state_dict()
    assert list(after) == list(before)
    for name, t in after.items():
        assert_same_bits(t, before[name])


def assert_same(a: checkpoint.Checkpoint, b: checkpoint.Checkpoint) -> None:
    """The same entries with the same bits, in whatever formats."""
    assert set(a.names()) == set(b.names())
    assert set(a.quantized()) == set(b.quantized())
    for name, value in a.items():
        other = b.read(name)
        assert type(value) is type(other)
        if isinstance(value, checkpoint.Mxfp4Weight):
            assert_same_bits(value.codes, other[0])
            assert_same_bits(value.scales, other[1])
        else:
            assert isinstance(other, Tensor)
            assert_same_bits(value, other)


def run_tool(tool: str, folder: Path) -> Path:
    """What a tool writes now; skips where it is not installed."""
    package = PACKAGES.get(tool, tool)
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    script = Path(__file__).with_name("checkpoint_tools.py")
    done = subprocess.run(
        [sys.executable, str(script), tool, str(folder)],
        env=os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


def expected(folder: Path) -> dict[str, Tensor]:
    """The quantised weights of a tool's checkpoint, as that tool dequantises them."""
    found: dict[str, Tensor] = load_file(folder / "expected.safetensors")
    return found


MADE_NOW = [tool for tool in TOOLS if not tool.startswith("read-")]
