"""The operators on the emulated gfx950: launches as on a GPU, their machine code interpreted."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from benchmarks.gfx950.compile import compile_launch
from mxfp4_ops.backends.triton import gfx950
from mxfp4_ops.backends.triton.gfx950.plan import Plan
from mxfp4_ops.backends.triton.launch import Launch
from mxfp4_ops.formats import BLOCK
from mxfp4_ops.layout import shuffled_shapes

from .emulator import Program, launch

_parse = lru_cache(maxsize=64)(Program.parse)


@dataclass(frozen=True)
class Form:
    """One of the ways in which a kernel may come to run.

    Attributes:
        specialised: compiled as by a launch, which looks at its arguments' values, or for their
            types alone.
        order: in which waves take turns between barriers.
    """

    specialised: bool = True
    order: str = "ascending"

    def __str__(self) -> str:
        return f"{'specialised' if self.specialised else 'plain'}-{self.order}"

    def run(self, launches: list[Launch]) -> None:
        for each in launches:
            compiled = compile_launch(each, self.specialised)
            launch(
                _parse(compiled.amdgcn),
                grid=each.grid,
                arguments=list(compiled.arguments),
                num_warps=compiled.num_warps,
                lds_bytes=compiled.lds_bytes,
                order=self.order,
            )


FORMS = [Form(), Form(order="descending"), Form(specialised=False)]


def quant_mm(
    form: Form,
    x: Tensor,
    weight: tuple[Tensor, Tensor],
    bias: Tensor | None = None,
    *,
    out_dtype: torch.dtype | None = None,
    shuffled: bool = False,
    scale_mode: str = "even",
    plan: Plan | None = None,
) -> Tensor:
    """x `[M, K]`; the result starts as NaN, so that what is not written shows."""
    out = torch.full((len(x), len(weight[0])), torch.nan, dtype=out_dtype or x.dtype)
    form.run(gfx950.quant_mm(x, *weight, bias, out, shuffled, scale_mode, plan))
    return out


def mm(
    form: Form,
    a: tuple[Tensor, Tensor],
    b: tuple[Tensor, Tensor],
    bias: Tensor | None = None,
    *,
    out_dtype: torch.dtype = torch.bfloat16,
    shuffled: bool = False,
    plan: Plan | None = None,
) -> Tensor:
    out = torch.full((len(a[0]), len(b[0])), torch.nan, dtype=out_dtype)
    form.run(gfx950.mm(*a, *b, bias, out, shuffled, plan))
    return out


def quantize(
    form: Form, x: Tensor, scale_mode: str = "even", *, shuffled: bool = False
) -> tuple[Tensor, Tensor]:
    """Codes and scales of x `[M, K]`; bytes that are not written stay 0xA5."""
    m, k = x.shape
    shapes = shuffled_shapes(m, k) if shuffled else ((m, k // 2), (m, k // BLOCK))
    codes, scales = (torch.full(shape, 0xA5, dtype=torch.uint8) for shape in shapes)
    form.run(gfx950.quantize(x, codes, scales, scale_mode, shuffled=shuffled))
    return codes, scales
