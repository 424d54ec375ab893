"""Rotary position encoding: turn the pairs of a head by the angle of their position.

    (a, b)  ->  (a cos t - b sin t,  b cos t + a sin t),    t = position * inv_freq[pair]

    pairing of a head of 2P rotated dims
    half            x0 x1 ... | xP xP+1 ...      i with i + P        NeoX, Llama in Hugging Face
    interleaved     x0 x1 | x2 x3 | x4 x5 ...    2i with 2i + 1      GPT-J, Llama as published
    an int b        in each block of b dims, i with i + b/2          several axes, one after another

Source: Su et al. 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding".
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from posenc_native.base import arguments, views
from posenc_native.engines import backend, late

from .base.calls import call_arguments
from .models.config import rotary_arguments
from .models.presets import rotary_preset
from .spectra.scaling import rotary_frequencies

if TYPE_CHECKING:
    import torch

    from .base.kinds import Number, SupportsArray

__all__ = [
    "Rotary",
    "apply_rotary",
    "apply_rotary_qk",
    "apply_rotary_qk_tables",
    "apply_rotary_tables",
    "rotary_tables",
]


@overload
def rotary_tables(
    positions: int | npt.NDArray[Any] | Sequence[Any], inv_freq: npt.NDArray[Any] | Sequence[float],
    *, axis_map: npt.ArrayLike | torch.Tensor | None = ..., scale: float = ...,
    dtype: npt.DTypeLike | None = ...,
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]: ...  # fmt: skip
@overload
def rotary_tables(
    positions: torch.Tensor, inv_freq: npt.ArrayLike | torch.Tensor, *,
    axis_map: npt.ArrayLike | torch.Tensor | None = ..., scale: float = ..., dtype: Any = ...,
) -> tuple[torch.Tensor, torch.Tensor]: ...  # fmt: skip
@overload
def rotary_tables(
    positions: int | npt.ArrayLike | torch.Tensor, inv_freq: torch.Tensor, *,
    axis_map: npt.ArrayLike | torch.Tensor | None = ..., scale: float = ..., dtype: Any = ...,
) -> tuple[torch.Tensor, torch.Tensor]: ...  # fmt: skip
@overload
def rotary_tables(
    positions: int | npt.ArrayLike | torch.Tensor, inv_freq: npt.ArrayLike | torch.Tensor, *,
    axis_map: npt.ArrayLike | torch.Tensor | None = ..., scale: float = ..., dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]: ...  # fmt: skip
@overload
def rotary_tables(
    positions: npt.ArrayLike, inv_freq: npt.ArrayLike, *,
    axis_map: npt.ArrayLike | torch.Tensor | None = ..., scale: float = ...,
    dtype: npt.DTypeLike | None = ...,
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]: ...  # fmt: skip
def rotary_tables(
    positions: int | npt.ArrayLike | torch.Tensor,
    inv_freq: npt.ArrayLike | torch.Tensor,
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
        positions = arguments.as_array(function, "positions", positions)
    inv_freq = arguments.as_array(function, "inv_freq", inv_freq)
    if axis_map is not None:
        axis_map = arguments.as_array(function, "axis_map", axis_map)
    if dtype is not None:
        dtype = arguments.as_dtype(function, dtype)
    return backend.implementation.rotary_tables(  # type: ignore[no-any-return]
        positions, inv_freq, axis_map, scale, dtype
    )


@overload
def apply_rotary(
    x: npt.NDArray[Number], positions: npt.ArrayLike | torch.Tensor | None,
    inv_freq: npt.ArrayLike | torch.Tensor, *, layout: str = ..., pairing: str | int = ...,
    rotary_start: int = ..., axis_map: npt.ArrayLike | torch.Tensor | None = ...,
    scale: float = ..., inverse: bool = ..., out: npt.NDArray[Any] | None = ...,
) -> npt.NDArray[Number]: ...  # fmt: skip
@overload
def apply_rotary(
    x: torch.Tensor, positions: npt.ArrayLike | torch.Tensor | None,
    inv_freq: npt.ArrayLike | torch.Tensor, *, layout: str = ..., pairing: str | int = ...,
    rotary_start: int = ..., axis_map: npt.ArrayLike | torch.Tensor | None = ...,
    scale: float = ..., inverse: bool = ..., out: torch.Tensor | None = ...,
) -> torch.Tensor: ...  # fmt: skip
@overload
def apply_rotary(
    x: SupportsArray, positions: npt.ArrayLike | torch.Tensor | None,
    inv_freq: npt.ArrayLike | torch.Tensor, *, layout: str = ..., pairing: str | int = ...,
    rotary_start: int = ..., axis_map: npt.ArrayLike | torch.Tensor | None = ...,
    scale: float = ..., inverse: bool = ..., out: npt.NDArray[Any] | None = ...,
) -> npt.NDArray[Any]: ...  # fmt: skip
def apply_rotary(
    x: Any,
    positions: npt.ArrayLike | torch.Tensor | None,
    inv_freq: npt.ArrayLike | torch.Tensor,
    *,
    layout: str = "bhsd",
    pairing: str | int = "half",
    rotary_start: int = 0,
    axis_map: npt.ArrayLike | torch.Tensor | None = None,
    scale: float = 1.0,
    inverse: bool = False,
    out: Any = None,
) -> Any:
    """Rotate `x` by its positions.

    Args:
        x: float16, bfloat16, float32 or float64, of any strides (slices of a packed QKV,
            transposed and expanded views); of NumPy, torch, or any library whose arrays NumPy can
            read without a copy (JAX with its bfloat16, pandas, memory-mapped files).
        positions: None for 0 .. s-1, ``[s]`` or ``[b, s]`` (``[t]`` for packed tokens); with
            `axis_map` or three axes of `inv_freq`, ``[A, s]`` or ``[A, b, s]``. Integers are exact,
            floats allowed; never of the dtype of `x`.
        inv_freq: radians per position, float32 or float64; see `rotary_frequencies`. ``[P]``, or
            ``[H, P]`` if every head has its own, or ``[A, H, P]`` (H may be 1) if the angle of a
            pair is the sum over the axes of ``positions[a] * inv_freq[a, h, p]``.
        layout: the axes of `x` in memory order, ending in d: b (batch), s (sequence), h (heads),
            d (head_dim), or t for packed tokens: "bhsd", "bshd", "sbhd", "thd", "sd" ...
        pairing: "half", "interleaved" or an even block size; see the module's head.
        rotary_start: the dims ``rotary_start .. rotary_start + 2P`` are rotated, the rest copied.
        axis_map: ``[P]`` ints, which position axis drives each pair.
        scale: factor of cosine and sine.
        inverse: turn the other way (the transpose; it undoes the rotation where scale is 1).
        out: where the result goes; `x` itself rotates in place.

    Returns:
        An array or tensor like `x`. Computed in float32 (float64 for float64), rounded once.
        Gradients reach `x`, `inv_freq` and floating `positions` (then without `out`).

    Raises:
        ValueError: shapes, layout or slice that do not fit, an overlapping `out`.
        TypeError: impossible dtypes.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> inv_freq, _ = pn.rotary_frequencies(4)
        >>> x = np.ones((1, 1, 2, 4), np.float32)
        >>> pn.apply_rotary(x, np.array([0, 100]), inv_freq).round(4)[0, 0]
        array([[ 1.    ,  1.    ,  1.    ,  1.    ],
               [ 1.3687, -0.3012,  0.356 ,  1.3818]], dtype=float32)
    """
    if type(x) is not np.ndarray:
        operations = late.operations_on(x)
        if operations is not None:
            return operations.apply_rotary(
                x, positions, inv_freq, layout, pairing, rotary_start, axis_map, scale, inverse, out
            )
        x = arguments.as_operand("apply_rotary", "x", x)
    if type(positions) is not np.ndarray and positions is not None:
        positions = _positions("apply_rotary", positions)
    if type(inv_freq) is not np.ndarray:
        inv_freq = arguments.as_array("apply_rotary", "inv_freq", inv_freq)
    if type(axis_map) is not np.ndarray and axis_map is not None:
        axis_map = arguments.as_array("apply_rotary", "axis_map", axis_map)
    return backend.implementation.apply_rotary(
        x, positions, inv_freq, layout, pairing, rotary_start, axis_map, scale, inverse, out
    )


@overload
def apply_rotary_qk(
    q: npt.NDArray[Number], k: npt.NDArray[Number], positions: npt.ArrayLike | torch.Tensor | None,
    inv_freq: npt.ArrayLike | torch.Tensor, *, layout: str = ..., pairing: str | int = ...,
    rotary_start: int = ..., axis_map: npt.ArrayLike | torch.Tensor | None = ...,
    scale: float = ..., inverse: bool = ..., inplace: bool = ...,
) -> tuple[npt.NDArray[Number], npt.NDArray[Number]]: ...  # fmt: skip
@overload
def apply_rotary_qk(
    q: torch.Tensor, k: torch.Tensor, positions: npt.ArrayLike | torch.Tensor | None,
    inv_freq: npt.ArrayLike | torch.Tensor, *, layout: str = ..., pairing: str | int = ...,
    rotary_start: int = ..., axis_map: npt.ArrayLike | torch.Tensor | None = ...,
    scale: float = ..., inverse: bool = ..., inplace: bool = ...,
) -> tuple[torch.Tensor, torch.Tensor]: ...  # fmt: skip
@overload
def apply_rotary_qk(
    q: SupportsArray, k: SupportsArray, positions: npt.ArrayLike | torch.Tensor | None,
    inv_freq: npt.ArrayLike | torch.Tensor, *, layout: str = ..., pairing: str | int = ...,
    rotary_start: int = ..., axis_map: npt.ArrayLike | torch.Tensor | None = ...,
    scale: float = ..., inverse: bool = ..., inplace: bool = ...,
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]: ...  # fmt: skip
def apply_rotary_qk(
    q: Any,
    k: Any,
    positions: npt.ArrayLike | torch.Tensor | None,
    inv_freq: npt.ArrayLike | torch.Tensor,
    *,
    layout: str = "bhsd",
    pairing: str | int = "half",
    rotary_start: int = 0,
    axis_map: npt.ArrayLike | torch.Tensor | None = None,
    scale: float = 1.0,
    inverse: bool = False,
    inplace: bool = False,
) -> tuple[Any, Any]:
    """Rotate the queries and keys of a layer in one call; angles are computed once for both.

    Args:
        q, k: as x in `apply_rotary`, of one dtype and one shape but for the number of heads.
        inplace: write the results to `q` and `k`.
        positions, inv_freq, layout, pairing, rotary_start, axis_map, scale, inverse: as in
            `apply_rotary`.

    Returns:
        ``(q, k)`` rotated; the arguments themselves if in place.

    Raises:
        ValueError, TypeError: as in `apply_rotary`; nothing has been written then.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> inv_freq, _ = pn.rotary_frequencies(64)
        >>> q, k = np.ones((1, 8, 5, 64), np.float32), np.ones((1, 2, 5, 64), np.float32)
        >>> rotated_q, rotated_k = pn.apply_rotary_qk(q, k, None, inv_freq)
        >>> rotated_k.shape
        (1, 2, 5, 64)
    """
    given = None
    if not type(q) is type(k) is np.ndarray:
        operations = late.operations_on(q)
        if operations is not None:
            return operations.apply_rotary_qk(  # type: ignore[no-any-return]
                q, k, positions, inv_freq, layout, pairing, rotary_start, axis_map, scale, inverse,
                inplace,
            )  # fmt: skip
        given = q, k
        q, k = arguments.as_operands("apply_rotary_qk", q, k, inplace)
    if type(positions) is not np.ndarray and positions is not None:
        positions = _positions("apply_rotary_qk", positions)
    if type(inv_freq) is not np.ndarray:
        inv_freq = arguments.as_array("apply_rotary_qk", "inv_freq", inv_freq)
    if type(axis_map) is not np.ndarray and axis_map is not None:
        axis_map = arguments.as_array("apply_rotary_qk", "axis_map", axis_map)
    rotated: tuple[Any, Any] = backend.implementation.apply_rotary_qk(
        q, k, positions, inv_freq, layout, pairing, rotary_start, axis_map, scale,
        inverse, inplace,
    )  # fmt: skip
    return given if inplace and given else rotated


@overload
def apply_rotary_tables(
    x: npt.NDArray[Number], cos: Any, sin: Any, *, layout: str = ..., pairing: str | int = ...,
    rotary_start: int = ..., inverse: bool = ..., compute: str = ...,
    out: npt.NDArray[Any] | None = ...,
) -> npt.NDArray[Number]: ...  # fmt: skip
@overload
def apply_rotary_tables(
    x: torch.Tensor, cos: Any, sin: Any, *, layout: str = ..., pairing: str | int = ...,
    rotary_start: int = ..., inverse: bool = ..., compute: str = ...,
    out: torch.Tensor | None = ...,
) -> torch.Tensor: ...  # fmt: skip
@overload
def apply_rotary_tables(
    x: SupportsArray, cos: Any, sin: Any, *, layout: str = ..., pairing: str | int = ...,
    rotary_start: int = ..., inverse: bool = ..., compute: str = ...,
    out: npt.NDArray[Any] | None = ...,
) -> npt.NDArray[Any]: ...  # fmt: skip
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
    out: Any = None,
) -> Any:
    """Rotate `x` by ready cosines and sines.

    Args:
        x, layout, pairing, rotary_start, inverse, out: as in `apply_rotary`.
        cos, sin: ``[s, P]`` or ``[b, s, P]`` (``[t, P]`` for packed tokens), one value a pair, of
            any of the four float dtypes.
        compute: "float32": all in float32 (float64 for a float64 `x`), rounded once. "as_written":
            rounded as the operations of ``x * cos + rotate_half(x) * sin`` on tensors of x's dtype
            are: cos and sin to that dtype, each product, the sum. That is bit for bit what Llama
            and its kin in transformers compute in eager mode, forwards and backwards.

    Returns:
        An array or tensor like `x`. Gradients reach `x`, and `cos` and `sin` if they ask for them.

    Raises:
        ValueError, TypeError: as in `apply_rotary`.

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
    if type(x) is not np.ndarray:
        operations = late.operations_on(x)
        if operations is not None:
            return operations.apply_rotary_tables(
                x, cos, sin, layout, pairing, rotary_start, inverse, compute, out
            )
        x = arguments.as_operand("apply_rotary_tables", "x", x)
    if type(cos) is not np.ndarray:
        cos = arguments.as_array("apply_rotary_tables", "cos", cos)
    if type(sin) is not np.ndarray:
        sin = arguments.as_array("apply_rotary_tables", "sin", sin)
    return backend.implementation.apply_rotary_tables(
        x, cos, sin, layout, pairing, rotary_start, inverse, compute, out
    )


