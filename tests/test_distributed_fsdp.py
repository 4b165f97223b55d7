"""FSDP2 over swapped layers, alone and with tensor parallelism; sharded checkpoints of both."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from common import assert_same_bits
from linears import float_linear, random_x, swap
from ranks import group, on_every_rank, ranks
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as load_checkpoint
from torch.distributed.checkpoint.state_dict_saver import save as save_checkpoint
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

from mxfp4_ops import Mxfp4Linear
from mxfp4_ops.distributed import RowwiseParallel

__all__ = ["ranks"]

WIDTH, HIDDEN = 96, 256

# FSDP2 of torch 2.11 does not.
TAKES_INTEGERS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)
takes_integers = pytest.mark.skipif(
    not TAKES_INTEGERS, reason="FSDP2 of this torch refuses integer parameters"
)


class Block(nn.Module):
    """A block of which the norm and the two biases are trained."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = float_linear(WIDTH, HIDDEN)
        self.down = float_linear(HIDDEN, WIDTH, seed=4)
        swap(self)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def model_for(mesh: DeviceMesh) -> nn.Sequential:
    return nn.Sequential(Block(), Block()).to(mesh.device_type)


def fsdp(model: nn.Module, mesh: DeviceMesh, **options: Any) -> nn.Module:
    for block in model.children():
        fully_shard(block, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    return model


def tensor_parallel(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    plan = {"*.up": ColwiseParallel(), "*.down": RowwiseParallel()}
    return parallelize_module(model, mesh, plan)


def layers(model: nn.Module) -> list[Mxfp4Linear]:
    return [m for m in model.modules() if isinstance(m, Mxfp4Linear)]


def integers(model: nn.Module) -> set[nn.Parameter]:
    return {p for p in model.parameters() if not p.is_floating_point()}


def whole(t: Tensor) -> Tensor:
    return (t.full_tensor() if isinstance(t, DTensor) else t).detach().cpu()


def assert_same_parameters(actual: nn.Module, expected: nn.Module, only: str = "") -> None:
    for name, parameter in expected.named_parameters():
        if only in name:
            assert_same_bits(whole(actual.get_parameter(name)), whole(parameter))


def x_for(mesh: DeviceMesh) -> Tensor:
    return random_x(2, 6, WIDTH).to(mesh.device_type)


def losses(model: nn.Module, x: Tensor, steps: int = 4) -> list[float]:
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    found = []
    for _ in range(steps):
        loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


@takes_integers
@on_every_rank
def test_fsdp_gives_the_same_bits_and_trains_the_rest(mesh: DeviceMesh) -> None:
    model, x = model_for(mesh), x_for(mesh)
    sharded = fsdp(copy.deepcopy(model), mesh)
    for layer in layers(sharded):
        assert isinstance(layer.weight, DTensor)
        assert layer.weight.to_local().shape[0] == layer.out_features // mesh.size()
    assert_same_bits(sharded(x), model(x))
    expected = losses(model, x)
    assert expected[-1] < expected[0]
    assert losses(sharded, x) == pytest.approx(expected, rel=1e-5)
    assert_same_parameters(sharded, model_for(mesh), only="weight_scale")
    assert_same_parameters(sharded, model_for(mesh), only="up.weight")


@takes_integers
@on_every_rank
def test_mixed_precision_casts_no_codes(mesh: DeviceMesh) -> None:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = model_for(mesh)
    sharded = fsdp(copy.deepcopy(model), mesh, mp_policy=policy)
    seen: list[torch.dtype] = []

    def look(layer: nn.Module, given: tuple[Tensor, ...]) -> None:
        assert isinstance(layer, Mxfp4Linear)
        expected = layers(model)[len(seen)]
        assert_same_bits(layer.weight, expected.weight)
        assert_same_bits(layer.weight_scale, expected.weight_scale)
        assert layer.bias is not None
        seen.append(layer.bias.dtype)

    hooks = [layer.register_forward_pre_hook(look) for layer in layers(sharded)]
    x = x_for(mesh)
    y = sharded(x)
    for hook in hooks:
        hook.remove()
    assert seen == [torch.bfloat16] * 4
    assert_same_bits(y, model.bfloat16()(x.bfloat16()))
    found = losses(sharded, x)
    assert found[-1] < found[0]


@on_every_rank
def test_fsdp_may_ignore_the_codes(mesh: DeviceMesh) -> None:
    """What FSDP2 of torch 2.11 needs."""
    model, x = model_for(mesh), x_for(mesh)
    sharded = copy.deepcopy(model)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    fsdp(sharded, mesh, mp_policy=policy, ignored_params=integers(sharded))
    assert_same_bits(sharded(x), copy.deepcopy(model).bfloat16()(x.bfloat16()))
    found = losses(sharded, x)
    assert found[-1] < found[0]
    assert_same_parameters(sharded, model, only="weight_scale")


@takes_integers
@on_every_rank
def test_fsdp_over_tensor_parallel(mesh: DeviceMesh) -> None:
    both = init_device_mesh(mesh.device_type, (mesh.size() // 2, 2), mesh_dim_names=("dp", "tp"))
    model, x = model_for(mesh), x_for(mesh)
    sharded = fsdp(tensor_parallel(copy.deepcopy(model), both["tp"]), both["dp"])
    assert_same_parameters(sharded, model)
    torch.testing.assert_close(sharded(x), model(x), rtol=1e-5, atol=1e-4)
    assert losses(sharded, x) == pytest.approx(losses(model, x), rel=1e-4)
    assert_same_parameters(sharded, model_for(mesh), only="weight_scale")


# Checkpoints.


def source() -> nn.Module:
    model = nn.Sequential(Block(), Block())
    with torch.no_grad():
        for i, parameter in enumerate(p for p in model.parameters() if p.requires_grad):
            parameter.copy_(random_x(*parameter.shape, seed=i))
    return model


SHARDINGS = {"tensor parallel": tensor_parallel, "fsdp": fsdp}
every_sharding = pytest.mark.parametrize(
    "sharding", ["tensor parallel", pytest.param("fsdp", marks=takes_integers)]
)


def save(mesh: DeviceMesh, sharding: str, folder: Path) -> None:
    model = SHARDINGS[sharding](source(), mesh)
    save_checkpoint(get_model_state_dict(model), checkpoint_id=folder)


def load(mesh: DeviceMesh, sharding: str, folder: Path) -> None:
    model = SHARDINGS[sharding](model_for(mesh).to("meta"), mesh).to_empty(device="cpu")
    state = get_model_state_dict(model)
    load_checkpoint(state, checkpoint_id=folder)
    set_model_state_dict(model, state)
    assert_same_parameters(model, source())
    torch.testing.assert_close(model(x_for(mesh)), source()(x_for(mesh)), rtol=1e-5, atol=1e-4)


@every_sharding
def test_checkpoint_of_four_ranks_on_two_and_on_one(tmp_path: Path, sharding: str) -> None:
    group(4).run(save, sharding=sharding, folder=tmp_path)
    for other in SHARDINGS:
        if other != "fsdp" or TAKES_INTEGERS:
            group(2).run(load, sharding=other, folder=tmp_path)
    model = nn.Sequential(Block(), Block())
    state = model.state_dict()
    with pytest.warns(UserWarning, match="load in a single process"):
        load_checkpoint(state, checkpoint_id=tmp_path, no_dist=True)
    model.load_state_dict(state)
    assert_same_parameters(model, source())
