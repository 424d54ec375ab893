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
from posenc_native.core.calls.tables import Reach, Tables, far_tables
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
    in float64, and rounded once.

    The factors of pair 0 are the most extreme, and grow with the distance from the center. A call
    with a position so far away that a factor times elements of 16 would overflow is an error. (The
    rotation of such a pair has elements of up to ``16 * sqrt(2)``.) So the results are finite if
    no element of q and k is larger than 16. With gamma 0.4 and scale 1, positions reach

        float16              6.36 * scale_base   3257 for 512
        bfloat16, float32    68.3 * scale_base   34 985 for 512; tables of float32 too
        float64              564 * scale_base    288 811 for 512

    A center in the middle of the longest sequence makes the most of that range.

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
        ValueError: the shapes do not fit; numbers are not positive or finite; or positions are too
            far from the center for the dtype of the tables. `apply_rotary_qk` raises it for the
            dtype of q and k. (Positions are checked only if they can be read without a wait: not
            on a GPU, unless they are an int, and not while torch.compile traces.)
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
    decay: dict[str, Any] = {
        "center": center, "scale_base": scale_base, "gamma": gamma, "scale": scale,
    }  # fmt: skip
    return far_tables(*tables_and_reach("xpos_tables", positions, inv_freq, dtype, **decay))


# The lowest and the highest of some positions; None if they are unknown.
Span = tuple[float, float] | None


def tables_and_reach(
    function: str,
    positions: Any,
    inv_freq: Any,
    dtype: Any,
    *,
    center: float | str,
    scale_base: float,
    gamma: float,
    scale: float | None = None,
    spans: tuple[Span, ...] = (None, None),
) -> tuple[Tables, Reach | None]:
    """The tables, and how far their positions are from the center, if that is known.

    spans: for positions, or for those of q and of k, what the caller knows without reading them.
    """
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
    table_format = _table_format(arrays)
    points = [arrays.points("positions", coordinates) for coordinates in pair]
    middle = _center(function, center, points[-1].shape[-1] if points[-1].ndim else 0)
    logarithms = _logarithms(arrays, inv_freq, scale_base, gamma)
    known = [_span(arrays, *values) for values in zip(pair, points, spans, strict=False)]
    reach = None
    if len(logarithms):
        reach = _reach(known, middle, scale_base, -min(logarithms), scale)
    if reach is not None:
        reach.check(function, "positions", table_format)
    decay = arrays.constant(logarithms)
    signs = ((1, -1),) if len(points) == 1 else ((1,), (-1,))
    of_q, of_k = (
        table
        for at, own in zip(points, signs, strict=True)
        for table in _tables(arrays, at, inv_freq, decay, middle, scale, own)
    )
    return Tables((of_q[0], of_k[0]), (of_q[1], of_k[1])), reach


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


def _logarithms(arrays: Arrays, inv_freq: Any, scale_base: float, gamma: float) -> list[float]:
    """The logarithm of a query's factor per position of distance from the center, for each pair."""
    if not arguments.is_tensor(inv_freq):
        inv_freq = arguments.as_frequencies(arrays.function, inv_freq)
    shape = tuple(inv_freq.shape)
    if len(shape) != 1:
        arguments.wrong_value(arrays.function, "inv_freq", "shape [P]", list(shape))
    scale_base = arguments.positive_number(arrays.function, "scale_base", scale_base)
    gamma = arguments.positive_number(arrays.function, "gamma", gamma)
    dim = 2 * shape[0]
    logarithms = [math.log((2 * i + gamma * dim) / ((1 + gamma) * dim)) for i in range(shape[0])]
    return [logarithm / scale_base for logarithm in logarithms]


def _span(arrays: Arrays, coordinates: Any, points: Any, told: Span) -> Span:
    """The lowest and the highest position, if there are some that can be read without a wait."""
    if 0 in tuple(points.shape) or (arrays.is_torch and _without_numbers(points)):
        return None
    if told is not None:
        return told
    if isinstance(coordinates, (int, np.integer)):
        return 0.0, float(coordinates - 1)
    return (float(points.min()), float(points.max())) if arrays.readable else None


def _without_numbers(points: torch.Tensor) -> bool:
    """Whether the tensor stands for others: while torch traces, in its fake mode, on "meta"."""
    from posenc_native.engines.following import tracing

    return tracing() or points.is_meta or type(points).__name__ == "FakeTensor"


def _reach(
    spans: list[Span], center: float, scale_base: float, decay: float, scale: float
) -> Reach | None:
    """How far the positions are from the center; None if that is unknown."""
    known = [span for span in spans if span is not None]
    if not known:
        return None
    lowest, highest = min(low for low, _ in known), max(high for _, high in known)
    if any(math.isnan(low) for low, _ in known):
        lowest = highest = math.nan  # which min and max may miss
    of_scale = abs(math.log(abs(scale))) if scale and math.isfinite(scale) else 0.0
    return Reach(lowest, highest, center, scale_base, decay, of_scale)


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
    exponents = (points - center)[..., None] * decay
    cos, sin = rotary_tables(points, inv_freq, scale=scale, dtype=arrays.float64)
    results = []
    for sign in signs:
        factors = arrays.xp.exp(sign * exponents)
        results.append((arrays.rounded(cos * factors), arrays.rounded(sin * factors)))
    return results


def _table_format(arrays: Arrays) -> str:
    """The name of the tables' format."""
    formats = ("float32", "float64")
    names = [name for name in formats if arrays.dtype == getattr(arrays.xp, name)]
    if not names:
        arguments.wrong_type(arrays.function, "dtype", " or ".join(formats), arrays.dtype)
    return names[0]
