"""One kernel launch, decided on the host and frozen: what runs it on a GPU also compiles it for one
that is not there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Launch:
    """A kernel with everything that its launch takes.

    Attributes:
        kernel: the `triton.jit` or `gluon.jit` function.
        grid: programs in x, y and z.
        arguments: run-time arguments by name: tensors and integers.
        constants: `constexpr` arguments by name.
        options: compiler options such as `num_warps`.
        writes: arguments that the kernel fills without reading them.
    """

    kernel: Any
    grid: tuple[int, int, int]
    arguments: Mapping[str, Any]
    constants: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    writes: tuple[str, ...] = ("out",)

    def compile(self) -> Any:
        """Compile the kernel, for the current device, and launch nothing."""
        arguments = {**self.arguments, **self.constants, **self.options}
        return self.kernel.run(grid=self.grid, warmup=True, **arguments)

    def run(self) -> Any:
        """Launch it on the current device and stream; returns the compiled kernel.

        A grid with nothing in it is no launch.
        """
        if 0 in self.grid:
            return None
        return self.kernel[self.grid](**self.arguments, **self.constants, **self.options)
