"""Steps in radians as exact turns, their sums along the tokens, and the tables of these phases.

A float32 is m * 2^e with an integer m of 24 bits. 2^(e + 64) / (2 pi) is stored for every e in four
words of 32 bits, two of them after the binary point. The turns are then four products of 56 bits:

    m * w3        the lowest; the part above 32 bits carries into the next
    m * w2 + ...  rounds the result
    m * w1 + ...  lower half of the result
    m * w0 + ...  upper half, modulo 2^32: whole turns are dropped, as they should be

Other formats reduce to this: 16-bit floats are also float32, and a float64 is the sum of three.
"""

from __future__ import annotations

import decimal
from decimal import Decimal
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import wrong_type, wrong_value
from posenc_native.core.frequencies.frequencies import EXACT, TWO_PI
from posenc_native.encodings.positions.orders import check_order
from posenc_native.encodings.positions.rows import Rows, checked_rows
from posenc_native.encodings.rotary.tables import rotary_tables
from posenc_native.engines import backend
from posenc_native.engines.arrays import Arrays
from posenc_native.engines.plain.numbers import readable
from posenc_native.engines.plain.phases import turns_by_products

if TYPE_CHECKING:
    import torch

    from posenc_native.core.calls.kinds import (
        Array,
        Dtype,
        Integers,
        Number,
        Pair,
        ShardOrder,
        SupportsArray,
        Tensor,
        TensorLike,
    )

__all__ = [
    "accumulated_phases", "check_steps", "checked_state", "moved", "phase_tables",
    "phases_and_state", "sums_of_numbers", "totals_of",
]  # fmt: skip

LARGEST = 2.0**31  # radians of a step
_WORD = 2**32 - 1
_UNIT = float(TWO_PI / 2**64)  # radians


# --- turns of steps


def _words() -> npt.NDArray[np.int64]:
    """[256, 4]: 2^(e + 64) / (2 pi) for each exponent field of a float32, as described above.

    They are zero for the field 0, whose numbers are far below a unit, and beyond 2^32 radians.
    """
    with decimal.localcontext(EXACT):
        scaled = int(Decimal(2) ** 160 * 2**64 / TWO_PI)  # 2^64 / (2 pi), 160 bits after the point
    words = np.zeros((256, 4), np.int64)
    for field in range(1, 160):
        shift = field - 150 - 96
        value = scaled << shift if shift >= 0 else scaled >> -shift
        words[field] = [value >> 32 * i & _WORD for i in (3, 2, 1, 0)]
    return words


_WORDS = _words()
_OF_TENSORS = _WORDS.tolist()  # torch.compile treats lists as constants


def turns_of(arrays: Arrays, steps: Any) -> Any:
    """Steps in radians as turns times 2^64, rounded to the nearest; int64 of the same shape."""
    xp = arrays.xp
    words: Any = _WORDS
    if arrays.is_torch:
        from posenc_native.engines.following import exports_to_onnx

        if exports_to_onnx():  # which has no view of the bits of a float
            return turns_by_products(steps.detach())[0]
        words = xp.tensor(_OF_TENSORS, device=arrays.device)
    rest = steps.detach() if arrays.is_torch else steps
    double = rest.dtype == xp.float64
    sums: list[Any] = [0, 0, 0, 0]
    for _ in range(3 if double else 1):
        part = arrays._cast(rest, xp.float32)
        if double:
            rest = rest - arrays._cast(part, xp.float64)
        bits = arrays._cast(part.view(xp.int32), xp.int64)
        field = (bits >> 23) & 255
        number = (bits & (2**23 - 1)) | (2**23)
        number = xp.where(bits < 0, -number, number)
        own = words[field]
        sums = [old + number * own[..., i] for i, old in enumerate(sums)]
    third = sums[2] + (sums[3] >> 32)
    second = sums[1] + (third >> 32)
    first = sums[0] + (second >> 32)
    return (first << 32 | second & _WORD) + ((third >> 31) & 1)


