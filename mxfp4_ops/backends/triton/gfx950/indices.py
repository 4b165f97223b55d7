"""Index vectors of tensors with a given layout."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from . import layouts


@gluon.jit
def along(
    DIM: gl.constexpr, SIZE: gl.constexpr, layout: gl.constexpr, RANK: gl.constexpr
) -> gl.tensor:
    """0 .. SIZE - 1 along one dimension of a tensor of `layout`, the others of size 1."""
    index = gl.arange(0, SIZE, layout=layouts.line(layout, DIM, RANK))
    for d in gl.static_range(RANK):
        if d != DIM:
            index = gl.expand_dims(index, d)
    return index
