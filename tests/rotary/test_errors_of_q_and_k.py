"""Bad calls of q and k, the same from arrays and tensors: each says why and writes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import rotating
from bad_calls import FREQ, Bad, T, V, assert_refused, read_only, x

Out = Callable[[np.ndarray, np.ndarray], Any]


def overlapping(q: np.ndarray, k: np.ndarray) -> Any:
    memory = x(2, 3, 5, 8)
    return memory, memory[:, :1]


# Memory for q and k of 3 heads and 1: name, the pair, the error, its argument.
OUTS: list[tuple[str, Out, type[Exception], str]] = [
    ("one array", lambda q, k: q, T, "out"),
    ("a list", lambda q, k: [q, k], T, "out"),
    ("three", lambda q, k: (q, k, k), T, "out"),
    ("None and k", lambda q, k: (None, k), T, r"out\[0\]"),
    ("q and a list", lambda q, k: (q, [1.0]), T, r"out\[1\]"),
    ("another shape", lambda q, k: (x(2, 3, 5, 6), k), V, r"out\[0\]"),
    ("another dtype", lambda q, k: (q, x(2, 1, 5, 8, dtype="f8")), T, r"out\[1\]"),
    ("each other", lambda q, k: (k, q), V, r"out\[0\]"),
    ("an overlap", overlapping, V, r"out\[1\]"),
    ("k over q", lambda q, k: (x(), q[:, :1]), V, r"out\[1\]"),
]
BY_ARRAYS: list[tuple[str, Out, type[Exception], str]] = [
    ("read-only", lambda q, k: (q, read_only(x(2, 1, 5, 8))), V, r"out\[1\]"),
    ("q backwards", lambda q, k: (q[:, :, ::-1], k), V, r"out\[0\]"),
]


def to(function: str, angles: Callable[[], tuple[Any, ...]], out: Out) -> Callable[[], Any]:
    def call() -> tuple[Any, ...]:
        q, k = x(), x(2, 1, 5, 8)
        return q, k, *angles(), {"out": out(q, k)}

    return call


ANGLES: dict[str, Callable[[], tuple[Any, ...]]] = {
    "apply_rotary_qk": lambda: (None, FREQ),
    "apply_rotary_qk_tables": lambda: (x(5, 2), x(5, 2)),
}


def rows(outs: list[tuple[str, Out, type[Exception], str]]) -> dict[str, Bad]:
    return {
        f"{function} to {name}": Bad(function, to(function, angles, out), error, argument)
        for function, angles in ANGLES.items()
        for name, out, error, argument in outs
    }


BAD = {
    **rows(OUTS),
    "in place and to out": Bad(
        "apply_rotary_qk",
        lambda: (x(), x(), None, FREQ, {"inplace": True, "out": (x(), x())}),
        V,
        "inplace",
    ),
    "to out, contiguous": Bad(
        "apply_rotary_qk",
        lambda: (x(), x(), None, FREQ, {"contiguous": True, "out": (x(), x())}),
        V,
        "contiguous",
    ),
}
OF_ARRAYS = rows(BY_ARRAYS)

NAN = np.array([0.0, np.nan, 1, 2, 3, 4, 5])


def at(positions: Any, error: type[Exception], argument: str, **options: Any) -> Bad:
    """q of 5 tokens, k of 7; in place, and nothing is written."""
    return Bad(
        "apply_rotary_qk",
        lambda: (x(), x(2, 1, 7, 8), positions, FREQ, {"inplace": True, **options}),
        error,
        argument,
    )


def by(cos: Any, sin: Any, error: type[Exception], argument: str, **options: Any) -> Bad:
    return Bad(
        "apply_rotary_qk_tables",
        lambda: (x(), x(2, 1, 7, 8), cos(), sin(), {"inplace": True, **options}),
        error,
        argument,
    )


def starts(rotary_start: Any, error: type[Exception], argument: str) -> Bad:
    """Heads of 8 dims beside heads of 6."""
    return Bad(
        "apply_rotary_qk",
        lambda: (x(), x(2, 1, 5, 6), None, FREQ, {"inplace": True, "rotary_start": rotary_start}),
        error,
        argument,
    )


def pair(first: int = 5, second: int = 7, pairs: int = 2, dtype: Any = "f4") -> tuple[Any, Any]:
    return x(first, pairs, dtype=dtype), x(second, pairs, dtype=dtype)


ONE = np.arange(5)
OTHER = np.arange(7)
PAIRS = {
    "lengths without a pair": at(None, V, "k"),
    "positions of q too long": at((OTHER, OTHER), V, r"positions\[0\]"),
    "positions of k too short": at((ONE, ONE), V, r"positions\[1\]"),
    "positions of k not a number": at((ONE, NAN), V, r"positions\[1\]"),
    "positions of q of bools": at((ONE > 1, OTHER), T, r"positions\[0\]"),
    "positions of k of text": at((ONE, "1234567"), T, r"positions\[1\]"),
    "k from beyond 64 bits": at((None, 2**63), V, r"positions\[1\]"),
    "axes of k alone": at(
        (np.stack([ONE, ONE]), OTHER), V, r"positions\[1\]", axis_map=np.array([0, 1])
    ),
    "an axis that positions of k lack": at(
        (np.stack([ONE, ONE]), OTHER[None]), V, "axis_map", axis_map=np.array([0, 1])
    ),
    "three positions": at((ONE, OTHER, OTHER), T, "positions"),
    "k of other dtype": Bad(
        "apply_rotary_qk", lambda: (x(), x(2, 1, 7, 8, dtype="f8"), (ONE, OTHER), FREQ), T, "k"
    ),
    "k of other width": Bad(
        "apply_rotary_qk", lambda: (x(), x(2, 1, 7, 6), (ONE, OTHER), FREQ), V, "k"
    ),
    "k of other rank": Bad(
        "apply_rotary_qk", lambda: (x(), x(1, 7, 8), (ONE, OTHER), FREQ), V, "k"
    ),
    "pair, one array": Bad(
        "apply_rotary_qk",
        lambda: ((a := x()), a, (ONE, ONE), FREQ, {"inplace": True}),
        V,
        "q",
    ),
    "starts of k past the head": starts((0, 3), V, r"rotary_start\[1\]"),
    "starts of q past the head": starts((5, 0), V, r"rotary_start\[0\]"),
    "starts negative": starts((0, -1), V, r"rotary_start\[1\]"),
    "starts of a float": starts((0.0, 1), T, r"rotary_start\[0\]"),
    "three starts": starts((0, 1, 2), T, "rotary_start"),
    "a list of starts": starts([0, 1], T, "rotary_start"),
    "one start for two widths": starts(0, V, "k"),
    "cos a pair, sin not": by(lambda: pair(), lambda: x(5, 2), T, "sin"),
    "sin a pair, cos not": by(lambda: x(5, 2), lambda: pair(), T, "cos"),
    "tables of k too short": by(lambda: pair(5, 5), lambda: pair(5, 5), V, r"cos\[1\]"),
    "tables of q too long": by(lambda: pair(7, 7), lambda: pair(5, 7), V, r"cos\[0\]"),
    "sines of k too wide": by(lambda: pair(), lambda: (x(5, 2), x(7, 3)), V, r"sin\[1\]"),
    "cosines of int": by(lambda: pair(dtype="i4"), lambda: pair(), T, r"cos\[0\]"),
    "sines of other dtype": by(
        lambda: pair(), lambda: (x(5, 2), x(7, 2, dtype="f8")), T, r"sin\[1\]"
    ),
    "tables, lengths without a pair": by(lambda: x(5, 2), lambda: x(5, 2), V, "k"),
    "tables, starts past the head": by(
        lambda: pair(), lambda: pair(), V, r"rotary_start\[1\]", rotary_start=(0, 5)
    ),
    "no q and no k": Bad("apply_rotary_qk", lambda: (None, None, None, FREQ), T, "q"),
    "k alone, positions too short": Bad(
        "apply_rotary_qk",
        lambda: (None, x(2, 1, 7, 8), ONE, FREQ, {"inplace": True}),
        V,
        "positions",
    ),
    "k alone, of int": Bad("apply_rotary_qk", lambda: (None, x(dtype="i4"), None, FREQ), T, "k"),
    "q alone, memory for k": Bad(
        "apply_rotary_qk", lambda: (x(), None, None, FREQ, {"out": (x(), x())}), T, r"out\[1\]"
    ),
    "k alone, memory of other shape": Bad(
        "apply_rotary_qk_tables",
        lambda: (None, x(), x(5, 2), x(5, 2), {"out": (None, x(2, 3, 5, 6))}),
        V,
        r"out\[1\]",
    ),
}
BAD |= PAIRS


def rotate(cos: tuple[int, ...], error: type[Exception], argument: str, **options: Any) -> Bad:
    """x [2, 3, 5, 8] by tables of this shape, in place."""
    return Bad(
        "apply_rotary_tables",
        lambda: ((a := x()), np.ones(cos, "f4"), np.ones(cos, "f4"), {"out": a, **options}),
        error,
        argument,
    )


def out_over_rows() -> tuple[Any, ...]:
    memory = np.zeros((2, 3, 5, 8), np.float64)
    rows = memory.view(np.int64)[0, 0, :, 0]
    return x(dtype="f8"), x(10, 2), x(10, 2), {"out": memory, "rows": rows}


ROWS = np.array([0, 1, 2, 3, 9])
TABLES = {
    "a row beyond": rotate((9, 2), V, "rows", rows=ROWS),
    "a row before": rotate((10, 2), V, "rows", rows=ROWS - 1),
    "a row beyond int64": rotate(
        (9, 2), V, "rows", rows=np.array([0, 1, 2, 3, 2**64 - 1], np.uint64)
    ),
    "rows of floats": rotate((10, 2), T, "rows", rows=ROWS * 1.0),
    "rows of bools": rotate((10, 2), T, "rows", rows=ROWS > 2),
    "rows of text": rotate((10, 2), T, "rows", rows="01234"),
    "too few rows": rotate((10, 2), V, "rows", rows=ROWS[:4]),
    "rows of another batch": rotate((10, 2), V, "rows", rows=np.stack([ROWS] * 3)),
    "rows of tables by token": rotate((2, 10, 2), V, "cos|rows", rows=ROWS),
    "rows of no row": rotate((0, 2), V, "cos|rows", rows=ROWS),
    "rows and axes": rotate((10, 2), V, "axis_map", rows=ROWS, axis_map=np.array([0, 0])),
    "tables of other heads": rotate((2, 4, 5, 2), V, "cos"),
    "tables of heads, another batch": rotate((3, 3, 5, 2), V, "cos"),
    "tables of heads, another length": rotate((2, 3, 4, 2), V, "cos"),
    "tables of heads and no batch": rotate((3, 5, 2), V, "cos"),
    "tables of five axes": rotate((1, 2, 3, 5, 2), V, "cos"),
    "axes of tables, too large": rotate((3, 5, 2), V, "axis_map", axis_map=np.array([0, 3])),
    "axes of tables, negative": rotate((3, 5, 2), V, "axis_map", axis_map=np.array([-1, 0])),
    "axes of tables, too many": rotate((3, 5, 2), V, "axis_map", axis_map=np.array([0, 1, 2])),
    "axes of tables, of floats": rotate((3, 5, 2), T, "axis_map", axis_map=np.array([0.0, 1.0])),
    "axes of tables without an axis": rotate((5, 2), V, "cos", axis_map=np.array([0, 0])),
    "axes of cosines and sines": Bad(
        "apply_rotary_tables",
        lambda: (x(), x(3, 5, 2), x(2, 5, 2), {"axis_map": np.array([0, 1])}),
        V,
        "sin",
    ),
    "rows of more cosines than sines": Bad(
        "apply_rotary_tables", lambda: (x(), x(10, 2), x(9, 2), {"rows": ROWS}), V, "sin"
    ),
    "out over rows": Bad("apply_rotary_tables", out_over_rows, V, "out"),
    "rows of k beyond": by(
        lambda: x(9, 2), lambda: x(9, 2), V, r"rows\[1\]", rows=(np.arange(5), np.arange(7) + 3)
    ),
    "rows of q too few": by(
        lambda: x(9, 2), lambda: x(9, 2), V, r"rows\[0\]", rows=(np.arange(4), np.arange(7))
    ),
    "rows of k of floats": by(
        lambda: x(9, 2), lambda: x(9, 2), T, r"rows\[1\]", rows=(np.arange(5), np.arange(7) / 2)
    ),
}
BAD |= TABLES


@pytest.mark.parametrize("name", [*BAD, *OF_ARRAYS])
def test_a_bad_call_of_arrays(backend, name):
    assert_refused({**BAD, **OF_ARRAYS}[name])


@pytest.mark.parametrize("engine", ["small", "operators", "composed"])
@pytest.mark.parametrize("name", BAD)
def test_a_bad_call_of_tensors(engine, name):
    pytest.importorskip("torch")
    with rotating.computing(engine):
        assert_refused(BAD[name], rotating.tensors_of)
