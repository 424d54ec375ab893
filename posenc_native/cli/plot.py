"""Draw an encoding into a file or a window.

Draws a picture of a position encoding into a file, or into a window if there
is a display. Needs matplotlib. The titles of pictures say what they show, and
no picture relies on color alone.

Examples:
    $ heatmap --dim 128 -o heatmap.png
    $ similarity --preset llama-3.1 --offsets 1000 -o similarity.svg
    $ frequencies --preset llama-3.1 -o llama.png
"""

from __future__ import annotations

import argparse
import inspect
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from . import pictures
from .kinds import Count, Size, output, writing
from .parser import CommandError, UsageError, Words, add_command, require
from .signatures import add_function, bound, values

FORMATS = (".png", ".svg", ".pdf")
DPI = 150
MOST_PIXELS = 1 << 28  # an A0 poster at 300 dpi has half as many; each takes 4 bytes or more
_WIDTH = 128  # of an encoding that no option describes
_CLOCKS = (7.6, 5.6)  # inches of an animation, without --size


def add(commands: Any) -> None:
    """Add the command."""
    kinds = add_command(commands, "plot", Words.of(__doc__)).add_commands("KIND", "pictures")
    for picture, *also in pictures.PICTURES:
        name = picture.__name__.replace("_", "-")
        usage = f"%(prog)s {_words(picture)}[OPTION ...] [-o FILE]"
        file = (show_or_record, show) if picture.__name__ == "clock" else (show,)
        command = add_function(
            kinds, name, picture, *also, *file, group="picture", width=_WIDTH, usage=usage
        )
        command.set_defaults(run=partial(_run, picture, also))


def _words(picture: Callable[..., Any]) -> str:
    """The positional arguments, as the usage line shows them."""
    parameters = inspect.signature(picture).parameters.values()
    return "".join(
        f"{parameter.name.upper()} "
        for parameter in parameters
        if parameter.kind is parameter.POSITIONAL_ONLY
    )


def _run(
    picture: Callable[..., Any], also: list[Callable[..., Any]], options: argparse.Namespace
) -> None:
    out = getattr(options, "out", None)
    if out is not None and out.suffix.lower() == ".gif":
        (animation,) = also
        _record(animation, options, out)
    else:
        show(bound(picture, options, *also), **values(show, options))


def _record(animation: Any, options: argparse.Namespace, out: Path) -> None:
    settings = {**animation.defaults, **values(animation, options)}
    if hasattr(options, "dpi"):
        raise UsageError("--dpi: a .gif always has 100")
    size = getattr(options, "size", None)
    _check_pixels(size or _CLOCKS, 100, settings["positions"].total)
    _pyplot(window=False)
    from posenc_native.plot import drawing

    with writing(out) as path, drawing.sized(size):
        animation(**settings, path=path)
    print(f"wrote {out}")


def show_or_record(out: Annotated[Path, output(*FORMATS, ".gif")] | None = None) -> None:
    """The option of a picture that has an animation.

    Args:
        out: a .gif is an animation over --positions; without it a window opens
    """


def show(
    draw: Callable[[], Any],
    out: Annotated[Path, output(*FORMATS)] | None = None,
    size: Size | None = None,
    dpi: Count | None = None,
) -> None:
    """Draw a picture into a file, or into a window.

    Args:
        out: without it a window opens
        size: width and height in inches (default: as the picture needs)
        dpi: pixels per inch (default: 150; a .gif always has 100)
    """
    pyplot = _pyplot(window=out is None)
    if out is None and not _has_display(pyplot):
        raise CommandError("there is no display to open a window on: write a file with -o FILE")
    from posenc_native.plot import drawing

    try:
        with drawing.sized(size):  # sizes of words and places of labels depend on it
            figure = np.ravel(draw())[0].figure
    except ImportError as error:  # a package that reading a checkpoint needs
        raise CommandError(str(error)) from error
    _check_pixels(figure.get_size_inches(), dpi or DPI)
    if out is None:
        pyplot.show()
        return
    with writing(out) as path, warnings.catch_warnings():
        warnings.filterwarnings("error", "constrained_layout not applied")
        try:
            figure.savefig(path, dpi=dpi or DPI)
        except UserWarning:
            raise UsageError("--size: too small for the picture and its labels") from None
        except ValueError as error:  # more pixels than the format allows
            raise UsageError(f"--size, --dpi: {error}") from None
    pyplot.close(figure)
    print(f"wrote {out}")


def _check_pixels(size: Sequence[float], dpi: int, frames: int = 1) -> None:
    """UsageError for more pixels than fit in memory; those of frames take a byte each."""
    width, height = (round(inches * dpi) for inches in size)
    if width * height > MOST_PIXELS:
        expected = f"at most {MOST_PIXELS:,} pixels"
        raise UsageError(f"--size, --dpi: expected {expected}, got {width:,} x {height:,}")
    most = 4 * MOST_PIXELS // (width * height)
    if frames > most:
        raise UsageError(
            f"--positions: expected at most {most:,} frames of this size, got {frames:,}"
        )


def _pyplot(window: bool) -> Any:
    """The module pyplot of matplotlib."""
    try:
        matplotlib: Any = require("matplotlib", "a picture")
    except (ImportError, ValueError) as error:  # ValueError: matplotlib does not know MPLBACKEND
        raise CommandError(str(error)) from error
    from matplotlib import pyplot

    if not window:
        matplotlib.use("agg")  # no display is needed
    return pyplot


def _has_display(pyplot: Any) -> bool:
    """Whether the backend that matplotlib chooses opens windows."""
    try:
        figure = pyplot.figure()
    except ImportError:  # the backend in MPLBACKEND cannot run here
        return False
    framework = figure.canvas.required_interactive_framework
    pyplot.close(figure)
    return framework is not None
