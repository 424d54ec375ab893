"""explain says of an engine what the engine did (records/), or that it is unknown."""

import json
from pathlib import Path

import numpy as np
import pytest
from records import ENGINES, configurations_of, read_record

import posenc_native as pn
from posenc_native.checkpoints.formats.description import at_length

# Records have six digits of numbers that engines compute in float32.
_FREQUENCY = 2e-5
_MAGNITUDE = 1e-5

_ANSWERS = [
    pytest.param(engine, name, answer, id=f"{engine}: {name}")
    for engine in ENGINES
    for name, answer in read_record(engine).answers.items()
]


@pytest.mark.parametrize("engine", ENGINES)
def test_the_record_is_of_todays_configurations(engine):
    recorded = {name: entry["configuration"] for name, entry in read_record(engine).answers.items()}
    assert recorded == json.loads(json.dumps(configurations_of(engine)))


@pytest.mark.parametrize(("engine", "name", "answer"), _ANSWERS)
def test_explain_says_what_the_engine_did(engine, name, answer, tmp_path):
    source = _source(engine, answer["configuration"], tmp_path)
    if "refused" in answer:
        _refuses(source)
        return
    explanation = pn.explain(source)
    ground = explanation.description.ground
    if ground.kind == "unknown":
        assert ground.why
        return
    if ground.kind == "run":
        assert ground.version in read_record(engine).version
    length = answer["configuration"].get("seq_len")
    for layer, expected in _by_layer(answer["layers"]).items():
        _same(_rotary(explanation, layer, length), expected, layer)
    said = {i for group in explanation.layers for i in group.layers}
    assert said <= {*_by_layer(answer["layers"])}


def _source(engine, configuration, folder: Path):
    """What explain reads; adapters of engines with files of their own write them."""
    return configuration


def _refuses(source):
    """An engine's refusal is an error, or at least no verdict on the ground of a run."""
    try:
        explanation = pn.explain(source)
    except (ValueError, TypeError):
        return
    assert explanation.description.ground.kind == "unknown"


def _by_layer(groups):
    return {layer: group["rotary"] for group in groups for layer in group["layers"]}


def _rotary(explanation, layer, length):
    groups = [group for group in explanation.description.groups if layer in group.layers]
    groups = groups or [group for group in explanation.description.groups if not group.layers]
    assert groups, f"explain says nothing of layer {layer}"
    arguments = groups[0].arguments
    if arguments is None:
        return None
    return pn.Rotary(**(at_length(arguments, length) if length else arguments))


def _same(rotary, expected, layer):
    assert (rotary is None) == (expected is None), f"layer {layer}"
    if rotary is None:
        return
    frequencies = np.asarray(expected["frequencies"])
    # A pair that stands still does not show its place: the record may have fewer of them.
    turning = (
        rotary.inv_freq
        if len(rotary.inv_freq) == len(frequencies)
        else np.trim_zeros(rotary.inv_freq, "b")
    )
    assert rotary.pairing == expected["pairing"]
    assert rotary.rotary_start == expected["rotary_start"]
    np.testing.assert_allclose(turning, frequencies, rtol=_FREQUENCY, atol=0)
    np.testing.assert_allclose(rotary.scale, expected["magnitude"], rtol=_MAGNITUDE)
    if "axes" in expected:
        axes = np.zeros(len(frequencies), int) if rotary.axis_map is None else rotary.axis_map
        driven = [axis for axis in expected["axes"] if axis is not None]
        assert [
            a for a, axis in zip(axes, expected["axes"], strict=True) if axis is not None
        ] == driven
