"""Literal types of arguments: they have the names that the code accepts, in no other order."""

from __future__ import annotations

import typing
from pathlib import Path

import pytest

from posenc_native.core.calls import arguments, kinds
from posenc_native.core.frequencies import axes
from posenc_native.encodings.absolute import encodings, resampling
from posenc_native.encodings.positions import grids, orders
from posenc_native.encodings.sinusoids import spec

NAMES = {
    "SinusoidalLayout": arguments.SINUSOIDAL_LAYOUTS,
    "AxisPlace": spec._PLACES,
    "Remainder": spec._REMAINDERS,
    "MropeOrder": axes._MROPE_ORDERS,
    "AxialOrder": axes._AXIAL_ORDERS,
    "Spectrum": axes._SPECTRA,
    "Combination": encodings.COMBINATIONS,
    "Interpolation": resampling.INTERPOLATIONS,
    "Spacing": resampling.SPACINGS,
    "CellPlace": grids._COORDINATES,
    "CellCount": grids._NORMALIZATIONS,
    "ShardOrder": orders.ORDERS,
}


@pytest.fixture(scope="module")
def types():
    """The module as type checkers see it."""
    pytest.importorskip("torch")
    pytest.importorskip("typing_extensions")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typing, "TYPE_CHECKING", True)
        own = {"__name__": kinds.__name__, "__package__": kinds.__package__}
        exec(Path(kinds.__file__).read_text(encoding="utf-8"), own)
        return own


@pytest.mark.parametrize("name", NAMES)
def test_a_literal_has_the_names_of_the_code(types, name):
    assert typing.get_args(types[name]) == NAMES[name]


def test_first_values_of_a_table(types):
    pytest.importorskip("torch")
    from posenc_native.nn.learned import _INITIAL_TABLES

    assert set(typing.get_args(types["InitialTable"])) == set(_INITIAL_TABLES)
