"""MXFP4 as a quantisation method of Hugging Face Transformers, called `mxfp4_ops`.

Importing this module registers `Mxfp4OpsConfig` with Transformers. From then on `from_pretrained`
quantises a float checkpoint while it loads when it is given such a configuration, and loads
checkpoints that were saved with one.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from .. import checks
from ..formats import Activation, ScaleMode
from ..moe import Mxfp4Experts
from ..swap import SwapReport, swap_linear
from ..swap_experts import swap_experts
from . import float_weights
from .safetensors_pairs import check_pairs

try:
    from transformers.core_model_loading import ConversionOps
    from transformers.quantizers import (  # type: ignore[attr-defined]
        HfQuantizer,
        register_quantization_config,
        register_quantizer,
    )
    from transformers.quantizers.quantizers_utils import get_module_from_name, should_convert_module
    from transformers.utils.quantization_config import QuantizationConfigMixin
except ImportError as error:
    raise ImportError(
        "mxfp4_ops.integrations.transformers needs Transformers 5 or newer: "
        "pip install 'transformers>=5'"
    ) from error

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

METHOD = "mxfp4_ops"

logger = logging.getLogger(__name__)


@register_quantization_config(METHOD)
class Mxfp4OpsConfig(QuantizationConfigMixin):
    """How to quantise a model, for `from_pretrained(..., quantization_config=...)`.

    Args:
        scale_mode: how weights and activations get their scales; see `mxfp4_ops.quantize`.
        activation: whether activations are quantised ("mxfp4") or kept in their own dtype ("bf16").
        modules_to_not_convert: names of modules to leave in float, with the meaning that they have
            for Transformers' own methods: the beginning or the end of a module's name, or a regular
            expression for its beginning. None stands for the output embeddings (`lm_head`) and the
            last module.

    Linear layers and gpt-oss's experts are quantised. Layers whose weight is tied to another one,
    and those that `swap_linear` and `swap_experts` leave alone, stay in float in any case. Loading
    adds their names to `modules_to_not_convert`, so that a saved model says of itself which layers
    are quantised.

    Raises:
        ValueError: an argument is not one of the above.
    """

    def __init__(
        self,
        scale_mode: ScaleMode = "even",
        activation: Activation = "mxfp4",
        modules_to_not_convert: Sequence[str] | None = None,
        quant_method: str = METHOD,
    ) -> None:
        if quant_method != METHOD:
            raise ValueError(f"quant_method must be '{METHOD}', got '{quant_method}'")
        checks.mode(scale_mode)
        checks.activation(activation)
        if isinstance(modules_to_not_convert, str):
            raise ValueError(
                "modules_to_not_convert must be a list of names, got the string "
                f"'{modules_to_not_convert}'"
            )
        self.quant_method: Any = METHOD
        self.scale_mode = scale_mode
        self.activation: Activation = activation
        names = modules_to_not_convert
        self.modules_to_not_convert = None if names is None else list(names)


@register_quantizer(METHOD)
class Mxfp4OpsQuantizer(HfQuantizer):
    """What Transformers calls while it loads and saves a model with an `Mxfp4OpsConfig`."""

    quantization_config: Mxfp4OpsConfig

    # A weight's tensors in a file. With it Transformers also shards scales as it does codes.
    serialized_names = {  # noqa: RUF012  # the base class declares it
        name: [name, f"{name}_scale"] for name in float_weights.NAMES
    }

    def __init__(self, quantization_config: Mxfp4OpsConfig, **kwargs: Any) -> None:
        # The model's own copy, which will name the layers that stay in float.
        super().__init__(copy.deepcopy(quantization_config), **kwargs)

    def validate_environment(self, *args: Any, **kwargs: Any) -> None:
        device_map = kwargs.get("device_map")
        devices = device_map.values() if isinstance(device_map, dict) else [device_map]
        if not self.pre_quantized and "disk" in devices:
            raise ValueError(
                "device_map sends modules to the disk, which a model that is quantised while it "
                "loads cannot do: save it quantised first, or leave the disk out"
            )

    def _process_model_before_weight_loading(
        self,
        model: PreTrainedModel,
        checkpoint_files: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        if not self.pre_quantized and getattr(model.config, "distributed_config", None):
            raise ValueError(
                "a model that is quantised while it loads cannot be divided among ranks: save it "
                "quantised first, and load that"
            )
        files = checkpoint_files if self.pre_quantized else None
        packed = check_pairs(files or [], float_weights.NAMES)
        leave = self._modules_to_leave(model, packed)
        # What wrote the files may have quantised linear layers only.
        experts = not packed or _holds_experts(packed)
        reports = self._swap(model, leave, experts)
        swapped = [name for report in reports for name in report.swapped]
        if not swapped:
            logger.warning(f"{METHOD} quantised nothing of {type(model).__name__}: {reports[0]}")
        if not self.pre_quantized:
            config = self.quantization_config
            given = config.modules_to_not_convert or []
            left = [name for report in reports for name in report.skipped]
            others = [name for name in left if should_convert_module(name, given)]
            config.modules_to_not_convert = [*given, *(_exactly(n, swapped) for n in others)]
        for layer in map(model.get_submodule, swapped):
            assert isinstance(layer, float_weights.Packed)
            if self.pre_quantized:
                _leave_initialised(layer)
            else:
                float_weights.expect(layer)

    def _modules_to_leave(self, model: PreTrainedModel, packed: set[str]) -> list[str]:
        config = self.quantization_config
        leave = self.get_modules_to_not_convert(
            model, config.modules_to_not_convert, list(model._keep_in_fp32_modules or [])
        )
        if not self.pre_quantized:
            return leave
        # A head that the saved model did not have is new, and starts in float.
        heads = self.get_modules_to_not_convert(model)
        new = (h for h in heads if not any(f".{w}".endswith(f".{h}.weight") for w in packed))
        return [*leave, *new]

    def _swap(self, model: PreTrainedModel, leave: list[str], experts: bool) -> list[SwapReport]:
        # Weights are tied after they have been loaded: until then they look like others.
        pairs = (model.all_tied_weights_keys or {}).items()
        tied = {key.removesuffix(".weight") for pair in pairs for key in pair}

        def chosen(name: str, module: nn.Module) -> bool:
            return name not in tied and should_convert_module(name, leave)

        options: dict[str, Any] = {
            "filter_fn": chosen,
            "scale_mode": self.quantization_config.scale_mode,
            "activation": self.quantization_config.activation,
            "progress": False,  # Transformers shows one, for the work that follows
        }
        reports = [swap_linear(model, skip=(), **options)]
        if experts:
            reports.append(swap_experts(model, **options))
        for report in reports:
            if report.swapped or report.skipped:
                logger.info(f"{METHOD}: {report}")
        return reports

    def param_needs_quantization(self, model: nn.Module, param_name: str, **kwargs: Any) -> bool:
        module, name = get_module_from_name(model, param_name)
        packed = isinstance(module, float_weights.Packed) and name in module.packed
        return packed and not self.pre_quantized

    def param_element_size(self, model: nn.Module, param_name: str, param: Tensor) -> float:
        return 0.5 if self.param_needs_quantization(model, param_name) else param.element_size()

    def get_quantize_ops(self) -> ConversionOps:
        return _Quantize(self)

    def _dequantize(
        self, model: PreTrainedModel, dtype: torch.dtype | None = None
    ) -> PreTrainedModel:
        for name, module in list(model.named_modules()):
            if isinstance(module, float_weights.Packed):
                text_config = model.config.get_text_config()
                model.set_submodule(name, float_weights.restore(module, text_config, dtype))
        return model

    def is_serializable(self, *args: Any, **kwargs: Any) -> bool:
        return True

    @property
    def is_trainable(self) -> bool:
        """Adapters beside the frozen layers, and everything else, get their gradients."""
        return True

    @property
    def is_compileable(self) -> bool:
        return True


class _Quantize(ConversionOps):
    """Float weights, as they come from the file, into codes and scales."""

    def __init__(self, quantizer: Mxfp4OpsQuantizer) -> None:
        self.quantizer = quantizer

    def convert(
        self,
        input_dict: dict[str, Any],
        source_patterns: list[str],
        target_patterns: list[str],
        **kwargs: Any,
    ) -> dict[str, Any]:
        model, tensors = kwargs["model"], {}
        for full_name, value in input_dict.items():
            weight = value[0] if isinstance(value, list) else value
            tensors[full_name] = weight
            if self.quantizer.param_needs_quantization(model, full_name):
                layer, name = get_module_from_name(model, full_name)
                codes, scales = float_weights.quantize(layer, name, weight, full_name)
                tensors |= {full_name: codes, f"{full_name}_scale": scales}
        return tensors


def _holds_experts(packed: set[str]) -> bool:
    return any(name.rpartition(".")[2] in Mxfp4Experts.packed for name in packed)


def _leave_initialised(layer: float_weights.Packed) -> None:
    """Keep Transformers from initialising weights that stay on the disk, as it would float ones."""
    for name in layer.packed:
        for parameter in (getattr(layer, name), getattr(layer, f"{name}_scale")):
            parameter._is_hf_initialized = True


def _exactly(name: str, others: Sequence[str]) -> str:
    """A pattern for Transformers that matches `name` and none of `others`."""
    # Names match ends of names too: `head` matches `encoder.head`. A regular expression does not.
    return name if all(should_convert_module(other, [name]) for other in others) else f"{name}$"
