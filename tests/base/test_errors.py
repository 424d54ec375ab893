"""Bad calls: each raises ValueError or TypeError, says why, and has written nothing.

A message reads "<function>: <argument>: expected <this>, got <that>"; the table below says which
function and argument. It holds for the native module and for the NumPy reference alike.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from targets import NATIVE, NEEDS_NATIVE

import posenc_native as pn

FREQ = np.array([1.0, 0.1])
NAN, INF = float("nan"), float("inf")
BIG_ENDIAN = np.dtype(np.float32).newbyteorder(">")


def x(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    """[b, h, s, d] = [2, 3, 5, 8], of ones."""
    return np.ones(shape or (2, 3, 5, 8), dtype)


def steps(*shape: int, dtype: Any = np.int64) -> np.ndarray:
    return np.zeros(shape or (5,), dtype)


def expanded(array: np.ndarray) -> np.ndarray:
    """A writable view with stride 0 along the first axis."""
    return np.lib.stride_tricks.as_strided(array, array.shape, (0, *array.strides[1:]))


def read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


def unaligned(array: np.ndarray) -> np.ndarray:
    """The same numbers one byte off."""
    memory = np.zeros(array.nbytes + 1, np.uint8)
    view = memory[1:].view(array.dtype).reshape(array.shape)
    view[...] = array
    return view


@dataclass
class Bad:
    """A call that must fail: a function, its arguments, the error, the argument it is about.

    "a|b" where the implementations come upon it in another order.
    """

    function: str
    call: Callable[[], tuple[Any, ...]]  # fresh arguments; a dict at the end has those by name
    error: type[Exception]
    argument: str

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        arguments = self.call()
        if isinstance(arguments[-1], dict):
            return arguments[:-1], arguments[-1]
        return arguments, {}


def shared_qk() -> tuple[Any, ...]:
    packed = x(2, 5, 5, 8)
    return packed[:, :3], packed[:, 2:], None, FREQ, {"inplace": True}


def shared_qk_by_tables() -> tuple[Any, ...]:
    q, k = shared_qk()[:2]
    return q, k, x(5, 2), x(5, 2), {"inplace": True}


def k_over_sines() -> tuple[Any, ...]:
    memory = np.ones((2, 1, 5, 8), np.float32)
    return x(), memory, x(5, 2), memory[1, 0, :, :2], {"inplace": True}


def shifted_out() -> tuple[np.ndarray, np.ndarray]:
    """x and an out that begins one step further on in the same memory."""
    memory = x(3, 3, 5, 8)
    return memory[:2], memory[1:]


def out_over_positions() -> tuple[Any, ...]:
    memory = np.zeros((2, 3, 5, 8), np.float64)
    return x(dtype=np.float64), memory[0, 0, :, 0], FREQ, {"out": memory}


def out_over_frequencies() -> tuple[Any, ...]:
    memory = np.zeros((2, 3, 5, 8), np.float64)
    return x(dtype=np.float64), None, memory[0, 0, 0, :2], {"out": memory}


def out_over_cosines() -> tuple[Any, ...]:
    memory = np.zeros((2, 3, 5, 8), np.float32)
    return x(), memory[0, 0, :, :2], np.ones((5, 2), np.float32), {"out": memory}


def table_over_positions() -> tuple[Any, ...]:
    memory = np.zeros((5, 8), np.float64)
    return memory[:, 0], 8, {"out": memory}


def out_over_halves_of_positions() -> tuple[Any, ...]:
    """Each position is a float32 of the result and one beside it."""
    memory = np.zeros(80, np.float32)
    return (
        memory[:40].view(np.int64)[:20].reshape(5, 4)[:, 3],
        8,
        {"out": memory[1::2].reshape(5, 8)},
    )


def sum_over_positions() -> tuple[Any, ...]:
    memory = np.zeros((2, 5, 8), np.float64)
    return x(2, 5, 8, dtype=np.float64), memory[0, :, 0], {"out": memory}


V, T = ValueError, TypeError

BAD: dict[str, Bad] = {
    # --- sinusoidal: sizes
    "negative count": Bad("sinusoidal", lambda: (-3, 8), V, "positions"),
    "odd dim": Bad("sinusoidal", lambda: (3, 7), V, "dim"),
    "negative dim": Bad("sinusoidal", lambda: (3, -2), V, "dim"),
    "dim of float": Bad("sinusoidal", lambda: (3, 8.0), T, "dim"),
    "dim of bool": Bad("sinusoidal", lambda: (3, True), T, "dim"),
    "dim of None": Bad("sinusoidal", lambda: (3, None), T, "dim"),
    "count beyond memory": Bad("sinusoidal", lambda: (2**62, 8), V, "positions|result"),
    "count beyond int64": Bad("sinusoidal", lambda: (2**80, 8), V, "positions|result"),
    "product overflows": Bad("sinusoidal", lambda: (2**46, 2**16), V, "positions|result"),
    "product of array overflows": Bad(
        "sinusoidal", lambda: (np.broadcast_to(np.int64(1), (2**52,)), 2**10), V, "positions|result"
    ),
    "product of axes overflows": Bad(
        "sinusoidal",
        lambda: (np.broadcast_to(np.int8(1), (2**20, 2**20, 2**19)), 64),
        V,
        "positions|result",
    ),
    # --- sinusoidal: numbers and names
    "base zero": Bad("sinusoidal", lambda: (3, 8, {"base": 0}), V, "base"),
    "base negative": Bad("sinusoidal", lambda: (3, 8, {"base": -1.0}), V, "base"),
    "base nan": Bad("sinusoidal", lambda: (3, 8, {"base": NAN}), V, "base"),
    "base inf": Bad("sinusoidal", lambda: (3, 8, {"base": INF}), V, "base"),
    "base text": Bad("sinusoidal", lambda: (3, 8, {"base": "1e4"}), T, "base"),
    "base complex": Bad("sinusoidal", lambda: (3, 8, {"base": 1j}), T, "base"),
    "shift dim / 2": Bad("sinusoidal", lambda: (3, 8, {"shift": 4}), V, "shift"),
    "shift above": Bad("sinusoidal", lambda: (3, 8, {"shift": 100.0}), V, "shift"),
    "shift nan": Bad("sinusoidal", lambda: (3, 8, {"shift": NAN}), V, "shift"),
    "shift -inf": Bad("sinusoidal", lambda: (3, 8, {"shift": -INF}), V, "shift"),
    "shift None": Bad("sinusoidal", lambda: (3, 8, {"shift": None}), T, "shift"),
    "scale nan": Bad("sinusoidal", lambda: (3, 8, {"scale": NAN}), V, "scale"),
    "scale inf": Bad("sinusoidal", lambda: (3, 8, {"scale": INF}), V, "scale"),
    "scale text": Bad("sinusoidal", lambda: (3, 8, {"scale": "2"}), T, "scale"),
    "frequencies too large": Bad(
        "sinusoidal", lambda: (3, 8, {"scale": 1e30}), V, "scale|base, shift, scale"
    ),
    "table layout": Bad("sinusoidal", lambda: (3, 8, {"layout": "sincos"}), V, "layout"),
    "table layout of int": Bad("sinusoidal", lambda: (3, 8, {"layout": 1}), T, "layout"),
    "table layout of None": Bad("sinusoidal", lambda: (3, 8, {"layout": None}), T, "layout"),
    "table of int32": Bad("sinusoidal", lambda: (3, 8, {"dtype": np.int32}), T, "dtype"),
    "table of complex": Bad("sinusoidal", lambda: (3, 8, {"dtype": "c8"}), T, "dtype"),
    "table of longdouble": Bad("sinusoidal", lambda: (3, 8, {"dtype": np.longdouble}), T, "dtype"),
    "table big-endian": Bad("sinusoidal", lambda: (3, 8, {"dtype": BIG_ENDIAN}), T, "dtype"),
    "table of no dtype": Bad("sinusoidal", lambda: (3, 8, {"dtype": "floaty"}), T, "dtype"),
    "table of float8": Bad(
        "sinusoidal", lambda: (3, 8, {"dtype": ml_dtypes.float8_e4m3fn}), T, "dtype"
    ),
    # --- sinusoidal: positions
    "bool count": Bad("sinusoidal", lambda: (True, 8), T, "positions"),
    "no positions": Bad("sinusoidal", lambda: (None, 8), T, "positions"),
    "text positions": Bad("sinusoidal", lambda: ("abc", 8), T, "positions"),
    "ragged positions": Bad("sinusoidal", lambda: ([[1, 2], [3]], 8), T, "positions"),
    **{
        f"positions of {dtype}": Bad(
            "sinusoidal", lambda dtype=dtype: (np.ones(3, dtype), 8), T, "positions"
        )
        for dtype in [
            *("bool", "complex64", "complex128", "float16", "bfloat16", "longdouble", "object"),
            *(">i8", ">f4", "U3", "m8[s]", "int4", "float8_e5m2"),
        ]
    },
    "nan position": Bad("sinusoidal", lambda: (np.array([1, NAN]), 8), V, "positions"),
    "inf position": Bad("sinusoidal", lambda: (np.array([1, -INF], np.float32), 8), V, "positions"),
    "position 2^63": Bad("sinusoidal", lambda: ([0, 2.0**63], 8), V, "positions"),
    "position -2^63 as a float": Bad("sinusoidal", lambda: ([0, -(2.0**63)], 8), V, "positions"),
    # --- sinusoidal: out
    "table out of other shape": Bad("sinusoidal", lambda: (3, 8, {"out": x(3, 6)}), V, "out"),
    "table out transposed": Bad("sinusoidal", lambda: (3, 8, {"out": x(8, 3)}), V, "out"),
    "table out with an axis more": Bad("sinusoidal", lambda: (3, 8, {"out": x(1, 3, 8)}), V, "out"),
    "table out of int64": Bad(
        "sinusoidal", lambda: (3, 8, {"out": x(3, 8, dtype=int)}), T, "out|dtype"
    ),
    "table out of other dtype": Bad(
        "sinusoidal", lambda: (3, 8, {"out": x(3, 8), "dtype": np.float64}), T, "out"
    ),
    "table out big-endian": Bad(
        "sinusoidal", lambda: (3, 8, {"out": x(3, 8, dtype=BIG_ENDIAN)}), T, "out|dtype"
    ),
    "table out read-only": Bad("sinusoidal", lambda: (3, 8, {"out": read_only(x(3, 8))}), V, "out"),
    "table out of stride 0": Bad(
        "sinusoidal", lambda: (3, 8, {"out": expanded(x(3, 8))}), V, "out"
    ),
    "table out is a list": Bad("sinusoidal", lambda: (3, 8, {"out": [1.0]}), T, "out"),
    "table out over positions": Bad("sinusoidal", table_over_positions, V, "out"),
    "table out over halves of positions": Bad("sinusoidal", out_over_halves_of_positions, V, "out"),
    "table out of touching windows": Bad(
        "sinusoidal",
        lambda: (5, 8, {"out": np.lib.stride_tricks.as_strided(x(36), (5, 8), (28, 4))}),
        V,
        "out",
    ),
    # --- add_sinusoidal
    "sum with a list": Bad("add_sinusoidal", lambda: ([[1.0, 2.0]],), T, "x"),
    "sum with None": Bad("add_sinusoidal", lambda: (None,), T, "x"),
    "sum of one axis": Bad("add_sinusoidal", lambda: (x(8),), V, "x"),
    "sum of odd dim": Bad("add_sinusoidal", lambda: (x(5, 7),), V, "dim"),
    "sum of int32": Bad("add_sinusoidal", lambda: (x(5, 8, dtype=np.int32),), T, "x"),
    "sum of complex": Bad("add_sinusoidal", lambda: (x(5, 8, dtype=np.complex64),), T, "x"),
    "sum of longdouble": Bad("add_sinusoidal", lambda: (x(5, 8, dtype=np.longdouble),), T, "x"),
    "sum big-endian": Bad("add_sinusoidal", lambda: (x(5, 8, dtype=BIG_ENDIAN),), T, "x"),
    "sum at too many positions": Bad(
        "add_sinusoidal", lambda: (x(2, 5, 8), steps(6)), V, "positions"
    ),
    "sum at [1, s]": Bad("add_sinusoidal", lambda: (x(2, 5, 8), steps(1, 5)), V, "positions"),
    "sum at a scalar": Bad("add_sinusoidal", lambda: (x(2, 5, 8), 5), V, "positions"),
    "sum at [s, b]": Bad("add_sinusoidal", lambda: (x(2, 5, 8), steps(5, 2)), V, "positions"),
    "sum at bool": Bad("add_sinusoidal", lambda: (x(5, 8), steps(dtype=bool)), T, "positions"),
    "sum at float16": Bad("add_sinusoidal", lambda: (x(5, 8), steps(dtype="f2")), T, "positions"),
    "sum at nan": Bad("add_sinusoidal", lambda: (x(5, 8), np.full(5, NAN)), V, "positions"),
    "sum layout": Bad("add_sinusoidal", lambda: (x(5, 8), {"layout": "bhsd"}), V, "layout"),
    "sum base": Bad("add_sinusoidal", lambda: (x(5, 8), {"base": -2}), V, "base"),
    "sum shift": Bad("add_sinusoidal", lambda: (x(5, 8), {"shift": 4.0}), V, "shift"),
    "x_scale nan": Bad("add_sinusoidal", lambda: (x(5, 8), {"x_scale": NAN}), V, "x_scale"),
    "x_scale text": Bad("add_sinusoidal", lambda: (x(5, 8), {"x_scale": "1"}), T, "x_scale"),
    "alpha inf": Bad("add_sinusoidal", lambda: (x(5, 8), {"alpha": INF}), V, "alpha"),
    "alpha complex": Bad("add_sinusoidal", lambda: (x(5, 8), {"alpha": 1j}), T, "alpha"),
    "sum out of other shape": Bad("add_sinusoidal", lambda: (x(5, 8), {"out": x(4, 8)}), V, "out"),
    "sum out of other dtype": Bad(
        "add_sinusoidal", lambda: (x(5, 8), {"out": x(5, 8, dtype=np.float64)}), T, "out"
    ),
    "sum out read-only": Bad(
        "add_sinusoidal", lambda: (x(5, 8), {"out": read_only(x(5, 8))}), V, "out"
    ),
    "sum out of stride 0": Bad(
        "add_sinusoidal", lambda: (x(5, 8), {"out": expanded(x(5, 8))}), V, "out"
    ),
    "sum out over x": Bad(
        "add_sinusoidal", lambda: ((pair := shifted_out())[0], {"out": pair[1]}), V, "out"
    ),
    "sum out over x backwards": Bad(
        "add_sinusoidal", lambda: ((a := x(5, 8)), {"out": a[::-1]}), V, "out"
    ),
    "sum out over positions": Bad("add_sinusoidal", sum_over_positions, V, "out"),
    # --- rotary_tables
    "tables of negative count": Bad("rotary_tables", lambda: (-1, FREQ), V, "positions"),
    "tables at bool": Bad("rotary_tables", lambda: (steps(dtype=bool), FREQ), T, "positions"),
    "tables at complex": Bad("rotary_tables", lambda: (steps(dtype="c16"), FREQ), T, "positions"),
    "tables at float16": Bad("rotary_tables", lambda: (steps(dtype="f2"), FREQ), T, "positions"),
    "tables at None": Bad("rotary_tables", lambda: (None, FREQ), T, "positions"),
    "tables at nan": Bad("rotary_tables", lambda: ([NAN], FREQ), V, "positions"),
    "tables beyond memory": Bad(
        "rotary_tables", lambda: (2**62, np.ones(8)), V, "positions|result"
    ),
    "tables of int frequencies": Bad("rotary_tables", lambda: (3, np.array([1, 2])), T, "inv_freq"),
    "tables of half frequencies": Bad(
        "rotary_tables", lambda: (3, np.ones(2, np.float16)), T, "inv_freq"
    ),
    "tables of no frequencies": Bad("rotary_tables", lambda: (3, None), T, "inv_freq"),
    "tables of [1, P]": Bad("rotary_tables", lambda: (3, np.ones((1, 2))), V, "inv_freq"),
    "tables of a scalar": Bad("rotary_tables", lambda: (3, 0.5), V, "inv_freq"),
    "tables of nan": Bad("rotary_tables", lambda: (3, np.array([1, NAN])), V, "inv_freq"),
    "tables of 2^63": Bad("rotary_tables", lambda: (3, np.array([2.0**63])), V, "inv_freq"),
    "tables scale nan": Bad("rotary_tables", lambda: (3, FREQ, {"scale": NAN}), V, "scale"),
    "tables scale text": Bad("rotary_tables", lambda: (3, FREQ, {"scale": "1"}), T, "scale"),
    "tables of uint8": Bad("rotary_tables", lambda: (3, FREQ, {"dtype": "u1"}), T, "dtype"),
    "tables axis_map of a count": Bad(
        "rotary_tables", lambda: (3, FREQ, {"axis_map": [0, 0]}), V, "positions"
    ),
    "tables axis_map of a scalar": Bad(
        "rotary_tables", lambda: (np.array(3), FREQ, {"axis_map": [0, 0]}), V, "positions"
    ),
    "tables axis_map too large": Bad(
        "rotary_tables", lambda: (steps(2, 5), FREQ, {"axis_map": [0, 2]}), V, "axis_map"
    ),
    "tables axis_map too long": Bad(
        "rotary_tables", lambda: (steps(2, 5), FREQ, {"axis_map": [0, 1, 1]}), V, "axis_map"
    ),
    # --- apply_rotary: x, layout, pairing, slice
    "rotate a list": Bad("apply_rotary", lambda: ([1.0], None, FREQ), T, "x"),
    "rotate None": Bad("apply_rotary", lambda: (None, None, FREQ), T, "x"),
    "rotate int32": Bad("apply_rotary", lambda: (x(dtype=np.int32), None, FREQ), T, "x"),
    "rotate complex": Bad("apply_rotary", lambda: (x(dtype=np.complex64), None, FREQ), T, "x"),
    "rotate longdouble": Bad("apply_rotary", lambda: (x(dtype=np.longdouble), None, FREQ), T, "x"),
    "rotate big-endian": Bad("apply_rotary", lambda: (x(dtype=BIG_ENDIAN), None, FREQ), T, "x"),
    "rotate float8": Bad(
        "apply_rotary", lambda: (x(dtype=ml_dtypes.float8_e5m2), None, FREQ), T, "x"
    ),
    "rank below the layout's": Bad("apply_rotary", lambda: (x(3, 5, 8), None, FREQ), V, "x"),
    "rank above the layout's": Bad("apply_rotary", lambda: (x(1, 2, 3, 5, 8), None, FREQ), V, "x"),
    **{
        f"layout {layout!r}": Bad(
            "apply_rotary",
            lambda layout=layout: (x(), None, FREQ, {"layout": layout}),
            V,
            "layout",
        )
        for layout in [
            "bhds",
            "bhsx",
            "bhss",
            "bsdd",
            "bhd",
            "BHSD",
            "bhtd",
            "sthd",
            "bhs d",
            "",
            "dbhs",
        ]
    },
    "layout of a tuple": Bad(
        "apply_rotary", lambda: (x(), None, FREQ, {"layout": ("b", "h", "s", "d")}), T, "layout"
    ),
    **{
        f"pairing {pairing!r}": Bad(
            "apply_rotary",
            lambda pairing=pairing: (x(), None, FREQ, {"pairing": pairing}),
            V,
            "pairing",
        )
        for pairing in ["neox", "", "4", " 4", "Half", 0, -2, 3, 6, 8, 10**30]
    },
    **{
        f"pairing {pairing!r}": Bad(
            "apply_rotary",
            lambda pairing=pairing: (x(), None, FREQ, {"pairing": pairing}),
            T,
            "pairing",
        )
        for pairing in [None, 4.0, True, (2,)]
    },
    "odd head": Bad(
        "apply_rotary", lambda: (x(5, 3), None, FREQ, {"layout": "sd"}), V, "rotary_start"
    ),
    "slice past the head": Bad(
        "apply_rotary", lambda: (x(), None, FREQ, {"rotary_start": 5}), V, "rotary_start"
    ),
    "slice far past the head": Bad(
        "apply_rotary", lambda: (x(), None, FREQ, {"rotary_start": 2**63 - 1}), V, "rotary_start"
    ),
    "slice beyond int64": Bad(
        "apply_rotary", lambda: (x(), None, FREQ, {"rotary_start": 2**64}), V, "rotary_start"
    ),
    "negative slice": Bad(
        "apply_rotary", lambda: (x(), None, FREQ, {"rotary_start": -2}), V, "rotary_start"
    ),
    "slice of float": Bad(
        "apply_rotary", lambda: (x(), None, FREQ, {"rotary_start": 2.0}), T, "rotary_start"
    ),
    "slice of bool": Bad(
        "apply_rotary", lambda: (x(), None, FREQ, {"rotary_start": True}), T, "rotary_start"
    ),
    "scale of rotation nan": Bad(
        "apply_rotary", lambda: (x(), None, FREQ, {"scale": NAN}), V, "scale"
    ),
    "scale of rotation inf": Bad(
        "apply_rotary", lambda: (x(), None, FREQ, {"scale": INF}), V, "scale"
    ),
    "scale of rotation None": Bad(
        "apply_rotary", lambda: (x(), None, FREQ, {"scale": None}), T, "scale"
    ),
    # --- apply_rotary: positions, frequencies, axes
    "[3, s] without axis_map": Bad(
        "apply_rotary", lambda: (x(), steps(3, 5), FREQ), V, "positions"
    ),
    "[1, s] of a batch": Bad("apply_rotary", lambda: (x(), steps(1, 5), FREQ), V, "positions"),
    "[s, b]": Bad("apply_rotary", lambda: (x(), steps(5, 2), FREQ), V, "positions"),
    "[b, s] without a batch": Bad(
        "apply_rotary", lambda: (x(3, 5, 8), steps(3, 5), FREQ, {"layout": "hsd"}), V, "positions"
    ),
    "[1, t] of packed tokens": Bad(
        "apply_rotary", lambda: (x(5, 3, 8), steps(1, 5), FREQ, {"layout": "thd"}), V, "positions"
    ),
    "too few positions": Bad("apply_rotary", lambda: (x(), steps(4), FREQ), V, "positions"),
    "one position for all": Bad("apply_rotary", lambda: (x(), steps(1), FREQ), V, "positions"),
    "scalar position": Bad("apply_rotary", lambda: (x(), np.array(5), FREQ), V, "positions"),
    "wrong count": Bad("apply_rotary", lambda: (x(), 6, FREQ), V, "positions"),
    "huge count": Bad("apply_rotary", lambda: (x(), 2**62, FREQ), V, "positions"),
    "negative count of tokens": Bad("apply_rotary", lambda: (x(), -5, FREQ), V, "positions"),
    "rotate at bool": Bad("apply_rotary", lambda: (x(), True, FREQ), T, "positions"),
    "rotate at text": Bad("apply_rotary", lambda: (x(), "12345", FREQ), T, "positions"),
    **{
        f"rotate at {dtype}": Bad(
            "apply_rotary",
            lambda dtype=dtype: (x(dtype="f2"), steps(dtype=dtype), FREQ),
            T,
            "positions",
        )
        for dtype in ["bool", "complex64", "float16", "bfloat16", "longdouble", ">i4", "object"]
    },
    "rotate at nan": Bad("apply_rotary", lambda: (x(), [0, 1, 2, 3, NAN], FREQ), V, "positions"),
    "rotate at inf": Bad("apply_rotary", lambda: (x(), np.full((2, 5), INF), FREQ), V, "positions"),
    "int frequencies": Bad("apply_rotary", lambda: (x(), None, [1, 2]), T, "inv_freq"),
    "half frequencies": Bad("apply_rotary", lambda: (x(), None, FREQ.astype("f2")), T, "inv_freq"),
    "complex frequencies": Bad("apply_rotary", lambda: (x(), None, FREQ * 1j), T, "inv_freq"),
    "no frequencies": Bad("apply_rotary", lambda: (x(), None, None), T, "inv_freq"),
    "[1, P] frequencies": Bad("rotary_tables", lambda: (5, FREQ[None]), V, "inv_freq"),
    "[1, 1, 1, P] frequencies": Bad(
        "apply_rotary", lambda: (x(), None, FREQ[None, None, None]), V, "inv_freq"
    ),
    "[2, P] frequencies for 3 heads": Bad(
        "apply_rotary", lambda: (x(), None, np.stack([FREQ] * 2)), V, "inv_freq"
    ),
    "[A, 1, P] frequencies without positions": Bad(
        "apply_rotary", lambda: (x(), None, FREQ[None, None]), V, "positions"
    ),
    "[0, 1, P] frequencies": Bad(
        "apply_rotary", lambda: (x(), np.ones((0, 5)), FREQ[None, None][:0]), V, "inv_freq"
    ),
    "[A, 1, P] frequencies of other axes": Bad(
        "apply_rotary", lambda: (x(), np.ones((3, 5)), FREQ[None, None]), V, "positions"
    ),
    "[A, 1, P] frequencies and an axis_map": Bad(
        "apply_rotary",
        lambda: (x(), np.ones((1, 5)), FREQ[None, None], {"axis_map": np.zeros(4, int)}),
        V,
        "axis_map",
    ),
    "nan frequency": Bad("apply_rotary", lambda: (x(), None, [1, NAN]), V, "inv_freq"),
    "inf frequency": Bad("apply_rotary", lambda: (x(), None, [1, INF]), V, "inv_freq"),
    "frequency -2^63": Bad("apply_rotary", lambda: (x(), None, [-(2.0**63)]), V, "inv_freq"),
    "axis_map without positions": Bad(
        "apply_rotary", lambda: (x(), None, FREQ, {"axis_map": [0, 0]}), V, "positions"
    ),
    "axis_map with [s]": Bad(
        "apply_rotary", lambda: (x(), steps(5), FREQ, {"axis_map": [0, 0]}), V, "positions"
    ),
    "axis_map with [A, b, s] of other b": Bad(
        "apply_rotary", lambda: (x(), steps(3, 1, 5), FREQ, {"axis_map": [0, 0]}), V, "positions"
    ),
    "axis_map with [b, s, A]": Bad(
        "apply_rotary", lambda: (x(), steps(2, 5, 3), FREQ, {"axis_map": [0, 0]}), V, "positions"
    ),
    "axis_map too large": Bad(
        "apply_rotary", lambda: (x(), steps(3, 5), FREQ, {"axis_map": [0, 3]}), V, "axis_map"
    ),
    "axis_map negative": Bad(
        "apply_rotary", lambda: (x(), steps(3, 5), FREQ, {"axis_map": [0, -1]}), V, "axis_map"
    ),
    "axis_map beyond int64": Bad(
        "apply_rotary",
        lambda: (x(), steps(3, 5), FREQ, {"axis_map": np.array([0, 2**63], np.uint64)}),
        V,
        "axis_map",
    ),
    "axis_map too short": Bad(
        "apply_rotary", lambda: (x(), steps(3, 5), FREQ, {"axis_map": [0]}), V, "axis_map"
    ),
    "axis_map of two axes": Bad(
        "apply_rotary", lambda: (x(), steps(3, 5), FREQ, {"axis_map": [[0, 1]]}), V, "axis_map"
    ),
    "axis_map of floats": Bad(
        "apply_rotary", lambda: (x(), steps(3, 5), FREQ, {"axis_map": [0.0, 1.0]}), T, "axis_map"
    ),
    "axis_map of bools": Bad(
        "apply_rotary", lambda: (x(), steps(3, 5), FREQ, {"axis_map": [False, True]}), T, "axis_map"
    ),
    # --- apply_rotary: out
    "out of other shape": Bad(
        "apply_rotary", lambda: (x(), None, FREQ, {"out": x(2, 3, 5, 6)}), V, "out"
    ),
    "out of other rank": Bad(
        "apply_rotary", lambda: (x(), None, FREQ, {"out": x(6, 5, 8)}), V, "out"
    ),
    "out of other dtype": Bad(
        "apply_rotary", lambda: (x(), None, FREQ, {"out": x(dtype=np.float64)}), T, "out"
    ),
    "out of bits": Bad(
        "apply_rotary", lambda: (x(), None, FREQ, {"out": x(dtype=np.int32)}), T, "out"
    ),
    "out big-endian": Bad(
        "apply_rotary", lambda: (x(), None, FREQ, {"out": x(dtype=BIG_ENDIAN)}), T, "out"
    ),
    "out is a list": Bad("apply_rotary", lambda: (x(), None, FREQ, {"out": [1]}), T, "out"),
    "out read-only": Bad(
        "apply_rotary", lambda: (x(), None, FREQ, {"out": read_only(x())}), V, "out"
    ),
    "in place read-only": Bad(
        "apply_rotary", lambda: ((a := read_only(x())), None, FREQ, {"out": a}), V, "out"
    ),
    "out of stride 0": Bad(
        "apply_rotary", lambda: (x(), None, FREQ, {"out": expanded(x())}), V, "out"
    ),
    "in place of stride 0": Bad(
        "apply_rotary", lambda: ((a := expanded(x())), None, FREQ, {"out": a}), V, "out"
    ),
    "out of overlapping windows": Bad(
        "apply_rotary",
        lambda: (
            x(5, 8),
            None,
            FREQ,
            {
                "layout": "sd",
                "out": np.lib.stride_tricks.as_strided(x(12), (5, 8), (4, 4)),
            },
        ),
        V,
        "out",
    ),
    "out over x": Bad(
        "apply_rotary", lambda: ((pair := shifted_out())[0], None, FREQ, {"out": pair[1]}), V, "out"
    ),
    "out over x backwards": Bad(
        "apply_rotary", lambda: ((a := x()), None, FREQ, {"out": a[:, :, ::-1]}), V, "out"
    ),
    "out over x transposed": Bad(
        "apply_rotary",
        lambda: ((a := x(5, 5, 8)), None, FREQ, {"out": a.swapaxes(0, 1), "layout": "hsd"}),
        V,
        "out",
    ),
    "out over x by one element": Bad(
        "apply_rotary",
        lambda: (
            (a := x(41))[:40].reshape(5, 8),
            None,
            FREQ,
            {"out": a[1:].reshape(5, 8), "layout": "sd"},
        ),
        V,
        "out",
    ),
    "out over positions": Bad("apply_rotary", out_over_positions, V, "out"),
    "out over inv_freq": Bad("apply_rotary", out_over_frequencies, V, "out"),
    # --- apply_rotary_qk
    "k is a list": Bad("apply_rotary_qk", lambda: (x(), [1.0], None, FREQ), T, "k"),
    "q is a list": Bad("apply_rotary_qk", lambda: ([1.0], x(), None, FREQ), T, "q"),
    "k of other dtype": Bad(
        "apply_rotary_qk", lambda: (x(), x(dtype=np.float16), None, FREQ), T, "k"
    ),
    "q of int64": Bad("apply_rotary_qk", lambda: (x(dtype=int), x(), None, FREQ), T, "q"),
    "k of int64": Bad("apply_rotary_qk", lambda: (x(), x(dtype=int), None, FREQ), T, "k"),
    "k of other rank": Bad("apply_rotary_qk", lambda: (x(), x(2, 5, 8), None, FREQ), V, "k"),
    "k of other length": Bad("apply_rotary_qk", lambda: (x(), x(2, 3, 6, 8), None, FREQ), V, "k"),
    "k of other batch": Bad("apply_rotary_qk", lambda: (x(), x(1, 3, 5, 8), None, FREQ), V, "k"),
    "k of other head_dim": Bad("apply_rotary_qk", lambda: (x(), x(2, 3, 5, 6), None, FREQ), V, "k"),
    "qk at [3, s]": Bad("apply_rotary_qk", lambda: (x(), x(), steps(3, 5), FREQ), V, "positions"),
    "qk layout": Bad(
        "apply_rotary_qk", lambda: (x(), x(), None, FREQ, {"layout": "bhdS"}), V, "layout"
    ),
    "qk in place read-only q": Bad(
        "apply_rotary_qk", lambda: (read_only(x()), x(), None, FREQ, {"inplace": True}), V, "q"
    ),
    "qk in place read-only k": Bad(
        "apply_rotary_qk", lambda: (x(), read_only(x()), None, FREQ, {"inplace": True}), V, "k"
    ),
    "qk in place of stride 0 q": Bad(
        "apply_rotary_qk", lambda: (expanded(x()), x(), None, FREQ, {"inplace": True}), V, "q"
    ),
    "qk in place of stride 0 k": Bad(
        "apply_rotary_qk", lambda: (x(), expanded(x()), None, FREQ, {"inplace": True}), V, "k"
    ),
    "qk in place of one array": Bad(
        "apply_rotary_qk", lambda: ((a := x()), a, None, FREQ, {"inplace": True}), V, "q"
    ),
    "qk in place of shared heads": Bad("apply_rotary_qk", shared_qk, V, "q"),
    "qk in place over positions": Bad(
        "apply_rotary_qk",
        lambda: (
            (a := x(dtype=np.float64)),
            x(dtype=np.float64),
            a[0, 0, :, 0],
            FREQ,
            {"inplace": True},
        ),
        V,
        "q",
    ),
    "qk slice past the head": Bad(
        "apply_rotary_qk", lambda: (x(), x(), None, FREQ, {"rotary_start": 6}), V, "rotary_start"
    ),
    # --- apply_rotary_tables
    "another compute": Bad(
        "apply_rotary_tables", lambda: (x(), x(5, 2), x(5, 2), {"compute": "fp32"}), V, "compute"
    ),
    "compute of None": Bad(
        "apply_rotary_tables", lambda: (x(), x(5, 2), x(5, 2), {"compute": None}), T, "compute"
    ),
    "tables for int32": Bad(
        "apply_rotary_tables", lambda: (x(dtype="i4"), x(5, 2), x(5, 2)), T, "x"
    ),
    "cos of int64": Bad("apply_rotary_tables", lambda: (x(), steps(5, 2), x(5, 2)), T, "cos"),
    "cos of None": Bad("apply_rotary_tables", lambda: (x(), None, x(5, 2)), T, "cos"),
    "sin of None": Bad("apply_rotary_tables", lambda: (x(), x(5, 2), None), T, "sin"),
    "cos of complex": Bad("apply_rotary_tables", lambda: (x(), x(5, 2) * 1j, x(5, 2)), T, "cos"),
    "sin of other dtype": Bad(
        "apply_rotary_tables", lambda: (x(), x(5, 2), x(5, 2, dtype=np.float64)), T, "sin"
    ),
    "cos of other length": Bad("apply_rotary_tables", lambda: (x(), x(4, 2), x(4, 2)), V, "cos"),
    "cos of [1, s, P]": Bad("apply_rotary_tables", lambda: (x(), x(1, 5, 2), x(1, 5, 2)), V, "cos"),
    "cos of [P]": Bad("apply_rotary_tables", lambda: (x(), x(2), x(2)), V, "cos"),
    "cos of a scalar": Bad(
        "apply_rotary_tables", lambda: (x(), np.array(1.0), np.array(0.0)), V, "cos"
    ),
    "sin of other shape": Bad("apply_rotary_tables", lambda: (x(), x(5, 2), x(5, 1)), V, "sin"),
    "tables of whole heads": Bad(
        "apply_rotary_tables", lambda: (x(), x(5, 8), x(5, 8)), V, "rotary_start"
    ),
    "tables out over cos": Bad("apply_rotary_tables", out_over_cosines, V, "out"),
    "tables out of other shape": Bad(
        "apply_rotary_tables", lambda: (x(), x(5, 2), x(5, 2), {"out": x(2, 3, 5, 7)}), V, "out"
    ),
    "tables pairing": Bad(
        "apply_rotary_tables", lambda: (x(), x(5, 2), x(5, 2), {"pairing": "gptj"}), V, "pairing"
    ),
    # --- apply_rotary_qk_tables
    **{
        f"by tables: {name}": Bad(
            "apply_rotary_qk_tables", lambda q=q, k=k: (q(), k(), x(5, 2), x(5, 2)), error, argument
        )
        for name, q, k, error, argument in [
            ("q is a list", lambda: [1.0], x, T, "q"),
            ("k is a list", x, lambda: [1.0], T, "k"),
            ("q of int64", lambda: x(dtype=int), x, T, "q"),
            ("k of int64", x, lambda: x(dtype=int), T, "k"),
            ("k of other dtype", x, lambda: x(dtype=np.float16), T, "k"),
            ("k of other rank", x, lambda: x(2, 5, 8), V, "k"),
            ("k of other length", x, lambda: x(2, 3, 6, 8), V, "k"),
            ("k of other batch", x, lambda: x(1, 3, 5, 8), V, "k"),
            ("k of other head_dim", x, lambda: x(2, 3, 5, 6), V, "k"),
        ]
    },
    **{
        f"of q and k: {name}": Bad(
            "apply_rotary_qk_tables", lambda c=c, s=s: (x(), x(), c(), s()), error, argument
        )
        for name, c, s, error, argument in [
            ("cos of None", lambda: None, lambda: x(5, 2), T, "cos"),
            ("sin of None", lambda: x(5, 2), lambda: None, T, "sin"),
            ("cos of int64", lambda: steps(5, 2), lambda: x(5, 2), T, "cos"),
            ("sin of other dtype", lambda: x(5, 2), lambda: x(5, 2, dtype=np.float64), T, "sin"),
            ("cos of other length", lambda: x(4, 2), lambda: x(4, 2), V, "cos"),
            ("cos of [1, s, P]", lambda: x(1, 5, 2), lambda: x(1, 5, 2), V, "cos"),
            ("a scalar cos", lambda: np.array(1.0), lambda: np.array(0.0), V, "cos"),
            ("sin of other shape", lambda: x(5, 2), lambda: x(5, 1), V, "sin"),
            ("cos of full width", lambda: x(5, 8), lambda: x(5, 8), V, "rotary_start"),
        ]
    },
    **{
        f"by tables in place: {name}": Bad(
            "apply_rotary_qk_tables",
            lambda q=q, k=k: (q(), k(), x(5, 2), x(5, 2), {"inplace": True}),
            V,
            argument,
        )
        for name, q, k, argument in [
            ("q read-only", lambda: read_only(x()), x, "q"),
            ("k read-only", x, lambda: read_only(x()), "k"),
            ("q of stride 0", lambda: expanded(x()), x, "q"),
            ("k of stride 0", x, lambda: expanded(x()), "k"),
        ]
    },
    "by tables in place: q is k": Bad(
        "apply_rotary_qk_tables",
        lambda: ((a := x()), a, x(5, 2), x(5, 2), {"inplace": True}),
        V,
        "q",
    ),
    "by tables in place of shared heads": Bad(
        "apply_rotary_qk_tables", shared_qk_by_tables, V, "q"
    ),
    "k over sin": Bad("apply_rotary_qk_tables", k_over_sines, V, "k"),
    "by tables of unknown pairing": Bad(
        "apply_rotary_qk_tables",
        lambda: (x(), x(), x(5, 2), x(5, 2), {"pairing": "gptj"}),
        V,
        "pairing",
    ),
    "by tables of unknown layout": Bad(
        "apply_rotary_qk_tables", lambda: (x(), x(), x(5, 2), x(5, 2), {"layout": "s"}), V, "layout"
    ),
    "by tables past the head": Bad(
        "apply_rotary_qk_tables",
        lambda: (x(), x(), x(5, 2), x(5, 2), {"rotary_start": 6}),
        V,
        "rotary_start",
    ),
    # --- others
    "shift by an array": Bad("shift_matrix", lambda: ([1, 2], 8), T, "offset"),
    "shift of odd dim": Bad("shift_matrix", lambda: (1, 7), V, "dim"),
    "shift by nan": Bad("shift_matrix", lambda: (NAN, 8), V, "offset"),
    "shift by text": Bad("shift_matrix", lambda: ("1", 8), T, "offset"),
    "shift layout": Bad("shift_matrix", lambda: (1, 8, {"layout": "sin"}), V, "layout"),
    "description of odd head": Bad("Rotary", lambda: (7,), V, "head_dim"),
    "description of odd part": Bad("Rotary", lambda: (8, {"rotary_dim": 3}), V, "rotary_dim"),
    "description past the head": Bad(
        "Rotary", lambda: (8, {"rotary_dim": 6, "rotary_start": 4}), V, "rotary_start"
    ),
    "description of no pairing": Bad("Rotary", lambda: (8, {"pairing": "neox"}), V, "pairing"),
    "description of float axes": Bad(
        "Rotary", lambda: (4, {"axis_map": [0.0, 1.0]}), T, "axis_map"
    ),
    "description of few axes": Bad("Rotary", lambda: (8, {"axis_map": [0, 1]}), V, "axis_map"),
    # Relative
    "bias of few diagonals": Bad("toeplitz_bias", lambda: (x(3, 8), 4, 4), V, "diagonals"),
    "bias of many diagonals": Bad(
        "toeplitz_bias", lambda: (x(3, 6), 4, 4, {"origin": 3}), V, "diagonals"
    ),
    "bias of integers": Bad("toeplitz_bias", lambda: (steps(3, 7), 4, 4), T, "diagonals"),
    "bias of negative length": Bad("toeplitz_bias", lambda: (x(3, 7), -4, 4), V, "q_len"),
    "bias of lengths of two ranks": Bad("toeplitz_bias", lambda: (x(3, 7), (2, 2), 4), V, "k_len"),
    "bias out of another shape": Bad(
        "toeplitz_bias", lambda: (x(3, 7), 4, 4, {"out": x(3, 4, 5)}), V, "out"
    ),
    "bias out read-only": Bad(
        "toeplitz_bias", lambda: (x(3, 7), 4, 4, {"out": read_only(x(3, 4, 4))}), V, "out"
    ),
    "bias beyond the diagonals": Bad(
        "add_toeplitz_bias", lambda: (x(3, 4, 4), x(3, 9), {"origin": 2}), V, "diagonals"
    ),
    "bias of other heads": Bad("add_toeplitz_bias", lambda: (x(3, 4, 4), x(2, 7)), V, "diagonals"),
    "bias of offsets of another shape": Bad(
        "add_toeplitz_bias",
        lambda: (x(2, 3, 4, 4), x(3, 9), {"origin": 5, "q_offset": steps(3)}),
        V,
        "q_offset",
    ),
    "bias of scores of integers": Bad(
        "add_toeplitz_bias", lambda: (steps(3, 4, 4), x(3, 7)), T, "scores"
    ),
    "sums of a vector": Bad("diagonal_sums", lambda: (x(4),), V, "grad"),
    "sums in few entries": Bad(
        "diagonal_sums", lambda: (x(3, 4, 4), {"entries": 6, "origin": 3}), V, "diagonals"
    ),
    "gather of a column too far": Bad(
        "relative_gather", lambda: (x(4, 5), np.array([0, 1, 2, 3, 4, 5, 0]), 4), V, "index"
    ),
    "gather of a negative column": Bad(
        "relative_gather", lambda: (x(4, 5), np.array([0, 1, 2, 3, 4, -1, 0]), 4), V, "index"
    ),
    "gather by floats": Bad("relative_gather", lambda: (x(4, 5), x(7), 4), T, "index"),
    "gather of a missing that is there": Bad(
        "relative_gather", lambda: (x(4, 5), steps(7), 4, {"missing": 2}), V, "missing"
    ),
    "gather of content of another shape": Bad(
        "relative_gather", lambda: (x(4, 5), steps(7), 4, {"content": x(4, 5)}), V, "content"
    ),
    "gather by infinity": Bad(
        "relative_gather", lambda: (x(4, 5), steps(7), 4, {"scale": INF}), V, "scale"
    ),
    "scatter of a column too far": Bad(
        "relative_scatter", lambda: (x(4, 4), np.full(7, 3), 3), V, "index"
    ),
    "scatter of few entries": Bad("relative_scatter", lambda: (x(4, 4), steps(6), 3), V, "index"),
    "backend": Bad("set_backend", lambda: ("cuda",), V, "name"),
    "no threads": Bad("set_num_threads", lambda: (0,), V, "n"),
    "threads beyond int": Bad("set_num_threads", lambda: (2**31,), V, "n"),
    "threads of float": Bad("set_num_threads", lambda: (2.0,), T, "n"),
    "threads of bool": Bad("set_num_threads", lambda: (True,), T, "n"),
}


def owner(array: np.ndarray) -> np.ndarray:
    """The array that owns the memory of a view."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def memory_of(arguments: tuple[Any, ...], named: dict[str, Any]) -> list[tuple[np.ndarray, bytes]]:
    arrays = [value for value in (*arguments, *named.values()) if isinstance(value, np.ndarray)]
    return [(owner(array), owner(array).tobytes()) for array in arrays if array.dtype != object]


