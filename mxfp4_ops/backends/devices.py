"""What kind of device a tensor is on. It is always the tensor's own, never the current one."""

from __future__ import annotations

from functools import cache

import torch


@cache
def architecture(device: torch.device) -> str:
    """`gfx950`, `sm_90`; what is no GPU goes by its type."""
    if device.type != "cuda":  # ROCm's devices have this type too
        return device.type
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip is not None:
        return properties.gcnArchName.partition(":")[0]  # without ":sramecc+:xnack-"
    return f"sm_{properties.major}{properties.minor}"


def capturing(device: torch.device) -> bool:
    """Whether the device's current stream records a graph."""
    if device.type != "cuda":
        return False
    with torch.cuda.device(device):
        return torch.cuda.is_current_stream_capturing()
