"""`swap_linear`: replace a model's `nn.Linear` layers by `Mxfp4Linear`, in place."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

from torch import nn

from . import checks
from .formats import Activation, ScaleMode
from .linear import Mxfp4Linear
from .swap_plan import Group, matches, named_tensors, plan, storages

DEFAULT_SKIP = ("lm_head",)

T = TypeVar("T")

# What a new layer has of its own. Everything else (hooks, flags, attributes) it takes from the old.
_OWN = {"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"}
_OWN |= {"in_features", "out_features", "scale_mode", "activation"}
_OWN |= {"weight", "weight_scale", "bias"}


@dataclass(frozen=True)
class SwapReport:
    """What `swap_linear` or `swap_experts` did.

    Attributes:
        swapped: names of the layers that were replaced; the first name of a layer that has several.
        skipped: name and reason for each layer of the kind, subclasses included, that was not.
        bytes_before: size of the model's parameters and buffers, shared memory counted once.
        bytes_after: the same after the swap.
        kind: what layers were looked for.
    """

    swapped: list[str]
    skipped: dict[str, str]
    bytes_before: int
    bytes_after: int
    kind: str = "linear layers"

    @property
    def bytes_saved(self) -> int:
        return self.bytes_before - self.bytes_after

    @property
    def skipped_by_reason(self) -> dict[str, list[str]]:
        """`skipped`, turned round."""
        names: dict[str, list[str]] = {}
        for name, reason in self.skipped.items():
            names.setdefault(reason, []).append(name)
        return names

    def __str__(self) -> str:
        before, after = (n / 2**20 for n in (self.bytes_before, self.bytes_after))
        lines = [
            f"{len(self.swapped)} {self.kind} swapped, {len(self.skipped)} skipped; "
            f"{before:.1f} MiB -> {after:.1f} MiB"
        ]
        for reason, names in self.skipped_by_reason.items():
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            lines.append(f"  skipped {', '.join(names[:3])}{more}: {reason}")
        return "\n".join(lines)


def swap_linear(
    model: nn.Module,
    *,
    skip: Sequence[str] = DEFAULT_SKIP,
    filter_fn: Callable[[str, nn.Module], bool] | None = None,
    scale_mode: ScaleMode = "even",
    activation: Activation = "mxfp4",
    progress: bool = True,
) -> SwapReport:
    """Replace every `nn.Linear` of a model by an `Mxfp4Linear`, in place, one layer at a time.

    Each float weight is freed as soon as it is converted, unless something outside of the model (an
    optimizer, say) holds it. Biases, hooks and attributes are kept, and so is what layers share: a
    layer under several names stays one layer, and layers with one weight keep one weight.

    Args:
        model: on any device, meta included.
        skip: patterns of names to leave alone. A pattern matches whole components of a dotted name,
            anywhere in it: `layers.1` matches `model.layers.1.mlp.up`, never `layers.10`. It may
            hold globs: `layers.*.mlp`.
        filter_fn: called with name and module of each layer; False leaves it alone.
        scale_mode: how weights and activations get their scales; see `quantize`.
        activation: whether activations are quantised (`mxfp4`) or kept in their own 16- or 32-bit
            dtype (`bf16`): more accurate, and no more work for a GPU without FP4 units.
        progress: show a progress bar on stderr.

    Returns:
        What was swapped, what was not and why. Left alone are subclasses of `nn.Linear` (others may
        read their float weight, as `nn.MultiheadAttention` does), layers whose forward, parameters
        or state dict have been customised, layers whose weight is shared with anything that stays
        as it is, and those that `Mxfp4Linear.from_linear` refuses.

    Raises:
        ValueError: `model` is itself an `nn.Linear`, which cannot be replaced in place, or
            another argument is not one of the above.

    `nn.TransformerEncoderLayer` and `nn.TransformerEncoder` have a fused inference path that reads
    float weights. It is switched off where a layer in them has been swapped.
    """
    if isinstance(model, nn.Linear):
        raise ValueError(
            f"the model is itself a {type(model).__name__}, which cannot be replaced in place; "
            "use Mxfp4Linear.from_linear"
        )
    if isinstance(skip, str):
        raise ValueError(f"skip must be a list of patterns, got the string '{skip}'")
    checks.activation(activation)
    _warn_of_idle_patterns(model, skip)
    bytes_before = tensor_bytes(model)
    groups, skipped = plan(model, skip, filter_fn)
    for group in with_progress(groups, _first_name, "linear layers") if progress else groups:
        _swap(model, group, scale_mode, activation)
    _leave_fused_path(model)
    swapped = [names[0] for group in groups for names in group]
    return SwapReport(swapped, skipped, bytes_before, tensor_bytes(model))


def _warn_of_idle_patterns(model: nn.Module, skip: Sequence[str]) -> None:
    if tuple(skip) == DEFAULT_SKIP:
        return
    names = [name for name, _ in model.named_modules(remove_duplicate=False)]
    for pattern in skip:
        if not any(matches(pattern, name) for name in names):
            warnings.warn(f"skip pattern '{pattern}' matches no module", stacklevel=3)


def tensor_bytes(model: nn.Module) -> int:
    """Size of a model's parameters and buffers, shared memory counted once."""
    sizes = {s._cdata: s.nbytes() for _, t in named_tensors(model) for s in storages(t)}
    return sum(sizes.values())


def _first_name(group: Group) -> str:
    return group[0][0]


def _swap(model: nn.Module, group: Group, scale_mode: ScaleMode, activation: Activation) -> None:
    """Replace the layers of one weight."""
    first: Mxfp4Linear | None = None
    for names in group:
        old = cast(nn.Linear, model.get_submodule(names[0]))
        if first is None:
            new = first = Mxfp4Linear.from_linear(old, scale_mode=scale_mode, activation=activation)
        else:
            weight = first.weight, first.weight_scale
            new = Mxfp4Linear._like(old, *weight, scale_mode, activation)
        # The hook dicts themselves, so that handles of hooks can still remove them.
        vars(new).update({k: v for k, v in vars(old).items() if k not in _OWN})
        for name in names:
            parent, _, key = name.rpartition(".")
            model.get_submodule(parent).register_module(key, new)


def _leave_fused_path(model: nn.Module) -> None:
    """Keep torch's fused encoder kernel, which reads float weights, away from swapped layers.

    These two attributes are what the modules themselves set where the kernel does not apply.
    """
    for module in model.modules():
        if not isinstance(module, nn.TransformerEncoder | nn.TransformerEncoderLayer):
            continue
        if any(isinstance(child, Mxfp4Linear) for child in module.modules()):
            if isinstance(module, nn.TransformerEncoder):
                module.use_nested_tensor = False
            else:
                module.activation_relu_or_gelu = 0


def with_progress(items: list[T], name: Callable[[T], str], kind: str) -> Iterable[T]:
    """The items, with a progress bar that shows the name of each."""
    # Imported here, so that `import mxfp4_ops` does not wait for it.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=len(items))
        for item in items:
            bar.update(task, description=name(item))
            yield item
            bar.advance(task)
        bar.update(task, description=kind)
