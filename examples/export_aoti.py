"""Package a swapped model with AOTInductor and run it in Python and in C++ without Python.

    python examples/export_aoti.py --folder build/aoti

The model is exported once for every batch of 1 to 8192 rows. The C++ program is `run_aoti.cpp`: it
is compiled here, loads the package and two small libraries of mxfp4_ops, and links torch alone.
Results are compared with those of the model itself, bit for bit.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.utils.cpp_extension import include_paths, library_paths

import mxfp4_ops

WIDTH, CLASSES = 256, 10
ROWS = (1, 2, 3, 17, 64, 1000, 8192)


def build_model() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 1024), nn.ReLU(), nn.Linear(1024, CLASSES))
    mxfp4_ops.swap_linear(model, progress=False)
    return model.eval().requires_grad_(False)


def package(model: nn.Module, path: Path) -> None:
    """Export a model for any number of rows up to 8192 and compile it into one file."""
    rows = torch.export.Dim("rows", min=1, max=8192)
    program = torch.export.export(model, (torch.randn(4, WIDTH),), dynamic_shapes=({0: rows},))
    torch._inductor.aoti_compile_and_package(
        program,
        package_path=str(path),
        # For a single model a header compiled ahead takes longer than it saves.
        inductor_configs={"aot_inductor.precompile_headers": False},
    )


def libraries() -> list[Path]:
    """What a process without Python needs of mxfp4_ops: the schemas and the CPU kernels."""
    folder = Path(mxfp4_ops.__file__).parent
    found = [next(folder.glob(f"{name}.*so"), None) for name in ("_schema", "_cpu")]
    if None in found:
        raise SystemExit("mxfp4-ops was installed without its C++ libraries")
    return [path for path in found if path]


def compile_runner(folder: Path) -> Path:
    """Compile run_aoti.cpp against the torch that is installed."""
    program = folder / "run_aoti"
    source = Path(__file__).with_name("run_aoti.cpp")
    command = [os.environ.get("CXX", "g++"), "-std=c++20", str(source), "-o", str(program)]
    command += [f"-I{path}" for path in include_paths()]
    for path in library_paths():
        command += [f"-L{path}", f"-Wl,-rpath,{path}"]
    subprocess.run([*command, "-ltorch", "-ltorch_cpu", "-lc10"], check=True)
    return program


def run_without_python(runner: Path, model: Path, inputs: list[Tensor]) -> tuple[Tensor, ...]:
    """What the C++ program makes of a packaged model and its inputs."""
    given, results = model.with_name("inputs.pt"), model.with_name("results.pt")
    torch.save(inputs, given)
    subprocess.run([runner, model, given, results, *libraries()], check=True)
    outputs: tuple[Tensor, ...] = torch.load(results)
    return outputs


def run(folder: Path) -> bool:
    """Print a table; whether all results agree."""
    model, inputs = build_model(), [torch.randn(m, WIDTH) for m in ROWS]
    expected = [model(x) for x in inputs]

    file = folder / "model.pt2"
    package(model, file)
    loaded = torch._inductor.aoti_load_package(str(file))
    in_python = [loaded(x) for x in inputs]
    in_cpp = run_without_python(compile_runner(folder), file, inputs)

    table = Table("rows", "Python", "C++")
    right = True
    for x, *results in zip(inputs, expected, in_python, in_cpp, strict=True):
        same = [torch.equal(results[0], result) for result in results[1:]]
        table.add_row(str(len(x)), *("same bits" if s else "different" for s in same))
        right &= all(same)
    console = Console()
    console.print(f"{file.name}: {file.stat().st_size / 1024:.0f} KiB")
    console.print(table)
    return right


def main(
    folder: Annotated[Path | None, typer.Option(help="Where to leave package and program.")] = None,
) -> None:
    """Package a swapped model with AOTInductor and run it in Python and in C++ without Python."""
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        raise SystemExit("AOTInductor needs a C++ compiler")
    libraries()  # if they are not there, say so before compiling
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    with nullcontext(folder) if folder else tempfile.TemporaryDirectory() as place:
        if not run(Path(place)):
            raise SystemExit("the results differ")


if __name__ == "__main__":
    typer.run(main)
