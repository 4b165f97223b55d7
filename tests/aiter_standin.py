"""A package `aiter` for machines that AITER does not run on.

It is strict where AITER is not: it takes what AITER documents, by keyword, and asserts all else. It
multiplies by decoding the bytes itself, one address after the other. Only what tells releases apart
is imitated: their modules, and that the older ones must not be given a part of a tile of K.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import oracle
import torch
from torch import Tensor

calls: list[str] = []
"""Functions that were called."""

VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]).double()


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def code_address(row: Tensor, byte: Tensor, columns: int) -> Tensor:
    """Where byte `byte` of a row lies in codes [N, columns]: tiles of 16 rows and 32 bytes, made of
    two halves, each with 16 bytes of every row."""
    tile = (row // 16) * (columns // 32) + byte // 32
    return tile * 512 + (byte % 32 // 16) * 256 + (row % 16) * 16 + byte % 16


def scale_address(row: Tensor, block: Tensor, columns: int) -> Tensor:
    """Where a block's scale lies in scales [N, columns]: tiles of 32 rows and 8 blocks. A row and
    the one 16 below it are neighbours, and so are a block and the fourth after it."""
    tile = (row // 32) * (columns // 8) + block // 8
    return tile * 256 + (block % 4) * 64 + (row % 16) * 4 + (block % 8 // 4) * 2 + (row % 32 // 16)


def plain(codes: Tensor, scales: Tensor) -> Tensor:
    """[M, K] from plain bytes."""
    elements = VALUES[torch.stack((codes & 15, codes >> 4), -1).long()].flatten(-2)
    factors = oracle.ldexp(torch.ones(scales.shape), scales.int() - 127)
    return elements * factors.where(scales != 255, torch.nan).repeat_interleave(32, -1)


def at(t: Tensor, addresses: Tensor) -> Tensor:
    return t.flatten()[addresses]


def gemm_a4w4(
    *,
    A: Tensor,
    B: Tensor,
    A_scale: Tensor,
    B_scale: Tensor,
    bias: Tensor | None = None,
    dtype: torch.dtype = torch.bfloat16,
    alpha: float | None = 1.0,
    beta: float | None = 0.0,
    bpreshuffle: bool | None = True,
) -> Tensor:
    calls.append("gemm_a4w4")
    assert A.dtype == B.dtype == torch.float4_e2m1fn_x2
    assert A_scale.dtype == B_scale.dtype == torch.float8_e8m0fnu
    assert dtype == torch.bfloat16
    assert bpreshuffle
    assert (bias, alpha, beta) == (None, 1, 0)  # not all of its kernels know them
    (m, k2), n = A.shape, len(B)
    assert B.shape == (n, k2)
    assert k2 % 128 == n % 32 == 0
    blocks = round_up(k2 // 16, 8)
    assert A_scale.shape == (round_up(m, 256), blocks)
    assert B_scale.shape == (round_up(n, 256), blocks)
    assert all(t.is_contiguous() for t in (A, B, A_scale, B_scale))
    a, b, a_scale, b_scale = (t.view(torch.uint8) for t in (A, B, A_scale, B_scale))

    rows, byte, block = torch.arange(max(m, n))[:, None], torch.arange(k2), torch.arange(k2 // 16)
    left = plain(a, at(a_scale, scale_address(rows[:m], block, blocks)))
    right = plain(
        at(b, code_address(rows[:n], byte, k2)), at(b_scale, scale_address(rows[:n], block, blocks))
    )
    out = torch.full((round_up(m, 32), n), torch.nan, dtype=dtype)
    out[:m] = (left @ right.T).float()
    return out[:m]


def gemm_afp4wfp4(
    *,
    x: Tensor,
    w: Tensor,
    x_scales: Tensor,
    w_scales: Tensor,
    dtype: torch.dtype | None = torch.bfloat16,
    y: Tensor | None = None,
    config: dict[str, object] | None = None,
) -> Tensor:
    calls.append("gemm_afp4wfp4")
    operands = (x, w, x_scales, w_scales)
    assert all(t.dtype == torch.uint8 and t.dim() == 2 and t.is_contiguous() for t in operands)
    (m, k2), n = x.shape, len(w)
    assert min(m, n, k2) > 0
    assert k2 % 16 == 0
    assert w.shape == (n, k2)
    assert x_scales.shape == (m, k2 // 16)
    assert w_scales.shape == (n, k2 // 16)
    assert y is None
    assert config is None
    return (plain(x, x_scales) @ plain(w, w_scales).T).float().to(dtype)


def older_gemm_afp4wfp4(
    *,
    x: Tensor,
    w: Tensor,
    x_scales: Tensor,
    w_scales: Tensor,
    dtype: torch.dtype | None = torch.bfloat16,
) -> Tensor:
    """Of releases that read the scales of whole tiles of K, which has up to 1024 elements."""
    assert x.shape[1] % 512 == 0
    return gemm_afp4wfp4(x=x, w=w, x_scales=x_scales, w_scales=w_scales, dtype=dtype)


@dataclass(frozen=True)
class Release:
    """What is installed.

    Attributes:
        version: None if it was not installed but put on the path.
        module: where `gemm_afp4wfp4` is, under `aiter.ops.triton`.
        a4w4: whether `gemm_a4w4` was built.
    """

    version: str | None
    module: str = "gemm.basic.gemm_afp4wfp4"
    masked: bool = True
    a4w4: bool = True

    def install(self, site: Path) -> None:
        """Write it to a folder of packages."""
        gemm = "gemm_afp4wfp4" if self.masked else "older_gemm_afp4wfp4"
        files = {"aiter": "from aiter_standin import gemm_a4w4" if self.a4w4 else ""}
        files |= {"aiter.ops": "", "aiter.ops.triton": ""}
        *parents, name = self.module.split(".")
        for i in range(len(parents)):
            files[".".join(["aiter.ops.triton", *parents[: i + 1]])] = ""
        for package, text in files.items():
            folder = site.joinpath(*package.split("."))
            folder.mkdir(parents=True)
            (folder / "__init__.py").write_text(text)
        module = site.joinpath("aiter", "ops", "triton", *parents, f"{name}.py")
        module.write_text(f"from aiter_standin import {gemm} as gemm_afp4wfp4")
        if self.version is not None:
            info = site / f"amd_aiter-{self.version}.dist-info"
            info.mkdir()
            info.joinpath("METADATA").write_text(
                f"Metadata-Version: 2.1\nName: amd-aiter\nVersion: {self.version}\n"
            )

    def __str__(self) -> str:
        return self.version or "unknown"
