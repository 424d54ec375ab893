"""Facts about models: what their code knows and their configurations do not say.

facts.json has a row for each ``model_type`` of Hugging Face configurations that is known here,
vision.json one for each vision encoder. The tests hold every row against the classes of
transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from .rows import rows


@dataclass(frozen=True)
class ModelFacts:
    """A row of facts.json; a model that has none there is as the defaults say.

    Attributes:
        source: whose code says so.
        same_as: the name under which transformers has the model, where it is published under
            another.
        refused: why a configuration, or the arguments of `Rotary`, cannot express its rotation.
        rotary_if: it is rotary only if an ``entry`` of its configuration has a ``value``; the
            ``default`` is what holds without the entry.
        defaults: parameters of the rotary encoding in force where a configuration does not give
            them, by layer type where layers differ. Base and share of the head hold for
            configurations that leave out just these; a scaling only if the configuration says
            nothing of any. What is not there is as in most: base 10000, the whole head, no scaling.
            None: nothing is known, and a configuration must say something itself.
        defaults_or_scaling: no default is left once a configuration has a rope_scaling.
        flat: parameters differ by layer type, though older configurations have one, flat
            rope_scaling: for each entry whether that is its scaling (``scaled``), and which key has
            its ``base``.
        labels: the entry of rope_parameters for each layer type, where they are not named alike.
        pairing: "interleaved" pairs neighbouring dims, "half" dim i with dim i + rotary_dim / 2.
            Where a configuration has rope_interleave, that decides. (Models with latent attention
            then store the rotated dims in another order, in q and k alike, which no attention score
            can tell.)
        backward: it turns the other way, by minus the angle.
        trailing: it rotates the last dims of a head instead of the first.
        head_dim: width of a head, or of its rotated part in latent attention, where a configuration
            does not give it: what the model's class takes, whatever its other sizes.
        global_head_dim: width of the heads in layers of full attention, where these are wider.
        mrope: tokens have a position on several axes (time, height, width): the ``order`` in which
            the pairs are shared out (see `mrope_axis_map`), and by default the number of pairs of
            each axis, ``section``.
        rows_and_columns: tokens have a row and a column, which drive the pairs in turn.
        full_attention_every: every n-th layer has full attention and the others a sliding window,
            where an older configuration gives no layer types.
        full_first: the first of n has full attention, not the last.
        others_linear: the others have linear attention instead, without positions.
        full_attention_nope: layers of full attention have no rotary encoding: "always", or
            "beside_windows", if there are layers with a sliding window; "": they have one.
        nope_every: every n-th layer has no rotary encoding unless no_rope_layers says otherwise; a
            negative number counts from the last layer, and layer_rope_theta decides.
        corrects_softmax: it corrects the softmax scale as `softmax_correction` says.
        note: a remark for readers of the table.
    """

    source: str = ""
    same_as: str = ""
    refused: str = ""
    rotary_if: Mapping[str, Any] | None = None
    defaults: Mapping[str, Any] | None = None
    defaults_or_scaling: bool = False
    flat: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    pairing: str = "half"
    backward: bool = False
    trailing: bool = False
    head_dim: int | None = None
    global_head_dim: int | None = None
    mrope: Mapping[str, Any] | None = None
    rows_and_columns: bool = False
    full_attention_every: int | None = None
    full_first: bool = False
    others_linear: bool = False
    full_attention_nope: str = ""
    nope_every: int = 0
    corrects_softmax: bool = False
    note: str = ""


@lru_cache(maxsize=1)
def model_facts() -> Mapping[str, ModelFacts]:
    """All rows of facts.json, by model_type."""
    return MappingProxyType({name: ModelFacts(**row) for name, row in rows("facts").items()})


def facts_of(model_type: str) -> ModelFacts:
    """The row of a model, or what is true of models without one."""
    return model_facts().get(model_type, _OF_OTHERS)


_OF_OTHERS = ModelFacts()


@lru_cache(maxsize=1)
def vision_models() -> Mapping[str, Mapping[str, Any]]:
    """For each vision encoder of vision.json, the arguments of `axial_rotary` that it changes.

    The names are those of folders in transformers ("qwen2_5_vl", "pixtral") or of models in timm
    ("eva02"). base is the default of the configuration. Positions are height and width (time,
    height and width with three axes), counted in patches from 0 if the row does not say otherwise
    under ``positions``.
    """
    return MappingProxyType({name: row["axial"] for name, row in rows("vision").items()})
