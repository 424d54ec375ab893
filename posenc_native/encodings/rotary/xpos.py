"""xPos: rotary encoding with scores that decay with the distance between query and key.

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
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from posenc_native.core.calls import arguments
from posenc_native.core.calls.descriptions import check_none_beside, description_in
from posenc_native.core.calls.errors import fault_of
from posenc_native.core.calls.pairs import as_operands, positions_in
from posenc_native.core.calls.views import rotary_view
from posenc_native.engines.arrays import Arrays

from .by_tables import apply_rotary_tables, rotary_tables

if TYPE_CHECKING:
    import torch
    from typing_extensions import TypedDict, Unpack

    from posenc_native.core.calls.kinds import (
        Array,
        ArrayOrTensor,
        Dtype,
        Frequencies,
        Number,
        Numbers,
        NumPyDtype,
        Pair,
        Pairing,
        Plain,
        SupportsArray,
        SupportsRotary,
        Tensor,
        TensorLike,
    )
    from posenc_native.core.calls.rotation import PairOptions

__all__ = [
    "apply_xpos",
    "xpos_tables",
]

# Limits of a factor's logarithm: up to here the factor and its inverse are normal numbers.
_LIMITS = {"float32": 87.0, "float64": 708.0}


if TYPE_CHECKING:

    class Decay(TypedDict, total=False):
        """Keywords of the factors that make scores decay."""

        center: float | str
        scale_base: float
        gamma: float
        scale: float | None

    class XposOptions(Decay, PairOptions, total=False):
        """Keywords of a rotation with these factors."""

        k_positions: Numbers | None
        inplace: bool


@overload
def xpos_tables(positions: Plain, inv_freq: Plain | SupportsRotary, *, dtype: NumPyDtype = ...,
                **decay: Unpack[Decay]) -> Pair[Pair[Array[Any]]]: ...  # fmt: skip
@overload
def xpos_tables(positions: Numbers, inv_freq: Frequencies, *, dtype: Dtype = ...,
                **decay: Unpack[Decay]) -> Pair[Pair[ArrayOrTensor]]: ...  # fmt: skip
def xpos_tables(
    positions: int | npt.ArrayLike | torch.Tensor,
    inv_freq: Frequencies,
    *,
    center: float | str = 0.0,
    scale_base: float = 512.0,
    gamma: float = 0.4,
    scale: float | None = None,
    dtype: Any = None,
) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Cosines and sines for queries and for keys, for `apply_rotary_tables`.

    The tables of queries and of keys are computed separately, neither as the inverse of the other,
    in float64, and rounded once. The factors of pair 0 are the most extreme: with gamma 0.4 they
    are normal numbers of float32 up to ``|n - c| = 69.4 * scale_base``, which is 35 500 positions
    for 512. A center in the middle of the longest sequence makes the most of that range. The
    product with float16 elements overflows earlier: from ``8.8 * scale_base`` on for elements of 1.

    Args:
        positions: an int n for 0 .. n-1, or an array or tensor of any shape.
        inv_freq: a `Rotary`, which includes scale, or ``[P]``, radians per position; see
            `posenc_native.rotary_frequencies`. d is 2P.
        center: c, a position, the same in every call that shares keys; or "length" for half the
            number of positions (their last axis), rounded down, as in rotary-embedding-torch and
            x-transformers for positions from 0.
        scale_base: number of positions over which pair i decays by zeta_i, > 0.
        gamma: g in zeta_i, > 0; a smaller value makes the first pairs decay faster.
        scale: factor of all four tables; default 1.
        dtype: float32 (default) or float64, of NumPy or torch.

    Returns:
        ``(cos, sin)`` of queries and ``(cos, sin)`` of keys, each ``positions.shape + (P,)``.

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
        >>> (cos_q, sin_q), (cos_k, sin_k) = pn.xpos_tables(np.array([0, 512]), rope)
        >>> bool(np.allclose(np.hypot(cos_q, sin_q)[1], [0.4 / 1.4, 0.9 / 1.4]))
        True
        >>> bool(np.allclose(np.hypot(cos_q, sin_q) * np.hypot(cos_k, sin_k), 1))
        True
    """
    function = "xpos_tables"
    rope = _one_axis(function, inv_freq)
    if rope is not None:
        check_none_beside(function, rope, {"scale": scale})
        (inv_freq, _), scale = rope._of(positions), rope.scale
    scale = 1.0 if scale is None else scale
    arrays = Arrays(function, dtype, None, positions=positions, inv_freq=inv_freq)
    points = arrays.points("positions", positions)
    center = _center(function, center, points.shape[-1] if points.ndim else 0)
    decay = _decay(arrays, inv_freq, scale_base, gamma)
    of_q, of_k = _tables(arrays, points, inv_freq, decay, center, scale, (1, -1))
    return of_q, of_k


