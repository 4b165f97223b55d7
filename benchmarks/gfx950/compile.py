"""Compile a `Launch` for a GPU that is not there, by the code path of a launch on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime.jit import JITFunction, mangle_type

from mxfp4_ops.backends.triton.launch import Launch

from .assembly import Assembly

WAVE = 64
"""Lanes of a wave."""


@dataclass(frozen=True)
class Compiled:
    """A kernel's machine code and what a launch hands to it.

    Attributes:
        amdgcn: the assembly text.
        lds_bytes: local memory of a workgroup, which a launch asks for.
        arguments: tensors and numbers in the order of the kernel's table of arguments; None stands
            for the pointers to scratch memory that Triton appends.
    """

    amdgcn: str
    name: str
    num_warps: int
    lds_bytes: int
    arguments: tuple[Any, ...]

    @property
    def assembly(self) -> Assembly:
        return Assembly.parse(self.amdgcn)

    @property
    def vgprs(self) -> int:
        return self.assembly.metadata["vgpr_count"]

    @property
    def spills(self) -> int:
        counts = self.assembly.metadata
        return counts["vgpr_spill_count"] + counts["sgpr_spill_count"]

    @property
    def scratch_bytes(self) -> int:
        return self.assembly.metadata["private_segment_fixed_size"]


class AbsentDriver(DriverBase):  # type: ignore[misc]
    """A driver of a GPU that cannot run anything."""

    def __init__(self, arch: str) -> None:
        self.target = GPUTarget("hip", arch, WAVE)

    @classmethod
    def is_active(cls) -> bool:
        return False

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> str:
        return f"absent {self.target.arch}"  # what a kernel caches for real devices stays apart

    def get_current_stream(self, device: str) -> int:
        return 0

    def map_python_to_cpp_type(self, ty: str) -> str:
        raise NotImplementedError

    def get_active_torch_device(self) -> Any:
        raise NotImplementedError

    def get_benchmarker(self) -> Any:
        raise NotImplementedError


@contextmanager
def driver_of(arch: str) -> Iterator[None]:
    """Triton takes `arch` for the architecture of the GPU inside."""
    config = triton.runtime.driver
    previous = config._active  # `active` would look for a GPU and fail without one
    config.set_active(AbsentDriver(arch))
    try:
        yield
    finally:
        config.set_active(previous)


def _specialised(launch: Launch) -> Any:
    values = {**launch.arguments, **launch.constants, **launch.options}
    return launch.kernel.run(grid=launch.grid, warmup=True, **values)


def _plain(launch: Launch) -> Any:
    kernel = launch.kernel
    *_, target, _backend, binder = kernel.create_binder()
    bound, _, _ = binder(**launch.arguments, **launch.constants)
    types = {
        p.name: "constexpr" if p.is_constexpr else p.annotation_type or mangle_type(bound[p.name])
        for p in kernel.params
    }
    constants = {name: bound[name] for name, type_ in types.items() if type_ == "constexpr"}
    source = kernel.ASTSource(kernel, types, constants, attrs={})
    return triton.compile(source, target=target, options=dict(launch.options))


def compile_launch(launch: Launch, specialised: bool, target: str = "gfx950") -> Compiled:
    """Compile what `launch` would run on `target`.

    Args:
        launch: of a `triton.jit` or `gluon.jit` function; specialised, also of one under
            `triton.heuristics`.
        specialised: as a launch does, on the values of its arguments (divisibility by 16, integers
            that are 1, tensors below 2 GiB); otherwise for their types alone.
        target: the architecture.
    """
    function = launch.kernel
    while specialised and hasattr(function, "fn") and not isinstance(function, JITFunction):
        function = function.fn
    if not isinstance(function, JITFunction):
        raise TypeError(f"{function!r} is not compiled: decorated with TRITON_INTERPRET set?")
    with driver_of(target):
        compiled = _specialised(launch) if specialised else _plain(launch)
    text, metadata = compiled.asm["amdgcn"], compiled.metadata
    values: Mapping[str, Any] = {**launch.constants, **launch.arguments}
    types = compiled.src.signature
    arguments = [values[name] for name, type_ in types.items() if type_ != "constexpr"]
    hidden = len(Assembly.parse(text).arguments) - len(arguments)
    return Compiled(
        amdgcn=text,
        name=metadata.name,
        num_warps=metadata.num_warps,
        lds_bytes=metadata.shared,
        arguments=(*arguments, *[None] * hidden),
    )
