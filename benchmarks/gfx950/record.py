"""Find out what somebody's code launches, without a GPU to launch it on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from triton.runtime.jit import JITFunction

from mxfp4_ops.backends.triton.launch import Launch

from .compile import driver_of


def _launch(kernel: Any, grid: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Launch:
    names = [parameter.name for parameter in kernel.params]
    bound = {**dict(zip(names, args, strict=False)), **named}
    sizes = grid(bound) if callable(grid) else grid
    constexprs = {parameter.name for parameter in kernel.params if parameter.is_constexpr}
    return Launch(
        kernel=kernel,
        grid=tuple([*sizes, 1, 1][:3]),
        arguments={k: v for k, v in bound.items() if k in names and k not in constexprs},
        constants={k: v for k, v in bound.items() if k in constexprs},
        options={k: v for k, v in bound.items() if k not in names},
    )


@contextmanager
def recorded(arch: str = "gfx950") -> Iterator[list[Launch]]:
    """Triton kernels that are launched inside, as on `arch`, end up in the list instead."""
    launches: list[Launch] = []

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **named: Any) -> None:
        launches.append(_launch(self, grid, args, named))

    with driver_of(arch), patch.object(JITFunction, "run", run):
        yield launches
