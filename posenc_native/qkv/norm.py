"""Queries and keys normed and rotated in one pass: what stands between projection and attention.

    y = R(x / sqrt(mean(x^2) + eps) * (weight + weight_offset))

    one reading of x:   x ──► sum of squares ──► r ──► x * r * w ──► rotated by position ──► rounded

Models that norm queries and keys spend many times the rotation on it where each step goes through
memory. Here a head is read once, normed and rotated in registers, and rounded once.

    of a head, w            Qwen3, EXAONE 4, LFM2, GLM-4-MoE         norm_over="head"
    of a head, 1 + w        Gemma 3, Qwen3-Next, T5Gemma 2           weight_offset=1.0
    of all heads            OLMo 2 and 3, OLMoE, MiniMax-M2          norm_over="token"
    after the rotation      HunYuan, TimesFM 2.5; Llama 4 (no w)     norm_first=False

Sources: Zhang and Sennrich 2019, "Root Mean Square Layer Normalization"; Henry et al. 2020,
"Query-Key Normalization for Transformers"; Su et al. 2021, "RoFormer".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy.typing as npt
from numpy import ndarray

from posenc_native.base import arguments
from posenc_native.base.errors import blame, fault_of
from posenc_native.base.hints import hint_at
from posenc_native.base.norms import Norm
from posenc_native.base.pairs import indices_as_arrays, missing_one, outputs, position_array
from posenc_native.base.rotation import Rotation, TableRotation
from posenc_native.engines import backend, late

if TYPE_CHECKING:
    import torch
    from typing_extensions import Unpack

    from posenc_native.base.kinds import (
        Array,
        Number,
        Numbers,
        OutArray,
        OutTensor,
        Pair,
        SupportsArray,
        Tensor,
        TensorLike,
    )
    from posenc_native.base.norms import NormedRotationOptions, NormedTableRotationOptions

__all__ = ["norm_rotary_qk", "norm_rotary_qk_tables"]


@overload
def norm_rotary_qk(q: TensorLike, k: TensorLike, positions: Numbers | None, inv_freq: Numbers, *,
    inplace: bool = ..., out: Pair[OutTensor] | None = ...,
    **options: Unpack[NormedRotationOptions],
) -> Pair[Tensor]: ...  # fmt: skip
@overload
def norm_rotary_qk(q: SupportsArray[Number], k: SupportsArray[Number], positions: Numbers | None,
    inv_freq: Numbers, *, inplace: bool = ..., out: Pair[OutArray] | None = ...,
    **options: Unpack[NormedRotationOptions],
) -> Pair[Array[Number]]: ...  # fmt: skip
@overload
def norm_rotary_qk(q: TensorLike, k: None, positions: Numbers | None, inv_freq: Numbers, *,
    inplace: bool = ..., out: tuple[OutTensor, None] | None = ...,
    **options: Unpack[NormedRotationOptions],
) -> tuple[Tensor, None]: ...  # fmt: skip
@overload
def norm_rotary_qk(q: None, k: TensorLike, positions: Numbers | None, inv_freq: Numbers, *,
    inplace: bool = ..., out: tuple[None, OutTensor] | None = ...,
    **options: Unpack[NormedRotationOptions],
) -> tuple[None, Tensor]: ...  # fmt: skip
@overload
def norm_rotary_qk(q: SupportsArray[Number], k: None, positions: Numbers | None,
    inv_freq: Numbers, *,
    inplace: bool = ..., out: tuple[OutArray, None] | None = ...,
    **options: Unpack[NormedRotationOptions],
) -> tuple[Array[Number], None]: ...  # fmt: skip
@overload
def norm_rotary_qk(q: None, k: SupportsArray[Number], positions: Numbers | None,
    inv_freq: Numbers, *,
    inplace: bool = ..., out: tuple[None, OutArray] | None = ...,
    **options: Unpack[NormedRotationOptions],
) -> tuple[None, Array[Number]]: ...  # fmt: skip
def norm_rotary_qk(
    q: Any,
    k: Any,
    positions: npt.ArrayLike | torch.Tensor | None,
    inv_freq: npt.ArrayLike | torch.Tensor,
    *,
    q_weight: npt.ArrayLike | torch.Tensor | None = None,
    k_weight: npt.ArrayLike | torch.Tensor | None = None,
    eps: float = 1e-6,
    norm_over: str = "head",
    weight_offset: float = 0.0,
    norm_first: bool = True,
    layout: str = "bhsd",
    pairing: str | int = "half",
    rotary_start: int = 0,
    axis_map: npt.ArrayLike | torch.Tensor | None = None,
    scale: float = 1.0,
    compute: str = "float32",
    inplace: bool = False,
    out: tuple[Any, Any] | None = None,
) -> tuple[Any, Any]:
    """RMS norm and rotation of queries and keys in one pass.

    Args:
        q, k: as in `apply_rotary_qk`. The whole head is normed, whatever slice of it is rotated.
            One of them may be None, and is then in the result: of cross-attention, where q and k
            differ in length, each has a call of its own.
        q_weight, k_weight: weights of any of the four float dtypes. ``[D]`` or, of every head its
            own, ``[H, D]``; with ``norm_over="token"`` ``[H, D]`` or ``[H * D]``. None for none.
        eps: added to the mean of the squares.
        norm_over: the mean is over a "head", or over all heads of a "token". (Where the heads of a
            token are on several devices, the mean over them all needs a sum across these, which no
            call here makes.)
        weight_offset: what is added to the weights; 1.0 for Gemma's ``1 + w``.
        norm_first: False norms after the rotation.
        positions, inv_freq, layout, pairing, rotary_start, axis_map, scale: as in `apply_rotary`.
        compute: "float32": all in float32 (float64 for float64), rounded once. "as_written":
            rounded where the code of transformers rounds, cosine, sine, products and sum of the
            rotation included. With weights of the dtype of `q` and no offset that is
            ``w * round(x * r)`` (Llama's norm, Qwen3), else ``round(x * r * (w + offset))`` (Gemma;
            pass ``weight.float()`` for models that multiply in float32). Bit for bit as long as
            ``r`` is the same: the order in which torch sums squares is its own, and a last bit of
            the float32 sum shows in a few elements of a million. Not where heads have frequencies
            of their own, of which no code has tables.
        inplace: write the results to `q` and `k`. Refused where a gradient is wanted: it needs
            what would be overwritten.
        out: a pair ``(q_out, k_out)`` of where the results go, without a gradient. Memory that is
            kept from call to call saves a long prompt the time in which the operating system
            provides it, which is longer than that of the call.

    Returns:
        ``(q, k)``; the arguments themselves if in place, `out` if it is given. Gradients reach `q`,
        `k`, the weights, `inv_freq` and floating `positions`; all that is kept for them are the
        arguments.

    Raises:
        ValueError, TypeError: as in `apply_rotary_qk`; nothing has been written then.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> inv_freq, _ = pn.rotary_frequencies(64)
        >>> q, k = np.ones((1, 8, 5, 64), np.float32), np.ones((1, 2, 5, 64), np.float32)
        >>> weight = np.full(64, 3.0, np.float32)
        >>> q, k = pn.norm_rotary_qk(q * 100, k, None, inv_freq, q_weight=weight)
        >>> float(np.sqrt(np.mean(q**2)).round(3)), float(np.sqrt(np.mean(k**2)).round(3))
        (3.0, 1.0)
    """
    to = inplace if out is None else outputs("norm_rotary_qk", out, inplace, missing_one(q, k))
    return run(
        "norm_rotary_qk",
        Rotation,
        (
            q, k,
            positions, inv_freq, layout, pairing, rotary_start, axis_map, scale, *ALIKE, compute,
            q_weight, k_weight, True, eps, norm_over, weight_offset, norm_first,
            to,
        ),
    )  # fmt: skip


@overload
def norm_rotary_qk_tables(q: TensorLike, k: TensorLike, cos: Any, sin: Any, *,
    inplace: bool = ..., out: Pair[OutTensor] | None = ...,
    **options: Unpack[NormedTableRotationOptions],
) -> Pair[Tensor]: ...  # fmt: skip
@overload
def norm_rotary_qk_tables(q: SupportsArray[Number], k: SupportsArray[Number], cos: Any, sin: Any,
    *, inplace: bool = ..., out: Pair[OutArray] | None = ...,
    **options: Unpack[NormedTableRotationOptions],
) -> Pair[Array[Number]]: ...  # fmt: skip
@overload
def norm_rotary_qk_tables(q: TensorLike, k: None, cos: Any, sin: Any, *,
    inplace: bool = ..., out: tuple[OutTensor, None] | None = ...,
    **options: Unpack[NormedTableRotationOptions],
) -> tuple[Tensor, None]: ...  # fmt: skip
@overload
def norm_rotary_qk_tables(q: None, k: TensorLike, cos: Any, sin: Any, *,
    inplace: bool = ..., out: tuple[None, OutTensor] | None = ...,
    **options: Unpack[NormedTableRotationOptions],
) -> tuple[None, Tensor]: ...  # fmt: skip
@overload
def norm_rotary_qk_tables(q: SupportsArray[Number], k: None, cos: Any, sin: Any, *,
    inplace: bool = ..., out: tuple[OutArray, None] | None = ...,
    **options: Unpack[NormedTableRotationOptions],
) -> tuple[Array[Number], None]: ...  # fmt: skip
@overload
def norm_rotary_qk_tables(q: None, k: SupportsArray[Number], cos: Any, sin: Any, *,
    inplace: bool = ..., out: tuple[None, OutArray] | None = ...,
    **options: Unpack[NormedTableRotationOptions],
) -> tuple[None, Array[Number]]: ...  # fmt: skip
def norm_rotary_qk_tables(
    q: Any,
    k: Any,
    cos: Any,
    sin: Any,
    *,
    q_weight: npt.ArrayLike | torch.Tensor | None = None,
    k_weight: npt.ArrayLike | torch.Tensor | None = None,
    eps: float = 1e-6,
    norm_over: str = "head",
    weight_offset: float = 0.0,
    norm_first: bool = True,
    layout: str = "bhsd",
    pairing: str | int = "half",
    rotary_start: int = 0,
    compute: str = "float32",
    rows: npt.ArrayLike | torch.Tensor | None = None,
    axis_map: npt.ArrayLike | torch.Tensor | None = None,
    inplace: bool = False,
    out: tuple[Any, Any] | None = None,
) -> tuple[Any, Any]:
    """RMS norm and rotation by ready cosines and sines, in one pass.

    Args:
        q, k, q_weight, k_weight, eps, norm_over, weight_offset, norm_first, compute, inplace, out:
            as in `norm_rotary_qk`.
        cos, sin, rows, axis_map: as in `apply_rotary_tables`.
        layout, pairing, rotary_start: as in `apply_rotary`.

    Returns:
        ``(q, k)`` as `norm_rotary_qk` does. Gradients reach `q`, `k` and the weights,
        and `cos` and `sin` if they ask for them.

    Raises:
        ValueError, TypeError: as in `norm_rotary_qk`; nothing has been written then.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> inv_freq, _ = pn.rotary_frequencies(64)
        >>> cos, sin = pn.rotary_tables(5, inv_freq)  # once for all layers
        >>> q, k = np.ones((1, 8, 5, 64), np.float32), np.ones((1, 2, 5, 64), np.float32)
        >>> by_tables = pn.norm_rotary_qk_tables(q, k, cos, sin)
        >>> by_positions = pn.norm_rotary_qk(q, k, None, inv_freq)
        >>> bool(np.allclose(by_tables[0], by_positions[0], atol=1e-6))
        True
    """
    function = "norm_rotary_qk_tables"
    to = inplace if out is None else outputs(function, out, inplace, missing_one(q, k))
    return run(
        function,
        TableRotation,
        (
            q, k,
            cos, sin, layout, pairing, rotary_start, False, compute, rows, axis_map, *TABLES_ALIKE,
            q_weight, k_weight, True, eps, norm_over, weight_offset, norm_first,
            to,
        ),
    )  # fmt: skip


# Not turned back; q and k have the same positions, or tables, and the same slice, and keep their
# pairs: the last fields of a rotation.
ALIKE = Rotation(None, None)[Rotation._fields.index("inverse") :]
TABLES_ALIKE = TableRotation(None, None)[TableRotation._fields.index("k_cos") :]

# As in rotary/apply.py, a small call takes as long as its own lines: all arguments go on in one
# tuple, as the native module takes them, and are taken apart only for code that looks into them.


class _Parts(NamedTuple):
    """The arguments of a call by what they are about."""

    inputs: tuple[Any, ...]  # q and k, and v where it is appended
    rotation: Any
    compute: str
    norm: Norm
    cache: tuple[Any, ...]  # the fields of a `Cache`, or nothing
    to: bool | tuple[Any, ...]

    @classmethod
    def of(cls, kind: type[Rotation | TableRotation], call: tuple[Any, ...]) -> _Parts:
        """Take a call apart."""
        fields, norms = len(kind._fields), len(Norm._fields)
        computed = kind is Rotation  # else the rotation has `compute`
        count = 2 if len(call) == 3 + fields + computed + norms else 3
        rotation = kind(*call[count : count + fields])
        at = count + fields + computed
        compute = rotation.compute if isinstance(rotation, TableRotation) else call[at - 1]
        norm, cache = Norm(*call[at : at + norms]), call[at + norms : -1]
        return cls(call[:count], rotation, compute, norm, cache, call[-1])

    def joined(self) -> tuple[Any, ...]:
        """The call, as it was."""
        compute = () if isinstance(self.rotation, TableRotation) else (self.compute,)
        return (*self.inputs, *self.rotation, *compute, *self.norm, *self.cache, self.to)


def run(
    function: str, kind: type[Rotation | TableRotation], call: tuple[Any, ...]
) -> tuple[Any, ...]:
    """A call, by whatever computes it.

    kind: of the rotation. call: q and k, and v where it is appended; the fields of the rotation,
    compute unless the rotation has it, those of a `Norm`, those of a `Cache` where it is appended;
    and where results go: False for new arrays, True for those of the inputs, or a tuple of as many
    as there are results. A q or k that is None is in the results.
    """
    if call[0] is None or call[1] is None:
        return _run_alone(function, kind, call)
    try:
        operations, implementation = None, backend.implementation
        # What answers NotImplemented where arguments have to be converted first.
        native: Any = implementation if implementation is backend.native else None
        if type(call[0]) is not ndarray:
            operations = late.operations_on(call[0])
            if operations is not None:
                native = operations.at_once(call[0])
        if native is not None:
            results = getattr(native, function)(*call)
            if results is not NotImplemented:
                return results  # type: ignore[no-any-return]
        if operations is not None:
            return operations.norm_rotary(function, *_Parts.of(kind, call))  # type: ignore[no-any-return]
        given = _Parts.of(kind, call)
        results = getattr(implementation, function)(*_as_arrays(function, given).joined())
        if given.to is True:
            return given.inputs[: len(results)]
        return given.to or results
    except (ValueError, TypeError) as error:
        hint_at(error, _Parts.of(kind, call).rotation, q=call[0], k=call[1])
        raise


def _run_alone(
    function: str, kind: type[Rotation | TableRotation], call: tuple[Any, ...]
) -> tuple[Any, ...]:
    """A call without q or without k: the missing one has no heads."""
    given = _Parts.of(kind, call)
    i = missing_one(*given.inputs[:2])
    if i is None or (i == 1 and given.cache):
        argument, expected = ("k", "keys to be written") if given.cache else ("q", "q, k or both")
        arguments.wrong_type(
            function, argument, expected, "None" if given.cache else "None for both"
        )
    layout = given.rotation.layout
    inputs = list(given.inputs)
    inputs[i] = _no_heads(function, "qk"[1 - i], inputs[1 - i], layout)
    norm = given.norm._replace(q_weight=None) if i == 0 else given.norm._replace(k_weight=None)
    to = given.to
    if isinstance(to, tuple):
        to = tuple(inputs[i] if one is None else one for one in to)
    try:
        whole = given._replace(inputs=tuple(inputs), norm=norm, to=to)
        results = run(function, kind, whole.joined())
    except (ValueError, TypeError) as error:  # about the one that is there
        fault = fault_of(error)
        if fault is not None and fault.argument == "qk"[i]:
            blame(error, argument="qk"[1 - i])
        raise
    return tuple(None if j == i else one for j, one in enumerate(results))


def _no_heads(function: str, name: str, x: Any, layout: Any) -> Any:
    """What x is without its heads, no number; x itself where the layout does not fit it."""
    if late.operations_on(x) is None:
        x = arguments.as_operand(function, name, x)
    heads = layout.find("h") if isinstance(layout, str) else x.ndim
    if heads < 0:
        arguments.wrong_value(
            function, "layout", "letters with h where q or k is None", repr(layout)
        )
    if heads >= x.ndim:
        return x
    if type(x) is ndarray:
        return x[(slice(None),) * heads + (slice(0, 0),)]
    return x.new_empty((*x.shape[:heads], 0, *x.shape[heads + 1 :]))


def _as_arrays(function: str, call: _Parts) -> _Parts:
    """The call with all its arrays as NumPy's own."""
    inputs, rotation, norm, cache, to = call.inputs, call.rotation, call.norm, call.cache, call.to
    q, k = arguments.as_operands(function, inputs[0], inputs[1], to is True)
    inputs = (q, k, *(arguments.as_operand(function, "v", v) for v in inputs[2:]))
    if isinstance(rotation, Rotation):
        axis_map = rotation.axis_map
        if axis_map is not None:
            axis_map = arguments.as_array(function, "axis_map", axis_map)
        positions = rotation.positions
        if positions is not None:
            positions = position_array(function, positions, q)
        inv_freq = arguments.as_frequencies(function, rotation.inv_freq)
        rotation = rotation._replace(positions=positions, inv_freq=inv_freq, axis_map=axis_map)
    else:
        cos = arguments.as_array(function, "cos", rotation.cos)
        sin = arguments.as_array(function, "sin", rotation.sin)
        rows, axis_map = indices_as_arrays(function, rotation.rows, rotation.axis_map)
        rotation = rotation._replace(cos=cos, sin=sin, rows=rows, axis_map=axis_map)
    weights: dict[str, Any] = {
        name: arguments.as_array(function, name, weight)
        for name in ("q_weight", "k_weight")
        if (weight := getattr(norm, name)) is not None
    }
    norm = norm._replace(**weights)
    if cache:
        keys, values = (
            _writable(function, *one) for one in zip(("keys", "values"), cache, strict=False)
        )
        cache = (keys, values, arguments.as_array(function, "slots", cache[2]), *cache[3:])
    if isinstance(to, tuple):
        names = ["out"] if len(to) == 1 else [f"out[{i}]" for i in range(len(to))]
        to = tuple(_writable(function, *one) for one in zip(names, to, strict=True))
    return _Parts(inputs, rotation, call.compute, norm, cache, to)


def _writable(function: str, name: str, to: Any) -> Any:
    """What is written to, as an array of NumPy's own that has the same memory."""
    if not isinstance(to, ndarray):
        expected = "a NumPy array or a torch tensor, to be written to"
        arguments.wrong_type(function, name, expected, type(to).__name__)
    arguments.check_no_mask(function, name, to)
    return to.view(ndarray)
