"""Queries and keys rotated by data-dependent angles, and the state to continue from.

Arrays and tensors on the CPU are rotated in one pass (csrc/cpu/selective.cc). Elsewhere steps
become phases [b, h, s, P], the order of `Tables` per head. Autograd
computes gradients of q, k and steps from the inputs alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NoReturn, overload

import numpy as np
import numpy.typing as npt

from posenc_native.core.calls import arguments
from posenc_native.core.calls.pairs import check_overwritten, missing_one, outputs
from posenc_native.core.calls.suggestions.vocabulary import (
    MISSING,
    refuse,
    refuse_missing,
    takes_words,
)
from posenc_native.encodings.positions.orders import check_order
from posenc_native.engines import backend
from posenc_native.engines.arrays import any_dtensor

from .angles import FUNCTION, Angles, Selective

if TYPE_CHECKING:
    import torch

    from posenc_native.core.calls.kinds import (
        Array,
        Number,
        Pairing,
        ShardOrder,
        SupportsArray,
        Tensor,
        TensorLike,
    )

__all__ = ["selective_rotary_qk"]


if TYPE_CHECKING:

    @overload
    def selective_rotary_qk(q: TensorLike, k: TensorLike | None, steps: Any,
                            **options: Any) -> tuple[Tensor, Any, Tensor]: ...  # fmt: skip
    @overload
    def selective_rotary_qk(q: SupportsArray[Number], k: SupportsArray[Number] | None, steps: Any,
                            **options: Any
    ) -> tuple[Array[Number], Any, Array[np.int64]]: ...  # fmt: skip


@takes_words
def selective_rotary_qk(
    q: Any,
    k: Any,
    steps: Any,
    more: NoReturn = MISSING,
    state: npt.ArrayLike | torch.Tensor | None = None,
    starts: npt.ArrayLike | torch.Tensor | None = None,
    order: ShardOrder = "contiguous",
    layout: str = "bhsd",
    pairing: Pairing = "half",
    rotary_start: int = 0,
    scale: float = 1.0,
    inverse: bool = False,
    out_pairing: Pairing | Literal["same"] = "same",
    inplace: bool = False,
    out: tuple[Any, Any] | None = None,
    **unknown: NoReturn,
) -> tuple[Any, Any, Any]:
    """Rotate queries and keys by data-dependent angles: sums of steps along the tokens.

    The angle of pair p of token t is ``state[p] + steps[0, p] + ... + steps[t, p]``, exactly. Steps
    are summed as integers, so one call of n tokens, n calls of one token and any chunks agree bit
    for bit, on any number of threads, in NumPy and torch.

    Args:
        q, k: arrays or tensors, float16, bfloat16, float32 or float64, of one shape except for
            heads. One of them may be None, and is then None in the result.
        steps: radians, with the axes of `layout` and P pairs in place of d: ``[b, h, s, P]``; of
            any of the four float dtypes. h is 1, or divides the heads of q and k; adjacent heads
            then share steps.
        state: int64, the start of the first token's sum, turns times 2^64: ``[b, h, P]``, without
            the axes that `layout` lacks; default 0.
        starts: ``[rows + 1]`` integers from 0 to the number of tokens, where rows of packed tokens
            begin ("thd", "shd"); each row then has a separate state, ``[rows, h, P]``.
        order: the tokens of the whole that a rank holds, for DTensors sharded along them: the
            orders of `ContextParallel`. With `starts`, "contiguous" or "zigzag".
        layout, pairing, rotary_start, scale, inverse, out_pairing: as in `apply_rotary_qk`. 2P dims
            from `rotary_start` on are rotated.
        inplace, out: as in `apply_rotary_qk`; not allowed if steps require a gradient.

    Returns:
        ``(q, k, state)``: q and k rotated, and the state after the last token (of each row), to
        pass to the next call. Gradients reach q, k and steps; none flows through the state.

    Raises:
        ValueError: steps are not finite or exceed 2^31 radians (on CUDA they make everything from
            there on NaN; compiled code for the CPU raises a RuntimeError); or the shapes, layout,
            starts, state or order do not fit. Then nothing has been written.
        TypeError: a dtype is not supported, such as a state in float32.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> rng = np.random.default_rng(0)
        >>> q, k = rng.standard_normal((2, 1, 4, 6, 16))
        >>> steps = rng.standard_normal((1, 1, 6, 8)) * 0.1
        >>> all_q, all_k, state = pn.selective_rotary_qk(q, k, steps)
        >>> first, last = ([x[:, :, at] for x in (q, k, steps)] for at in (slice(5), slice(5, 6)))
        >>> _, _, before = pn.selective_rotary_qk(*first)
        >>> last_q, last_k, after = pn.selective_rotary_qk(*last, state=before)
        >>> bool((last_q[:, :, 0] == all_q[:, :, 5]).all()), bool((after == state).all())
        (True, True)

    Source: Selective RoPE (Movahedi et al., ICLR 2026, arXiv:2511.17388); Mamba-3 (ICLR 2026).
    """
    if unknown or more is not MISSING:
        refuse(selective_rotary_qk, q, k, steps, more, **unknown)
    refuse_missing(selective_rotary_qk, q, k, steps)
    to: Any = inplace if out is None else out
    if order == "contiguous" and (
        type(to) is bool if out is None else type(out) is tuple and not inplace
    ):
        results: Any = backend.door.selective_rotary_qk(
            q, k, steps, state, starts, layout, pairing, rotary_start, scale, inverse, out_pairing,
            to,
        )  # fmt: skip
        if results is not NotImplemented:
            return results  # type: ignore[no-any-return]
    originals = q, k
    if not (arguments.is_tensor(q) or arguments.is_tensor(k)):
        q, k = (
            x if x is None else arguments.as_operand(FUNCTION, name, x)
            for name, x in (("q", q), ("k", k))
        )
        if inplace and out is None:
            check_overwritten(FUNCTION, q=originals[0], k=originals[1])
    options = Selective(layout, pairing, rotary_start, scale, inverse, out_pairing)
    outs = out if isinstance(out, tuple) else ()
    sharded = any_dtensor(q, k, steps, state, starts, *outs)
    if order != "contiguous":
        check_order(FUNCTION, order, cut=sharded)
    if sharded:
        from .sharded import selective_rotary_qk as of_parts

        return of_parts(q, k, steps, state, starts, order, options, inplace, out)
    angles = Angles(q, k, steps, state, starts, options)
    if angles.arrays.is_torch:
        from .gradients import rotate

        keywords = {"inplace": inplace} if out is None else {"out": out, "inplace": inplace}
        return rotate(q, k, angles, starts, keywords)
    if out is not None:
        outputs(FUNCTION, out, inplace, missing_one(q, k))
    if starts is not None:  # unchanged: a copy would hide memory that it shares with out
        starts = angles.arrays._read("starts", starts, arguments.INTEGER_DTYPES)
    scale = arguments.factor(FUNCTION, "scale", scale, (k if q is None else q).dtype)
    checked = options._replace(scale=scale, inverse=bool(inverse))
    inplace = angles.arrays.flag("inplace", inplace)
    results = backend.implementation.selective_rotary_qk(
        q, k, angles.steps, angles.state, starts, *checked, inplace if out is None else out
    )
    return (*originals, results[2]) if inplace else results
