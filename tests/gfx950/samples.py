"""Kernels in plain Triton whose machine code uses what an emulator should know."""

# Triton's decorator has no types, and the arguments of kernels have none in Python.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from benchmarks.gfx950.compile import compile_launch
from mxfp4_ops.backends.triton.launch import Launch

from .emulator import Program, Stats, launch


def run(
    kernel: object,
    grid: tuple[int, int, int],
    arguments: dict[str, object],
    constants: dict[str, object],
    *,
    specialised: bool,
    order: str = "ascending",
    **options: object,
) -> Stats:
    """Compile a launch for gfx950 and run it in emulation."""
    each = Launch(kernel, grid, arguments, constants, options)
    compiled = compile_launch(each, specialised)
    return launch(
        Program.parse(compiled.amdgcn),
        grid,
        compiled.arguments,
        num_warps=compiled.num_warps,
        lds_bytes=compiled.lds_bytes,
        order=order,
    )


@triton.jit
def add(X, Y, Z, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(Z + i, tl.load(X + i, i < n) + tl.load(Y + i, i < n), i < n)


@triton.jit
def convert(X, Z, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(Z + i, tl.load(X + i, i < n).to(Z.dtype.element_ty), i < n)


@triton.jit
def scale_strided(X, Z, M, N, row_stride, column_stride, BM: tl.constexpr, BN: tl.constexpr):
    """Addresses of 64 bits, a division, a selection."""
    r = tl.program_id(0) * BM + tl.arange(0, BM)[:, None]
    c = tl.program_id(1) * BN + tl.arange(0, BN)[None, :]
    inside = (r < M) & (c < N)
    x = tl.load(X + r.to(tl.int64) * row_stride + c.to(tl.int64) * column_stride, inside)
    x = x.to(tl.float32)
    tl.store(Z + r * N + c, tl.where(x > 0, x * 2, x / 3).to(Z.dtype.element_ty), inside)


@triton.jit
def softmax(X, Z, N, BLOCK: tl.constexpr):
    """Reductions across lanes and waves."""
    row, c = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(X + row * N + c, c < N, other=-float("inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x, 0))
    tl.store(Z + row * N + c, (e / tl.sum(e, 0)).to(Z.dtype.element_ty), c < N)


@triton.jit
def row_sums(X, Z, N, BM: tl.constexpr, BN: tl.constexpr):
    r, c = tl.arange(0, BM), tl.arange(0, BN)
    total = tl.zeros([BM], tl.int32)
    largest = tl.zeros([BM], tl.int32)
    for k in range(0, N, BN):
        x = tl.load(X + r[:, None] * N + k + c[None, :], (k + c < N)[None, :], other=0)
        total += tl.sum(x.to(tl.int32), 1)
        largest = tl.maximum(largest, tl.max((x & 0x7FFF).to(tl.int32), 1))
    tl.store(Z + r, total)
    tl.store(Z + BM + r, largest)


@triton.jit
def integers(X, Y, Z, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x, y = tl.load(X + i, i < n, other=1), tl.load(Y + i, i < n, other=1)
    z = (x // y) * 7 + (x % y) ^ (x >> 3) | (y << 2) & x
    tl.store(Z + i, tl.where(x < y, tl.minimum(z, x), tl.maximum(z, y)), i < n)


@triton.jit
def transpose(X, Z, M, N, BM: tl.constexpr, BN: tl.constexpr):
    """Through LDS."""
    r = tl.program_id(0) * BM + tl.arange(0, BM)
    c = tl.program_id(1) * BN + tl.arange(0, BN)
    x = tl.load(X + r[:, None] * N + c[None, :], (r[:, None] < M) & (c[None, :] < N))
    tl.store(Z + c[:, None] * M + r[None, :], tl.trans(x), (c[:, None] < N) & (r[None, :] < M))


@triton.jit
def permute(X, Z, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr):
    i = tl.arange(0, A * B * C)
    x = tl.permute(tl.reshape(tl.load(X + i), [A, B, C]), [2, 0, 1])
    tl.store(Z + i, tl.reshape(x, [A * B * C]))


@triton.jit
def running_sum(X, Z, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(Z + i, tl.cumsum(tl.load(X + i), 0))


@triton.jit
def split_sum(X, BIAS, Z, MN, N, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.load(X + i, i < MN)
    for s in tl.static_range(1, SPLITS):
        total += tl.load(X + s * MN + i, i < MN)
    total += tl.load(BIAS + i % N, i < MN).to(tl.float32)
    tl.store(Z + i, total.to(Z.dtype.element_ty), i < MN)


@triton.jit
def matmul(A, B, Z, M, N, K, b_row, b_column, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    r = tl.program_id(0) * BM + tl.arange(0, BM)
    c = tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros([BM, BN], tl.float32)
    for i in range(0, K, BK):
        k = i + tl.arange(0, BK)
        a = tl.load(A + r[:, None] * K + k[None, :], (r[:, None] < M) & (k[None, :] < K), other=0)
        b_inside = (c[None, :] < N) & (k[:, None] < K)
        b = tl.load(B + c[None, :] * b_row + k[:, None] * b_column, b_inside, other=0)
        total = tl.dot(a, b, total)
    inside = (r[:, None] < M) & (c[None, :] < N)
    tl.store(Z + r[:, None] * N + c[None, :], total.to(Z.dtype.element_ty), inside)


@triton.jit
def scaled_matmul(
    A,
    SA,
    B,
    SB,
    Z,
    M,
    N,
    K,
    b_row,
    b_column,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """Both operands in MXFP4, through LDS."""
    r = tl.program_id(0) * BM + tl.arange(0, BM)
    c = tl.program_id(1) * BN + tl.arange(0, BN)
    rows, columns = r[:, None] < M, c[:, None] < N
    total = tl.zeros([BM, BN], tl.float32)
    for i in range(0, K, BK):
        k = i // 2 + tl.arange(0, BK // 2)
        s = (i // 32 + tl.arange(0, BK // 32))[None, :]
        a = tl.load(A + r[:, None] * (K // 2) + k[None, :], rows & (k[None, :] < K // 2), other=0)
        b_inside = (c[None, :] < N) & (k[:, None] < K // 2)
        b = tl.load(B + c[None, :] * b_row + k[:, None] * b_column, b_inside, other=0)
        sa = tl.load(SA + r[:, None] * (K // 32) + s, rows & (s < K // 32), other=127)
        sb = tl.load(SB + c[:, None] * (K // 32) + s, columns & (s < K // 32), other=127)
        total = tl.dot_scaled(a, sa, "e2m1", b, sb, "e2m1", total)
    inside = rows & (c[None, :] < N)
    tl.store(Z + r[:, None] * N + c[None, :], total.to(Z.dtype.element_ty), inside)


def random(dtype: torch.dtype, *shape: int, seed: int = 0) -> torch.Tensor:
    """Normal numbers, or integers of the whole range."""
    g = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=g).to(dtype)
    info = torch.iinfo(dtype)
    low, high = max(info.min, -(1 << 62)), min(info.max, 1 << 62)
    return torch.randint(low, high, shape, generator=g, dtype=torch.int64).to(dtype)
