"""Modules that hold weights as codes and scales."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Self

from torch import Tensor, nn, uint8

from .checks import dtype_names
from .formats import CODE_DTYPES, SCALE_DTYPES


def frozen(data: Tensor) -> nn.Parameter:
    return nn.Parameter(data, requires_grad=False)


class PackedModule(nn.Module):
    """A module whose weights `<name>` are codes with scales `<name>_scale`, parameters in uint8.

    They stay what they are when the module is converted to another dtype. They are loaded from
    uint8, float4_e2m1fn_x2 and float8_e8m0fnu; any other dtype in a state dict is an error.
    """

    packed: ClassVar[tuple[str, ...]]
    """Names of the weights."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # `Module.type` casts every parameter, unlike `.to` and `.half`. Codes have no other dtype.
        def keep_bytes(t: Tensor) -> Tensor:
            new = fn(t)
            return new if t.is_floating_point() or new.dtype == t.dtype else t.to(new.device)

        super()._apply(keep_bytes, recurse)  # type: ignore[no-untyped-call]
        return self

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        names = [(name, CODE_DTYPES) for name in self.packed]
        names += [(f"{name}_scale", SCALE_DTYPES) for name in self.packed]
        errors = []
        for name, dtypes in names:
            value = state_dict.get(prefix + name)
            if not isinstance(value, Tensor) or value.dtype == uint8:
                continue
            if value.dtype in dtypes:
                state_dict[prefix + name] = value.view(uint8)
            else:  # torch would cast it to bytes without a word
                errors.append(
                    f"{prefix}{name} must be {dtype_names(*dtypes)}, got "
                    f"{dtype_names(value.dtype)}; "
                    "load a float checkpoint into the float model and convert that"
                )
        error_msgs += errors
        if not errors:
            rest = (local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
            super()._load_from_state_dict(state_dict, prefix, *rest)
