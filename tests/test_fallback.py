"""A backend that fails at a call: automatic choice goes on to the next one, once and for all."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import pytest
import torch

import mxfp4_ops
from mxfp4_ops.backends import REGISTRY, Backend, Call, failures, forced_backend, run

pytestmark = pytest.mark.skipif(
    forced_backend() is not None, reason="MXFP4_OPS_BACKEND leaves no automatic choice"
)

CPU, META = torch.device("cpu"), torch.device("meta")


def call(op: str = "quant_mm", device: torch.device = CPU) -> Call:
    return Call(op, device, torch.bfloat16, 4, 24, 96)


class Fake(Backend):
    """Returns its own name, or raises an error."""

    serves = "tests"

    def __init__(self, name: str, error: Exception | None = None) -> None:
        self.name, self.error, self.calls = name, error, 0

    def unavailable(self) -> str | None:
        return None

    def refuses(self, call: Call) -> str | None:
        return None

    def detail(self) -> str:
        return "a fake"

    def run(self, call: Call, *args: Any) -> Any:
        self.calls += 1
        if self.error is not None:
            raise self.error
        return self.name


@pytest.fixture(autouse=True)
def nothing_known() -> Iterator[None]:
    failures._reasons.clear()
    yield
    failures._reasons.clear()


Register = Callable[..., None]


@pytest.fixture
def register() -> Iterator[Register]:
    """Backends instead of those that there are."""
    with patch.dict(REGISTRY):

        def only(*backends: Backend) -> None:
            REGISTRY.clear()
            REGISTRY.update({b.name: b for b in backends})

        yield only


BROKEN = RuntimeError("at 12:8:\n  x = tl.load(p)\n       ^\nout of resource: shared memory")


def test_it_happens_once_and_is_told_once(register: Register) -> None:
    first, second = Fake("first", BROKEN), Fake("second")
    register(first, second)
    with pytest.warns(RuntimeWarning, match="shared memory") as told:
        assert run(call()) == "second"
    assert len(told) == 1
    message = str(told[0].message)
    assert all(part in message for part in ("quant_mm", "cpu", "'first'", "'second'", str(BROKEN)))
    assert run(call()) == "second"  # and a warning would be an error
    assert (first.calls, second.calls) == (1, 2)


def test_it_is_reported(register: Register) -> None:
    register(Fake("first", BROKEN), Fake("second"))
    with pytest.warns(RuntimeWarning):
        run(call())
    first, second = mxfp4_ops.backends()
    assert first.available
    assert first.detail == "a fake; quant_mm failed on cpu (out of resource: shared memory)"
    assert second.detail == "a fake"


def test_an_error_without_words(register: Register) -> None:
    register(Fake("first", AssertionError()), Fake("second"))
    with pytest.warns(RuntimeWarning, match="AssertionError"):
        run(call())
    assert "AssertionError" in mxfp4_ops.backends()[0].detail


def test_other_operators_and_devices_are_not_concerned(register: Register) -> None:
    first = Fake("first", BROKEN)
    register(first, Fake("second"))
    with pytest.warns(RuntimeWarning):
        run(call())
    first.error = None
    assert run(call("mm")) == "first"
    assert run(call(device=META)) == "first"
    assert run(call()) == "second"


def test_down_to_the_last(register: Register) -> None:
    """Whose own error is raised, and which is not given up."""
    last = Fake("third", KeyError("the last one's"))
    register(Fake("first", BROKEN), Fake("second", BROKEN), last)
    with pytest.warns(RuntimeWarning) as told, pytest.raises(KeyError, match="the last one's"):
        run(call())
    assert ["'second' runs" in str(w.message) for w in told] == [True, False]
    last.error = None
    assert run(call()) == "third"


@pytest.mark.parametrize("error", [ValueError("tile"), MemoryError(), torch.OutOfMemoryError()])
def test_errors_that_no_other_backend_avoids(register: Register, error: Exception) -> None:
    register(Fake("first", error), Fake("second"))
    for _ in range(2):
        with pytest.raises(type(error)):
            run(call())


def test_never_while_a_graph_is_captured(
    register: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Fake("first", BROKEN)
    register(first, Fake("second"))
    with monkeypatch.context() as inside:
        inside.setattr(failures, "capturing", lambda device: True)
        with pytest.raises(RuntimeError, match="shared memory"):
            run(call())
    first.error = None
    assert run(call()) == "first"


def test_what_is_known_holds_in_a_graph(
    register: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(Fake("first", BROKEN), Fake("second"))
    with pytest.warns(RuntimeWarning):
        run(call())
    monkeypatch.setattr(failures, "capturing", lambda device: True)
    assert run(call()) == "second"


def test_an_explicit_choice_raises(register: Register) -> None:
    """Also what automatic choice has given up is tried again."""
    first = Fake("first", BROKEN)
    register(first, Fake("second"))
    with mxfp4_ops.use_backend("first"), pytest.raises(RuntimeError, match="shared memory"):
        run(call())
    with pytest.warns(RuntimeWarning):
        run(call())
    with mxfp4_ops.use_backend("first"), pytest.raises(RuntimeError, match="shared memory"):
        run(call())
    assert first.calls == 3


def test_warnings_that_are_errors(register: Register) -> None:
    register(Fake("first", BROKEN), Fake("second"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeWarning) as raised:
            run(call())
    assert raised.value.__context__ is BROKEN
    assert run(call()) == "second"
