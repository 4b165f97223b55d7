"""llama.cpp's tensor library: `ggml_mul_mat` by MXFP4 weights, through the package ggml-python.

pip builds that package from source for the machine's own instruction set (-march=native). Weights
go into ggml's repacked buffers where it has them, as llama.cpp puts them there.
"""

from __future__ import annotations

import ctypes
import weakref
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

import mxfp4_ops

from .base import Bound, Loaded, Peer, not_installed

_ALIGNMENT = 64  # of a tensor in a buffer
_NODES = 8  # room in a graph, for one product
_FEATURES = ("avx2", "avx_vnni", "avx512", "avx512_vnni", "avx512_bf16", "amx_int8", "neon", "sve")


# ggml keeps a pointer to it, so it must live as long as the process.
_SILENT = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)


@cache
def _library() -> Any:
    import ggml

    ggml.ggml_log_set(_SILENT, None)
    return ggml


def blocks(codes: Tensor, scales: Tensor) -> Tensor:
    """ggml's blocks, 17 bytes for 32 elements: the scale, then element i beside element i + 16."""
    packed = codes.unflatten(-1, (-1, 16))
    elements = torch.stack((packed & 15, packed >> 4), -1).flatten(-2)
    halves = elements[..., :16] | elements[..., 16:] << 4
    return torch.cat((scales.unsqueeze(-1), halves), -1).flatten(-2).contiguous()


def _repacked_buffer_type(n: int) -> int | None:
    """The type of buffer whose MXFP4 weights of `n` rows ggml repacks, if it has one."""
    ggml = _library()
    registry = ggml.ggml_backend_cpu_reg()
    name = b"ggml_backend_dev_get_extra_bufts"
    address = ggml.ggml_backend_reg_get_proc_address(registry, name)
    if not address or n % 8:
        return None
    prototype = ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)
    types = prototype(address)(ggml.ggml_backend_reg_dev_get(registry, 0))
    for index in range(16):
        if not types[index]:
            return None
        if ggml.ggml_backend_buft_name(types[index]) == b"CPU_REPACK":
            return types[index]
    return None


class _Context:
    """A ggml context and the memory of its tensors, freed when nothing refers to it any more."""

    def __init__(self, tensors: int, graphs: int = 0, uses: _Context | None = None) -> None:
        self._ggml = ggml = _library()
        self.uses = uses
        size = tensors * ggml.ggml_tensor_overhead()
        size += graphs * ggml.ggml_graph_overhead_custom(_NODES, False)
        parameters = ggml.ggml_init_params(mem_size=size, mem_buffer=None, no_alloc=True)
        self.handle = ggml.ggml_init(parameters)
        weakref.finalize(self, ggml.ggml_free, self.handle)

    def own(self, buffer: int | None) -> int:
        if buffer is None:
            raise MemoryError("ggml could not allocate a buffer")
        weakref.finalize(self, self._ggml.ggml_backend_buffer_free, buffer)
        return buffer


class Ggml(Peer):
    name = "ggml"
    weights = "MXFP4"
    bits = 4.25
    activations = "float32, quantised to int8 in blocks of 32 (Q8_0)"
    packages = ("ggml-python",)

    def unavailable(self) -> str | None:
        return not_installed("ggml")

    def load(self, weight: Tensor, copies: int, threads: int) -> Loaded:
        ggml = _library()
        n, k = weight.shape
        codes, scales = mxfp4_ops.quantize(weight)
        data = blocks(codes, scales)

        backend = ggml.ggml_backend_cpu_init()
        ggml.ggml_backend_cpu_set_n_threads(backend, threads)
        plain = ggml.ggml_backend_get_default_buffer_type(backend)
        buffer_type = _repacked_buffer_type(n) or plain
        context = _Context(copies)
        weakref.finalize(context, ggml.ggml_backend_free, backend)
        tensors = [
            ggml.ggml_new_tensor_2d(context.handle, ggml.GGML_TYPE_MXFP4, k, n)
            for _ in range(copies)
        ]
        context.own(ggml.ggml_backend_alloc_ctx_tensors_from_buft(context.handle, buffer_type))
        for tensor in tensors:
            ggml.ggml_backend_tensor_set(tensor, data.data_ptr(), 0, data.nbytes)

        features = [f for f in _FEATURES if getattr(ggml, f"ggml_cpu_has_{f}")()]
        detail = f"buffer {ggml.ggml_backend_buft_name(buffer_type).decode()}, {' '.join(features)}"
        bind = partial(_bind, context, backend, tensors)
        return Loaded(bind, mxfp4_ops.dequantize(codes, scales, dtype=torch.float32), detail)


def _bind(weights: _Context, backend: int, tensors: list[Any], x: Tensor) -> Bound:
    """One graph for each copy of the weight, all with the same input and output memory."""
    ggml = _library()
    m, k = x.shape
    n = tensors[0].contents.ne[1]
    context = _Context(1 + len(tensors), graphs=len(tensors), uses=weights)
    x_bytes = -(-x.nbytes // _ALIGNMENT) * _ALIGNMENT
    # Not ggml_backend_alloc_buffer, whose result ggml-python 0.0.45 cuts to 32 bits.
    host = ggml.ggml_backend_get_default_buffer_type(backend)
    buffer = context.own(ggml.ggml_backend_buft_alloc_buffer(host, x_bytes + m * n * 4))
    base = ggml.ggml_backend_buffer_get_base(buffer)

    x_tensor = ggml.ggml_new_tensor_2d(context.handle, ggml.GGML_TYPE_F32, k, m)
    ggml.ggml_backend_tensor_alloc(buffer, x_tensor, base)
    ggml.ggml_backend_tensor_set(x_tensor, x.contiguous().data_ptr(), 0, x.nbytes)
    graphs = []
    for tensor in tensors:
        y_tensor = ggml.ggml_mul_mat(context.handle, tensor, x_tensor)
        ggml.ggml_backend_tensor_alloc(buffer, y_tensor, base + x_bytes)
        graph = ggml.ggml_new_graph_custom(context.handle, _NODES, False)
        ggml.ggml_build_forward_expand(graph, y_tensor)
        graphs.append(graph)

    def call(graph: Any) -> _Context:  # the reference to it keeps all that is used here alive
        status = ggml.ggml_backend_graph_compute(backend, graph)
        if status != ggml.GGML_STATUS_SUCCESS:
            raise RuntimeError(f"ggml returned status {status}")
        return context

    def read(_: _Context) -> Tensor:
        y = torch.empty(m, n)
        ggml.ggml_backend_tensor_get(y_tensor, y.data_ptr(), 0, y.nbytes)
        return y

    return Bound([partial(call, graph) for graph in graphs], read)
