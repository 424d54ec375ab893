"""The options of a rotation are the same wherever they are declared.

`posenc_native.base.rotation` has them as records for the floors below and as TypedDicts for type
checkers; the public functions have them as keywords of their own, so that help shows them.
"""

from __future__ import annotations

import inspect
import typing

import pytest

import posenc_native as pn
from posenc_native.base import rotation
from posenc_native.base.rotation import Rotation, TableRotation

# What is rotated and what is written to are not options.
OTHERS = {"self", "x", "q", "k", "out", "inplace"}
# How results lie in memory is one of calls, and none of a rotation.
OF_CALLS = {"contiguous"}
FUNCTIONS = {
    "apply_rotary": (pn.apply_rotary, Rotation, rotation.RotationOptions),
    "apply_rotary_qk": (pn.apply_rotary_qk, Rotation, rotation.RotationOptions),
    "apply_rotary_tables": (pn.apply_rotary_tables, TableRotation, rotation.TableRotationOptions),
    "apply_rotary_qk_tables": (
        pn.apply_rotary_qk_tables,
        TableRotation,
        rotation.TableRotationOptions,
    ),
}


def parameters(function: object) -> dict[str, inspect.Parameter]:
    """The options among the parameters of a function."""
    found = inspect.signature(function).parameters  # type: ignore[arg-type]
    return {name: parameter for name, parameter in found.items() if name not in OTHERS}


def keywords(function: object) -> list[str]:
    return [name for name, p in parameters(function).items() if p.kind is p.KEYWORD_ONLY]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_records_have_the_options_of_the_functions(name):
    function, record, _ = FUNCTIONS[name]
    found = {name: p for name, p in parameters(function).items() if name not in OF_CALLS}
    assert list(found) == list(record._fields)
    defaults = {
        option: parameter.default
        for option, parameter in found.items()
        if parameter.default is not parameter.empty
    }
    assert defaults == record._field_defaults
    for option, default in defaults.items():
        assert type(default) is type(record._field_defaults[option])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_typed_keywords_are_those_of_the_functions(name):
    function, _, options = FUNCTIONS[name]
    assert keywords(function) == list(options.__annotations__)
    assert options.__required_keys__ == frozenset()


@pytest.mark.parametrize("kind", [pn.Rotary, pn.FullWidthRotary])
def test_typed_keywords_are_those_of_the_objects(kind):
    for function in (kind.__call__, kind.apply):
        found = [name for name in keywords(function) if name not in OF_CALLS]
        assert found == list(rotation.CallOptions.__annotations__)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_annotations_are_those_of_the_functions(name):
    function, _, options = FUNCTIONS[name]
    found = parameters(function)
    for option, annotation in options.__annotations__.items():
        written = (
            annotation.__forward_arg__ if isinstance(annotation, typing.ForwardRef) else annotation
        )
        assert found[option].annotation == written, option
