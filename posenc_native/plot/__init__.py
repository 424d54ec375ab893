"""Pictures of position encodings, by matplotlib: ``pip install matplotlib``.

    pn.plot.heatmap(128)                                     # the paper's table, dim 128
    pn.plot.waves(pn.SinusoidalSpec(512, layout="sin_cos"), 4096)
    pn.plot.clock(128)
    pn.plot.similarity(pn.Rotary(128))
    pn.plot.bias(pn.relative.alibi_diagonals(8, 64, 64), q_len=64, k_len=64, name="ALiBi")
    pn.plot.rotation(pn.Rotary(128))
    pn.plot.frequencies(pn.Rotary.preset("llama-3.1"))
    pn.plot.compare("path/to/model", "model.gguf")

An *encoding* is an int, a `SinusoidalSpec`, a `Rotary`, a module that rotates, or a ready table
``[positions, dim]``. An int is the width of the Transformer paper's sinusoidal table. Arrays and
tensors may have any float dtype and device.

Every function returns its Axes, one or an array, for changes of any kind. With ``ax=`` it draws
into these Axes, and changes nothing else of matplotlib's state. Otherwise it makes a new figure
of pyplot, for ``plt.show()`` and notebooks.

Words and background have the colors of the matplotlib style, light or dark. Lines differ in color,
dashes and markers: color-blind readers and gray print tell them apart. In small Axes, such as a
column of a paper 3.3 inches wide, words and markers are smaller, and labels keep apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from posenc_native.core.calls.suggestions.vocabulary import unknown_name

from .biases import bias
from .clocks import clock, clock_animation
from .comparison import compare
from .rotations import rotation
from .scalings import frequencies
from .similarities import similarity, similarity_matrix
from .tables import heatmap, waves

__all__ = [
    "bias",
    "clock",
    "clock_animation",
    "compare",
    "frequencies",
    "heatmap",
    "rotation",
    "similarity",
    "similarity_matrix",
    "waves",
]


if not TYPE_CHECKING:

    def __getattr__(name):
        raise unknown_name(__name__, name, __all__)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
