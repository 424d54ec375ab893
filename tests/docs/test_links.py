"""What GitHub shows: links and pictures of every page lead somewhere there.

`make docs` checks the site's. GitHub has rules of its own for the names of headings, knows no
directives, and shows Markdown files where they are.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from places import ROOT

pytest.importorskip("markdown_it", reason="requirements/docs.txt has it")

from github_pages import lost, tokens

# Lists of names, which are of use on GitHub too.
SHOWN_AS_LISTS = {"reference"}


def pages() -> list[Path]:
    if not (ROOT / ".git").exists():
        return [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return [path for name in listed.stdout.split() if (path := ROOT / name).exists()]


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page):
    assert lost(page) == []


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_nothing_is_shown_as_it_is_written(page):
    """Directives and roles are the site's: GitHub shows their source."""
    fences = [token.info for token in tokens(page) if token.type == "fence"]
    directives = [info.split()[0] for info in fences if info.startswith("{")]
    assert {name.strip("{}") for name in directives} <= SHOWN_AS_LISTS
    assert not re.search(r"^:::|\{[\w:]+\}`", page.read_text(encoding="utf-8"), re.M)


def test_a_lost_link_is_found(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text(
        "# A `pn.x`: q, k & v\n## Twice\n## Twice\n"
        "[a](#a-pnx-q-k--v) [b](#twice-1) [c](page.md#twice)\n\n"
        "[d](#nowhere) [e](none.md) ![f](none.png) [g](page.md#no)\n\n"
        '<img src="none.svg" alt="x">\n\n<!-- <img src="hidden.png"> -->\n',
        encoding="utf-8",
    )
    monkeypatch.setitem(lost.__globals__, "ROOT", tmp_path)
    assert lost(page) == ["#nowhere", "none.md", "none.png", "page.md#no", "none.svg"]
