"""Rotary position encoding by ready tables: cosines and sines, and pairs turned by them."""

# As in apply.py: options go by position, one by one, for the sake of small calls.

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt
from numpy import ndarray

from posenc_native.base import arguments
from posenc_native.base.hints import hint_at
from posenc_native.base.pairs import (
    alone,
    indices_as_arrays,
    outputs,
    rows_of_each,
    starts_of_each,
    tables_of_each,
)
from posenc_native.base.rotation import TableRotation
from posenc_native.engines import backend, late

if TYPE_CHECKING:
    import torch
    from typing_extensions import Unpack

    from posenc_native.base.kinds import (
        Array,
        Dtype,
        Number,
        Numbers,
        NumPyDtype,
        OutArray,
        OutTensor,
        Pair,
        SupportsArray,
        Tensor,
        TensorLike,
        TorchDtype,
    )
    from posenc_native.base.rotation import TableRotationOptions, TableRotationOptionsOfTwo

__all__ = ["apply_rotary_qk_tables", "apply_rotary_tables", "rotary_tables"]

# Where k has nothing of its own: the fields between `axis_map` and `out_pairing`.
_SAME_FOR_K = TableRotation(None, None)[TableRotation._fields.index("axis_map") + 1 : -1]


@overload
def rotary_tables(positions: TensorLike, inv_freq: Numbers, *, axis_map: Numbers | None = ...,
                  scale: float = ..., dtype: Dtype = ...) -> Pair[Tensor]: ...  # fmt: skip
@overload
def rotary_tables(positions: npt.ArrayLike, inv_freq: TensorLike, *, axis_map: Numbers | None = ...,
                  scale: float = ..., dtype: Dtype = ...) -> Pair[Tensor]: ...  # fmt: skip
@overload
def rotary_tables(positions: Numbers, inv_freq: Numbers, *, axis_map: Numbers | None = ...,
                  scale: float = ..., dtype: TorchDtype) -> Pair[Tensor]: ...  # fmt: skip
