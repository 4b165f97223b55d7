"""The portable kernels compiled for GPUs that are not there, as launches on them would be."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from common import DTYPES

triton = pytest.importorskip("triton", reason="Triton is not installed")
if triton.knobs.runtime.interpret:
    pytest.skip("with TRITON_INTERPRET, kernels are not compiled", allow_module_level=True)

from triton.backends.compiler import GPUTarget  # noqa: E402

from benchmarks.gfx950.compile import driver_of  # noqa: E402
from mxfp4_ops.backends.triton import gemm  # noqa: E402
from mxfp4_ops.backends.triton.dequantize import dequantize  # noqa: E402
from mxfp4_ops.backends.triton.launch import Launch  # noqa: E402
from mxfp4_ops.backends.triton.plan import product_plan, rows_plan  # noqa: E402
from mxfp4_ops.backends.triton.quantize import quantize  # noqa: E402
from mxfp4_ops.layout import shuffled_shapes  # noqa: E402

# Of Triton 3.9: that the default of a later release will be another one.
pytestmark = pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")


@dataclass(frozen=True)
class Gpu:
    """A GPU to compile for.

    Attributes:
        units: its compute units.
        local_bytes: memory that the threads of a program can share.
        text: which of a compiled kernel's forms is its assembly.
        product: matrix instructions in it.
    """

    target: GPUTarget
    units: int
    local_bytes: int
    text: str
    product: str

    def __str__(self) -> str:
        return str(self.target.arch)


GPUS = [
    Gpu(GPUTarget("cuda", 80, 32), 108, 163 << 10, "ptx", r"mma\.sync"),
    Gpu(GPUTarget("cuda", 90, 32), 132, 227 << 10, "ptx", r"mma[._](sync|async)"),
    Gpu(GPUTarget("hip", "gfx942", 64), 304, 64 << 10, "amdgcn", "v_mfma"),
    Gpu(GPUTarget("hip", "gfx950", 64), 256, 160 << 10, "amdgcn", "v_mfma"),
]
every_gpu = pytest.mark.parametrize("gpu", GPUS, ids=str)


def meta(*shape: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def compile_for(gpu: Gpu, launch: Launch) -> str:
    """The assembly of what `launch` runs there; registers and shared memory suffice."""
    with driver_of(str(gpu)):
        triton.runtime.driver.active.target = gpu.target
        values = {**launch.arguments, **launch.constants, **launch.options}
        compiled = launch.kernel.run(grid=launch.grid, warmup=True, **values)
    assert compiled.metadata.target == gpu.target
    assert compiled.metadata.shared <= gpu.local_bytes
    text: str = compiled.asm[gpu.text]
    if gpu.text == "amdgcn":
        assert re.search(r"\.vgpr_spill_count:\s*0\b", text)
        assert re.search(r"\.private_segment_fixed_size:\s*0\b", text)
    return text


def products(gpu: Gpu, m: int, n: int, k: int, dtype: torch.dtype, shuffled: bool) -> list[Launch]:
    """`quant_mm` and `mm` in the form that this GPU gets."""
    plain = (n, k // 2), (n, k // 32)
    codes, scales = shuffled_shapes(n, k) if shuffled else plain
    weight = meta(*codes), meta(*scales)
    n = len(weight[0])
    plan = product_plan(m, n, k, gpu.units)
    x, out, bias = meta(m, k, dtype=dtype), meta(m, n, dtype=dtype), meta(n, dtype=dtype)
    left = meta(m, k // 2), meta(m, k // 32)
    return [
        *gemm.quant_mm(x, *weight, None, out, shuffled, "even", plan),
        *gemm.mm(*left, *weight, bias, out, shuffled, plan),
    ]


# sm_90 stands for NVIDIA's GPUs to come: those that are known, like gfx950, have other kernels.
@pytest.mark.parametrize("gpu", [g for g in GPUS if str(g) in ("90", "gfx942")], ids=str)
@pytest.mark.parametrize(
    ("m", "n", "k", "dtype", "shuffled"),
    [
        (4, 2880, 512, torch.bfloat16, False),
        (16, 2112, 7168, torch.bfloat16, True),
        (32, 4096, 512, torch.float16, False),
        (64, 7168, 2048, torch.bfloat16, True),
        (17, 65536, 96, torch.float32, False),
        (1024, 8192, 4096, torch.bfloat16, False),
    ],
)
def test_products_use_the_matrix_units(
    gpu: Gpu, m: int, n: int, k: int, dtype: torch.dtype, shuffled: bool
) -> None:
    compiled = set()
    for launch in products(gpu, m, n, k, dtype, shuffled):
        text = compile_for(gpu, launch)
        if launch.kernel is gemm.mxfp4_gemm:
            assert re.search(gpu.product, text)
        compiled.add(launch.kernel.__name__)
    assert compiled <= {"mxfp4_gemm", "mxfp4_reduce"}


def _conversions() -> Iterator[Launch]:
    m, k = 37, 1056
    for dtype in DTYPES:
        x, transposed = meta(m, k, dtype=dtype), meta(k, m, dtype=dtype).T
        codes, scales = (meta(*shape) for shape in shuffled_shapes(m, k))
        yield from quantize(x, meta(m, k // 2), meta(m, k // 32), "ceil", rows_plan(k, True))
        yield from quantize(transposed, codes, scales, "floor", rows_plan(k, False), True, True)
        yield from dequantize(meta(m, k // 2), meta(m, k // 32), x)


@every_gpu
def test_conversions(gpu: Gpu) -> None:
    for launch in _conversions():
        assert launch.kernel.__name__ in compile_for(gpu, launch)


@every_gpu
def test_strides_beyond_32_bits(gpu: Gpu) -> None:
    far = torch.empty_strided((3, 96), (1 << 33, 1), dtype=torch.bfloat16, device="meta")
    for launch in quantize(far, meta(3, 48), meta(3, 3), "even", rows_plan(96, True)):
        assert launch.kernel.__name__ in compile_for(gpu, launch)
