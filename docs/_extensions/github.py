"""Pages that read well on GitHub, and what only the site has of them.

A page of docs/ that is one link to a file of the repository shows that file on the site. Links to
the file lead to the page there. On GitHub a reader follows the links.

    [CONTRIBUTING.md](../CONTRIBUTING.md)

What GitHub would show as it is written, such as a toctree, is in a comment:

    <!-- site
    ```{toctree}
    tour
    ```
    -->
"""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path

from sphinx.application import Sphinx

_LINK_ALONE = re.compile(r"\s*\[[^]]+\]\((\S+\.md)\)\s*")
_SITE_ONLY = re.compile(r"^<!-- site\n(.*?)^-->\n", re.S | re.M)
# To files: neither an address nor a heading of the same page.
_PATH = re.compile(r'(\]\(|\bsrc=")(?![\w+]+:|#)([^)\s#"]+)')


@functools.cache
def _pages(docs: Path) -> dict[Path, Path]:
    """The files that pages show, and these pages."""
    found = {}
    for page in docs.rglob("*.md"):
        if link := _LINK_ALONE.fullmatch(page.read_text(encoding="utf-8")):
            found[(page.parent / link[1]).resolve()] = page
    return found


def _read(app: Sphinx, name: str, source: list[str]) -> None:
    docs = Path(app.srcdir)
    page = origin = Path(app.env.doc2path(name))
    if link := _LINK_ALONE.fullmatch(source[0]):
        origin = (page.parent / link[1]).resolve()
        source[0] = origin.read_text(encoding="utf-8")
        app.env.note_dependency(str(origin))

    def from_the_page(match: re.Match[str]) -> str:
        file = (origin.parent / match[2]).resolve()
        return (
            match[1] + Path(os.path.relpath(_pages(docs).get(file, file), page.parent)).as_posix()
        )

    source[0] = _PATH.sub(from_the_page, _SITE_ONLY.sub(r"\1", source[0]))


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", _read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
