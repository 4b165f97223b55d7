"""Whether a checkpoint fits a model; nothing is read or changed to find out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from ..moe import FLOAT_EXPERTS, Mxfp4Experts, obstacle
from ..swap_plan import plan
from .entries import FLOATS, Entry
from .reader import Checkpoint


@dataclass(frozen=True)
class Fit:
    """Where the tensors of a checkpoint go.

    Attributes:
        targets: for each entry, the tensor of the model that it fills; of two the codes.
        swapped: float weights of the layers and experts that are swapped.
    """

    targets: dict[str, Tensor]
    swapped: set[Tensor]


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """All tensors of a model by all of their names.

    Buffers that are not in its state dict are among them: files of older versions may hold them.
    """
    state: dict[str, object] = dict(model.named_buffers(remove_duplicate=False))
    state |= model.state_dict(keep_vars=True)
    return {name: t for name, t in state.items() if isinstance(t, Tensor)}


def fit(checkpoint: Checkpoint, model: nn.Module) -> Fit:
    """Find a place for every tensor.

    Raises:
        ValueError: a tensor has no place, or a place no tensor; the message names both.
    """
    have = named_tensors(model)
    targets: dict[str, Tensor] = {}
    swapped: dict[Tensor, Entry] = {}
    filled: set[Tensor] = set()
    for name, entry in checkpoint.entries.items():
        if name not in have:
            raise ValueError(f"{entry.file}: the model has no {name}")
        target = targets[name] = have[name]
        filled.add(target)
        if not entry.quantized:
            _check_plain(entry, target)
        elif target.is_floating_point():
            _check_float(entry, model, target)
            swapped[target] = entry
        else:
            filled.add(_check_packed(entry, have))
    _check_swappable(model, swapped)
    needed = model.state_dict(keep_vars=True)
    for name, t in have.items():
        if t in filled:
            continue
        if name in needed:
            raise ValueError(f"{checkpoint.path}: it holds no {name}, which the model has")
        if t.is_meta:
            raise ValueError(
                f"{checkpoint.path}: the model's buffer {name} is on the meta device, and the "
                "checkpoint does not hold it; build the model with its buffers on the CPU"
            )
    return Fit(targets, set(swapped))


def _check_shape(entry: Entry, shape: list[int]) -> None:
    if list(entry.shape) != shape:
        raise ValueError(
            f"{entry.file}: {entry.name} has shape {list(entry.shape)}, but the model's has {shape}"
        )


def _check_plain(entry: Entry, target: Tensor) -> None:
    if (entry.dtype in FLOATS) != target.is_floating_point():
        raise ValueError(
            f"{entry.file}: {entry.name} is {entry.dtype}, but the model's is {target.dtype}"
        )
    _check_shape(entry, list(target.shape))


def _check_float(entry: Entry, model: nn.Module, target: Tensor) -> None:
    """A float tensor can be filled with MXFP4 only if its module can be swapped."""
    prefix, _, parameter = entry.name.rpartition(".")
    owner = model.get_submodule(prefix)
    if isinstance(owner, nn.Linear) and parameter == "weight":
        if owner is model:
            raise ValueError("the model is itself a linear layer, which cannot be swapped in place")
        _check_shape(entry, list(target.shape))
    elif type(owner).__name__ == FLOAT_EXPERTS and parameter in Mxfp4Experts.packed:
        _check_shape(entry, [*target.shape[:-2], target.shape[-1], target.shape[-2]])
    else:
        raise ValueError(
            f"{entry.file}: {entry.name} is MXFP4, but in the model it is a float tensor of "
            f"{type(owner).__name__}, which cannot be swapped"
        )


def _check_packed(entry: Entry, have: dict[str, Tensor]) -> Tensor:
    """Codes and scales that the model has already; returns the scales."""
    codes, scales = have[entry.name], have.get(f"{entry.name}_scale")
    if scales is None:
        raise ValueError(f"{entry.file}: the model has no {entry.name}_scale")
    _check_shape(entry, [*codes.shape[:-1], codes.shape[-1] * 2])
    needed = [*entry.shape[:-1], entry.shape[-1] // 32]
    if list(scales.shape) != needed:
        raise ValueError(
            f"{entry.file}: {entry.name} needs scales of shape {needed}, but the model's have "
            f"{list(scales.shape)}"
        )
    return scales


def _check_swappable(model: nn.Module, swapped: dict[Tensor, Entry]) -> None:
    _, skipped = plan(model, (), lambda _, linear: linear.weight in swapped)
    for name, reason in skipped.items():
        _refuse(name, _entries(model.get_submodule(name), ("weight",), swapped), reason)
    for name, module in model.named_modules():
        if type(module).__name__ == FLOAT_EXPERTS:
            entries = _entries(module, Mxfp4Experts.packed, swapped)
            why = obstacle(module)
            if why is None and len(entries) < len(Mxfp4Experts.packed):
                why = f"of {' and '.join(Mxfp4Experts.packed)} only one is MXFP4"
            if why is not None:
                _refuse(name, entries, why)


def _entries(
    module: nn.Module, parameters: Sequence[str], swapped: dict[Tensor, Entry]
) -> list[Entry]:
    """What is to fill these parameters with MXFP4."""
    held = (module._parameters.get(name) for name in parameters)
    return [swapped[t] for t in held if t is not None and t in swapped]


def _refuse(name: str, entries: list[Entry], reason: str) -> None:
    for entry in entries:
        raise ValueError(
            f"{entry.file}: {entry.name} is MXFP4, but the model's {name} cannot be: {reason}"
        )
