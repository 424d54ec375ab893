"""A call of every function that draws."""

from __future__ import annotations

import numpy as np

import posenc_native as pn

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
LEARNED = np.random.default_rng(1).standard_normal((100, 128))
QUERIES = np.random.default_rng(2).standard_normal((48, 128))
LLAMA = pn.Rotary.preset("llama-3.1")

# Inches of a figure in a column of a paper and on a slide, a panel and two.
SIZES = {"paper": ((3.3, 2.6), (3.3, 4.6)), "slide": ((10.0, 5.6), (10.0, 5.6))}

# One call of every kind, with room for ax=.
CALLS = {
    "heatmap": lambda ax=None: pn.plot.heatmap(128, ax=ax),
    "waves": lambda ax=None: pn.plot.waves(128, ax=ax),
    "row": lambda ax=None: pn.plot.waves(128, position=50, ax=ax),
    "clock": lambda ax=None: pn.plot.clock(128, ax=ax),
    "similarity": lambda ax=None: pn.plot.similarity(pn.Rotary(128), ax=ax),
    "similarity_matrix": lambda ax=None: pn.plot.similarity_matrix(pn.Rotary(128), 50, ax=ax),
    "compare": lambda ax=None: pn.plot.compare("llama-3", "llama-3.1", 8192, ax=ax),
    "frequencies": lambda ax=None: pn.plot.frequencies(LLAMA, ax=ax),
    "bias": lambda ax=None: pn.plot.bias(
        pn.relative.alibi_diagonals(8, 64, 64), q_len=64, k_len=64, ax=ax
    ),
    "rotation": lambda ax=None: pn.plot.rotation(LLAMA, x=QUERIES, ax=ax),
}


def title(ax):
    return ax.get_title(loc="left").replace("\n", " ")


def image(ax):
    (one,) = ax.images
    return np.ma.filled(one.get_array(), np.nan)


def arrows(ax):
    """Vectors [pair, token, 2] of the quiver of a rotation."""
    (quiver,) = ax.collections
    vectors = np.where(quiver.Umask, np.nan, [quiver.U, quiver.V])
    return vectors.T.reshape(len(ax.patches), -1, 2)  # a circle for each pair


def curves_and_dots(ax):
    smooth = [
        line for line in ax.lines if line.get_marker() == "None" and len(line.get_xdata()) > 2
    ]
    dots = [line for line in ax.lines if line.get_marker() == "o"]
    return smooth, dots


SCALINGS = {
    "llama3": (LLAMA, None),
    "yarn": (pn.Rotary(128, base=1e6, scaling=YARN), None),
    "yarn, bounds not rounded": (pn.Rotary(64, scaling={**YARN, "truncate": False}), None),
    "step": (pn.Rotary.preset("llama-4-scout"), None),
    "longrope": (pn.Rotary.preset("phi-3.5-mini", seq_len=100_000), None),
    "linear": (pn.Rotary(64, scaling={"rope_type": "linear", "factor": 8.0}), None),
    "ntk": (pn.Rotary(64, scaling={"rope_type": "ntk_alpha", "alpha": 3.0}), None),
    "dynamic": (
        pn.Rotary(64, scaling={
            "rope_type": "dynamic", "factor": 4.0, "max_position_embeddings": 2048, "seq_len": 9000,
        }),
        None,
    ),
    "proportional": (
        pn.Rotary(64, scaling={"rope_type": "proportional", "partial_rotary_factor": 0.25}), None,
    ),
    "axial": (pn.Rotary(64, scaling={"rope_type": "axial", "axes": 2}), None),
    "theta in the scaling": (
        pn.Rotary(64, scaling={"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}), None,
    ),
    "frequencies": (pn.Rotary(4, inv_freq=[0.5, 0.25]), pn.Rotary(4, inv_freq=[1.0, 1.0])),
    "none": (pn.Rotary(64), None),
}  # fmt: skip
