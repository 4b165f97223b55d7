"""torch.export: the range of M, several dynamic dimensions, saving, decompositions."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import pytest
import torch
from common import (
    Path,
    Weight,
    activation,
    assert_same_bits,
    every_backend,
    plain_and_shuffled,
    random_weight,
)
from compiling import backends_on, every_device, swapped_block, tokens
from torch import Tensor
from torch.export import Dim, ExportedProgram, export

ops = torch.ops.mxfp4

# torch.export of some releases warns of what it uses itself.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*LeafSpec:FutureWarning", "ignore:.*buffer is not writable:UserWarning"
)


class _Layer(torch.nn.Module):
    def __init__(self, weight: Weight, device: str, shuffled: bool) -> None:
        super().__init__()
        codes, scales = weight.on(device, shuffled)
        self.register_buffer("codes", codes)
        self.register_buffer("scales", scales)
        self.shuffled = shuffled

    def forward(self, x: Tensor) -> Tensor:
        y = ops.quant_mm(x.relu(), self.codes, self.scales, shuffled=self.shuffled)
        return y.exp()


def only_range(program: ExportedProgram) -> tuple[int, int]:
    (interval,) = program.range_constraints.values()
    return int(interval.lower), int(interval.upper)


def calls(program: ExportedProgram) -> list[Any]:
    """The operators of this package that a program calls, in order."""
    targets = [node.target for node in program.graph.nodes if node.op == "call_function"]
    return [target for target in targets if str(target).startswith("mxfp4.")]


@every_backend
@plain_and_shuffled
@pytest.mark.parametrize(("least", "most"), [(0, 1 << 20), (1, 8192)])
@pytest.mark.parametrize("m", [2, 33])
def test_keeps_the_range_of_m(path: Path, shuffled: bool, least: int, most: int, m: int) -> None:
    layer = _Layer(random_weight(24, 96), path.device, shuffled)
    x = activation(m, 96, dtype=torch.bfloat16).to(path.device)
    with path.active():
        program = export(layer, (x,), dynamic_shapes=({0: Dim("m", min=least, max=most)},))
        assert only_range(program) == (least, most)
        for size in {least, 1, 2, m, 70 if path.slow else 8192}:
            x = activation(size, 96, dtype=torch.bfloat16).to(path.device)
            assert_same_bits(program.module()(x), layer(x))


@every_device
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_transformer_block(device: str, strict: bool, dtype: torch.dtype) -> None:
    block = swapped_block(device, dtype)
    dim = Dim("m", min=1, max=8192)
    x = tokens(12, device, dtype)
    program = export(block, (x,), dynamic_shapes=({1: dim},), strict=strict)
    assert only_range(program) == (1, 8192)
    assert calls(program) == [ops.quant_mm.default] * 4
    assert calls(program.run_decompositions()) == [ops.quant_mm.default] * 4
    for path in backends_on(device):
        with path.active():
            for m in (1, 2, 100):
                x = tokens(m, device, dtype)
                assert_same_bits(program.module()(x)[0], block(x)[0])


@every_device
@pytest.mark.parametrize("dim", [Dim.DYNAMIC, Dim.AUTO], ids=["dynamic", "auto"])
def test_dimensions_without_a_name_are_not_narrowed(device: str, dim: Any) -> None:
    layer = _Layer(random_weight(24, 96), device, shuffled=False)
    x = activation(5, 7, 96, dtype=torch.float32).to(device)
    program = export(layer, (x,), dynamic_shapes=({0: dim, 1: dim},))
    for interval in program.range_constraints.values():
        assert interval.lower <= 2  # torch sets 0 and 1 apart
        assert interval.upper > 1 << 40
    assert len(program.range_constraints) == 2
    for lead in ((2, 2), (3, 50), (64, 2)):
        x = activation(*lead, 96, dtype=torch.float32).to(device)
        assert_same_bits(program.module()(x), layer(x))


@every_backend
def test_saved_and_loaded(path: Path) -> None:
    block = swapped_block(path.device)
    dim = Dim("m", min=1, max=8192)
    program = export(block, (tokens(5, path.device),), dynamic_shapes=({1: dim},))
    file = BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file)
    assert only_range(loaded) == (1, 8192)
    x = tokens(40, path.device)
    with path.active():
        assert_same_bits(loaded.module()(x)[0], block(x)[0])
    sizes = {name: t.nbytes for name, t in loaded.state_dict.items()}
    assert sizes == {name: t.nbytes for name, t in block.state_dict().items()}


@every_device
def test_every_operator(device: str) -> None:
    """One program that calls all six."""

    class All(torch.nn.Module):
        def forward(self, x: Tensor, w: Tensor) -> Tensor:
            codes, scales = ops.quantize(w, scale_mode="ceil")
            tiles = ops.shuffle(codes, scales)
            codes, scales = ops.unshuffle(*tiles, 32, 96)
            left = ops.quantize(x)
            y = ops.mm(*left, *tiles, out_dtype=torch.float32, shuffled=True)
            y = y + ops.quant_mm(x, codes, scales, out_dtype=torch.float32)
            return y + ops.dequantize(codes, scales, dtype=torch.float32).sum(1)

    w = activation(32, 96, dtype=torch.float32, seed=1).to(device)
    x = activation(5, 96, dtype=torch.float32).to(device)
    shapes = ({0: Dim("m", min=1, max=8192)}, None)
    program = export(All(), (x, w), dynamic_shapes=shapes)
    assert only_range(program) == (1, 8192)
    names = ("quantize", "shuffle", "unshuffle", "quantize", "mm", "quant_mm", "dequantize")
    assert calls(program) == [getattr(ops, name).default for name in names]
    for m in (1, 2, 70):
        x = activation(m, 96, dtype=torch.float32).to(device)
        assert_same_bits(program.module()(x, w), All()(x, w))