@pytest.mark.parametrize("name", BAD)
def test_a_bad_call_says_why_and_writes_nothing(backend, name):
    bad = BAD[name]
    arguments, named = bad.arguments()
    before = memory_of(arguments, named)
    with pytest.raises((ValueError, TypeError)) as caught:
        getattr(pn, bad.function)(*arguments, **named)
    message = str(caught.value)
    form = rf"{bad.function}: ({bad.argument}): expected \S.*, got \S.*"
    assert re.fullmatch(form, message, re.DOTALL), message
    assert caught.type is bad.error, message
    for array, content in before:
        assert array.tobytes() == content


def test_the_message_of_the_commonest_mistake(backend):
    with pytest.raises(ValueError, match=re.escape("apply_rotary: positions: expected shape")) as e:
        pn.apply_rotary(x(), steps(3, 5), FREQ)
    for part in ("[s] = [5]", "[b, s] = [2, 5]", "got [3, 5]"):
        assert part in str(e.value)


@pytest.mark.parametrize("dtype", ["bool", "complex64", "float16", ">i4", "U1"])
def test_the_message_names_the_dtype_that_came(backend, dtype):
    with pytest.raises(TypeError, match=re.escape(f"got {np.dtype(dtype)}")):
        pn.apply_rotary(x(5, 8), np.zeros(5, dtype), FREQ, layout="sd")
    with pytest.raises(TypeError, match=re.escape(f"got {np.dtype(dtype)}")):
        pn.sinusoidal(np.zeros(5, dtype), 8)


