"""Pictures that code on a page draws: docs/pictures/.

An image of that folder stands below the code that draws it, which stands alone. Code that readers
need not see is in a comment:

    ```python
    import posenc_native as pn

    pn.plot.heatmap(128)
    ```

    <img src="../pictures/heatmap.png" width="640" alt="What there is to see.">

    <!-- draws
    import matplotlib.pyplot as plt
    ...
    -->
    <img ...>

The figures that pyplot has open at the end of the code are the pictures, an image each.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from benchmarks.figures import readme

from . import ROOT, drawing

FOLDER = ROOT / "docs" / "pictures"
CSS_PIXELS_PER_INCH = 96
DOTS_PER_INCH = 2 * CSS_PIXELS_PER_INCH  # sharp on screens of two dots a pixel

_IMAGE = re.compile(r'<img src="([^"]*\bpictures/)([^"/]+)"(?: width="\d+")? (alt="[^"]+")>\n')
_LINE = r"(?!```|-->).*\n"
_DRAWING = re.compile(
    rf"^(?P<code>```python\n(?P<shown>(?:{_LINE})*)```\n|<!-- draws\n(?P<hidden>(?:{_LINE})*)-->\n)"
    rf"(?P<between>\n*)(?P<images>(?:<img [^>]*\bpictures/[^>]*>\n)+)",
    re.M,
)


def drawn(page: str, where: Path, *, write: bool) -> tuple[str, list[str]]:
    """The page with the widths of its pictures, and the names of those that code draws otherwise.

    With ``write``, these are written.
    """
    old: list[str] = []

    def of_code(match: re.Match[str]) -> str:
        images = _IMAGE.findall(match["images"])
        line = page.count("\n", 0, match.start()) + 1
        pictures = draw(match["shown"] or match["hidden"], f"{where}: line {line}")
        if len(images) != match["images"].count("\n") or len(images) != len(pictures):
            raise ValueError(
                f"{where}: line {line}: expected an image with alt for each of {len(pictures)} "
                f"figures, got {match['images']}"
            )
        lines = []
        for (folder, name, alt), picture in zip(images, pictures, strict=True):
            path = FOLDER / name
            if not (path.exists() and drawing.same(path.read_bytes(), picture)):
                old.append(name)
                if write:
                    path.write_bytes(picture)
            width = round(drawing.width(picture) * CSS_PIXELS_PER_INCH / DOTS_PER_INCH)
            lines.append(f'<img src="{folder}{name}" width="{width}" {alt}>\n')
        return f"{match['code']}{match['between']}{''.join(lines)}"

    return _DRAWING.sub(of_code, page), old


def draw(code: str, source: str) -> list[bytes]:
    """Run the code; the figures that it leaves, as PNG files."""
    with drawing.alone():
        exec(compile(code, source, "exec"), {"__name__": "__main__"})
        return [png for _, png in drawing.open_figures(DOTS_PER_INCH)]


def unused(pages: Iterable[Path]) -> list[Path]:
    """Pictures that no page shows below code."""
    texts = [page.read_text(encoding="utf-8") for page in pages]
    shown = {
        name
        for text in texts
        for match in _DRAWING.finditer(text)
        for _, name, _ in _IMAGE.findall(match["images"])
    }
    return [path for path in sorted(FOLDER.iterdir()) if path.name not in shown]


def of_records(*, write: bool) -> list[str]:
    """Names of README's pictures that show something else than what is recorded."""
    old = readme.old_pictures()
    if old and write:
        readme.draw()
    return old
