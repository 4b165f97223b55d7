"""Tensor parallelism: how the operators work on shards, and a style for layers sharded along K.

Importing this module teaches `torch.distributed.tensor` the operators. A layer whose parameters
become DTensors imports it by itself.

A product is split along M (data parallel), along N (column parallel) or along K (row parallel). A
shard of K must hold whole blocks of 32, each rank as many as the next, and a shuffled weight is cut
along N only, between tiles of 256 rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.distributed.tensor.experimental import register_sharding
from torch.distributed.tensor.parallel import RowwiseParallel as _TorchRowwiseParallel

from . import api
from .formats import BLOCK
from .layout import SCALE_ROWS
from .linear import Mxfp4Linear

__all__ = ["RowwiseParallel"]

Sharding = tuple[list[Placement], list[Placement]]
"""Placements of the results and of the tensors given, on one dimension of the mesh."""


def _register(op: Any, rule: Callable[..., list[Sharding]]) -> None:
    register_sharding(op)(rule)
    # Decisions are remembered by shapes, placements and integers. Ours depend on flags as well.
    info = DTensor._op_dispatcher.sharding_propagator.op_to_schema_info[op]
    info.static_kwargkey = [a.name for a in op._schema.arguments if a.kwarg_only]


def _cuts(*sharded: tuple[Any, int]) -> list[int]:
    """Sizes of the mesh dimensions along which any of these tensors is cut in its given dimension.

    Their product is the number of shards, if all are cut alike.
    """
    mesh = sharded[0][0].device_mesh
    cut = {
        i
        for t, dim in sharded
        for i, p in enumerate(t.placements)
        if p.is_shard(dim % len(t.shape))
    }
    return [mesh.size(i) for i in cut]


def _product(
    left: Sequence[Any], weight: Any, weight_scale: Any, bias: Any, shuffled: bool
) -> list[Sharding]:
    right = weight, weight_scale
    _check_weight(*right, shuffled)
    columns = left[0].ndim - 1

    def sharding(out: Placement, x: Placement, w: Placement, b: Placement) -> Sharding:
        return [out], [x] * len(left) + [w, w] + ([] if bias is None else [b])

    replicate = Replicate()
    shardings = [sharding(replicate, replicate, replicate, replicate)]
    for dim in range(columns):
        shardings.append(sharding(Shard(dim), Shard(dim), replicate, replicate))
    # Along N and K only as the weight is cut already, so that it alone decides what the result is.
    if _cuts(*((t, 0) for t in right)):
        shardings.append(sharding(Shard(columns), replicate, Shard(0), Shard(0)))
    if _cuts(*((t, 1) for t in right)):
        ways = prod(_cuts(*((t, -1) for t in (*left, *right))))
        if weight.shape[1] * 2 % (BLOCK * ways) == 0:
            # Each rank adds its part of the bias.
            shardings.append(sharding(Partial(), Shard(columns), Shard(1), Partial()))
    return shardings


def _check_weight(weight: Any, weight_scale: Any, shuffled: bool) -> None:
    rows, columns = (prod(_cuts((weight, dim), (weight_scale, dim))) for dim in (0, 1))
    if not shuffled:
        _check_k(weight.shape[1] * 2, columns)
        return
    if columns > 1:
        raise ValueError(
            "a shuffled weight cannot be sharded along K, since its columns are those of no plain "
            "one; shard the plain weight and shuffle each shard"
        )
    n, tiles = weight.shape[0], SCALE_ROWS * rows
    if rows > 1 and n % tiles:
        raise ValueError(
            f"a shuffled weight of N = {n} rows cannot be sharded over {rows} ranks: N must be a "
            f"multiple of {SCALE_ROWS} * {rows} = {tiles}, so that no tile is split"
        )


def _check_k(k: int, ways: int) -> None:
    if k % (BLOCK * ways):
        raise ValueError(
            f"K = {k} cannot be sharded over {ways} ranks: it must be a multiple of "
            f"{BLOCK} * {ways} = {BLOCK * ways}, so that no block of {BLOCK} is split"
        )


def _quant_mm(
    x: Any, weight: Any, weight_scale: Any, bias: Any = None, *, shuffled: bool = False, **_: Any
) -> list[Sharding]:
    return _product([x], weight, weight_scale, bias, shuffled)


def _mm(
    a: Any,
    a_scale: Any,
    b: Any,
    b_scale: Any,
    bias: Any = None,
    *,
    shuffled: bool = False,
    **_: Any,
) -> list[Sharding]:
    return _product([a, a_scale], b, b_scale, bias, shuffled)


def _grouped(
    x: Any, weight: Any, weight_scale: Any, offsets: Any, bias: Any = None, **_: Any
) -> list[Sharding]:
    """Each rank has part of every expert: rows of its weight, or columns."""
    replicate, right = Replicate(), (weight, weight_scale)

    def sharding(out: Placement, left: Placement, w: Placement, b: Placement) -> Sharding:
        return [out], [left, w, w, replicate] + ([] if bias is None else [b])

    shardings = [sharding(replicate, replicate, replicate, replicate)]
    k = weight.shape[2] * 2
    _check_k(k, prod(_cuts(*((t, 2) for t in right))))
    if _cuts(*((t, 1) for t in right)):
        shardings.append(sharding(Shard(1), replicate, Shard(1), Shard(1)))
    ways = prod(_cuts(*((t, -1) for t in (x, *right))))
    if _cuts(*((t, 2) for t in right)) and k % (BLOCK * ways) == 0:
        shardings.append(sharding(Partial(), Shard(1), Shard(2), Partial()))
    return shardings


def _conversion(given: Sequence[Any], results: int, k: int) -> list[Sharding]:
    """Shardings of what treats every block by itself."""
    columns = given[0].ndim - 1
    placements: list[Placement] = [Replicate(), *map(Shard, range(columns))]
    cuts = _cuts(*((t, -1) for t in given))
    if cuts and k % (BLOCK * prod(cuts)) == 0:
        placements.append(Shard(columns))
    return [([p] * results, [p] * len(given)) for p in placements]


def _quantize(x: Any, **_: Any) -> list[Sharding]:
    return _conversion([x], 2, x.shape[-1])


def _dequantize(q: Any, scale: Any, **_: Any) -> list[Sharding]:
    return _conversion([q, scale], 1, q.shape[-1] * 2)


def _shuffle(weight: Any, weight_scale: Any) -> list[Sharding]:
    placements: list[Placement] = [Replicate()]
    cuts = _cuts((weight, 0), (weight_scale, 0))
    if cuts and weight.shape[0] % (SCALE_ROWS * prod(cuts)) == 0:
        placements.append(Shard(0))
    return [([p] * 2, [p] * 2) for p in placements]


def _unshuffle(weight: Any, weight_scale: Any, n: int, k: int) -> list[Sharding]:
    # Its sizes are those of the whole weight.
    return [([Replicate()] * 2, [Replicate()] * 2)]


_register(torch.ops.mxfp4.quant_mm.default, _quant_mm)
_register(torch.ops.mxfp4.mm.default, _mm)
_register(torch.ops.mxfp4.mm_a16.default, _quant_mm)
_register(torch.ops.mxfp4.grouped_quant_mm.default, _grouped)
_register(torch.ops.mxfp4.quantize.default, _quantize)
_register(torch.ops.mxfp4.dequantize.default, _dequantize)
_register(torch.ops.mxfp4.shuffle.default, _shuffle)
_register(torch.ops.mxfp4.unshuffle.default, _unshuffle)


# Layers.


@dataclass(frozen=True)
class Reduction:
    """How a layer sharded along K adds up what its ranks computed.

    Attributes:
        placements: of the result; whole on every rank if None.
        dtype: in which partial sums are rounded, sent and added; the output's if None.
    """

    placements: tuple[Placement, ...] | None = None
    dtype: torch.dtype | None = torch.float32


def _is_cut_along_k(weight: Any) -> bool:
    return any(placement.is_shard(1) for placement in weight.placements)


def follow(layer: Mxfp4Linear) -> None:
    """Shard a layer's scales as its codes have been; styles that know only `weight` leave them."""
    weight, scale = layer.weight, layer.weight_scale
    if isinstance(weight, DTensor) and _is_cut_along_k(weight):
        _check_k(layer.in_features, prod(_cuts((weight, 1))))
        if not isinstance(scale, DTensor):
            scale = distribute_tensor(scale, weight.device_mesh, weight.placements)
            layer.weight_scale = nn.Parameter(scale, requires_grad=False)


