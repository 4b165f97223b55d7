"""Where launches come from: our own host code, and kernels in somebody else's file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import torch

from mxfp4_ops.backends.triton import gfx950
from mxfp4_ops.backends.triton.gfx950.plan import Plan, fused_plan, gemm_plan, quant_mm_plan
from mxfp4_ops.backends.triton.launch import Launch
from mxfp4_ops.formats import BLOCK
from mxfp4_ops.layout import shuffled_shapes

from .compile import driver_of
from .record import recorded

Source = Callable[[int, int, int], Sequence[Launch]]
"""The launches that make one product of M, N and K."""

OURS = "quant_mm"


def ours(shuffled: bool) -> dict[str, Source]:
    """What `quant_mm` launches for bfloat16 activations, without a bias: as its plan has it, fused,
    and with a pass of its own for the activations."""
    plans: dict[str, Callable[[int, int, int], Plan]]
    plans = {OURS: quant_mm_plan, f"{OURS}, fused": fused_plan, f"{OURS}, two passes": _two_passes}
    return {name: _quant_mm(plan, shuffled) for name, plan in plans.items()}


def _two_passes(m: int, n: int, k: int) -> Plan:
    return gemm_plan(max(m, 32), n, k)  # shuffled scales come in groups of 32 rows


def _quant_mm(plan: Callable[[int, int, int], Plan], shuffled: bool) -> Source:
    def launches(m: int, n: int, k: int) -> Sequence[Launch]:
        x = torch.empty(m, k, dtype=torch.bfloat16)
        plain = (n, k // 2), (n, k // BLOCK)
        shapes = shuffled_shapes(n, k) if shuffled else plain
        codes, scales = (torch.empty(shape, dtype=torch.uint8) for shape in shapes)
        out = torch.empty(m, len(codes), dtype=x.dtype)
        return gfx950.quant_mm(x, codes, scales, None, out, shuffled, "even", plan(m, n, k))

    return launches


def peers(path: Path) -> dict[str, Source]:
    """The products of a Python file.

    The file defines `PRODUCTS`: by name, functions of M, N and K that launch Triton kernels on
    tensors of the CPU, in whatever way their own host code does. Nothing is executed: the launches
    are recorded. Triton takes gfx950 for the architecture throughout.
    """
    spec = spec_from_file_location(f"peer_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = module_from_spec(spec)
    with driver_of("gfx950"):
        spec.loader.exec_module(module)
    return {name: _recorded(multiply) for name, multiply in module.PRODUCTS.items()}


def _recorded(multiply: Callable[[int, int, int], object]) -> Source:
    def launches(m: int, n: int, k: int) -> Sequence[Launch]:
        with recorded() as found:
            multiply(m, n, k)
        return found

    return launches
