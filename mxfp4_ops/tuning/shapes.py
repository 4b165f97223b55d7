"""The products to tune for: given one by one, by a model's config.json, or in a file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from ..formats import BLOCK
from .candidates import Shape

SEPARATOR = re.compile(r"[\s,x]+")


def _numbers(text: str, count: int, like: str) -> list[int]:
    try:
        numbers = [int(part) for part in SEPARATOR.split(text.strip())]
    except ValueError:
        numbers = []
    if len(numbers) != count or min(numbers) < 1:
        raise ValueError(f"{text!r} must be like {like}")
    if numbers[-1] % BLOCK:
        raise ValueError(f"K in {text!r} must be a multiple of {BLOCK}")
    return numbers


def weight(text: str) -> tuple[int, int]:
    """N and K of `4096x2048`."""
    n, k = _numbers(text, 2, "4096x2048 (N x K)")
    return n, k


def recorded(path: Path) -> list[Shape]:
    """A file with M, N and K of a product in each line; what follows a # is a comment."""
    found: dict[Shape, None] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if text := line.partition("#")[0].strip():
            m, n, k = _numbers(text, 3, "16 4096 2048 (M N K)")
            found[m, n, k] = None
    return list(found)


def of_model(path: Path) -> list[tuple[int, int]]:
    """N and K of the linear layers of a transformer, by its config.json."""
    config = json.loads(path.read_text(encoding="utf-8"))
    config = config.get("text_config", config)  # of a model that sees, too

    def size(*names: str) -> Any:
        return next((config[name] for name in names if config.get(name)), None)

    hidden = size("hidden_size", "n_embd", "d_model")
    heads = size("num_attention_heads", "n_head")
    if hidden is None or heads is None:
        raise ValueError(f"{path} names no hidden_size and num_attention_heads")
    head = size("head_dim") or hidden // heads
    queries, keys = heads * head, (size("num_key_value_heads") or heads) * head
    found = [(queries, hidden), (keys, hidden), (hidden, queries)]
    for inner in (size("intermediate_size", "n_inner"), size("moe_intermediate_size")):
        if inner is not None:
            found += [(inner, hidden), (hidden, inner)]
    return [(n, k) for n, k in dict.fromkeys(found) if k % BLOCK == 0]
