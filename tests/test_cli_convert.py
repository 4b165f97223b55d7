"""`mxfp4-ops convert`."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from checkpoint_files import LINEARS, assert_same, net, write
from typer.testing import CliRunner, Result

from mxfp4_ops import checkpoint, cli
from mxfp4_ops.checkpoint.journal import NAME as JOURNAL


def run(*arguments: str | Path) -> Result:
    # Wide enough that no cell of a table is wrapped.
    return CliRunner().invoke(cli.app, ["convert", *map(str, arguments)], env={"COLUMNS": "200"})


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write(tmp_path / "float", net().state_dict())


def test_dry_run_shows_sizes_and_writes_nothing(source: Path, tmp_path: Path) -> None:
    done = run(source, tmp_path / "c", "--include", "blocks", "--skip", "blocks.1.up", "--dry-run")
    assert done.exit_code == 0, done.output
    assert "float -> mxfp4_ops, scale_mode even, activation mxfp4, files: 1" in done.stdout
    lines = {line.split("│")[1].strip(): line for line in done.stdout.splitlines() if "│" in line}
    weight = lines["blocks.0.up.weight"]
    assert "96 x 32" in weight
    assert "12.0 KiB" in weight  # float32
    assert "1.6 KiB" in weight  # half a byte and 1/32 for each element
    assert "MXFP4" in weight
    assert "skip pattern 'blocks.1.up'" in lines["blocks.1.up.weight"]
    read = checkpoint.open(source)
    before = sum(read.entries[name].nbytes for name in read.names())
    assert f"{before / 1024:.1f} KiB" in lines["all"]
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("to", ["ours", "compressed-tensors"])
def test_same_as_the_function(to: str, source: Path, tmp_path: Path) -> None:
    options = ["--include", "blocks", "--to", to, "--scale-mode", "ceil", "--activation", "bf16"]
    done = run(source, tmp_path / "c", *options)
    assert done.exit_code == 0, done.output
    assert f"Written to {tmp_path / 'c'}" in done.stdout
    checkpoint.convert(
        source,
        tmp_path / "same",
        to="mxfp4_ops" if to == "ours" else to,
        include=["blocks"],
        scale_mode="ceil",
        activation="bf16",
        progress=False,
    )
    ours, same = checkpoint.open(tmp_path / "c"), checkpoint.open(tmp_path / "same")
    assert_same(ours, same)
    assert (ours.format, ours.config) == (same.format, same.config)
    assert sorted(ours.quantized()) == sorted(f"{name}.weight" for name in LINEARS)


def test_format_decides(source: Path, tmp_path: Path) -> None:
    assert run(source, tmp_path / "ours", "--include", "blocks").exit_code == 0
    (tmp_path / "ours" / "config.json").unlink()
    done = run(tmp_path / "ours", tmp_path / "c", "--format", "quark", "--to", "compressed-tensors")
    assert done.exit_code == 0, done.output
    assert_same(checkpoint.open(tmp_path / "c"), checkpoint.open(tmp_path / "ours"))


def test_errors_are_one_line(source: Path, tmp_path: Path) -> None:
    for arguments, message in (
        ((source, tmp_path / "c"), "include patterns of the modules"),
        ((tmp_path / "absent", tmp_path / "c"), "there is no file or folder"),
        ((source, source, "--include", "blocks"), "there is a checkpoint in it already"),
    ):
        done = run(*arguments)
        assert done.exit_code == 1
        assert message in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_without_safetensors(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    done = run(source, tmp_path / "c")
    assert done.exit_code == 1
    assert "pip install safetensors" in done.stderr


# The command, in a process that is killed, not asked, when it is about to write its third file.
KILLED = """
import os, signal, sys
from mxfp4_ops import cli
from mxfp4_ops.checkpoint import write

def write_tensors(path, *rest, count=[], really=write.write_tensors):
    count.append(path)
    if len(count) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    really(path, *rest)

write.write_tensors = write_tensors
cli.app(sys.argv[1:])
"""


def test_goes_on_after_it_was_killed(tmp_path: Path) -> None:
    tensors = {f"layers.{i}.weight": torch.randn(512, 1024) for i in range(15)}
    source, into = write(tmp_path / "float", tensors), tmp_path / "c"
    arguments: list[str | Path] = [source, into, "--include", "layers", "--shard-mib", "1"]
    command = [sys.executable, "-c", KILLED, "convert", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL
    assert (into / JOURNAL).is_file()
    finished = sorted(into.glob("*.safetensors"))
    assert len(finished) == 2
    times = [file.stat().st_mtime_ns for file in finished]
    again = run(*arguments)
    assert again.exit_code == 0, again.output
    assert [file.stat().st_mtime_ns for file in finished] == times
    assert len(checkpoint.open(into).files) == 5
    checkpoint.convert(source, tmp_path / "at once", include=["layers"], progress=False)
    assert_same(checkpoint.open(into), checkpoint.open(tmp_path / "at once"))
