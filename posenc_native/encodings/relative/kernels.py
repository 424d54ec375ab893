"""Functions of the distance as diagonals: KERPLE, Sandwich, FIRE."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import numpy as np
import numpy.typing as npt

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import wrong_type, wrong_value
from posenc_native.encodings.relative.heads import Heads, heads_of
from posenc_native.encodings.sinusoids.tables import sinusoidal
from posenc_native.engines.arrays import Arrays, of_wholes

from .bias import toeplitz_bias
from .causal import causal_diagonals, hide_future
from .distances import spread, window_of

if TYPE_CHECKING:
    import torch
    from typing_extensions import TypedDict, Unpack

    from posenc_native.core.calls.kinds import (
        Array,
        ArrayOrTensor,
        Device,
        Dtype,
        Item,
        KerpleKind,
        Numbers,
        NumPyDtype,
        Plain,
    )

__all__ = ["fire_bias", "kerple_diagonals", "sandwich_diagonals"]


if TYPE_CHECKING:
    Input = TypeVar("Input")  # the type of the numbers a caller passes

    class Kerple(TypedDict, Generic[Input], total=False):
        """Keywords of KERPLE's diagonals."""

        kind: KerpleKind
        symmetric: bool
        causal: bool
        q_offset: Input | None

    class Sandwich(TypedDict, Generic[Input], total=False):
        """Keywords of Sandwich's diagonals."""

        dim: int
        base: float
        causal: bool
        heads: Heads
        q_offset: Input | None


@overload
def kerple_diagonals(r1: Plain, r2: Plain, q_len: int, k_len: int, *, dtype: NumPyDtype = ...,
    device: None = ..., **options: Unpack[Kerple[Plain]]) -> Array[Any]: ...  # fmt: skip
@overload
def kerple_diagonals(r1: Numbers, r2: Numbers, q_len: int, k_len: int, *, dtype: Dtype = ...,
    device: Device | None = ..., **options: Unpack[Kerple[Numbers]]
    ) -> ArrayOrTensor: ...  # fmt: skip
def kerple_diagonals(
    r1: npt.ArrayLike | torch.Tensor,
    r2: npt.ArrayLike | torch.Tensor,
    q_len: int,
    k_len: int,
    *,
    kind: KerpleKind = "log",
    symmetric: bool = False,
    causal: bool = False,
    q_offset: int | npt.ArrayLike | torch.Tensor | None = None,
    dtype: Any = None,
    device: Any = None,
) -> Any:
    """Diagonals of KERPLE: ``-r1 * ln(1 + r2 * d)`` or ``-r1 * d ** r2``.

    Args:
        r1, r2: ``[H]``, positive (r2 at most 2 for "power"); gradients reach tensors. The authors'
            code calls them p and a for "log", a and p for "power", and keeps them at least 0.01.
        q_len, k_len, q_offset: see the docstring of posenc_native.encodings.relative.
        kind: "log" or "power".
        symmetric: the meaning of d. False, as in the authors' code: query minus key, 0 for future
            keys. True, as in the paper: the absolute difference.
        causal: True to include the causal mask: keys after the query are -inf.
        dtype, device: of the result; see the docstring of posenc_native.encodings.relative.

    Returns:
        ``[H, D]`` or ``[B, H, D]``.

    Raises:
        ValueError: kind is unknown, r1 or r2 is out of range (not checked on a GPU, nor while torch
            traces), a length is negative, or the shapes do not fit.
        TypeError: a dtype is not supported.

    Source: Chi et al. 2022, "KERPLE: Kernelized Relative Positional Embedding", section 4.

    Example:
        >>> import posenc_native as pn
        >>> pn.relative.kerple_diagonals([1.0], [2.0], 3, 2, q_offset=0).round(4)
        array([[-1.6094, -1.0986,  0.    ,  0.    ]], dtype=float32)
    """
    function = "kerple_diagonals"
    arrays = Arrays(function, dtype, device, r1=r1, r2=r2, q_offset=q_offset)
    xp = arrays.xp
    if kind not in ("log", "power"):
        wrong_value(function, "kind", "'log' or 'power'", repr(kind))
    symmetric = arrays.flag("symmetric", symmetric)
    weight, shape = arrays.parameter("r1", r1), arrays.parameter("r2", r2)
    if weight.ndim != 1:
        wrong_value(function, "r1", "shape [H]", list(weight.shape))
    arguments.check_shape(function, "r2", shape.shape, weight.shape)
    _check_kernel(arrays, "r1", weight, math.inf)
    _check_kernel(arrays, "r2", shape, 2.0 if kind == "power" else math.inf)
    window = window_of(arrays, q_len, k_len, q_offset)
    distances = spread(arrays, window)
    apart = abs(distances) if symmetric else xp.clip(-distances, 0, None)
    apart = arrays.wide(apart)[..., None, :]
    if kind == "log":
        kernel = xp.log1p(shape[:, None] * apart)
    else:  # 1 in place of 0, since a power of 0 has no derivative
        kernel = xp.where(apart > 0, xp.clip(apart, 1, None) ** shape[:, None], 0.0)
    diagonals = arrays.rounded(0.0 - weight[:, None] * kernel)  # 0 at distance 0, not -0
    return causal_diagonals(arrays, diagonals, window, causal)


