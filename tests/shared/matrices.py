"""Matrices of cases: what of them `make test` runs, and what is left to `make test-all`.

Faults are seldom of three options together. So every pair of values is tried whenever tests run,
and all combinations once a week.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from allpairspy import AllPairs


def pairwise(**axes: Iterable[Any]) -> pytest.MarkDecorator:
    """Parametrize by the product of these values; rows beyond a cover of all pairs are slow."""
    values = {name: list(of_axis) for name, of_axis in axes.items()}
    places = [range(len(of_axis)) for of_axis in values.values()]
    cover = {tuple(row) for row in AllPairs([list(place) for place in places])}
    rows = [
        pytest.param(
            *(of_axis[i] for of_axis, i in zip(values.values(), row, strict=True)),
            marks=[] if row in cover else [pytest.mark.slow],
        )
        for row in itertools.product(*places)
    ]
    return pytest.mark.parametrize(tuple(values), rows)


def others_slow(values: Sequence[Any], *quick: Any) -> list[Any]:
    """Values of one parameter, of which only the quick ones are tried whenever tests run."""
    assert set(quick) <= set(values)
    return [v if v in quick else pytest.param(v, marks=pytest.mark.slow) for v in values]
