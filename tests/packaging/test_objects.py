"""Public objects are copied, pickled and saved; their repr is the call that makes them.

A new class is found automatically: objects.py has to have an object of it. What objects keep for
speed is not pickled, and what is the default is not said.
"""

from __future__ import annotations

import copy
import inspect
import io
import math
import multiprocessing
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from objects import ABSTRACT, MODULES, OBJECTS, all_classes, class_of, pnn, public_classes

import posenc_native as pn
from posenc_native.core.documents import reprs as calls
from posenc_native.engines import configuration

NEEDS_TORCH = pytest.mark.skipif(pnn is None, reason="needs torch")
PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
NAMES = all_classes()
finite = st.floats(-1e6, 1e6, allow_nan=False)
positive = st.floats(1e-3, 1e9)
Q = np.random.default_rng(0).standard_normal((1, 2, 5, 16)).astype(np.float32)


def copies(made: Any) -> list[Any]:
    pickled = [pickle.loads(pickle.dumps(made, protocol)) for protocol in PROTOCOLS]
    return [copy.copy(made), copy.deepcopy(made), *pickled]


def test_every_class_is_here():
    # Tables are a tuple of arrays, which == compares element by element.
    assert {class_of(name) for name in OBJECTS} == {*NAMES} - {"Tables"}
    if pnn is not None:
        from torch.nn import Module

        modules = {n for n in public_classes(pnn) if issubclass(getattr(pnn, n), Module)}
        assert {class_of(name) for name in MODULES} == modules - ABSTRACT


@pytest.mark.parametrize("name", OBJECTS)
def test_copies_are_equal(name):
    made = OBJECTS[name]()
    for twin in copies(made):
        assert type(twin) is type(made)
        assert twin == made
        assert repr(twin) == repr(made)
        if type(made).__hash__ is not None and class_of(name) != "PairingEvidence":
            assert hash(twin) == hash(made)


@pytest.mark.parametrize("name", [name for name in OBJECTS if "Rotary" in name])
def test_copies_rotate_alike(name, backend):
    rope = OBJECTS[name]()
    head_dim = rope.head_dim if isinstance(rope, pn.Rotary) else rope.first.head_dim
    x = np.resize(Q, (1, 2, 5, head_dim))
    axes = getattr(rope, "axis_map", None)
    points = np.arange(5) if axes is None else np.arange(15).reshape(3, 5)[: axes.max() + 1]
    for twin in copies(rope):
        np.testing.assert_array_equal(twin.apply(x, points), rope.apply(x, points))


def in_another_process(made: Any) -> tuple[str, Any, str]:
    table = made.tables(4)[0] if isinstance(made, pn.Rotary) else made(4)
    return repr(made), table, configuration.configuration()["backend"]


@pytest.fixture(scope="module")
def spawned():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        yield pool


@pytest.mark.parametrize("name", ["Rotary", "SinusoidalSpec"])
def test_a_process_that_is_spawned_has_the_same(name, spawned):
    made = OBJECTS[name]()
    text, table, backend = spawned.apply(in_another_process, (made,))
    assert text == repr(made)
    np.testing.assert_array_equal(table, in_another_process(made)[1])
    assert backend == configuration.configuration()["backend"]


@NEEDS_TORCH
@pytest.mark.parametrize("name", MODULES)
def test_modules_are_copied_saved_and_loaded(name):
    import torch

    module, other = MODULES[name](), MODULES[name]()
    parameters, whole = io.BytesIO(), io.BytesIO()
    torch.save(module.state_dict(), parameters)
    torch.save(module, whole)
    for file in (parameters, whole):
        file.seek(0)
    other.load_state_dict(torch.load(parameters, weights_only=True))
    for twin in (*copies(module), torch.load(whole, weights_only=False), other):
        assert type(twin) is type(module)
        assert repr(twin) == repr(module)
        assert twin.state_dict().keys() == module.state_dict().keys()
        for key, value in module.state_dict().items():
            assert torch.equal(twin.state_dict()[key], value)


@NEEDS_TORCH
def test_tensors_that_are_kept_are_not_pickled():
    """They are a cache: of another device, they could not even be loaded everywhere."""
    import torch

    rope = pn.Rotary(256)
    before = pickle.dumps(rope)
    rope(torch.zeros(1, 1, 2, 256), torch.zeros(1, 1, 2, 256))
    rope._prepare(torch.device("meta"))
    assert rope._tensors is not None
    assert rope._elsewhere
    assert pickle.dumps(rope) == before
    twin = copy.deepcopy(rope)
    assert twin._elsewhere == {}
    assert len(before) < 400


