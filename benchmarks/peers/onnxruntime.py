"""ONNX Runtime's MatMulNBits, one session for each copy of the weights."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from .base import Bound, Loaded, Peer, not_installed
from .int4 import quantize_int4

_BLOCK = 32
_INT8_ACTIVATIONS = 4  # MatMulNBits' accuracy_level; the others multiply in float32, slower


@cache
def _set_threads(threads: int) -> None:
    """One pool for all sessions: pools of their own would spin beside each other."""
    import onnxruntime

    onnxruntime.set_global_thread_pool_sizes(threads, 1)


class MatMulNBits(Peer):
    name = "onnxruntime"
    weights = "int4, blocks of 32"
    bits = 4 + 32 / _BLOCK
    activations = "float32, quantised to int8 in blocks of 32"
    packages = ("onnxruntime", "onnx")

    def unavailable(self) -> str | None:
        return not_installed("onnxruntime", "onnx")

    def refuses(self, n: int, k: int) -> str | None:
        return None if k % _BLOCK == 0 else f"K = {k} is no multiple of {_BLOCK}"

    def load(self, weight: Tensor, copies: int, threads: int) -> Loaded:
        import onnxruntime

        _set_threads(threads)
        integers, scales, values = quantize_int4(weight, _BLOCK, torch.float32)
        model = _model(len(weight), integers, scales)
        options = onnxruntime.SessionOptions()
        options.use_per_session_threads = False
        providers = ["CPUExecutionProvider"]
        sessions = [
            onnxruntime.InferenceSession(model, options, providers=providers) for _ in range(copies)
        ]
        detail = f"MatMulNBits, accuracy level {_INT8_ACTIVATIONS}"
        return Loaded(partial(_bind, sessions, len(weight)), values, detail)


def _model(n: int, integers: Tensor, scales: Tensor) -> bytes:
    from onnx import TensorProto, helper

    k = integers.shape[1] * _BLOCK
    unsigned = (integers + 8).to(torch.uint8)
    packed = unsigned[..., 0::2] | unsigned[..., 1::2] << 4
    node = helper.make_node(
        "MatMulNBits",
        ["x", "weight", "scales"],
        ["y"],
        domain="com.microsoft",
        K=k,
        N=n,
        bits=4,
        block_size=_BLOCK,
        accuracy_level=_INT8_ACTIVATIONS,
    )
    constants = [
        helper.make_tensor(name, kind, t.shape, t.numpy().tobytes(), raw=True)
        for name, kind, t in (
            ("weight", TensorProto.UINT8, packed),
            ("scales", TensorProto.FLOAT, scales.flatten()),
        )
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["M", k])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["M", n])
    graph = helper.make_graph([node], "product", [x], [y], constants)
    operators = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    # The oldest file format that has this operator set, for runtimes older than the onnx package.
    model = helper.make_model(graph, opset_imports=operators, ir_version=10)
    return bytes(model.SerializeToString())


def _bind(sessions: list[Any], n: int, x: Tensor) -> Bound:
    import onnxruntime

    x_value = onnxruntime.OrtValue.ortvalue_from_numpy(x.numpy())
    y_value = onnxruntime.OrtValue.ortvalue_from_shape_and_type([len(x), n], "float32")
    calls = []
    for session in sessions:
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", x_value)
        binding.bind_ortvalue_output("y", y_value)
        calls.append(partial(session.run_with_iobinding, binding))
    return Bound(calls, lambda _: torch.from_numpy(y_value.numpy().copy()), keeps=(x, x_value))
