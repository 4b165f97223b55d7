"""Laws that hold for all inputs, on examples that Hypothesis looks for."""

from __future__ import annotations

import oracle
import torch
from common import (
    DTYPES,
    MODES,
    Path,
    Product,
    activation,
    assert_same_bits,
    every_backend,
    every_path,
    random_codes,
)
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from oracle import FORMATS, decode
from torch import Tensor

ops = torch.ops.mxfp4

dtypes = st.sampled_from(DTYPES)
modes = st.sampled_from(MODES)


@st.composite
def blocks_of(
    draw: st.DrawFn, dtype: torch.dtype, binades: tuple[int, int] | None = None
) -> Tensor:
    """32 finite numbers, those next to an eighth of a binade as often as all others.

    Their biased exponents lie in `binades`, or anywhere.
    """
    fmt = FORMATS[dtype]
    eighth = 1 << (fmt.mantissa_bits - 3)
    lowest, highest = (8 * b * eighth for b in binades or (0, fmt.infinity // (8 * eighth)))
    edges = st.builds(
        lambda eighths, off: min(max(eighths * eighth + off, lowest), highest - 1),
        st.integers(lowest // eighth, highest // eighth),
        st.integers(-1, 1),
    )
    magnitudes = st.integers(lowest, highest - 1) | edges
    bits = st.builds(int.__or__, magnitudes, st.sampled_from((0, fmt.sign)))
    return oracle.from_bits(draw(arrays("int64", 32, elements=bits)), dtype)


blocks = dtypes.flatmap(blocks_of)


@every_backend
@given(x=blocks, mode=modes)
def test_quantising_again_changes_nothing(path: Path, x: Tensor, mode: str) -> None:
    """Not a bit in `even` and `floor`. In `ceil` a largest element of 3 halves the scale."""
    with path.active():
        first = ops.quantize(x.to(path.device), scale_mode=mode)
        values = ops.dequantize(*first, dtype=torch.float32)
        assume(values.isfinite().all())
        second = ops.quantize(values, scale_mode=mode)
        assert_same_bits(ops.dequantize(*second, dtype=torch.float32), values)
    if mode != "ceil":
        assert_same_bits(second[0], first[0])
        assert_same_bits(second[1], first[1])


@every_backend
@given(x=blocks, mode=modes)
def test_no_value_is_nearer(path: Path, x: Tensor, mode: str) -> None:
    """Each element becomes a nearest one of the 15 values that its scale allows."""
    with path.active():
        q, scale = ops.quantize(x.to(path.device), scale_mode=mode)
    unit = 2.0 ** (scale.item() - 127)
    magnitudes = torch.tensor([float(m) for m in oracle.MAGNITUDES]).double() * unit
    distances = (x.double()[:, None] - torch.cat((magnitudes, -magnitudes))).abs()
    values = decode(q, scale)
    assert torch.equal((x.double() - values).abs(), distances.amin(-1))
    assert torch.equal(values.signbit(), x.signbit())


@every_backend
@given(x=blocks, mode=modes)
def test_the_scale_fits_the_largest_element(path: Path, x: Tensor, mode: str) -> None:
    """Only one power of two brings amax into the mode's range; the smallest serves below it."""
    with path.active():
        scale = ops.quantize(x.to(path.device), scale_mode=mode)[1].item()
    amax = x.double().abs().max().item() / 2.0 ** (scale - 127)
    if mode == "ceil":
        assert 3 < amax <= 6 or (scale == 0 and amax <= 3)
    else:
        low = {"floor": 4, "even": 3.5}[mode]
        assert low <= amax < 2 * low or (scale == 0 and amax < low)


@every_backend
@given(x=blocks_of(torch.float32, (67, 187)), mode=modes, power=st.integers(-30, 30))
def test_powers_of_two_move_to_the_scale(path: Path, x: Tensor, mode: str, power: int) -> None:
    with path.active():
        q, scale = ops.quantize(x.to(path.device), scale_mode=mode)
        moved_q, moved_scale = ops.quantize((x * 2.0**power).to(path.device), scale_mode=mode)
    assert_same_bits(moved_q, q)
    assert moved_scale.item() == scale.item() + power


@every_backend
@given(x=blocks, mode=modes, order=st.permutations(range(32)))
def test_elements_are_independent(path: Path, x: Tensor, mode: str, order: list[int]) -> None:
    """Another order and the other signs give the same codes in that order with those signs."""
    with path.active():
        q, scale = ops.quantize(x.to(path.device), scale_mode=mode)
        other_q, other_scale = ops.quantize(-x[order].to(path.device), scale_mode=mode)
    expected = -decode(q, scale)[order]
    assert_same_bits(other_scale, scale)
    assert torch.equal(decode(other_q, other_scale), expected)
    assert torch.equal(decode(other_q, other_scale).signbit(), expected.signbit())


sizes = st.integers(1, 70)
block_counts = st.integers(1, 20)
seeds = st.integers(0, 1 << 30)


@given(n=sizes, blocks=block_counts, seed=seeds)
def test_shuffle_moves_bytes_and_adds_a_defined_pad(n: int, blocks: int, seed: int) -> None:
    k = 32 * blocks
    plain = random_codes(n, k, seed=seed, low=0, high=255)
    shuffled = ops.shuffle(*plain)
    for t, u, pad in zip(plain, shuffled, (0, 127), strict=True):
        padding = torch.full((u.numel() - t.numel(),), pad, dtype=torch.uint8)
        bytes_in = torch.cat((t.flatten(), padding)).sort().values
        assert torch.equal(u.flatten().sort().values, bytes_in)
    for actual, wanted in zip(ops.unshuffle(*shuffled, n, k), plain, strict=True):
        assert_same_bits(actual, wanted)


@every_path
@given(m=st.integers(1, 9), n=sizes, blocks=block_counts, seed=seeds, shuffled=st.booleans())
def test_bias_is_added(path: Path, m: int, n: int, blocks: int, seed: int, shuffled: bool) -> None:
    x = activation(m, 32 * blocks, dtype=torch.float32, seed=seed).to(path.device)
    weight = tuple(t.to(path.device) for t in random_codes(n, 32 * blocks, seed=seed))
    if shuffled:
        weight = ops.shuffle(*weight)
    bias = torch.randn(len(weight[0])).to(path.device)
    with path.active():
        bare = ops.quant_mm(x, *weight, shuffled=shuffled).double()
        y = ops.quant_mm(x, *weight, bias, shuffled=shuffled).double()
    # Each of the two results is rounded to float32 once.
    assert ((y - (bare + bias)).abs() <= 2.0**-24 * (y.abs() + bare.abs()) + 2.0**-149).all()


@every_path
@given(
    n=sizes,
    blocks=block_counts,
    seed=seeds,
    rows=st.permutations(range(12)),
    parts=st.lists(st.integers(0, 12), max_size=4).map(sorted),
)
def test_rows_are_independent(
    path: Path, n: int, blocks: int, seed: int, rows: list[int], parts: list[int]
) -> None:
    """In another order and in other batches, rows stay the same: in every bit on the CPU."""
    x = activation(12, 32 * blocks, dtype=torch.bfloat16, seed=seed)
    plain = random_codes(n, 32 * blocks, seed=seed)
    weight = tuple(t.to(path.device) for t in plain)
    with path.active():
        whole = ops.quant_mm(x.to(path.device), *weight, out_dtype=torch.float32)
        pieces = [
            ops.quant_mm(p.to(path.device), *weight, out_dtype=torch.float32)
            for p in x[rows].tensor_split(parts)
        ]
    y = torch.empty_like(whole)
    y[rows] = torch.cat(pieces)
    if path.backend == "cpu":
        assert_same_bits(y, whole)
    Product.of(decode(*oracle.quantize_tensor(x, "even")), decode(*plain)).check(y)


@every_path
@given(n=sizes, blocks=block_counts, seed=seeds, data=st.data())
def test_columns_are_independent(
    path: Path, n: int, blocks: int, seed: int, data: st.DataObject
) -> None:
    """Permuting the weight's rows permutes the result's columns."""
    order = data.draw(st.permutations(range(n)))
    x = activation(5, 32 * blocks, dtype=torch.bfloat16, seed=seed)
    codes, scales = random_codes(n, 32 * blocks, seed=seed)
    with path.active():
        whole = ops.quant_mm(*(t.to(path.device) for t in (x, codes, scales)))
        y = ops.quant_mm(*(t.to(path.device) for t in (x, codes[order], scales[order])))
    if path.backend == "cpu":
        assert_same_bits(y, whole[:, order])
    expected = decode(*oracle.quantize_tensor(x, "even"))
    Product.of(expected, decode(codes[order], scales[order])).check(y)
