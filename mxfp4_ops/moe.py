"""Mixtures of experts: gpt-oss's experts on MXFP4 weights.

Nothing here imports Transformers; its `GptOssExperts` is known by its name.
"""

from __future__ import annotations

from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from . import api, checks
from .checks import dtype_names
from .formats import BLOCK, CODE_DTYPES, FLOAT_DTYPES, SCALE_DTYPES, Activation, ScaleMode
from .packed import PackedModule, frozen

FLOAT_EXPERTS = "GptOssExperts"
"""The class in Transformers that `Mxfp4Experts` takes the place of."""

ALPHA, LIMIT = 1.702, 7.0
"""Of gpt-oss's activation function."""


class Mxfp4Experts(PackedModule):
    """The experts of a gpt-oss layer with weights in MXFP4, in the place of `GptOssExperts`.

    Each token goes to some experts. An expert multiplies it by `gate_up_proj`, whose outputs are
    gates and values in turn, applies gpt-oss's clamped SwiGLU and multiplies by `down_proj`. The
    results of a token's experts are added with its routing weights.

    Use `from_experts` to convert a layer, `from_codes` for weights that are MXFP4 already, and
    `swap_experts` for a model. Made by this constructor, weights and biases are zero, for a state
    dict to be loaded into.

    Args:
        num_experts: E.
        hidden_size: H, a multiple of 32.
        intermediate_size: I, a multiple of 32.
        alpha: factor of the gate within its sigmoid.
        limit: where gates, from above, and values, from both sides, are clamped.
        scale_mode: how activations get their scales; see `quantize`.
        activation: `mxfp4` quantises activations (`grouped_quant_mm`). `bf16` keeps them in their
            own 16- or 32-bit dtype (`mm_a16`, an expert at a time): more accurate, but the host
            waits for the number of rows of each expert, which no graph can capture.
        device: of all parameters.
        dtype: of the biases; bfloat16, float16 or float32.

    Attributes:
        gate_up_proj, gate_up_proj_scale: codes and scales, uint8 `[E, 2 I, H/2]` and
            `[E, 2 I, H/32]`; parameters without gradient.
        gate_up_proj_bias: an ordinary parameter `[E, 2 I]`.
        down_proj, down_proj_scale: uint8 `[E, H, I/2]` and `[E, H, I/32]`.
        down_proj_bias: `[E, H]`.

    A state dict holds exactly these tensors; codes and scales are also loaded from
    float4_e2m1fn_x2 and float8_e8m0fnu, while any other dtype is an error.

    Raises:
        ValueError: an argument is not one of the above.
    """

    packed = ("gate_up_proj", "down_proj")

    gate_up_proj: Tensor
    gate_up_proj_scale: Tensor
    gate_up_proj_bias: Tensor
    down_proj: Tensor
    down_proj_scale: Tensor
    down_proj_bias: Tensor

    def __init__(
        self,
        num_experts: int,
        hidden_size: int,
        intermediate_size: int,
        *,
        alpha: float = ALPHA,
        limit: float = LIMIT,
        scale_mode: ScaleMode = "even",
        activation: Activation = "mxfp4",
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        dtype = dtype or torch.get_default_dtype()
        for name, size in (("hidden_size", hidden_size), ("intermediate_size", intermediate_size)):
            if size % BLOCK:
                raise ValueError(f"{name} must be a multiple of {BLOCK}, but is {size}")
        checks.mode(scale_mode)
        checks.activation(activation)
        if dtype not in FLOAT_DTYPES:
            raise ValueError(
                f"dtype must be {dtype_names(*FLOAT_DTYPES)}, got {dtype_names(dtype)}"
            )
        super().__init__()
        self.num_experts, self.hidden_size = num_experts, hidden_size
        self.intermediate_size = intermediate_size
        self.alpha, self.limit = alpha, limit
        self.scale_mode, self.activation = scale_mode, activation
        for name, (n, k) in self.weight_sizes.items():
            codes = torch.zeros(num_experts, n, k // 2, dtype=torch.uint8, device=device)
            scales = torch.zeros(num_experts, n, k // BLOCK, dtype=torch.uint8, device=device)
            bias = torch.zeros(num_experts, n, dtype=dtype, device=device)
            self.register_parameter(name, frozen(codes))
            self.register_parameter(f"{name}_scale", frozen(scales))
            self.register_parameter(f"{name}_bias", nn.Parameter(bias))

    @property
    def weight_sizes(self) -> dict[str, tuple[int, int]]:
        """(N, K) of the two weights of an expert."""
        h, i = self.hidden_size, self.intermediate_size
        return {"gate_up_proj": (2 * i, h), "down_proj": (h, i)}

    @classmethod
    def from_experts(
        cls, experts: nn.Module, *, scale_mode: ScaleMode = "even", activation: Activation = "mxfp4"
    ) -> Self:
        """Quantise a `GptOssExperts`.

        Args:
            experts: with weights `[E, H, 2 I]` and `[E, I, H]` in bfloat16, float16 or float32, on
                any device (meta included). It is left as it is.
            scale_mode: how weights and activations get their scales; see `quantize`.
            activation: whether activations are quantised (`mxfp4`) or not (`bf16`).

        Returns:
            A layer on the same device with the very same bias parameters.

        Raises:
            ValueError: `experts` cannot be converted; the message says why.
        """
        reason = obstacle(experts)
        if reason is not None:
            raise ValueError(f"cannot convert {type(experts).__name__}: {reason}")
        old: Any = experts
        new = cls(
            old.num_experts,
            old.hidden_size,
            old.intermediate_size,
            alpha=old.alpha,
            limit=old.limit,
            scale_mode=scale_mode,
            activation=activation,
            device="meta",
        )
        # Out of inference mode: inference tensors could not take part in a backward pass later.
        with torch.inference_mode(False), torch.no_grad():
            for name in cls.packed:
                codes, scales = api.quantize(getattr(old, name).mT, scale_mode=scale_mode)
                new._put(name, codes, scales, getattr(old, f"{name}_bias"))
        return new.train(experts.training)

    @classmethod
    def from_codes(
        cls,
        gate_up_proj: tuple[Tensor, Tensor, Tensor],
        down_proj: tuple[Tensor, Tensor, Tensor],
        *,
        alpha: float = ALPHA,
        limit: float = LIMIT,
        scale_mode: ScaleMode = "even",
        activation: Activation = "mxfp4",
    ) -> Self:
        """A layer with these weights, which are not copied.

        Args:
            gate_up_proj: codes `[E, 2 I, H/2]`, or `[E, 2 I, H/32, 16]` as gpt-oss's files have
                them, scales `[E, 2 I, H/32]` and a bias `[E, 2 I]`.
            down_proj: the same of `[E, H, I]`.
            alpha, limit, scale_mode, activation: as for the class.

        Raises:
            ValueError: a tensor has the wrong shape or dtype.
        """
        tensors = {"gate_up_proj": gate_up_proj, "down_proj": down_proj}
        codes = {name: t.flatten(2) if t.dim() == 4 else t for name, (t, _, _) in tensors.items()}
        for name, t in codes.items():
            if t.dim() != 3:
                raise ValueError(f"{name} must be 3-d or 4-d, got shape {list(t.shape)}")
        experts, hidden_size = codes["gate_up_proj"].shape[0], codes["down_proj"].shape[1]
        new = cls(
            experts,
            hidden_size,
            codes["down_proj"].shape[2] * 2,
            alpha=alpha,
            limit=limit,
            scale_mode=scale_mode,
            activation=activation,
            device="meta",
        )
        for name, (n, k) in new.weight_sizes.items():
            _, scales, bias = tensors[name]
            for what, t, shape, dtypes in (
                (name, codes[name], (experts, n, k // 2), CODE_DTYPES),
                (f"{name}_scale", scales, (experts, n, k // BLOCK), SCALE_DTYPES),
                (f"{name}_bias", bias, (experts, n), FLOAT_DTYPES),
            ):
                if tuple(t.shape) != shape or t.dtype not in dtypes:
                    raise ValueError(
                        f"{what} must be {dtype_names(*dtypes)} of shape {list(shape)}, "
                        f"got {dtype_names(t.dtype)} of shape {list(t.shape)}"
                    )
            new._put(name, codes[name], scales, bias)
        return new

    def _put(self, name: str, codes: Tensor, scales: Tensor, bias: Tensor) -> None:
        """Set a weight and its bias, a parameter itself or the data of one."""
        setattr(self, name, frozen(codes.view(torch.uint8)))
        setattr(self, f"{name}_scale", frozen(scales.view(torch.uint8)))
        parameter = bias if isinstance(bias, nn.Parameter) else nn.Parameter(bias)
        setattr(self, f"{name}_bias", parameter)

    def forward(
        self, hidden_states: Tensor, router_indices: Tensor, routing_weights: Tensor
    ) -> Tensor:
        """Send tokens through their experts.

        Args:
            hidden_states: `[T, H]` in bfloat16, float16 or float32.
            router_indices: experts of each token, integers `[T, top_k]` below E.
            routing_weights: how much each counts, `[T, top_k]`.

        Returns:
            `[T, H]`, in the dtype of `hidden_states`.
        """
        top_k = router_indices.shape[1]
        by_token = router_indices.flatten()
        order = by_token.argsort(stable=True)
        experts = torch.arange(self.num_experts + 1, device=order.device, dtype=by_token.dtype)
        offsets = torch.searchsorted(by_token[order], experts)

        x = hidden_states[order // top_k]
        gated = self._swiglu(self._multiply("gate_up_proj", x, offsets))
        y = self._multiply("down_proj", gated, offsets)
        y = y * routing_weights.flatten()[order, None]
        # Back in the order of the tokens, so that a sum does not depend on who comes first.
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order), device=order.device)
        return y[back].unflatten(0, (len(hidden_states), top_k)).sum(1).to(hidden_states.dtype)

    def _swiglu(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up[..., ::2], gate_up[..., 1::2]
        gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        return (up + 1) * (gate * torch.sigmoid(self.alpha * gate))

    def _multiply(self, name: str, x: Tensor, offsets: Tensor) -> Tensor:
        """Rows of x by the weights of their experts, plus the biases."""
        codes, scales = getattr(self, name), getattr(self, f"{name}_scale")
        bias = getattr(self, f"{name}_bias")
        if self.activation == "mxfp4":
            return api.grouped_quant_mm(x, codes, scales, offsets, bias, scale_mode=self.scale_mode)
        counts = offsets.diff().tolist()
        rows = x.split(counts)
        some = [e for e, count in enumerate(counts) if count]
        results = [api.mm_a16(rows[e], codes[e], scales[e], bias[e]) for e in some]
        return torch.cat(results) if results else x.new_empty(0, codes.shape[1])

    def dequantize(self, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
        """The weights as `GptOssExperts` holds them.

        Args:
            dtype: the biases' if None. bfloat16 and float32 hold every value exactly, up to their
                largest.

        Returns:
            New tensors `gate_up_proj` `[E, H, 2 I]` and `down_proj` `[E, I, H]`.
        """
        dtype = dtype or self.down_proj_bias.dtype
        return {
            name: api.dequantize(
                getattr(self, name), getattr(self, f"{name}_scale"), dtype=dtype
            ).mT.contiguous()
            for name in self.packed
        }

    def extra_repr(self) -> str:
        kept = ", activation='bf16'" if self.activation == "bf16" else ""
        return (
            f"num_experts={self.num_experts}, hidden_size={self.hidden_size}, "
            f"intermediate_size={self.intermediate_size}, scale_mode='{self.scale_mode}'{kept}"
        )


def obstacle(experts: nn.Module) -> str | None:
    """Why a module cannot become `Mxfp4Experts`, or None if it can."""
    if type(experts).__name__ != FLOAT_EXPERTS:
        return f"it is a {type(experts).__name__}, not a {FLOAT_EXPERTS}"
    if "_hf_hook" in vars(experts):
        return "accelerate has hooked its forward"
    old = cast(Any, experts)
    if getattr(old, "_is_expert_parallel", False):
        return "its experts are shared out among processes"
    e, h, i = old.num_experts, old.hidden_size, old.intermediate_size
    for name, size in (("hidden_size", h), ("intermediate_size", i)):
        if size % BLOCK:
            return f"{name} must be a multiple of {BLOCK}, but is {size}"
    for name, shape in (
        ("gate_up_proj", (e, h, 2 * i)),
        ("gate_up_proj_bias", (e, 2 * i)),
        ("down_proj", (e, i, h)),
        ("down_proj_bias", (e, h)),
    ):
        t = experts._parameters.get(name)
        if t is None or type(t) is not nn.Parameter:
            return f"its {name} is not an ordinary parameter"
        if tuple(t.shape) != shape or t.dtype not in FLOAT_DTYPES:
            return f"its {name} is {dtype_names(t.dtype)} of shape {list(t.shape)}"
    return None
