"""Matrices of cases: what of them `make test` runs, and what is left to `make test-all`.

Faults are seldom of three parameters together. So of every test, every pair of values is tried
whenever tests run, and all combinations once a week.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any

import pytest
from allpairspy import AllPairs


def product(**axes: Iterable[Any]) -> Callable[[Any], Any]:
    """Parametrize by the product of these values."""

    def parametrized(test: Any) -> Any:
        for name, values in reversed(axes.items()):
            test = pytest.mark.parametrize(name, list(values))(test)
        return test

    return parametrized


def others_slow(values: Sequence[Any], *quick: Any) -> list[Any]:
    """Values of one parameter, of which only the quick ones are tried whenever tests run."""
    assert set(quick) <= set(values)
    return [v if v in quick else pytest.param(v, marks=pytest.mark.slow) for v in values]


def leave_pairs(metafunc: pytest.Metafunc) -> None:
    """Leave a cover of all pairs of parameters, fixtures among them; mark the others as slow.

    If slow tests are not to run, the others are left out here: pytest would take a minute to
    collect them.
    """
    quick = [call for call in metafunc._calls if not any(m.name == "slow" for m in call.marks)]
    if not quick or metafunc.definition.get_closest_marker("slow"):
        return
    together = [
        [name.strip() for name in marker.args[0].split(",")]
        if isinstance(marker.args[0], str)
        else list(marker.args[0])
        for marker in metafunc.definition.iter_markers("parametrize")
    ]
    alone = set(quick[0].params) - {name for names in together for name in names}
    axes = [*together, *([name] for name in sorted(alone))]
    columns = [
        _places([tuple(id(call.params[n]) for n in names) for call in quick]) for names in axes
    ]
    places = [sorted(set(column)) for column in columns]
    if len(axes) < 3 or len(quick) != prod(map(len, places)):
        return
    cover = {tuple(row) for row in AllPairs(places)}
    beyond = {
        id(call)
        for call, row in zip(quick, zip(*columns, strict=True), strict=True)
        if row not in cover
    }
    if metafunc.config.getoption("markexpr") == "not slow":
        metafunc._calls = [call for call in metafunc._calls if id(call) not in beyond]
    for call in metafunc._calls:
        if id(call) in beyond:
            call.marks.append(pytest.mark.slow.mark)


def _places(values: list[Any]) -> list[int]:
    """Of each value its place among those that differ."""
    known: dict[Any, int] = {}
    return [known.setdefault(value, len(known)) for value in values]
