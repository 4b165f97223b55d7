"""The float weights behind packed layers, as Transformers' checkpoints hold them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from .. import api
from ..linear import Mxfp4Linear
from ..moe import Mxfp4Experts
from ..packed import frozen

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

Packed = Mxfp4Linear | Mxfp4Experts

NAMES = (*Mxfp4Linear.packed, *Mxfp4Experts.packed)
"""Of all weights that a packed layer may have."""


def shape(layer: Packed, name: str) -> tuple[int, ...]:
    """Of the float weight."""
    if isinstance(layer, Mxfp4Linear):
        return layer.out_features, layer.in_features
    n, k = layer.weight_sizes[name]
    return layer.num_experts, k, n  # they multiply by x @ W, not by x @ W.T


def quantize(layer: Packed, name: str, weight: Tensor, full_name: str) -> tuple[Tensor, Tensor]:
    """Codes and scales of a float weight.

    Raises:
        ValueError: it has another shape than the layer's.
    """
    needed = shape(layer, name)
    if tuple(weight.shape) != needed:
        raise ValueError(
            f"{full_name} must have shape {list(needed)}, but is {list(weight.shape)} in the file"
        )
    rows = weight if isinstance(layer, Mxfp4Linear) else weight.mT
    return api.quantize(rows, scale_mode=layer.scale_mode)


def expect(layer: Packed) -> None:
    """Have Transformers cast weights, as it loads them, to the model's dtype and not to uint8."""
    for name in layer.packed:
        setattr(layer, name, frozen(torch.empty(shape(layer, name), device="meta")))


def restore(layer: Packed, config: PreTrainedConfig, dtype: torch.dtype | None) -> nn.Module:
    """The float layer with the dequantised weights."""
    if isinstance(layer, Mxfp4Linear):
        return layer.to_linear(dtype)
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

    with torch.device("meta"):
        experts = GptOssExperts(config)
    for name, weight in layer.dequantize(dtype).items():
        setattr(experts, name, nn.Parameter(weight))
        bias = getattr(layer, f"{name}_bias")
        setattr(experts, f"{name}_bias", nn.Parameter(bias.detach().to(weight.dtype)))
    return experts.train(layer.training)
