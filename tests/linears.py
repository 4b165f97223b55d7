"""Float and MXFP4 layers that the tests of `Mxfp4Linear` and `swap_linear` share."""

from __future__ import annotations

from functools import partial

import torch
from common import assert_same_bits, generator
from torch import Tensor, nn

from mxfp4_ops import Mxfp4Linear, swap_linear

N, K = 48, 96

swap = partial(swap_linear, progress=False)


def float_linear(
    k: int = K, n: int = N, *, bias: bool = True, dtype: torch.dtype = torch.float32, seed: int = 0
) -> nn.Linear:
    linear = nn.Linear(k, n, bias=bias, dtype=dtype)
    with torch.no_grad():
        for parameter in linear.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator(seed)))
    return linear


def mx_linear(k: int = K, n: int = N, *, bias: bool = True, seed: int = 0) -> Mxfp4Linear:
    return Mxfp4Linear.from_linear(float_linear(k, n, bias=bias, seed=seed))


def random_x(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 9) -> Tensor:
    return torch.randn(shape, generator=generator(seed)).to(dtype)


def assert_same_layer(actual: nn.Module, expected: nn.Module) -> None:
    mine, theirs = actual.state_dict(), expected.state_dict()
    assert mine.keys() == theirs.keys()
    for name, value in mine.items():
        assert_same_bits(value, theirs[name])


def float_mlp(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    first, second = (float_linear(*size, dtype=dtype) for size in ((64, 96), (96, 32)))
    return nn.Sequential(first, nn.ReLU(), second)


def mx_mlp() -> nn.Sequential:
    model = float_mlp()
    swap(model)
    return model


def mx(model: nn.Module, name: str) -> Mxfp4Linear:
    """The swapped layer of that name."""
    layer = model.get_submodule(name)
    assert type(layer) is Mxfp4Linear
    return layer


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.Linear(32, 32)
        self.mlp = nn.ModuleDict({"up": nn.Linear(32, 64), "down": nn.Linear(64, 32)})


class Lm(nn.Module):
    def __init__(self, layers: int = 11) -> None:
        super().__init__()
        self.embed = nn.Embedding(8, 32)
        self.layers = nn.ModuleList(Block() for _ in range(layers))
        self.lm_head = nn.Linear(32, 8, bias=False)


def linears(model: nn.Module) -> dict[str, nn.Linear]:
    """Every linear layer under every name."""
    named = model.named_modules(remove_duplicate=False)
    return {name: m for name, m in named if isinstance(m, nn.Linear)}
