"""Tables of cosines and sines, for `Tables`: of a rotation, and of xPos.

In xPos scores decay with the distance between query and key.

    query of position n   rotated, times   zeta_i^( (n - c) / scale_base)
    key   of position m   rotated, times   zeta_i^(-(m - c) / scale_base)
    their product         the rotary one,  zeta_i^( (n - m) / scale_base)  of it in pair i

    zeta_i = (2 i + gamma d) / ((1 + gamma) d),   i = 0 .. d / 2 - 1

The center c cancels in the product. It determines how large the factors of one side become, and
whether keys that were rotated once stay valid: they do with a fixed center, but not with a center
that follows the length.

Source: Sun et al. 2022, "A Length-Extrapolatable Transformer", arXiv:2212.10554.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NoReturn, overload

import numpy as np
import numpy.typing as npt

from posenc_native.core.calls import arguments
from posenc_native.core.calls.descriptions import check_none_beside, description_in
from posenc_native.core.calls.pairs import is_pair
from posenc_native.core.calls.suggestions.vocabulary import (
    MISSING,
    refuse,
    refuse_missing,
    takes_words,
)
from posenc_native.core.calls.tables import Tables
from posenc_native.engines import backend, late
from posenc_native.engines.arrays import Arrays

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

__all__ = ["rotary_tables", "xpos_tables"]


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


# --- xPos

# Limits of a factor's logarithm: up to here the factor and its inverse are normal numbers.
_LIMITS = {"float32": 87.0, "float64": 708.0}


def xpos_tables(
    positions: Any,
    inv_freq: Frequencies,
    *,
    center: float | str = 0.0,
    scale_base: float = 512.0,
    gamma: float = 0.4,
    scale: float | None = None,
    dtype: Any = None,
) -> Tables:
    """Tables for queries and keys: `apply_rotary_qk` with them rotates, and scales for the decay.

    The tables of queries and of keys are computed separately, neither as the inverse of the other,
    in float64, and rounded once. The factors of pair 0 are the most extreme: with gamma 0.4 they
    are normal numbers of float32 up to ``|n - c| = 69.4 * scale_base``, which is 35 500 positions
    for 512. A center in the middle of the longest sequence makes the most of that range. The
    product with float16 elements overflows earlier: from ``8.8 * scale_base`` on for elements of 1.

    Args:
        positions: an int n for 0 .. n-1, or an array or tensor of any shape; or a tuple of two
            arrays or tensors, ``(q_positions, k_positions)``.
        inv_freq: a `Rotary`, which includes scale, or ``[P]``, radians per position; see
            `posenc_native.rotary.rotary_frequencies`. d is 2P.
        center: c, a position, the same in every call that shares keys; or "length" for half the
            number of the keys' positions (their last axis), rounded down, as in
            rotary-embedding-torch and x-transformers for positions from 0.
        scale_base: number of positions over which pair i decays by zeta_i, > 0.
        gamma: g in zeta_i, > 0; a smaller value makes the first pairs decay faster.
        scale: factor of all four tables; default 1.
        dtype: float32 (default) or float64, of NumPy or torch.

    Returns:
        Tables with pairs, ``(cos_q, cos_k)`` and ``(sin_q, sin_k)``, each ``positions.shape +
        (P,)``. They have neither the pairing nor the slice of a `Rotary`: pass these beside them.
        The paper's code uses pairing "interleaved".

    Raises:
        ValueError: the shapes do not fit; numbers are not positive or finite; or positions are so
            far from the center that a factor or its inverse would not be a normal number (checked
            only if positions can be read without a wait: not on a GPU, not while torch.compile
            traces).
        TypeError: a dtype is not supported.

    Source: Sun et al. 2022, arXiv:2212.10554.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> rope = pn.Rotary(4)
        >>> tables = pn.rotary.xpos_tables(np.array([0, 512]), rope)
        >>> of_q, of_k = np.hypot(tables.cos, tables.sin)
        >>> bool(np.allclose(of_q[1], [0.4 / 1.4, 0.9 / 1.4])), bool(np.allclose(of_q * of_k, 1))
        (True, True)
        >>> x = np.ones((1, 1, 2, 4), np.float32)
        >>> q, k = pn.apply_rotary_qk(x, x, None, tables)
    """
    function = "xpos_tables"
    rope = _one_axis(function, inv_freq)
    if rope is not None:
        check_none_beside(function, rope, {"scale": scale})
        (inv_freq, _), scale = (
            rope._of(positions[-1] if is_pair(positions) else positions),
            rope.scale,
        )
    scale = 1.0 if scale is None else scale
    pair = positions if is_pair(positions) else (positions,)
    arrays = Arrays(
        function, dtype, None, positions=pair[0], k_positions=pair[-1], inv_freq=inv_freq
    )
    points = [arrays.points("positions", coordinates) for coordinates in pair]
    center = _center(function, center, points[-1].shape[-1] if points[-1].ndim else 0)
    decay = _decay(arrays, inv_freq, scale_base, gamma)
    signs = ((1, -1),) if len(points) == 1 else ((1,), (-1,))
    of_q, of_k = (
        table
        for at, own in zip(points, signs, strict=True)
        for table in _tables(arrays, at, inv_freq, decay, center, scale, own)
    )
    return Tables((of_q[0], of_k[0]), (of_q[1], of_k[1]))


def _one_axis(function: str, inv_freq: Any) -> Any:
    """The `Rotary` in the place of frequencies, with one position axis; None for numbers."""
    rope = description_in(inv_freq)
    if rope is not None and rope.axis_map is not None:
        arguments.wrong_value(function, "inv_freq", "one position axis", "several axes")
    return rope


def _center(function: str, center: float | str, length: int) -> float:
    """The position of the center, for this number of positions."""
    if center == "length":
        return length // 2
    if isinstance(center, str):
        arguments.wrong_value(function, "center", "a number or 'length'", repr(center))
    return arguments.finite_number(function, "center", center)


def _decay(arrays: Arrays, inv_freq: Any, scale_base: float, gamma: float) -> Any:
    """The logarithm of a query's factor per position of distance from the center, float64 [P]."""
    if not arguments.is_tensor(inv_freq):
        inv_freq = arguments.as_frequencies(arrays.function, inv_freq)
    shape = tuple(inv_freq.shape)
    if len(shape) != 1:
        arguments.wrong_value(arrays.function, "inv_freq", "shape [P]", list(shape))
    scale_base = arguments.positive_number(arrays.function, "scale_base", scale_base)
    gamma = arguments.positive_number(arrays.function, "gamma", gamma)
    dim = 2 * shape[0]
    logarithms = [math.log((2 * i + gamma * dim) / ((1 + gamma) * dim)) for i in range(shape[0])]
    return arrays.constant([logarithm / scale_base for logarithm in logarithms])


