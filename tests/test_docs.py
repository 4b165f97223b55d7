"""The documentation: its examples run, its links lead somewhere, and the site builds."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import mxfp4_ops
from benchmarks.accuracy import Result, columns
from mxfp4_ops.cli import app

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md")]

FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^(?: {4}|\$ )?(mxfp4-ops .*)$", re.MULTILINE)
NEEDS = r"\*Needs ([^*\n]+)\.\*\n\n"
LINK = re.compile(r"\]\(([^)\s]+)\)")

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def _without(package: str, oldest: int = 0) -> str | None:
    try:
        version = metadata.version(package)
    except metadata.PackageNotFoundError:
        return f"{package} is not installed"
    return None if int(version.split(".")[0]) >= oldest else f"{package} is {version}"


NEEDED: dict[str, Callable[[], str | None]] = {
    "a GPU": lambda: None if torch.cuda.is_available() else "there is no GPU",
    "a GPU, and takes minutes": lambda: "it takes minutes",
    "a C++ compiler": lambda: None if shutil.which("c++") else "there is no C++ compiler",
    "Transformers 5 or newer": lambda: _without("transformers", 5),
}
"""What a page or an example may need, as `*Needs ... .*` above it says: None, or why not."""


@dataclass(frozen=True)
class Example:
    """Python code, or lines with commands, and what it says that it needs."""

    line: int
    language: str
    text: str
    needs: str | None

    @property
    def missing(self) -> str | None:
        return None if self.needs is None else NEEDED[self.needs]()


def examples(page: Path) -> Iterator[Example]:
    """Those of a page that can be run, from top to bottom."""
    text = page.read_text(encoding="utf-8")
    whole = re.match(rf"# .*\n\n{NEEDS}", text)
    found: list[tuple[int, str, str]] = []
    for fence in FENCE.finditer(text):
        if fence[1] in ("python", "py"):
            found.append((fence.start(), "python", fence[2]))
        elif fence[1] in ("console", "bash", "sh", "shell"):
            found += [(fence.start() + c.start(), "sh", c[1]) for c in COMMAND.finditer(fence[2])]
    outside = FENCE.sub(lambda fence: re.sub(r"[^\n]", "#", fence[0]), text)
    found += [(c.start(), "sh", c[1]) for c in COMMAND.finditer(outside) if c[0] != c[1]]
    for start, language, code in sorted(found):
        mark = whole or re.search(rf"{NEEDS}\Z", text[:start])
        line = text.count("\n", 0, start) + (language == "python")
        yield Example(line, language, code, mark[1] if mark else None)


def _run(example: Example, page: Path, names: dict[str, object]) -> None:
    if (
        example.language == "python"
    ):  # moved down to its line, so that tracebacks point into the page
        exec(compile("\n" * example.line + example.text, page, "exec"), names)
        return
    result = CliRunner().invoke(app, shlex.split(example.text)[1:])
    assert result.exit_code == 0, f"{page}:{example.line + 1}: {result.output}"


# torch's own packager warns of what torch deprecates.
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
@every_page
def test_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From top to bottom, each with the names and files of those above it."""
    monkeypatch.chdir(tmp_path)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    # One rank, as torchrun would start it.
    one_rank = {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    for name, value in one_rank.items():
        monkeypatch.setenv(name, str(value))
    names: dict[str, object] = {"__name__": "__main__"}
    skipped = []
    for example in examples(page):
        if example.missing is None:
            _run(example, page, names)
        else:
            skipped.append(f"line {example.line + 1}: {example.missing}")
    if skipped:
        pytest.skip("not run: " + "; ".join(skipped))


def test_few_examples_need_more_than_a_cpu() -> None:
    every = [example for page in PAGES for example in examples(page)]
    marked = [
        example for example in every if example.needs not in (None, "Transformers 5 or newer")
    ]
    assert len(marked) < len(every) / 5
    assert {"python", "sh"} == {example.language for example in every}


EXAMPLES = {
    "# T\n\n```python\nx = 1\n```\n": [("python", "x = 1\n", None)],
    "```py\nx\n```\n\n    mxfp4-ops a\n": [("python", "x\n", None), ("sh", "mxfp4-ops a", None)],
    "```console\n$ mxfp4-ops a\nout\n```\n": [("sh", "mxfp4-ops a", None)],
    "# T\n\n*Needs a GPU.*\n\nText.\n\n    mxfp4-ops a\n": [("sh", "mxfp4-ops a", "a GPU")],
    "Text.\n\n*Needs a GPU.*\n\n```python\n1\n```\n\n```python\n2\n```\n": [
        ("python", "1\n", "a GPU"),
        ("python", "2\n", None),
    ],
    "```json\n{}\n```\n\n    make test\n\nmxfp4-ops info says\n": [],
    "```python\nif x:\n    mxfp4-ops\n```\n": [("python", "if x:\n    mxfp4-ops\n", None)],
}


@pytest.mark.parametrize(("text", "expected"), EXAMPLES.items())
def test_what_counts_as_an_example(
    tmp_path: Path, text: str, expected: list[tuple[str, str, str | None]]
) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    assert [(e.language, e.text, e.needs) for e in examples(page)] == expected


def test_readme_has_examples() -> None:
    assert any(example.language == "python" for example in examples(ROOT / "README.md"))


@every_page
def test_links_lead_somewhere(page: Path) -> None:
    targets = [link.partition("#")[0] for link in LINK.findall(page.read_text("utf-8"))]
    local = [target for target in targets if target and "://" not in target]
    missing = [target for target in local if not (page.parent / target).exists()]
    assert not missing


def test_api_page_has_every_public_name() -> None:
    documented = re.findall(r"^::: mxfp4_ops\.(?:\w+\.)*(\w+)$", _page("api.md"), re.MULTILINE)
    not_objects = {"__version__", "ScaleMode", "Activation"}  # a string and types of arguments
    assert set(mxfp4_ops.__all__) - not_objects <= set(documented)


def test_accuracy_page_has_the_figures_that_were_measured() -> None:
    saved = json.loads((ROOT / "benchmarks" / "results" / "accuracy.json").read_text("utf-8"))
    lines = set(re.sub(" +", " ", _page("accuracy.md")).splitlines())
    results = [Result(**result) for result in saved["results"]]
    assert {result.model for result in results} == {"all-MiniLM-L6-v2", "SmolLM2-135M-Instruct"}
    for result in results:
        row = "| " + " | ".join(columns(result).values()) + " |"
        assert re.sub(" +", " ", row) in lines


def _page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def test_site_builds(tmp_path: Path) -> None:
    for package in ("material", "mkdocstrings_handlers.python"):
        try:
            found = importlib.util.find_spec(package)
        except ImportError:
            found = None
        if found is None:
            pytest.skip(f"{package} is not installed (extra `docs`)")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(tmp_path)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    api = (tmp_path / "api.html").read_text(encoding="utf-8")
    for name in ("quant_mm", "Mxfp4Linear.from_linear", "report.report"):
        assert f'id="mxfp4_ops.{name}"' in api
    assert "hooks.py" not in {path.name for path in tmp_path.rglob("*")}
