"""What the tests of compiled and exported models share: who can compile here, and a model."""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from common import PATHS
from common import Path as BackendPath
from torch import Tensor, nn

import mxfp4_ops

# Processes to compile in and a header compiled ahead take longer than what there is to compile.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
os.environ.setdefault("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS", "0")

_compiler = shutil.which(os.environ.get("CXX", "g++"))
_headers = Path(sysconfig.get_paths()["include"], "Python.h").exists()

needs_compiler = pytest.mark.skipif(_compiler is None, reason="there is no C++ compiler")
# Inductor compiles the code around its kernels on every device.
needs_inductor = pytest.mark.skipif(
    _compiler is None or not _headers, reason="Inductor needs a C++ compiler and Python's headers"
)

every_device = pytest.mark.parametrize(
    "device",
    [
        pytest.param(device, marks=[pytest.mark.gpu] if device == "cuda" else [])
        for device in sorted({path.device for path in PATHS})
    ],
)

# Of what is there for GPUs only; skipped where there is none.
every_gpu_path = pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=pytest.mark.gpu) for path in PATHS if path.device == "cuda"],
    ids=str,
)

Pairs = list[tuple[Tensor, Tensor]]


def backends_on(device: str) -> list[BackendPath]:
    """One path for each backend that takes tensors of the device."""
    return list({path.backend: path for path in PATHS if path.device == device}.values())


class Block(nn.Module):
    """A transformer block. It also returns what went into and came out of its linear layers."""

    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> tuple[Tensor, Pairs]:
        pairs: Pairs = []

        def through(linear: nn.Module, into: Tensor) -> Tensor:
            out = linear(into)
            pairs.append((into, out))
            return out

        q, k, v = (
            t.unflatten(-1, (self.heads, -1)).transpose(-2, -3)
            for t in through(self.qkv, self.before_attention(x)).chunk(3, -1)
        )
        attended = F.scaled_dot_product_attention(q, k, v).transpose(-2, -3).flatten(-2)
        x = x + through(self.out, attended)
        return x + through(self.down, F.gelu(through(self.up, self.before_mlp(x)))), pairs

    def linears(self) -> list[nn.Module]:
        """In the order of the pairs."""
        return [self.qkv, self.out, self.up, self.down]


def swapped_block(device: str, dtype: torch.dtype = torch.float32) -> Block:
    torch.manual_seed(0)
    block = Block().to(device, dtype).eval().requires_grad_(False)
    report = mxfp4_ops.swap_linear(block, progress=False)
    assert len(report.swapped) == 4
    return block


def tokens(m: int, device: str, dtype: torch.dtype = torch.float32, width: int = 64) -> Tensor:
    """Input of a block: two sequences of m tokens."""
    return torch.randn(2, m, width, generator=torch.Generator().manual_seed(m)).to(device, dtype)
