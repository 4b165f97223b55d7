"""What the integer kernel multiplies: both forms of x, and the scales of W.

On a GPU, and on the CPU under TRITON_INTERPRET=1.
"""

from __future__ import annotations

import oracle
import pytest
import torch
from common import (
    TRITON_DEVICES,
    every_dtype,
    every_mode,
    every_triton_device,
    generator,
    outliers,
)
from torch import Tensor

from mxfp4_ops.formats import quantize_reference

if not TRITON_DEVICES:
    pytest.skip("Triton has no GPU here and does not interpret", allow_module_level=True)

from mxfp4_ops.backends.triton.gemm import float_operand
from mxfp4_ops.backends.triton.nvidia.plan import Plan
from mxfp4_ops.backends.triton.nvidia.prepare_integer import prepared_integer


@every_triton_device
@every_mode
@every_dtype
@pytest.mark.parametrize(("split_k", "k"), [(1, 4640), (3, 4640), (1, 4608)])
def test_integers_floats_and_scales(
    device: str, dtype: torch.dtype, mode: str, split_k: int, k: int
) -> None:
    """Everything that the kernel reads, decoded and compared with the reference's codes."""
    if device == "cpu" and dtype != torch.float32:
        pytest.skip("the interpreter does not run PTX, which 16 bits are quantised by")
    m, n = 12, 24
    x = torch.randn(m, k, generator=generator(1))
    x[:9] = outliers(x[:9].contiguous(), 9)
    x = x.to(dtype)
    x[3], x[4, 100:300], x[5, 7], x[9, 64:96], x[10, 96:128] = 0, 0, torch.nan, 0, 1e-3
    w = torch.randn(n, k, generator=generator(2))
    w[:15] = outliers(w[:15].contiguous(), 12)
    codes, scales = quantize_reference(w)
    scales[7], scales[8, 9], scales[9, 1], scales[10, 5:9] = 0, 255, 60, 0
    codes[10, 80:112], codes[10, 112:144] = 0x80, 0
    codes[16], scales[16], scales[17], scales[18] = 0, 0, scales[17] + 80, scales[18] - 62
    plan = Plan(256, 64, 4, stages=3, split_k=split_k, integer=True)
    given = x.T.contiguous().to(device).T
    right = {"codes": codes.to(device), "code_stride": k // 32}
    right |= {"scales": scales.to(device), "scale_stride": k // 32, "blocks": k // 32}
    left, constants = float_operand(given, mode)
    padded_k = split_k * plan.blocks_per_split(k) * 32
    out = torch.empty(m, n, device=device)
    constants = constants | {"DEPENDENT": False}
    prepare = prepared_integer(left, right, constants, {}, k, padded_k, out, plan, k % 128 == 0)
    prepare.run()
    made = {name: prepare.arguments[name].cpu() for name in prepare.writes}

    def lowest_and_plain(byte: Tensor, some: Tensor) -> tuple[Tensor, Tensor]:
        high = torch.where(some, byte, 0).max(1).values
        low = torch.where(some, byte, 255).min(1).values
        return torch.where(some.any(1), low, 127), (high - low <= 3) | ~some.any(1)

    x_codes, x_scales = quantize_reference(x, mode)
    byte = x_scales.int()
    values = oracle.decode(x_codes, torch.full_like(x_scales, 127)).view(m, -1, 32)
    base, is_plain = lowest_and_plain(byte, (x.view(m, -1, 32) != 0).any(2))
    is_plain &= (byte < 255).all(1)
    assert is_plain[[3, 9, 11]].all()
    assert not is_plain[[5, 10]].any()
    assert torch.equal(made["uneven_of_x"] == 0, is_plain)
    assert torch.equal(made["base_of_x"], base)
    whole = made["integer"].view(m, -1, 4, 2, 4, 4).permute(0, 1, 4, 2, 3, 5).reshape(m, -1)
    assert not whole[is_plain, k:].any()
    numbers = whole[:, :k].view(m, -1, 32).double() / 2
    shifted = values * 2.0 ** (byte - base[:, None])[:, :, None]
    assert torch.equal(numbers[is_plain], shifted[is_plain])

    largest = x_scales.max(1).values.int()
    assert torch.equal(made["reference"][:m], largest)
    line = torch.arange(512)
    floats = made["operand"].view(torch.uint8).view(padded_k // 128, 512, 32)
    floats = floats[:, line ^ (line >> 3 & 3)].view(torch.float8_e5m2)
    floats = floats.view(-1, 4, 128, 2, 16).permute(2, 0, 1, 4, 3)[:m].reshape(m, -1).double()
    assert not floats[is_plain, k:].any()
    want = values * 2.0 ** (byte - largest[:, None] + 13)[:, :, None]
    held = (largest[:, None] - byte <= 26) & (byte < 255)
    assert torch.equal(floats[:, :k].view(m, -1, 32)[held], want[held])
    assert floats[:, :k].view(m, -1, 32)[byte == 255].isnan().all()

    byte = scales.int()
    some = (byte != 0) | (codes.view(n, -1, 16) & 0x77 != 0).any(2)
    base, is_plain = lowest_and_plain(byte, some)
    is_plain &= (base >= 64) & (base <= 191)
    assert is_plain.any()
    assert not is_plain[[7, 8, 9, 17, 18]].any()
    assert is_plain[[15, 16, 19]].all()
    assert torch.equal(made["uneven_of_w"][:n] == 0, is_plain)
    assert torch.equal(made["base_of_w"][:n], base)
    assert (made["base_of_w"][n:] == 127).all()
    words = made["heights"][: -(-k // 128), :n].T.contiguous().view(torch.uint8)
    assert torch.equal(words[:, : k // 32], torch.where(some, byte - base[:, None], 0).byte())
    assert not words[:, k // 32 :].any()