def _tables(
    arrays: Arrays,
    points: Any,
    inv_freq: Any,
    decay: Any,
    center: float,
    scale: float,
    signs: tuple[int, ...],
) -> list[tuple[Any, Any]]:
    """(cos, sin) of points [...] for each sign: 1 for queries, -1 for keys."""
    function = arrays.function
    exponents = (points - center)[..., None] * decay
    limit = _LIMITS[_table_format(arrays)]
    if arrays.readable and 0 not in exponents.shape:
        largest = float(abs(exponents).max())
        if not largest <= limit:
            reach = limit / float(abs(decay).max())
            expected = f"within {reach:.0f} of the center, {center:g}, for factors in this format"
            got = f"a position {largest / float(abs(decay).max()):.0f} from it"
            arguments.wrong_value(function, "positions", expected, got)
    cos, sin = rotary_tables(points, inv_freq, scale=scale, dtype=arrays.float64)
    results = []
    for sign in signs:
        factors = arrays.xp.exp(sign * exponents)
        results.append((arrays.rounded(cos * factors), arrays.rounded(sin * factors)))
    return results


def _table_format(arrays: Arrays) -> str:
    """The name of the tables' format."""
    names = [name for name in _LIMITS if arrays.dtype == getattr(arrays.xp, name)]
    if not names:
        arguments.wrong_type(arrays.function, "dtype", " or ".join(_LIMITS), arrays.dtype)
    return names[0]
