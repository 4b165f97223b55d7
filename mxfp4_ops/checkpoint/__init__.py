"""Checkpoints: MXFP4 weights in files, whichever tool wrote them.

`open` reads AMD Quark, compressed-tensors, gpt-oss, torchao, GGUF and this package's own files;
`load` fills a model from one; `save` and `convert` write. They need the package safetensors, and
gguf for GGUF.
"""

from .convert import Conversion, convert
from .entries import Entry, Mxfp4Weight, Settings
from .load import LoadReport, load
from .reader import Checkpoint, open
from .save import save

__all__ = [
    "Checkpoint",
    "Conversion",
    "Entry",
    "LoadReport",
    "Mxfp4Weight",
    "Settings",
    "convert",
    "load",
    "open",
    "save",
]
