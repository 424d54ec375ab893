"""What pages show that records and code determine: tables, pictures, docstrings, the rooms.

It stands in the Markdown files, so that everybody sees it who reads them, on GitHub too; the site
is built of the same files. `make pages` writes it, `make docs` and tests compare.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]


def files() -> list[Path]:
    """The pages that may have such parts."""
    named = (ROOT / name for name in ("README.md", "ARCHITECTURE.md"))
    return [*named, *sorted((ROOT / "docs").rglob("*.md"))]
