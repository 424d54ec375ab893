"""What rotary encoding does to the queries or keys of a head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from posenc_native.base.arguments import wrong_value
from posenc_native.rotary.supports import rotary_of

from . import drawing
from .encodings import (
    has_scale,
    is_range,
    position_name,
    position_words,
    read_numbers,
    read_positions,
    rotary_words,
    same_on_all_axes,
)

if TYPE_CHECKING:
    from posenc_native.base.kinds import SupportsRotary


def rotation(
    x: Any, rope: SupportsRotary, positions: Any = None, *, ax: Any = None
) -> npt.NDArray[np.object_]:
    """Queries (or keys) of a head before and after rotary encoding, side by side.

    What is the same for all tokens is a stripe before; after it is a wave, of the wavelength of its
    pair. Both panels have the same shades, which the largest 2 % of the numbers are beyond: trained
    models have single dims that are far larger than all others. Where a pixel holds several numbers
    it shows their mean.

    Args:
        x: ``[s, head_dim]``, the tokens of one head, as ``q[0, head]`` is of ``[b, h, s, d]``.
        rope: how they are rotated.
        positions: an int n for 0 .. n-1, or ``[s]``; None for 0 .. s-1.
        ax: two Axes of one figure to draw into; None for a new figure.

    Returns:
        Two Axes: before, after.

    Raises:
        ValueError: x of another shape, as many positions as there are no tokens.
        TypeError: arguments of a wrong kind.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> q = np.random.default_rng(0).standard_normal((32, 64))
        >>> before, after = pn.plot.rotation(q, pn.Rotary(64))
        >>> bool(np.array_equal(before.images[0].get_array(), q))
        True
        >>> after.get_xlabel(), after.get_ylabel()
        ('dimension of the head', 'position')
    """
    function = "plot.rotation"
    rope = rotary_of(function, "rope", rope)
    values = read_numbers(function, "x", x)
    if values.ndim != 2 or values.shape[1] != rope.head_dim or not len(values):
        expected = f"shape [s, head_dim] = [s, {rope.head_dim}], one head as q[0, 0] is"
        wrong_value(function, "x", expected, list(values.shape))
    found = read_positions(function, len(values) if positions is None else positions)
    if len(found) != len(values):
        wrong_value(function, "positions", f"{len(values)} of them, one a token", len(found))
    turned = rope.apply(values, same_on_all_axes(rope, found), layout="sd")
    axes = drawing.several_axes(function, ax, 2, (11.5, 4.8), ncols=2)
    limit, clipped = drawing.robust_limit(np.stack([values, turned]))
    neighbours = is_range(found) and has_scale(found)
    first = float(found[0]) if neighbours else 0.0
    extent = (-0.5, rope.head_dim - 0.5, first + len(found) - 0.5, first - 0.5)
    images = [
        drawing.shade(one, part, extent, (-limit, limit), None)
        for one, part in zip(axes, (values, turned), strict=True)
    ]
    beyond = "; 2 % are beyond" if clipped else ""
    drawing.colour_bar(images[1], axes, f"value, in both panels{beyond}", clipped)
    for one, title in zip(axes, ("Before rotary", "After rotary"), strict=True):
        drawing.dimension_ticks(one.xaxis, rope.head_dim)
        drawing.position_ticks(
            one.yaxis, None if neighbours else [position_name(one) for one in found]
        )
        one.set(xlabel="dimension of the head", ylabel="position")
        words = position_words(found) if title.startswith("Before") else rotary_words(rope)
        drawing.set_title(one, f"{title}\n{words}")
    return drawing.as_array_of_axes(axes)
