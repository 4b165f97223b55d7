"""`mxfp4-ops inspect`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import oracle
import pytest
import torch
from checkpoint_files import SAMPLES, expected, net, swapped, write
from checkpoint_tools import llama
from common import random_codes
from typer.testing import CliRunner, Result

from mxfp4_ops import checkpoint, cli


def run(*arguments: str | Path) -> Result:
    # Wide enough that no cell of a table is wrapped.
    return CliRunner().invoke(cli.app, ["inspect", *map(str, arguments)], env={"COLUMNS": "200"})


def text(*arguments: str | Path) -> str:
    done = run(*arguments)
    assert done.exit_code == 0, done.output
    return done.stdout


def found(*arguments: str | Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(text(*arguments, "--json"))
    return read


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    checkpoint.save(swapped(scale_mode="ceil"), tmp_path / "ours")
    return tmp_path / "ours"


def test_json_lists_the_tensors(ours: Path) -> None:
    read = found(ours)
    assert (read["format"], read["scale_mode"], read["activation"]) == (
        "mxfp4_ops",
        "ceil",
        "mxfp4",
    )
    opened = checkpoint.open(ours)
    assert [layer["name"] for layer in read["layers"]] == opened.names()
    layers = {layer["name"]: layer for layer in read["layers"]}
    assert layers["blocks.0.up.weight"]["shape"] == [96, 32]
    assert layers["blocks.0.up.weight"]["stored"] == "MXFP4"
    assert layers["blocks.0.up.weight"]["nbytes"] == 96 * 16 + 96
    assert layers["embed.weight"]["stored"] == "F32"


def test_exponents_are_counted(tmp_path: Path) -> None:
    codes, scales = random_codes(6, 64)
    scales[0] = torch.tensor([0, 255])
    folder = write(tmp_path, {"a.weight_packed": codes, "a.weight_scale": scales})
    counts = {None if b == 255 else b - 127: 0 for b in scales.unique().tolist()}
    for byte in scales.flatten().tolist():
        counts[None if byte == 255 else byte - 127] += 1
    # JSON's keys are strings.
    assert found(folder)["exponents"] == {
        "null" if exponent is None else str(exponent): n for exponent, n in counts.items()
    }


@pytest.mark.parametrize("tool", ["quark", "torchao"])
def test_errors_against_the_float_file(tool: str, tmp_path: Path) -> None:
    """As computed in float64 from the weights that the tool itself reads."""
    model = llama()
    floats = write(tmp_path, model.state_dict())
    read = found(SAMPLES / tool / "checkpoint", "--against", floats)
    assert read["unmatched"] == []
    errors = {layer["name"]: layer["relative_error"] for layer in read["layers"]}
    weights = expected(SAMPLES / tool)
    for name, error in errors.items():
        if name not in weights:
            assert error is None
            continue
        exact = model.state_dict()[name].double()
        difference = (weights[name].double() - exact).norm() / exact.norm()
        assert error == pytest.approx(difference.item(), rel=1e-5)


def test_experts_of_transformers_lie_transposed(tmp_path: Path) -> None:
    """Also where both dimensions are the same, so that the shape would not tell."""
    codes, scales = random_codes(2, 64, 64)
    exact = oracle.decode(codes, scales).float().transpose(-1, -2)
    floats = write(tmp_path / "float", {"down": exact})
    tensors = {"down_blocks": codes.reshape(2, 64, 2, 16), "down_scales": scales}
    folder = write(tmp_path / "packed", tensors)
    (layer,) = found(folder, "--against", floats)["layers"]
    assert layer["relative_error"] == 0


def test_weights_without_a_twin(ours: Path, tmp_path: Path) -> None:
    tensors = dict(net().state_dict())
    del tensors["blocks.0.up.weight"]
    tensors["blocks.0.down.weight"] = tensors["blocks.0.down.weight"].T
    floats = write(tmp_path / "float", tensors)
    unmatched = ["blocks.0.up.weight", "blocks.0.down.weight"]
    assert sorted(found(ours, "--against", floats)["unmatched"]) == sorted(unmatched)
    shown = text(ours, "--against", floats)
    for name in unmatched:
        assert f"{floats} does not hold {name}" in shown


def test_text(ours: Path, tmp_path: Path) -> None:
    floats = write(tmp_path / "float", net().state_dict())
    shown = text(ours, "--against", floats)
    assert "format mxfp4_ops, scale_mode ceil, activation mxfp4" in shown
    read = found(ours, "--against", floats)
    lines = {line.split("│")[1].strip(): line for line in shown.splitlines() if "│" in line}
    for layer in read["layers"]:
        assert layer["stored"] in lines[layer["name"]]
        if layer["relative_error"] is not None:
            assert f"{layer['relative_error']:.4f}" in lines[layer["name"]]
    assert "relative error" not in text(ours)


def bars(shown: str) -> list[tuple[str, int, int]]:
    """Label, length and number of each bar of the histogram."""
    rows = []
    for line in shown.partition("2^exponent")[2].splitlines()[1:]:
        label, _, rest = line.partition("  ")
        bar, _, count = rest.strip().rpartition("  ")
        if count:
            rows.append((label.strip(), bar.count("█"), int(count.replace(",", ""))))
    return rows


def test_histogram(tmp_path: Path) -> None:
    codes, scales = random_codes(8, 32)
    scales[:] = torch.tensor([[120], [120], [120], [120], [122], [122], [123], [255]])
    folder = write(tmp_path, {"a.weight_packed": codes, "a.weight_scale": scales.byte()})
    assert bars(text(folder)) == [
        ("-7", 40, 4),
        ("-6", 0, 0),
        ("-5", 20, 2),
        ("-4", 10, 1),
        ("NaN", 10, 1),
    ]


def test_histogram_of_many_exponents(tmp_path: Path) -> None:
    codes = torch.zeros(255, 16, dtype=torch.uint8)
    scales = torch.arange(255, dtype=torch.uint8)[:, None]
    folder = write(tmp_path, {"a.weight_packed": codes, "a.weight_scale": scales})
    rows = bars(text(folder))
    assert len(rows) <= 24
    assert sum(count for _, _, count in rows) == 255
    assert rows[0][0] == "-127 to -117"


def test_a_float_file_has_no_scales(tmp_path: Path) -> None:
    shown = text(write(tmp_path, net().state_dict()))
    assert "format float" in shown
    assert "2^exponent" not in shown


def test_errors_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "cut.safetensors").write_bytes(b"\x00")
    done = run(tmp_path / "cut.safetensors")
    assert done.exit_code == 1
    assert "not a whole safetensors file" in done.stderr
    assert len(done.stderr.splitlines()) == 1