@overload
def apply_rotary_qk_tables(
    q: npt.NDArray[Number], k: npt.NDArray[Number], cos: Any, sin: Any, *, layout: str = ...,
    pairing: str | int = ..., rotary_start: int = ..., inverse: bool = ..., compute: str = ...,
    inplace: bool = ...,
) -> tuple[npt.NDArray[Number], npt.NDArray[Number]]: ...  # fmt: skip
@overload
def apply_rotary_qk_tables(
    q: torch.Tensor, k: torch.Tensor, cos: Any, sin: Any, *, layout: str = ...,
    pairing: str | int = ..., rotary_start: int = ..., inverse: bool = ..., compute: str = ...,
    inplace: bool = ...,
) -> tuple[torch.Tensor, torch.Tensor]: ...  # fmt: skip
@overload
def apply_rotary_qk_tables(
    q: SupportsArray, k: SupportsArray, cos: Any, sin: Any, *, layout: str = ...,
    pairing: str | int = ..., rotary_start: int = ..., inverse: bool = ..., compute: str = ...,
    inplace: bool = ...,
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]: ...  # fmt: skip
def apply_rotary_qk_tables(
    q: Any,
    k: Any,
    cos: Any,
    sin: Any,
    *,
    layout: str = "bhsd",
    pairing: str | int = "half",
    rotary_start: int = 0,
    inverse: bool = False,
    compute: str = "float32",
    inplace: bool = False,
) -> tuple[Any, Any]:
    """Rotate the queries and keys of a layer by ready cosines and sines, in one call.

    Args:
        q, k, inplace: as in `apply_rotary_qk`.
        cos, sin: as in `apply_rotary_tables`; the same for `q` and `k`.
        layout, pairing, rotary_start, inverse: as in `apply_rotary`.
        compute: as in `apply_rotary_tables`.

    Returns:
        ``(q, k)`` rotated, to the bits of two calls of `apply_rotary_tables`; the arguments
        themselves if in place. Gradients reach `q` and `k`, and `cos` and `sin` if they ask for
        them.

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
    given = None
    if not type(q) is type(k) is np.ndarray:
        operations = late.operations_on(q)
        if operations is not None:
            return operations.apply_rotary_qk_tables(  # type: ignore[no-any-return]
                q, k, cos, sin, layout, pairing, rotary_start, inverse, compute, inplace
            )
        given = q, k
        q, k = arguments.as_operands("apply_rotary_qk_tables", q, k, inplace)
    if type(cos) is not np.ndarray:
        cos = arguments.as_array("apply_rotary_qk_tables", "cos", cos)
    if type(sin) is not np.ndarray:
        sin = arguments.as_array("apply_rotary_qk_tables", "sin", sin)
    rotated: tuple[Any, Any] = backend.implementation.apply_rotary_qk_tables(
        q, k, cos, sin, layout, pairing, rotary_start, inverse, compute, inplace
    )
    return given if inplace and given else rotated


class Rotary:
    """How a model rotates: frequencies, pairing and slice, without any buffer.

    Immutable; can be shared, copied, pickled and compared. Nothing in it is cast by
    ``model.half()`` or lost on the meta device.

    Args:
        head_dim: width of a head.
        base: base of the frequencies (rope_theta).
        rotary_dim: how many dims are rotated, even; default head_dim.
        pairing: "half", "interleaved" or a block size; see the module's head.
        scaling: None or a mapping as in Hugging Face, ``{"rope_type": "yarn", ...}``; see
            `rotary_frequencies`.
        axis_map: ``[rotary_dim / 2]`` ints, which position axis drives each pair.
        rotary_start: first rotated dim.
        inv_freq: the frequencies themselves, ``[P]`` in radians per position, in place of base,
            rotary_dim and scaling.
        scale: factor of cosine and sine; default the attention factor of the scaling.

    Attributes:
        inv_freq: float64 ``[P]``, P = rotary_dim / 2, radians per position, read-only.
        scale: factor of cosine and sine.

    Raises:
        ValueError, TypeError: sizes, names or keys that do not fit.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> rope = pn.Rotary(64, base=500000.0)
        >>> q, k = np.ones((1, 8, 5, 64), np.float32), np.ones((1, 2, 5, 64), np.float32)
        >>> q, k = rope(q, k)
        >>> cos, sin = rope.tables(5)
        >>> cos.shape
        (5, 32)
    """

    __slots__ = ("_elsewhere", "_given", "_tensors", "axis_map", "base", "head_dim", "inv_freq",
                 "pairing", "rotary_start", "scale", "scaling")  # fmt: skip

    head_dim: int
    base: float
    pairing: str | int
    scaling: Mapping[str, Any] | None
    axis_map: npt.NDArray[np.int64] | None
    rotary_start: int
    inv_freq: npt.NDArray[np.float64]
    scale: float
    _given: dict[str, Any]  # inv_freq and scale, if they were arguments
    _tensors: tuple[torch.Tensor, torch.Tensor | None] | None
    _elsewhere: dict[torch.device, tuple[torch.Tensor, torch.Tensor | None]]

    def __init__(
        self,
        head_dim: int,
        *,
        base: float = 10000.0,
        rotary_dim: int | None = None,
        pairing: str | int = "half",
        scaling: Mapping[str, Any] | None = None,
        axis_map: npt.ArrayLike | None = None,
        rotary_start: int = 0,
        inv_freq: npt.ArrayLike | None = None,
        scale: float | None = None,
    ) -> None:
        head_dim = arguments.size("Rotary", "head_dim", head_dim)
        given = inv_freq is not None
        if inv_freq is not None:
            if (base, rotary_dim, scaling) != (10000.0, None, None):
                got = "inv_freq and one of them"
                arguments.wrong_value("Rotary", "base, rotary_dim, scaling", "no inv_freq", got)
            inv_freq = _explicit_frequencies(inv_freq)
            attention_factor = 1.0
        else:
            rotary_dim = arguments.even_size(
                "Rotary",
                *(("head_dim", head_dim) if rotary_dim is None else ("rotary_dim", rotary_dim)),
            )
            inv_freq, attention_factor = rotary_frequencies(rotary_dim, base, scaling)
        if scale is not None:
            scale = arguments.finite_number("Rotary", "scale", scale)
            if scale == attention_factor:
                scale = None
            else:
                attention_factor = scale
        # Checks the slice and the pairing.
        views.rotary_view("Rotary", (1, head_dim), "sd", pairing, rotary_start, len(inv_freq))
        axes = None
        if axis_map is not None:
            axes = np.array(arguments.as_array("Rotary", "axis_map", axis_map))
            arguments.check_dtype("Rotary", "axis_map", axes.dtype, arguments.INTEGER_DTYPES)
            arguments.check_shape("Rotary", "axis_map", axes.shape, (len(inv_freq),))
            axes = axes.astype(np.int64)
            axes.flags.writeable = False
        inv_freq.flags.writeable = False
        values = {
            "head_dim": head_dim,
            "base": float(base),
            "pairing": pairing,
            "scaling": None if scaling is None else dict(scaling),
            "axis_map": axes,
            "rotary_start": int(rotary_start),
            "inv_freq": inv_freq,
            "scale": attention_factor,
            "_given": {
                **({"inv_freq": tuple(inv_freq.tolist())} if given else {}),
                **({} if scale is None else {"scale": attention_factor}),
            },
            "_tensors": None,
            "_elsewhere": {},
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        if "torch" in sys.modules:
            late.torch_operations()
            self._make_tensors()

    @classmethod
    def from_config(
        cls,
        config: Any,
        layer_type: str | None = None,
        *,
        layer: int | None = None,
        seq_len: int | None = None,
    ) -> Rotary:
        """The rotation of a Hugging Face model; `explain` says in words what it is.

        Args:
            config: a transformers configuration, its dict, or the path of a config.json.
            layer_type: which layers, where they differ ("full_attention", "sliding_attention").
            layer: number of a layer, in place of its type.
            seq_len: length of the sequence, for scalings that depend on it (dynamic, longrope).

        Raises:
            ValueError: a key that is missing or makes no sense, its name in the message; layers
                without rotary encoding (see `nope_layers`).

        Example:
            >>> import posenc_native as pn
            >>> pn.Rotary.from_config(
            ...     {"model_type": "llama", "head_dim": 64, "rope_theta": 500000.0}
            ... ).base
            500000.0
        """
        return cls(**rotary_arguments(config, layer_type, layer=layer, seq_len=seq_len))

    @classmethod
    def preset(
        cls, name: str, layer_type: str | None = None, *, seq_len: int | None = None
    ) -> Rotary:
        """The rotation of a published model, by name; `rotary_presets` has the names and facts.

        Args:
            name: "llama-3.1", "deepseek-v3", "gpt-oss" ...
            layer_type: which layers, where they differ ("full_attention", "sliding_attention").
            seq_len: length of the sequence, for scalings that depend on it (LongRoPE).

        Raises:
            ValueError: a name or layer_type that is not known; the message lists those like it.

        Example:
            >>> import posenc_native as pn
            >>> pn.Rotary.preset("gemma-3-27b", "sliding_attention").base
            10000.0
        """
        return cls(**rotary_preset(name).rotary_arguments(layer_type, seq_len))

    @property
    def rotary_dim(self) -> int:
        """How many dims of a head are rotated."""
        return 2 * len(self.inv_freq)

    @overload
    def __call__(
        self, q: npt.NDArray[Number], k: npt.NDArray[Number],
        positions: npt.ArrayLike | torch.Tensor | None = ..., *, layout: str = ...,
        inverse: bool = ..., inplace: bool = ...,
    ) -> tuple[npt.NDArray[Number], npt.NDArray[Number]]: ...  # fmt: skip
    @overload
    def __call__(
        self, q: torch.Tensor, k: torch.Tensor,
        positions: npt.ArrayLike | torch.Tensor | None = ..., *, layout: str = ...,
        inverse: bool = ..., inplace: bool = ...,
    ) -> tuple[torch.Tensor, torch.Tensor]: ...  # fmt: skip
    @overload
    def __call__(
        self, q: SupportsArray, k: SupportsArray,
        positions: npt.ArrayLike | torch.Tensor | None = ..., *, layout: str = ...,
        inverse: bool = ..., inplace: bool = ...,
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]: ...  # fmt: skip
    def __call__(
        self,
        q: Any,
        k: Any,
        positions: npt.ArrayLike | torch.Tensor | None = None,
        *,
        layout: str = "bhsd",
        inverse: bool = False,
        inplace: bool = False,
    ) -> tuple[Any, Any]:
        """Rotate queries and keys: `apply_rotary_qk` with this description."""
        operations = None if type(q) is np.ndarray else late.operations_on(q)
        if operations is None:
            return apply_rotary_qk(
                q, k, positions, self.inv_freq, layout=layout, pairing=self.pairing,
                rotary_start=self.rotary_start, axis_map=self.axis_map, scale=self.scale,
                inverse=inverse, inplace=inplace,
            )  # fmt: skip
        tensors = self._tensors
        if tensors is None or not q.is_cpu:
            tensors = self._torch(q.device)
        inv_freq, axis_map = tensors
        return operations.apply_rotary_qk(  # type: ignore[no-any-return]
            q, k, positions, inv_freq, layout, self.pairing, self.rotary_start, axis_map,
            self.scale, inverse, inplace,
        )  # fmt: skip

    @overload
    def apply(
        self, x: npt.NDArray[Number], positions: npt.ArrayLike | torch.Tensor | None = ..., *,
        layout: str = ..., inverse: bool = ..., out: npt.NDArray[Any] | None = ...,
    ) -> npt.NDArray[Number]: ...  # fmt: skip
    @overload
    def apply(
        self, x: torch.Tensor, positions: npt.ArrayLike | torch.Tensor | None = ..., *,
        layout: str = ..., inverse: bool = ..., out: torch.Tensor | None = ...,
    ) -> torch.Tensor: ...  # fmt: skip
    @overload
    def apply(
        self, x: SupportsArray, positions: npt.ArrayLike | torch.Tensor | None = ..., *,
        layout: str = ..., inverse: bool = ..., out: npt.NDArray[Any] | None = ...,
    ) -> npt.NDArray[Any]: ...  # fmt: skip
    def apply(
        self,
        x: Any,
        positions: npt.ArrayLike | torch.Tensor | None = None,
        *,
        layout: str = "bhsd",
        inverse: bool = False,
        out: Any = None,
    ) -> Any:
        """Rotate one array or tensor: `apply_rotary` with this description."""
        inv_freq, axis_map = self._of(x)
        return apply_rotary(
            x, positions, inv_freq, layout=layout, pairing=self.pairing,
            rotary_start=self.rotary_start, axis_map=axis_map, scale=self.scale, inverse=inverse,
            out=out,
        )  # fmt: skip

    @overload
    def tables(
        self, positions: int | npt.NDArray[Any] | Sequence[Any], *,
        dtype: npt.DTypeLike | None = ...,
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]: ...  # fmt: skip
    @overload
    def tables(
        self, positions: torch.Tensor, *, dtype: Any = ...,
    ) -> tuple[torch.Tensor, torch.Tensor]: ...  # fmt: skip
    @overload
    def tables(
        self, positions: int | npt.ArrayLike | torch.Tensor, *, dtype: torch.dtype,
    ) -> tuple[torch.Tensor, torch.Tensor]: ...  # fmt: skip
    @overload
    def tables(
        self, positions: npt.ArrayLike, *, dtype: npt.DTypeLike | None = ...,
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]: ...  # fmt: skip
    def tables(
        self, positions: int | npt.ArrayLike | torch.Tensor, *, dtype: Any = None
    ) -> tuple[Any, Any]:
        """Cosines and sines: `rotary_tables` with this description."""
        inv_freq, axis_map = self._of(positions)
        return rotary_tables(positions, inv_freq, axis_map=axis_map, scale=self.scale, dtype=dtype)

    def _of(self, x: Any) -> tuple[Any, Any]:
        """inv_freq and axis_map for an array, or for a tensor where it is."""
        return self._torch(x.device) if arguments.is_tensor(x) else (self.inv_freq, self.axis_map)

    def _torch(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor | None]:
        """inv_freq and axis_map as tensors on a device, made once for each."""
        tensors = self._tensors or self._make_tensors()
        if tensors[0].device == device:
            return tensors
        self._prepare(device)
        return self._elsewhere.get(device) or self._moved(device)

    @late.constant
    def _prepare(self, device: torch.device) -> None:
        """Make the tensors for a device.

        torch.compile runs this for real while it traces: the tensors are then inputs of the graph
        like others, and not copied in every call of it.
        """
        if device not in self._elsewhere:
            inv_freq, axis_map = self._moved(device)
            if type(inv_freq) is sys.modules["torch"].Tensor:  # and nothing that traces
                self._elsewhere[device] = inv_freq, axis_map

    def _make_tensors(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        import torch

        # The device is named: a model may be built under torch.device("meta"). No inference
        # tensors: training may follow.
        with torch.inference_mode(False):
            inv_freq = torch.tensor(self.inv_freq, device="cpu")
            axis_map = None if self.axis_map is None else torch.tensor(self.axis_map, device="cpu")
        # Kept, but not what tracing makes of them.
        if type(inv_freq) is torch.Tensor and not torch.compiler.is_compiling():
            object.__setattr__(self, "_tensors", (inv_freq, axis_map))
        return inv_freq, axis_map

    def _moved(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor | None]:
        import torch

        inv_freq, axis_map = self._tensors or self._make_tensors()
        with torch.inference_mode(False):
            return inv_freq.to(device), None if axis_map is None else axis_map.to(device)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Rotary is immutable: cannot set {name!r}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"Rotary is immutable: cannot delete {name!r}")

    def _arguments(self) -> dict[str, Any]:
        """What __init__ takes to make an equal object."""
        from_formula = {
            "base": self.base,
            "rotary_dim": 2 * len(self.inv_freq),
            "scaling": self.scaling,
        }
        return {
            "head_dim": self.head_dim,
            **({} if "inv_freq" in self._given else from_formula),
            **self._given,
            "pairing": self.pairing,
            "axis_map": None if self.axis_map is None else tuple(self.axis_map.tolist()),
            "rotary_start": self.rotary_start,
        }

    @late.constant
    def _differs(self, other: Rotary) -> str | None:
        """What other pairs, or other frequencies of the same pairs, come from; None if nothing."""
        for name in ("head_dim", "pairing", "rotary_start", "axis_map"):
            if self._arguments()[name] != other._arguments()[name]:
                return name
        if len(self.inv_freq) != len(other.inv_freq):
            return "rotary_dim"
        return None if np.array_equal(self.inv_freq, other.inv_freq) else "inv_freq"

    def __reduce__(self) -> tuple[Any, ...]:
        return _make_rotary, (self._arguments(),)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Rotary):
            return NotImplemented
        return self._arguments() == other._arguments()

    def __hash__(self) -> int:
        return hash((self.head_dim, self.base, self.pairing, self.rotary_start))

    def __repr__(self) -> str:
        return f"Rotary({self._written_arguments()})"

    def _written_arguments(self) -> str:
        """What is between the brackets of the call; more than 8 frequencies are not all there."""
        values = self._arguments()
        if values.get("rotary_dim") == self.head_dim:
            del values["rotary_dim"]
        return call_arguments(Rotary, **values)


def _explicit_frequencies(inv_freq: npt.ArrayLike) -> npt.NDArray[np.float64]:
    given = arguments.as_array("Rotary", "inv_freq", inv_freq)
    if given.ndim != 1:
        arguments.wrong_value("Rotary", "inv_freq", "shape [P]", list(given.shape))
    if not np.issubdtype(given.dtype, np.number) or np.issubdtype(given.dtype, np.complexfloating):
        arguments.wrong_type("Rotary", "inv_freq", "numbers", given.dtype)
    frequencies = np.array(given, dtype=np.float64)
    if not (np.abs(frequencies) < arguments.FREQUENCY_LIMIT).all():
        expected = "finite values of magnitude below 2^63"
        arguments.wrong_value("Rotary", "inv_freq", expected, "larger or NaN")
    return frequencies


def _make_rotary(values: dict[str, Any]) -> Rotary:
    return Rotary(**values)


def _positions(function: str, positions: Any) -> npt.NDArray[Any]:
    """An int n is 0 .. n-1; anything else becomes an array."""
    if isinstance(positions, (int, np.integer)):
        count = arguments.size(function, "positions", positions)
        if count >= 2**60:  # more than any array can have
            arguments.wrong_value(function, "positions", "a count below 2^60", count)
        return np.arange(count)
    return arguments.as_array(function, "positions", positions)