@overload
def apply_xpos(q: TensorLike, k: TensorLike, positions: Numbers | None, inv_freq: Frequencies,
               **options: Unpack[XposOptions]) -> Pair[Tensor]: ...  # fmt: skip
@overload
def apply_xpos(q: SupportsArray[Number], k: SupportsArray[Number], positions: Numbers | None,
    inv_freq: Numbers, **options: Unpack[XposOptions]) -> Pair[Array[Number]]: ...  # fmt: skip
def apply_xpos(
    q: Any,
    k: Any,
    positions: npt.ArrayLike | torch.Tensor | None,
    inv_freq: Frequencies,
    *,
    k_positions: npt.ArrayLike | torch.Tensor | None = None,
    center: float | str = 0.0,
    scale_base: float = 512.0,
    gamma: float = 0.4,
    scale: float | None = None,
    layout: str | None = None,
    pairing: Pairing | None = None,
    rotary_start: int | None = None,
    inplace: bool = False,
) -> tuple[Any, Any]:
    """Rotate queries and keys, and scale them so that scores decay with distance.

    Args:
        q, k: as x in `posenc_native.apply_rotary`; they may differ in heads and in length.
        positions: positions of the queries: None for 0 .. s-1, an int p for p .. p + s-1, ``[s]``,
            ``[b, s]`` or ``[1, s]`` (``[t]`` for packed tokens).
        inv_freq: a `Rotary`, which includes scale, pairing and rotary_start; or ``[P]``.
        scale_base, gamma, scale: as in `xpos_tables`.
        k_positions: positions of the keys; None for those of the queries, and for 0 .. s-1 if
            `positions` is None.
        center: c, a position; keep it the same in all calls that share keys. "length" is half the
            number of keys, rounded down; keys from an earlier call with fewer keys then do not fit.
        layout, pairing, rotary_start: as in `posenc_native.apply_rotary`. The paper's code uses
            "interleaved".
        inplace: write the results to `q` and `k`.

    Returns:
        ``(q, k)``; the arguments themselves if in place. Computed in float32 (float64 for float64)
        from tables of that format, rounded once. Gradients reach `q` and `k`.

    Raises:
        ValueError, TypeError: as in `xpos_tables` and `posenc_native.apply_rotary`; then nothing
            has been written.

    Source: Sun et al. 2022, arXiv:2212.10554; its code is torchscale's ``XPOS``.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> rope = pn.Rotary(64)
        >>> q, k = np.ones((1, 8, 5, 64), np.float32), np.ones((1, 2, 5, 64), np.float32)
        >>> _, cached = pn.apply_xpos(q, k, None, rope)
        >>> step = q[:, :, :1], k[:, :, :1]  # the next token: its key is appended, as it is
        >>> new_q, new_k = pn.apply_xpos(*step, 5, rope)
        >>> six = np.ones((1, 2, 6, 64), np.float32)  # as if all had come at once
        >>> _, at_once = pn.apply_xpos(six, six, None, rope)
        >>> bool((np.concatenate([cached, new_k], 2) == at_once).all())
        True
    """
    function = "apply_xpos"
    rope = _one_axis(function, inv_freq)
    if rope is not None:
        own = {"scale": scale, "pairing": pairing, "rotary_start": rotary_start}
        check_none_beside(function, rope, own)
        scale, pairing, rotary_start = rope.scale, rope.pairing, rope.rotary_start
        layout = rope.layout if layout is None else layout
        inv_freq, _ = rope._of(q)
    scale = 1.0 if scale is None else scale
    layout = "bhsd" if layout is None else layout
    pairing = "half" if pairing is None else pairing
    rotary_start = 0 if rotary_start is None else rotary_start
    q_and_k = q, k
    if not arguments.is_tensor(q):
        q, k = as_operands(function, q, k, inplace)
    for argument, x in (("q", q), ("k", k)):
        if type(x) is not type(q) and not (arguments.is_tensor(x) and arguments.is_tensor(q)):
            arguments.wrong_type(function, argument, "the type of q", type(x).__name__)
        arguments.check_dtype(function, argument, x.dtype, arguments.FLOAT_DTYPES)
        if x.dtype != q.dtype:
            arguments.wrong_type(function, argument, f"the dtype of q, {q.dtype}", x.dtype)
    arrays = Arrays(
        function,
        q.dtype if arguments.dtype_name(q.dtype) == "float64" else "float32",
        q.device if arguments.is_tensor(q) else None,
        q=q, k=k, positions=positions, k_positions=k_positions, inv_freq=inv_freq,
    )  # fmt: skip
    decay = _decay(arrays, inv_freq, scale_base, gamma)
    pairs = decay.shape[0]
    views = [
        rotary_view(function, tuple(x.shape), layout, pairing, rotary_start, pairs, name)
        for name, x in (("q", q), ("k", k))
    ]
    center = _center(function, center, views[1].tokens)
    same = k_positions is None and (positions is not None or views[0].tokens == views[1].tokens)
    if k_positions is None:
        k_positions = positions
    points = []
    for name, view, given in zip(
        ("positions", "k_positions"), views, (positions, k_positions), strict=True
    ):
        if given is None or arguments.is_count(given):
            first: Any = given or 0
            given = positions_in(function, first, q if name == "positions" else k, layout)
        values = arrays.points(name, given)
        view.check_tokens(function, name, tuple(values.shape))
        points.append(values)
    if same:
        of_q, of_k = _tables(arrays, points[0], inv_freq, decay, center, scale, (1, -1))
    else:
        (of_q,) = _tables(arrays, points[0], inv_freq, decay, center, scale, (1,))
        (of_k,) = _tables(arrays, points[1], inv_freq, decay, center, scale, (-1,))
    if inplace:
        _check_places(function, q, k, layout)
    results = [
        apply_rotary_tables(
            x, *tables, layout=layout, pairing=pairing, rotary_start=rotary_start,
            out=x if inplace else None,
        )
        for x, tables in ((q, of_q), (k, of_k))
    ]  # fmt: skip
    return q_and_k if inplace else (results[0], results[1])


