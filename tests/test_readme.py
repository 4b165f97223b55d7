"""The documentation: its Python examples run, and its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md")]

PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")

every_document = pytest.mark.parametrize(
    "document", DOCUMENTS, ids=lambda d: str(d.relative_to(ROOT))
)


def python_blocks(document: Path) -> list[str]:
    """The blocks, each moved down to its own line so that a traceback points into the document."""
    text = document.read_text(encoding="utf-8")
    return [
        "\n" * text.count("\n", 0, match.start(1)) + match[1]
        for match in PYTHON_BLOCK.finditer(text)
    ]


@every_document
def test_python_examples_run(document: Path) -> None:
    """A document's examples run from top to bottom, each with the names of those above it."""
    names: dict[str, object] = {"__name__": "__main__"}
    for block in python_blocks(document):
        exec(compile(block, document, "exec"), names)


def test_readme_has_python_examples() -> None:
    assert python_blocks(ROOT / "README.md")


@every_document
def test_links_lead_somewhere(document: Path) -> None:
    targets = [link.partition("#")[0] for link in LINK.findall(document.read_text("utf-8"))]
    local = [target for target in targets if target and "://" not in target]
    missing = [target for target in local if not (document.parent / target).exists()]
    assert not missing
