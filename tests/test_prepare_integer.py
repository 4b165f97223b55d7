"""What the integer kernel multiplies: planes, masks and integers of x and of W.

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
@pytest.mark.parametrize("split_k", [1, 3])
def test_planes_masks_and_integers(
    device: str, dtype: torch.dtype, mode: str, split_k: int
) -> None:
    """Everything that the kernel reads, decoded and compared with the reference's codes."""
    if device == "cpu" and dtype != torch.float32:
        pytest.skip("the interpreter does not run PTX, which 16 bits are quantised by")
    m, n, k = 12, 24, 4640
    x = outliers(torch.randn(m, k, generator=generator(1)), 9).to(dtype)
    x[3], x[4, 100:300], x[5, 7] = 0, 0, torch.nan
    codes, scales = quantize_reference(outliers(torch.randn(n, k, generator=generator(2)), 12))
    scales[7], scales[8, 9], scales[9, 1], scales[10, 5:9] = 0, 255, 60, 0
    codes[10, 80:112], codes[10, 112:144] = 0x80, 0
    plan = Plan(64, 64, 4, stages=3, split_k=split_k, integer=True)
    given = x.T.contiguous().to(device).T
    right = {"codes": codes.to(device), "code_stride": k // 32}
    right |= {"scales": scales.to(device), "scale_stride": k // 32, "blocks": k // 32}
    left, constants = float_operand(given, mode)
    padded_k = split_k * plan.blocks_per_split(k) * 32
    out = torch.empty(m, n, device=device)
    constants = constants | {"DEPENDENT": False}
    prepare = prepared_integer(left, right, constants, {}, k, padded_k, out, plan)
    prepare.run()
    made = {name: prepare.arguments[name].cpu() for name in prepare.writes}

    def check_masks(masks: Tensor, blocks: Tensor) -> None:
        """They tell in which steps some of the blocks [rows, blocks] are."""
        steps = plan.blocks_per_split(k) // 4
        blocks = torch.nn.functional.pad(blocks, (0, 4 * steps * split_k - blocks.shape[1]))
        some = blocks.view(len(blocks), split_k, steps, 4).any(3)
        words = -(-steps // 32)
        bits = masks.view(split_k, words, 1, len(some)) >> torch.arange(32).view(1, 1, 32, 1) & 1
        bits = bits.reshape(split_k, 32 * words, len(some)).permute(2, 0, 1)
        assert torch.equal(bits[:, :, :steps].bool(), some)
        assert not bits[:, :, steps:].any()

    x_codes, x_scales = quantize_reference(x, mode)
    byte, base = x_scales.int(), made["base_of_x"][:, None]
    values = oracle.decode(x_codes, torch.full_like(x_scales, 127)).view(m, -1, 32)
    some, is_nan = (values != 0).any(2), byte == 255
    plane = torch.where(some, (byte - base) >> 2, 0)
    far, high, top = (plane < 0) | (plane > 2) | is_nan, (plane == 1) & ~is_nan, plane == 2
    check_masks(made["far_of_x"], far)
    check_masks(made["high_of_x"], high)
    check_masks(made["top_of_x"], top)
    assert far.any()
    assert high.any()
    assert top.any()
    lost = is_nan | (plane.abs() > 8)
    planes = made["planes"].T.contiguous().view(torch.int8)[:, : k // 32].int()
    assert torch.equal(planes, torch.where(lost, -128, plane))
    numbers = {}
    for name in ("low", "high", "top"):
        whole = made[name].view(m, -1, 4, 2, 4, 4).permute(0, 1, 4, 2, 3, 5).reshape(m, -1)
        assert not whole[:, k:].any()
        numbers[name] = whole[:, :k].view(m, -1, 32).double() / 2
    shift = 2.0 ** ((byte - base) & 3)[:, :, None]
    zero = torch.zeros(()).double()
    assert torch.equal(numbers["high"], torch.where(high[:, :, None], values * shift, zero))
    assert torch.equal(numbers["top"], torch.where(top[:, :, None], values * shift, zero))
    at = ~high & ~top & ~is_nan
    assert torch.equal(numbers["low"][at], (values * shift)[at])
    assert not numbers["low"][high | top].any()

    byte, base = scales.int(), made["base_of_w"][:n, None]
    nothing = (byte == 0) & (codes.view(n, -1, 16) & 0x77 == 0).all(2)
    height = torch.where(nothing, 0, byte - base)
    in_range = nothing | (byte >= 64) & (byte <= 191)
    check_masks(made["far_of_w"], ~in_range | (height < 0) | (height > 11))
    check_masks(made["high_of_w"], (height >= 4) & (height < 8))
    check_masks(made["top_of_w"], (height >= 8) & (height < 12))
    words = made["heights"][:, :n].T.contiguous().view(torch.uint8)
    assert torch.equal(words[:, : k // 32], height.byte())
