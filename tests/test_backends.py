"""Which backend runs a call: by rule, by name, by thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import pytest
import torch
from common import CPU_PATHS, Path, every_cpu_path, needs_cpu_kernels, random_codes, random_weight

import mxfp4_ops
from mxfp4_ops.backends import REGISTRY, Backend, Call, cpu, forced_backend, reference, select

pytestmark = pytest.mark.skipif(
    forced_backend() is not None, reason="MXFP4_OPS_BACKEND leaves no automatic choice"
)

ops = torch.ops.mxfp4
CALL = Call("quant_mm", torch.device("cpu"), torch.bfloat16, 4, 24, 96)
OPERATORS = ("quant_mm", "mm", "quantize", "dequantize")


class Fake(Backend):
    """A backend that is or is not usable, and takes or refuses every call."""

    serves = "tests"

    def __init__(self, name: str, missing: str | None = None, refusal: str | None = None) -> None:
        self.name, self.missing, self.refusal = name, missing, refusal

    def unavailable(self) -> str | None:
        return self.missing

    def refuses(self, call: Call) -> str | None:
        return self.refusal

    def run(self, call: Call, *args: Any) -> Any:
        raise NotImplementedError


@pytest.fixture(autouse=True)
def order_of_preference() -> Iterator[None]:
    """As it was: what monkeypatch takes out of a dictionary it puts back in the opposite order."""
    with patch.dict(REGISTRY):
        yield


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the operators that the reference has run."""
    names: list[str] = []

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def count(*args: Any) -> Any:
            names.append(name)
            return function(*args)

        return count

    for name, function in dict(reference.OPERATORS).items():
        monkeypatch.setitem(reference.OPERATORS, name, counted(name, function))
    return names


def run(name: str) -> Any:
    """Call one operator on the CPU."""
    codes, scales = random_codes(24, 96)
    arguments = {
        "quant_mm": (torch.ones(4, 96), codes, scales),
        "mm": (codes, scales, codes, scales),
        "quantize": (torch.ones(4, 96),),
        "dequantize": (codes, scales),
    }
    return getattr(ops, name)(*arguments[name])


def replace_registry(monkeypatch: pytest.MonkeyPatch, *backends: Backend) -> None:
    for name in list(REGISTRY):
        monkeypatch.delitem(REGISTRY, name)
    for backend in backends:
        monkeypatch.setitem(REGISTRY, backend.name, backend)


def in_thread(function: Callable[[], Any]) -> Any:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


@pytest.mark.parametrize("name", OPERATORS)
def test_the_reference_runs_when_asked_for(name: str, calls: list[str]) -> None:
    with mxfp4_ops.use_backend("reference"):
        run(name)
    assert calls == [name]


@needs_cpu_kernels
@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("backend", ["cpu", None])
def test_cpu_tensors_go_to_the_cpu_kernels(
    name: str, backend: str | None, calls: list[str]
) -> None:
    with mxfp4_ops.use_backend(backend):
        run(name)
    assert calls == []


def test_compiled_code_obeys_at_run_time(calls: list[str]) -> None:
    weight = random_weight(24, 96).on("cpu")

    @torch.compile(backend="aot_eager", fullgraph=True)
    def model(x: torch.Tensor) -> torch.Tensor:
        return ops.quant_mm(x, *weight).relu()

    model(torch.ones(4, 96))
    calls.clear()
    with mxfp4_ops.use_backend("reference"):
        model(torch.ones(4, 96))
    assert calls == ["quant_mm"]
    model(torch.ones(4, 96))
    assert calls == ["quant_mm"] * (1 if CPU_PATHS else 2)


def test_gradients_obey(calls: list[str]) -> None:
    x = torch.ones(4, 96, requires_grad=True)
    with mxfp4_ops.use_backend("reference"):
        ops.quant_mm(x, *random_weight(24, 96).on("cpu")).sum().backward()
    assert calls == ["quant_mm", "dequantize"]


def test_blocks_nest_and_end() -> None:
    before = forced_backend()
    with mxfp4_ops.use_backend("reference"):
        assert forced_backend() == "reference"
        with mxfp4_ops.use_backend(None):
            assert forced_backend() is None
        assert forced_backend() == "reference"
    assert forced_backend() == before


