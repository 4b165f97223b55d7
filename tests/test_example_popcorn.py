"""The leaderboard's example: right by the task's rule, in one call, with nothing copied."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import scripts
import torch
from common import Product, quantized_values
from torch.utils._python_dispatch import TorchDispatchMode

NAME = "popcorn_submission"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    return scripts.load(NAME)


class Recorder(TorchDispatchMode):
    """What is called, with the addresses of the tensors it is given."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[str, list[int]]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given = [a.data_ptr() for a in args if isinstance(a, torch.Tensor)]
        self.calls.append((str(func), given))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("shape", [(4, 64, 512), (33, 192, 256), (4, 2880, 512)], ids=str)
def test_product(example: ModuleType, shape: tuple[int, int, int]) -> None:
    data = example.generate_input(*shape, seed=1, device="cpu")
    # Rows that hold nothing are undefined where AITER makes them.
    data[4].view(torch.uint8)[shape[1] :] = 255

    with Recorder() as recorder:
        y = example.custom_kernel(data)
    assert recorder.calls == [
        ("mxfp4.quant_mm.default", [data[0].data_ptr(), data[3].data_ptr(), data[4].data_ptr()])
    ]
    assert y.dtype == torch.bfloat16
    Product.of(quantized_values(data[0]), quantized_values(data[1])).check(y)
    torch.testing.assert_close(y, example.expected(data), rtol=example.RTOL, atol=example.ATOL)


def test_script() -> None:
    run = scripts.run(NAME, "--small", "--device", "cpu")
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("small") == 2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_script_on_a_gpu() -> None:
    run = scripts.run(NAME, "--device", "cuda")
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count("benchmark") == 6


def test_script_tells_a_wrong_result(example: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    right = example.custom_kernel

    def wrong(data: Any) -> torch.Tensor:
        y: torch.Tensor = right(data)
        y[-1, -1] += 1
        return y

    monkeypatch.setattr(example, "custom_kernel", wrong)
    with pytest.raises(example.typer.Exit) as raised:
        example.main(device="cpu", small=True)
    assert raised.value.exit_code == 1
