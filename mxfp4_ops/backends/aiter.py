"""AITER, AMD's library of kernels for its Instinct GPUs: what stands in for ours on MI355X.

It is looked for without being imported, and imported when the first call comes. Two of its
functions multiply:

- `gemm_a4w4`, kernels in assembly: shuffled weights, K in whole tiles, bfloat16 results only;
- `gemm_afp4wfp4`, a Triton kernel: plain weights, and everything that the first does not do. A
  shuffled weight is unshuffled for it at every call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.torch_version import TorchVersion

from .. import formats, layout
from .base import Backend, Call

ARCHITECTURE = "gfx950"

TRITON_MODULES = ("gemm.basic.gemm_afp4wfp4", "gemm_afp4wfp4")
"""Where `gemm_afp4wfp4` lives under `aiter.ops.triton`; the second, before 0.1.10."""

SIMPLE_GEMM_A4W4 = "0.1.9"
"""The first release whose `gemm_a4w4` allocates its result, padded, itself."""

MASKED_SCALES = "0.1.12"
"""The first whose `gemm_afp4wfp4` reads no scales beyond K. Until then whatever lies there, a NaN
perhaps, is multiplied with zeros."""

LARGEST_TILE = 1024
"""Of K, in every release's tables: no tile reaches beyond a K of whole ones."""

OFFSET_LIMIT = 2**31
"""Bytes of codes that the 32-bit offsets of `gemm_afp4wfp4` reach."""


@cache
def _folder() -> Path | None:
    """The package's folder, if it is AMD's: PyPI's `aiter` is another project."""
    spec = find_spec("aiter")
    for location in (spec and spec.submodule_search_locations) or ():
        if (Path(location) / "ops" / "triton").is_dir():
            return Path(location)
    return None


@cache
def _version() -> str | None:
    try:
        return metadata.version("amd-aiter")
    except metadata.PackageNotFoundError:
        return None


def _since(release: str) -> bool:
    version = _version()
    return version is not None and TorchVersion(version) >= release


@dataclass(frozen=True)
class Functions:
    """What of AITER is called; `gemm_a4w4` is None where it is too old or was left out."""

    gemm_a4w4: Callable[..., Tensor] | None
    gemm_afp4wfp4: Callable[..., Tensor]


@cache
def _functions() -> Functions:
    aiter = import_module("aiter")
    folder = Path(aiter.__path__[0]) / "ops" / "triton"
    there = (m for m in TRITON_MODULES if folder.joinpath(f"{m.replace('.', '/')}.py").exists())
    module = import_module(f"aiter.ops.triton.{next(there, TRITON_MODULES[0])}")
    gemm_a4w4 = getattr(aiter, "gemm_a4w4", None) if _since(SIMPLE_GEMM_A4W4) else None
    return Functions(gemm_a4w4, module.gemm_afp4wfp4)


