"""Public objects are copied, pickled and saved; what they keep for speed is not.

A new class is found automatically: objects.py has to have an object of it.
"""

from __future__ import annotations

import copy
import io
import multiprocessing
import pickle
from typing import Any

import numpy as np
import pytest
from objects import ABSTRACT, MODULES, OBJECTS, class_of, pnn, public_classes

import posenc_native as pn
from posenc_native import configuration

NEEDS_TORCH = pytest.mark.skipif(pnn is None, reason="needs torch")
PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
Q = np.random.default_rng(0).standard_normal((1, 2, 5, 16)).astype(np.float32)


def copies(made: Any) -> list[Any]:
    pickled = [pickle.loads(pickle.dumps(made, protocol)) for protocol in PROTOCOLS]
    return [copy.copy(made), copy.deepcopy(made), *pickled]


def test_every_class_is_here():
    assert {class_of(name) for name in OBJECTS} == public_classes(pn)
    if pnn is not None:
        assert {class_of(name) for name in MODULES} == public_classes(pnn) - ABSTRACT


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
def test_copies_of_modules(name):
    import torch

    module = MODULES[name]()
    for twin in copies(module):
        assert type(twin) is type(module)
        assert repr(twin) == repr(module)
        assert twin.state_dict().keys() == module.state_dict().keys()
        for key, value in module.state_dict().items():
            assert torch.equal(twin.state_dict()[key], value)


@NEEDS_TORCH
@pytest.mark.parametrize("name", MODULES)
def test_modules_are_saved_and_loaded(name):
    import torch

    module, other = MODULES[name](), MODULES[name]()
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    whole = torch.load(file, weights_only=False)
    for key, value in module.state_dict().items():
        assert torch.equal(other.state_dict()[key], value)
        assert torch.equal(whole.state_dict()[key], value)


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
