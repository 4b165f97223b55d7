"""How calls are dispatched, for GPUs that are not here."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mxfp4_ops.backends import REGISTRY, Backend, Call, devices, policy, triton
from mxfp4_ops.backends.devices import Target
from mxfp4_ops.backends.policy import Decision, Offer
from mxfp4_ops.tuning import lookup

MI355X, MI300X = Target("gfx950", 256), Target("gfx942", 304)
H200, B200 = Target("sm_90", 132), Target("sm_100", 148)
CUDA, CPU = torch.device("cuda", 3), torch.device("cpu")
EVERY = tuple(REGISTRY)

needs_triton = pytest.mark.skipif(
    triton.BACKEND.unavailable() is not None or triton.interpreted(),
    reason="Triton is not installed, or it interprets",
)


def call(
    target: Target, m: int = 16, n: int = 4096, k: int = 4096, op: str = "quant_mm", **others: Any
) -> Call:
    device = CPU if target.arch == "cpu" else CUDA
    return Call(op, device, torch.bfloat16, m, n, k, target=target, **others)


def decide(
    of: Call, available: tuple[str, ...] = EVERY, forced: str | None = None, **obstacles: str
) -> Decision:
    offers = [
        Offer(b, obstacles.get(name) if name in available else "it is not installed")
        for name, b in REGISTRY.items()
    ]
    return policy.decide(of, tuple(offers), forced)


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The user's directory, empty."""
    monkeypatch.setattr(lookup, "directory", str(tmp_path))
    caches = (lookup.table, policy.decide)
    for cache in caches:
        cache.cache_clear()
    yield tmp_path
    for cache in caches:
        cache.cache_clear()


@needs_triton
@pytest.mark.parametrize(
    ("target", "available", "chosen"),
    [
        (MI355X, EVERY, "triton"),
        (MI355X, ("aiter", "reference"), "aiter"),
        (MI355X, ("reference",), "reference"),
        (MI300X, EVERY, "triton"),
        (MI300X, ("aiter", "reference"), "reference"),
        (Target("gfx900", 64), EVERY, "reference"),
        (H200, EVERY, "triton"),
        (H200, ("cpu", "aiter", "reference"), "reference"),
        (Target("sm_70", 80), EVERY, "reference"),
        (B200, EVERY, "triton"),
        (Target("cpu"), EVERY, "cpu"),
        (Target("cpu"), ("reference",), "reference"),
    ],
    ids=str,
)
def test_automatic_choice(target: Target, available: tuple[str, ...], chosen: str) -> None:
    decision = decide(call(target), available)
    assert decision.backend == chosen
    # Everything that comes before it, and nothing else, is accounted for.
    assert [name for name, _ in decision.passed_over] == list(EVERY[: EVERY.index(chosen)])
    assert all(reason for _, reason in decision.passed_over)


@pytest.mark.parametrize("op", ["quantize", "dequantize"])
def test_conversions_are_not_aiters(op: str) -> None:
    found = decide(call(MI355X, op=op), ("aiter", "reference"))
    assert found.backend == "reference"
    assert op in dict(found.passed_over)["aiter"]


def test_codes_beyond_aiters_offsets() -> None:
    without_triton = ("aiter", "reference")
    assert decide(call(MI355X, n=2**17, k=2**15), without_triton).backend == "aiter"
    assert decide(call(MI355X, n=2**17 + 1, k=2**15), without_triton).backend == "reference"


@needs_triton
def test_a_backend_that_failed_is_passed_over() -> None:
    found = decide(call(MI355X), triton="it failed before (out of resource)")
    assert found.backend == "aiter"
    assert dict(found.passed_over)["triton"] == "it failed before (out of resource)"


@pytest.mark.parametrize(
    ("target", "available", "forced", "reason"),
    [
        (H200, EVERY, "aiter", "gfx950"),
        (H200, EVERY, "cpu", "CPU"),
        (MI355X, ("reference",), "aiter", "not installed"),
        (MI355X, ("reference",), "triton", "not installed"),
        (Target("cpu"), EVERY, "aiter", "gfx950"),
    ],
    ids=str,
)
def test_a_forced_backend_that_cannot(
    target: Target, available: tuple[str, ...], forced: str, reason: str
) -> None:
    with pytest.raises(RuntimeError, match=rf"'{forced}' was asked for.*{reason}"):
        decide(call(target), available, forced)


@pytest.mark.parametrize("forced", ["aiter", "reference"])
def test_a_forced_backend_that_can(forced: str) -> None:
    found = decide(call(MI355X), forced=forced)
    assert (found.backend, found.passed_over) == (forced, ())
    assert "by name" in found.because


def test_nothing_that_could_run_it() -> None:
    with pytest.raises(RuntimeError, match="no backend takes"):
        decide(call(MI355X), ())


