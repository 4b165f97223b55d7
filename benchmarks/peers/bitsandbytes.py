"""bitsandbytes' 4-bit floats (FP4), by the kernels that its package holds for CPUs."""

from __future__ import annotations

import copy
import logging
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .base import Bound, Loaded, Peer, not_installed

_BLOCK = 64


def _library() -> Any:
    # It warns that it could fetch other kernels from a hub, which a measurement should not do.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    import bitsandbytes

    return bitsandbytes


class Fp4(Peer):
    name = "bitsandbytes"
    weights = f"FP4, blocks of {_BLOCK}"
    bits = 4 + 16 / _BLOCK
    activations = "bfloat16"
    packages = ("bitsandbytes",)

    def unavailable(self) -> str | None:
        return not_installed("bitsandbytes")

    def refuses(self, n: int, k: int) -> str | None:
        if n % 32 == 0 and k % _BLOCK == 0:
            return None
        return f"N = {n} is no multiple of 32 or K = {k} none of {_BLOCK}"

    def load(self, weight: Tensor, copies: int, threads: int) -> Loaded:
        functional = _library().functional
        packed, state = functional.quantize_4bit(weight, blocksize=_BLOCK, quant_type="fp4")
        values = functional.dequantize_4bit(packed, state)
        detail = "dequantised, then multiplied"
        if functional.has_avx512bf16():  # as bitsandbytes.nn.Linear4bit does
            packed, state = functional._convert_weight_packed_for_cpu(packed, state)
            detail = "AVX512_BF16 kernel"
        weights = []
        for _ in range(copies):
            own = copy.copy(state)
            own.absmax = state.absmax.clone()
            weights.append((packed.clone(), own))

        def bind(x: Tensor) -> Bound:
            x = x.to(torch.bfloat16)
            multiply = _library().matmul_4bit
            calls = [partial(multiply, x, p, quant_state=s) for p, s in weights]
            return Bound(calls, Tensor.float)

        return Loaded(bind, values, detail)
