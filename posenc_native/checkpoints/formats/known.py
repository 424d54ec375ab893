"""Descriptions of presets and of `Rotary` objects."""

from __future__ import annotations

from posenc_native.encodings.rotary.rotary import Rotary
from posenc_native.models.config import LayerGroup
from posenc_native.models.presets import rotary_preset

from .description import TRANSFORMERS, Description, Ground

_OWN = Ground("derived", "posenc_native", why="the definition of a Rotary")


def from_rotary(rotary: Rotary) -> Description:
    """The description of a rotation without layers."""
    arguments = rotary._arguments()
    del arguments["layout"]
    group = LayerGroup(None, (), arguments)
    return Description(
        repr(rotary), "Rotary", "posenc_native", "", (group,), tells_query_scale=True, ground=_OWN
    )


def from_preset(name: str) -> Description:
    """The description of a published model, by the name of its preset."""
    preset = rotary_preset(name)
    groups = tuple(
        LayerGroup(layer_type, (), preset.rotary_arguments(layer_type), preset.softmax_correction)
        for layer_type in (preset.layers or (None,))
    )
    remarks = (f"Layers without rotary encoding: {preset.nope}.",) if preset.nope else ()
    return Description(
        source=name,
        format=f"preset of {preset.source}",
        engine="transformers",
        model_type=name,
        groups=groups,
        length=preset.length,
        tells_query_scale=True,
        remarks=remarks,
        corrects_softmax=preset.corrects_softmax,
        ground=TRANSFORMERS,
    )
