"""Which linear layers `swap_linear` replaces, and why it leaves the others alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import is_parametrized
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .linear import Mxfp4Linear, obstacle

Group = list[list[str]]
"""Layers that share one weight, each as all of its names."""

_STATE_DICT_HOOKS = (
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)


def matches(pattern: str, name: str) -> bool:
    want, have = pattern.split("."), name.split(".")
    starts = range(len(have) - len(want) + 1)
    return any(all(map(fnmatchcase, have[i : i + len(want)], want)) for i in starts)


def storages(t: Tensor) -> Iterator[torch.UntypedStorage]:
    if is_traceable_wrapper_subclass(t):
        for attribute in t.__tensor_flatten__()[0]:
            yield from storages(getattr(t, attribute))
    elif not is_lazy(t) and t.layout == torch.strided:
        yield t.untyped_storage()


def named_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def _customised(linear: nn.Linear) -> str | None:
    """What has been done to this very object that a replacement would lose, or None."""
    attributes = vars(linear)
    if "_hf_hook" in attributes:
        return "accelerate has hooked its forward"
    patched = sorted(a for a in attributes if callable(getattr(nn.Linear, a, None)))
    if patched:
        return f"its {patched[0]} has been replaced on the object"
    if attributes.get("_compiled_call_impl") is not None:
        return "it has been compiled by itself"
    if any(attributes[hooks] for hooks in _STATE_DICT_HOOKS):
        return "it has state dict hooks"
    own = {*linear._parameters, *linear._buffers, *linear._modules} - {"weight", "bias"}
    if own:
        return f"it has a parameter, buffer or module of its own, {sorted(own)[0]}"
    return None


def _reason(
    linear: nn.Linear,
    names: list[str],
    skip: Sequence[str],
    filter_fn: Callable[[str, nn.Module], bool] | None,
) -> str | None:
    """Why this layer is left alone, looked at by itself, or None."""
    if isinstance(linear, Mxfp4Linear):
        return "already swapped"
    if is_parametrized(linear):
        return "it is parametrized"
    if type(linear) is not nn.Linear:
        return f"it is a {type(linear).__name__}, a subclass of nn.Linear"
    for pattern in skip:
        if any(matches(pattern, name) for name in names):
            return f"skip pattern '{pattern}'"
    if filter_fn is not None and not all(filter_fn(name, linear) for name in names):
        return "filter_fn"
    return obstacle(linear) or _customised(linear)


def plan(
    model: nn.Module, skip: Sequence[str], filter_fn: Callable[[str, nn.Module], bool] | None
) -> tuple[list[Group], dict[str, str]]:
    """What to swap and what not.

    Returns groups of layers with one weight, each layer as all of its names, and the skipped layers
    with their reasons. No modules: those would keep every float weight alive.
    """
    names: dict[nn.Linear, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, nn.Linear):
            names.setdefault(module, []).append(name)

    skipped: dict[str, str] = {}
    by_weight: dict[Tensor, list[nn.Linear]] = {}
    for linear, aliases in names.items():
        reason = _reason(linear, aliases, skip, filter_fn)
        if reason is None:
            by_weight.setdefault(linear.weight, []).append(linear)
        else:
            skipped[aliases[0]] = reason

    users: dict[Tensor, list[str]] = {}
    memory: dict[int, dict[Tensor, None]] = {}
    for name, t in named_tensors(model):
        users.setdefault(t, []).append(name)
        for storage in storages(t):
            memory.setdefault(storage._cdata, {})[t] = None

    groups: list[Group] = []
    for weight, linears in by_weight.items():
        own = {f"{alias}.weight" for linear in linears for alias in names[linear]}
        sharers = [user for user in users[weight] if user not in own]
        views = [t for s in storages(weight) for t in memory[s._cdata] if t is not weight]
        if not sharers and not views:
            groups.append([names[linear] for linear in linears])
            continue
        reason = (
            f"its weight is shared with {sharers[0]}, which stays as it is"
            if sharers
            else f"its weight lies in the same memory as {users[views[0]][0]}"
        )
        skipped |= {names[linear][0]: reason for linear in linears}
    return groups, skipped