def test_a_hugging_face_scaling_survives():
    """Also where it came as the configuration's own object."""
    config = {
        "model_type": "llama", "head_dim": 64, "rope_theta": 1e4, "max_position_embeddings": 9,
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    }  # fmt: skip
    rope = pn.Rotary.from_config(config)
    for twin in copies(rope):
        assert twin == rope


def test_read_only_stays_read_only():
    for twin in copies(pn.Rotary(8, axis_map=[0, 1, 0, 1])):
        with pytest.raises(ValueError, match="read-only"):
            twin.inv_freq[0] = 2.0
        with pytest.raises(AttributeError, match="immutable"):
            twin.base = 3.0


# --- errors ---------------------------------------------------------------------------------------


def methods_of_private_classes(kind: type, public: set[str]) -> list[str]:
    """The public methods that need arguments and are defined by a private class of the package."""
    found = []
    members = inspect.getmembers(kind, lambda one: inspect.isfunction(one) or inspect.ismethod(one))
    for name, method in members:
        where, _, _ = method.__qualname__.rpartition(".")
        ours = method.__module__.startswith("posenc_native.") and where not in public
        if ours and (name == "__call__" or not name.startswith("_")):
            parameters = inspect.signature(method).parameters.values()
            several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
            needed = [
                one.name
                for one in parameters
                if one.default is one.empty and one.kind not in several and one.name != "self"
            ]
            if needed:
                found.append(name)
    return found


@pytest.mark.parametrize("module", [pn, pytest.param(pnn, marks=NEEDS_TORCH)])
def test_a_call_without_arguments_names_the_public_class(module):
    """Python's own error names the class that defines the method."""
    checked = set()
    for name, make in {**OBJECTS, **MODULES}.items() if module else ():
        classes = {*NAMES} if module is pn else public_classes(module)
        if class_of(name) in classes:
            made = make()
            for method in methods_of_private_classes(type(made), classes):
                with pytest.raises(TypeError, match=rf"^{type(made).__name__}[.:].* got no "):
                    getattr(made, method)()
                checked.add(method)
    assert checked >= ({"__call__", "apply", "append"} if module is pn else {"append", "diagonals"})


# --- repr -----------------------------------------------------------------------------------------


def evaluated(text: str) -> Any:
    return eval(text, dict(NAMES))


@pytest.mark.parametrize("name", sorted(set(OBJECTS) - {"Rotary of a preset"}))
def test_repr_makes_an_equal_one(name):
    made = OBJECTS[name]()
    assert evaluated(repr(made)) == made


@NEEDS_TORCH
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


@NEEDS_TORCH
def test_what_is_the_default_of_a_module_is_not_said():
    assert repr(pnn.RotaryEmbedding(64)) == "RotaryEmbedding(64)"
    assert repr(pnn.ALiBi(8)) == "ALiBi(8)"
    assert repr(pnn.T5RelativeBias(8, 64)) == "T5RelativeBias(8, num_buckets=64)"
    assert pnn.RelativePositionalEncoding(64, 4).extra_repr() == "64, 4"
    learned = pnn.LearnedRotaryEmbedding(8, num_heads=2, scale=0.5)
    assert repr(learned) == "LearnedRotaryEmbedding(8, inv_freq=<[2, 4]>, scale=0.5)"


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (pn.Rotary(64), "Rotary(64)"),
        (pn.Rotary(64, base=5e5, rotary_dim=32), "Rotary(64, base=500000.0, rotary_dim=32)"),
        (pn.Rotary(64, rotary_dim=64, scale=1.0), "Rotary(64)"),
        (pn.SinusoidalSpec(8, shift=1), "SinusoidalSpec(8, shift=1.0)"),
        (pn.sinusoids.GridCoordinates(), "GridCoordinates()"),
        (pn.sinusoids.GridCoordinates(first=np.float32(0.5)), "GridCoordinates(first=0.5)"),
        (pn.Rotary(np.int64(64), pairing=np.int64(32)), "Rotary(64, pairing=32)"),
        # More frequencies than anybody would write: a picture of them, and no call.
        (
            pn.Rotary(128, inv_freq=range(64)),
            "Rotary(128, inv_freq=(0, 1, 2, ..., 63: 64 values))",
        ),
    ],
)
def test_text(made, text):
    assert repr(made) == text


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
    full = pn.rotary.FullWidthRotary(rope, rope)
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
        options["grid"] = pn.sinusoids.GridCoordinates(
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
