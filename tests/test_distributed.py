"""The operators on DTensors: what each sharding gives, and which are refused."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from common import (
    DTYPES,
    Product,
    activation,
    assert_same_bits,
    quantized_values,
    random_weight,
)
from ranks import on_every_rank, ranks
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.distributed.tensor.debug import CommDebugMode

import mxfp4_ops
import mxfp4_ops.distributed

__all__ = ["ranks"]

R = Replicate()


def put(mesh: DeviceMesh, t: Tensor, *placements: Placement) -> DTensor:
    return distribute_tensor(t.to(mesh.device_type), mesh, placements)


def whole(t: Tensor) -> Tensor:
    assert isinstance(t, DTensor)
    return t.full_tensor().cpu()


class Case:
    """One product, whole: quant_mm or mm_a16, or mm of the same operands."""

    def __init__(self, op: str, *lead: int, n: int, k: int, dtype: torch.dtype = torch.bfloat16):
        self.op = getattr(torch.ops.mxfp4, op)
        self.weight = random_weight(n, k)
        self.bias = torch.randn(n, generator=torch.Generator().manual_seed(n))
        x = activation(*lead, k, dtype=dtype)
        values = x.double() if op == "mm_a16" else quantized_values(x)
        self.values = values.flatten(0, -2) if lead else values[None]
        self.left = list(mxfp4_ops.quantize(x)) if op == "mm" else [x]

    def arguments(
        self, mesh: DeviceMesh, x: Placement, w: Placement, bias: Placement
    ) -> list[DTensor]:
        right = self.weight.codes, self.weight.scales
        return [
            *(put(mesh, t, x) for t in self.left),
            *(put(mesh, t, w) for t in right),
            put(mesh, self.bias, bias),
        ]

    def expected(self, **options: Any) -> Tensor:
        """On this rank alone."""
        out = self.op(*self.left, self.weight.codes, self.weight.scales, self.bias, **options)
        assert isinstance(out, Tensor)
        return out

    def product(self) -> Product:
        return Product.of(self.values, self.weight.values, self.bias)


def check(case: Case, mesh: DeviceMesh, out: DTensor, **options: Any) -> None:
    """The contract, and on the CPU, where the order of the sums is that of one rank, the bits."""
    y = whole(out)
    case.product().check(y.reshape(-1, y.shape[-1]))
    if mesh.device_type == "cpu":
        assert_same_bits(y, case.expected(**options))


every_op = pytest.mark.parametrize("op", ["quant_mm", "mm", "mm_a16"])


@every_op
@pytest.mark.parametrize("lead", [(8, 5), (12,), ()], ids=str)
@pytest.mark.parametrize("n", [48, 50])
@on_every_rank
def test_replicated_and_data_and_column_parallel(
    mesh: DeviceMesh, op: str, lead: tuple[int, ...], n: int
) -> None:
    case = Case(op, *lead, n=n, k=96)
    columns: tuple[Placement, ...] = R, Shard(0), Shard(0), Shard(len(lead))
    rows = ((Shard(dim), R, R, Shard(dim)) for dim in range(len(lead)))
    for x, w, bias, placement in ((R, R, R, R), columns, *rows):
        arguments = case.arguments(mesh, x, w, bias)
        with CommDebugMode() as communication:
            out = case.op(*arguments)
        assert out.placements == (placement,)
        assert communication.get_total_counts() == 0
        check(case, mesh, out)


@every_op
@pytest.mark.parametrize("lead", [(2, 5), ()], ids=str)
@on_every_rank
def test_row_parallel(mesh: DeviceMesh, op: str, lead: tuple[int, ...]) -> None:
    case = Case(op, *lead, n=50, k=256)
    arguments = case.arguments(mesh, Shard(len(lead)), Shard(1), R)
    with CommDebugMode() as communication:
        out = case.op(*arguments, out_dtype=torch.float32)
    assert out.placements == (Partial(),)
    assert communication.get_total_counts() == 0
    check_sum(case, mesh, whole(out))


def check_sum(case: Case, mesh: DeviceMesh, y: Tensor) -> None:
    """A sum of float32 partial sums, each rounded and added in float32."""
    product, sizes = case.product(), case.values.abs() @ case.weight.values.abs().T
    sizes = sizes + case.bias.double().abs()
    bound = product.bound + 2 * mesh.size() * 2.0**-24 * sizes
    Product(product.exact, bound).check(y.reshape(-1, y.shape[-1]))


@every_op
@on_every_rank
def test_row_parallel_in_16_bits(mesh: DeviceMesh, op: str) -> None:
    case = Case(op, 6, n=50, k=256)
    y = whole(case.op(*case.arguments(mesh, Shard(1), Shard(1), R), out_dtype=torch.bfloat16))
    # Every rank's sum is rounded, and so is each addition of them.
    shards = [t.chunk(mesh.size(), 1) for t in (case.values, case.weight.values)]
    sizes = sum((a @ w.T).abs() for a, w in zip(*shards, strict=True)) + case.bias.double().abs()
    product = case.product()
    Product(product.exact, product.bound + mesh.size() * 2.0**-8 * sizes).check(y)


@every_op
@on_every_rank
def test_other_placements_are_brought_into_one_that_works(mesh: DeviceMesh, op: str) -> None:
    case = Case(op, 4, n=48, k=256)
    codes, scales = case.weight.codes, case.weight.scales
    bias = itertools.cycle(put(mesh, case.bias, placement) for placement in (R, Shard(0)))
    for x, w, s in itertools.product((R, Shard(0), Shard(1)), repeat=3):
        left = [put(mesh, t, x) for t in case.left]
        right = put(mesh, codes, w), put(mesh, scales, s), next(bias)
        y = case.op(*left, *right, out_dtype=torch.float32)
        check_sum(case, mesh, whole(y))
        if Shard(1) not in (w, s):  # the weight decides whether there are partial sums
            assert y.placements != (Partial(),)


@every_op
@on_every_rank
def test_fewer_rows_and_columns_than_ranks(mesh: DeviceMesh, op: str) -> None:
    case = Case(op, 1, n=1, k=64)
    check(case, mesh, case.op(*case.arguments(mesh, Shard(0), R, R)))
    check(case, mesh, case.op(*case.arguments(mesh, R, Shard(0), Shard(0))))


@every_op
@pytest.mark.parametrize("k", [160, 96])
@on_every_rank
def test_no_shard_of_k_splits_a_block(mesh: DeviceMesh, op: str, k: int) -> None:
    case, ways = Case(op, 4, n=48, k=k), mesh.size()
    for x in (R, Shard(0), Shard(1)):
        message = rf"K = {k} cannot be sharded over {ways} ranks: .* multiple of 32 \* {ways}"
        with pytest.raises(RuntimeError, match=message):
            case.op(*case.arguments(mesh, x, Shard(1), R))
    # An activation is brought together wherever it is cut.
    check(case, mesh, case.op(*case.arguments(mesh, Shard(1), R, R)))
    check(case, mesh, case.op(*case.arguments(mesh, Shard(1), Shard(0), Shard(0))))


@on_every_rank
def test_wrong_arguments_are_named_as_without_shards(mesh: DeviceMesh) -> None:
    x, weight = torch.ones(4, 128), random_weight(48, 256)
    codes, scales = put(mesh, weight.codes, Shard(1)), put(mesh, weight.scales, Shard(1))
    with pytest.raises((RuntimeError, ValueError), match="x has K = 128, but weight has K = 256"):
        mxfp4_ops.quant_mm(put(mesh, x, Shard(1)), codes, scales)
    with pytest.raises((RuntimeError, ValueError), match="x must be bfloat16 or"):
        mxfp4_ops.quant_mm(put(mesh, x.double(), Shard(1)), codes, scales)


@on_every_rank
def test_output_dtype(mesh: DeviceMesh) -> None:
    case = Case("quant_mm", 4, n=48, k=256)
    arguments = case.arguments(mesh, R, Shard(0), Shard(0))
    for dtype in (*DTYPES, *DTYPES):  # the second time from what DTensor remembers
        out = case.op(*arguments, out_dtype=dtype)
        assert out.dtype == dtype
        check(case, mesh, out, out_dtype=dtype)


@every_op
@on_every_rank
def test_shuffled_weight_along_n(mesh: DeviceMesh, op: str) -> None:
    case = Case(op, 4, n=1024, k=256)
    shuffled = mxfp4_ops.shuffle(case.weight.codes, case.weight.scales)
    left, bias = [put(mesh, t, R) for t in case.left], put(mesh, case.bias, Shard(0))
    right = [put(mesh, t, Shard(0)) for t in shuffled]
    with CommDebugMode() as communication:
        out = case.op(*left, *right, bias, shuffled=True)
    assert out.placements == (Shard(1),)
    assert communication.get_total_counts() == 0
    check(case, mesh, out)


@every_op
@on_every_rank
def test_shuffled_weight_is_cut_between_tiles_only(mesh: DeviceMesh, op: str) -> None:
    case = Case(op, 4, n=1280, k=256)
    weight = mxfp4_ops.shuffle(case.weight.codes, case.weight.scales)

    def product(x: Placement, w: Placement, shuffled: bool) -> DTensor:
        arguments = [*(put(mesh, t, x) for t in case.left), *(put(mesh, t, w) for t in weight)]
        out = case.op(*arguments, put(mesh, case.bias, R), shuffled=shuffled)
        assert isinstance(out, DTensor)
        return out

    # Of these shapes the weight might be plain as well, which DTensor may remember.
    assert product(Shard(1), Shard(1), False).placements == (Partial(),)
    with pytest.raises(RuntimeError, match="a shuffled weight cannot be sharded along K"):
        product(Shard(1), Shard(1), True)
    assert product(R, Shard(0), False).placements == (Shard(1),)
    with pytest.raises(RuntimeError, match=r"N = 1280 rows cannot be sharded over . ranks: .* 256"):
        product(R, Shard(0), True)
    for x in (R, Shard(0), Shard(1)):
        check(case, mesh, product(x, R, True))


@pytest.mark.parametrize("k", [160, 256])
@on_every_rank
def test_quantize_and_dequantize(mesh: DeviceMesh, k: int) -> None:
    x = activation(5, 8, k, dtype=torch.bfloat16)
    codes, scales = mxfp4_ops.quantize(x)
    values = mxfp4_ops.dequantize(codes, scales)
    for placement in (R, Shard(0), Shard(1), Shard(2)):
        aligned = placement != Shard(2) or k % (32 * mesh.size()) == 0
        given = [put(mesh, t, placement) for t in (x, codes, scales)]
        with CommDebugMode() as communication:
            results = [*mxfp4_ops.quantize(given[0]), mxfp4_ops.dequantize(*given[1:])]
        for result, expected in zip(results, (codes, scales, values), strict=True):
            assert isinstance(result, DTensor)
            assert (result.placements == (placement,)) is aligned
            assert_same_bits(whole(result), expected)
        assert (communication.get_total_counts() == 0) is aligned


@pytest.mark.parametrize("n", [1024, 300])
@on_every_rank
def test_shuffle_and_unshuffle(mesh: DeviceMesh, n: int) -> None:
    weight = random_weight(n, 256)
    plain = weight.codes, weight.scales
    shuffled = mxfp4_ops.shuffle(*plain)
    for placement in (R, Shard(0), Shard(1)):
        results = mxfp4_ops.shuffle(*(put(mesh, t, placement) for t in plain))
        between_tiles = placement == Shard(0) and n % (256 * mesh.size()) == 0
        for result, expected in zip(results, shuffled, strict=True):
            assert isinstance(result, DTensor)
            assert result.placements == ((placement,) if between_tiles else (R,))
            assert_same_bits(whole(result), expected)
        codes, scales = (put(mesh, t, placement) for t in shuffled)
        results = mxfp4_ops.unshuffle(codes, scales, n, 256)
        for result, expected in zip(results, plain, strict=True):
            assert_same_bits(whole(result), expected)


@pytest.mark.parametrize("shuffled", [False, True], ids=["plain", "shuffled"])
@on_every_rank
def test_gradients(mesh: DeviceMesh, shuffled: bool) -> None:
    n, k = 1024, 256
    weight, bias = random_weight(n, k), torch.randn(n)
    x = activation(4, 3, k, dtype=torch.float32)
    g = torch.randn(4, 3, n, generator=torch.Generator().manual_seed(5))
    expected, sizes = g.double() @ weight.values, g.double().abs() @ weight.values.abs()
    shardings: list[tuple[Placement, Placement, Placement]]
    shardings = [(R, R, R), (Shard(0), R, R), (R, Shard(0), Shard(0))]
    if not shuffled:
        shardings.append((Shard(2), Shard(1), R))
    for of_x, of_weight, of_bias in shardings:
        codes, scales = weight.on(mesh.device_type, shuffled)
        codes, scales = (put(mesh, t, of_weight) for t in (codes, scales))
        left, b = (put(mesh, t, p).requires_grad_() for t, p in ((x, of_x), (bias, of_bias)))
        y = mxfp4_ops.quant_mm(left, codes, scales, b, shuffled=shuffled)
        assert isinstance(y, DTensor)
        y.full_tensor().backward(g.to(mesh.device_type))
        assert left.grad is not None
        assert b.grad is not None
        # n + ranks float32 additions, and a rounding of each of two results
        error = whole(left.grad).double() - expected
        assert (error.abs() <= (n + mesh.size() + 2) * 2.0**-24 * sizes).all()
        error = whole(b.grad).double() - g.double().sum((0, 1))
        assert (error.abs() <= (12 + mesh.size()) * 2.0**-24 * g.double().abs().sum((0, 1))).all()


@every_op
@on_every_rank
def test_two_dimensional_mesh(mesh: DeviceMesh, op: str) -> None:
    """Data parallel over half of the ranks, column or row parallel over pairs."""
    pairs = mesh.size() // 2
    both = init_device_mesh(mesh.device_type, (pairs, 2), mesh_dim_names=("dp", "tp"))
    case = Case(op, 8, n=50, k=192)  # 192 elements are 3 blocks for each of 2 ranks, not of 4
    right = case.weight.codes, case.weight.scales
    for x, w, bias, out in (
        (R, Shard(0), Shard(0), Shard(1)),
        (Shard(1), Shard(1), R, Partial()),
        (R, Shard(1), R, Partial()),
    ):
        left = [put(both, t, Shard(0), x) for t in case.left]
        weight = (put(both, t, R, w) for t in right)
        y = case.op(*left, *weight, put(both, case.bias, R, bias), out_dtype=torch.float32)
        assert y.placements == (Shard(0), out)
        check_sum(case, mesh, whole(y))