def test_an_exception_ends_the_block(calls: list[str]) -> None:
    before = forced_backend()
    with pytest.raises(KeyError), mxfp4_ops.use_backend("reference"):
        raise KeyError
    assert forced_backend() == before
    with mxfp4_ops.use_backend("reference"):
        with pytest.raises(ValueError, match="unknown backend"), mxfp4_ops.use_backend("none such"):
            pass
        with pytest.raises(ValueError, match="multiple of 32"):
            ops.quantize(torch.ones(33))
        run("quantize")
    assert calls == ["quantize"]


def test_other_threads_are_left_alone(calls: list[str]) -> None:
    with mxfp4_ops.use_backend("reference"):
        assert in_thread(forced_backend) is None
        in_thread(lambda: run("quantize"))
        assert calls == ([] if CPU_PATHS else ["quantize"])
        calls.clear()
        run("quantize")
        assert calls == ["quantize"]


def test_a_threads_own_block(calls: list[str]) -> None:
    def work() -> None:
        with mxfp4_ops.use_backend("reference"):
            entered.set()
            left.wait(60)
            run("quantize")

    entered, left = threading.Event(), threading.Event()
    thread = threading.Thread(target=work)
    thread.start()
    entered.wait(60)
    assert forced_backend() is None
    run("dequantize")
    left.set()
    thread.join()
    assert calls == (["quantize"] if CPU_PATHS else ["dequantize", "quantize"])


def test_unknown_backend() -> None:
    with pytest.raises(ValueError, match=r"'nonsense'.*'cpu'.*'reference'"):
        mxfp4_ops.use_backend("nonsense").__enter__()
    with pytest.raises(ValueError, match="nonsense"):
        select(CALL, "nonsense")


def test_unusable_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REGISTRY, "gone", Fake("gone", missing="its library is not there"))
    with pytest.raises(RuntimeError, match=r"'gone'.*its library is not there"):
        mxfp4_ops.use_backend("gone").__enter__()
    with pytest.raises(RuntimeError, match=r"'gone'.*its library is not there"):
        select(CALL, "gone")
    status = {s.name: s for s in mxfp4_ops.backends()}["gone"]
    assert (status.available, status.reason) == (False, "its library is not there")


@pytest.mark.parametrize("name", OPERATORS)
def test_a_backend_for_other_devices_raises_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    other = Fake("elsewhere", refusal="it does not take tensors on cpu")
    monkeypatch.setitem(REGISTRY, "elsewhere", other)
    with (
        mxfp4_ops.use_backend("elsewhere"),
        pytest.raises(RuntimeError, match=r"'elsewhere'.*it does not take tensors on cpu"),
    ):
        run(name)
    run(name)


@pytest.mark.parametrize(
    ("backends", "chosen"),
    [
        ([Fake("a"), Fake("b")], "a"),
        ([Fake("a", missing="not installed"), Fake("b")], "b"),
        ([Fake("a", refusal="K is odd"), Fake("b")], "b"),
        ([Fake("a", "not installed"), Fake("b", refusal="K is odd"), Fake("c"), Fake("d")], "c"),
    ],
)
def test_automatic_choice_takes_the_first_that_can(
    monkeypatch: pytest.MonkeyPatch, backends: list[Fake], chosen: str
) -> None:
    replace_registry(monkeypatch, *backends)
    assert select(CALL, None).name == chosen


def test_a_forced_backend_does_not_fall_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REGISTRY, "picky", Fake("picky", refusal="K = 96 is not a multiple of 256"))
    with pytest.raises(RuntimeError, match=r"'picky'.*K = 96 is not a multiple of 256"):
        select(CALL, "picky")


def test_no_backend_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_registry(monkeypatch, Fake("picky", refusal="K is odd"))
    with pytest.raises(RuntimeError, match="no backend"):
        select(CALL, None)


def test_backends_says_what_there_is() -> None:
    status = mxfp4_ops.backends()
    assert [s.name for s in status] == list(REGISTRY)
    for s in status:
        assert s.available == (s.reason is None)
        assert s.available == (REGISTRY[s.name].unavailable() is None)
    assert {s.name: s for s in status}["reference"].available
    if CPU_PATHS:
        assert str(cpu.isa()) in {s.name: s for s in status}["cpu"].detail


def test_unknown_instruction_set() -> None:
    before = cpu.isa()
    with pytest.raises(ValueError if CPU_PATHS else RuntimeError):
        cpu.select_isa("nonsense")
    assert cpu.isa() == before


@needs_cpu_kernels
@every_cpu_path
def test_instruction_sets_can_be_chosen(path: Path) -> None:
    before = cpu.isa()
    with path.active():
        assert cpu.isa() == path.isa
        assert in_thread(cpu.isa) == path.isa
    assert cpu.isa() == before
