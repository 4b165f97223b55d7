"""Activations `[..., K]` in every memory layout that a view can give."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from common import generator
from torch import Tensor

K = 96

Layout = Callable[[torch.dtype, str], Tensor]


def _normal(*shape: int, dtype: torch.dtype, device: str) -> Tensor:
    return torch.randn(shape, generator=generator(len(shape))).to(device, dtype)


def _layout(*shape: int, view: Callable[[Tensor], Tensor] = lambda t: t) -> Layout:
    return lambda dtype, device: view(_normal(*shape, dtype=dtype, device=device))


def _negative(dtype: torch.dtype, device: str) -> Tensor:
    """A view that holds the numbers' opposites: torch sets its negative bit, not its data."""
    pairs = torch.view_as_complex(_normal(5, K, 2, dtype=torch.float32, device=device))
    view = pairs.conj().imag
    assert view.is_neg()
    return view if dtype == torch.float32 else view.to(dtype)


LAYOUTS: dict[str, Layout] = {
    "vector": _layout(K),
    "vector-step": _layout(2 * K, view=lambda t: t[::2]),
    "matrix": _layout(5, K),
    "one-row": _layout(1, K),
    "transposed": _layout(K, 5, view=lambda t: t.T),
    "columns": _layout(5, K + 40, view=lambda t: t[:, 3 : K + 3]),
    "columns-step": _layout(5, 3 * K, view=lambda t: t[:, 1::3]),
    "rows-step": _layout(10, K, view=lambda t: t[1::2]),
    "rows-expanded": _layout(1, K, view=lambda t: t.expand(5, K)),
    "columns-expanded": _layout(5, 1, view=lambda t: t.expand(5, K)),
    "scalar-expanded": _layout(1, 1, view=lambda t: t.expand(5, K)),
    "overlapping": _layout(K + 4, view=lambda t: t.unfold(0, K, 1)),
    "3d": _layout(2, 3, K),
    "3d-swapped": _layout(3, 2, K, view=lambda t: t.transpose(0, 1)),
    "3d-middle": _layout(2, K, 3, view=lambda t: t.transpose(1, 2)),
    "3d-sliced": _layout(4, 6, 2 * K, view=lambda t: t[::2, 1::3, K:]),
    "3d-expanded": _layout(3, 1, K, view=lambda t: t.expand(3, 4, K)),
    "4d-reversed": _layout(K, 2, 3, 2, view=lambda t: t.permute(3, 2, 1, 0)),
    "4d-channels-last": _layout(
        2, 3, 2, K, view=lambda t: t.contiguous(memory_format=torch.channels_last)
    ),
    "size-one-strides": _layout(2 * K, view=lambda t: t.as_strided((1, 1, K), (7, 13, 1), 5)),
    "empty": _layout(0, K),
    "empty-first": _layout(0, 3, K),
    "empty-middle": _layout(2, 0, 3, K),
    "no-elements": _layout(3, 0),
    "negative": _negative,
}

every_layout = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
