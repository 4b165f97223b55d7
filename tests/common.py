"""What the tests share: the ways to run an operator, weights, and the bound on a product."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

import oracle
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import mxfp4_ops
from mxfp4_ops.backends import REGISTRY, Call, cpu

# Where other processes share the cores, float64 in many threads takes a hundred times as long.
torch.set_num_threads(1)

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
MODES = oracle.MODES


@dataclass(frozen=True)
class Path:
    """One way to run the operators: a backend, a device it takes and, on the CPU, its kernels."""

    backend: str
    device: str
    isa: str | None = None

    def __str__(self) -> str:
        return "-".join(filter(None, (self.backend, self.isa, self.device)))

    @property
    def slow(self) -> bool:
        """Whether it takes far longer than the others: in float64, interpreted or emulated."""
        on_cpu = self.device == "cpu" and self.backend in ("triton", "gfx950")
        return self.backend == "reference" or on_cpu

    @contextmanager
    def active(self) -> Iterator[None]:
        before = cpu.isa()
        if self.isa is not None:
            cpu.select_isa(self.isa)
        try:
            with mxfp4_ops.use_backend(self.backend):
                yield
        finally:
            if before is not None:
                cpu.select_isa(before)


def _paths() -> Iterator[Path]:
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    for status in mxfp4_ops.backends():
        for device in devices if status.available else []:
            call = Call("quant_mm", torch.device(device), torch.bfloat16, 16, 16, 256)
            if REGISTRY[status.name].refuses(call) is None:
                for isa in cpu.isas() if status.name == "cpu" else [None]:
                    yield Path(status.name, device, isa)


PATHS = list(_paths())
CPU_PATHS = [p for p in PATHS if p.backend == "cpu"]


def _parametrize(paths: Iterable[Path]) -> pytest.MarkDecorator:
    marks = {"cpu": [], "cuda": [pytest.mark.gpu]}
    return pytest.mark.parametrize(
        "path", [pytest.param(p, id=str(p), marks=marks[p.device]) for p in paths]
    )


every_path = _parametrize(PATHS)
# For what does not depend on the instruction set: the fastest one.
every_backend = _parametrize({(p.backend, p.device): p for p in PATHS}.values())
every_cpu_path = _parametrize(CPU_PATHS)
# Those on which Triton's kernels run, for what calls these by themselves.
TRITON_DEVICES = [p.device for p in PATHS if p.backend == "triton"]
every_triton_device = pytest.mark.parametrize(
    "device",
    [
        pytest.param(d, id=f"triton-{d}", marks=[pytest.mark.gpu] if d == "cuda" else [])
        for d in TRITON_DEVICES
    ],
)

every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
every_mode = pytest.mark.parametrize("mode", MODES)
plain_and_shuffled = pytest.mark.parametrize("shuffled", [False, True], ids=["plain", "shuffled"])

needs_cpu_kernels = pytest.mark.skipif(not CPU_PATHS, reason="the C++ kernels are not built")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_codes(
    *shape: int, seed: int = 0, low: int = 120, high: int = 131
) -> tuple[Tensor, Tensor]:
    """Random codes `[..., K/2]` and scale bytes in `low..high` for a tensor of shape `[..., K]`."""
    *lead, k = shape
    g = generator(seed)
    codes = torch.randint(0, 256, (*lead, k // 2), dtype=torch.uint8, generator=g)
    return codes, torch.randint(low, high + 1, (*lead, k // 32), dtype=torch.uint8, generator=g)


@dataclass(frozen=True)
class Weight:
    """A plain weight and the numbers it holds, on the CPU."""

    codes: Tensor
    scales: Tensor
    values: Tensor

    @classmethod
    def of(cls, codes: Tensor, scales: Tensor) -> Weight:
        return cls(codes, scales, oracle.decode(codes, scales))

    def on(self, device: str, shuffled: bool = False) -> tuple[Tensor, Tensor]:
        plain = self.codes.to(device), self.scales.to(device)
        return mxfp4_ops.shuffle(*plain) if shuffled else plain

    def padded_values(self, shuffled: bool) -> Tensor:
        """The numbers with the rows that the shuffled layout adds."""
        return F.pad(self.values, (0, 0, 0, -len(self.values) % 16)) if shuffled else self.values


@lru_cache(maxsize=4)
def random_weight(n: int, k: int) -> Weight:
    return Weight.of(*random_codes(n, k, seed=n + k))


def activation(*shape: int, dtype: torch.dtype, seed: int = 7) -> Tensor:
    """Normal numbers whose blocks differ in size by up to 2**6."""
    *lead, k = shape
    g = generator(seed)
    x = torch.randn(shape, generator=g).unflatten(-1, (k // 32, 32))
    return (x * torch.randint(-3, 4, (*lead, k // 32, 1), generator=g).exp2()).flatten(-2).to(dtype)


def outliers(t: Tensor, every: int) -> Tensor:
    """Some blocks far above the others of their rows, and some below, in a few steps."""
    blocks = t.view(len(t), -1, 32)
    for i in range(0, blocks.shape[1], every):
        blocks[i % 5 :: 7, i] *= 2.0 ** (3 + i % 11)
        blocks[i % 3 :: 9, (i * 7 + 1) % blocks.shape[1]] *= 2.0 ** -(i % 13)
    return t


def quantized_values(x: Tensor, mode: str = "even") -> Tensor:
    """The numbers that `x` becomes, in float64 on the CPU."""
    return oracle.decode(*oracle.quantize_tensor(x, mode))


def on_meta(t: Tensor) -> Tensor:
    """A meta tensor of the same sizes, strides and dtype."""
    return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta")


def assert_same_bits(actual: Tensor, expected: Tensor) -> None:
    """Equal in shape, dtype and every bit, so that NaN equals itself and 0 is not -0."""
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    unsigned = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[actual.element_size()]
    assert torch.equal(
        actual.cpu().contiguous().view(unsigned), expected.cpu().contiguous().view(unsigned)
    )


def half_ulp(magnitude: Tensor, dtype: torch.dtype) -> Tensor:
    """Half the distance between neighbouring numbers of `dtype` at float64 magnitudes."""
    info = torch.finfo(dtype)
    exponent = torch.frexp(magnitude)[1].clamp(min=math.frexp(info.tiny)[1])
    return oracle.ldexp(torch.tensor(info.eps / 4), exponent)


@dataclass(frozen=True)
class Product:
    """A @ B.T + bias in float64, and how far a result may be from it before its last rounding."""

    exact: Tensor
    bound: Tensor

    @classmethod
    def of(cls, a: Tensor, b: Tensor, bias: Tensor | None = None) -> Product:
        """From the decoded operands, float64."""
        exact, bound = a @ b.T, 1e-6 * (a.abs() @ b.abs().T) + 2.0**-126
        if bias is not None:  # one float32 addition, half an ulp of which the sum's bound covers
            exact, bound = exact + bias.cpu().double(), bound + 2.0**-24 * bias.cpu().double().abs()
        return cls(exact, bound)

    def __getitem__(self, rows: slice) -> Product:
        return Product(self.exact[rows], self.bound[rows])

    def check(self, out: Tensor) -> None:
        """Assert that `out` is a value within the bound, rounded to nearest in its dtype."""
        info = torch.finfo(out.dtype)
        value = out.cpu().double()
        assert value.shape == self.exact.shape
        assert torch.equal(value.isnan(), self.exact.isnan())

        furthest = self.exact.abs() + self.bound
        tolerance = self.bound + half_ulp(furthest, out.dtype)
        overflow = info.max + info.eps / 4 * 2.0 ** math.frexp(info.max)[1]
        may_be_infinite = (furthest >= overflow) & (value.sign() == self.exact.sign())
        right = torch.where(value.isinf(), may_be_infinite, (value - self.exact).abs() <= tolerance)
        assert (right | value.isnan()).all()
