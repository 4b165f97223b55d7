"""Which tensors of a float checkpoint are to be quantised, and why the others are not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ..formats import BLOCK
from ..swap_plan import matches, plan
from .reader import Checkpoint
from .source import need

_DTYPES = ("BF16", "F16", "F32")


def to_quantize(
    checkpoint: Checkpoint,
    skip: Sequence[str],
    include: Sequence[str] | None,
    model: nn.Module | None,
) -> tuple[list[str], dict[str, str]]:
    """What to quantise of a float checkpoint.

    Args:
        skip: patterns of module names to leave alone, as `swap_linear` takes them.
        include: patterns of the modules to quantise; None asks the model.
        model: the float model, on the meta device; None makes it from config.json.

    Returns:
        Names of weights, and the reasons for modules that are left alone.

    Raises:
        ValueError: neither a model nor `include` says which tensors are weights of linear layers,
            or the checkpoint does not hold what the model has.
    """
    for what, patterns in (("skip", skip), ("include", include)):
        if isinstance(patterns, str):
            raise ValueError(f"{what} must be a list of patterns, got the string '{patterns}'")
    if include is not None:
        return _by_name(checkpoint, skip, include)
    model = model or _model(checkpoint)
    groups, skipped = plan(model, skip, None)
    chosen: list[str] = []
    for group in groups:
        names = [f"{name}.weight" for aliases in group for name in aliases]
        held = [name for name in names if name in checkpoint.entries]
        if not held:
            raise ValueError(f"{checkpoint.path}: it holds no {names[0]}, which the model has")
        for name in held:
            reason = _obstacle(checkpoint, name)
            if reason is None:
                chosen.append(name)
            else:
                skipped[name.removesuffix(".weight")] = reason
    return chosen, skipped


def _obstacle(checkpoint: Checkpoint, name: str) -> str | None:
    entry = checkpoint.entries[name]
    if entry.dtype not in _DTYPES:
        return f"its weight is {entry.dtype}, not {' or '.join(_DTYPES)}"
    if len(entry.shape) != 2:
        return f"its weight has shape {list(entry.shape)}, and is no matrix"
    if entry.shape[-1] % BLOCK:
        return f"in_features must be a multiple of {BLOCK}, but is {entry.shape[-1]}"
    return None


def _by_name(
    checkpoint: Checkpoint, skip: Sequence[str], include: Sequence[str]
) -> tuple[list[str], dict[str, str]]:
    chosen: list[str] = []
    skipped: dict[str, str] = {}
    idle = set(include)
    for entry in checkpoint.entries.values():
        if entry.module is None or len(entry.shape) != 2:
            continue
        wanted = {pattern for pattern in include if matches(pattern, entry.module)}
        unwanted = [pattern for pattern in skip if matches(pattern, entry.module)]
        idle -= wanted
        if not wanted:
            skipped[entry.module] = "not included"
        elif unwanted:
            skipped[entry.module] = f"skip pattern '{unwanted[0]}'"
        elif (reason := _obstacle(checkpoint, entry.name)) is not None:
            skipped[entry.module] = reason
        else:
            chosen.append(entry.name)
    if idle:
        raise ValueError(
            f"{checkpoint.path}: include pattern '{sorted(idle)[0]}' matches no matrix"
        )
    return chosen, skipped


def _model(checkpoint: Checkpoint) -> nn.Module:
    """The model that config.json describes, on the meta device."""
    names: Any = checkpoint.config.get("architectures") or []
    if not names:
        raise _unknown(checkpoint, "no config.json names the model's architecture")
    transformers = need("transformers")
    model_class = getattr(transformers, names[0], None)
    if model_class is None:
        raise _unknown(checkpoint, f"the installed Transformers has no {names[0]}")
    folder = checkpoint.path if checkpoint.path.is_dir() else checkpoint.path.parent
    config = model_class.config_class.from_pretrained(folder, local_files_only=True)
    with torch.device("meta"):
        built: nn.Module = model_class(config)
    return built


def _unknown(checkpoint: Checkpoint, why: str) -> ValueError:
    return ValueError(
        f"{checkpoint.path}: which tensors are weights of linear layers cannot be told from the "
        f"file, and {why}; include patterns of the modules to quantise, or give the model"
    )
