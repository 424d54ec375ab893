"""The options of a rotation are the same wherever they are declared.

`posenc_native.core.calls.rotation` has them as records for the floors below and as TypedDicts for type
checkers; the public functions have them as keywords of their own, so that help shows them.
"""

from __future__ import annotations

import inspect
import typing

import pytest

import posenc_native as pn
from posenc_native.core.calls import rotation
from posenc_native.core.calls.rotation import Rotation, TableRotation

# What is rotated and what is written to are not options.
OTHERS = {"self", "x", "q", "k", "out", "inplace"}
# Fields for k, of options that are pairs.
OF_K = "k_"
# How results lie in memory is one of calls, and none of a rotation.
OF_CALLS = {"contiguous"}
FUNCTIONS = {
    "apply_rotary": (pn.apply_rotary, Rotation, rotation.RotationOptions),
    "apply_rotary_qk": (pn.apply_rotary_qk, Rotation, rotation.RotationOptionsOfTwo),
    "apply_rotary_tables": (pn.apply_rotary_tables, TableRotation, rotation.TableRotationOptions),
    "apply_rotary_qk_tables": (
        pn.apply_rotary_qk_tables,
        TableRotation,
        rotation.TableRotationOptionsOfTwo,
    ),
}


UNSAID = ("layout", "pairing", "rotary_start", "scale")


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
    assert list(found) == [name for name in record._fields if not name.startswith(OF_K)]
    defaults = {
        option: parameter.default
        for option, parameter in found.items()
        if parameter.default is not parameter.empty
    }
    # None: not given, so that a description in place of frequencies can say it.
    assert {name: defaults.pop(name) for name in UNSAID if name in defaults} == dict.fromkeys(
        name for name in UNSAID if name in record._fields
    )
    for option, default in defaults.items():
        assert (type(default), default) == (
            type(record._field_defaults[option]),
            record._field_defaults[option],
        )
    of_record = {name for name in record._field_defaults if not name.startswith(OF_K)}
    assert of_record == {*defaults, *(name for name in UNSAID if name in record._fields)}


@pytest.mark.parametrize("record", [Rotation, TableRotation])
def test_a_field_of_k_stands_for_a_pair(record):
    same = record(1, 2)
    assert not rotation.apart(same)
    assert rotation.of_each(same) == (same, same)
    for option, of_k in rotation._OF_K.items():
        if option not in record._fields:
            assert of_k not in record._fields or record is TableRotation
            continue
        pair = same._replace(**{option: 3, of_k: 4})
        assert rotation.is_pair(pair, option)
        of_q, k = rotation.of_each(pair)
        assert (getattr(of_q, option), getattr(k, option)) == (3, 4)
        assert not rotation.apart(of_q)
        assert not rotation.apart(k)


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