def _whole_tiles(codes: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
    """With K filled up with zeros."""
    missing = -2 * codes.shape[1] % LARGEST_TILE
    if missing == 0:
        return codes, scales
    scales = F.pad(scales, (0, missing // formats.BLOCK), value=layout.PAD_SCALE)
    return F.pad(codes, (0, missing // 2)), scales


def _in_assembly(
    gemm_a4w4: Callable[..., Tensor], a: Tensor, a_scale: Tensor, b: Tensor, b_scale: Tensor
) -> Tensor:
    _, a_scale = layout.shuffle(a, a_scale)
    codes, scales = torch.float4_e2m1fn_x2, torch.float8_e8m0fnu
    return gemm_a4w4(
        A=a.view(codes),
        B=b.view(codes),
        A_scale=a_scale.view(scales),
        B_scale=b_scale.view(scales),
        dtype=torch.bfloat16,
        bpreshuffle=True,
    )


def _in_triton(
    a: Tensor, a_scale: Tensor, b: Tensor, b_scale: Tensor, dtype: torch.dtype, shuffled: bool
) -> Tensor:
    if shuffled:
        b, b_scale = layout.unshuffle(b, b_scale, len(b), 2 * a.shape[1])
    if not _since(MASKED_SCALES):
        (a, a_scale), (b, b_scale) = _whole_tiles(a, a_scale), _whole_tiles(b, b_scale)
    return _functions().gemm_afp4wfp4(x=a, w=b, x_scales=a_scale, w_scales=b_scale, dtype=dtype)


def _product(
    a: Tensor,
    a_scale: Tensor,
    b: Tensor,
    b_scale: Tensor,
    bias: Tensor | None,
    out_dtype: torch.dtype,
    shuffled: bool,
) -> Tensor:
    """Of a[M, K] and b[N, K], bytes both; added to in float32, then rounded to `out_dtype`."""
    m, n, k = len(a), len(b), 2 * a.shape[1]
    # K % 256 is not looked at there, and gives garbage. N % 32 is all that AITER tests.
    whole = k % 256 == 0 and n % 32 == 0
    if 0 in (m, n, k):
        y = a.new_zeros(m, n, dtype=torch.float32)
    elif shuffled and whole and out_dtype == torch.bfloat16 and (f := _functions().gemm_a4w4):
        y = _in_assembly(f, a, a_scale, b, b_scale)
    else:
        dtype = out_dtype if bias is None else torch.float32
        y = _in_triton(a, a_scale, b, b_scale, dtype, shuffled)
    return (y if bias is None else y.float() + bias.float()).to(out_dtype)


def _byte_rows(t: Tensor) -> Tensor:
    return t.view(torch.uint8).reshape(t.shape[:-1].numel(), t.shape[-1]).contiguous()


def mm(
    a: Tensor,
    a_scale: Tensor,
    b: Tensor,
    b_scale: Tensor,
    bias: Tensor | None,
    out_dtype: torch.dtype,
    shuffled: bool,
) -> Tensor:
    lead = a.shape[:-1]
    a, a_scale, b, b_scale = map(_byte_rows, (a, a_scale, b, b_scale))
    with torch.cuda.device_of(a):
        y = _product(a, a_scale, b, b_scale, bias, out_dtype, shuffled)
    return y.view(*lead, len(b))


def quant_mm(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None,
    out_dtype: torch.dtype | None,
    shuffled: bool,
    scale_mode: str,
) -> Tensor:
    from . import use_backend  # which imports this module

    # AITER's own quantisers have one scale mode each.
    with use_backend(None):
        a, a_scale = torch.ops.mxfp4.quantize(x, scale_mode=scale_mode)
    return mm(a, a_scale, weight, weight_scale, bias, out_dtype or x.dtype, shuffled)


OPERATORS: dict[str, Callable[..., Tensor]] = {f.__name__: f for f in (quant_mm, mm)}


class Aiter(Backend):
    name = "aiter"
    serves = "AMD MI350X and MI355X"

    def unavailable(self) -> str | None:
        if torch.version.hip is None:
            return "it needs a ROCm build of torch"
        if _folder() is None:
            return "AITER is not installed; build it from https://github.com/ROCm/aiter"
        return None

    def refuses(self, call: Call) -> str | None:
        if call.op not in OPERATORS:
            return f"it has {' and '.join(OPERATORS)}, but not {call.op}"
        arch = call.target.arch
        if not arch.startswith(ARCHITECTURE):
            return f"it takes tensors on {ARCHITECTURE}, not on {call.device} ({arch})"
        if max(call.m, call.n) * call.k // 2 > OFFSET_LIMIT:
            return "its 32-bit offsets do not reach all codes"
        return None

    def detail(self) -> str:
        return f"AITER {_version() or 'of unknown version'}"

    def run(self, call: Call, *args: Any) -> Any:
        return OPERATORS[call.op](*args)


BACKEND = Aiter()
