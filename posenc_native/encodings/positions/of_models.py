"""Positions of grids of patches as vision models make them: a rule for each model of vision.json.

A rule is data (`GridRule`). One function here turns rules into calls of the builders in grids.py,
and one describes rules in words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import wrong_value
from posenc_native.core.calls.constants import constant, constant_without_tensors
from posenc_native.core.calls.errors import named
from posenc_native.core.calls.suggestions.vocabulary import answer_methods
from posenc_native.engines.arrays import Arrays
from posenc_native.models.facts import GridRule, vision_grids

from .grids import add_unrotated_tokens, grid_positions, image_coordinates, positive_size

if TYPE_CHECKING:
    from typing_extensions import TypedDict, Unpack

    from posenc_native.core.calls.kinds import Array, Device, Dtype, NumPyDtype, Tensor, TorchDtype

    class GridOptions(TypedDict, total=False):
        """Keywords of ``Rotary.grid`` beside dtype and device."""

        frames: int
        merge_size: int | None
        before: int | None
        after: int | None


__all__ = ["ModelGrid", "checked_vision", "grid_axes", "grid_words"]

_FUNCTION = "Rotary.grid"


@answer_methods
class ModelGrid:
    """The method of a `Rotary` that makes the positions of its vision model."""

    __slots__ = ()

    vision: str | None
    axis_map: npt.NDArray[np.int64] | None

    @overload
    def grid(self, height: int, width: int, *, dtype: TorchDtype, device: Device | None = ...,
             **options: Unpack[GridOptions]) -> Tensor: ...  # fmt: skip
    @overload
    def grid(self, height: int, width: int, *, dtype: Dtype = ..., device: Device,
             **options: Unpack[GridOptions]) -> Tensor: ...  # fmt: skip
    @overload
    def grid(self, height: int, width: int, *, dtype: NumPyDtype = ..., device: None = ...,
             **options: Unpack[GridOptions]) -> Array[Any]: ...  # fmt: skip
    def grid(
        self,
        height: int,
        width: int,
        *,
        frames: int = 1,
        merge_size: int | None = None,
        before: int | None = None,
        after: int | None = None,
        dtype: Any = None,
        device: Any = None,
    ) -> Any:
        """The positions that the vision model of this rotation gives to a grid of patches.

        `vision_rotary`, and ``Rotary.from_config`` of a vision encoder, know the model, and
        `explain` says its rule: counts from 0 or 1, or coordinates between -1 and 1 (DINOv3); rows
        one after another, or blocks of patches that are merged (Qwen-VL).

        Args:
            height, width: the size of the image in patches, before any are merged.
            frames: the number of steps along time. A model of two axes repeats the positions of
                one frame: of the frames of a video (Qwen-VL), or of the memories in SAM 2's keys.
            merge_size: m, if a checkpoint merges blocks of another size than its model usually
                does. See `grid_positions`.
            before, after: numbers of tokens at position 0, which are not rotated, before and after
                the patches. Default: those for which the model itself makes a position, such as the
                class token of Llama 4. The class and register tokens of DINOv3 bypass its rotation
                and have none by default; q and k with these tokens need ``before=5``.
            dtype: of coordinates: float32 (default) or float64, of NumPy or torch. Counts are int64
                with any dtype.
            device: a torch device makes the result a tensor, as a torch dtype does.

        Returns:
            ``[A, before + N + after]``, N = frames * height * width, for calls of this rotation. A
            is 2, or 3 for a model with an axis of time.

        Raises:
            ValueError: no vision model made this rotation; sizes are negative, or no multiples of
                merge_size; or frames of a model that has other tokens in each image.
            TypeError: a size is not an integer, or a dtype is not supported.

        Source: the vision encoders in transformers and timm, and their image processors.

        Example:
            >>> import posenc_native as pn
            >>> pn.rotary.vision_rotary("dinov3_vit", 32).grid(1, 4)
            array([[ 0.  ,  0.  ,  0.  ,  0.  ],
                   [-0.75, -0.25,  0.25,  0.75]], dtype=float32)
            >>> pn.rotary.vision_rotary("llama4", 88).grid(2, 2)  # counts from 1; the class token
            array([[1, 1, 2, 2, 0],
                   [1, 2, 1, 2, 0]])
        """
        return _grid(
            self._grid_model(), height, width, frames=frames, merge_size=merge_size, before=before,
            after=after, dtype=dtype, device=device,
        )  # fmt: skip

    @constant
    def _grid_model(self) -> str:
        """The name of the vision model; ValueError if there is none, or it has other axes."""
        if self.vision is None:
            expected = (
                "the name of a vision model, as vision_rotary(model, head_dim) and "
                "Rotary.from_config(vision_config) give it. Other rotations do not know where "
                "patches are: write posenc_native.positions.grid_positions((height, width))"
            )
            wrong_value(_FUNCTION, "vision", expected, None)
        rule = vision_grids()[self.vision]
        axes = 1 if self.axis_map is None else int(self.axis_map.max(initial=0)) + 1
        if axes != rule.axes:
            expected = f"a rotation over the {rule.axes} axes of {self.vision}"
            wrong_value(_FUNCTION, "vision", expected, f"one over {axes}")
        return self.vision


@constant_without_tensors
def _grid(
    model: str,
    height: Any,
    width: Any,
    *,
    frames: Any,
    merge_size: Any,
    before: Any,
    after: Any,
    dtype: Any,
    device: Any,
) -> Any:
    """See ``ModelGrid.grid``: a function of plain values, which can be a constant of a graph."""
    rule = _rule(model)
    arrays = Arrays(_FUNCTION, dtype, device)
    if dtype is not None:
        arguments.check_dtype(_FUNCTION, "dtype", arrays.dtype, arguments.FREQUENCY_DTYPES)
    merge = rule.merge_size
    if merge_size is not None:
        merge = positive_size(_FUNCTION, "merge_size", merge_size)
        if merge > 1 and (rule.coordinates is not None or rule.row_ends):
            expected = f"1 for {model}, which orders patches by rows"
            wrong_value(_FUNCTION, "merge_size", expected, merge)
    lengths = []
    for name, value in (("height", height), ("width", width)):
        length = arguments.length(_FUNCTION, name, value)
        if merge > 1 and length % merge:
            expected = f"a multiple of merge_size = {merge}, in patches that are not merged yet"
            wrong_value(_FUNCTION, name, expected, length)
        lengths.append(length)
    frames = arguments.length(_FUNCTION, "frames", frames)
    own = (rule.before if before is None else (), rule.after if after is None else ())
    if rule.axes == 2 and frames != 1 and any(own):
        expected = f"1 for {model}, each of whose images has other tokens too"
        wrong_value(_FUNCTION, "frames", expected, frames)
    lengths[-1] += rule.row_ends
    sizes = lengths if rule.axes == 2 else [frames, *lengths]
    with named(_FUNCTION):
        if rule.coordinates is None:
            # A torch dtype without a device means the default device, as everywhere in torch.
            where = arrays.arange(0).device if arrays.is_torch else None
            positions: Any = grid_positions(sizes, merge_size=merge, device=where) + rule.first
        else:
            positions = image_coordinates(
                sizes, grid=rule.coordinates, reference=rule.reference, dtype=arrays.dtype,
                device=arrays.device,
            )  # fmt: skip
        xp = arrays.xp
        if rule.width_first:
            positions = xp.stack([positions[1], positions[0]])
        if rule.axes == 2 and frames != 1:
            positions = xp.tile(positions, (1, frames))
        if any(own):
            options = {"device": positions.device} if arrays.is_torch else {}
            rows = [xp.asarray(row, dtype=positions.dtype, **options) for row in own]
            first, last = (xp.stack([row] * rule.axes) for row in rows)
            positions = xp.concatenate([first, positions, last], -1)
        return add_unrotated_tokens(
            positions,
            before=0 if before is None else before,
            after=0 if after is None else after,
        )


# A constant, because torch.compile cannot trace the reading of a table.
@constant
def _rule(model: str) -> GridRule:
    return vision_grids()[model]


def checked_vision(function: str, vision: object) -> str | None:
    """The argument `vision`: the name of a model of vision.json, or None."""
    if vision is None:
        return None
    arguments.check_known_name(
        function, "vision", vision, vision_grids(), "posenc_native/models/vision.json"
    )
    return str(vision)


def grid_axes(model: str) -> tuple[str, ...]:
    """The names of a vision model's axes, in their order."""
    rule = vision_grids()[model]
    image = ("width", "height") if rule.width_first else ("height", "width")
    return image if rule.axes == 2 else ("time", *image)


def grid_words(model: str) -> str:
    """How a vision model makes positions, in a sentence."""
    rule = vision_grids()[model]
    *others, last = grid_axes(model)
    axes = f"{', '.join(others)} and {last}"
    parts = [f"counted from {rule.first}"]
    if rule.coordinates == "centers":
        parts = ["coordinates in [-1, 1] of the centers of patches"]
    if rule.reference is not None:
        size = " x ".join(map(str, rule.reference))
        parts[0] += f" and stretched to the {size} patches of the pretraining"
    if rule.merge_size > 1:
        parts.append(f"patches in blocks of {rule.merge_size} x {rule.merge_size}")
    if rule.row_ends:
        parts.append("a token at the end of each row counts as a column")
    for side, values in (("before", rule.before), ("after", rule.after)):
        if values:
            those = ", ".join(map(str, values))
            parts.append(f"other tokens {side} the patches at {those}")
    if rule.note:
        parts.append(rule.note)
    return f"Positions of patches, rope.grid(height, width): {axes}; {'; '.join(parts)}."
