"""The kernels for NVIDIA's GPUs by themselves, on one: every form of them, and what they leave to
the exact path."""

from __future__ import annotations

import oracle
import pytest
import torch
from common import (
    DTYPES,
    PATHS,
    Product,
    Weight,
    activation,
    assert_same_bits,
    every_dtype,
    generator,
    outliers,
    plain_and_shuffled,
    quantized_values,
    random_codes,
    random_weight,
)
from torch import Tensor

from mxfp4_ops.backends.devices import target
from mxfp4_ops.formats import quantize_reference

pytestmark = pytest.mark.gpu

if not any(p.backend == "triton" and p.device == "cuda" for p in PATHS):
    pytest.skip("there is no GPU that Triton supports", allow_module_level=True)

from mxfp4_ops.backends.triton import form  # noqa: E402

GPU = target(torch.device("cuda", 0))
if form(GPU) != "nvidia":
    pytest.skip(f"these kernels are not for {GPU}", allow_module_level=True)

from mxfp4_ops.backends.triton import nvidia  # noqa: E402
from mxfp4_ops.backends.triton.nvidia.plan import Plan, has_wgmma, product_plan  # noqa: E402

PLANS = {
    "one-warp": Plan(8, 16, 1),
    "warps-share-k": Plan(8, 16, 8, 8),
    "warps-in-rows": Plan(16, 64, 4),
    "both": Plan(16, 32, 8, 4, stages=2),
    "many-warps": Plan(8, 32, 16, 16),
    "columns": Plan(64, 64, 4, 2),
    "split-3": Plan(8, 16, 4, 4, split_k=3),
    "ahead": Plan(32, 32, 4, 2, stages=3, split_k=2),
}
if has_wgmma(GPU.arch):
    PLANS |= {
        "wide-small": Plan(32, 64, 4, stages=4, wide=True),
        "wide": Plan(128, 64, 4, stages=3, wide=True),
        "wide-two": Plan(128, 128, 4, stages=4, wide=True),
        "wide-split": Plan(64, 64, 4, stages=3, split_k=3, wide=True),
        "wide-few": Plan(16, 128, 4, stages=5, split_k=2, wide=True),
        "integer": Plan(64, 64, 4, stages=4, integer=True),
        "integer-two": Plan(256, 128, 4, stages=4, integer=True),
        "integer-split": Plan(128, 128, 4, stages=3, split_k=3, integer=True),
    }
every_plan = pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)


def run(x: Tensor, weight: tuple[Tensor, Tensor], plan: Plan | None, shuffled: bool = False,
        bias: Tensor | None = None, out_dtype: torch.dtype | None = None) -> Tensor:  # fmt: skip
    """quant_mm, whose result lies between guards."""
    m, n = len(x), len(weight[0])
    memory = torch.full((m + 2, n), 7.0, dtype=out_dtype or x.dtype, device="cuda")
    x, weight = x.cuda(), (weight[0].cuda(), weight[1].cuda())
    bias = None if bias is None else bias.cuda()
    for launch in nvidia.quant_mm(x, *weight, bias, memory[1:-1], shuffled, "even", plan):
        launch.run()
    assert (memory[0] == 7).all()
    assert (memory[-1] == 7).all()
    return memory[1:-1]


def run_mm(
    left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor], plan: Plan, shuffled: bool = False
) -> Tensor:
    a, a_scale = (t.cuda() for t in left)
    out = torch.empty(len(a), len(right[0]), device="cuda")
    for launch in nvidia.mm(a, a_scale, *right, None, out, shuffled, plan):
        launch.run()
    return out


def expected(x: Tensor, weight: Weight, shuffled: bool = False) -> Product:
    return Product.of(quantized_values(x), weight.padded_values(shuffled))


@plain_and_shuffled
@every_plan
@pytest.mark.parametrize(
    ("m", "n", "k"),
    [
        (1, 16, 32), (3, 31, 96), (17, 70, 288), (37, 300, 1056), (130, 129, 2880),
        (16, 2112, 7168), (600, 136, 320),
    ],
)  # fmt: skip
def test_plans(plan: Plan, m: int, n: int, k: int, shuffled: bool) -> None:
    """Tiles, steps and splits that do not divide the sizes."""
    x, weight = activation(m, k, dtype=torch.bfloat16), random_weight(n, k)
    y = run(x, weight.on("cuda", shuffled), plan, shuffled)
    expected(x, weight, shuffled).check(y)
    if plan.integer:
        x = torch.randn(m, k, generator=generator(1)).bfloat16()
        weight = Weight.of(*quantize_reference(torch.randn(n, k, generator=generator(2))))
        y = run(x, weight.on("cuda", shuffled), plan, shuffled)
        expected(x, weight, shuffled).check(y)