@NEEDS_NATIVE
def test_a_huge_row_is_refused():
    # Not by the reference, which would first compute every frequency.
    with pytest.raises(ValueError, match="sinusoidal: positions: expected"):
        NATIVE.sinusoidal(1, 2**62, 1e4, "interleaved", 0.0, 1.0, None, None)


# Unaligned memory: read by the reference, refused by the native module


UNALIGNED: dict[str, Callable[[], tuple[str, tuple[Any, ...], dict[str, Any]]]] = {
    "x": lambda: ("apply_rotary", (unaligned(x()), None, FREQ), {}),
    "positions": lambda: ("apply_rotary", (x(), unaligned(steps()), FREQ), {}),
    "inv_freq": lambda: ("apply_rotary", (x(), None, unaligned(FREQ)), {}),
    "out": lambda: ("apply_rotary", (x(), None, FREQ), {"out": unaligned(x())}),
    "q": lambda: ("apply_rotary_qk", (unaligned(x()), x(), None, FREQ), {"inplace": True}),
    "k": lambda: ("apply_rotary_qk", (x(), unaligned(x()), None, FREQ), {}),
    "cos": lambda: ("apply_rotary_tables", (x(), unaligned(x(5, 2)), x(5, 2)), {}),
    "sin": lambda: ("apply_rotary_qk_tables", (x(), x(), x(5, 2), unaligned(x(5, 2))), {}),
    "x of records": lambda: (
        "apply_rotary",
        (np.ones((2, 3, 5, 8), [("x", "f4"), ("tag", "u1")])["x"], None, FREQ),
        {},
    ),
}


