"""Figures of code that stands alone, as small PNG files, and whether two look the same.

They do on every processor with FMA instructions. Without (SSE4), the errors in some pictures are
other ones.
"""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt
from PIL import Image

# Half the file of full color, and nothing to be seen of it.
COLORS = 128
# A picture is another one where so many pixels differ by so many of 255 shades. A changed digit
# changes a hundred pixels; what another processor rounds otherwise, shades of a few.
PIXELS, SHADES = 40, 64


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """For code that draws: in an empty folder, with matplotlib's defaults and no open figure."""
    mpl.use("Agg")
    plt.close("all")
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as scratch, mpl.rc_context():
        mpl.rcdefaults()
        os.chdir(scratch)
        try:
            yield
        finally:
            os.chdir(before)
            plt.close("all")


def open_figures(dots_per_inch: int) -> list[tuple[Any, bytes]]:
    """The figures that pyplot has open, and a file of each."""
    figures = [plt.figure(number) for number in plt.get_fignums()]
    return [(figure, _png(figure, dots_per_inch)) for figure in figures]


def _png(figure: Any, dots_per_inch: int) -> bytes:
    drawn, small = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, dpi=dots_per_inch, bbox_inches="tight", facecolor="white")
    with Image.open(drawn) as picture:
        picture.convert("RGB").quantize(COLORS).save(small, "png", optimize=True)
    return small.getvalue()


def same(one: bytes, other: bytes) -> bool:
    """Whether a reader sees the same in two PNG files."""
    a, b = (np.asarray(Image.open(io.BytesIO(of)).convert("RGB"), np.int16) for of in (one, other))
    return a.shape == b.shape and int((abs(a - b).max(-1) > SHADES).sum()) <= PIXELS


def width(png: bytes) -> int:
    """In pixels."""
    with Image.open(io.BytesIO(png)) as picture:
        return picture.width
