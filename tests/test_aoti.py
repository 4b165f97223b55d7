"""AOTInductor: one package, run in Python and by a C++ program without Python."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import scripts
import torch
from common import Path as BackendPath
from common import assert_same_bits, every_cpu_path, needs_cpu_kernels
from compiling import every_gpu_path, needs_inductor, swapped_block, tokens
from filelock import FileLock
from torch import Tensor, nn
from torch.export import Dim, export

example = scripts.load("export_aoti")

SIZES = (1, 2, 17, 100)

# torch's own packager warns of what torch deprecates.
pytestmark = [
    needs_inductor,
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
]


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the example makes: its package, its program and what it printed."""
    if not list(Path(example.mxfp4_ops.__file__).parent.glob("_schema.*so")):
        pytest.skip("the C++ libraries are not built")
    folder = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        folder = folder.parent  # one for all workers of this run
    folder /= "aoti"
    with FileLock(f"{folder}.lock"):
        if not (folder / "printed").exists():
            done = scripts.run("export_aoti", "--folder", folder)
            assert done.returncode == 0, done.stdout + done.stderr
            (folder / "printed").write_text(done.stdout)
    return folder


@pytest.fixture(scope="module")
def model() -> nn.Module:
    built: nn.Module = example.build_model()
    return built


def rows(m: int, seed: int = 3) -> Tensor:
    g = torch.Generator().manual_seed(seed + m)
    return torch.randn(m, example.WIDTH, generator=g)


def run_without_python(
    folder: Path, inputs: list[Tensor], results: Path, *libraries: Path
) -> subprocess.CompletedProcess[str]:
    given = results.with_name("inputs.pt")
    torch.save(inputs, given)
    command = [folder / "run_aoti", folder / "model.pt2", given, results, *libraries]
    return subprocess.run(
        command,
        env=os.environ | {"LD_DEBUG": "files"},  # the loader names on stderr what it loads
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_example_finds_no_difference(artifacts: Path) -> None:
    printed = (artifacts / "printed").read_text()
    assert printed.count("same bits") == 2 * len(example.ROWS)
    assert "different" not in printed


@every_cpu_path
def test_in_python(artifacts: Path, model: nn.Module, path: BackendPath) -> None:
    """Every instruction set runs the same package."""
    loaded = torch._inductor.aoti_load_package(str(artifacts / "model.pt2"))
    with path.active():
        for m in SIZES:
            assert_same_bits(loaded(rows(m)), model(rows(m)))


def test_the_backend_is_chosen_when_the_package_runs(artifacts: Path, model: nn.Module) -> None:
    loaded = torch._inductor.aoti_load_package(str(artifacts / "model.pt2"))
    with BackendPath("reference", "cpu").active():
        assert_same_bits(loaded(rows(17)), model(rows(17)))


@needs_cpu_kernels
@pytest.mark.skipif(sys.platform != "linux", reason="asks the loader of Linux what it loads")
def test_without_python(artifacts: Path, model: nn.Module, tmp_path: Path) -> None:
    inputs = [rows(m) for m in (*SIZES, 8192)]
    done = run_without_python(artifacts, inputs, tmp_path / "results.pt", *example.libraries())
    assert done.returncode == 0, done.stderr
    for x, y in zip(inputs, torch.load(tmp_path / "results.pt"), strict=True):
        assert_same_bits(y, model(x))

    loaded = [line for line in done.stderr.splitlines() if "calling init" in line]
    for library in ("_schema.", "_cpu.", "libtorch_cpu"):
        assert [line for line in loaded if library in line]
    names = [line.rpartition("/")[2] for line in loaded]
    assert not [name for name in names if "python" in name]


@needs_cpu_kernels
def test_errors_without_python(artifacts: Path, tmp_path: Path) -> None:
    schema, kernels = example.libraries()
    narrow = [torch.randn(2, example.WIDTH // 2)]
    results = tmp_path / "results.pt"
    for inputs, given, message in (
        (narrow, (schema, kernels), "x has K = 128, but weight has K = 256"),
        ([rows(2)], (kernels,), "Could not find schema for mxfp4::quant_mm"),
        ([rows(2)], (schema,), "Could not run 'mxfp4::quant_mm'"),
    ):
        done = run_without_python(artifacts, inputs, results, *given)
        assert done.returncode == 1
        assert message in done.stderr
        assert not results.exists()


WITHOUT_US = """
import sys, torch
from torch.export import export

class Twice(torch.nn.Module):
    def forward(self, x):
        return x * 2

x = torch.ones(4, device="cuda")
file = torch._inductor.aoti_compile_and_package(export(Twice(), (x,)), package_path=sys.argv[1])
torch._inductor.aoti_load_package(file)(x)
"""


@every_gpu_path
def test_on_a_gpu(path: BackendPath, tmp_path: Path) -> None:
    probe = [sys.executable, "-c", WITHOUT_US, str(tmp_path / "probe.pt2")]
    crash = subprocess.run(probe, capture_output=True, check=False).returncode
    if crash < 0:  # a C++ compiler whose libraries do not fit torch's
        pytest.skip(f"loading any package of AOTInductor ends in signal {-crash} here")
    block = swapped_block(path.device)
    shapes = ({1: Dim("m", min=1, max=8192)},)
    program = export(block, (tokens(5, path.device),), dynamic_shapes=shapes)
    file = torch._inductor.aoti_compile_and_package(
        program, package_path=str(tmp_path / "block.pt2")
    )
    loaded = torch._inductor.aoti_load_package(file)
    with path.active():
        for m in (1, 2, 17, 100, 1000):
            _, pairs = loaded(tokens(m, path.device))
            for linear, (into, out) in zip(block.linears(), pairs, strict=True):
                assert_same_bits(out, linear(into))
