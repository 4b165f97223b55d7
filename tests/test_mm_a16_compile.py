"""The portable `mm_a16` compiled for GPUs that are not there."""

from __future__ import annotations

import re

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from test_triton_compile import GPUS, Gpu, compile_for, meta

from mxfp4_ops.backends.triton.mm_a16 import mm_a16, mxfp4_mm_a16
from mxfp4_ops.backends.triton.plan import product_plan
from mxfp4_ops.layout import shuffled_shapes

pytestmark = pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")


@pytest.mark.parametrize("gpu", GPUS, ids=str)
@pytest.mark.parametrize(
    ("m", "n", "k", "dtype", "shuffled"),
    [
        (4, 2880, 512, torch.bfloat16, False),
        (16, 2112, 7168, torch.float16, True),
        (17, 65536, 96, torch.float32, False),
        (1024, 8192, 4096, torch.bfloat16, True),
    ],
)
def test_it_compiles(gpu: Gpu, m: int, n: int, k: int, dtype: torch.dtype, shuffled: bool) -> None:
    """16-bit activations use the matrix units; float32 is multiplied in full."""
    plain = (n, k // 2), (n, k // 32)
    codes, scales = (meta(*s) for s in (shuffled_shapes(n, k) if shuffled else plain))
    n = len(codes)
    x, out, bias = meta(m, k, dtype=dtype), meta(m, n, dtype=dtype), meta(n, dtype=dtype)
    launches = mm_a16(x, codes, scales, bias, out, shuffled, product_plan(m, n, k, gpu.units))
    for launch in launches:
        text = compile_for(gpu, launch)
        if launch.kernel is mxfp4_mm_a16 and dtype != torch.float32:
            assert re.search(gpu.product, text)
        assert "tf32" not in text
