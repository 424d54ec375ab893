"""The gradients of a rotation in float64: an oracle for the kernels' backward."""

from __future__ import annotations

from typing import Any

import numpy as np

from posenc_native.core.calls import arguments
from posenc_native.core.calls.rotation import Rotation
from posenc_native.core.calls.views import RotaryView, rotary_view
from posenc_native.engines.plain import arrays as reference
from posenc_native.engines.plain.numbers import round_once

Array = np.ndarray[Any, Any]


def rotary_backward(
    grads: tuple[Array, ...], inputs: tuple[Array, ...], *call: Any
) -> tuple[tuple[Array, ...], Array, Array | None]:
    """Gradients of x (or of q and k), of frequencies and, if requested, of positions.

    The incoming gradients are those of the rotated tensors. Gradients of frequencies have the shape
    of inv_freq, those of positions [A, b, s]; both are float64.

    call: the Rotation, and whether the gradient of positions is requested.
    """
    *options, of_positions = call
    rotation = Rotation(*options)
    scale = arguments.factor("rotary_backward", "scale", rotation.scale, inputs[0].dtype)
    back = rotation._replace(scale=scale).turned_back()
    turned = [reference.apply_rotary(grad.astype(np.float64), *back, None) for grad in grads]
    frequencies, axis_map = rotation.inv_freq.astype(np.float64), rotation.axis_map
    pairs = frequencies.shape[-1]
    views = [
        rotary_view(
            "test", x.shape, rotation.layout, rotation.pairing, rotation.rotary_start, pairs
        )
        for x in inputs
    ]
    own_heads = frequencies.ndim > 1 and frequencies.shape[-2] != 1
    angles = sum(
        _cross_products(x, y, view, own_heads)
        for x, y, view in zip(inputs, turned, views, strict=True)
    )
    angles = -angles if rotation.inverse else angles
    tokens = views[0].tokens
    points = np.arange(tokens) if rotation.positions is None else rotation.positions
    # The axis of positions that drives each pair; if phases are summed, all axes do.
    by_axis = points.astype(np.float64)
    if axis_map is None and frequencies.ndim < 3:
        by_axis = by_axis[None]
    drives = np.ones((len(by_axis), pairs))
    if axis_map is not None:
        drives = np.equal.outer(np.arange(len(by_axis)), axis_map).astype(np.float64)
    batch = by_axis.shape[1] if by_axis.ndim == 3 else 1
    by_axis = by_axis.reshape(len(by_axis), batch, tokens)
    by_axis = np.broadcast_to(by_axis, (len(by_axis), *angles.shape[:2]))
    of_frequencies = np.einsum("abs,bshp,ap->ahp", by_axis, angles, drives)
    if frequencies.ndim < 3:
        of_frequencies = of_frequencies.sum(axis=0)
    axis_count = len(frequencies) if frequencies.ndim == 3 else 1
    rates = frequencies.reshape(axis_count, angles.shape[2], pairs) * drives[:, None]
    return (
        tuple(round_once(y, x.dtype) for x, y in zip(inputs, turned, strict=True)),
        of_frequencies.reshape(frequencies.shape),
        np.einsum("bshp,ahp->abs", angles, rates) if of_positions else None,
    )


def _cross_products(x: Array, y: Array, view: RotaryView, own_heads: bool) -> Array:
    """x_a y_b - x_b y_a of the pairs, [b, s, h, P]; summed over heads (h = 1) unless own_heads."""
    half = view.block // 2
    dims = slice(view.start, view.start + 2 * view.pairs)
    (a, b), (g, h) = (
        np.moveaxis(t[..., dims].reshape(*t.shape[:-1], view.pairs // half, 2, half), -2, 0)
        for t in (x.astype(np.float64), y)
    )
    cross = (a * h - b * g).reshape(*x.shape[:-1], view.pairs)
    letters = view.layout.replace("t", "s")
    missing = [letter for letter in "bsh" if letter not in letters]
    cross = cross.reshape(*(1 for _ in missing), *cross.shape)
    letters = "".join(missing) + letters
    by_head: Array = cross.transpose([letters.index(letter) for letter in "bshd"])
    return by_head if own_heads else by_head.sum(axis=2, keepdims=True)
