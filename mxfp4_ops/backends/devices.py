"""What kind of device a tensor is on. It is always the tensor's own, never the current one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch


@dataclass(frozen=True)
class Target:
    """All that decisions depend on of a device.

    Attributes:
        arch: `gfx950`, `sm_90`; what is no GPU goes by its type.
        compute_units: of a GPU; NVIDIA calls them streaming multiprocessors.
    """

    arch: str
    compute_units: int = 0

    def __str__(self) -> str:
        units = f", {self.compute_units} compute units" if self.compute_units else ""
        return self.arch + units


@cache
def target(device: torch.device) -> Target:
    if device.type != "cuda":  # ROCm's devices have this type too
        return Target(device.type)
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip is not None:
        arch = properties.gcnArchName.partition(":")[0]  # without ":sramecc+:xnack-"
    else:
        arch = f"sm_{properties.major}{properties.minor}"
    return Target(arch, properties.multi_processor_count)


def capturing(device: torch.device) -> bool:
    """Whether the device's current stream records a graph."""
    if device.type != "cuda":
        return False
    with torch.cuda.device(device):
        return torch.cuda.is_current_stream_capturing()
