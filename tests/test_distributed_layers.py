"""`Mxfp4Linear` under tensor parallelism: `parallelize_module` with torch's styles and ours."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from common import Product, assert_same_bits, every_dtype, quantized_values
from linears import float_linear, mx, mx_linear, random_x, swap
from ranks import LOOPBACK, on_every_rank, ranks
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor import parallel as torch_parallel
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    parallelize_module,
)
from torch.utils._python_dispatch import TorchDispatchMode

from mxfp4_ops.distributed import RowwiseParallel

__all__ = ["ranks"]

IN, HIDDEN = 96, 256


def mlp(mesh: DeviceMesh, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    up, down = float_linear(IN, HIDDEN, dtype=dtype), float_linear(HIDDEN, IN, dtype=dtype, seed=4)
    model = nn.Sequential(up, nn.GELU(), down)
    swap(model, scale_mode="ceil")
    return model.to(mesh.device_type)


def parallel(
    mesh: DeviceMesh, model: nn.Sequential, down: ParallelStyle | None = None
) -> nn.Sequential:
    """The model itself, sharded."""
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": down or RowwiseParallel()})
    return model


def placements(model: nn.Module) -> dict[str, tuple[Placement, ...]]:
    return {n: p.placements for n, p in model.named_parameters() if isinstance(p, DTensor)}


def x_for(mesh: DeviceMesh, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return random_x(*shape, dtype=dtype).to(mesh.device_type)


def local(t: object) -> Tensor:
    assert isinstance(t, Tensor)
    return (t.full_tensor() if isinstance(t, DTensor) else t).detach().cpu()


def check_down(mesh: DeviceMesh, model: nn.Module, hidden: Tensor, y: Tensor) -> None:
    """That `y` is what the whole second layer `model[2]` makes of `hidden`, within the contract."""
    layer = mx(model, "2")
    a = quantized_values(hidden.flatten(0, -2), layer.scale_mode)
    w = layer.dequantize(torch.float32).cpu().double()
    product = Product.of(a, w, local(layer.bias))
    rounding = mesh.size() * 2.0**-24 * (a.abs() @ w.abs().T)  # of the sums of ranks, and adding
    Product(product.exact, product.bound + rounding).check(y.flatten(0, -2))


@every_dtype
@pytest.mark.parametrize("style", [RowwiseParallel, torch_parallel.RowwiseParallel])
@on_every_rank
def test_mlp(mesh: DeviceMesh, style: type[ParallelStyle], dtype: torch.dtype) -> None:
    model, x = mlp(mesh, dtype), x_for(mesh, 2, 5, IN, dtype=dtype)
    hidden = model[1](model[0](x))
    sharded = parallel(mesh, copy.deepcopy(model), style())
    shards = []
    sharded[1].register_forward_hook(lambda module, given, out: shards.append(out))
    with CommDebugMode() as communication:
        y = sharded(x)
    assert communication.get_total_counts() == 1
    assert type(y) is Tensor
    assert y.dtype == dtype
    if mesh.device_type == "cpu":  # where no sum depends on the number of columns
        width = HIDDEN // mesh.size()
        assert_same_bits(shards[0], hidden.narrow(2, mesh.get_local_rank() * width, width))
    check_down(mesh, model, hidden, y)


@pytest.mark.parametrize("style", [RowwiseParallel, torch_parallel.RowwiseParallel])
@on_every_rank
def test_parameters(mesh: DeviceMesh, style: type[ParallelStyle]) -> None:
    model = mlp(mesh)
    sharded = parallel(mesh, copy.deepcopy(model), style())
    columns, rows = (Shard(0),), (Shard(1),)
    assert placements(sharded) == {
        "0.weight": columns,
        "0.weight_scale": columns,
        "0.bias": columns,
        "2.weight": rows,
        "2.weight_scale": rows,
        "2.bias": (Replicate(),),
    }
    for name, parameter in sharded.named_parameters():
        assert parameter.requires_grad is name.endswith("bias")
        assert_same_bits(local(parameter), local(model.get_parameter(name)))
    for name in "0", "2":
        assert_same_bits(local(mx(sharded, name).dequantize()), mx(model, name).dequantize().cpu())
    again = copy.deepcopy(sharded)
    assert_same_bits(again(x_for(mesh, 3, IN)), sharded(x_for(mesh, 3, IN)))


@pytest.mark.parametrize("style", [RowwiseParallel, torch_parallel.RowwiseParallel])
@on_every_rank
def test_misaligned_k_is_refused(mesh: DeviceMesh, style: type[ParallelStyle]) -> None:
    model = nn.Sequential(mx_linear(160, 64)).to(mesh.device_type)
    message = f"K = 160 cannot be sharded over {mesh.size()} ranks"
    with pytest.raises(ValueError, match=message):
        parallelize_module(model, mesh, {"0": style()})


@on_every_rank
def test_sequence_parallel(mesh: DeviceMesh) -> None:
    model, x = mlp(mesh), x_for(mesh, 2, 8, IN)
    plan = {
        "0": ColwiseParallel(input_layouts=Shard(1)),
        "2": RowwiseParallel(output_layouts=Shard(1)),
    }
    sharded = parallelize_module(copy.deepcopy(model), mesh, plan)
    rows = 8 // mesh.size()
    first = mesh.get_local_rank() * rows
    with CommDebugMode() as communication:
        y = sharded(x.narrow(1, first, rows))
    counts = {str(op): n for op, n in communication.get_comm_counts().items()}
    assert counts == {
        "c10d_functional.all_gather_into_tensor": 1,
        "c10d_functional.reduce_scatter_tensor": 1,
    }
    check_down(mesh, model, model[1](model[0](x)).narrow(1, first, rows), y)


class Reduced(TorchDispatchMode):
    """Notes the dtypes of what is reduced over ranks."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.dtypes: list[torch.dtype] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "all_reduce" in str(func):
            self.dtypes.append(args[0].dtype)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16, None], ids=str)
