"""A rotation that is bound to q and k, for a decode loop: the result of `Rotary.bind`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from posenc_native.core.calls.suggestions.vocabulary import MISSING, refuse, takes_words

from . import backend, late

if TYPE_CHECKING:
    from posenc_native.core.calls.kinds import (
        Array,
        Number,
        Numbers,
        Pair,
        SupportsArray,
        Tensor,
        TensorLike,
    )

__all__ = ["BoundRotary", "bound_natively"]


class BoundRotary:
    """The result of `Rotary.bind`: ``step(q, k, positions)``.

    Each call checks whether q and k still match the bound ones in type, dtype, shape, strides and
    device, and whether a gradient, torch.compile or a mode is tracing. If they do not match, or
    something traces, the call is an ordinary call of `Rotary`: the same result and the same errors.
    """

    __slots__ = ("_door", "_is_compiling", "_native", "_options", "_rotary")

    def __init__(self, rotary: Callable[..., Any], native: Any, options: dict[str, Any]) -> None:
        self._rotary = rotary
        self._options = options
        self._native = native
        # Without a native rotation, there is no fast path (`door`) whose calls this could replace.
        self._door = None if native is NotImplemented else backend.door
        self._is_compiling = late.is_compiling()

    @overload
    def __call__(self, q: TensorLike, k: TensorLike, positions: Numbers) -> Pair[Tensor]: ...
    @overload
    def __call__(
        self, q: SupportsArray[Number], k: SupportsArray[Number], positions: Numbers
    ) -> Pair[Array[Number]]: ...
    @takes_words
    def __call__(self, q: Any, k: Any, positions: Any) -> Any:
        """Rotate queries and keys.

        Args:
            q, k: like the bound ones; others work too, at the cost of an ordinary call.
            positions: an int, the position of the first token, or the positions of all tokens:
                ``[s]``, ``[b, s]`` or ``[1, s]``.

        Returns:
            ``(q, k)`` rotated; the arguments themselves if in place.

        Raises:
            ValueError, TypeError: as `apply_rotary_qk`; then nothing has been written.
        """
        if not self._is_compiling() and backend.door is self._door:
            rotated = self._native(q, k, positions)
            if rotated is not NotImplemented:
                return rotated
        if positions is MISSING:
            refuse(BoundRotary.__call__, self, q, k, positions)
        return self._rotary(q, k, positions, **self._options)

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self._options.items())
        return f"<{self._rotary!r}, bound: {options}>"


def bound_natively(q: Any, k: Any, *options: Any) -> Any:
    """The native rotation of arrays or tensors like these; NotImplemented if there is none.

    options: the options of `apply_rotary_qk` in their order, except positions and axis_map.
    """
    if backend.implementation is not backend.native:
        return NotImplemented
    if not type(q) is type(k) is np.ndarray and late.operations_on(q) is None:
        return NotImplemented
    return backend.native.bind_rotary_qk(q, k, *options)
