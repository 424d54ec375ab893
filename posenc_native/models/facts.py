"""Facts about models that their code defines and their configurations leave out.

facts.json has a row for each known ``model_type`` of Hugging Face configurations, vision.json one
for each vision encoder. The tests compare every row with the classes of transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Literal

from .rows import rows


@dataclass(frozen=True)
class ModelFacts:
    """A row of facts.json; a model without a row has the default values.

    Attributes:
        source: the code that the row was read from.
        same_as: the name of the model in transformers, if it is published under another name.
        refused: why a configuration, or the arguments of `Rotary`, cannot express its rotation.
        unrotated: it has no rotary encoding, whatever its configuration says.
        rotary_if: it is rotary only if an ``entry`` of its configuration has a ``value``; the
            ``default`` applies without the entry.
        defaults: default parameters of the rotary encoding, by layer type if layers differ. Base
            and share of the head apply to configurations that leave out just these; a scaling
            applies only if the configuration names none. A parameter that is missing here is as in
            most models: base 10000, the whole head, no scaling. None: nothing is known, and the
            configuration must give the parameters.
        defaults_or_scaling: the defaults do not apply if a configuration has a rope_scaling.
        flat: parameters differ by layer type, but older configurations have one flat rope_scaling:
            for each entry whether it has that scaling (``scaled``), and which key gives its
            ``base``.
        labels: the entry of rope_parameters for each layer type, if the names differ.
        base: the entry with the base, if its class reads none of the usual names.
        fixed: its class reads no parameter of the rotation but rotary_dim.
        share: the entry beside the parameters with the share of the head that rotates, if its class
            reads one name alone; "none" if it reads none there.
        parameters_only: its class does not read rope_scaling.
        own_parameters: without parameters its class has its own, and then does not read the base
            and the share beside them.
        scalings: the scalings that its class in transformers accepts; empty for all.
        needs: parameters without which its class in transformers fails.
        query_scale: layers that multiply queries by a factor of their positions: "rotating", by the
            parameter llama_4_scaling_beta, or "nope", by entries of Llama 4; "": none.
        flat_unknown: how its class reads parameters without layer types is not known here.
        rotary_dim_unread: its class does not read rotary_dim, which its configuration has.
        widening: by how much its attention is wider than the model.
        whole_share: its class rotates the whole head, whatever partial_rotary_factor says.
        pairing: "interleaved" pairs neighboring dims, "half" dim i with dim i + rotary_dim / 2.
            A configuration's rope_interleave overrides it. (Models with latent attention then store
            the rotated dims in another order, in both q and k, which changes no attention score.)
        backward: it rotates in the other direction, by minus the angle.
        trailing: it rotates the last dims of a head instead of the first.
        head_dim: width of a head, or of its rotated part in latent attention, if a configuration
            does not give it: the default of the model's class, regardless of its other sizes.
        global_head_dim: width of the heads in layers of full attention, if these are wider.
        mrope: tokens have a position on several axes (time, height, width): the ``order`` in which
            the pairs are shared out (see `mrope_axis_map`), and the default number of pairs of
            each axis, ``section``.
        rows_and_columns: tokens have a row and a column, which drive the pairs alternately.
        full_attention_every: every n-th layer has full attention and the others a sliding window,
            if an older configuration gives no layer types.
        full_first: the first of n has full attention, not the last.
        others_linear: the others have linear attention instead, without positions.
        layers: types of the layers if the configuration does not list them: those in ``first``,
            then a ``pattern`` that repeats. Or an ``entry`` decides that ``holds`` the "indices" of
            layers with full attention (the first is ``from`` or 0), the period of such layers
            ("every"), "types" that repeat, or "letters", whose types are in ``letters``. Other
            layers then have linear attention. ``last`` is the type of the last layer, ``some`` that
            of the last if no other has it. A ``whole`` pattern is one of all layers.
        full_attention_nope: layers of full attention have no rotary encoding: "always", or
            "beside_windows", if there are layers with a sliding window; "": they have one.
        nope_every: every n-th layer has no rotary encoding unless no_rope_layers says otherwise; a
            negative number counts from the last layer, and layer_rope_theta decides.
        corrects_softmax: it corrects the softmax scale by `softmax_correction`.
        note: a remark for readers of the table.
    """

    source: str = ""
    same_as: str = ""
    refused: str = ""
    unrotated: bool = False
    rotary_if: Mapping[str, Any] | None = None
    defaults: Mapping[str, Any] | None = None
    defaults_or_scaling: bool = False
    flat: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    base: str = ""
    fixed: bool = False
    share: str | None = None
    parameters_only: bool = False
    own_parameters: bool = False
    scalings: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    query_scale: str = ""
    flat_unknown: bool = False
    rotary_dim_unread: bool = False
    widening: int = 1
    whole_share: bool = False
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
    layers: Mapping[str, Any] = field(default_factory=dict)
    full_attention_nope: str = ""
    nope_every: int = 0
    corrects_softmax: bool = False
    note: str = ""


@lru_cache(maxsize=1)
def model_facts() -> Mapping[str, ModelFacts]:
    """All rows of facts.json, by model_type."""
    return MappingProxyType({name: ModelFacts(**row) for name, row in rows("facts").items()})


def facts_of(model_type: str) -> ModelFacts:
    """The row of a model, or the defaults for models without a row."""
    return model_facts().get(model_type, _OF_OTHERS)


_OF_OTHERS = ModelFacts()


@dataclass(frozen=True)
class TextRule:
    """Where a model has the tokens of a text beside patches: ``text`` of positions in vision.json.

    Attributes:
        side: "before" or "after" the patches.
        axes: those on which they are counted; they are at 0 on others.
        first: the count of the first.
        after_patches: they are counted from the end of the longer image axis instead.
        time_after: the first frame of patches comes after the last of them.
    """

    side: Literal["before", "after"]
    axes: tuple[int, ...] = ()
    first: int = 0
    after_patches: bool = False
    time_after: bool = False


@dataclass(frozen=True)
class GridRule:
    """How a vision model makes the positions of a grid of patches: ``positions`` in vision.json.

    Attributes:
        axes: 2 for height and width, 3 for time, height and width, 4 with one for text after them.
        width_first: the model takes width before height.
        merge_size: m: patches come in blocks of m by m, which the model merges into one token.
        coordinates: "centers", "corners" or "index", the argument ``grid`` of `image_coordinates`.
            "floor": counts ``i * reference // size``. "crop": the grid is resized to fit into the
            grid `reference`, centered there, and patches are spread over it, as CogVideoX crops
            images. "steps": ``origin + i * steps[axis]``. None: patches are counted.
        reference: the size of the pretraining grid, for "index", "floor" and "crop".
        origin, steps: see "steps".
        fps: the frames per second to which the step of time belongs; None: time has no unit.
        centered: height and width are counted from ``n // 2 - n``, so that 0 is the middle.
        first: the count of the first patch along height and width.
        row_ends: the number of tokens that end each row of patches, counted as further columns.
        before, after: positions of the model's other tokens, the same on every axis.
        text: where the tokens of a text in the same attention are; None: there are none.
        note: a remark about other tokens for the explanation.
    """

    axes: int = 2
    width_first: bool = False
    merge_size: int = 1
    coordinates: Literal["centers", "corners", "index", "floor", "crop", "steps"] | None = None
    reference: tuple[int, ...] | None = None
    origin: float = 0.0
    steps: tuple[float, ...] = ()
    fps: float | None = None
    centered: bool = False
    first: int = 0
    row_ends: int = 0
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    text: TextRule | None = None
    note: str = ""


@lru_cache(maxsize=1)
def vision_grids() -> Mapping[str, GridRule]:
    """For each vision model of vision.json, how it makes positions."""
    return MappingProxyType(
        {
            name: _grid_rule(row["axial"], **row.get("positions", {}))
            for name, row in rows("vision").items()
        }
    )


def _grid_rule(
    axial: Mapping[str, Any], text: Mapping[str, Any] | None = None, **values: Any
) -> GridRule:
    return GridRule(_axes(axial), text=None if text is None else TextRule(**text), **values)


def _axes(axial: Mapping[str, Any]) -> int:
    return len(axial["axes_dim"]) if "axes_dim" in axial else int(axial.get("axes", 2))


def vision_grid_name(name: str, fields: Mapping[str, Any]) -> str | None:
    """The name of a vision encoder, unless its configuration merges blocks of another size."""
    merge_size = vision_grids()[name].merge_size
    return name if fields.get("spatial_merge_size", merge_size) == merge_size else None


@lru_cache(maxsize=1)
def vision_models() -> Mapping[str, Mapping[str, Any]]:
    """For each vision model of vision.json, the arguments of `axial_rotary` that differ.

    The names are those of folders in transformers ("qwen2_5_vl", "pixtral"), of models in timm
    ("eva02") or of models in diffusers ("flux"). base is the default of the configuration.
    `vision_grids` says how positions are made, `vision_axial` which arguments follow from head_dim.
    """
    return MappingProxyType({name: row["axial"] for name, row in rows("vision").items()})


@lru_cache(maxsize=1)
def _shares() -> Mapping[str, tuple[tuple[int, ...], bool]]:
    """For each vision model, its ``parts`` of a head and whether it is ``trailing``."""
    return {
        name: (row.get("parts", ()), row.get("trailing", False))
        for name, row in rows("vision").items()
    }


def vision_axial(name: str, head_dim: int, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `axial_rotary` beside head_dim for a vision model, with changes.

    A row of vision.json may have ``parts``: the axes share the head in these proportions, rounded
    down to whole pairs, and the first axis takes the rest. With ``trailing`` the last dims of a
    head are rotated.
    """
    parts, trailing = _shares()[name]
    axial = {**vision_models()[name], **changes}
    for one, other in (("axes", "axes_dim"), ("axes_dim", "axes")):  # either replaces both
        if one in changes and other not in changes:
            axial.pop(other, None)
    if parts and not {"axes", "axes_dim", "rotary_dim"} & {*changes}:
        dims = [2 * (head_dim * part // (2 * sum(parts))) for part in parts]
        axial["axes_dim"] = (head_dim - sum(dims[1:]), *dims[1:])
    if trailing and not {"rotary_dim", "rotary_start"} & {*changes}:
        axial["rotary_start"] = head_dim % (2 * axial["axes"])
    return axial
