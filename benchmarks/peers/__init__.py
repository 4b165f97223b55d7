"""The implementations to measure beside each other."""

from __future__ import annotations

import torch

from .base import Bound, Loaded, Peer
from .bitsandbytes import Fp4
from .ggml import Ggml
from .onnxruntime import MatMulNBits
from .openvino import OpenVino
from .ours import QuantMm
from .torch_linear import TorchLinear

__all__ = ["BASELINE", "PEERS", "Bound", "Loaded", "Peer", "QuantMm"]

BASELINE = "torch-bf16"
"""What speed-ups are against."""

PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        TorchLinear(BASELINE, torch.bfloat16),
        TorchLinear("torch-fp32", torch.float32),
        Ggml(),
        OpenVino("openvino-mxfp4", 32, mxfp4=True, precision="f32"),
        OpenVino("openvino-mxfp4-bf16", 32, mxfp4=True, precision="bf16"),
        OpenVino("openvino-int4", 128, mxfp4=False, precision="f32"),
        OpenVino("openvino-int4-bf16", 128, mxfp4=False, precision="bf16"),
        MatMulNBits(),
        Fp4(),
    )
}
