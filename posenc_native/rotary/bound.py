"""A `Rotary` for the q and k of a decode loop: what cannot change is checked once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

import numpy as np

from posenc_native.base import arguments
from posenc_native.engines import backend, late

if TYPE_CHECKING:
    from posenc_native.base.kinds import (
        Array,
        Number,
        Numbers,
        Pair,
        SupportsArray,
        Tensor,
        TensorLike,
    )

    from .rotary import Rotary

__all__ = ["BoundRotary"]


class BoundRotary:
    """What `Rotary.bind` returns: ``step(q, k, position)``.

    A call sees by itself whether q and k are still what was bound, by type, dtype, shape, strides
    and device, and whether a gradient, torch.compile or a mode follows. If not, it is that of
    `Rotary`: the same result, and the same errors.
    """

    __slots__ = ("_implementation", "_is_compiling", "_native", "_options", "_rotary")

    def __init__(
        self, rotary: Rotary, q: Any, k: Any, layout: str, inverse: bool, inplace: bool
    ) -> None:
        rotary._check_width("Rotary", "q", q)
        self._rotary = rotary
        self._options: dict[str, Any] = {"layout": layout, "inverse": inverse, "inplace": inplace}
        operations = None if type(q) is np.ndarray else late.operations_on(q)
        self._is_compiling = _never if operations is None else operations.is_dynamo_compiling
        native: Any = backend.native if operations is None else operations.at_once(q)
        rotation: Any = NotImplemented
        if operations is None and not type(q) is type(k) is np.ndarray:
            native = None
        if native is not None and native is backend.implementation and rotary.axis_map is None:
            rotation = native.bind_rotary_qk(
                q, k, rotary.inv_freq, layout, rotary.pairing, rotary.rotary_start, rotary.scale,
                inverse, inplace,
            )  # fmt: skip
        # Without a native rotation, no module is the one whose calls it may stand for.
        self._implementation = None if rotation is NotImplemented else native
        self._native = rotation

    @overload
    def __call__(self, q: TensorLike, k: TensorLike, position: Numbers) -> Pair[Tensor]: ...
    @overload
    def __call__(
        self, q: SupportsArray[Number], k: SupportsArray[Number], position: Numbers
    ) -> Pair[Array[Number]]: ...
    def __call__(self, q: Any, k: Any, position: Any) -> Any:
        """Rotate queries and keys.

        Args:
            q, k: as they were bound; others too, at the price of an ordinary call.
            position: that of the first token, an int, or of every token: ``[s]``, ``[b, s]`` or
                ``[1, s]``.

        Returns:
            ``(q, k)`` rotated; the arguments themselves if in place.

        Raises:
            ValueError, TypeError: as `apply_rotary_qk`; nothing has been written then.
        """
        if not self._is_compiling() and backend.implementation is self._implementation:
            rotated = self._native(q, k, position)
            if rotated is not NotImplemented:
                return rotated
        if isinstance(position, (int, np.integer)) and not isinstance(position, bool):
            position = self._from(int(position), q)
        return self._rotary(q, k, position, **self._options)

    def _from(self, first: int, q: Any) -> Any:
        """The positions first, first + 1 ... of the tokens of q."""
        layout, shape = self._options["layout"], np.shape(q)
        at = max(layout.find("s"), layout.find("t"))
        tokens = shape[at] if 0 <= at < len(shape) else 1
        if not -(2**63) <= first < 2**63 - tokens:
            arguments.wrong_value("Rotary", "position", "an int of 64 bits", first)
        if not arguments.is_tensor(q):
            return np.arange(first, first + tokens)
        import torch

        return torch.arange(first, first + tokens, device=q.device)

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self._options.items())
        return f"<{self._rotary!r}, bound: {options}>"


def _never() -> bool:
    return False
