"""The Python functions are the operators: every argument arrives."""

from __future__ import annotations

import pytest
import torch
from common import MODES, activation, assert_same_bits, random_codes, random_weight

import mxfp4_ops
from mxfp4_ops.schema import SCHEMAS

ops = torch.ops.mxfp4


@pytest.mark.parametrize("name", SCHEMAS)
def test_registered_as_written(name: str) -> None:
    written = torch._C.parse_schema(f"mxfp4::{SCHEMAS[name]}")
    assert getattr(ops, name).default._schema == written


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shuffled", [False, True], ids=["plain", "shuffled"])
def test_quant_mm(mode: mxfp4_ops.ScaleMode, shuffled: bool) -> None:
    x, weight = activation(5, 96, dtype=torch.bfloat16), random_weight(40, 96).on("cpu", shuffled)
    bias = torch.randn(len(weight[0]))
    y = mxfp4_ops.quant_mm(
        x, *weight, bias, out_dtype=torch.float32, shuffled=shuffled, scale_mode=mode
    )
    expected = ops.quant_mm(
        x, *weight, bias, out_dtype=torch.float32, shuffled=shuffled, scale_mode=mode
    )
    assert_same_bits(y, expected)


def test_quant_mm_by_default() -> None:
    x, weight = activation(5, 96, dtype=torch.bfloat16), random_weight(40, 96).on("cpu")
    assert_same_bits(mxfp4_ops.quant_mm(x, *weight), ops.quant_mm(x, *weight))


@pytest.mark.parametrize("shuffled", [False, True], ids=["plain", "shuffled"])
def test_mm(shuffled: bool) -> None:
    left, right = random_codes(5, 96, seed=1), random_weight(40, 96).on("cpu", shuffled)
    bias = torch.randn(len(right[0]))
    y = mxfp4_ops.mm(*left, *right, bias, out_dtype=torch.float32, shuffled=shuffled)
    assert_same_bits(y, ops.mm(*left, *right, bias, out_dtype=torch.float32, shuffled=shuffled))


def test_conversions_and_layouts() -> None:
    x = activation(5, 96, dtype=torch.float32)
    q, scale = mxfp4_ops.quantize(x, scale_mode="ceil")
    assert_same_bits(q, ops.quantize(x, scale_mode="ceil")[0])
    assert_same_bits(scale, ops.quantize(x, scale_mode="ceil")[1])
    values = mxfp4_ops.dequantize(q, scale, dtype=torch.float16)
    assert_same_bits(values, ops.dequantize(q, scale, dtype=torch.float16))
    shuffled = mxfp4_ops.shuffle(q, scale)
    for t, u in zip(shuffled, ops.shuffle(q, scale), strict=True):
        assert_same_bits(t, u)
    for t, u in zip(mxfp4_ops.unshuffle(*shuffled, 5, 96), (q, scale), strict=True):
        assert_same_bits(t, u)
