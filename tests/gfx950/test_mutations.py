"""That the emulator notices: machine code with one fault in it fails or gives wrong numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache

import pytest
import torch

triton = pytest.importorskip("triton", reason="triton is not installed")

from triton import knobs  # noqa: E402

if knobs.runtime.interpret:
    pytest.skip("with TRITON_INTERPRET, kernels are not compiled", allow_module_level=True)

import oracle  # noqa: E402

from benchmarks.gfx950.compile import Compiled, compile_launch  # noqa: E402
from mxfp4_ops.backends.triton.launch import Launch  # noqa: E402

from . import samples  # noqa: E402
from .emulator import EmulationError, Program, Stats, launch  # noqa: E402

# Of Triton 3.9: that the default of a later release will be another one.
pytestmark = pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")

M, N, K = 32, 64, 512
CODES = samples.random(torch.uint8, M, K // 2), samples.random(torch.uint8, N, K // 2, seed=1)
# Scales that differ from one byte to the next, so that a wrong byte shows.
SCALES = [120 + samples.random(torch.uint8, rows, K // 32, seed=2) % 12 for rows in (M, N)]
OUT = torch.zeros(M, N)


@cache
def compiled() -> Compiled:
    """A product in MXFP4 of two steps, through LDS and with barriers."""
    arguments = {"A": CODES[0], "SA": SCALES[0], "B": CODES[1], "SB": SCALES[1]}
    sizes = {"Z": OUT, "M": M, "N": N, "K": K, "b_row": K // 2, "b_column": 1}
    tile = {"BM": 32, "BN": 64, "BK": 256}
    return compile_launch(
        Launch(samples.scaled_matmul, (1, 1, 1), arguments | sizes, tile), specialised=True
    )


@cache
def executed_lines() -> list[int]:
    """Indices of the lines that are executed, and so may make a difference."""
    program = Program.parse(compiled().amdgcn)
    stats = run(compiled().amdgcn)
    counts = [sum(each) for each in zip(*stats.waves.values(), strict=True)]
    lines = zip(program.kernel.instructions, counts, strict=True)
    return [ins.line - 1 for ins, count in lines if count]


def run(text: str, order: str = "ascending", preload: bool = True) -> Stats:
    OUT.fill_(torch.nan)
    return launch(
        Program.parse(text),
        (1, 1, 1),
        compiled().arguments,
        num_warps=compiled().num_warps,
        lds_bytes=compiled().lds_bytes,
        order=order,
        limit=10_000,
        preload=preload,
    )


def right(text: str, order: str = "ascending", preload: bool = True) -> bool:
    """Whether a text runs to its end and its numbers are right."""
    try:
        run(text, order, preload)
    except EmulationError:
        return False
    a, b = (oracle.decode(q, s) for q, s in zip(CODES, SCALES, strict=True))
    bound = K / 32 * 2.0**-24 * (a.abs() @ b.abs().T)
    return bool(((OUT - a @ b.T).abs() <= bound).all())


Mutation = Callable[[str], str | None]


def mutants(mutate: Mutation) -> Iterator[tuple[str, str]]:
    """The texts in which one executed line is another: that line and the text."""
    lines = compiled().amdgcn.splitlines()
    for i in executed_lines():
        changed = mutate(lines[i])
        if changed is not None:
            yield f"{i}: {lines[i]}", "\n".join((*lines[:i], changed, *lines[i + 1 :]))


def removed(mnemonic: str) -> Mutation:
    return lambda line: "" if re.match(rf"\s+{mnemonic}\b", line) else None


def weakened_wait(line: str) -> str | None:
    """One operation more may be left."""
    if not re.match(r"\s+s_waitcnt", line):
        return None
    return re.sub(r"cnt\((\d+)\)", lambda m: f"cnt({int(m[1]) + 1})", line)


def other_scale(operand: int) -> Mutation:
    """The neighbouring byte of a scale."""

    def mutate(line: str) -> str | None:
        if "v_mfma_scale" not in line:
            return None
        found = re.search(r" op_sel:\[([01]),([01]),", line)
        bits = [int(found[1]), int(found[2])] if found else [0, 0]
        bits[operand] ^= 1
        chosen = f" op_sel:[{bits[0]},{bits[1]},0]"
        plain = re.sub(r" op_sel:\[[^]]*\]", "", line)
        return plain.replace(" op_sel_hi", chosen + " op_sel_hi")

    return mutate


def shifted(prefix: str) -> Mutation:
    """Sixteen bytes beside the right place."""

    def mutate(line: str) -> str | None:
        if not re.match(rf"\s+{prefix}", line) or "offset0:" in line or "offset1:" in line:
            return None
        if "offset:" in line:
            return re.sub(r"offset:(\d+)", lambda m: f"offset:{int(m[1]) + 16}", line)
        return f"{line} offset:16"

    return mutate


MUTATIONS = {
    "wait removed": removed("s_waitcnt"),
    "wait weakened": weakened_wait,
    "scale of A swapped": other_scale(0),
    "scale of B swapped": other_scale(1),
    "load shifted": shifted("buffer_load"),
    "store shifted": shifted("buffer_store"),
    "LDS load shifted": shifted("ds_read"),
    "LDS store shifted": shifted("ds_write"),
}


@pytest.mark.parametrize("order", ["ascending", "descending", "interleaved"])
@pytest.mark.parametrize("preload", [False, True])
def test_the_code_as_it_is(order: str, preload: bool) -> None:
    assert right(compiled().amdgcn, order, preload)


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_every_fault_is_noticed(mutation: str) -> None:
    made = list(mutants(MUTATIONS[mutation]))
    assert made
    some = made[:: -(-len(made) // 16)]  # of loads from LDS there are many alike
    assert [line for line, text in some if right(text)] == []


@pytest.mark.parametrize("order", ["ascending", "descending", "interleaved"])
def test_removed_barriers_are_noticed(order: str) -> None:
    """That before reading what others wrote, and that before overwriting what others read.

    The compiler may place more of them than a tile of this size needs.
    """
    made = list(mutants(removed("s_barrier")))
    noticed = [line for line, text in made if not right(text, order)]
    assert len(noticed) >= 2
    without = re.sub(r"\n\s+s_barrier\b", "", compiled().amdgcn)
    assert not right(without, order)


def test_a_removed_wait_for_the_arguments() -> None:
    """Where they do not arrive in registers, the wait for them is the first of the text."""
    text = compiled().amdgcn
    assert not right(re.sub(r"\n\s+s_waitcnt lgkmcnt\(0\)", "", text, count=1), preload=False)