@pytest.mark.parametrize("name", UNALIGNED)
def test_unaligned_views(backend, name):
    function, arguments, named = UNALIGNED[name]()
    if backend == "native":
        before = memory_of(arguments, named)
        with pytest.raises(ValueError, match=f"{function}: {name.split()[0]}: .* unaligned"):
            getattr(pn, function)(*arguments, **named)
        for array, content in before:
            assert array.tobytes() == content
        return
    copies = [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]
    expected = getattr(pn, function)(*copies)
    np.testing.assert_array_equal(getattr(pn, function)(*arguments, **named), expected)


# Overlaps of any two views


@given(data=st.data())
def test_overlap_is_an_error_exactly_where_memory_is_shared(backend, data):
    """Two views of one buffer; NumPy decides whether they have an element in common."""
    memory = np.random.default_rng(1).standard_normal((6, 7, 8)).astype(np.float32)

    def axis(length: int, count: int) -> slice:
        step = data.draw(st.sampled_from([1, 1, 2, -1, -2]))
        reach = (count - 1) * abs(step)
        first = data.draw(st.integers(0, max(length - 1 - reach, 0)))
        part = slice(first, first + reach + 1, abs(step))
        return part if step > 0 else slice(first + reach, first - 1 if first else None, step)

    counts = [data.draw(st.integers(1, 3)) for _ in range(2)] + [4]
    views = [
        memory[tuple(axis(length, count) for length, count in zip((6, 7, 8), counts, strict=True))]
        for _ in range(2)
    ]
    if data.draw(st.booleans()) and views[1].shape == views[1].swapaxes(0, 1).shape:
        views[1] = views[1].swapaxes(0, 1)
    source, out = views
    assert source.shape == out.shape == tuple(counts)
    same = source.ctypes.data == out.ctypes.data and all(
        one == other or length == 1
        for one, other, length in zip(source.strides, out.strides, counts, strict=True)
    )
    options = {"layout": "hsd", "out": out}
    if np.shares_memory(source, out) and not same:
        before = memory.copy()
        with pytest.raises(ValueError, match="apply_rotary: out: "):
            pn.apply_rotary(source, None, FREQ, **options)
        np.testing.assert_array_equal(memory, before)
    else:
        expected = pn.apply_rotary(source, None, FREQ, layout="hsd")
        pn.apply_rotary(source, None, FREQ, **options)
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_views_side_by_side_are_no_overlap(backend, layout):
    """Large enough that nobody compares element by element."""
    packed = np.ones((2, 300, 3, 16, 64), np.float16)
    q, k, v = (packed[:, :, i] for i in range(3))
    if layout == "bhsd":
        q, k, v = (part.swapaxes(1, 2) for part in (q, k, v))
    pn.apply_rotary(q, None, FREQ, layout=layout, out=v)
    pn.apply_rotary_qk(q, k, None, FREQ, layout=layout, inplace=True)
    tables = pn.rotary_tables(300, FREQ)
    pn.apply_rotary_qk_tables(q, k, *tables, layout=layout, inplace=True)
    pn.apply_rotary(q[..., ::2], None, FREQ, layout=layout, out=q[..., 1::2])
    pn.apply_rotary(q[..., :32], None, FREQ, layout=layout, out=q[..., 32:])
    with pytest.raises(ValueError, match="apply_rotary: out: "):
        pn.apply_rotary(q[..., :40], None, FREQ, layout=layout, out=q[..., 24:])