def linear(layer: Mxfp4Linear, x: Tensor) -> Tensor:
    """`Mxfp4Linear.forward` for parameters that are DTensors."""
    if not _is_cut_along_k(layer.weight):
        return layer.multiply(x, layer.bias)
    bias = layer.bias
    x, reduction = api.autocast_input(x), layer.reduction or Reduction()
    y: Any = layer.multiply(x, None, reduction.dtype)
    whole = [Replicate() if p.is_partial() else p for p in y.placements]
    y = y.redistribute(placements=reduction.placements or whole)
    return (y if bias is None else y + bias).to(x.dtype)


class RowwiseParallel(_TorchRowwiseParallel):
    """torch's style of this name, for `Mxfp4Linear` layers too; for others it is the same.

    The layer's weight is sharded along K, so K must be a multiple of 32 times the number of ranks.
    Each rank multiplies its part of K; the results are added in `reduce_dtype`, then the bias once,
    and the sum is rounded to the output's dtype.

    Args:
        input_layouts: placement of the input; sharded along its last dimension if None.
        output_layouts: placement of the output; whole on every rank if None.
        use_local_output: return a plain tensor rather than a DTensor.
        reduce_dtype: in which partial sums are rounded, sent and added. None is the output's dtype:
            half of the traffic for 16-bit outputs, and an error of up to half a unit in the last
            place of every partial sum.
    """

    def __init__(
        self,
        *,
        input_layouts: Placement | None = None,
        output_layouts: Placement | None = None,
        use_local_output: bool = True,
        reduce_dtype: torch.dtype | None = torch.float32,
    ) -> None:
        super().__init__(
            input_layouts=input_layouts,
            output_layouts=output_layouts,
            use_local_output=use_local_output,
        )
        self.reduce_dtype = reduce_dtype

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if isinstance(module, Mxfp4Linear):
            module.reduction = Reduction(self.output_layouts, self.reduce_dtype)
        return super()._apply(module, device_mesh)