@plain_and_shuffled
@every_plan
def test_codes_of_both_sides(plan: Plan, shuffled: bool) -> None:
    x, weight = activation(20, 288, dtype=torch.float32), random_weight(40, 288)
    right = weight.on("cuda", shuffled)
    out = run_mm(quantize_reference(x), right, plan, shuffled)
    assert_same_bits(out, run(x, right, plan, shuffled))


@every_plan
@every_dtype
def test_dtypes_and_bias(plan: Plan, dtype: torch.dtype) -> None:
    x, weight = activation(20, 160, dtype=dtype), random_weight(40, 160)
    bias = torch.randn(40, generator=generator(1))
    for out_dtype in DTYPES:
        y = run(x, weight.on("cuda"), plan, bias=bias, out_dtype=out_dtype)
        Product.of(quantized_values(x), weight.values, bias).check(y)


@every_plan
def test_the_same_bits_again(plan: Plan) -> None:
    x, weight = activation(20, 1056, dtype=torch.float32), random_weight(70, 1056).on("cuda")
    first = run(x, weight, plan)
    for _ in range(20):
        assert_same_bits(run(x, weight, plan), first)


@every_plan
@pytest.mark.parametrize(
    ("of_x", "of_w"),
    [(127, 0), (0, 127), (0, 0), (60, 60), (60, 180), (180, 60), (0, 234), (234, 0), (127, 175)],
)
def test_scales_of_any_size(plan: Plan, of_x: int, of_w: int) -> None:
    """At the edges of what bfloat16 holds, and far beyond them, on either side and on both."""
    k, m, n = 512, 20, 40
    codes = random_codes(m, k, seed=3, low=of_x, high=of_x + 20)
    weight = Weight.of(*random_codes(n, k, seed=4, low=of_w, high=of_w + 20))
    product = run_mm(codes, weight.on("cuda"), plan)
    Product.of(oracle.decode(*codes), weight.values).check(product)


@plain_and_shuffled
@every_plan
def test_one_strange_block(plan: Plan, shuffled: bool) -> None:
    """Only its row or column differs; a block of zeros changes nothing."""
    k, m, n = 1056, 20, 40
    for byte in (0, 1, 63, 64, 191, 192, 254, 255):
        codes, scales = (t.clone() for t in random_codes(n, k, seed=5))
        scales[5, 17] = byte
        weight = Weight.of(codes, scales)
        x = activation(m, k, dtype=torch.bfloat16)
        expected(x, weight, shuffled).check(run(x, weight.on("cuda", shuffled), plan, shuffled))
        codes[5, 17 * 16 : 18 * 16] = 0x80 if byte % 2 else 0  # -0 is zero as well
        weight = Weight.of(codes, scales)
        expected(x, weight, shuffled).check(run(x, weight.on("cuda", shuffled), plan, shuffled))


@every_plan
def test_special_activations(plan: Plan) -> None:
    x, weight = activation(20, 288, dtype=torch.float32), random_weight(40, 288)
    x[3, 5], x[7, 100], x[9, 287] = torch.nan, torch.inf, -torch.inf
    x[11, :32], x[12, 64:96] = 0, -0.0
    x[13] *= 2.0**-120
    x[14, :32] *= 2.0**100
    x[15, 32:64] *= 2.0**-100
    y = run(x, weight.on("cuda"), plan)
    expected(x, weight).check(y)
    assert y[[3, 7, 9]].isnan().all()


@every_plan
def test_blocks_far_below_a_rows_largest(plan: Plan) -> None:
    """What 8-bit floats relative to the largest block can hold, and what they cannot."""
    m, n, k = 48, 40, 512
    x = torch.ones(m, k)
    x[:, ::3] = -0.5
    for row in range(m):
        x[row, row % 16 * 32 :][:32] *= 2.0**-row
        x[row] *= 2.0 ** (row % 7 * 16 - 48)
    weight = random_weight(n, k)
    expected(x, weight).check(run(x, weight.on("cuda"), plan, out_dtype=torch.float32))


