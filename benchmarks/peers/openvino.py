"""OpenVINO: a MatMul by compressed weights, one compiled model for each copy of them."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

import mxfp4_ops

from .base import Bound, Loaded, Peer, not_installed
from .int4 import quantize_int4


class OpenVino(Peer):
    """
    Args:
        name: what `--peers` takes.
        group: elements that share a scale; 32 for MXFP4.
        mxfp4: MXFP4 weights (f4e2m1 and f8e8m0), or int4 with float16 scales.
        precision: OpenVINO's inference precision, `f32` or `bf16`. With f32 and int4 weights it
            quantises activations to int8, in groups as large as those of the weights.
    """

    packages = ("openvino",)

    def __init__(self, name: str, group: int, mxfp4: bool, precision: str) -> None:
        self.name = name
        self.group = group
        self.mxfp4 = mxfp4
        self.precision = precision
        self.weights = "MXFP4" if mxfp4 else f"int4, groups of {group}"
        self.bits = 4 + (8 if mxfp4 else 16) / group
        self.activations = {
            (True, "f32"): "float32",
            (False, "f32"): f"float32, quantised to int8 in groups of {group}",
        }.get((mxfp4, precision), "float32, rounded to bfloat16")

    def unavailable(self) -> str | None:
        return not_installed("openvino")

    def refuses(self, n: int, k: int) -> str | None:
        return None if k % self.group == 0 else f"K = {k} is no multiple of {self.group}"

    def load(self, weight: Tensor, copies: int, threads: int) -> Loaded:
        import openvino

        data, scales, values = self._compress(weight)
        settings = {
            "INFERENCE_NUM_THREADS": threads,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": self.precision,
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0 if self.mxfp4 else self.group,
        }
        core = openvino.Core()
        requests = []
        for _ in range(copies):
            compiled = core.compile_model(_model(data, scales), "CPU", settings)
            requests.append(compiled.create_infer_request())
        n, k = weight.shape
        return Loaded(partial(_bind, requests, n), values, _kernel(requests[0], k))

    def _compress(self, weight: Tensor) -> tuple[Any, Any, Tensor]:
        """Weights and scales as OpenVINO's tensors, and the numbers that they stand for."""
        import openvino

        n, k = weight.shape
        if self.mxfp4:
            codes, scales = mxfp4_ops.quantize(weight)
            values = mxfp4_ops.dequantize(codes, scales, dtype=torch.float32)
            types = openvino.Type.f4e2m1, openvino.Type.f8e8m0
        else:
            integers, scales, values = quantize_int4(weight, self.group, torch.float16)
            codes = integers[..., 0::2] & 15 | integers[..., 1::2] << 4
            types = openvino.Type.i4, openvino.Type.f16
        groups = [n, k // self.group]
        # What openvino.Tensor wraps must be alive until it is copied into a model.
        return (
            openvino.Tensor(codes.flatten().numpy(), [*groups, self.group], types[0]),
            openvino.Tensor(scales.flatten().numpy(), [*groups, 1], types[1]),
            values,
        )


def _model(data: Any, scales: Any) -> Any:
    """x @ (weights * scales).T, written in the way that OpenVINO recognises."""
    import openvino
    from openvino import opset13 as opset

    def constant(tensor: Any) -> Any:
        return opset.convert(openvino.op.Constant(tensor, shared_memory=False), "f32")

    n, groups, group = data.shape
    weights = opset.multiply(constant(data), constant(scales))
    shape = openvino.op.Constant(openvino.Type.i64, openvino.Shape([2]), [n, groups * group])
    x = opset.parameter([-1, groups * group], openvino.Type.f32)
    y = opset.matmul(x, opset.reshape(weights, shape, False), False, True)
    return openvino.Model([y], [x])


def _kernel(request: Any, k: int) -> str:
    """The kernel that OpenVINO chooses for the product, which it does when it first runs one."""
    request.infer(torch.zeros(16, k).numpy())
    for operator in request.get_compiled_model().get_runtime_model().get_ops():
        information = operator.get_rt_info()
        if information["layerType"].astype(str) == "FullyConnected":
            return f"kernel for M = 16: {information['primitiveType'].astype(str)}"
    return "weights are decompressed ahead of the product"


def _bind(requests: list[Any], n: int, x: Tensor) -> Bound:
    import openvino

    y = torch.empty(len(x), n)
    for request in requests:
        request.set_input_tensor(openvino.Tensor(x.numpy(), shared_memory=True))
        request.set_output_tensor(openvino.Tensor(y.numpy(), shared_memory=True))
    calls = [partial(request.infer, share_outputs=True) for request in requests]
    return Bound(calls, lambda _: y.clone(), keeps=(x, y))