def check_steps(arrays: Arrays, steps: Any) -> bool:
    """Whether steps can be read; if so, ValueError for steps that are not valid angles."""
    if not readable(steps):
        return False
    elements = steps.detach() if arrays.is_torch else steps
    # Compared as a Python number: 16-bit formats may lack 2^31. The maximum with a NaN is NaN.
    if 0 not in elements.shape and not float(abs(elements).max()) <= LARGEST:
        expected = "finite radians of at most 2^31"
        wrong_value(arrays.function, "steps", expected, "larger ones or NaN")
    return True


# --- sums of turns


def phases_and_state(
    arrays: Arrays, steps: Any, state: Any, rows: Rows | None, axis: int
) -> tuple[Any, Any]:
    """Phases after each token, with the shape of steps, and the state after the last tokens.

    state: the shape without the axis of tokens; with rows, an axis of rows comes first.
    """
    sums = _sums_of(arrays, steps, state if rows is None else None, axis)
    if rows is not None:
        return summed_by_rows(arrays, sums, state, rows, axis)
    if steps.shape[axis] > 0:
        return sums, sums.take(-1, axis) if arrays.xp is np else sums.select(axis, -1).clone()
    shape = [n for i, n in enumerate(steps.shape) if i != axis]
    return sums, _zeros(arrays, shape) if state is None else state + 0


def _sums_of(arrays: Arrays, steps: Any, state: Any, axis: int) -> Any:
    """Sums of steps, in turns, starting from a state."""
    # In the order of native code: [..., s, P].
    last = axis == steps.ndim - 1
    laid = steps[..., None] if last else moved(steps, axis, -2)
    before = state if state is None or not last else state[..., None]
    if arrays.is_torch:
        from .operators import accumulated_phases as native

        sums = native(laid, before)
        if sums is None:
            sums = turns_of(arrays, laid).cumsum(-2)
            sums = sums if before is None else sums + before.unsqueeze(-2)
    else:
        sums = backend.implementation.accumulated_phases(laid, before)
    return sums[..., 0] if last else moved(sums, -2, axis)


def summed_by_rows(arrays: Arrays, sums: Any, state: Any, rows: Rows, axis: int) -> tuple[Any, Any]:
    """Sums over all tokens from the beginning of each row, and the sums of whole rows."""
    sums = moved(sums, axis, 0)
    xp = arrays.xp
    nothing = xp.zeros_like(sums[:1]) if sums.shape[0] else _zeros(arrays, (1, *sums.shape[1:]))
    before = xp.concatenate((nothing, sums))
    first = before[rows.first]
    if state is not None:
        first = first - state
    phases = sums - first[rows.of_tokens]
    return moved(phases, 0, axis), before[rows.last] - first


def sums_of_numbers(arrays: Arrays, numbers: Any, rows: Rows | None, axis: int) -> Any:
    """Sums of any numbers along the tokens, starting from 0 in each row."""
    sums = arrays.xp.cumsum(numbers, axis)
    return sums if rows is None else summed_by_rows(arrays, sums, None, rows, axis)[0]


def moved(values: Any, axis: int, to: int) -> Any:
    """The view with an axis moved to another place."""
    return (
        np.moveaxis(values, axis, to)
        if isinstance(values, np.ndarray)
        else values.movedim(axis, to)
    )


def _zeros(arrays: Arrays, shape: Any) -> Any:
    if arrays.is_torch:
        return arrays._beside(arrays.xp.zeros(shape, dtype=arrays.int64, device=arrays.device))
    return np.zeros(shape, np.int64)


def totals_of(arrays: Arrays, steps: Any, rows: Rows | None, axis: int) -> tuple[Any, Any]:
    """Sums of whole rows, [rows, ...] without the axis, and the number of invalid steps.

    The count is over all pairs, the last axis, if steps have an axis after that of the tokens.
    """
    totals = phases_and_state(arrays, steps, None, rows, axis)[1]
    bad = ~(steps.detach().abs() <= LARGEST)
    bad = arrays.whole(bad.any(-1, keepdim=True))
    if rows is None:
        return totals[None], bad.sum(axis)[None]
    return totals, summed_by_rows(arrays, bad.cumsum(axis), None, rows, axis)[1]


