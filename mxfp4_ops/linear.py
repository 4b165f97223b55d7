"""`Mxfp4Linear`: an `nn.Linear` whose weight is MXFP4."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from . import api, checks
from .checks import dtype_names
from .formats import BLOCK, FLOAT_DTYPES, Activation, ScaleMode
from .packed import PackedModule, frozen

if TYPE_CHECKING:
    from .distributed import Reduction


def obstacle(linear: nn.Module) -> str | None:
    """Why `linear` cannot become an `Mxfp4Linear`, or None if it can."""
    if not isinstance(linear, nn.Linear):
        return f"it is a {type(linear).__name__}, not an nn.Linear"
    weight, bias = linear._parameters.get("weight"), linear._parameters.get("bias")
    if weight is None or getattr(linear, "bias", None) is not bias:
        return "its weight or bias is computed (parametrization, weight_norm or pruning)"
    if type(weight) not in (nn.Parameter, Tensor, FakeTensor):
        return f"its weight is a {type(weight).__name__}, not a plain tensor"
    if weight.layout != torch.strided or weight.dim() != 2:
        return f"its weight is a {weight.dim()}-d {weight.layout} tensor, not a dense matrix"
    if weight.dtype not in FLOAT_DTYPES:
        return f"its weight is {dtype_names(weight.dtype)}, not {dtype_names(*FLOAT_DTYPES)}"
    if weight.shape[1] % BLOCK:
        return f"in_features must be a multiple of {BLOCK}, but is {weight.shape[1]}"
    if bias is not None and bias.dtype not in FLOAT_DTYPES:
        return f"its bias is {dtype_names(bias.dtype)}, not {dtype_names(*FLOAT_DTYPES)}"
    return None


def _is_dtensor(t: Tensor | None) -> bool:
    # By what it has: the class itself would take `import mxfp4_ops` a second to import.
    return hasattr(t, "placements")


class Mxfp4Linear(PackedModule, nn.Linear):
    """`quant_mm` or `mm_a16` as a module: `Q(x) @ W.T + bias` or `x @ W.T + bias`, W in MXFP4.

    Use `from_linear` to convert a layer and `swap_linear` to convert a model. A layer made by this
    constructor has a zero weight and bias, for a state dict to be loaded into.

    Args:
        in_features: K, a multiple of 32.
        out_features: N.
        bias: whether there is one.
        scale_mode: how activations get their scales; see `quant_mm`.
        activation: `mxfp4` quantises activations (`quant_mm`); `bf16` keeps them in their own
            dtype, which may also be float16 or float32 (`mm_a16`).
        device: of all parameters.
        dtype: of the bias; bfloat16, float16 or float32.

    Attributes:
        weight: codes, uint8 `[N, K/2]`, two to a byte; a parameter without gradient.
        weight_scale: E8M0 scales, uint8 `[N, K/32]`; a parameter without gradient.
        bias: an ordinary parameter `[N]`, or None.

    The output has the input's dtype, or autocast's. `.half()` and the like convert the bias only.
    `parallelize_module` may shard the parameters; see `mxfp4_ops.distributed`.
    A state dict holds exactly these tensors; codes and scales are also loaded from
    float4_e2m1fn_x2 and float8_e8m0fnu, while any other dtype is an error.

    Raises:
        ValueError: an argument is not one of the above.
    """

    packed = ("weight",)

    weight_scale: Tensor
    bias: nn.Parameter | None  # type: ignore[assignment]  # torch does not declare the None
    scale_mode: ScaleMode
    activation: Activation = "mxfp4"  # of layers that were pickled before there was another
    reduction: Reduction | None = None  # how ranks that share K add up; see distributed.py

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        scale_mode: ScaleMode = "even",
        activation: Activation = "mxfp4",
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        dtype = dtype or torch.get_default_dtype()
        if in_features % BLOCK:
            raise ValueError(f"in_features must be a multiple of {BLOCK}, but is {in_features}")
        checks.mode(scale_mode)
        checks.activation(activation)
        if bias and dtype not in FLOAT_DTYPES:
            raise ValueError(
                f"dtype must be {dtype_names(*FLOAT_DTYPES)}, got {dtype_names(dtype)}"
            )
        nn.Module.__init__(self)  # nn.Linear's would allocate a float weight
        self.in_features, self.out_features = in_features, out_features
        self.scale_mode, self.activation = scale_mode, activation
        codes = torch.empty(out_features, in_features // 2, dtype=torch.uint8, device=device)
        scales = torch.empty(out_features, in_features // BLOCK, dtype=torch.uint8, device=device)
        self.weight, self.weight_scale = frozen(codes), frozen(scales)
        float_bias = torch.empty(out_features, dtype=dtype, device=device) if bias else None
        self.register_parameter("bias", None if float_bias is None else nn.Parameter(float_bias))
        self.reset_parameters()

    @classmethod
    def from_linear(
        cls,
        linear: nn.Linear,
        *,
        scale_mode: ScaleMode = "even",
        activation: Activation = "mxfp4",
    ) -> Self:
        """Quantise a layer.

        Args:
            linear: with a weight in bfloat16, float16 or float32, on any device (meta included).
                It is left as it is.
            scale_mode: how weight and activations get their scales; see `quantize`.
            activation: whether activations are quantised (`mxfp4`) or kept in their own dtype
                (`bf16`).

        Returns:
            A layer on the same device with the very same bias parameter.

        Raises:
            ValueError: `linear` cannot be converted; the message says why. Or an argument is not
                one of the above.
        """
        checks.activation(activation)
        reason = obstacle(linear)
        if reason is not None:
            raise ValueError(f"cannot convert {linear}: {reason}")
        # Out of inference mode: inference tensors could not take part in a backward pass later.
        with torch.inference_mode(False), torch.no_grad():
            codes, scales = api.quantize(linear.weight, scale_mode=scale_mode)
            return cls._like(linear, frozen(codes), frozen(scales), scale_mode, activation)

    @classmethod
    def _like(
        cls,
        linear: nn.Linear,
        weight: Tensor,
        weight_scale: Tensor,
        scale_mode: ScaleMode,
        activation: Activation,
    ) -> Self:
        """A layer in the place of `linear` that holds these two parameters themselves."""
        n, k = linear.weight.shape
        new = cls(k, n, bias=False, scale_mode=scale_mode, activation=activation, device="meta")
        new.weight, new.weight_scale, new.bias = weight, weight_scale, linear.bias
        return new.train(linear.training)

    def reset_parameters(self) -> None:
        """Set weight and bias to zero, as `from_linear` makes of a layer of zeros."""
        with torch.no_grad():
            for parameter in self.parameters(recurse=False):
                parameter.zero_()

    def forward(self, input: Tensor) -> Tensor:
        if _is_dtensor(self.weight):
            from . import distributed

            return distributed.linear(self, input)
        return self.multiply(input, self.bias)

    def multiply(
        self, x: Tensor, bias: Tensor | None, out_dtype: torch.dtype | None = None
    ) -> Tensor:
        """`x` times the weight plus a bias, `x` quantised or not as `activation` says."""
        if self.activation == "bf16":
            return api.mm_a16(x, self.weight, self.weight_scale, bias, out_dtype=out_dtype)
        return api.quant_mm(
            x,
            self.weight,
            self.weight_scale,
            bias,
            out_dtype=out_dtype,
            scale_mode=self.scale_mode,
        )

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        super().register_parameter(name, param)
        if _is_dtensor(param):
            from . import distributed

            distributed.follow(self)

    def dequantize(self, dtype: torch.dtype | None = None) -> Tensor:
        """The weight `[N, K]` as a new float tensor.

        Args:
            dtype: the bias's if None, or bfloat16 where there is none. bfloat16 and float32 hold
                every value exactly, up to their largest.
        """
        if dtype is None:
            dtype = torch.bfloat16 if self.bias is None else self.bias.dtype
        return api.dequantize(self.weight, self.weight_scale, dtype=dtype)

    def to_linear(self, dtype: torch.dtype | None = None) -> nn.Linear:
        """An ordinary layer with the dequantised weight and a copy of the bias.

        Args:
            dtype: of weight and bias, chosen as in `dequantize`.
        """
        linear = nn.Linear(self.in_features, self.out_features, bias=False, device="meta")
        linear.weight = nn.Parameter(self.dequantize(dtype))
        if self.bias is not None:
            bias = self.bias.detach().to(linear.weight.dtype, copy=True)
            linear.bias = nn.Parameter(bias)
        return linear.train(self.training)

    def extra_repr(self) -> str:
        kept = ", activation='bf16'" if self.activation == "bf16" else ""
        return f"{super().extra_repr()}, scale_mode='{self.scale_mode}'{kept}"
