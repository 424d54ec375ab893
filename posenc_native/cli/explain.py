"""explain: how a model rotates, in words and as a picture."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posenc_native.models.presets import rotary_presets
from posenc_native.rotary.explain import explain
from posenc_native.rotary.explanation import Explanation
from posenc_native.rotary.rotary import Rotary

from . import terminal
from .options import output_file, reading_config
from .parser import CommandError, UsageError, add_command
from .plot import FORMATS, show

_DESCRIPTION = """\
Reads a Hugging Face config.json and says how the model encodes positions by
rotation, layer by layer, and where engines are known to differ on it. Nothing
is downloaded, and neither torch nor transformers is needed; --plot needs
matplotlib."""

_EXAMPLES = """\
path/to/model/config.json
path/to/model --plot frequencies.png"""

_WIDEST = 92  # characters of a line; longer ones read badly


def add(commands: Any) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "explain",
        _run,
        "say in plain words how a model rotates, from its config.json",
        _DESCRIPTION,
        _EXAMPLES,
    )
    parser.add_argument("path", type=Path, metavar="PATH", help="a config.json, or its folder")
    parser.add_argument(
        "--plot",
        type=output_file(FORMATS),
        metavar="FILE",
        help="also draw what the scaling does to each frequency: "
        f"{', '.join(FORMATS)}; a file that is there is replaced",
    )


def _run(options: argparse.Namespace) -> None:
    if str(options.path) in rotary_presets() and not options.path.exists():
        raise UsageError(
            f"{options.path}: a preset, which has no config.json to explain. To draw it: "
            f"`plot frequencies --preset {options.path}`. To read its facts in Python: "
            f"`rotary_presets()[{str(options.path)!r}]`"
        )
    with reading_config(options.path):
        found = explain(options.path)
    _print(found)
    if options.plot is None:
        return
    # Layers that rotate alike are one picture, whatever else they differ in.
    rotating: dict[Rotary, list[str]] = {}
    for group in found.layers:
        if group.rotary is not None:
            rotating.setdefault(group.rotary, []).append(group.layer_type or "")
    if not rotating:
        raise CommandError(f"{options.path}: no layer rotates, there is nothing to draw")
    show(lambda plot: _draw_frequencies_by_layer(plot, rotating), options.plot)


def _print(found: Explanation) -> None:
    if not sys.stdout.isatty():
        print(terminal.printable(str(found)))
        return
    width = min(_WIDEST, shutil.get_terminal_size().columns)
    text = terminal.printable(found.text(width))
    if not terminal.is_rich(sys.stdout):
        print(text)
        return
    from rich.console import Console

    console = Console()
    before = ""
    for line in text.splitlines():
        heading = bool(line) and not before and not line.startswith(" ")
        console.print(
            line, style="bold" if heading else None, markup=False, highlight=False, soft_wrap=True
        )
        before = line


def _draw_frequencies_by_layer(plot: Any, rotating: Mapping[Rotary, list[str]]) -> Any:
    from matplotlib import pyplot

    count = len(rotating)
    _, axes = pyplot.subplots(
        count, figsize=(8.0, 4.4 * count), layout="constrained", squeeze=False
    )
    for (rotary, layers), ax in zip(rotating.items(), axes.flat, strict=True):
        # Frequencies of its own have no base from which to scale.
        plot.frequencies(rotary, rotary if "inv_freq" in rotary._given else None, ax=ax)
        if count > 1:
            title = f"{' and '.join(layers)}: {ax.get_title(loc='left')}"
            ax.set_title(title, loc="left", fontsize="medium")
    return axes
