"""Pictures of position encodings, by matplotlib: ``pip install matplotlib``.

    pn.plot.heatmap(128)                                     # the paper's table, dim 128
    pn.plot.waves(pn.SinusoidalSpec(512, layout="sin_cos"), 4096)
    pn.plot.clock(128, 50)
    pn.plot.similarity(pn.Rotary(128))
    pn.plot.bias(pn.alibi_diagonals(8, 64, 64), q_len=64, k_len=64)
    pn.plot.rotation(q, rope)
    pn.plot.frequencies(pn.Rotary.preset("llama-3.1"))
    pn.plot.compare("path/to/model", "model.gguf")

An *encoding* is an int, the width of the Transformer paper's sinusoidal table; or a
`SinusoidalSpec`, or a `Rotary` or a module that has one, whose titles say their parameters; or a
ready table ``[positions, dim]``. Arrays and tensors of any float dtype and device will do.

Every function returns the Axes that it has drawn into, one or an array of them, so that everything
can be changed afterwards. With ``ax=`` these are the ones given, and nothing else of matplotlib's
state changes. Otherwise they are in a new figure of pyplot, for ``plt.show()`` and notebooks. No
picture needs colour to be read: shades go from dark to light with the number, lines differ in
dashes and markers and are labelled.
"""

from __future__ import annotations

from posenc_native.base.optional import absent, install_command

if absent("matplotlib"):
    raise ImportError(f"posenc_native.plot needs matplotlib: {install_command('matplotlib')}")

from .clocks import clock, clock_animation
from .comparison import compare
from .offsets import bias, similarity, similarity_matrix
from .rotary import frequencies, rotation
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


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
