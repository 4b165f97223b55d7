"""Every wrong argument is a ValueError that names it, in the same words on every path."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from common import (
    Path,
    every_backend,
    on_meta,
    random_codes,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map_only

import mxfp4_ops

N, K = 24, 96
CODES, SCALES = random_codes(N, K)
SHUFFLED_CODES, SHUFFLED_SCALES = mxfp4_ops.shuffle(CODES, SCALES)
X, BIAS = torch.zeros(3, K), torch.zeros(N)

VALID: dict[str, dict[str, Any]] = {
    "quant_mm": {"x": X, "weight": CODES, "weight_scale": SCALES, "bias": BIAS},
    "mm": {"a": CODES[:3], "a_scale": SCALES[:3], "b": CODES, "b_scale": SCALES, "bias": BIAS},
    "mm_a16": {"x": X, "weight": CODES, "weight_scale": SCALES, "bias": BIAS},
    "grouped_quant_mm": {
        "x": X,
        "weight": CODES.view(3, 8, -1),
        "weight_scale": SCALES.view(3, 8, -1),
        "offsets": torch.tensor([0, 1, 1, 3]),
        "bias": BIAS.view(3, 8),
    },
    "quantize": {"x": X},
    "dequantize": {"q": CODES, "scale": SCALES},
    "shuffle": {"weight": CODES, "weight_scale": SCALES},
    "unshuffle": {"weight": SHUFFLED_CODES, "weight_scale": SHUFFLED_SCALES, "n": N, "k": K},
}


@dataclass(frozen=True)
class Case:
    """Valid arguments of an operator with some replaced, and the one that the error must name."""

    op: str
    named: str
    changes: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        values = (
            f"{list(v.shape)}{v.dtype}" if isinstance(v, Tensor) else repr(v)
            for v in self.changes.values()
        )
        return f"{self.op}-{self.named}-" + "-".join(values)

    @property
    def arguments(self) -> dict[str, Any]:
        return VALID[self.op] | self.changes

    def error(self, arguments: dict[str, Any]) -> str:
        with pytest.raises(ValueError, match=rf"^{self.named}\b") as caught:
            getattr(torch.ops.mxfp4, self.op)(**arguments)
        return str(caught.value)


def _bad_activations(name: str) -> Iterator[Tensor]:
    yield torch.zeros(3, 80)
    yield torch.zeros(33)
    yield torch.zeros(3, 1)
    yield torch.zeros(())
    for dtype in (torch.float64, torch.int32, torch.uint8, torch.bool, torch.complex64):
        yield torch.zeros(3, K, dtype=dtype)
    yield torch.zeros(3, K).to(torch.float8_e4m3fn)


def _bad_codes() -> Iterator[Tensor]:
    """Wrong in themselves, whatever comes with them."""
    for dtype in (torch.int8, torch.int16, torch.float32, torch.float8_e8m0fnu):
        yield CODES.view(torch.uint8).to(torch.int16).to(dtype)
    yield torch.zeros(N, 40, dtype=torch.uint8)
    yield torch.zeros(N, 1, dtype=torch.uint8)
    yield torch.zeros(K // 2, N, dtype=torch.uint8).T
    yield torch.zeros(N, K, dtype=torch.uint8)[:, ::2]
    yield torch.zeros(N, 1, dtype=torch.uint8).expand(N, K // 2)


def _bad_scales() -> Iterator[Tensor]:
    for dtype in (torch.int8, torch.float32, torch.float8_e4m3fn, torch.float4_e2m1fn_x2):
        scales = torch.zeros(N, K // 32, dtype=torch.uint8)
        yield scales.view(dtype) if dtype.itemsize == 1 else scales.to(dtype)
    for shape in ((N, 4), (N, 2), (N + 1, 3), (1, 3), (3, N), (N * 3,), (N, 3, 1), ()):
        yield torch.zeros(shape, dtype=torch.uint8)
    yield torch.zeros(3, N, dtype=torch.uint8).T
    yield torch.zeros(N, 6, dtype=torch.uint8)[:, ::2]
    yield torch.zeros(N, 1, dtype=torch.uint8).expand(N, 3)


def _bad_biases() -> Iterator[Tensor]:
    for shape in ((N - 1,), (N + 1,), (1,), (0,), (1, N), (N, 1), ()):
        yield torch.zeros(shape)
    for dtype in (torch.float64, torch.int32, torch.uint8, torch.complex64):
        yield torch.zeros(N, dtype=dtype)


def _cases() -> Iterator[Case]:
    for op in ("quant_mm", "quantize"):
        yield from (Case(op, "x", {"x": x}) for x in _bad_activations("x"))
        for mode in ("", "EVEN", "nearest", "even ", "eve", "é'\n"):
            yield Case(op, "scale_mode", {"scale_mode": mode})
    yield from (Case("mm_a16", "x", {"x": x}) for x in _bad_activations("x"))
    yield from _bad_groups()
    for op in ("quant_mm", "mm", "mm_a16"):
        yield from (Case(op, "bias", {"bias": bias}) for bias in _bad_biases())
    for op, name in (
        ("quant_mm", "out_dtype"),
        ("mm", "out_dtype"),
        ("mm_a16", "out_dtype"),
        ("dequantize", "dtype"),
    ):
        for dtype in (torch.float64, torch.int8, torch.float8_e4m3fn, torch.complex64):
            yield Case(op, name, {name: dtype})
    for op, codes, scales in (
        ("quant_mm", "weight", "weight_scale"),
        ("mm", "b", "b_scale"),
        ("mm_a16", "weight", "weight_scale"),
        ("dequantize", "q", "scale"),
        ("shuffle", "weight", "weight_scale"),
    ):
        yield from (Case(op, codes, {codes: t}) for t in _bad_codes())
        yield from (Case(op, scales, {scales: t}) for t in _bad_scales())
    yield Case("mm", "a", {"a": torch.zeros(3, 40, dtype=torch.uint8)})
    yield Case("mm", "a", {"a": torch.zeros((), dtype=torch.uint8)})
    yield Case("mm", "a", {"a": torch.zeros(3, K // 2)})
    yield Case("mm", "a_scale", {"a_scale": SCALES[:2]})
    yield Case("mm", "a_scale", {"a_scale": SCALES[:3].float()})
    yield Case("dequantize", "q", {"q": torch.zeros((), dtype=torch.uint8)})

    # Both sides are right by themselves, and their K differs.
    yield Case("quant_mm", "x has K = 64, but weight has K = 96", {"x": torch.zeros(3, 64)})
    yield Case("quant_mm", "x has K = 0, but weight has K = 96", {"x": torch.zeros(3, 0)})
    yield Case("mm_a16", "x has K = 64, but weight has K = 96", {"x": torch.zeros(3, 64)})
    a, a_scale = random_codes(3, 64)
    yield Case("mm", "a has K = 64, but b has K = 96", {"a": a, "a_scale": a_scale})

    for op, name in (("quant_mm", "weight"), ("mm", "b"), ("shuffle", "weight")):
        for shape in ((K // 2,), (1, N, K // 2), ()):
            yield Case(op, name, {name: torch.zeros(shape, dtype=torch.uint8)})
    for op, codes, scales in (
        ("quant_mm", "weight", "weight_scale"),
        ("mm", "b", "b_scale"),
        ("mm_a16", "weight", "weight_scale"),
    ):
        yield from _bad_shuffled(op, codes, scales, {"shuffled": True, "bias": None})
    yield from _bad_shuffled("unshuffle", "weight", "weight_scale", {})
    for name, value in (("n", -1), ("k", -32), ("k", 80), ("k", 1)):
        yield Case("unshuffle", name, {name: value})
    for changes in ({"n": N + 16}, {"n": 0}, {"k": 160}, {"k": 0}, {"n": 1 << 62}):
        yield Case("unshuffle", "weight", changes)


def _bad_groups() -> Iterator[Case]:
    op = "grouped_quant_mm"
    yield from (Case(op, "x", {"x": x}) for x in _bad_activations("x"))
    yield Case(op, "x", {"x": X[0]})
    yield Case(op, "x", {"x": X[None]})
    yield Case(op, "x has K = 64, but weight has K = 96", {"x": torch.zeros(3, 64)})
    yield Case(op, "scale_mode", {"scale_mode": "nearest"})
    yield Case(op, "out_dtype", {"out_dtype": torch.float64})
    for codes in (CODES, CODES.view(3, 8, -1).float(), CODES.view(3, 8, -1).mT, CODES[None, None]):
        yield Case(op, "weight", {"weight": codes})
    yield Case(op, "weight_scale", {"weight": CODES.view(2, 12, -1)})
    for scales in (SCALES, SCALES.view(3, 8, -1).float(), SCALES.view(3, 8, -1)[:2]):
        yield Case(op, "weight_scale", {"weight_scale": scales})
    for shape in ((3, 7), (2, 8), (8, 3), (24,), (3, 8, 1)):
        yield Case(op, "bias", {"bias": torch.zeros(shape)})
    yield Case(op, "bias", {"bias": torch.zeros(3, 8, dtype=torch.float64)})
    for offsets in (torch.tensor([0, 1, 3]), torch.tensor([[0, 1, 1, 3]]), torch.tensor(0)):
        yield Case(op, "offsets", {"offsets": offsets})
    for dtype in (torch.int16, torch.uint8, torch.float32, torch.bool):
        yield Case(op, "offsets", {"offsets": torch.tensor([0, 1, 1, 1]).to(dtype)})


def _bad_shuffled(op: str, codes: str, scales: str, base: dict[str, Any]) -> Iterator[Case]:
    right = base | {codes: SHUFFLED_CODES, scales: SHUFFLED_SCALES}
    for wrong in (
        CODES,
        SHUFFLED_CODES[:, :32].contiguous(),
        torch.zeros(64, 32, dtype=torch.uint8).T,
        torch.zeros(32, 128, dtype=torch.uint8)[:, ::2],
        torch.zeros(32, 80, dtype=torch.uint8)[:, :64],
        torch.zeros(32, 64),
        SHUFFLED_CODES.flatten(),
    ):
        yield Case(op, codes, right | {codes: wrong})
    for wrong in (
        SCALES,
        SHUFFLED_SCALES[:128],
        SHUFFLED_SCALES.view(8, 256).T,
        torch.zeros(256, 16, dtype=torch.uint8)[:, :8],
        torch.zeros(256, 8),
        SHUFFLED_SCALES.flatten(),
    ):
        yield Case(op, scales, right | {scales: wrong})


CASES = list(_cases())
every_case = pytest.mark.parametrize("case", CASES, ids=str)


def test_the_valid_arguments_are_valid() -> None:
    for op, arguments in VALID.items():
        getattr(torch.ops.mxfp4, op)(**arguments)


@every_case
def test_meta_and_fake_tensors(case: Case) -> None:
    message = case.error(tree_map_only(Tensor, on_meta, case.arguments))
    with FakeTensorMode() as mode:
        assert case.error(tree_map_only(Tensor, mode.from_tensor, case.arguments)) == message


def _on(device: str, t: Tensor) -> Tensor:
    """`t` on a device with its strides, which `.to` does not always keep."""
    if t.device.type != "cpu" or device == "cpu":
        return t
    memory = torch.empty(0, dtype=torch.uint8).set_(t.untyped_storage()).to(device)
    return torch.empty(0, dtype=t.dtype, device=device).set_(
        memory.untyped_storage(), t.storage_offset(), t.shape, t.stride()
    )


@every_backend
@every_case
def test_backends(path: Path, case: Case) -> None:
    expected = case.error(tree_map_only(Tensor, on_meta, case.arguments))
    arguments = tree_map_only(Tensor, lambda t: _on(path.device, t), case.arguments)
    with path.active():
        assert case.error(arguments) == expected


def _not_strided() -> Iterator[Case]:
    for op, arguments in VALID.items():
        for name, t in arguments.items():
            if isinstance(t, Tensor):
                yield Case(op, name, {name: t.to_sparse()})
            if isinstance(t, Tensor) and t.is_floating_point():
                yield Case(op, name, {name: t.to_mkldnn()})


@every_backend
@pytest.mark.parametrize("case", list(_not_strided()), ids=str)
def test_tensors_that_are_not_strided(path: Path, case: Case) -> None:
    if path.device != "cpu" and any(
        isinstance(t, Tensor) and t.is_mkldnn for t in tree_leaves(case.arguments)
    ):
        pytest.skip("only the CPU has mkldnn tensors")
    arguments = tree_map_only(Tensor, lambda t: t.to(path.device), case.arguments)
    with path.active():
        assert "strided" in case.error(arguments)


@every_backend
@pytest.mark.parametrize("op", [op for op in VALID if op != "quantize"])
def test_tensors_on_different_devices(path: Path, op: str) -> None:
    """The first argument's device is the one that the others must be on."""
    arguments = tree_map_only(Tensor, lambda t: t.to(path.device), VALID[op])
    first, *others = (name for name, t in arguments.items() if isinstance(t, Tensor))
    with path.active():
        for name in others:
            moved = arguments | {name: on_meta(arguments[name])}
            with pytest.raises(ValueError, match=rf"^{re.escape(name)} is on meta"):
                getattr(torch.ops.mxfp4, op)(**moved)
        with pytest.raises(ValueError, match=rf"is on {path.device}.*, but .* is on meta"):
            getattr(torch.ops.mxfp4, op)(**arguments | {first: on_meta(arguments[first])})


