"""Tables of cosines and sines, for `Tables`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, overload

import numpy as np
import numpy.typing as npt

from posenc_native.core.calls import arguments
from posenc_native.core.calls.descriptions import check_none_beside, description_in
from posenc_native.core.calls.suggestions.vocabulary import (
    MISSING,
    refuse,
    refuse_missing,
    takes_words,
)
from posenc_native.engines import backend, late

from .rows import FrequencyRows, with_axes

if TYPE_CHECKING:
    import torch

    from posenc_native.core.calls.kinds import (
        Array,
        Dtype,
        Frequencies,
        FrequencyAxes,
        Numbers,
        NumPyDtype,
        Pair,
        SupportsRotary,
        Tensor,
        TensorLike,
        TorchDtype,
    )

__all__ = ["rotary_tables"]


@overload
def rotary_tables(positions: TensorLike, inv_freq: Frequencies, *,
    axis_map: Numbers | None = ..., scale: float | None = ..., dtype: Dtype = ...,
) -> Pair[Tensor]: ...  # fmt: skip
@overload
def rotary_tables(positions: npt.ArrayLike, inv_freq: TensorLike, *,
    axis_map: Numbers | None = ..., scale: float | None = ..., dtype: Dtype = ...,
) -> Pair[Tensor]: ...  # fmt: skip
@overload
def rotary_tables(positions: Numbers, inv_freq: Frequencies, *,
    axis_map: Numbers | None = ..., scale: float | None = ..., dtype: TorchDtype,
) -> Pair[Tensor]: ...  # fmt: skip
@overload
def rotary_tables(positions: npt.ArrayLike, inv_freq: npt.ArrayLike | SupportsRotary, *,
    axis_map: Numbers | None = ..., scale: float | None = ..., dtype: NumPyDtype = ...,
) -> Pair[Array[Any]]: ...  # fmt: skip
@takes_words
def rotary_tables(
    positions: npt.ArrayLike | TensorLike,
    inv_freq: Frequencies | TensorLike,
    more: NoReturn = MISSING,
    axis_map: npt.ArrayLike | torch.Tensor | None = None,
    scale: float | None = None,
    dtype: Any = None,
    inv_freq_axes: FrequencyAxes | None = None,
    **unknown: NoReturn,
) -> tuple[Any, Any]:
    """Cosines and sines of ``positions * inv_freq``, exact at every position.

    Args:
        positions: an int n for 0 .. n-1, or an array or tensor of any shape; with `axis_map`, the
            first axis selects the coordinate: ``[A, ...]``.
        inv_freq: a `Rotary`, which includes axis_map and scale; or ``[P]``, radians per position,
            float32 or float64, taken as exact.
        axis_map: ``[P]`` ints, the coordinate that drives each pair.
        scale: factor of both (YaRN's attention factor); default 1.
        dtype: float16, bfloat16, float32 (default) or float64, of NumPy or torch.
        inv_freq_axes: "p"; or "bp" for ``[b, P]``, frequencies of each row of the batch, as
            `Rotary.rows` has. Positions are then ``[s]``, ``[1, s]`` or ``[b, s]``.

    Returns:
        ``(cos, sin)``, each ``positions.shape + (P,)`` (without the axis A); ``[b, s, P]`` by rows.

    Raises:
        ValueError: the shapes do not fit, or positions or frequencies are not finite.
        TypeError: a dtype is not supported.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> cos, sin = pn.rotary_tables(np.array([0, 10**6]), np.array([1.0, 0.01]))
        >>> cos.round(6)
        array([[ 1.      ,  1.      ],
               [ 0.936752, -0.952155]], dtype=float32)
    """
    if unknown or more is not MISSING:
        refuse(rotary_tables, positions, inv_freq, more, **unknown)
    function = "rotary_tables"
    refuse_missing(rotary_tables, positions, inv_freq)
    if inv_freq_axes is not None:
        inv_freq = with_axes(function, inv_freq, inv_freq_axes)
    tables = backend.door.rotary_tables(positions, inv_freq, axis_map, scale, dtype)
    if tables is not NotImplemented:
        return tables  # type: ignore[no-any-return]
    rope = description_in(inv_freq)
    if isinstance(rope, FrequencyRows):
        return rope.tables(positions, axis_map=axis_map, scale=scale, dtype=dtype)
    if rope is not None:
        check_none_beside(function, rope, {"axis_map": axis_map, "scale": scale})
        (inv_freq, axis_map), scale = rope._of(positions), rope.scale
    if scale is None:
        scale = 1.0
    if axis_map is not None and isinstance(positions, (int, np.integer)):
        arguments.wrong_value(function, "positions", "shape [A, ...] with axis_map", "a count")
    if (
        arguments.is_tensor(positions)
        or arguments.is_tensor(inv_freq)
        or arguments.is_torch_dtype(dtype)
    ):
        return late.torch_operations().rotary_tables(  # type: ignore[no-any-return]
            positions, inv_freq, axis_map, scale, dtype
        )
    if not isinstance(positions, (int, np.integer)):
        positions = arguments.as_positions(function, positions)
    inv_freq = arguments.as_frequencies(function, inv_freq)
    if axis_map is not None:
        axis_map = arguments.as_array(function, "axis_map", axis_map)
    if dtype is not None:
        dtype = arguments.as_dtype(function, dtype)
    return backend.implementation.rotary_tables(  # type: ignore[no-any-return]
        positions, inv_freq, axis_map, scale, dtype
    )
