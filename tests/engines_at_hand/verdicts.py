"""Whether an explanation says what an engine did."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import posenc_native as pn
from posenc_native.checkpoints.explanations.explanation import Explanation
from posenc_native.checkpoints.formats.description import at_length

# Records have six digits of numbers that engines compute in float32.
_FREQUENCY = 2e-5
_MAGNITUDE = 1e-5


def assert_same(explanation: Explanation, answer: Mapping[str, Any]) -> None:
    """AssertionError unless every attention layer rotates as the engine's did."""
    length = answer["configuration"].get("seq_len")
    by_layer = _by_layer(answer["layers"])
    for layer, expected in by_layer.items():
        _same(_rotary(explanation, layer, length), expected, layer)
        if expected and "softmax_correction" in expected:  # adapters that know it record it
            np.testing.assert_allclose(
                _group(explanation, layer).softmax_correction,
                expected["softmax_correction"],
                rtol=_MAGNITUDE,
            )
    said = {layer for group in explanation.layers for layer in group.layers}
    assert said <= {*by_layer}, f"attention in {sorted(said)}, the engine's in {sorted(by_layer)}"


def _by_layer(groups):
    return {layer: group["rotary"] for group in groups for layer in group["layers"]}


def _group(explanation, layer):
    groups = [group for group in explanation.description.groups if layer in group.layers]
    groups = groups or [group for group in explanation.description.groups if not group.layers]
    assert groups, f"explain says nothing of layer {layer}"
    return groups[0]


def _rotary(explanation, layer, length):
    arguments = _group(explanation, layer).arguments
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
