"""`swap_experts`: replace a model's mixtures of experts by `Mxfp4Experts`, in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import nn

from . import checks
from .formats import Activation, ScaleMode
from .moe import FLOAT_EXPERTS, Mxfp4Experts, obstacle
from .swap import SwapReport, tensor_bytes, with_progress
from .swap_plan import matches

HOOKS = (
    *("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"),
    "_is_full_backward_hook",
)
"""What a module's own hooks are, by how their attributes begin."""


def swap_experts(
    model: nn.Module,
    *,
    skip: Sequence[str] = (),
    filter_fn: Callable[[str, nn.Module], bool] | None = None,
    scale_mode: ScaleMode = "even",
    activation: Activation = "mxfp4",
    progress: bool = True,
) -> SwapReport:
    """Replace every `GptOssExperts` of a model by `Mxfp4Experts`, in place, one layer at a time.

    `swap_linear` does the same for linear layers; a model may go through both. Biases and hooks of
    forward and backward are kept.

    Args:
        model: on any device, meta included.
        skip, filter_fn: as in `swap_linear`.
        scale_mode: how weights and activations get their scales; see `quantize`.
        activation: whether activations are quantised (`mxfp4`) or kept in their own dtype (`bf16`).
        progress: show a progress bar on stderr.

    Returns:
        What was swapped, what was not and why. Left alone is what `Mxfp4Experts.from_experts`
        refuses.

    Raises:
        ValueError: `model` is itself a `GptOssExperts`, which cannot be replaced in place, or an
            argument is not one of the above.
    """
    if type(model).__name__ == FLOAT_EXPERTS:
        raise ValueError(
            f"the model is itself a {FLOAT_EXPERTS}, which cannot be replaced in place; "
            "use Mxfp4Experts.from_experts"
        )
    if isinstance(skip, str):
        raise ValueError(f"skip must be a list of patterns, got the string '{skip}'")
    checks.mode(scale_mode)
    checks.activation(activation)
    before = tensor_bytes(model)
    todo, skipped = _plan(model, skip, filter_fn)
    steps = with_progress(todo, lambda aliases: aliases[0], "experts") if progress else todo
    for aliases in steps:
        old = model.get_submodule(aliases[0])
        new = Mxfp4Experts.from_experts(old, scale_mode=scale_mode, activation=activation)
        # The hook dicts themselves, so that handles of hooks can still remove them.
        vars(new).update({k: v for k, v in vars(old).items() if k.startswith(HOOKS)})
        for name in aliases:
            parent, _, key = name.rpartition(".")
            model.get_submodule(parent).register_module(key, new)
        del old
    swapped = [aliases[0] for aliases in todo]
    return SwapReport(swapped, skipped, before, tensor_bytes(model), "experts")


def _plan(
    model: nn.Module, skip: Sequence[str], filter_fn: Callable[[str, nn.Module], bool] | None
) -> tuple[list[list[str]], dict[str, str]]:
    """What to swap, each layer as all of its names, and what not with the reasons."""
    names: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if any(c.__name__ in (FLOAT_EXPERTS, Mxfp4Experts.__name__) for c in type(module).__mro__):
            names.setdefault(module, []).append(name)
    skipped = {
        aliases[0]: reason
        for module, aliases in names.items()
        if (reason := _reason(module, aliases, skip, filter_fn)) is not None
    }
    return [aliases for aliases in names.values() if aliases[0] not in skipped], skipped


def _reason(
    module: nn.Module,
    names: list[str],
    skip: Sequence[str],
    filter_fn: Callable[[str, nn.Module], bool] | None,
) -> str | None:
    """Why this module is left alone, or None."""
    if isinstance(module, Mxfp4Experts):
        return "already swapped"
    for pattern in skip:
        if any(matches(pattern, name) for name in names):
            return f"skip pattern '{pattern}'"
    if filter_fn is not None and not all(filter_fn(name, module) for name in names):
        return "filter_fn"
    return obstacle(module)
