"""`Mxfp4Linear`: an `nn.Linear` whose weight is MXFP4."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from . import api
from .checks import dtype_names
from .formats import BLOCK, CODE_DTYPES, FLOAT_DTYPES, SCALE_DTYPES, SCALE_MODES, ScaleMode

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


def _frozen(data: Tensor) -> nn.Parameter:
    return nn.Parameter(data, requires_grad=False)


def _is_dtensor(t: Tensor | None) -> bool:
    # By what it has: the class itself would take `import mxfp4_ops` a second to import.
    return hasattr(t, "placements")


class Mxfp4Linear(nn.Linear):
    """`quant_mm` as a module: `Q(x) @ W.T + bias` with W in MXFP4.

    Use `from_linear` to convert a layer and `swap_linear` to convert a model. A layer made by this
    constructor has a zero weight and bias, for a state dict to be loaded into.

    Args:
        in_features: K, a multiple of 32.
        out_features: N.
        bias: whether there is one.
        scale_mode: how activations get their scales; see `quant_mm`.
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

    weight_scale: Tensor
    bias: nn.Parameter | None  # type: ignore[assignment]  # torch does not declare the None
    scale_mode: ScaleMode
    reduction: Reduction | None = None  # how ranks that share K add up; see distributed.py

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        scale_mode: ScaleMode = "even",
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        dtype = dtype or torch.get_default_dtype()
        if in_features % BLOCK:
            raise ValueError(f"in_features must be a multiple of {BLOCK}, but is {in_features}")
        if scale_mode not in SCALE_MODES:
            raise ValueError(f"scale_mode must be 'even', 'floor' or 'ceil', got '{scale_mode}'")
        if bias and dtype not in FLOAT_DTYPES:
            raise ValueError(
                f"dtype must be {dtype_names(*FLOAT_DTYPES)}, got {dtype_names(dtype)}"
            )
        nn.Module.__init__(self)  # nn.Linear's would allocate a float weight
        self.in_features, self.out_features = in_features, out_features
        self.scale_mode = scale_mode
        codes = torch.empty(out_features, in_features // 2, dtype=torch.uint8, device=device)
        scales = torch.empty(out_features, in_features // BLOCK, dtype=torch.uint8, device=device)
        self.weight, self.weight_scale = _frozen(codes), _frozen(scales)
        float_bias = torch.empty(out_features, dtype=dtype, device=device) if bias else None
        self.register_parameter("bias", None if float_bias is None else nn.Parameter(float_bias))
        self.reset_parameters()

    @classmethod
    def from_linear(cls, linear: nn.Linear, *, scale_mode: ScaleMode = "even") -> Self:
        """Quantise a layer.

        Args:
            linear: with a weight in bfloat16, float16 or float32, on any device (meta included).
                It is left as it is.
            scale_mode: how weight and activations get their scales; see `quantize`.

        Returns:
            A layer on the same device with the very same bias parameter.

        Raises:
            ValueError: `linear` cannot be converted; the message says why.
        """
        reason = obstacle(linear)
        if reason is not None:
            raise ValueError(f"cannot convert {linear}: {reason}")
        # Out of inference mode: inference tensors could not take part in a backward pass later.
        with torch.inference_mode(False), torch.no_grad():
            codes, scales = api.quantize(linear.weight, scale_mode=scale_mode)
            return cls._like(linear, _frozen(codes), _frozen(scales), scale_mode)

    @classmethod
    def _like(
        cls, linear: nn.Linear, weight: Tensor, weight_scale: Tensor, scale_mode: ScaleMode
    ) -> Self:
        """A layer in the place of `linear` that holds these two parameters themselves."""
        n, k = linear.weight.shape
        new = cls(k, n, bias=False, scale_mode=scale_mode, device="meta")
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
        return api.quant_mm(
            input, self.weight, self.weight_scale, self.bias, scale_mode=self.scale_mode
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
        return f"{super().extra_repr()}, scale_mode='{self.scale_mode}'"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # `Module.type` casts every parameter, unlike `.to` and `.half`. Codes have no other dtype.
        def keep_bytes(t: Tensor) -> Tensor:
            new = fn(t)
            return new if t.is_floating_point() or new.dtype == t.dtype else t.to(new.device)

        super()._apply(keep_bytes, recurse)  # type: ignore[no-untyped-call]
        return self

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        errors = []
        for name, dtypes in (("weight", CODE_DTYPES), ("weight_scale", SCALE_DTYPES)):
            value = state_dict.get(prefix + name)
            if not isinstance(value, Tensor) or value.dtype == torch.uint8:
                continue
            if value.dtype in dtypes:
                state_dict[prefix + name] = value.view(torch.uint8)
            else:  # torch would cast it to bytes without a word
                errors.append(
                    f"{prefix}{name} must be {dtype_names(*dtypes)}, got "
                    f"{dtype_names(value.dtype)}; "
                    "load a float checkpoint into the float model and convert that"
                )
        error_msgs += errors
        if not errors:
            rest = (local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
            super()._load_from_state_dict(state_dict, prefix, *rest)
