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
from posenc_native.models.facts import GridRule, TextRule, vision_grids

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
        text: int
        fps: float | None


__all__ = ["ModelGrid", "checked_vision", "grid_axes", "grid_words"]

_FUNCTION = "Rotary.grid"
_AXES = ("time", "height", "width", "text")


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
        text: int = 0,
        fps: float | None = None,
        dtype: Any = None,
        device: Any = None,
    ) -> Any:
        """The positions that the vision model of this rotation gives to a grid of patches.

        `vision_rotary`, and ``Rotary.from_config`` of a vision encoder, know the model, and
        `explain` says its rule: counts from 0 or 1, or coordinates between -1 and 1 (DINOv3); rows
        one after another, or blocks of patches that are merged (Qwen-VL); patches after a text
        (Flux) or before it (HunyuanVideo).

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
            text: the number of text tokens in the attention of a diffusion transformer, where the
                model has them: before the patches, at position 0 (Flux, CogVideoX) or counted
                (Qwen-Image, Lumina 2, Flux 2), or after them (HunyuanVideo, Z-Image).
            fps: frames per second, for a model whose time has a unit (LTX-Video, Cosmos). Default:
                the rate that the model takes as usual.
            dtype: of coordinates: float32 (default) or float64, of NumPy or torch. Counts are int64
                with any dtype.
            device: a torch device makes the result a tensor, as a torch dtype does.

        Returns:
            ``[A, before + text + N + after]``, N = frames * height * width, for calls of this
            rotation. A is 2, 3 for a model with an axis of time, or 4 with one for text (Flux 2).

        Raises:
            ValueError: no vision model made this rotation; sizes are negative, or no multiples of
                merge_size; frames of a model that has other tokens in each image; text or fps for a
                model without.
            TypeError: a size is not an integer, or a dtype is not supported.

        Source: the vision encoders in transformers and timm, and their image processors; the
        transformers and pipelines of diffusers.

        Example:
            >>> import posenc_native as pn
            >>> pn.rotary.vision_rotary("dinov3_vit", 32).grid(1, 4)
            array([[ 0.  ,  0.  ,  0.  ,  0.  ],
                   [-0.75, -0.25,  0.25,  0.75]], dtype=float32)
            >>> pn.rotary.vision_rotary("llama4", 88).grid(2, 2)  # counts from 1; the class token
            array([[1, 1, 2, 2, 0],
                   [1, 2, 1, 2, 0]])
            >>> pn.rotary.vision_rotary("qwen_image", 128).grid(1, 3, text=2)  # 0 in the middle
            array([[ 1,  2,  0,  0,  0],
                   [ 1,  2, -1, -1, -1],
                   [ 1,  2, -2, -1,  0]])
        """
        self._check_grid()
        # The name is read here, not in the constant, so that torch.compile guards it.
        return _grid(
            self.vision or "", height, width, frames=frames, merge_size=merge_size, before=before,
            after=after, text=text, fps=fps, dtype=dtype, device=device,
        )  # fmt: skip

    @constant
    def _check_grid(self) -> None:
        """ValueError if there is no vision model, or it has other axes."""
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
    text: Any,
    fps: Any,
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
    text = arguments.length(_FUNCTION, "text", text)
    if rule.text is None and text:
        wrong_value(_FUNCTION, "text", f"0 for {model}, which gives no position to a text", text)
    if fps is not None:
        fps = arguments.positive_number(_FUNCTION, "fps", fps)
        if rule.fps is None:
            wrong_value(_FUNCTION, "fps", f"None for {model}, whose time has no unit", fps)
    own = (rule.before if before is None else (), rule.after if after is None else ())
    if rule.axes == 2 and frames != 1 and any(own):
        expected = f"1 for {model}, each of whose images has other tokens too"
        wrong_value(_FUNCTION, "frames", expected, frames)
    lengths[-1] += rule.row_ends
    sizes = (lengths, [frames, *lengths], [frames, *lengths, 1])[rule.axes - 2]
    with named(_FUNCTION):
        if rule.coordinates in ("centers", "corners", "index"):
            positions: Any = image_coordinates(
                sizes, grid=rule.coordinates, reference=rule.reference, dtype=arrays.dtype,
                device=arrays.device,
            )  # fmt: skip
        else:
            positions = _placed(rule, arrays, sizes, merge, text, fps)
        xp = arrays.xp
        if rule.width_first:
            positions = xp.stack([positions[1], positions[0]])
        if rule.axes == 2 and frames != 1:
            positions = xp.tile(positions, (1, frames))
        if rule.text is not None and text:
            beside = arrays.arange(text) + _first_of_text(rule, lengths)
            beside = beside.to(positions) if arrays.is_torch else beside.astype(positions.dtype)
            beside = xp.stack([beside * int(axis in rule.text.axes) for axis in range(rule.axes)])
            before_it = rule.text.side == "before"
            parts = [beside, positions] if before_it else [positions, beside]
            positions = xp.concatenate(parts, -1)
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


