"""torchao's safetensors, `MXTensor` of torch.float4_e2m1fn_x2 in blocks of 32.

Layout: `<m>._weight_qdata` uint8 `[N, K/2]`, plain, and `<m>._weight_scale` float8_e8m0fnu:
`[N, K/32]`, or swizzled as cuBLAS reads it, in tiles of 128 rows and 4 columns that are padded with
zeros. Which of the two it is stands in the file's metadata only.
"""

from __future__ import annotations

import json
from math import prod
from typing import Any, cast

import torch

from ...formats import ScaleMode
from ..entries import (
    MXFP4,
    Entry,
    Mxfp4Weight,
    Settings,
    pair_entry,
    plain_entry,
    unpacked_shape,
)
from ..source import Source
from .base import Ends, Format, check_pair

TILE_ROWS, TILE_COLUMNS = 128, 4
# CEIL scales more coarsely than any mode here; like RCEIL, it lets no element saturate.
_MODES: dict[str, ScaleMode] = {"RCEIL": "ceil", "CEIL": "ceil", "FLOOR": "floor", "EVEN": "even"}


class Torchao(Format):
    name = "torchao"

    def stated(self, source: Source) -> str | None:
        if source.quantization_config.get("quant_method") == "torchao":
            return "config.json has quant_method 'torchao'"
        if "tensor_names" in source.metadata and _described(source):
            return "the file's metadata describe torchao tensors"
        return None

    def seen(self, source: Source) -> str | None:
        ends = "._weight_qdata"
        return next((name for name in source.tensors if name.endswith(ends)), None)

    def entries(self, source: Source) -> dict[str, Entry]:
        described = _described(source)
        found: dict[str, Entry] = {}
        used: set[str] = set()
        for name, tensor in described.items():
            if tensor["_type"] == "Tensor":
                continue
            pair = _parts(name)
            if pair.codes not in source.tensors and not source.whole:
                continue
            found[name] = _entry(source, pair, tensor)
            used |= {pair.codes, pair.scales}
        for name, raw in source.tensors.items():
            if name.endswith(("_qdata", "_scale")) and "._" in name and name not in used:
                raise ValueError(
                    f"{raw.file}: the metadata do not describe {name}, so the layout of its scales "
                    "is unknown"
                )
            if name not in used:
                found[name] = plain_entry(name, raw)
        return found

    def read(self, source: Source, entry: Entry) -> Mxfp4Weight:
        codes, scales = super().read(source, entry)
        if _data(json.loads(source.metadata[entry.name])).get("is_swizzled_scales"):
            scales = unswizzle(scales, entry.shape)
        return Mxfp4Weight(codes, scales)

    def settings(self, source: Source) -> Settings:
        for tensor in _described(source).values():
            if tensor["_type"] == "MXTensor":
                inputs = (_data(tensor).get("act_quant_kwargs") or {}).get("_data") or {}
                mode = (inputs.get("scaling_mode") or {}).get("_data", "")
                return Settings(_MODES.get(mode, "even"), "mxfp4" if inputs else "bf16")
        return Settings()


def _described(source: Source) -> dict[str, dict[str, Any]]:
    """What the metadata say of each tensor."""
    found: dict[str, dict[str, Any]] = {}
    for name, text in source.metadata.items():
        if text.startswith("{"):
            try:
                described = json.loads(text)
            except ValueError as error:
                raise ValueError(
                    f"{source.path}: metadata of {name} are not JSON: {error}"
                ) from None
            if "_type" in described:
                found[name] = described
    return found


def _data(tensor: dict[str, Any]) -> dict[str, Any]:
    return cast(dict[str, Any], tensor.get("_data") or {})


def _parts(name: str) -> Ends:
    module, _, parameter = name.rpartition(".")
    stem = f"{module}._{parameter}"
    return Ends(f"{stem}_qdata", f"{stem}_scale", name)


def _entry(source: Source, pair: Ends, tensor: dict[str, Any]) -> Entry:
    data = _data(tensor)
    element = (data.get("elem_dtype") or {}).get("_data")
    found = tensor["_type"], element, data.get("block_size")
    if found != ("MXTensor", "float4_e2m1fn_x2", 32):
        raise ValueError(
            f"{source.path}: {pair.weight} is a {tensor['_type']} of {element} in blocks of "
            f"{data.get('block_size')}; only MXTensor of float4_e2m1fn_x2 in blocks of 32 is MXFP4"
        )
    if pair.codes not in source.tensors:
        raise ValueError(f"{source.path}: {pair.codes} is missing, which the metadata describe")
    check_pair(source, pair)
    codes, scales = source.tensors[pair.codes], source.tensors[pair.scales]
    if not data.get("is_swizzled_scales"):
        return pair_entry(pair.weight, (pair.codes, codes), (pair.scales, scales))
    shape = unpacked_shape(pair.codes, codes)
    rows, columns = _padded(shape)
    if prod(scales.shape) != rows * columns:
        raise ValueError(
            f"{scales.file}: {pair.scales}, swizzled, must hold {rows} x {columns} scales for "
            f"{pair.codes} of shape {list(codes.shape)}, but has shape {list(scales.shape)}"
        )
    size = codes.nbytes + scales.nbytes
    return Entry(pair.weight, MXFP4, shape, size, (pair.codes, pair.scales), codes.file)


def _padded(shape: tuple[int, ...]) -> tuple[int, int]:
    rows, columns = prod(shape[:-1]), shape[-1] // 32
    return -(-rows // TILE_ROWS) * TILE_ROWS, -(-columns // TILE_COLUMNS) * TILE_COLUMNS


def unswizzle(scales: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Swizzled scales of a weight of `shape` `[..., N, K]` to plain ones, `[..., N, K/32]`.

    A tile of 128 rows and 4 columns lies as `[32, 4, 4]`: row modulo 32, row divided by 32, column.
    """
    rows, columns = _padded(shape)
    tiles = scales.reshape(rows // TILE_ROWS, columns // TILE_COLUMNS, 32, 4, TILE_COLUMNS)
    plain = tiles.permute(0, 3, 2, 1, 4).reshape(rows, columns)
    return plain[: prod(shape[:-1]), : shape[-1] // 32].reshape(*shape[:-1], -1).contiguous()
