"""plot: the pictures of posenc_native.plot, to a file or a window."""

from __future__ import annotations

import argparse
import importlib
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .options import add_encoding, add_output, at_least_one, writing
from .parser import CommandError, UsageError, add_command
from .pictures import PICTURES

FORMATS = (".png", ".svg", ".pdf")
_ANIMATION = ".gif"
DPI = 150
MOST_PIXELS = 1 << 28  # a poster of A0 at 300 dpi has half as many; each takes 4 bytes and more
_CLOCKS = (7.6, 5.6)  # inches of an animation, unless --size says so

_DESCRIPTION = """\
Draws a picture of a position encoding into a file, or into a window where
there is a display. Needs matplotlib. The titles of pictures say what
they show, and none needs its colours to be read."""

_EXAMPLES = """\
heatmap --dim 128 -o heatmap.png
similarity --preset llama-3.1 --offsets 1000 -o similarity.svg
frequencies --preset llama-3.1 -o llama.png"""


def add(commands: Any) -> None:
    """Add the command."""
    parser = add_command(
        commands, "plot", None, "draw an encoding: a file, or a window", _DESCRIPTION, _EXAMPLES
    )
    kinds = parser.add_commands("KIND", "pictures")
    for name, kind in PICTURES.items():
        one = add_command(kinds, name, _run, kind.summary, kind.description, kind.examples)
        one.set_defaults(kind=kind)
        one.usage = "%(prog)s [OPTION ...] [-o FILE]"
        add_encoding(one, *kind.encodings)
        group = one.add_argument_group("picture")
        kind.add(group)
        suffixes = FORMATS + (() if kind.animate is None else (_ANIMATION,))
        add_output(group, suffixes, otherwise="without it a window is opened")
        _add_size(group)


def _add_size(parser: Any) -> None:
    parser.add_argument(
        "--size",
        type=_size,
        metavar="WxH",
        help="width and height in inches (default: as the picture needs)",
    )
    parser.add_argument(
        "--dpi",
        type=at_least_one,
        metavar="N",
        help=f"pixels an inch (default: {DPI}; a .gif always has 100)",
    )


def show(
    draw: Callable[[Any], Any],
    out: Path | None,
    size: tuple[float, float] | None = None,
    dpi: int | None = None,
) -> None:
    """Draw a picture into a file, or into a window.

    Args:
        draw: takes the module posenc_native.plot, gives the Axes.
        out: the file; None for a window.
        size: width and height in inches; None: as the picture has it.
        dpi: pixels an inch; None for `DPI`.
    """
    plot, pyplot = _pictures(window=out is None)
    if out is None and not _has_display(pyplot):
        raise CommandError("there is no display to open a window on: -o FILE writes a file")
    figure = np.ravel(draw(plot))[0].figure
    if size is not None:
        figure.set_size_inches(size)
    _check_pixels(figure.get_size_inches(), dpi or DPI)
    if out is None:
        pyplot.show()
        return
    with writing(out) as path, warnings.catch_warnings():
        warnings.filterwarnings("error", "constrained_layout not applied")
        try:
            figure.savefig(path, dpi=dpi or DPI)
        except UserWarning:
            raise UsageError("--size: there is no room for the picture beside its words") from None
        except ValueError as error:  # more pixels than a file can have
            raise UsageError(f"--size, --dpi: {error}") from None
    pyplot.close(figure)
    print(f"wrote {out}")


def _check_pixels(size: Sequence[float], dpi: int, frames: int = 1) -> None:
    """UsageError for more pixels than memory should hold; those of frames take a byte each."""
    width, height = (round(inches * dpi) for inches in size)
    if width * height > MOST_PIXELS:
        expected = f"at most {MOST_PIXELS:,} pixels"
        raise UsageError(f"--size, --dpi: expected {expected}, got {width:,} x {height:,}")
    most = 4 * MOST_PIXELS // (width * height)
    if frames > most:
        raise UsageError(f"--positions: expected at most {most:,} of this size, got {frames:,}")


def _run(options: argparse.Namespace) -> None:
    kind, out = options.kind, options.out
    if out is None or out.suffix.lower() != _ANIMATION:
        show(lambda plot: kind.draw(plot, options), out, options.size, options.dpi)
        return
    if options.dpi is not None:
        raise UsageError("--dpi: a .gif always has 100")
    _check_pixels(options.size or _CLOCKS, 100, options.positions.total)
    plot, _ = _pictures(window=False)
    with writing(out) as path:
        kind.animate(plot, options, path)
    print(f"wrote {out}")


def _pictures(window: bool) -> tuple[Any, Any]:
    """posenc_native.plot and pyplot."""
    try:
        plot = importlib.import_module("posenc_native.plot")
    except (ImportError, ValueError) as error:  # ValueError: matplotlib does not know MPLBACKEND
        raise CommandError(str(error)) from error
    import matplotlib
    from matplotlib import pyplot

    if not window:
        matplotlib.use("agg")  # no display is needed
    return plot, pyplot


def _has_display(pyplot: Any) -> bool:
    """Whether the backend that matplotlib chooses opens windows."""
    try:
        figure = pyplot.figure()
    except ImportError:  # one that was asked for (MPLBACKEND) and cannot run here
        return False
    framework = figure.canvas.required_interactive_framework
    pyplot.close(figure)
    return framework is not None


def _size(text: str) -> tuple[float, float]:
    try:
        width, height = map(float, text.split("x"))
    except ValueError:
        width = height = 0.0
    if not (0 < width < 1000 and 0 < height < 1000):
        raise argparse.ArgumentTypeError(f"expected inches like 8x5, got {text!r}")
    return width, height