def checked_state(arrays: Arrays, state: Any, shape: list[int], axes: str) -> Any:
    """The state that a call begins from, checked; None stays None."""
    if state is None:
        return None
    if arguments.dtype_name(getattr(state, "dtype", None)).startswith(("float", "bfloat")):
        hint = "a state is in turns: radians times 2^64 / (2 pi), modulo 2^64"
        wrong_type(arrays.function, "state", "int64", arguments.dtype_name(state.dtype), hint)
    begin = arrays._read("state", state, ("int64",))
    if list(begin.shape) != shape:
        expected = f"shape [{axes}] = {shape}"
        wrong_value(arrays.function, "state", expected, f"shape {list(begin.shape)}")
    return begin


# --- public


if TYPE_CHECKING:

    @overload
    def accumulated_phases(steps: TensorLike, *, axis: int, state: Any = ...,
                           starts: Integers | None = ..., order: ShardOrder = ...
    ) -> Tensor: ...  # fmt: skip
    @overload
    def accumulated_phases(steps: SupportsArray[Number], *, axis: int, state: Any = ...,
                           starts: Integers | None = ..., order: ShardOrder = ...
    ) -> Array[np.int64]: ...  # fmt: skip


def accumulated_phases(
    steps: Any,
    *,
    axis: int,
    state: npt.ArrayLike | torch.Tensor | None = None,
    starts: npt.ArrayLike | torch.Tensor | None = None,
    order: ShardOrder = "contiguous",
) -> Any:
    """The angle of every token as the exact sum of all steps up to and including it.

    Each step is taken exactly and becomes turns times 2^64, rounded once. The phases of n tokens
    are therefore off by at most n * 2^-65 turns, for a million tokens in one call or in a thousand.

    Args:
        steps: radians, any shape, float16, bfloat16, float32 or float64.
        axis: the axis of the tokens.
        state: int64, the phases before the first token, with the shape of `steps` without the axis;
            default 0. The phases of the last token are the state of the next call.
        starts: ``[rows + 1]`` integers from 0 to the number of tokens, where rows of packed tokens
            begin: each row is summed from 0, or from its own state, ``[rows, ...]``.
        order: the tokens of the whole that a rank holds, for DTensors sharded along them, as in
            `selective_rotary_qk`.

    Returns:
        int64 like `steps`, turns times 2^64; they wrap as angles do. No gradient flows through
        integers; `selective_rotary_qk` has gradients.

    Raises:
        ValueError: steps are not finite or exceed 2^31 radians (checked only if they can be read;
            on CUDA they count as 0); or the axis, state or starts do not fit.
        TypeError: a dtype is not supported, or the state is not int64.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> steps = np.full(3, np.pi / 4, np.float32)
        >>> phases = pn.selective.accumulated_phases(steps, axis=0)
        >>> (phases / 2.0**64).round(6)  # turns
        array([0.125, 0.25 , 0.375])
        >>> again = pn.selective.accumulated_phases(steps[2:], axis=0, state=phases[1])
        >>> bool((again == phases[2:]).all())
        True

    Source: the angles of Selective RoPE (arXiv:2511.17388) and of Mamba-3 (ICLR 2026).
    """
    function = "accumulated_phases"
    arrays = Arrays(function, None, None, steps=steps, state=state, starts=starts)
    steps = arrays.floats("steps", steps)
    if not arguments.is_count(axis) or not -steps.ndim <= axis < steps.ndim:
        axes = f"an axis of steps, {-steps.ndim} .. {steps.ndim - 1}"
        wrong_value(function, "axis", axes if steps.ndim else "steps with an axis", axis)
    axis = int(axis) % steps.ndim
    check_steps(arrays, steps)
    rows = checked_rows(arrays, starts, steps.shape[axis])
    sizes = [n for i, n in enumerate(steps.shape) if i != axis]
    before = sizes if rows is None else [rows.count, *sizes]
    axes = "the axes of steps except that of the tokens"
    state = checked_state(arrays, state, before, axes if rows is None else f"rows, {axes}")
    check_order(function, order, cut=arrays._mesh is not None)
    if arrays._mesh is not None:
        return _phases_of_parts(arrays, steps, state, rows, axis, order)
    return phases_and_state(arrays, steps, state, rows, axis)[0]


