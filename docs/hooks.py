"""What mkdocs does to each page: the site holds the pages only, the repository more."""

from __future__ import annotations

import re
from typing import Any

OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./([^)#]+)(?:#[^)]*)?\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Name files of the repository instead of linking to them."""
    return OUTSIDE.sub(_named, markdown)


def _named(link: re.Match[str]) -> str:
    label, path = link.groups()
    return label if label.strip("`") == path else f"{label} (`{path}`)"
