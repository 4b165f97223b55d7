"""The formats that are read, one module each. To add one: write its module and list it here."""

from __future__ import annotations

from .base import Format
from .compressed_tensors import CompressedTensors
from .gguf import Gguf
from .gpt_oss import GptOss
from .ours import Ours
from .plain import Float
from .quark import Quark
from .torchao import Torchao

_ALL: tuple[Format, ...] = (
    Ours(),
    Quark(),
    CompressedTensors(),
    GptOss(),
    Torchao(),
    Gguf(),
    Float(),
)
REGISTRY: dict[str, Format] = {each.name: each for each in _ALL}
