"""Every public operation with all its array operands: for what must hold of each operand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import posenc_native as pn

# Sizes of the axes, by letter; A position axes, P pairs, W columns, E = q + k - 1 entries.
SIZES = {
    "b": 2, "h": 3, "s": 5, "d": 8, "P": 4, "A": 2, "q": 6, "k": 7, "E": 12, "W": 9, "f": 2,
}  # fmt: skip


@dataclass
class Operation:
    """A call, and its operands: axes by letter (SIZES), and a kind.

    Kinds: "real" (of the dtype under test), "float64", "integer" (zeros: valid wherever one is
    asked for), "out" (real, written to), "inplace" (real, read and written to).
    """

    function: str
    operands: dict[str, tuple[str, str]]
    call: Callable[..., Any]

    def arrays(
        self, dtype: Any = np.float32, sizes: dict[str, int] | None = None
    ) -> dict[str, np.ndarray]:
        """Its operands, with other sizes for some letters."""
        rng = np.random.default_rng(7)
        of = SIZES | (sizes or {})
        of["E"] = max(of["q"] + of["k"] - 1, 0) if of["q"] and of["k"] else of["E"]
        arrays = {}
        for name, (axes, kind) in self.operands.items():
            shape = tuple(of[letter] for letter in axes)
            if kind == "integer":
                arrays[name] = np.zeros(shape, np.int64)
            elif kind == "float64":
                arrays[name] = rng.random(shape)
            else:
                arrays[name] = rng.standard_normal(shape).astype(dtype)
        return arrays

    def letters(self) -> str:
        """The axes that its operands have, each once."""
        return "".join(dict.fromkeys("".join(axes for axes, _ in self.operands.values())))


X = ("bhsd", "real")
OUT = ("bhsd", "out")
PLACES = {"positions": ("bs", "integer"), "inv_freq": ("P", "float64")}
TABLES = {"cos": ("sP", "real"), "sin": ("sP", "real")}
OPERATIONS = {
    "apply_rotary": Operation(
        "apply_rotary", {"x": X, **PLACES, "out": OUT},
        lambda x, positions, inv_freq, out: pn.apply_rotary(x, positions, inv_freq, out=out),
    ),
    "apply_rotary of several axes": Operation(
        "apply_rotary",
        {"x": X, "positions": ("Abs", "integer"), "inv_freq": ("P", "float64"),
         "axis_map": ("P", "integer"), "out": OUT},
        lambda x, positions, inv_freq, axis_map, out: pn.apply_rotary(
            x, positions, inv_freq, axis_map=axis_map, out=out
        ),
    ),
    "apply_rotary of summed axes": Operation(
        "apply_rotary",
        {"x": ("bshd", "real"), "positions": ("Abs", "integer"), "inv_freq": ("AhP", "float64"),
         "out": ("bshd", "out")},
        lambda x, positions, inv_freq, out: pn.apply_rotary(
            x, positions, inv_freq, layout="bshd", pairing="interleaved", out=out
        ),
    ),
    "apply_rotary_qk": Operation(
        "apply_rotary_qk", {"q": X, "k": ("bfsd", "real"), **PLACES},
        lambda q, k, positions, inv_freq: pn.apply_rotary_qk(q, k, positions, inv_freq),
    ),
    "apply_rotary_qk in place": Operation(
        "apply_rotary_qk", {"q": ("bhsd", "inplace"), "k": ("bfsd", "inplace"), **PLACES},
        lambda q, k, positions, inv_freq: pn.apply_rotary_qk(
            q, k, positions, inv_freq, inplace=True
        ),
    ),
    "apply_rotary by tables": Operation(
        "apply_rotary", {"x": X, **TABLES, "out": OUT},
        lambda x, cos, sin, out: pn.apply_rotary(x, None, pn.Tables(cos, sin), out=out),
    ),
    "apply_rotary_qk by tables in place": Operation(
        "apply_rotary_qk", {"q": ("bhsd", "inplace"), "k": ("bfsd", "inplace"), **TABLES},
        lambda q, k, cos, sin: pn.apply_rotary_qk(
            q, k, None, pn.Tables(cos, sin, compute="as_written"), inplace=True
        ),
    ),
    "norm_rotary_qk": Operation(
        "norm_rotary_qk",
        {"q": X, "k": ("bfsd", "real"), **PLACES, "q_weight": ("hd", "float64"),
         "k_weight": ("d", "float64")},
        lambda q, k, positions, inv_freq, q_weight, k_weight: pn.norm_rotary_qk(
            q, k, positions, inv_freq, q_weight=q_weight, k_weight=k_weight
        ),
    ),
    "norm_rotary_qk by tables in place": Operation(
        "norm_rotary_qk",
        {"q": ("bhsd", "inplace"), "k": ("bfsd", "inplace"), **TABLES, "q_weight": ("hd", "real")},
        lambda q, k, cos, sin, q_weight: pn.norm_rotary_qk(
            q,
            k,
            None,
            pn.Tables(cos, sin),
            q_weight=q_weight,
            norm_over="token",
            norm_first=False,
            inplace=True,
        ),
    ),
    "rotary_append": Operation(
        "rotary_append",
        {"q": X, "k": ("bfsd", "real"), "v": ("bfsW", "real"), **PLACES, "keys": ("bfkd", "out"),
         "values": ("bfkW", "out")},
        lambda q, k, v, positions, inv_freq, keys, values: pn.rotary_append(
            q, k, v, positions, inv_freq, keys, values,
            np.arange(k.shape[2]) if keys.shape[2] else np.full(k.shape[2], -1), norm=True,
        ),
    ),
    "selective_rotary_qk": Operation(
        "selective_rotary_qk",
        {"q": ("bshd", "real"), "k": ("bshd", "real"), "steps": ("bshP", "real")},
        lambda q, k, steps: pn.selective_rotary_qk(q, k, steps, layout="bshd"),
    ),
    # Of whole vectors of pairs, at larger sizes: these go in one pass.
    "selective_rotary_qk in place": Operation(
        "selective_rotary_qk",
        {"q": ("bshd", "inplace"), "k": ("bshd", "inplace"), "steps": ("bshP", "real")},
        lambda q, k, steps: pn.selective_rotary_qk(
            q, k, steps[..., :24], layout="bshd", inplace=True
        ),
    ),
    "accumulated_phases": Operation(
        "accumulated_phases", {"steps": ("bsP", "real"), "state": ("bP", "integer")},
        lambda steps, state: pn.selective.accumulated_phases(steps, axis=1, state=state),
    ),
    "rotary_tables": Operation(
        "rotary_tables",
        {"positions": ("As", "integer"), "inv_freq": ("P", "float64"),
         "axis_map": ("P", "integer")},
        lambda positions, inv_freq, axis_map: pn.rotary_tables(
            positions, inv_freq, axis_map=axis_map
        ),
    ),
    "sinusoidal": Operation(
        "sinusoidal", {"positions": ("bs", "integer"), "out": ("bsd", "out")},
        lambda positions, out: pn.sinusoidal(positions, out.shape[-1], out=out),
    ),
    "add_sinusoidal": Operation(
        "add_sinusoidal",
        {"x": ("bsd", "real"), "positions": ("s", "integer"), "out": ("bsd", "out")},
        lambda x, positions, out: pn.add_sinusoidal(x, positions, out=out),
    ),
    "toeplitz_bias": Operation(
        "toeplitz_bias",
        {"diagonals": ("hE", "real"), "q_offset": ("b", "integer"), "out": ("bhqk", "out")},
        lambda diagonals, q_offset, out: pn.toeplitz_bias(
            diagonals, *out.shape[2:], q_offset=q_offset, origin=max(out.shape[2] - 1, 0), out=out
        ),
    ),
    "add_toeplitz_bias": Operation(
        "add_toeplitz_bias",
        {"scores": ("bhqk", "real"), "diagonals": ("hE", "real"), "q_offset": ("b", "integer"),
         "out": ("bhqk", "out")},
        lambda scores, diagonals, q_offset, out: pn.add_toeplitz_bias(
            scores, diagonals, q_offset=q_offset, origin=max(scores.shape[2] - 1, 0), out=out
        ),
    ),
    "diagonal_sums": Operation(
        "diagonal_sums", {"grad": ("bhqk", "real"), "q_offset": ("b", "integer")},
        lambda grad, q_offset: pn.diagonal_sums(
            grad, q_offset=q_offset, origin=max(grad.shape[2] - 1, 0),
            entries=max(grad.shape[2] + grad.shape[3] - 1, 0),
        ),
    ),
    "diagonal_sums of a grid": Operation(
        "diagonal_sums", {"grad": ("Abhqk", "real")},
        lambda grad: pn.diagonal_sums(
            grad, keep=3, q_len=(grad.shape[3], 1), k_len=(1, grad.shape[4])
        ),
    ),
    "relative_gather": Operation(
        "relative_gather",
        {"x": ("bhqW", "real"), "index": ("E", "integer"), "q_offset": ("b", "integer"),
         "content": ("bhqk", "real"), "out": ("bhqk", "out")},
        lambda x, index, q_offset, content, out: pn.relative_gather(
            x, index, out.shape[3], q_offset=q_offset, origin=max(out.shape[2] - 1, 0),
            content=content, out=out,
        ),
    ),
    "relative_gather by a shift": Operation(
        "relative_gather", {"x": ("bhqW", "real"), "out": ("bhqk", "out")},
        lambda x, out: pn.relative_gather(x, None, out.shape[3], out=out),
    ),
    "relative_scatter": Operation(
        "relative_scatter",
        {"grad": ("bhqk", "real"), "index": ("E", "integer"), "q_offset": ("b", "integer"),
         "out": ("bhqW", "out")},
        lambda grad, index, q_offset, out: pn.relative_scatter(
            grad, index, out.shape[3], q_offset=q_offset, origin=max(grad.shape[2] - 1, 0), out=out
        ),
    ),
    "relative_scatter by a shift": Operation(
        "relative_scatter", {"grad": ("bhqk", "real"), "out": ("bhqW", "out")},
        lambda grad, out: pn.relative_scatter(grad, None, out.shape[3], out=out),
    ),
}  # fmt: skip