@overload
def rotary_tables(positions: npt.ArrayLike, inv_freq: npt.ArrayLike, *,
    axis_map: Numbers | None = ..., scale: float = ..., dtype: NumPyDtype = ...,
) -> Pair[Array[Any]]: ...  # fmt: skip
def rotary_tables(
    positions: npt.ArrayLike | TensorLike,
    inv_freq: npt.ArrayLike | TensorLike,
    *,
    axis_map: npt.ArrayLike | torch.Tensor | None = None,
    scale: float = 1.0,
    dtype: Any = None,
) -> tuple[Any, Any]:
    """Cosines and sines of ``positions * inv_freq``, exact at every position.

    Args:
        positions: an int n for 0 .. n-1, or an array or tensor of any shape; with `axis_map`, the
            first axis chooses the coordinate: ``[A, ...]``.
        inv_freq: ``[P]``, radians per position, float32 or float64; taken as exact.
        axis_map: ``[P]`` ints, which coordinate drives each pair.
        scale: factor of both (YaRN's attention factor).
        dtype: float16, bfloat16, float32 (default) or float64, of NumPy or torch.

    Returns:
        ``(cos, sin)``, each ``positions.shape + (P,)`` (without the axis A).

    Raises:
        ValueError: shapes that do not fit, positions or frequencies that are not finite.
        TypeError: impossible dtypes.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> cos, sin = pn.rotary_tables(np.array([0, 10**6]), np.array([1.0, 0.01]))
        >>> cos.round(6)
        array([[ 1.      ,  1.      ],
               [ 0.936752, -0.952155]], dtype=float32)
    """
    if (
        arguments.is_tensor(positions)
        or arguments.is_tensor(inv_freq)
        or arguments.is_torch_dtype(dtype)
    ):
        return late.torch_operations().rotary_tables(  # type: ignore[no-any-return]
            positions, inv_freq, axis_map, scale, dtype
        )
    function = "rotary_tables"
    if axis_map is not None and isinstance(positions, (int, np.integer)):
        arguments.wrong_value(function, "positions", "shape [A, ...] with axis_map", "a count")
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
def apply_rotary_tables(
    x: Any,
    cos: Any,
    sin: Any,
    *,
    layout: str = "bhsd",
    pairing: str | int = "half",
    rotary_start: int = 0,
    inverse: bool = False,
    compute: str = "float32",
    rows: npt.ArrayLike | torch.Tensor | None = None,
    axis_map: npt.ArrayLike | torch.Tensor | None = None,
    out_pairing: str | int = "same",
    out: Any = None,
) -> Any:
    """Rotate `x` by ready cosines and sines.

    Args:
        x, layout, pairing, rotary_start, inverse, out_pairing, out: as in `apply_rotary`.
        cos, sin: ``[s, P]``, ``[b, s, P]`` or ``[1, s, P]`` (``[t, P]`` for packed tokens), one
            value a pair, of any of the four float dtypes. If every head has its own, ``[b, h, s,
            P]`` or ``[1, h, s, P]`` (``[h, s, P]`` where `layout` has no b). With `rows` ``[n,
            P]``, with `axis_map` an axis ``[A, ...]`` before the others.
        compute: "float32": all in float32 (float64 for a float64 `x`), rounded once. "as_written":
            rounded as the operations of ``x * cos + rotate_half(x) * sin`` on tensors of x's dtype
            are: cos and sin to that dtype, each product, the sum. That is bit for bit what Llama
            and its kin in transformers compute in eager mode, forwards and backwards.
        rows: ``[s]``, ``[b, s]`` or ``[1, s]`` integers, which row of `cos` and `sin` each token
            has; nothing is copied. On CUDA, where nobody looks at them, a row outside is the
            nearest.
        axis_map: ``[P]`` ints, which of the A tables drives each pair.

    Returns:
        An array or tensor like `x`. Gradients reach `x`, and `cos` and `sin` if they ask for them.

    Raises:
        ValueError, TypeError: as in `apply_rotary`; `rows` outside of the tables.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> inv_freq, _ = pn.rotary_frequencies(4)
        >>> cos, sin = pn.rotary_tables(3, inv_freq)
        >>> x = np.ones((3, 4), np.float32)
        >>> same = pn.apply_rotary(x, None, inv_freq, layout="sd")
        >>> bool((pn.apply_rotary_tables(x, cos, sin, layout="sd") == same).all())
        True
    """
    more: tuple[Any, ...] = ()
    try:
        if rows is not None or axis_map is not None or out_pairing != "same":
            more = rows, axis_map, *_SAME_FOR_K, out_pairing
        operations, native = None, backend.implementation
        if type(x) is not ndarray:
            operations = late.operations_on(x)
            if operations is None:
                x = arguments.as_operand("apply_rotary_tables", "x", x)
            else:
                native = operations.at_once(x)
        if operations is None:
            if type(cos) is not ndarray:
                cos = arguments.as_array("apply_rotary_tables", "cos", cos)
            if type(sin) is not ndarray:
                sin = arguments.as_array("apply_rotary_tables", "sin", sin)
            if more:
                more = *indices_as_arrays("apply_rotary_tables", rows, axis_map), *more[2:]
            if out is not None and type(out) is not ndarray:
                arguments.check_no_mask("apply_rotary_tables", "out", out)
        if native is not None:
            if not more:
                result = native.apply_rotary_tables(
                    x, cos, sin, layout, pairing, rotary_start, inverse, compute, out
                )
            else:
                result = native.apply_rotary_tables(
                    x, cos, sin, layout, pairing, rotary_start, inverse, compute, *more, out
                )
            if operations is None:
                return result
            if result is not NotImplemented:
                return result
        rotation = TableRotation(cos, sin, layout, pairing, rotary_start, inverse, compute, *more)
        return operations.apply_rotary_tables(x, rotation, out)
    except (ValueError, TypeError) as error:
        rotation = TableRotation(cos, sin, layout, pairing, rotary_start, inverse, compute, *more)
        hint_at(error, rotation, x=x)
        raise


