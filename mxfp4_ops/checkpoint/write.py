"""Folders of safetensors files with an index and a config.json, as Hugging Face lays them out."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from .source import INDEX, need

SHARD_BYTES = 4 << 30
"""Size above which a further file is begun."""


@dataclass(frozen=True)
class Shard:
    """A file to write: its name, and the names of the entries in it."""

    file: str
    entries: tuple[str, ...]


def shards(sizes: Mapping[str, int], limit: int) -> list[Shard]:
    """Divide entries among files of at most `limit` bytes, or of one entry."""
    if limit < 1:
        raise ValueError(f"shard_bytes must be at least 1, got {limit}")
    groups: list[list[str]] = [[]]
    used = 0
    for name, size in sizes.items():
        if groups[-1] and used + size > limit:
            groups.append([])
            used = 0
        groups[-1].append(name)
        used += size
    if len(groups) == 1:
        return [Shard("model.safetensors", tuple(groups[0]))]
    names = (f"model-{i:05}-of-{len(groups):05}.safetensors" for i in range(1, len(groups) + 1))
    return [Shard(name, tuple(group)) for name, group in zip(names, groups, strict=True)]


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file, which is there whole or not at all."""
    part = path.with_name(f"{path.name}.part")
    need("safetensors.torch").save_file(_apart(tensors), part, metadata=dict(metadata))
    os.replace(part, path)


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous tensors on the CPU, no two of them in the same memory."""
    apart: dict[str, Tensor] = {}
    used: set[int] = set()
    for name, t in tensors.items():
        held = t.detach().cpu().contiguous()
        if held.untyped_storage().data_ptr() in used:
            held = held.clone()
        used.add(held.untyped_storage().data_ptr())
        apart[name] = held
    return apart


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps(value, indent=2) + "\n", "utf-8")
    os.replace(part, path)


def write_index(folder: Path, where: Mapping[str, str], total: int) -> None:
    """The index of several files; `where` maps tensors to files."""
    if len(set(where.values())) > 1:
        value = {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}
        write_json(folder / f"model{INDEX}", value)


def empty_folder(folder: Path) -> None:
    """Make a folder, or take one without a checkpoint in it.

    Raises:
        ValueError: there is one already, which would be mixed with the new one.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder}: it is a file; give a folder")
    folder.mkdir(parents=True, exist_ok=True)
    there = [p.name for p in folder.iterdir() if p.name.endswith((".safetensors", INDEX))]
    if there:
        raise ValueError(f"{folder}: there is a checkpoint in it already ({sorted(there)[0]})")
