"""The portable grouped product compiled for GPUs that are not there."""

from __future__ import annotations

import re

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from test_triton_compile import GPUS, Gpu, compile_for, meta

from mxfp4_ops.backends.base import Call
from mxfp4_ops.backends.devices import Target
from mxfp4_ops.backends.triton import portable
from mxfp4_ops.backends.triton.grouped import grouped_mm, padded_groups, row_tiles

pytestmark = pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")


# gfx950 has a kernel of its own.
@pytest.mark.parametrize("gpu", [gpu for gpu in GPUS if str(gpu) != "gfx950"], ids=str)
@pytest.mark.parametrize(
    ("rows", "experts", "n", "k", "offset_dtype"),
    [
        (4, 32, 5760, 2880, torch.int32),
        (512, 128, 2880, 2880, torch.int64),
        (8192, 4, 1440, 96, torch.int64),
    ],
)
def test_it_uses_the_matrix_units(
    gpu: Gpu, rows: int, experts: int, n: int, k: int, offset_dtype: torch.dtype
) -> None:
    plan = portable._grouped_plan(rows, n, k, experts, Target(str(gpu), gpu.units))
    left = meta(rows, k // 2), meta(rows, k // 32)
    right = meta(experts, n, k // 2), meta(experts, n, k // 32)
    bias, out = (meta(*shape, dtype=torch.bfloat16) for shape in ((experts, n), (rows, n)))
    offsets = meta(experts + 1, dtype=offset_dtype)
    (launch,) = grouped_mm(*left, *right, offsets, bias, out, plan)
    text = compile_for(gpu, launch)
    assert "mxfp4_grouped_gemm" in text
    assert re.search(gpu.product, text)


def test_what_is_said_of_a_call_is_what_is_launched() -> None:
    x, offsets = meta(40, 96, dtype=torch.bfloat16), meta(5, dtype=torch.int32)
    weight, out = (meta(4, 24, 48), meta(4, 24, 3)), meta(40, 24, dtype=torch.bfloat16)
    plan = portable._grouped_plan(40, 24, 96, 4, Target("sm_90", 132))
    launches = portable.grouped_quant_mm(x, *weight, offsets, None, out, "even", plan)
    call = Call(
        "grouped_quant_mm", torch.device("cuda"), x.dtype, 40, 24, 96,
        target=Target("sm_90", 132), experts=4,
    )  # fmt: skip
    assert portable.work(call).plan == plan
    assert [launch.kernel.__name__ for launch in launches] == list(portable.work(call).kernels)


def test_there_are_tiles_for_all_rows() -> None:
    """In the worst case each group has one row more than fills its tiles."""
    for block_m in (16, 64):
        for experts in (0, 1, 5):
            for full in (0, 1, 3):
                rows = (experts + 2) * (full * block_m + 1)
                assert row_tiles(rows, experts, block_m) >= (experts + 2) * (full + 1)
    assert row_tiles(3, 100, 16) == 3
    assert row_tiles(0, 4, 16) == 0
    for experts in range(300):
        groups = padded_groups(experts)
        assert groups >= experts + 2
        assert groups & (groups - 1) == 0
