"""GGUF, the format of llama.cpp.

Layout of MXFP4: blocks of 17 bytes, the scale and then 16 bytes of codes, of which byte j holds
element j in its low nibble and element j + 16 in its high one. Shapes in the file run from the
fastest dimension to the slowest; here they are turned round.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...formats import BLOCK
from ..entries import MXFP4, Entry, Mxfp4Weight, Raw, Settings, plain_entry
from ..source import Source, need
from .base import Format

MAGIC = b"GGUF"
BLOCK_BYTES = 17


def is_gguf(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


class GgufSource(Source):
    """One GGUF file. What is neither MXFP4 nor float is dequantised to float32 when it is read."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, [path])
        self.config = {}  # a config.json beside it says nothing of it
        self._at: dict[str, tuple[int, Any]] = {}
        for tensor in _tensors(path):
            shape = tuple(int(size) for size in reversed(tensor.shape))
            dtype = tensor.tensor_type.name
            self.tensors[tensor.name] = Raw(dtype, shape, str(path), int(tensor.n_bytes))
            self._at[tensor.name] = int(tensor.data_offset), tensor.tensor_type

    def read(self, name: str) -> Tensor:
        """The tensor; one of MXFP4 as its bytes, `[..., K/32, 17]`."""
        import numpy as np

        offset, kind = self._at[name]
        tensor = self.tensors[name]
        stored = np.fromfile(self.path, np.uint8, tensor.nbytes, offset=offset)
        if len(stored) != tensor.nbytes:
            raise ValueError(f"{self.path}: the file ends within {name}")
        if tensor.dtype == MXFP4:
            shape = (*tensor.shape[:-1], tensor.shape[-1] // BLOCK, BLOCK_BYTES)
            return torch.from_numpy(stored).reshape(shape)
        dtype = getattr(torch, _TORCH.get(tensor.dtype, ""), None)
        if dtype is not None:
            return torch.from_numpy(stored).view(dtype).reshape(tensor.shape)
        rows = stored.reshape(*tensor.shape[:-1], -1)
        return torch.from_numpy(need("gguf.quants").dequantize(rows, kind)).reshape(tensor.shape)


_TORCH = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_TORCH |= {"I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64"}


def _tensors(path: Path) -> list[Any]:
    gguf = need("gguf")
    try:
        reader = gguf.GGUFReader(path)
        parts = reader.get_field("split.count")
        count = 1 if parts is None else int(parts.contents())
    except (ValueError, IndexError, KeyError, OverflowError) as error:
        raise ValueError(f"{path}: not a whole GGUF file: {error}") from None
    if count > 1:
        raise ValueError(f"{path}: one of {count} parts; join them (llama-gguf-split --merge)")
    return list(reader.tensors)


class Gguf(Format):
    name = "gguf"

    def stated(self, source: Source) -> str | None:
        return "it is a GGUF file" if isinstance(source, GgufSource) else None

    def seen(self, source: Source) -> str | None:
        return None

    def entries(self, source: Source) -> dict[str, Entry]:
        found = {}
        for name, tensor in source.tensors.items():
            entry = plain_entry(name, tensor)
            if tensor.dtype != MXFP4 and tensor.dtype not in _TORCH:
                entry = Entry(name, "F32", tensor.shape, tensor.nbytes, (name,), tensor.file)
            found[name] = entry
        return found

    def read(self, source: Source, entry: Entry) -> Mxfp4Weight:
        blocks = source.read(entry.name)
        low, high = blocks[..., 1:] & 15, blocks[..., 1:] >> 4
        codes = torch.cat((low, high), -1)  # the elements of a block in their order
        packed = codes[..., 0::2] | codes[..., 1::2] << 4
        return Mxfp4Weight(packed.flatten(-2), blocks[..., 0].contiguous())

    def settings(self, source: Source) -> Settings:
        return Settings(activation="bf16")