@on_every_rank
def test_reduce_dtype(mesh: DeviceMesh, given: torch.dtype | None) -> None:
    model, x = mlp(mesh, torch.float16), x_for(mesh, 5, IN, dtype=torch.float16)
    sharded = parallel(mesh, copy.deepcopy(model), RowwiseParallel(reduce_dtype=given))
    with Reduced() as reduced:
        y = sharded(x)
    assert reduced.dtypes == [given or torch.float16]
    assert y.dtype == torch.float16


@on_every_rank
def test_output_placements(mesh: DeviceMesh) -> None:
    model, x = mlp(mesh), x_for(mesh, 4, IN)
    of_y: list[Placement] = [Replicate(), Shard(0), Shard(-1)]
    for placement in of_y:
        style = RowwiseParallel(output_layouts=placement, use_local_output=False)
        y = parallel(mesh, copy.deepcopy(model), style)(x)
        assert isinstance(y, DTensor)
        assert y.placements == (Shard(1) if placement == Shard(-1) else placement,)
        check_down(mesh, model, model[1](model[0](x)), y.full_tensor())


@on_every_rank
def test_training(mesh: DeviceMesh) -> None:
    """Gradients of biases and input, and so every step, are those of one process."""
    model = mlp(mesh)
    sharded = parallel(mesh, copy.deepcopy(model))
    x = x_for(mesh, 6, IN).requires_grad_()
    results = []
    for m in model, sharded:
        optimizer = torch.optim.SGD([p for p in m.parameters() if p.requires_grad], lr=1e-3)
        losses = []
        for _ in range(3):
            x.grad = None
            optimizer.zero_grad()
            loss = m(x).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[2] < losses[1] < losses[0]
        results.append([torch.tensor(losses), *map(local, (x.grad, m[0].bias, m[2].bias))])
        assert m[0].weight.grad is None
    # float32 sums of 256 terms, three times over
    for expected, actual in zip(*results, strict=True):
        assert (actual - expected).abs().max() <= 1e-4 * expected.abs().max()


@on_every_rank
def test_autocast(mesh: DeviceMesh) -> None:
    model, hidden = mlp(mesh), x_for(mesh, 6, HIDDEN)
    sharded = parallel(mesh, copy.deepcopy(model), RowwiseParallel(input_layouts=Replicate()))
    with torch.autocast(mesh.device_type, dtype=torch.bfloat16):
        y = sharded[2](hidden)
    assert y.dtype == torch.bfloat16
    check_down(mesh, model, hidden.bfloat16(), y)


@on_every_rank
def test_meta_model_takes_a_sharded_state_dict(mesh: DeviceMesh) -> None:
    source, x = parallel(mesh, mlp(mesh)), x_for(mesh, 6, IN)
    state = source.state_dict()
    assigned = parallel(mesh, mlp(mesh).to("meta"))
    assigned.load_state_dict(state, assign=True)
    copied = parallel(mesh, mlp(mesh).to("meta")).to_empty(device=mesh.device_type)
    copied.load_state_dict(state)
    for model in assigned, copied:
        assert_same_bits(model(x), source(x))
        assert placements(model) == placements(source)


@pytest.mark.parametrize("ranks", [(2, "gloo")], ids=["2"], indirect=True)
@on_every_rank
def test_compiled(mesh: DeviceMesh) -> None:
    model = parallel(mesh, mlp(mesh, torch.bfloat16))
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for m in 5, 9, 6:
        x = x_for(mesh, m, IN, dtype=torch.bfloat16)
        assert_same_bits(compiled(x), model(x))


@on_every_rank
def test_our_style_treats_other_layers_as_torchs_does(mesh: DeviceMesh) -> None:
    linear, x = float_linear(64, 40).to(mesh.device_type), x_for(mesh, 3, 64)
    width = 64 // mesh.size()
    shard = x.narrow(1, mesh.get_local_rank() * width, width)
    results = [
        parallelize_module(copy.deepcopy(linear), mesh, style())(shard)
        for style in (RowwiseParallel, torch_parallel.RowwiseParallel)
    ]
    assert_same_bits(*results)


LAZY = """
import sys, torch, mxfp4_ops
import torch.distributed as dist
lazy = {"torch.distributed.tensor", "mxfp4_ops.distributed"}
assert not lazy & sys.modules.keys()
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
mesh = dist.init_device_mesh("cpu", (1,))
model = torch.nn.Sequential(mxfp4_ops.Mxfp4Linear(64, 32), mxfp4_ops.Mxfp4Linear(32, 8))
assert "mxfp4_ops.distributed" not in sys.modules
parallelize_module(model, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
assert torch.equal(model(torch.ones(2, 64)), torch.zeros(2, 8))
"""


def test_the_rules_are_registered_when_a_layer_is_sharded() -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), **LOOPBACK}
    command = [sys.executable, "-P", "-c", LAZY]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
