"""Rotary position encoding by precomputed tables of cosines and sines."""

# As in apply.py, the options are passed to the fast path (`door`) one by one, by position.

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NoReturn, overload

import numpy as np
import numpy.typing as npt

from posenc_native.core.calls import arguments
from posenc_native.core.calls.descriptions import check_none_beside, description_in
from posenc_native.core.calls.pairs import missing_one, outputs
from posenc_native.core.calls.rotation import TableRotation
from posenc_native.core.calls.suggestions.vocabulary import refuse, refuse_missing, takes_words
from posenc_native.engines import backend, late
from posenc_native.engines.rotations import Call, run

if TYPE_CHECKING:
    import torch
    from typing_extensions import Unpack

    from posenc_native.core.calls.kinds import (
        Array,
        Dtype,
        Frequencies,
        Item,
        Number,
        Numbers,
        NumPyDtype,
        OutArray,
        OutTensor,
        Pair,
        Pairing,
        SupportsArray,
        SupportsRotary,
        Tensor,
        TensorLike,
        TorchDtype,
    )
    from posenc_native.core.calls.rotation import TableRotationOptions, TableRotationOptionsOfTwo

__all__ = ["apply_rotary_qk_tables", "apply_rotary_tables", "rotary_tables"]


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
    *more: NoReturn,
    axis_map: npt.ArrayLike | torch.Tensor | None = None,
    scale: float | None = None,
    dtype: Any = None,
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

    Returns:
        ``(cos, sin)``, each ``positions.shape + (P,)`` (without the axis A).

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
    if more or unknown:
        refuse(rotary_tables, positions, inv_freq, *more, **unknown)
    function = "rotary_tables"
    refuse_missing(rotary_tables, positions, inv_freq)
    rope = description_in(inv_freq)
    if rope is not None:
        check_none_beside(function, rope, {"axis_map": axis_map, "scale": scale})
        (inv_freq, axis_map), scale = rope._of(positions), rope.scale
    if scale is None:
        scale = 1.0
    tables = backend.door.rotary_tables(positions, inv_freq, axis_map, scale, dtype)
    if tables is not NotImplemented:
        return tables  # type: ignore[no-any-return]
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


@overload
def apply_rotary_tables(x: TensorLike, cos: Any, sin: Any, *, out: OutTensor = ...,
                        **options: Unpack[TableRotationOptions]) -> Tensor: ...  # fmt: skip
@overload
def apply_rotary_tables(x: SupportsArray[Number], cos: Any, sin: Any, *, out: OutArray = ...,
                        **options: Unpack[TableRotationOptions]) -> Array[Number]: ...  # fmt: skip
@takes_words
def apply_rotary_tables(
    x: Any,
    cos: Any,
    sin: Any,
    *more: NoReturn,
    layout: str | None = None,
    pairing: Pairing | None = None,
    rotary_start: int | None = None,
    inverse: bool = False,
    compute: Literal["float32", "as_written"] = "float32",
    rows: npt.ArrayLike | torch.Tensor | None = None,
    axis_map: npt.ArrayLike | torch.Tensor | None = None,
    out_pairing: Pairing | Literal["same"] = "same",
    out: Any = None,
    **unknown: NoReturn,
) -> Any:
    """Rotate `x` by precomputed cosines and sines.

    Args:
        x, layout, pairing, rotary_start, inverse, out_pairing, out: as in `apply_rotary`.
        cos, sin: ``[s, P]``, ``[b, s, P]`` or ``[1, s, P]`` (``[t, P]`` for packed tokens), one
            value per pair, of any of the four float dtypes. For different tables per head,
            ``[b, h, s, P]`` or ``[1, h, s, P]`` (``[h, s, P]`` if `layout` has no b). With `rows`,
            ``[n, P]``; with `axis_map`, an axis ``[A, ...]`` before the others.
        compute: "float32": everything in float32 (float64 for a float64 `x`), rounded once.
            "as_written": cos and sin, each product and the sum are rounded to x's dtype, as in
            ``x * cos + rotate_half(x) * sin`` on tensors of that dtype. This matches, bit for bit,
            the forward and backward passes of Llama and similar models in transformers in eager
            mode.
        rows: ``[s]``, ``[b, s]`` or ``[1, s]`` integers, the row of `cos` and `sin` for each token;
            nothing is copied. On CUDA rows are not checked: a row outside the tables is replaced by
            the nearest.
        axis_map: ``[P]`` ints, which of the A tables drives each pair.

    Returns:
        An array or tensor like `x`. Gradients reach `x`, and `cos` and `sin` if they require them.

    Raises:
        ValueError, TypeError: as in `apply_rotary`; or `rows` are outside the tables.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> rope = pn.Rotary(4)
        >>> cos, sin = pn.rotary_tables(3, rope)
        >>> x = np.ones((3, 4), np.float32)
        >>> same = pn.apply_rotary(x, None, rope, layout="sd")
        >>> bool((pn.apply_rotary_tables(x, cos, sin, layout="sd") == same).all())
        True
    """
    if more or unknown:
        refuse(apply_rotary_tables, x, cos, sin, *more, **unknown)
    result = backend.door.apply_rotary_tables(
        x, cos, sin, layout, pairing, rotary_start, inverse, compute, rows, axis_map,
        None, None, None, None, out_pairing, out,
    )  # fmt: skip
    if result is not NotImplemented:
        return result
    refuse_missing(apply_rotary_tables, x, cos, sin)
    rotation = TableRotation(
        cos, sin, layout, pairing, rotary_start, inverse, compute, rows, axis_map,
        out_pairing=out_pairing,
    )  # fmt: skip
    return run(Call("apply_rotary_tables", (x,), rotation, out))


