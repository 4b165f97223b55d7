"""MXFP4 quantise-and-multiply for PyTorch: `torch.ops.mxfp4.quant_mm`, alike everywhere."""

from . import ops as _ops
from .api import dequantize, mm, quant_mm, quantize, shuffle, unshuffle
from .backends import BackendStatus, backends, use_backend
from .formats import ScaleMode
from .linear import Mxfp4Linear
from .swap import SwapReport, swap_linear

__version__ = "0.1.0"

__all__ = [
    "BackendStatus",
    "Mxfp4Linear",
    "ScaleMode",
    "SwapReport",
    "__version__",
    "backends",
    "dequantize",
    "mm",
    "quant_mm",
    "quantize",
    "shuffle",
    "swap_linear",
    "unshuffle",
    "use_backend",
]

del _ops
