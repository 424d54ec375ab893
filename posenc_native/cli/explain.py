"""explain: how a model rotates, in words and as a picture."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from posenc_native.models.presets import rotary_presets
from posenc_native.rotary.explain import explain as explanation_of
from posenc_native.rotary.rotary import Rotary

from .encodings import reading_config
from .kinds import output
from .parser import CommandError, UsageError
from .plot import FORMATS, show
from .terminal import printable, show_text

Picture = Annotated[Path, output(*FORMATS, short=None)]

_WIDEST = 92  # characters of a line; longer ones read badly


def explain(path: Path, /, plot: Picture | None = None) -> None:
    """Say in plain words how a model rotates, from its config.json.

    Reads a Hugging Face config.json and says how the model encodes positions by
    rotation, layer by layer, and where engines are known to differ on it. Nothing
    is downloaded, and neither torch nor transformers is needed; --plot needs
    matplotlib.

    Args:
        path: a config.json, or its folder
        plot: also draw what the scaling does to each frequency: .png, .svg, .pdf; a file that is
            there is replaced

    Examples:
        $ path/to/model/config.json
        $ path/to/model --plot frequencies.png
    """
    if str(path) in rotary_presets() and not path.exists():
        raise UsageError(
            f"{path}: a preset, which has no config.json to explain. To draw it: "
            f"`plot frequencies --preset {path}`. To read its facts in Python: "
            f"`rotary_presets()[{str(path)!r}]`"
        )
    with reading_config(path):
        found = explanation_of(path)
    wide = min(_WIDEST, shutil.get_terminal_size().columns) if sys.stdout.isatty() else None
    show_text(printable(str(found) if wide is None else found.text(wide)))
    if plot is None:
        return
    # Layers that rotate alike are one picture, whatever else they differ in.
    rotating: dict[Rotary, list[str]] = {}
    for group in found.layers:
        if group.rotary is not None:
            rotating.setdefault(group.rotary, []).append(group.layer_type or "")
    if not rotating:
        raise CommandError(f"{path}: no layer rotates, there is nothing to draw")
    show(lambda module: _draw_frequencies_by_layer(module, rotating), plot)


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