def _check_places(function: str, q: Any, k: Any, layout: str) -> None:
    """ValueError unless both can be written in place; both are checked before either is written."""
    tensors = arguments.is_tensor(q)
    if tensors:
        from posenc_native.engines.following import is_leaf_for_gradient, tracing
        from posenc_native.engines.torch.results import overlap as _overlap

        if tracing():
            return
    if _overlap(q, k) if tensors else np.shares_memory(q, k):
        arguments.wrong_value(function, "k", "no memory in common with q", "an overlap")
    for name, x in (("q", q), ("k", k)):
        if tensors and is_leaf_for_gradient(x):
            expected = "no leaf that requires a gradient with inplace"
            arguments.wrong_value(function, name, expected, "one")
        # A rotation of no pairs checks the memory and writes nothing.
        data = x.detach() if tensors else x
        tokens = data.shape[layout.index("t" if "t" in layout else "s")]
        table = data.new_empty((tokens, 0)) if tensors else np.empty((tokens, 0), np.float32)
        try:
            apply_rotary_tables(data, table, table, layout=layout, out=data)
        except ValueError as error:
            if (fault := fault_of(error)) is None:
                raise
            arguments.wrong_value(function, name, fault.expected, fault.got)


def _one_axis(function: str, inv_freq: Any) -> Any:
    """The `Rotary` given in place of frequencies, with one position axis; None for numbers."""
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
    known = [name for name in _LIMITS if arrays.dtype == getattr(arrays.xp, name)]
    if not known:
        arguments.wrong_type(arrays.function, "dtype", " or ".join(_LIMITS), arrays.dtype)
    return known[0]