@pytest.mark.parametrize("mode", ["even", "floor", "ceil"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_what_the_wide_kernel_multiplies(dtype: torch.dtype, mode: str) -> None:
    """All patterns of 16 bits, in blocks with others near them and with any, and strided."""
    if not has_wgmma(GPU.arch):
        pytest.skip("there is no wgmma here")
    patterns = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16)
    mixed = patterns[torch.randperm(1 << 16, generator=generator(2))]
    x = torch.cat((patterns, mixed)).view(-1, 512)
    x = x.view(dtype) if dtype.itemsize == 2 else (x.int() << 16).view(dtype) * (1 + 2.0**-20)
    codes, scales = quantize_reference(x, mode)
    largest = scales.max(1).values
    distance = largest[:, None].int() - scales.int()
    want = oracle.decode(
        codes, torch.where(scales == 255, 255, 140 - distance.clamp(max=140)).byte()
    )
    some = oracle.decode(codes, torch.full_like(scales, 127)).view(len(x), 16, 32) != 0
    lost = (distance > 26) & some.any(2) & (scales != 255)
    for given in (x.cuda(), x.T.contiguous().cuda().T):
        out = torch.empty(len(x), 64, device="cuda")
        weight = torch.zeros(64, 256, dtype=torch.uint8, device="cuda")
        plan = Plan(32, 64, 4, stages=3, wide=True)
        prepare, *_ = nvidia.quant_mm(
            given, weight, weight[:, :16].contiguous(), None, out, False, mode, plan
        )
        prepare.run()
        operand = prepare.arguments["operand"].cpu().view(torch.uint8).view(4, -1, 128, 32)
        line = torch.arange(128)
        operand = operand[:, :, line ^ (line >> 3 & 3)].view(torch.float8_e5m2)
        operand = operand.view(4, -1, 4, 32, 2, 16)
        values = operand.permute(1, 3, 0, 2, 5, 4).reshape(len(x), 512).double()
        assert torch.equal(prepare.arguments["reference"].cpu(), largest.int())
        values, blocks = values.view(len(x), 16, 32), want.view(len(x), 16, 32)
        assert values[lost[:, :, None] & some].isnan().all()
        assert torch.equal(values[~lost].isnan(), blocks[~lost].isnan())
        assert torch.equal(values[~lost].nan_to_num(), blocks[~lost].nan_to_num())


@every_plan
@pytest.mark.parametrize("of_x", [0, 1, 200])
@pytest.mark.parametrize("of_w", [0, 1, 200])
def test_outliers(plan: Plan, of_x: int, of_w: int) -> None:
    """In no row, in one of them or in most, on either side: tiles of integers and of floats."""
    m, n, k = 390, 270, 9248
    x, w = (torch.randn(rows, k, generator=generator(rows)) for rows in (m, n))
    for t, rows in ((x, of_x), (w, of_w)):
        if rows:
            t[17 : 17 + rows] = outliers(t[17 : 17 + rows].contiguous(), 9)
    weight = Weight.of(*quantize_reference(w))
    bias = torch.randn(n, generator=generator(1))
    for out_dtype in (torch.float32, torch.bfloat16):
        y = run(x, weight.on("cuda"), plan, bias=bias, out_dtype=out_dtype)
        Product.of(quantized_values(x), weight.values, bias).check(y)


@every_plan
@pytest.mark.parametrize("size", [2.0**-100, 1.0, 2.0**60])
def test_the_largest_sums(plan: Plan, size: float) -> None:
    """Of integers: all of one sign, and at the upper end of what 8 bits hold."""
    m, n, k = 20, 40, 28672
    codes = torch.full((m + n, k // 2), 0x77, dtype=torch.uint8)
    scales = torch.full((m + n, k // 32), 127, dtype=torch.uint8)
    scales[:, 0] = 124
    weight = Weight.of(codes[m:], scales[m:])
    x = size * oracle.decode(codes[:m], scales[:m]).float()
    expected(x, weight).check(run(x, weight.on("cuda"), plan))


@every_plan
def test_rows_longer_than_a_program_holds(plan: Plan) -> None:
    x, weight = activation(18, 33024, dtype=torch.bfloat16), random_weight(20, 33024)
    expected(x, weight).check(run(x, weight.on("cuda"), plan))


@every_plan
@pytest.mark.parametrize("k", [512, 8192, 28672])
def test_long_sums_of_one_sign(plan: Plan, k: int) -> None:
    """What the matrix units round towards zero would add up here."""
    m, n = 16, 64
    g = generator(k)
    sizes = torch.randint(117, 138, (m + n, k // 32), dtype=torch.uint8, generator=g)
    codes = torch.randint(0, 256, (m + n, k // 2), dtype=torch.uint8, generator=g) & 0x77
    weight = Weight.of(codes[m:], sizes[m:])
    product = run_mm((codes[:m], sizes[:m]), weight.on("cuda"), plan)
    Product.of(oracle.decode(codes[:m], sizes[:m]), weight.values).check(product)


@every_plan
@pytest.mark.parametrize("layout_of_x", ["transposed", "step", "expanded"])
def test_strides_of_x(plan: Plan, layout_of_x: str) -> None:
    x = activation(20, 160, dtype=torch.float16)
    strided = {
        "transposed": x.T.contiguous().T,
        "step": x.repeat_interleave(2, 1)[:, ::2],
        "expanded": x[:1].expand(20, -1),
    }[layout_of_x]
    weight = random_weight(40, 160)
    expected(strided, weight).check(run(strided, weight.on("cuda"), plan))


@every_plan
def test_slices_of_weights(plan: Plan) -> None:
    """Rows that are far apart, and that begin where no 16 bytes do."""
    x, weight = activation(20, 160, dtype=torch.bfloat16), random_weight(40, 160)
    codes, scales = weight.on("cuda")
    for before in (1, 4, 16):
        wide = torch.zeros(40, before + 80 + 16, dtype=torch.uint8, device="cuda")
        wide[:, before : before + 80] = codes
        wide_scales = torch.full((40, 11), 255, dtype=torch.uint8, device="cuda")
        wide_scales[:, 3:8] = scales
        right = wide[:, before : before + 80], wide_scales[:, 3:8]
        expected(x, weight).check(run(x, right, plan))


@pytest.mark.parametrize("plan", [p for p in PLANS.values() if p.split_k > 1], ids=str)
def test_parts_of_many_rows(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other in the same memory, with the numbers of all at once."""
    x, weight = activation(300, 1056, dtype=torch.bfloat16), random_weight(70, 1056).on("cuda")
    bias = torch.randn(70, generator=generator(1))
    whole = run(x, weight, plan, bias=bias)
    monkeypatch.setattr(nvidia, "MOST_PARTIAL_SUMS", 2 * plan.split_k * plan.block_m * 70)
    assert len(nvidia.quant_mm(x, *weight, None, whole, False, "even", plan)) > 3
    for _ in range(5):
        assert_same_bits(run(x, weight, plan, bias=bias), whole)


@pytest.mark.parametrize(
    ("m", "n", "k"),
    [
        (1, 8192, 8192),
        (16, 14336, 4096),
        (16, 2112, 7168),
        (33, 31, 1440),
        (64, 2880, 512),
        (300, 4096, 2048),
    ],
)
def test_plans_by_rule(m: int, n: int, k: int) -> None:
    x, weight = activation(m, k, dtype=torch.bfloat16), random_weight(n, k)
    y = run(x, weight.on("cuda"), product_plan(m, n, k, GPU))
    expected(x, weight).check(y)


@every_plan
def test_weights_written_just_before(plan: Plan) -> None:
    """The product's kernel starts early; not before the weights are there."""
    x, weight = activation(8, 4096, dtype=torch.bfloat16).cuda(), random_weight(4096, 4096)
    codes, scales = weight.on("cuda")
    right = torch.zeros_like(codes), torch.full_like(scales, 127)
    big = torch.randn(4096, 4096, device="cuda")
    first = run(x, (codes, scales), plan)
    for _ in range(5):
        right[0].zero_()
        big @ big  # keeps the GPU busy, so that all of what follows is waiting by then
        right[0].copy_(codes)
        right[1].copy_(scales)
        assert_same_bits(run(x, right, plan), first)
