"""Codes under the weight's own name, scales beside them: what Quark and this package write."""

from __future__ import annotations

from ..source import Source
from .base import Ends, PairFormat, is_bytes, missing


class SameNameFormat(PairFormat):
    """`<m>.weight` uint8 `[N, K/2]` and `<m>.weight_scale` uint8 `[N, K/32]`.

    Experts: `<name>` `[E, N, K/2]` and `<name>_scale` `[E, N, K/32]`.
    """

    ends = (Ends("", "_scale", ""),)

    def _must_be_codes(self, source: Source, pair: Ends) -> bool:
        # Tensors may be called or typed so without being codes, such as a temperature or a mask.
        named, typed = pair.codes.endswith(".weight"), is_bytes(source, pair.codes)
        return (named or typed) if pair.scales in source.tensors else (named and typed)

    def _check_alone(self, source: Source, name: str) -> None:
        if name.endswith(".weight_scale"):
            raise missing(source, name, name.removesuffix("_scale"))
