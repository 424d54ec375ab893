"""Biases for the windows of an image: Swin's table, Swin v2's coordinates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy.typing as npt

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import wrong_type, wrong_value
from posenc_native.engines.arrays import Arrays

if TYPE_CHECKING:
    from posenc_native.core.calls.kinds import (
        Array,
        ArrayOrTensor,
        Number,
        SupportsArray,
        Tensor,
        TensorLike,
    )

__all__ = ["swin_diagonals", "swin_v2_coordinates"]


@overload
def swin_diagonals(table: TensorLike, window: Sequence[int]) -> Tensor: ...
@overload
def swin_diagonals(table: SupportsArray[Number], window: Sequence[int]) -> Array[Number]: ...
@overload
def swin_diagonals(table: npt.ArrayLike, window: Sequence[int]) -> Array[Any]: ...
def swin_diagonals(table: npt.ArrayLike | TensorLike, window: Sequence[int]) -> Any:
    """Diagonals of Swin's bias over a window: its table in reverse.

    The index of Swin's table counts query minus key; diagonals count key minus query.

    BEiT's table has three more rows: from the class token, to it, and from it to itself; pass
    ``table[:-3]`` for the patches. Swin v2 has a small network instead of a table:
    ``16 * sigmoid(network(swin_v2_coordinates(window)))``, flattened to ``[-1, H]``.

    Args:
        table: ``[(2h - 1) * (2w - 1), H]``, floats. Gradients reach a tensor.
        window: ``(h, w)``, with tokens row after row; any number of axes (Video Swin has 3).

    Returns:
        ``[H, 2h - 1, 2w - 1]``, in the table's dtype.

    Raises:
        ValueError: a length of the window is 0, or the table does not fit the window.
        TypeError: a dtype is not supported.

    Source: Liu et al. 2021, "Swin Transformer", section 3.2.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> pn.relative.swin_diagonals(np.arange(9.0)[:, None], (2, 2))
        array([[[8., 7., 6.],
                [5., 4., 3.],
                [2., 1., 0.]]])
    """
    function = "swin_diagonals"
    arrays = Arrays(function, table=table)
    lengths = [2 * length - 1 for length in _window(function, "window", window)]
    rows = arrays.table(table)
    expected = 1
    for length in lengths:
        expected *= length
    if rows.shape[0] != expected:
        wrong_value(function, "table", f"{expected} rows, one per distance", rows.shape[0])
    backwards = arrays.xp.flip(rows, (0,))
    if not arrays.is_torch:
        backwards = backwards.copy()  # in NumPy it is a view, through which the table is writable
    return backwards.swapaxes(0, 1).reshape(rows.shape[1], *lengths)


def swin_v2_coordinates(
    window: Sequence[int],
    pretrained_window: Sequence[int] | None = None,
    *,
    dtype: Any = None,
    device: Any = None,
) -> ArrayOrTensor:
    """The input of Swin v2's network: the distances of a window on a logarithmic scale.

    A distance d (query minus key) along an axis of length w becomes ``x = 8 d / (w - 1)``, then
    ``sign(x) * log2(1 + |x|) / 3``.

    Args:
        window: ``(h, w)``, or any number of axes.
        pretrained_window: the window that provides the divisor w, if it differs; 0 means the same.
        dtype, device: of the result; see the docstring of posenc_native.encodings.relative.

    Returns:
        ``[2h - 1, 2w - 1, 2]``, in the order of Swin's table. An axis of length 1 is all 0.

    Raises:
        ValueError: a length is below 1, or the windows have different numbers of axes.
        TypeError: a dtype is not supported.

    Source: Liu et al. 2022, "Swin Transformer V2", section 3.3.

    Example:
        >>> import posenc_native as pn
        >>> pn.relative.swin_v2_coordinates((1, 3)).round(4)[0, :, 1]
        array([-1.0566, -0.774 ,  0.    ,  0.774 ,  1.0566], dtype=float32)
    """
    function = "swin_v2_coordinates"
    arrays = Arrays(function, dtype, device)
    xp = arrays.xp
    lengths = _window(function, "window", window)
    trained = lengths
    if pretrained_window is not None:
        trained = _window(function, "pretrained_window", pretrained_window, 0)
        if len(trained) != len(lengths):
            expected = f"{len(lengths)} lengths, as in window"
            wrong_value(function, "pretrained_window", expected, len(trained))
    axes = []
    for length, reference in zip(lengths, trained, strict=True):
        distances = arrays.wide(arrays.arange(2 * length - 1) - (length - 1))
        scaled = distances * (8 / max((reference or length) - 1, 1))
        axes.append(xp.sign(scaled) * xp.log2(abs(scaled) + 1) / 3)
    return arrays.rounded(xp.stack(xp.meshgrid(*axes, indexing="ij"), -1))


def _window(function: str, argument: str, window: Any, least: int = 1) -> list[int]:
    if not isinstance(window, Sequence) or isinstance(window, str):
        wrong_type(function, argument, "a sequence of ints", type(window).__name__)
    if len(window) > 16:  # with the heads, about the most axes that arrays may have
        wrong_value(function, argument, "at most 16 axes", len(window))
    lengths = [arguments.size(function, argument, length) for length in window]
    if not lengths or min(lengths) < least:
        wrong_value(function, argument, f"lengths >= {least}", lengths)
    return lengths
