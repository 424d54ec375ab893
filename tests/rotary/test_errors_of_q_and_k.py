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


@pytest.mark.parametrize("name", [*BAD, *OF_ARRAYS])
def test_a_bad_call_of_arrays(backend, name):
    assert_refused({**BAD, **OF_ARRAYS}[name])


@pytest.mark.parametrize("engine", ["small", "operators", "composed"])
@pytest.mark.parametrize("name", BAD)
def test_a_bad_call_of_tensors(engine, name):
    pytest.importorskip("torch")
    with rotating.computing(engine):
        assert_refused(BAD[name], rotating.tensors_of)
