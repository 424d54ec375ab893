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

import io
import os
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt
from PIL import Image

from benchmarks.figures import readme

from . import ROOT

FOLDER = ROOT / "docs" / "pictures"
CSS_PIXELS_PER_INCH = 96
DOTS_PER_INCH = 2 * CSS_PIXELS_PER_INCH  # sharp on screens of two dots a pixel
# Half the file of full color, and nothing to be seen of it.
COLORS = 128
# A picture is another one where so many pixels differ by so many of 255 shades. A changed digit
# changes a hundred pixels; what another processor rounds otherwise, shades of a few.
PIXELS, SHADES = 40, 64

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
            if not (path.exists() and same(path.read_bytes(), picture)):
                old.append(name)
                if write:
                    path.write_bytes(picture)
            lines.append(f'<img src="{folder}{name}" width="{_width(picture)}" {alt}>\n')
        return f"{match['code']}{match['between']}{''.join(lines)}"

    return _DRAWING.sub(of_code, page), old


def draw(code: str, source: str) -> list[bytes]:
    """Run the code; the figures that it leaves, as PNG files."""
    mpl.use("Agg")
    plt.close("all")
    before = Path.cwd()
    pictures = []
    with tempfile.TemporaryDirectory() as scratch, mpl.rc_context():
        os.chdir(scratch)
        try:
            exec(compile(code, source, "exec"), {"__name__": "__main__"})
            for figure in map(plt.figure, plt.get_fignums()):
                file = io.BytesIO()
                figure.savefig(file, dpi=DOTS_PER_INCH, bbox_inches="tight", facecolor="white")
                pictures.append(_small(file.getvalue()))
        finally:
            os.chdir(before)
            plt.close("all")
    return pictures


def _small(png: bytes) -> bytes:
    file = io.BytesIO()
    with Image.open(io.BytesIO(png)) as picture:
        picture.convert("RGB").quantize(COLORS).save(file, "png", optimize=True)
    return file.getvalue()


def same(one: bytes, other: bytes) -> bool:
    """Whether a reader sees the same."""
    a, b = (np.asarray(Image.open(io.BytesIO(of)).convert("RGB"), np.int16) for of in (one, other))
    return a.shape == b.shape and int((abs(a - b).max(-1) > SHADES).sum()) <= PIXELS


def _width(png: bytes) -> int:
    with Image.open(io.BytesIO(png)) as picture:
        return round(picture.width * CSS_PIXELS_PER_INCH / DOTS_PER_INCH)


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