_sizes = st.sampled_from((0, 1, 3, 16, 24, 32, 48, 64, 96))
_tensor_dtypes = st.sampled_from((torch.uint8, torch.float32, torch.bfloat16, torch.float64))


@st.composite
def _any_tensor(draw: st.DrawFn) -> Tensor:
    shape = draw(st.lists(_sizes, max_size=3))
    t = torch.zeros(*shape, 2, dtype=draw(_tensor_dtypes))[..., 0]
    t = draw(st.sampled_from((t, t.contiguous())))
    return t.mT if t.dim() >= 2 and draw(st.booleans()) else t


@st.composite
def _calls(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """An operator with valid arguments, up to two of which are replaced."""
    op = draw(st.sampled_from(list(VALID)))
    names = [name for name, value in VALID[op].items() if isinstance(value, Tensor)]
    arguments = dict(VALID[op])
    for name in draw(st.lists(st.sampled_from(names), max_size=2)):
        arguments[name] = draw(_any_tensor())
    if op in ("quant_mm", "mm"):
        arguments["shuffled"] = draw(st.booleans())
    if op == "grouped_quant_mm" and arguments["offsets"] is VALID[op]["offsets"]:
        # The shape function cannot see whether they end with the number of rows.
        offsets = torch.zeros_like(arguments["offsets"])
        offsets[-1] = len(arguments["x"]) if arguments["x"].dim() else 0
        arguments["offsets"] = offsets
    return op, arguments


def _outcome(op: str, arguments: dict[str, Any]) -> object:
    """What comes of a call: the error, or all about the results but their values."""
    try:
        results = tree_leaves(getattr(torch.ops.mxfp4, op)(**arguments))
    except ValueError as error:
        return str(error)
    return [(t.dtype, t.shape, t.stride()) for t in results]


@every_backend
@given(call=_calls())
@settings(max_examples=300)
def test_any_arguments(path: Path, call: tuple[str, dict[str, Any]]) -> None:
    """Whatever is passed, a backend and the shape function agree on what comes of it."""
    op, arguments = call
    expected = _outcome(op, tree_map_only(Tensor, on_meta, arguments))
    with path.active():
        assert (
            _outcome(op, tree_map_only(Tensor, lambda t: t.to(path.device), arguments)) == expected
        )