def _placed(
    rule: GridRule, arrays: Arrays, sizes: list[int], merge: int, text: int, fps: float | None
) -> Any:
    """Positions [A, N] of patches that are counted, or placed by their count."""
    # A torch dtype without a device means the default device, as everywhere in torch.
    where = arrays.arange(0).device if arrays.is_torch else None
    counts: Any = grid_positions(sizes, merge_size=merge, device=where)
    starts = [rule.first] * rule.axes
    image = _image_axes(rule)
    for axis in image if rule.centered else ():
        starts[axis] -= sizes[axis] - sizes[axis] // 2
    if rule.text is not None and rule.text.time_after:
        starts[0] += _first_of_text(rule, sizes) + text
    placed = [count + start for count, start in zip(counts, starts, strict=True)]
    if rule.coordinates == "floor":
        for axis, size in zip(image, rule.reference or (), strict=True):
            placed[axis] = placed[axis] * size // max(sizes[axis], 1)
    if rule.coordinates not in ("steps", "crop"):
        return arrays.xp.stack(placed)
    lines = [(0.0, 1.0)] * rule.axes
    if rule.coordinates == "crop":
        crop = _crop([sizes[axis] for axis in image], rule.reference or ())
        for axis, line in zip(image, crop, strict=True):
            lines[axis] = line
    else:
        lines = [(rule.origin, step) for step in rule.steps]
        if rule.fps is not None and fps is not None:
            lines[0] = rule.origin, rule.steps[0] * rule.fps / fps
    rows = [arrays.wide(row) * step + start
            for row, (start, step) in zip(placed, lines, strict=True)]  # fmt: skip
    return arrays.rounded(arrays.xp.stack(rows))


def _image_axes(rule: GridRule) -> tuple[int, int]:
    """The axes of height and width."""
    return (0, 1) if rule.axes == 2 else (1, 2)


def _first_of_text(rule: GridRule, sizes: list[int]) -> int:
    """The position of the first token of a text; sizes end with height and width."""
    if rule.text is None:
        return 0
    if rule.text.after_patches:
        return max(size // 2 if rule.centered else size for size in sizes[-2:])
    return rule.text.first


def _crop(sizes: list[int], reference: tuple[int, ...]) -> list[tuple[float, float]]:
    """The first coordinate of height and of width, and the step, in a grid of a reference size.

    The grid is resized to fit into the reference, and centered in it. Its patches are spread over
    the part [start, stop) that it covers, as ``get_3d_rotary_pos_embed`` of diffusers has it.
    """
    height, width = (max(size, 1) for size in sizes)
    rows, columns = reference
    if height / width > rows / columns:
        covered = rows, round(rows / height * width)
    else:
        covered = round(columns / width * height), columns
    lines = []
    for size, whole, part in zip((height, width), reference, covered, strict=True):
        start = round((whole - part) / 2.0)
        last = (start + part) * (size - 1) / size
        lines.append((float(start), (last - start) / max(size - 1, 1)))
    return lines


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
    return (image, ("time", *image), ("time", *image, "text"))[rule.axes - 2]


def grid_words(model: str) -> str:
    """How a vision model makes positions, in a sentence."""
    rule = vision_grids()[model]
    *others, last = grid_axes(model)
    axes = f"{', '.join(others)} and {last}"
    parts = [f"counted from {rule.first}"]
    if rule.centered:
        parts = ["counted, on height and width from -(n - n // 2), so that 0 is the middle"]
    size = " x ".join(map(str, rule.reference or ()))
    if rule.coordinates == "centers":
        parts = ["coordinates in [-1, 1] of the centers of patches"]
    elif rule.coordinates == "index":
        parts[0] += f" and stretched to the {size} patches of the pretraining"
    elif rule.coordinates == "floor":
        parts[0] += f" and stretched to {size}, rounded down"
    elif rule.coordinates == "crop":
        parts[0] += f", and spread over the part of {size} patches that the image fits into"
    elif rule.coordinates == "steps":
        steps = ", ".join(f"{step:g}" for step in rule.steps)
        parts = [f"coordinates from {rule.origin:g} in steps of {steps}"]
    if rule.fps is not None:
        parts.append(f"time at {rule.fps:g} frames per second unless fps= says otherwise")
    if rule.merge_size > 1:
        parts.append(f"patches in blocks of {rule.merge_size} x {rule.merge_size}")
    if rule.row_ends:
        parts.append("a token at the end of each row counts as a column")
    for side, values in (("before", rule.before), ("after", rule.after)):
        if values:
            those = ", ".join(map(str, values))
            parts.append(f"other tokens {side} the patches at {those}")
    if rule.text is not None:
        parts.append(f"text=n tokens {_text_words(rule.text, rule.axes)}")
    if rule.note:
        parts.append(rule.note)
    return f"Positions of patches, rope.grid(height, width): {axes}; {'; '.join(parts)}."


def _text_words(text: TextRule, axes: int) -> str:
    """Where the tokens of a text are."""
    where = f"{text.side} the patches"
    if not text.axes:
        return f"{where}, not rotated"
    start = "the end of the longer side" if text.after_patches else str(text.first)
    on = "all axes" if len(text.axes) == axes else " and ".join(_AXES[axis] for axis in text.axes)
    later = ", and the patches come after them in time" if text.time_after else ""
    return f"{where}, counted from {start} on {on}{later}"
