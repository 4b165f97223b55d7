"""`torch.ops.mxfp4.quant_mm`."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

import mxfp4_ops
from mxfp4_ops.backends import cpu
from mxfp4_ops.formats import dequantize_reference, quantize_reference

from .base import Bound, Loaded, Peer


class QuantMm(Peer):
    """Our operator, with the kernels of one instruction set (None: without C++ kernels)."""

    weights = "MXFP4"
    bits = 4.25
    activations = "bfloat16, quantised to MXFP4"

    def __init__(self, isa: str | None) -> None:
        self.isa = isa
        self.name = f"mxfp4 ({isa or 'reference'})"

    def activate(self) -> None:
        if self.isa is not None:
            cpu.select_isa(self.isa)

    def rounded(self, x: Tensor) -> Tensor:
        return dequantize_reference(*quantize_reference(x), torch.float32)

    def load(self, weight: Tensor, copies: int, threads: int) -> Loaded:
        codes, scales = mxfp4_ops.quantize(weight)
        weights = [(codes.clone(), scales.clone()) for _ in range(copies)]

        def bind(x: Tensor) -> Bound:
            x = x.to(torch.bfloat16)
            quant_mm = torch.ops.mxfp4.quant_mm
            return Bound([partial(quant_mm, x, *w) for w in weights], Tensor.float)

        return Loaded(bind, mxfp4_ops.dequantize(codes, scales, dtype=torch.float32))