@overload
def apply_rotary_qk_tables(q: TensorLike, k: TensorLike, cos: Any, sin: Any, *,
    inplace: bool = ..., out: Pair[OutTensor] | None = ...,
    **options: Unpack[TableRotationOptionsOfTwo],
) -> Pair[Tensor]: ...  # fmt: skip
@overload
def apply_rotary_qk_tables(q: SupportsArray[Number], k: SupportsArray[Number], cos: Any, sin: Any,
    *, inplace: bool = ..., out: Pair[OutArray] | None = ...,
    **options: Unpack[TableRotationOptionsOfTwo],
) -> Pair[Array[Number]]: ...  # fmt: skip
@overload
def apply_rotary_qk_tables(q: TensorLike, k: None, cos: Any, sin: Any, *, inplace: bool = ...,
    out: tuple[OutTensor, None] | None = ..., **options: Unpack[TableRotationOptionsOfTwo],
) -> tuple[Tensor, None]: ...  # fmt: skip
@overload
def apply_rotary_qk_tables(q: None, k: TensorLike, cos: Any, sin: Any, *, inplace: bool = ...,
    out: tuple[None, OutTensor] | None = ..., **options: Unpack[TableRotationOptionsOfTwo],
) -> tuple[None, Tensor]: ...  # fmt: skip
@overload
def apply_rotary_qk_tables(q: SupportsArray[Number], k: None, cos: Any, sin: Any, *,
    inplace: bool = ..., out: tuple[OutArray, None] | None = ...,
    **options: Unpack[TableRotationOptionsOfTwo],
) -> tuple[Array[Number], None]: ...  # fmt: skip
@overload
def apply_rotary_qk_tables(q: None, k: SupportsArray[Number], cos: Any, sin: Any, *,
    inplace: bool = ..., out: tuple[None, OutArray] | None = ...,
    **options: Unpack[TableRotationOptionsOfTwo],
) -> tuple[None, Array[Number]]: ...  # fmt: skip
def apply_rotary_qk_tables(
    q: Any,
    k: Any,
    cos: Any,
    sin: Any,
    *,
    layout: str = "bhsd",
    pairing: str | int = "half",
    rotary_start: int | tuple[int, int] = 0,
    inverse: bool = False,
    compute: str = "float32",
    rows: npt.ArrayLike | torch.Tensor | tuple[Any, Any] | None = None,
    axis_map: npt.ArrayLike | torch.Tensor | None = None,
    out_pairing: str | int = "same",
    inplace: bool = False,
    out: tuple[Any, Any] | None = None,
) -> tuple[Any, Any]:
    """Rotate the queries and keys of a layer by ready cosines and sines, in one call.

    Args:
        q, k, inplace, out: as in `apply_rotary_qk`.
        cos, sin: as in `apply_rotary_tables`, the same for `q` and `k`; or pairs, tuples ``(cos_q,
            cos_k)`` and ``(sin_q, sin_k)``: q and k then have lengths and batches of their own.
        rotary_start: as in `apply_rotary_qk`.
        layout, pairing, inverse, out_pairing: as in `apply_rotary`.
        compute, axis_map: as in `apply_rotary_tables`.
        rows: as in `apply_rotary_tables`, or a pair, a tuple ``(q_rows, k_rows)``, which also gives
            q and k lengths and batches of their own.

    Returns:
        ``(q, k)`` rotated, to the bits of two calls of `apply_rotary_tables`; the arguments
        themselves if in place, `out` if it is given. Gradients reach `q` and `k`, and `cos` and
        `sin` if they ask for them.

    Raises:
        ValueError, TypeError: as in `apply_rotary`; nothing has been written then.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> inv_freq, _ = pn.rotary_frequencies(64)
        >>> cos, sin = pn.rotary_tables(np.array([76, 77]), inv_freq)  # once for all layers
        >>> q, k = np.ones((1, 8, 2, 64), np.float32), np.ones((1, 2, 2, 64), np.float32)
        >>> rotated_q, rotated_k = pn.apply_rotary_qk_tables(q, k, cos, sin)
        >>> bool((rotated_k == pn.apply_rotary_tables(k, cos, sin)).all())
        True
    """
    to: Any = inplace
    more: tuple[Any, ...] = ()
    start: Any = rotary_start
    try:
        if q is None or k is None:
            return alone(
                "apply_rotary_qk_tables", apply_rotary_tables, q, k, (cos, sin), inplace, out,
                layout=layout, pairing=pairing, rotary_start=rotary_start, inverse=inverse,
                compute=compute, rows=rows, axis_map=axis_map, out_pairing=out_pairing,
            )  # fmt: skip
        if (
            rows is not None
            or axis_map is not None
            or type(cos) is tuple
            or type(sin) is tuple
            or type(rotary_start) is tuple
            or out_pairing != "same"
        ):
            (cos, k_cos), (sin, k_sin) = tables_of_each("apply_rotary_qk_tables", q, cos, sin)
            start, k_start = starts_of_each("apply_rotary_qk_tables", rotary_start)
            q_rows, k_rows = rows_of_each("apply_rotary_qk_tables", q, rows)
            more = q_rows, axis_map, k_cos, k_sin, k_rows, k_start, out_pairing
        if out is not None:
            to = outputs("apply_rotary_qk_tables", out, inplace)
        operations, native, given = None, backend.implementation, None
        if not type(q) is type(k) is ndarray:
            operations = late.operations_on(q)
            if operations is None:
                given = q, k
                q, k = arguments.as_operands("apply_rotary_qk_tables", q, k, inplace)
            else:
                native = operations.at_once(q)
        if operations is None:
            if type(cos) is not ndarray:
                cos = arguments.as_array("apply_rotary_qk_tables", "cos", cos)
            if type(sin) is not ndarray:
                sin = arguments.as_array("apply_rotary_qk_tables", "sin", sin)
            if axis_map is not None:
                more = *indices_as_arrays("apply_rotary_qk_tables", more[0], axis_map), *more[2:]
        if native is not None:
            rotated: tuple[Any, Any]
            if not more:
                rotated = native.apply_rotary_qk_tables(
                    q, k, cos, sin, layout, pairing, start, inverse, compute, to
                )
            else:
                rotated = native.apply_rotary_qk_tables(
                    q, k, cos, sin, layout, pairing, start, inverse, compute, *more, to
                )
            if operations is None:
                return given if inplace and given else rotated
            if rotated is not NotImplemented:
                return rotated
        rotation = TableRotation(cos, sin, layout, pairing, start, inverse, compute, *more)
        return operations.apply_rotary_qk_tables(q, k, rotation, to)  # type: ignore[no-any-return]
    except (ValueError, TypeError) as error:
        rotation = TableRotation(cos, sin, layout, pairing, start, inverse, compute, *more)
        hint_at(error, rotation, q=q, k=k)
        raise
