"""Errors carry their fault as fields, whoever raises them, and their text is made of it."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import posenc_native as pn
from posenc_native.core.calls.errors import Fault, error_from_text, fault_of

INV_FREQ = np.array([1.0, 0.1])
# A call, and what it is told.
EXPECTED = Fault("apply_rotary", "positions", "shape [s] = [3], [1, s] or [b, s] = [1, 3]", "[4]")


def error_about_positions(x):
    positions = np.arange(4)
    with pytest.raises(ValueError, match="positions") as caught:
        pn.apply_rotary(x, positions, INV_FREQ)
    return caught.value


def test_arrays(backend):
    error = error_about_positions(np.ones((1, 1, 3, 4), np.float32))
    assert type(error) is ValueError
    assert fault_of(error) == EXPECTED
    assert str(error) == str(EXPECTED)


@pytest.mark.parametrize("elements", ["few", "grad"])
def test_tensors(backend, elements):
    """Through the NumPy module, through an operator and from the composition."""
    torch = pytest.importorskip("torch")
    x = torch.ones(1, 1, 3, 4, requires_grad=elements == "grad")
    with pytest.raises(ValueError, match="positions") as caught:
        pn.apply_rotary(x, torch.arange(4), INV_FREQ)
    assert type(caught.value) is ValueError
    assert fault_of(caught.value) == EXPECTED
    assert str(caught.value) == str(EXPECTED)


def test_wrong_kinds():
    with pytest.raises(TypeError) as caught:
        pn.sinusoidal(4, 7.5)
    assert caught.value.fault == Fault("sinusoidal", "dim", "an int", "float")


@pytest.mark.parametrize("again", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_copies(again):
    error = again(error_about_positions(np.ones((1, 1, 3, 4))))
    assert type(error) is ValueError
    assert fault_of(error) == EXPECTED


def test_other_errors_have_none():
    assert fault_of(ValueError("apply_rotary: x: expected this, got that")) is None
    error = error_from_text(ValueError, "something else")
    assert (str(error), fault_of(error)) == ("something else", None)


def test_texts_with_commas_and_colons():
    fault = Fault("f", "scaling['factor']", "one of a, b: c", "d, got e")
    assert str(error_from_text(TypeError, str(fault))) == str(fault)
