"""`checkpoint.save`: write a model whose layers are `Mxfp4Linear`."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..linear import Mxfp4Linear
from ..moe import Mxfp4Experts
from . import write
from .entries import Mxfp4Weight, Settings
from .formats.ours import NAME
from .targets import target


def save(
    model: nn.Module,
    path: str | PathLike[str],
    *,
    to: str = NAME,
    config: Mapping[str, Any] | None = None,
    shard_bytes: int = write.SHARD_BYTES,
) -> None:
    """Write a model with its `Mxfp4Linear` and `Mxfp4Experts` into a folder, for `load` and others.

    It writes `model.safetensors`, or several files and an index, and a config.json with a
    `quantization_config`. What the model has under several names is written once.

    Args:
        model: on any device but meta.
        path: a folder without a checkpoint in it; it is made if need be.
        to: the format, `mxfp4_ops` or `compressed-tensors`.
        config: what else goes into config.json; None takes `model.config` if there is one, as
            models of Transformers have.
        shard_bytes: size above which a further file is begun.

    Raises:
        ValueError: the layers do not all run alike (scale mode, activation), there is nothing in
            MXFP4, the format cannot hold a weight, or there is a checkpoint in the folder.
    """
    layout, folder = target(to), Path(path)
    settings = _settings(model)
    entries = _entries(model)
    tensors: dict[str, dict[str, Tensor]] = {}
    for name, value in entries.items():
        if isinstance(value, Mxfp4Weight):
            shape = (*value.codes.shape[:-1], value.codes.shape[-1] * 2)
            tensors[name] = dict(zip(layout.names(name, shape), value, strict=True))
        else:
            tensors[name] = {name: value}
    linears = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    quantized = [name for name, linear in linears.items() if isinstance(linear, Mxfp4Linear)]
    left = [name for name in linears if name not in quantized]
    described = layout.config(settings, quantized, left)

    write.empty_folder(folder)
    sizes = {name: sum(t.nbytes for t in parts.values()) for name, parts in tensors.items()}
    where: dict[str, str] = {}
    for shard in write.shards(sizes, shard_bytes):
        held = {key: t for name in shard.entries for key, t in tensors[name].items()}
        write.write_tensors(folder / shard.file, held, layout.metadata(settings))
        where |= dict.fromkeys(held, shard.file)
    write.write_index(folder, where, sum(sizes.values()))
    rest = _config(model) if config is None else dict(config)
    write.write_json(folder / "config.json", rest | {"quantization_config": described})


def _settings(model: nn.Module) -> Settings:
    layers = [m for m in model.modules() if isinstance(m, Mxfp4Linear | Mxfp4Experts)]
    found = {Settings(layer.scale_mode, layer.activation) for layer in layers}
    if len(found) > 1:
        raise ValueError(f"a checkpoint describes all layers as one, but they differ: {found}")
    return found.pop() if found else Settings()


def _entries(model: nn.Module) -> dict[str, Tensor | Mxfp4Weight]:
    """The model's tensors by name, each once; codes with their scales."""
    state = {k: t for k, t in model.state_dict(keep_vars=True).items() if isinstance(t, Tensor)}
    packed = {n for n, t in state.items() if t.dtype == torch.uint8 and f"{n}_scale" in state}
    if not packed:
        raise ValueError("nothing in the model is MXFP4; swap its layers with swap_linear first")
    entries: dict[str, Tensor | Mxfp4Weight] = {}
    seen: set[Tensor] = set()
    for name, t in state.items():
        if t.is_meta:
            raise ValueError(f"{name} is on the meta device: it has no values to save")
        if t in seen or name.removesuffix("_scale") in packed - {name}:
            continue
        seen.add(t)
        entries[name] = Mxfp4Weight(t, state[f"{name}_scale"]) if name in packed else t
    return entries


def _config(model: nn.Module) -> dict[str, Any]:
    to_dict = getattr(getattr(model, "config", None), "to_dict", None)
    return dict(to_dict()) if callable(to_dict) else {}
