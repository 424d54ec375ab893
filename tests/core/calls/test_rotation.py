"""The options of a rotation are the same wherever they are declared.

`posenc_native.core.calls.rotation` has them as a record for the layers below and as TypedDicts for
type checkers; the public functions have them as keywords of their own, so that help shows them.
"""

from __future__ import annotations

import inspect
import typing

import pytest

import posenc_native as pn
from posenc_native.core.calls import rotation
from posenc_native.core.calls.rotation import Rotation
from posenc_native.core.calls.suggestions.vocabulary import MISSING
from posenc_native.encodings.rotary import verbs

# What is rotated and what is written to are not options.
OTHERS = {"self", "x", "q", "k", "out", "q_scale", "k_scale", "inplace"}
# Fields for k, of options that are pairs.
OF_K = "k_"
# How results lie in memory, and what axes mean, are options of calls and none of a rotation.
OF_CALLS = {"contiguous", "inv_freq_axes"}
FUNCTIONS = {
    "apply_rotary": (pn.apply_rotary, rotation.RotationOptions),
    "apply_rotary_qk": (pn.apply_rotary_qk, rotation.RotationOptionsOfTwo),
}


UNSAID = ("layout", "pairing", "rotary_start", "scale")


def parameters(function: object) -> dict[str, inspect.Parameter]:
    """The options among the parameters of a function."""
    found = inspect.signature(function).parameters  # type: ignore[arg-type]
    return {name: parameter for name, parameter in found.items() if name not in OTHERS}


def keywords(function: object) -> list[str]:
    return [name for name, p in parameters(function).items() if p.kind is p.KEYWORD_ONLY]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_record_has_the_options_of_the_functions(name):
    function, _ = FUNCTIONS[name]
    found = {name: p for name, p in parameters(function).items() if name not in OF_CALLS}
    assert list(found) == [name for name in Rotation._fields if not name.startswith(OF_K)]
    defaults = {
        option: parameter.default
        for option, parameter in found.items()
        if parameter.default is not parameter.empty
    }
    # None: not given, so that a description in place of frequencies can say it.
    assert {name: defaults.pop(name) for name in UNSAID} == dict.fromkeys(UNSAID)
    for option, default in defaults.items():
        assert (type(default), default) == (
            type(Rotation._field_defaults[option]),
            Rotation._field_defaults[option],
        )
    of_record = {name for name in Rotation._field_defaults if not name.startswith(OF_K)}
    assert of_record == {*defaults, *UNSAID}


BY_FREQUENCIES, BY_TABLES = Rotation(1, 2), Rotation(None, pn.Tables(1, 2))  # type: ignore[arg-type]
PAIRS = {
    "positions": (BY_FREQUENCIES._replace(positions=3, k_positions=4), 3, 4),
    "rotary_start": (BY_FREQUENCIES._replace(rotary_start=3, k_start=4), 3, 4),
    "rotary_start of tables": (BY_TABLES._replace(rotary_start=3, k_start=4), 3, 4),
    "cos": (BY_TABLES._replace(inv_freq=pn.Tables((3, 4), (5, 6))), 3, 4),
    "sin": (BY_TABLES._replace(inv_freq=pn.Tables((5, 6), (3, 4))), 3, 4),
    "rows": (BY_TABLES._replace(inv_freq=pn.Tables(1, 2, (3, 4))), 3, 4),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("same", [BY_FREQUENCIES, BY_TABLES], ids=["frequencies", "tables"])
def test_without_a_pair_q_and_k_are_alike(same):
    assert not rotation.apart(same)
    assert rotation.of_each(same) == (same, same)


@pytest.mark.parametrize("name", PAIRS)
def test_of_a_pair_each_has_its_own(name):
    option = name.partition(" ")[0]
    pair, of_q, of_k = PAIRS[name]
    assert rotation.is_pair(pair, option)
    assert rotation.apart(pair)
    q, k = rotation.of_each(pair)
    assert (q.option(option), k.option(option)) == (of_q, of_k)
    assert not rotation.apart(q)
    assert not rotation.apart(k)


@pytest.mark.parametrize("rotated", [pair for pair, _, _ in PAIRS.values()], ids=list(PAIRS))
def test_operators_have_the_options_one_by_one(rotated):
    tables = rotation.by_tables(rotated)
    options = rotation.flat(rotated)
    assert len(options) == len(rotation.schema(tables))
    assert not any(isinstance(option, tuple) for option in options)
    assert rotation.from_flat(options, tables) == rotated
    # Options at the end may be omitted.
    plain = BY_TABLES if tables else BY_FREQUENCIES
    assert rotation.from_flat(rotation.flat(plain)[:2], tables) == plain


@pytest.mark.parametrize("name", FUNCTIONS)
def test_typed_keywords_are_those_of_the_functions(name):
    function, options = FUNCTIONS[name]
    assert keywords(function) == list(options.__annotations__)
    assert options.__required_keys__ == frozenset()


@pytest.mark.parametrize("kind", [pn.Rotary, pn.rotary.FullWidthRotary])
def test_typed_keywords_are_those_of_the_objects(kind):
    for function in (kind.__call__, kind.apply):
        found = [name for name in keywords(function) if name not in OF_CALLS]
        assert found == list(rotation.CallOptions.__annotations__)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_annotations_are_those_of_the_functions(name):
    function, options = FUNCTIONS[name]
    found = parameters(function)
    for option, annotation in options.__annotations__.items():
        written = (
            annotation.__forward_arg__ if isinstance(annotation, typing.ForwardRef) else annotation
        )
        assert found[option].annotation == written, option


@pytest.mark.parametrize(
    ("method", "function"), [("norm", pn.norm_rotary_qk), ("append", pn.rotary_append)]
)
def test_methods_pass_every_option_of_their_function_on(method, function, monkeypatch):
    """They repeat its keywords and pass them by position: each arrives under its name."""
    described = {"inv_freq", "pairing", "rotary_start", "axis_map", "scale"}
    own = inspect.signature(getattr(pn.Rotary, method)).parameters
    theirs = {
        name: p.default
        for name, p in inspect.signature(function).parameters.items()
        if name not in described | {"inv_freq_axes"}  # which is last, and its default
    }
    assert {name: p.default for name, p in own.items() if name not in ("self", "positions")} == {
        name: default for name, default in theirs.items() if name != "positions"
    }
    names = function.__code__.co_varnames
    passed = {}

    def receive(*args):
        passed.update(zip(names, args, strict=False))  # behind the arguments come local variables

    monkeypatch.setattr(verbs, function.__name__, receive)
    rope, values = pn.Rotary(8), {name: object() for name in theirs}
    getattr(rope, method)(**values)
    more = passed.pop("more")
    assert more is MISSING
    assert passed == {**values, "inv_freq": rope, **dict.fromkeys(described - {"inv_freq"})}