def test_no_device_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(*_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(torch.cuda, "get_device_properties", ask)
    assert decide(call(MI355X, m=7), ("aiter",)).backend == "aiter"


@pytest.mark.parametrize(
    ("hip", "arch", "expected"),
    [
        (None, None, H200),
        ("7.0", "gfx950:sramecc+:xnack-", Target("gfx950", 132)),
        ("7.0", "gfx942", Target("gfx942", 132)),
    ],
)
def test_it_is_the_tensors_own_device(
    monkeypatch: pytest.MonkeyPatch, hip: str | None, arch: str | None, expected: Target
) -> None:
    def properties(device: torch.device) -> SimpleNamespace:
        assert device == CUDA
        return SimpleNamespace(major=9, minor=0, gcnArchName=arch, multi_processor_count=132)

    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    monkeypatch.setattr(devices, "target", devices.target.__wrapped__)
    assert Call("quant_mm", CUDA, torch.bfloat16, 1, 32, 32).target == expected
    assert Call("quant_mm", CPU, torch.bfloat16, 1, 32, 32).target == Target("cpu")


def test_decisions_are_kept() -> None:
    again = [decide(call(H200, m=77), ("reference",)) for _ in range(2)]
    assert again[0] is again[1]
    assert decide(call(H200, m=78), ("reference",)) == again[0]


def launched(of: Call) -> list[Any]:
    """What the host code of the kernels launches for a call, on tensors without memory."""
    from mxfp4_ops.backends.triton.operators import OPERATORS
    from mxfp4_ops.layout import shuffled_shapes

    def empty(*shape: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    m, n, k = of.m, of.n, of.k
    plain = (n, k // 2), (n, k // 32)
    weight = [empty(*shape) for shape in (shuffled_shapes(n, k) if of.shuffled else plain)]
    kernels = triton._kernels(of.target)
    if of.op == "mm":
        left = empty(m, k // 2), empty(m, k // 32)
        return list(OPERATORS["mm"](kernels, *left, *weight, None, torch.bfloat16, of.shuffled)[1])
    x = empty(m, k, dtype=torch.bfloat16)
    return list(OPERATORS["quant_mm"](kernels, x, *weight, None, None, of.shuffled, "even")[1])


@needs_triton
@pytest.mark.parametrize("shuffled", [False, True], ids=["plain", "shuffled"])
@pytest.mark.parametrize("op", ["quant_mm", "mm"])
@pytest.mark.parametrize("m", [1, 16, 64, 65, 128, 1000])
@pytest.mark.parametrize("target", [MI355X, MI300X, H200, B200], ids=str)
def test_what_is_decided_is_what_is_launched(
    monkeypatch: pytest.MonkeyPatch, target: Target, m: int, op: str, shuffled: bool
) -> None:
    from mxfp4_ops.backends.triton import gfx950, nvidia, portable

    for kernels in nvidia, portable:
        monkeypatch.setattr(kernels, "target", lambda device: target)
    monkeypatch.setattr(gfx950, "_target", lambda t: target)
    of = call(target, m=m, n=2112, k=7168, op=op, shuffled=shuffled)
    work = decide(of).work
    launches = launched(of)
    assert [launch.kernel.__name__ for launch in launches] == list(work.kernels)
    product = launches[-2 if work.plan.split_k > 1 else -1]
    constants = {**product.constants, **product.options}
    names = {"block_m": ("BM", "BLOCK_M"), "block_n": ("BN", "BLOCK_N"), "num_warps": ["num_warps"]}
    for attribute, spellings in names.items():
        (value,) = (constants[name] for name in spellings if name in constants)
        assert value == getattr(work.plan, attribute)
    workgroups = product.grid[0] * product.grid[1] * product.grid[2]
    tiles = ceil(m / work.plan.block_m) * ceil(2112 / work.plan.block_n)
    assert workgroups == tiles * work.plan.split_k


ENTRY = '{{"m": {m}, {what}, "provenance": "measured here"}}'


def write(folder: Path, target: Target, n: int, k: int, **entries: str) -> None:
    plans = ", ".join(ENTRY.format(m=m[1:], what=what) for m, what in entries.items())
    folder.joinpath(f"{target.arch}.json").write_text(
        f'{{"architecture": "{target.arch}", "compute_units": {target.compute_units},'
        f' "products": [{{"n": {n}, "k": {k}, "plans": [{plans}]}}]}}'
    )


@needs_triton
def test_a_table_that_names_another_backend(tables: Path) -> None:
    """For about these sizes it comes first, if it can."""
    plan = '"plan": {"fused": true, "block_m": 16, "block_n": 64, "chunk_k": 256, "num_warps": 2}'
    write(tables, MI355X, 4096, 4096, m16=plan, m4096='"backend": "aiter"')
    few, many = call(MI355X, m=16), call(MI355X, m=8192)
    assert decide(few).backend == "triton"
    found = decide(many)
    assert (found.backend, found.because) == ("aiter", "a table says so")
    assert decide(many, ("triton", "reference")).backend == "triton"
    assert decide(call(MI355X, m=8192, op="quantize")).backend == "triton"
    assert decide(call(MI355X, m=8192, n=4095)).backend == "triton"
    assert decide(call(Target("gfx950", 128), m=8192)).backend == "triton"


@needs_triton
def test_a_malformed_table_is_told(tables: Path) -> None:
    tables.joinpath("sm_90.json").write_text("{")
    with pytest.raises(ValueError, match=r"sm_90\.json"):
        decide(call(H200))
    assert decide(call(B200)).backend == "triton"


class Stubborn(Backend):
    name, serves = "stubborn", "tests"

    def unavailable(self) -> str | None:
        return None

    def refuses(self, call: Call) -> str | None:
        return "it never takes any"

    def run(self, call: Call, *args: Any) -> Any:
        raise NotImplementedError


def test_a_backend_that_takes_nothing() -> None:
    first, last = Stubborn(), REGISTRY["reference"]
    found = policy.decide(call(H200), (Offer(first), Offer(last)))
    assert found.backend == "reference"
    assert found.passed_over == (("stubborn", "it never takes any"),)
