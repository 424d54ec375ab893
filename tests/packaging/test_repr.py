"""The repr of a public object is the call that makes it, without what is the default."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from objects import ABSTRACT, MODULES, OBJECTS, class_of, pnn, public_classes

import posenc_native as pn
from posenc_native.base import calls

NAMES = {name: getattr(pn, name) for name in public_classes(pn)}
finite = st.floats(-1e6, 1e6, allow_nan=False)
positive = st.floats(1e-3, 1e9)


def evaluated(text: str) -> Any:
    return eval(text, dict(NAMES))


def test_every_class_is_here():
    assert {class_of(name) for name in OBJECTS} == public_classes(pn)
    if pnn is not None:
        assert {class_of(name) for name in MODULES} == public_classes(pnn) - ABSTRACT


@pytest.mark.parametrize("name", sorted(set(OBJECTS) - {"Rotary of a preset"}))
def test_repr_makes_an_equal_one(name):
    made = OBJECTS[name]()
    assert evaluated(repr(made)) == made


@pytest.mark.skipif(pnn is None, reason="needs torch")
@pytest.mark.parametrize("name", sorted(set(MODULES) - {"LearnedRotaryEmbedding"}))
def test_what_print_says_of_a_module_makes_one(name):
    module = MODULES[name]()
    kind = type(module)
    if kind is pnn.TimestepEmbedding:  # its parts describe it
        module, kind = module.sinusoids, type(module.sinusoids)
    text = f"make({module.extra_repr()})"
    again = eval(text, {**NAMES, "make": kind})
    assert again.extra_repr() == module.extra_repr()
    shapes = [{k: v.shape for k, v in m.state_dict().items()} for m in (again, module)]
    assert shapes[0] == shapes[1]


@pytest.mark.skipif(pnn is None, reason="needs torch")
def test_what_is_the_default_is_not_said():
    assert repr(pnn.RotaryEmbedding(64)) == "RotaryEmbedding(64)"
    assert repr(pnn.ALiBi(8)) == "ALiBi(8)"
    assert repr(pnn.T5RelativeBias(8, 64)) == "T5RelativeBias(8, num_buckets=64)"
    assert pnn.RelativePositionalEncoding(64, 4).extra_repr() == "64, 4"
    learned = pnn.LearnedRotaryEmbedding(8, num_heads=2, scale=0.5)
    assert repr(learned) == "LearnedRotaryEmbedding(8, inv_freq=<[2, 4]>, scale=0.5)"


def test_text():
    assert repr(pn.Rotary(64)) == "Rotary(64)"
    assert (
        repr(pn.Rotary(64, base=5e5, rotary_dim=32)) == "Rotary(64, base=500000.0, rotary_dim=32)"
    )
    assert repr(pn.Rotary(64, rotary_dim=64, scale=1.0)) == "Rotary(64)"
    assert repr(pn.SinusoidalSpec(8, shift=1)) == "SinusoidalSpec(8, shift=1.0)"
    assert repr(pn.GridCoordinates()) == "GridCoordinates()"
    assert repr(pn.GridCoordinates(first=np.float32(0.5))) == "GridCoordinates(first=0.5)"
    assert repr(pn.Rotary(np.int64(64), pairing=np.int64(32))) == "Rotary(64, pairing=32)"
    # More frequencies than anybody would write: a picture of them, and no call.
    many = repr(pn.Rotary(128, inv_freq=range(64)))
    assert many == "Rotary(128, inv_freq=(0, 1, 2, ..., 63: 64 values))"


def test_true_is_not_one():
    def function(flag: bool = True, number: float = 1.0) -> None: ...

    assert calls.call_arguments(function, flag=True, number=1.0) == ""
    assert calls.call_arguments(function, flag=1, number=True) == "flag=1, number=True"
    assert calls.call_arguments(function, other=3) == "other=3"


@given(
    st.integers(1, 8), st.integers(0, 3), positive, st.sampled_from(["half", "interleaved", 2]),
    st.one_of(st.none(), positive), st.one_of(st.none(), finite), st.data(),
)  # fmt: skip
def test_any_rotary(pairs, start, base, pairing, factor, scale, data):
    options: dict[str, Any] = {"rotary_start": start, "pairing": pairing, "scale": scale}
    if data.draw(st.booleans()):
        options["inv_freq"] = data.draw(st.lists(finite, min_size=pairs, max_size=pairs))
    else:
        options.update(base=max(base, 1.001), rotary_dim=2 * pairs)
        if factor is not None:
            options["scaling"] = {"rope_type": "linear", "factor": max(factor, 1.0)}
    if data.draw(st.booleans()):
        options["axis_map"] = data.draw(st.lists(st.integers(0, 2), min_size=pairs, max_size=pairs))
    rope = pn.Rotary(2 * pairs + start, **options)
    assert evaluated(repr(rope)) == rope
    assert hash(evaluated(repr(rope))) == hash(rope)
    full = pn.FullWidthRotary(rope, rope)
    assert evaluated(repr(full)) == full


@given(
    st.integers(1, 3), st.integers(1, 4), positive, finite, st.booleans(),
    st.sampled_from(["interleaved", "sin_cos", "cos_sin"]),
    st.sampled_from(["outer", "middle", "inner"]),
    st.one_of(st.none(), st.tuples(finite, finite, finite, finite, st.booleans())), st.data(),
)  # fmt: skip
def test_any_spec(axes, pairs, base, scale, several, layout, place, grid, data):
    options: dict[str, Any] = {}
    if grid is not None:
        options["grid"] = pn.GridCoordinates(
            first=grid[0], extent=grid[1], low=grid[2], drop=grid[3], descending=grid[4]
        )
        assert evaluated(repr(options["grid"])) == options["grid"]
    if data.draw(st.booleans()):
        options["inv_freq"] = tuple(data.draw(st.lists(finite, min_size=pairs, max_size=pairs)))
    spec = pn.SinusoidalSpec(
        dim=2 * axes * pairs,
        axis_order=tuple(data.draw(st.permutations(range(axes)))),
        base=(base,) * axes if several else base,
        scale=scale,
        layout=layout,
        axis_place=place,
        zero_rows=pairs,
        **options,
    )
    assert evaluated(repr(spec)) == spec
    assert hash(evaluated(repr(spec))) == hash(spec)


def test_names_of_the_package_serve_as_well():
    rope = pn.Rotary(8, base=math.pi)
    assert eval(f"pn.{rope!r}", {"pn": pn}) == rope
