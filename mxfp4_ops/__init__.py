"""MXFP4 quantise-and-multiply for PyTorch: `torch.ops.mxfp4.quant_mm`, alike everywhere."""

from . import ops as _ops
from .api import dequantize, grouped_quant_mm, mm, mm_a16, quant_mm, quantize, shuffle, unshuffle
from .backends import BackendStatus, backends, use_backend
from .formats import ScaleMode
from .linear import Mxfp4Linear
from .moe import Mxfp4Experts
from .report import Report, report
from .swap import SwapReport, swap_linear
from .swap_experts import swap_experts

__version__ = "0.1.0"

__all__ = [
    "BackendStatus",
    "Mxfp4Experts",
    "Mxfp4Linear",
    "Report",
    "ScaleMode",
    "SwapReport",
    "__version__",
    "backends",
    "dequantize",
    "grouped_quant_mm",
    "mm",
    "mm_a16",
    "quant_mm",
    "quantize",
    "report",
    "shuffle",
    "swap_experts",
    "swap_linear",
    "unshuffle",
    "use_backend",
]

del _ops