@overload
def apply_rotary_qk_tables(q: TensorLike, k: TensorLike, cos: Any, sin: Any, *,
    inplace: bool = ..., out: Pair[OutTensor] | None = ...,
    **options: Unpack[TableRotationOptionsOfTwo],
) -> Pair[Tensor]: ...  # fmt: skip
@overload
def apply_rotary_qk_tables(q: SupportsArray[Number], k: SupportsArray[Number],
    cos: Any, sin: Any, *, inplace: bool = ..., out: Pair[OutArray] | None = ...,
    **options: Unpack[TableRotationOptionsOfTwo],
) -> Pair[Array[Number]]: ...  # fmt: skip
@overload
def apply_rotary_qk_tables(q: None, k: Item, cos: Any, sin: Any, *, inplace: bool = ...,
    out: tuple[None, Any] | None = ..., **options: Unpack[TableRotationOptionsOfTwo],
) -> tuple[None, Item]: ...  # fmt: skip
@overload
def apply_rotary_qk_tables(q: Item, k: None, cos: Any, sin: Any, *, inplace: bool = ...,
    out: tuple[Any, None] | None = ..., **options: Unpack[TableRotationOptionsOfTwo],
) -> tuple[Item, None]: ...  # fmt: skip
@takes_words
def apply_rotary_qk_tables(
    q: Any,
    k: Any,
    cos: Any,
    sin: Any,
    *more: NoReturn,
    layout: str | None = None,
    pairing: Pairing | None = None,
    rotary_start: int | tuple[int, int] | None = None,
    inverse: bool = False,
    compute: Literal["float32", "as_written"] = "float32",
    rows: npt.ArrayLike | torch.Tensor | tuple[Any, Any] | None = None,
    axis_map: npt.ArrayLike | torch.Tensor | None = None,
    out_pairing: Pairing | Literal["same"] = "same",
    inplace: bool = False,
    out: tuple[Any, Any] | None = None,
    **unknown: NoReturn,
) -> tuple[Any, Any]:
    """Rotate the queries and keys of a layer by precomputed cosines and sines, in one call.

    Args:
        q, k, inplace, out: as in `apply_rotary_qk`.
        cos, sin: as in `apply_rotary_tables`, the same for `q` and `k`; or tuples
            ``(cos_q, cos_k)`` and ``(sin_q, sin_k)``: q and k may then differ in length and batch.
        rotary_start: as in `apply_rotary_qk`.
        layout, pairing, inverse, out_pairing: as in `apply_rotary`.
        compute, axis_map: as in `apply_rotary_tables`.
        rows: as in `apply_rotary_tables`, or a tuple ``(q_rows, k_rows)``, with which q and k may
            also differ in length and batch.

    Returns:
        ``(q, k)`` rotated, bit for bit as by two calls of `apply_rotary_tables`; the arguments
        themselves if in place, `out` if it is given. Gradients reach `q` and `k`, and `cos` and
        `sin` if they require them.

    Raises:
        ValueError, TypeError: as in `apply_rotary`; then nothing has been written.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> rope = pn.Rotary(64)
        >>> cos, sin = rope.tables(np.array([76, 77]))  # once for all layers
        >>> q, k = np.ones((1, 8, 2, 64), np.float32), np.ones((1, 2, 2, 64), np.float32)
        >>> rotated_q, rotated_k = pn.apply_rotary_qk_tables(q, k, cos, sin)
        >>> bool((rotated_k == pn.apply_rotary_tables(k, cos, sin)).all())
        True
    """
    if more or unknown:
        refuse(apply_rotary_qk_tables, q, k, cos, sin, *more, **unknown)
    to: Any = inplace
    if out is not None:
        to = outputs("apply_rotary_qk_tables", out, inplace, missing_one(q, k))
    rotated = backend.door.apply_rotary_qk_tables(
        q, k, cos, sin, layout, pairing, rotary_start, inverse, compute, rows, axis_map,
        None, None, None, None, out_pairing, to,
    )  # fmt: skip
    if rotated is not NotImplemented:
        return rotated  # type: ignore[no-any-return]
    refuse_missing(apply_rotary_qk_tables, q, k, cos, sin)
    rotation = TableRotation(
        cos, sin, layout, pairing, rotary_start, inverse, compute, rows, axis_map,
        out_pairing=out_pairing,
    )  # fmt: skip
    return run(Call("apply_rotary_qk_tables", (q, k), rotation, to))  # type: ignore[no-any-return]