def _phases_of_parts(
    arrays: Arrays, steps: Any, state: Any, rows: Rows | None, axis: int, order: str
) -> Any:
    """`accumulated_phases` of DTensors, sharded along any axes."""
    from posenc_native.engines.torch.sharded.cut import Cut

    from .across import across_ranks

    names = tuple("s" if i == axis else f"n{i}" for i in range(steps.ndim))
    axes = tuple(name for name in names if name != "s")
    cut = Cut(steps, names, names)
    own_state = cut.part(state, axes if rows is None else ("rows", *axes))
    part = cut.local(steps).detach()
    arrays = arrays.of_parts()
    across = across_ranks(arrays, cut, "s", order, None if rows is None else rows.starts)
    if across is None:
        check_steps(arrays, part)
        return cut.join(phases_and_state(arrays, part, own_state, rows, axis)[0], names)
    rows = checked_rows(arrays, across.starts, part.shape[axis])
    flat = moved(part, axis, 0)
    shape = flat.shape[1:]
    flat = flat.reshape(len(flat), shape.numel())
    totals, wrong = totals_of(arrays, flat, rows, 0)
    before = None if own_state is None else own_state.reshape(across.rows, shape.numel())
    begin = across.begin(totals, wrong, before, arrays.seen(wrong) is not None).phases
    own = begin.reshape(shape if rows is None else (rows.count, *shape))
    return cut.join(phases_and_state(arrays, part, own, rows, axis)[0], names)


if TYPE_CHECKING:

    @overload
    def phase_tables(phases: TensorLike, dtype: Dtype = ...) -> Pair[Tensor]: ...
    @overload
    def phase_tables(phases: SupportsArray[Any], dtype: Any = ...) -> Pair[Array[Any]]: ...


def phase_tables(phases: Any, dtype: Any = None) -> tuple[Any, Any]:
    """Exact cosines and sines of phases: tables per head for `Tables`.

    Args:
        phases: int64, turns times 2^64, any shape, from `accumulated_phases`.
        dtype: float16, bfloat16, float32 (default) or float64, of NumPy or torch.

    Returns:
        ``(cos, sin)``, each like `phases`; float32 is off by at most 1.2e-7.

    Raises:
        TypeError: phases are not int64, or a dtype is not supported.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> quarter = np.array([0, 2**62])
        >>> cos, sin = pn.selective.phase_tables(quarter)
        >>> cos + 0.0, sin
        (array([1., 0.], dtype=float32), array([0., 1.], dtype=float32))
    """
    function = "phase_tables"
    arrays = Arrays(function, dtype, None, phases=phases)
    phases = arrays.integers("phases", phases, ("int64",))
    if arrays._mesh is not None:
        from posenc_native.engines.torch.sharded.cut import Cut

        names = tuple(f"n{axis}" for axis in range(phases.ndim))
        cut = Cut(phases, names, names)
        cos, sin = (cut.join(t, names) for t in phase_tables(cut.local(phases), dtype))
        return cos, sin
    if phases.ndim == 0:
        cos, sin = phase_tables(phases.reshape(1), dtype)
        return cos[0], sin[0]
    if arrays.is_torch:
        from .operators import phase_tables as native

        tables = native(phases, arrays.dtype)
        if tables is not None:
            return tables
        # Phases are treated as positions, one for each pair, at a frequency of one unit.
        pairs = phases.shape[-1]
        unit = arrays.constant([_UNIT] * pairs)
        points = moved(phases, -1, 0)
        return rotary_tables(points, unit, axis_map=arrays.arange(pairs), dtype=dtype)
    ordered = np.ascontiguousarray(phases)
    return backend.implementation.phase_tables(ordered, np.dtype(arrays.dtype))  # type: ignore[no-any-return]
