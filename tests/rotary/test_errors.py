"""Bad calls of rotations: each says why, and has written nothing."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from bad_calls import (
    BIG_ENDIAN,
    FREQ,
    INF,
    NAN,
    Bad,
    T,
    V,
    assert_refused,
    expanded,
    read_only,
    shifted_out,
    steps,
    x,
)


def shared_qk() -> tuple[Any, ...]:
    packed = x(2, 5, 5, 8)
    return packed[:, :3], packed[:, 2:], None, FREQ, {"inplace": True}


def shared_qk_by_tables() -> tuple[Any, ...]:
    q, k = shared_qk()[:2]
    return q, k, x(5, 2), x(5, 2), {"inplace": True}


def k_over_sines() -> tuple[Any, ...]:
    memory = np.ones((2, 1, 5, 8), np.float32)
    return x(), memory, x(5, 2), memory[1, 0, :, :2], {"inplace": True}


def out_over_positions() -> tuple[Any, ...]:
    memory = np.zeros((2, 3, 5, 8), np.float64)
    return x(dtype=np.float64), memory[0, 0, :, 0], FREQ, {"out": memory}


def out_over_frequencies() -> tuple[Any, ...]:
    memory = np.zeros((2, 3, 5, 8), np.float64)
    return x(dtype=np.float64), None, memory[0, 0, 0, :2], {"out": memory}


def out_over_cosines() -> tuple[Any, ...]:
    memory = np.zeros((2, 3, 5, 8), np.float32)
    return x(), memory[0, 0, :, :2], np.ones((5, 2), np.float32), {"out": memory}


BAD: dict[str, Bad] = {
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
    "tables scale beyond float32": Bad(
        "rotary_tables", lambda: (3, FREQ, {"scale": 1e300, "dtype": "f2"}), V, "scale"
    ),
    "tables scale text": Bad("rotary_tables", lambda: (3, FREQ, {"scale": "1"}), T, "scale"),
    "tables scale True": Bad("rotary_tables", lambda: (3, FREQ, {"scale": True}), T, "scale"),
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
        for pairing in [4.0, True, (2,)]
    },
    "scale True": Bad("apply_rotary", lambda: (x(), None, FREQ, {"scale": True}), T, "scale"),
    "scale of an array": Bad(
        "apply_rotary", lambda: (x(), None, FREQ, {"scale": np.array(2.0)}), T, "scale"
    ),
    "odd head": Bad("apply_rotary", lambda: (x(5, 3), None, FREQ, {"layout": "sd"}), V, "inv_freq"),
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
    "scale of rotation beyond float32": Bad(
        "apply_rotary", lambda: (x(), None, FREQ, {"scale": 2.0**128 - 2.0**103}), V, "scale"
    ),
    "scale of q and k beyond float32": Bad(
        "apply_rotary_qk",
        lambda: (x(), x(), None, FREQ, {"scale": -1e39, "inplace": True}),
        V,
        "scale",
    ),
    "scale of rotation inf": Bad(
        "apply_rotary", lambda: (x(), None, FREQ, {"scale": INF}), V, "scale"
    ),
    # --- apply_rotary: positions, frequencies, axes
    "[3, s] without axis_map": Bad(
        "apply_rotary", lambda: (x(), steps(3, 5), FREQ), V, "positions"
    ),
    "[1, s] of another s": Bad("apply_rotary", lambda: (x(), steps(1, 4), FREQ), V, "positions"),
    "[b, 1] of a length": Bad("apply_rotary", lambda: (x(), steps(2, 1), FREQ), V, "positions"),
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
    "first of tokens beyond 64 bits": Bad(
        "apply_rotary", lambda: (x(), 2**63 - 2, FREQ), V, "positions"
    ),
    "first of tokens below 64 bits": Bad(
        "apply_rotary", lambda: (x(), -(2**63) - 1, FREQ), V, "positions"
    ),
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
        "apply_rotary", lambda: (x(), steps(3, 4, 5), FREQ, {"axis_map": [0, 0]}), V, "positions"
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
    "cos of [3, s, P]": Bad("apply_rotary_tables", lambda: (x(), x(3, 5, 2), x(3, 5, 2)), V, "cos"),
    "cos of [P]": Bad("apply_rotary_tables", lambda: (x(), x(2), x(2)), V, "cos"),
    "cos of a scalar": Bad(
        "apply_rotary_tables", lambda: (x(), np.array(1.0), np.array(0.0)), V, "cos"
    ),
    "sin of other shape": Bad("apply_rotary_tables", lambda: (x(), x(5, 2), x(5, 1)), V, "sin"),
    "tables of whole heads": Bad("apply_rotary_tables", lambda: (x(), x(5, 8), x(5, 8)), V, "cos"),
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
            ("cos of [3, s, P]", lambda: x(3, 5, 2), lambda: x(3, 5, 2), V, "cos"),
            ("a scalar cos", lambda: np.array(1.0), lambda: np.array(0.0), V, "cos"),
            ("sin of other shape", lambda: x(5, 2), lambda: x(5, 1), V, "sin"),
            ("cos of full width", lambda: x(5, 8), lambda: x(5, 8), V, "cos"),
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
    # --- Rotary
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
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_call_says_why_and_writes_nothing(backend, name):
    assert_refused(BAD[name])
