"""`grouped_quant_mm` on DTensors: every rank has part of every expert."""

from __future__ import annotations

import pytest
import torch
from common import Product, assert_same_bits, quantized_values
from experts import Experts
from ranks import on_every_rank, ranks
from test_distributed import R, put, whole
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Shard

import mxfp4_ops.distributed  # noqa: F401  # teaches DTensor the operators

__all__ = ["ranks"]

grouped_quant_mm = torch.ops.mxfp4.grouped_quant_mm


def shards(
    case: Experts, mesh: DeviceMesh, x: Placement, w: Placement, bias: Placement
) -> list[DTensor]:
    given = zip(case.arguments(), (x, w, w, R, bias), strict=True)
    return [put(mesh, t, p) for t, p in given if t is not None]


@pytest.mark.parametrize("with_bias", [False, True], ids=["bare", "bias"])
@on_every_rank
def test_columns(mesh: DeviceMesh, with_bias: bool) -> None:
    """Rows of the weights are cut, in pieces that need not be alike, or none."""
    case = Experts.of([3, 0, 18], 50, 96, bias=torch.float32 if with_bias else None)
    for placement in (R, Shard(1)):
        y = grouped_quant_mm(*shards(case, mesh, R, placement, placement))
        assert y.placements == (placement,)
        case.check(whole(y))
        if mesh.device_type == "cpu":
            assert_same_bits(whole(y), grouped_quant_mm(*case.arguments()))


@on_every_rank
def test_rows(mesh: DeviceMesh) -> None:
    """K is cut: partial sums, to which each rank adds its part of the bias."""
    case = Experts.of([3, 0, 18], 50, 256, bias=torch.float32)
    for x in (Shard(1), R, Shard(0)):
        arguments = shards(case, mesh, x, Shard(2), R)
        y = grouped_quant_mm(*arguments, out_dtype=torch.float32)
        if x == Shard(1):
            assert y.placements == (Partial(),)
        added = whole(y)
        for expert, rows in enumerate(case.groups):
            assert case.bias is not None
            values, weight = quantized_values(case.x[rows]), case.values(expert)
            product = Product.of(values, weight, case.bias[expert])
            sizes = values.abs() @ weight.abs().T + case.bias[expert].double().abs()
            bound = product.bound + 2 * mesh.size() * 2.0**-24 * sizes
            Product(product.exact, bound).check(added[rows])


@on_every_rank
def test_no_shard_of_k_splits_a_block(mesh: DeviceMesh) -> None:
    case = Experts.of([3, 0, 18], 48, 160, bias=torch.float32)
    with pytest.raises(RuntimeError, match="K = 160 cannot be sharded over"):
        grouped_quant_mm(*shards(case, mesh, R, Shard(2), R))
