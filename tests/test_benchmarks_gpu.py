"""The benchmark of GPUs: that it measures what it says, not how fast anything is."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from benchmarks import gpu
from benchmarks.gpu_peers import BASELINE, PEERS
from benchmarks.measure import TOLERANCE

ROOT = Path(__file__).parent.parent


def run(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.gpu", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu() -> None:
    found = run()
    assert found.returncode == 1
    assert "no GPU" in found.stdout


def rows() -> list[gpu.GpuRow]:
    return [
        gpu.GpuRow(name, m, 64, 128, time * (1 + m / 64), 2 * time, 0.01)
        for name, time in (("quant_mm", 5.0), (BASELINE, 10.0))
        for m in (1, 64)
    ]


def test_table() -> None:
    console = Console(width=120, record=True)
    console.print(gpu.table(rows(), 64, 128, read=1e9))
    text = console.export_text()
    # 64 * 128 weights of 4.25 bits at 1 GB/s.
    assert "weight read in 4.4" in text
    assert "5.1 (2.00x)" in text
    assert "20.0 (1.00x)" in text


def test_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    from benchmarks.gpu_plot import draw

    report: dict[str, Any] = {"gpu": "a GPU", "driver": "1", "date": "today"}
    report |= {"copy_bytes_per_second": 1e12, "rows": [asdict(row) for row in rows()]}
    path = tmp_path / "plots" / "gpu.png"
    draw(report, path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_names() -> None:
    assert BASELINE in PEERS
    assert [peer.name for peer in PEERS.values()] == list(PEERS)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("activations", list(gpu.Activations), ids=lambda kind: kind.value)
def test_on_a_gpu(tmp_path: Path, activations: gpu.Activations) -> None:
    saved = tmp_path / "gpu.json"
    wanted = "quant_mm,mm_a16,torch-bf16,dot_scaled"
    options = "--shapes", "256x512", "--m", "1,40", "--peers", wanted, "--json", str(saved)
    found = run(*options, "--activations", activations.value)
    assert found.returncode == 0, found.stderr
    report = json.loads(saved.read_text())
    assert report["notes"] == []
    assert report["activations"] == activations.value
    assert {(r["name"], r["m"]) for r in report["rows"]} == {
        (name, m) for name in wanted.split(",") for m in (1, 40)
    }
    assert all(0 < r["graph"] < r["flushed"] < 1e5 for r in report["rows"])
    assert all(r["error"] < TOLERANCE for r in report["rows"])
