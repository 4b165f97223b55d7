"""A gpt-oss of a few kilobytes, and Transformers' own experts on what MXFP4 makes of numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import GptOssConfig, GptOssForCausalLM
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

import mxfp4_ops

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 2,
    "vocab_size": 128,
    "head_dim": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "sliding_window": 8,
}


def config(**changes: Any) -> Any:
    made = GptOssConfig(**SIZES | changes)
    made._experts_implementation = "eager"
    return made


def float_experts(dtype: torch.dtype = torch.float32, seed: int = 0, **changes: Any) -> Any:
    """`GptOssExperts` whose gates reach their limits."""
    experts = GptOssExperts(config(**changes))
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in experts.parameters():
            p.copy_(torch.randn(p.shape, generator=g) * (0.4 if p.dim() == 3 else 1))
    return experts.to(dtype)


def float_model(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    model = GptOssForCausalLM(config()).eval()
    with torch.no_grad():
        for p in model.parameters():  # tokens differ more than as they are initialised
            if p.dim() >= 2:
                p.mul_(4)
    return model


class QuantizedActivations(TorchFunctionMode):
    """In it, matrix products have their left sides quantised first.

    `given` and `sizes` are what came in, and the products of magnitudes.
    """

    def __init__(self, active: bool) -> None:
        super().__init__()
        self.active = active
        self.given: list[Tensor] = []
        self.sizes: list[Tensor] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is torch.Tensor.__matmul__ or func is torch.Tensor.matmul:
            x, w = args
            self.given.append(x)
            if self.active:
                x = quantized(x)
            self.sizes.append(x.abs() @ w.abs())
            args = x, w
        return func(*args, **(kwargs or {}))


def quantized(x: Tensor) -> Tensor:
    codes, scales = mxfp4_ops.quantize(x.float())
    return mxfp4_ops.dequantize(codes, scales, dtype=torch.float32).to(x.dtype)


def on_mxfp4_weights(experts: nn.Module, dtype: torch.dtype = torch.float64) -> Any:
    """Transformers' module with the weights that `swap_experts` gives them."""
    made = float_experts(
        num_local_experts=experts.num_experts,
        hidden_size=experts.hidden_size,
        intermediate_size=experts.intermediate_size,
    )
    made.load_state_dict(experts.state_dict())
    made.alpha, made.limit = experts.alpha, experts.limit
    with torch.no_grad():
        for p in (made.gate_up_proj, made.down_proj):
            p.copy_(quantized(p.mT).mT)
    return made.to(dtype)