def _check_kernel(arrays: Arrays, argument: str, values: Any, most: float) -> None:
    """ValueError for a number that makes no valid kernel, if numbers can be read."""
    seen = arrays.seen(values)
    for number in () if seen is None else seen.tolist():
        if not 0 < number < math.inf or number > most:
            expected = "numbers > 0" if most == math.inf else f"numbers > 0, at most {most:g}"
            wrong_value(arrays.function, argument, expected, number)


@overload
def sandwich_diagonals(num_heads: int, q_len: int, k_len: int, *, dtype: NumPyDtype = ...,
    device: None = ..., **options: Unpack[Sandwich[Plain]]) -> Array[Any]: ...  # fmt: skip
@overload
def sandwich_diagonals(num_heads: int, q_len: int, k_len: int, *, dtype: Dtype = ...,
    device: Device | None = ..., **options: Unpack[Sandwich[Numbers]]
    ) -> ArrayOrTensor: ...  # fmt: skip
def sandwich_diagonals(
    num_heads: int,
    q_len: int,
    k_len: int,
    *,
    dim: int = 128,
    base: float = 10000.0,
    causal: bool = False,
    q_offset: int | npt.ArrayLike | torch.Tensor | None = None,
    heads: Heads = None,
    dtype: Any = None,
    device: Any = None,
) -> Any:
    """Diagonals of Sandwich: the inner product of two sinusoidal rows, weaker with each head.

    Head h has ``H / (8 (h + 1)) * sum over i < dim/2 of cos(distance * base ** (-2i / dim))``,
    exact at any distance, like `sinusoidal`.

    Args:
        num_heads: H.
        q_len, k_len, q_offset: see the docstring of posenc_native.encodings.relative.
        dim: width of the sinusoidal rows, even, independent of the width of the model.
        base: as in `sinusoidal`: a number above 0 that determines the wavelengths.
        causal: True to include the causal mask: keys after the query are -inf.
        heads: as in `alibi_slopes`: a range or slice of the H heads, or (rank, ranks).
        dtype, device: of the result; see the docstring of posenc_native.encodings.relative.

    Returns:
        ``[H, D]`` or ``[B, H, D]``.

    Raises:
        ValueError: a length is negative, dim is odd, or base <= 0.
        TypeError: a dtype is not supported.

    Source: Chi et al. 2023, "Dissecting Transformer Length Extrapolation via the Lens of Receptive
    Field Analysis", section 5 and the code in its appendix.

    Example:
        >>> import posenc_native as pn
        >>> pn.relative.sandwich_diagonals(2, 1, 3, q_offset=0).round(3)
        array([[16.   , 15.523, 14.345],
               [ 8.   ,  7.762,  7.173]], dtype=float32)
    """
    function = "sandwich_diagonals"
    arrays = Arrays(function, dtype, device, q_offset=q_offset)
    count = arguments.head_count(function, "num_heads", num_heads)
    width = arguments.even_size(function, "dim", dim)
    base = arguments.positive_number(function, "base", base)
    window = window_of(arrays, q_len, k_len, q_offset)
    rows = sinusoidal(
        spread(arrays, window), width, base=base, layout="cos_sin", dtype=arrays.float64
    )
    products = rows[..., : width // 2].sum(-1)
    weights = arrays.constant([count / (8 * (h + 1)) for h in heads_of(function, heads, count)])
    diagonals = arrays.rounded(weights[:, None] * products[..., None, :])
    return causal_diagonals(arrays, diagonals, window, causal)


@of_wholes
def fire_bias(
    q_len: int,
    k_len: int,
    function: Callable[[Any], Item],
    *,
    c: float | npt.ArrayLike | torch.Tensor = 0.1,
    threshold: float | npt.ArrayLike | torch.Tensor = 512.0,
    eps: float = 1e-6,
    causal: bool = False,
    q_offset: int | npt.ArrayLike | torch.Tensor | None = None,
    dtype: Any = None,
    device: Any = None,
) -> Item:
    """FIRE's bias: a function of the distance relative to the position of the query.

    ``function(log(1 + c * |i - j|) / (log(1 + c * max(i, threshold)) + eps))`` for query i and
    key j. Every row has a different divisor, so this bias is not made of diagonals.

    Args:
        q_len, k_len, q_offset: see the docstring of posenc_native.encodings.relative.
        function: maps ``[..., 1]`` to ``[..., H]``, arrays or tensors: a small network. If it is a
            torch module with parameters, they determine the device and dtype of its input.
        c, threshold: positive numbers, or arrays or tensors of one number, of which the magnitude
            is used; gradients reach tensors.
        eps: a number that the authors' code adds to the divisor; the paper has none.
        causal: True to include the causal mask: keys after the query are -inf.
        dtype: dtype of the input of `function`: float16, bfloat16, float32 (default) or float64.
        device: torch device; makes the call compute with torch.

    Returns:
        The result of `function`, ``[H, q_len, k_len]`` or ``[B, H, q_len, k_len]``.

    Raises:
        ValueError: a length is negative, c or threshold is not above 0, or the result of function
            has another shape.
        TypeError: a dtype is not supported, or function cannot be called.

    Source: Li et al. 2024, "Functional Interpolation for Relative Positions Improves Long Context
    Transformers", section 3.

    Example:
        >>> import posenc_native as pn
        >>> pn.relative.fire_bias(2, 3, lambda x: x, threshold=4.0, q_offset=0).round(4)
        array([[[0.    , 0.2833, 0.5419],
                [0.2833, 0.    , 0.2833]]], dtype=float32)
    """
    name = "fire_bias"
    if not callable(function):
        wrong_type(name, "function", "a callable", type(function).__name__)
    weight = _first_parameter(function)
    if dtype is None and weight is not None:
        dtype = weight.dtype
    inputs = {"c": c, "threshold": threshold, "q_offset": q_offset, "function": weight}
    arrays = Arrays(name, dtype, device, **inputs)
    scale, least = arrays.one("c", c), arrays.one("threshold", threshold)
    addend = arguments.finite_number(name, "eps", eps)
    causal = arrays.flag("causal", causal)
    window = window_of(arrays, q_len, k_len, q_offset)
    apart = arrays.wide(abs(spread(arrays, window)))
    queries = arrays.arange(q_len) + (window.before - (q_len - 1))
    divisor = arrays.xp.log1p(scale * arrays.xp.maximum(arrays.wide(queries), least)) + addend
    # The axis of heads serves as the batch axis here: the numerators are the same for all heads.
    numerators = toeplitz_bias(arrays.xp.log1p(scale * apart), q_len, k_len)
    relative = numerators / divisor[..., None]
    result: Any = function(arrays.rounded(relative)[..., None])
    if tuple(result.shape[:-1]) != tuple(relative.shape):
        expected = f"a result of shape {[*relative.shape, 'H']}"
        wrong_value(name, "function", expected, list(result.shape))
    # Not moveaxis for both: torch.vmap does not support it.
    moved: Item = result.movedim(-1, -3) if arrays.is_torch else np.moveaxis(result, -1, -3)
    if not causal:
        return moved
    distances = arrays.arange(k_len) - queries[..., :, None]
    hidden: Item = hide_future(moved, distances[..., None, :, :])
    return hidden


def _first_parameter(function: object) -> Any:
    """The first parameter of a torch module; None without parameters, or for another object."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(function, torch.nn.Module):
        return None
    return next(function.parameters(), None)
