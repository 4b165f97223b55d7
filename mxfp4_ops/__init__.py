"""MXFP4 quantise-and-multiply for PyTorch: `torch.ops.mxfp4.quant_mm`, the same numbers everywhere."""

from . import ops as _ops
from .api import dequantize, mm, quant_mm, quantize, shuffle, unshuffle
from .backends import BackendStatus, backends, use_backend
from .formats import ScaleMode

__version__ = "0.1.0"

__all__ = [
    "BackendStatus",
    "ScaleMode",
    "__version__",
    "backends",
    "dequantize",
    "mm",
    "quant_mm",
    "quantize",
    "shuffle",
    "unshuffle",
    "use_backend",
]

del _ops
