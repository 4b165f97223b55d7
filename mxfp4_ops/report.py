"""`report`: what quantising cost a model, layer by layer and in its output."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from .agreement import Agreement, RelativeError, counted
from .linear import Mxfp4Linear

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True)
class LayerError:
    """Errors of one swapped layer, each |actual - float| / |float| in the Euclidean norm.

    Attributes:
        name: the module's name in the model.
        out_features: N.
        in_features: K.
        weight: of the dequantised weight.
        own: of the layer's output where its input is the float model's: what this layer adds.
        accumulated: of the layer's output in the quantised model, errors of all layers before it
            included.
    """

    name: str
    out_features: int
    in_features: int
    weight: float
    own: float
    accumulated: float


@dataclass(frozen=True)
class OutputAgreement:
    """How well the outputs agree.

    Attributes:
        error: |actual - float| / |float| in the Euclidean norm, over all of the output.
        cosine: of the vectors along the last dimension, on average.
        top1: share of positions with the same largest logit; None for outputs that are no logits.
        kl: Kullback-Leibler divergence of the quantised model's distribution from the float
            model's in nats, averaged over positions; None for outputs that are no logits.
    """

    error: float
    cosine: float
    top1: float | None
    kl: float | None


@dataclass(frozen=True)
class Report:
    """What `report` measured. Printing it shows a table.

    Attributes:
        rows: one for each swapped layer, in the order of the model's modules.
        output: of the models' outputs.
    """

    rows: list[LayerError]
    output: OutputAgreement

    def to_json(self) -> str:
        """All of it as JSON: `layers`, a list, and `output`. What is not finite is null."""
        data = {"layers": [_finite(row) for row in self.rows], "output": _finite(self.output)}
        return json.dumps(data, indent=2, allow_nan=False)

    def plot(self, path: str | PathLike[str]) -> None:
        """Draw each layer's own and accumulated error.

        Args:
            path: of the picture; its ending says which format (.png, .svg, .pdf).

        Raises:
            ImportError: matplotlib is missing.
        """
        from . import report_views

        report_views.plot(self, path)

    def __rich__(self) -> RenderableType:
        from . import report_views

        return report_views.table(self)

    def __str__(self) -> str:
        from . import report_views

        return report_views.text(self)


class _Pair(NamedTuple):
    quantised: Mxfp4Linear
    linear: nn.Linear


class _Layer:
    """What is known of one layer while the models run."""

    def __init__(self, pair: _Pair) -> None:
        self.pair = pair
        self.own, self.accumulated = RelativeError(), RelativeError()
        self.outputs: deque[Tensor] = deque()  # the float model's, for the other one to come

    def row(self, name: str) -> LayerError:
        layer, weight = self.pair.quantised, RelativeError()
        weight.add(layer.dequantize(torch.float32), self.pair.linear.weight)
        errors = (error.value for error in (weight, self.own, self.accumulated))
        return LayerError(name, layer.out_features, layer.in_features, *errors)


def report(
    model: nn.Module, float_model: nn.Module, inputs: Any, *, logits: bool | None = None
) -> Report:
    """Compare a model that has been quantised with the float model it was.

    Both run once on each batch, without gradients and in eval mode. Outputs of the float model's
    layers are kept until the other model has run, so choose batches that leave memory for them.
    Experts (`Mxfp4Experts`) have no rows of their own; what they cost shows in the layers after.

    Args:
        model: with `Mxfp4Linear` layers, as `swap_linear` or Transformers makes it.
        float_model: the same model in float, whose layers have the same names.
        inputs: a batch, or a list of batches. A batch is what the models are called with: a
            tensor, a tuple of arguments or a mapping of keyword arguments. What an
            `attention_mask` in a mapping masks is not counted.
        logits: whether the output's last dimension holds logits. If None, it does if the output
            has an attribute `logits`.

    Returns:
        Errors of each layer and of the output. The output is what the models return, or of a
        larger structure its `logits`, else its `last_hidden_state`, else its first tensor.

    Raises:
        ValueError: there is nothing to compare, or the models do not fit each other.
    """
    layers = {name: _Layer(pair) for name, pair in _pairs(model, float_model).items()}
    batches = inputs if isinstance(inputs, list) else [inputs]
    if not batches:
        raise ValueError("inputs must hold at least one batch, got an empty list")
    output = Agreement()
    with torch.no_grad(), _evaluating(model), _evaluating(float_model):
        for batch in batches:
            expected, actual = _run(model, float_model, batch, layers)
            if logits is None:
                logits = hasattr(expected, "logits")
            mask = _mask(batch)
            ours, theirs = (counted(_tensor(y), mask) for y in (actual, expected))
            output.add(ours, theirs, logits)
        rows = [layer.row(name) for name, layer in layers.items()]
    top1, kl = (mean.value if logits else None for mean in (output.top1, output.kl))
    return Report(rows, OutputAgreement(output.error.value, output.cosine.value, top1, kl))


def _pairs(model: nn.Module, float_model: nn.Module) -> dict[str, _Pair]:
    others = dict(float_model.named_modules())
    pairs: dict[str, _Pair] = {}
    for name, module in model.named_modules():
        if not isinstance(module, Mxfp4Linear):
            continue
        other = others.get(name)
        if type(other) is not nn.Linear:
            kind = "nothing" if other is None else f"a {type(other).__name__}"
            raise ValueError(f"float_model must have an nn.Linear at '{name}', but has {kind}")
        if (other.out_features, other.in_features) != (module.out_features, module.in_features):
            raise ValueError(f"'{name}' is {other} in float_model, but {module} in model")
        pairs[name] = _Pair(module, other)
    if not pairs:
        raise ValueError("model has no Mxfp4Linear layers: quantise it first, with swap_linear")
    return pairs


def _run(
    model: nn.Module, float_model: nn.Module, batch: Any, layers: dict[str, _Layer]
) -> tuple[Any, Any]:
    """Run both models, the float one first, and look at what their layers do."""
    mask = _mask(batch)

    def look_at_float(layer: _Layer, x: Tensor, y: Tensor) -> None:
        own = layer.pair.quantised.forward(x.to(layer.pair.quantised.weight.device))
        layer.own.add(counted(own, mask), counted(y, mask))
        layer.outputs.append(y)

    def look_at_quantised(layer: _Layer, x: Tensor, y: Tensor) -> None:
        if layer.outputs:
            layer.accumulated.add(counted(y, mask), counted(layer.outputs.popleft(), mask))

    with ExitStack() as hooks:
        for layer in layers.values():
            hooks.enter_context(_hook(layer.pair.linear, layer, look_at_float))
        expected = _call(float_model, batch)
    with ExitStack() as hooks:
        for layer in layers.values():
            hooks.enter_context(_hook(layer.pair.quantised, layer, look_at_quantised))
        actual = _call(model, batch)
    return expected, actual


@contextmanager
def _hook(
    module: nn.Module, layer: _Layer, look: Callable[[_Layer, Tensor, Tensor], None]
) -> Iterator[None]:
    def hook(_: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any], y: Tensor) -> None:
        look(layer, inputs[0] if inputs else options["input"], y)

    handle = module.register_forward_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _mask(batch: Any) -> Tensor | None:
    return batch.get("attention_mask") if isinstance(batch, Mapping) else None


def _call(model: nn.Module, batch: Any) -> Any:
    first = next(model.parameters(), None)

    def here(value: Any) -> Any:
        return value.to(first.device) if isinstance(value, Tensor) and first is not None else value

    if isinstance(batch, Mapping):
        return model(**{name: here(value) for name, value in batch.items()})
    return model(*map(here, batch if isinstance(batch, tuple) else (batch,)))


def _tensor(output: Any) -> Tensor:
    for name in ("logits", "last_hidden_state"):
        output = getattr(output, name, output)
    if isinstance(output, Mapping):
        output = tuple(output.values())
    while isinstance(output, tuple | list) and output:
        output = output[0]
    if not isinstance(output, Tensor):
        raise ValueError(
            f"the models return a {type(output).__name__}, in which no tensor is first"
        )
    return output


def _finite(row: LayerError | OutputAgreement) -> dict[str, Any]:
    def kept(value: Any) -> Any:
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return {key: kept(value) for key, value in asdict(row).items()}
