"""Calls like one that was made before, without deciding on their launches again.

What a call launches follows from its operator and from the sizes, strides, dtypes, alignment and
devices of its tensors. The first call of a kind checks its arguments, plans and compiles; from then
on a call of that kind allocates and launches, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .alignment import ALIGNMENT
from .launch import Launch

LIMIT = 4096
"""Kinds of calls that are remembered; at the next one all are forgotten."""

Result = Tensor | tuple[Tensor, ...]


@dataclass(frozen=True)
class _Empty:
    """A tensor that a call allocates; `dtype` is None if it is that of the call's first tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype | None

    @classmethod
    def like(cls, t: Tensor, first: Tensor) -> _Empty:
        return cls(tuple(t.shape), None if t.dtype == first.dtype else t.dtype)

    def new(self, first: Tensor) -> Tensor:
        if self.dtype is None:  # asked for, it costs another microsecond
            return first.new_empty(self.shape)
        return first.new_empty(self.shape, dtype=self.dtype)


def _tensor(argument: Any) -> Tensor | None:
    """What an argument is or, as Triton's descriptor of a tensor, describes."""
    base = getattr(argument, "base", argument)
    return base if isinstance(base, Tensor) else None


def _about(argument: Any, tensor: Tensor | None) -> Any:
    """The argument with another tensor, or with none."""
    if argument is None or isinstance(argument, Tensor):
        return tensor
    descriptor = copy(argument)
    descriptor.base = tensor  # of which a launch takes the address only
    return descriptor


def _launcher(kernel: Any, grid: tuple[int, int, int], device: int) -> Callable[..., None]:
    """What launches a compiled kernel, with less around it than `kernel[grid]`."""
    from triton import knobs
    from triton.runtime import driver

    run, function, metadata = kernel.run, kernel.function, kernel.packed_metadata
    before, after = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
    stream = driver.active.get_current_stream
    hooked = kernel[grid]

    def launch(*args: Any) -> None:
        if before.calls or after.calls:  # a profiler wants to know
            hooked(*args)
        else:
            run(*grid, stream(device), function, metadata, None, None, None, *args)

    return launch


@dataclass(frozen=True)
class _Recording:
    """Compiled kernels with their arguments, of which tensors are filled in anew.

    Attributes:
        results, scratch: what is allocated.
        kernels: what to call, its arguments, and for some of them, None or descriptors, which
            tensor goes there: a number among the call's own, the results and the scratch, in this
            order.
    """

    device: int
    only_device: bool
    results: tuple[_Empty, ...]
    scratch: tuple[_Empty, ...]
    kernels: tuple[tuple[Callable[..., None], tuple[Any, ...], tuple[tuple[int, int], ...]], ...]

    def run(self, tensors: list[Tensor]) -> Result:
        first = tensors[0]
        results = [empty.new(first) for empty in self.results]
        tensors += results
        tensors += [empty.new(first) for empty in self.scratch]
        if self.only_device or torch.cuda.current_device() == self.device:
            self._launch(tensors)
        else:
            with torch.cuda.device(self.device):
                self._launch(tensors)
        return results[0] if len(results) == 1 else tuple(results)

    def _launch(self, tensors: list[Tensor]) -> None:
        for kernel, arguments, places in self.kernels:
            filled = list(arguments)
            for place, tensor in places:
                filled[place] = _about(filled[place], tensors[tensor])
            kernel(*filled)


_recordings: dict[Hashable, _Recording] = {}


def _kind(op: str, forced: str | None, args: tuple[Any, ...]) -> tuple[Hashable, list[Tensor]]:
    """What distinguishes a call, and its tensors."""
    kind: list[Hashable] = [op, forced]
    tensors = []
    for arg in args:
        if isinstance(arg, Tensor):
            tensors.append(arg)
            alignment = arg.data_ptr() % ALIGNMENT
            kind.append((arg.shape, arg.stride(), arg.dtype, arg.get_device(), alignment))
        else:
            kind.append(arg)
    return tuple(kind), tensors


def find(op: str, forced: str | None, args: tuple[Any, ...]) -> Result | None:
    """The result of a call, if one like it was remembered. The first argument is on a GPU."""
    try:
        kind, tensors = _kind(op, forced, args)
    except RuntimeError:  # a sparse tensor, which has no strides
        return None
    recording = _recordings.get(kind)
    return None if recording is None else recording.run(tensors)


def remember(
    op: str,
    forced: str | None,
    args: tuple[Any, ...],
    result: Result,
    launches: list[Launch],
    compiled: list[Any],
) -> None:
    """Keep how a call was made, unless one of its kernels read what is not an argument itself.

    Args:
        result: what the call returned.
        compiled: the kernels that the launches ran.
    """
    kind, tensors = _kind(op, forced, args)
    results = [result] if isinstance(result, Tensor) else list(result)
    places = {t.data_ptr(): i for i, t in enumerate(tensors + results)}
    if 0 in places or len(places) < len(tensors) + len(results):  # empty, or one of them twice
        return
    device = tensors[0].get_device()
    scratch: list[_Empty] = []
    kernels = []
    for launch, kernel in zip(launches, compiled, strict=True):
        values = {**launch.constants, **launch.arguments}
        names = [parameter.name for parameter in launch.kernel.params]
        filled = []
        for place, name in enumerate(names):
            value = _tensor(values[name])
            if value is None:
                continue
            pointer = value.data_ptr()
            if pointer not in places:
                if name not in launch.writes:  # a copy that the host made of an argument
                    return
                places[pointer] = len(tensors) + len(results) + len(scratch)
                scratch.append(_Empty.like(value, tensors[0]))
            filled.append((place, places[pointer]))
        arguments = tuple(
            v if _tensor(v) is None else _about(v, None) for v in map(values.get, names)
        )
        kernels.append((_launcher(kernel, launch.grid, device), arguments, tuple(filled)))
    if len(_recordings) >= LIMIT:
        _recordings.clear()
    _recordings[kind] = _Recording(
        device,
        torch.cuda.device_count() == 1,
        tuple(_Empty.like(t, tensors[0]) for t in results),
        tuple(scratch),
        tuple(kernels),
    )
