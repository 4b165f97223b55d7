"""gpt-oss: experts in MXFP4, under the names of Hugging Face or of OpenAI's original files.

Layout: `<name>_blocks` (original: `<name>.blocks`) uint8 `[E, N, K/32, 16]`, sixteen bytes to a
block with the even element in the low nibble, and `<name>_scales` (`.scales`) uint8 `[E, N, K/32]`.
"""

from __future__ import annotations

from torch import Tensor

from ..entries import Entry, Mxfp4Weight, Raw, Settings, pair_entry
from ..source import Source
from .base import Ends, PairFormat

BLOCK_BYTES = 16


class GptOss(PairFormat):
    name = "gpt-oss"
    ends = (Ends("_blocks", "_scales", ""), Ends(".blocks", ".scales", ""))

    def stated(self, source: Source) -> str | None:
        method = source.quantization_config.get("quant_method")
        return "config.json has quant_method 'mxfp4'" if method == "mxfp4" else None

    def entry(self, source: Source, weight: str, codes: str, scales: str) -> Entry:
        have = source.tensors[codes]
        if len(have.shape) < 3 or have.shape[-1] != BLOCK_BYTES:
            raise ValueError(
                f"{have.file}: {codes} must have a shape [..., N, K/32, {BLOCK_BYTES}], but has "
                f"{list(have.shape)}"
            )
        *lead, blocks, size = have.shape
        packed = Raw(have.dtype, (*lead, blocks * size), have.file, have.nbytes)
        # Transformers keeps these experts as [E, K, N], OpenAI's code as [E, N, K].
        transposed = codes.endswith("_blocks")
        return pair_entry(weight, (codes, packed), (scales, source.tensors[scales]), transposed)

    def plain(self, codes: Tensor, scales: Tensor) -> Mxfp4Weight:
        return Mxfp4Weight(codes.flatten(-2), scales)

    def settings(self, source: Source) -> Settings:
        return Settings(activation="bf16")

    def excluded(self, source: Source) -> list[str]:
        return list(source.quantization_config.get("modules_to_not_convert") or [])
