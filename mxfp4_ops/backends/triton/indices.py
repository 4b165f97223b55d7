"""Layouts and index vectors of Gluon kernels, whatever GPU they are for.

A layout lists the steps that each bit of the register, lane and warp number makes through a tensor,
the lowest bit first.
"""

from __future__ import annotations

from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.runtime.jit import constexpr_function


@constexpr_function
def bits(n: int) -> int:
    """How many bits count to n, a power of two."""
    return n.bit_length() - 1


@constexpr_function
def steps(rank: int, dim: int, first: int, count: int) -> list[list[int]]:
    """`count` bits that walk along `dim`: first, 2 * first, 4 * first, ..."""
    return [[first << i if d == dim else 0 for d in range(rank)] for i in range(count)]


@constexpr_function
def line(layout: Any, dim: int, rank: int) -> Any:
    """The one-dimensional layout that is `layout` along `dim`."""
    for d in reversed(range(rank)):
        if d != dim:
            layout = gl.SliceLayout(d, layout)
    return layout


@gluon.jit
def along(
    DIM: gl.constexpr, SIZE: gl.constexpr, layout: gl.constexpr, RANK: gl.constexpr
) -> gl.tensor:
    """0 .. SIZE - 1 along one dimension of a tensor of `layout`, the others of size 1."""
    index = gl.arange(0, SIZE, layout=line(layout, DIM, RANK))
    for d in gl.static_range(RANK):
        if d != DIM:
            index = gl.expand_dims(index, d)
    return index
