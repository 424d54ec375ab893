"""Nothing to turn, by or at: every implementation gives the same empty or unturned result."""

from __future__ import annotations

import numpy as np
import pytest

import posenc_native as pn
from posenc_native.engines import backend

torch = pytest.importorskip("torch")

import torch_cases  # noqa: E402
from rotary_gradients import rotary_backward  # noqa: E402
from rotating import computing, public  # noqa: E402

X, Q, K = np.ones((2, 3, 5, 8), np.float32), np.ones((2, 4, 5, 8)), np.ones((2, 2, 5, 8))
NONE = np.zeros(0)


def zeros(*shape):
    return np.zeros(shape)


CALLS = {
    "tables [0]": (pn.rotary_tables, np.arange(3), NONE),
    "tables [0] at fractions": (pn.rotary_tables, np.arange(3) + 0.5, NONE),
    "tables at no position": (pn.rotary_tables, zeros(2, 0), np.ones(4)),
    "[0]": (pn.apply_rotary, X, None, NONE),
    "[0, 0] for no heads": (pn.apply_rotary, X[:, :0], None, zeros(0, 0)),
    "[0, P] for no heads": (pn.apply_rotary, X[:, :0], None, zeros(0, 2)),
    "[1, 0]": (pn.apply_rotary, X, None, zeros(1, 0)),
    "[H, 0]": (pn.apply_rotary, X, None, zeros(3, 0)),
    "[A, H, 0]": (pn.apply_rotary, X, zeros(2, 5), zeros(2, 3, 0)),
    "[A, 0, P] for no heads": (pn.apply_rotary, X[:, :0], zeros(2, 5), zeros(2, 0, 2)),
    "[H, P] for no tokens": (pn.apply_rotary, X[:, :, :0], None, np.ones((3, 2))),
    "[H, P] for no batch": (pn.apply_rotary, X[:0], None, np.ones((3, 2))),
    "no dims": (pn.apply_rotary, X[..., :0], None, NONE),
    "q and k [0]": (pn.apply_rotary_qk, Q, K, None, NONE),
    "q and k without heads": (pn.apply_rotary_qk, Q[:, :0], K[:, :0], None, zeros(0, 2)),
    "tables of no pairs": (public("apply_rotary by tables"), X, zeros(5, 0), zeros(5, 0)),
    "a table of no dims": (pn.sinusoidal, np.arange(3), 0),
    "a table of no rows": (pn.sinusoidal, zeros(2, 0), 8),
    "a table at an empty list": (pn.sinusoidal, [], 8),
    "a sum of no dims": (pn.add_sinusoidal, X[..., :0]),
    "a sum of no rows": (pn.add_sinusoidal, X[:, :, :0]),
}  # fmt: skip


def parts(result):
    return [np.asarray(part) for part in (result if isinstance(result, tuple) else (result,))]


@pytest.mark.parametrize("name", CALLS)
def test_every_implementation_agrees(name):
    function, *given = CALLS[name]
    tensors = [torch.from_numpy(v) if isinstance(v, np.ndarray) else v for v in given]
    with computing("reference"):
        expected = parts(function(*given))
    with torch_cases.plain_operations():
        results = [parts(function(*tensors))]
    if backend.native is not None:
        with computing("native"):
            results += [parts(function(*given)), parts(function(*tensors))]
    for result in results:
        for got, wanted in zip(result, expected, strict=True):
            assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
            np.testing.assert_array_equal(got, wanted)


X_OF_NONE = {
    "[0]": (X, None, NONE),
    "[1, 0]": (X, None, zeros(1, 0)),
    "[A, H, 0]": (X, zeros(2, 2, 5), zeros(2, 3, 0)),
    "no tokens": (X[:, :, :0], None, zeros(3, 2)),
    "no tokens on axes": (X[:, :, :0], zeros(2, 0), zeros(2, 1, 2)),
    "no batch": (X[:0], zeros(0, 5), zeros(3, 2)),
    "no heads": (X[:, :0], None, zeros(0, 2)),
}


@pytest.mark.parametrize("name", X_OF_NONE)
@pytest.mark.skipif(backend.native is None, reason="needs the native module")
def test_gradients_agree(name):
    x, positions, inv_freq = X_OF_NONE[name]
    call = ((x,), (x,), positions, inv_freq, "bhsd", "half", 0, None, 1.0, False, True)
    ((expected,), *of_angles) = rotary_backward(*call)
    ((got,), *others) = backend.native.rotary_backward(*call)
    for result, wanted in zip((got, *others), (expected, *of_angles), strict=True):
        np.testing.assert_array_equal(result, wanted)
        assert result.shape == wanted.shape
