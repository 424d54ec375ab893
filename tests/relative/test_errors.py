"""Bad calls of relative encodings: each says why, and has written nothing."""

from __future__ import annotations

import numpy as np
import pytest
from bad_calls import INF, Bad, T, V, assert_refused, read_only, steps, x

BAD: dict[str, Bad] = {
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
    "bias of an offset of 2^64 - 1, which is not -1": Bad(
        "add_toeplitz_bias",
        lambda: (x(3, 4, 4), x(3, 9), {"origin": 4, "q_offset": np.array(2**64 - 1, np.uint64)}),
        V,
        "diagonals",
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
    "gather of a column of 2^64 - 1, which is not the missing one": Bad(
        "relative_gather",
        lambda: (x(4, 5), np.array([0] * 6 + [2**64 - 1], np.uint64), 4, {"missing": -1}),
        V,
        "index",
    ),
    "gather at an offset of 2^64 - 1, which is not -1": Bad(
        "relative_gather",
        lambda: (x(4, 5), steps(40), 4, {"q_offset": np.array(2**64 - 1, np.uint64), "origin": 25}),
        V,
        "index",
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
    "gather by more than float32 has": Bad(
        "relative_gather", lambda: (x(4, 5), steps(7), 4, {"scale": 1e39}), V, "scale"
    ),
    "scatter by more than float32 has": Bad(
        "relative_scatter", lambda: (x(4, 4), steps(7), 3, {"scale": -1e39}), V, "scale"
    ),
    "scatter by True": Bad(
        "relative_scatter", lambda: (x(4, 4), steps(7), 4, {"scale": True}), T, "scale"
    ),
    "scatter of a column too far": Bad(
        "relative_scatter", lambda: (x(4, 4), np.full(7, 3), 3), V, "index"
    ),
    "scatter of few entries": Bad("relative_scatter", lambda: (x(4, 4), steps(6), 3), V, "index"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_call_says_why_and_writes_nothing(backend, name):
    assert_refused(BAD[name])
