"""The methods of a `Rotary` that rotate, and a rotation bound to a decode loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NoReturn, overload

import numpy as np
import numpy.typing as npt

from posenc_native.core.calls import arguments
from posenc_native.core.calls.rotation import Rotation
from posenc_native.core.calls.suggestions.vocabulary import (
    MISSING,
    answer_methods,
    refuse,
    takes_words,
)
from posenc_native.encodings.rotary.append import rotary_append
from posenc_native.encodings.rotary.apply import apply_rotary
from posenc_native.encodings.rotary.latent import append_latent
from posenc_native.encodings.rotary.norm import norm_rotary_qk
from posenc_native.engines import backend, late
from posenc_native.engines.rotations import Call, outs_of, run
from posenc_native.engines.verbs import APPLY_ROTARY_QK

if TYPE_CHECKING:
    import torch
    from typing_extensions import Unpack

    from posenc_native.core.calls.kinds import (
        Array,
        Item,
        Number,
        Numbers,
        NumbersOfTwo,
        OutArray,
        OutTensor,
        Pair,
        Pairing,
        SupportsArray,
        Tensor,
        TensorLike,
    )
    from posenc_native.core.calls.norms import NormCallOptions
    from posenc_native.core.calls.rotation import CallOptions

__all__ = ["BoundRotary"]


@answer_methods
class Verbs:
    """The methods of a `Rotary` that rotate."""

    __slots__ = ()

    inv_freq: npt.NDArray[np.float64]
    axis_map: npt.NDArray[np.int64] | None
    head_dim: int
    layout: str
    pairing: Pairing
    rotary_start: int
    scale: float
    # The description as the door reads it, which also handles calls like recent ones with as few
    # checks as a bound rotation; None without native code.
    _native: Any

    def __rotary__(self) -> Any:
        """The object itself, which replaces frequencies in calls (core/calls/descriptions.py)."""
        return self

    def _check_width(self, function: str, argument: str, x: Any) -> None:
        """ValueError for heads whose width is not head_dim."""
        shape = getattr(x, "shape", None)
        if isinstance(shape, tuple) and shape and shape[-1] != self.head_dim:
            self._refuse_width(function, argument, x)

    def _refuse_width(self, function: str, argument: str, x: Any) -> NoReturn:
        width, wanted = x.shape[-1], f"heads of head_dim = {self.head_dim}"
        if width > self.head_dim:
            part = f"rotary_dim={2 * len(self.inv_freq)}"
            wanted += f" (for wider heads make it with head_dim={width}, and {part} to rotate part)"
        else:
            wanted += f" (for narrower heads make it with head_dim={width})"
        arguments.wrong_value(function, argument, wanted, f"shape {list(x.shape)}")

    @overload
    def __call__(self, q: TensorLike, k: TensorLike, positions: NumbersOfTwo = ..., *,
        inplace: bool = ..., contiguous: bool = ..., **turn: Unpack[CallOptions],
    ) -> Pair[Tensor]: ...  # fmt: skip
    @overload
    def __call__(self, q: SupportsArray[Number], k: SupportsArray[Number],
        positions: NumbersOfTwo = ..., *, inplace: bool = ..., contiguous: bool = ...,
        **turn: Unpack[CallOptions],
    ) -> Pair[Array[Number]]: ...  # fmt: skip
    @overload
    def __call__(self, q: None, k: Item, positions: NumbersOfTwo = ..., *, inplace: bool = ...,
        contiguous: bool = ..., **turn: Unpack[CallOptions],
    ) -> tuple[None, Item]: ...  # fmt: skip
    @overload
    def __call__(self, q: Item, k: None, positions: NumbersOfTwo = ..., *, inplace: bool = ...,
        contiguous: bool = ..., **turn: Unpack[CallOptions],
    ) -> tuple[Item, None]: ...  # fmt: skip
    @takes_words
    def __call__(
        self,
        q: Any,
        k: Any,
        positions: npt.ArrayLike | torch.Tensor | tuple[Any, Any] | None = None,
        more: NoReturn = MISSING,
        layout: str | None = None,
        inverse: bool = False,
        inplace: bool = False,
        contiguous: bool = False,
        **unknown: NoReturn,
    ) -> tuple[Any, Any]:
        """Rotate queries and keys: `apply_rotary_qk` with this description.

        Args:
            q, k: arrays or tensors with heads of head_dim dims; their numbers of heads may differ.
                One of them may be None, and is then None in the result.
            positions: None for 0 .. s-1, an int p for p .. p + s-1, ``[s]``, ``[b, s]`` or
                ``[1, s]``; with an axis_map ``[A, ...]``; or a pair of these.
            layout: default the layout of the description.
            inverse, inplace, contiguous: as in `apply_rotary_qk`.

        Returns:
            ``(q, k)`` rotated; the arguments themselves if in place.

        Raises:
            ValueError, TypeError: as in `apply_rotary_qk`; or heads have another width.
        """
        if unknown or more is not MISSING:
            refuse(Verbs.__call__, self, q, k, positions, more, **unknown)
        if not contiguous:
            rotated = backend.door.apply_rotary_qk(
                q, k, positions, self, layout, None, None, None, None, inverse, None, None, "same",
                inplace,
            )  # fmt: skip
            if rotated is not NotImplemented:
                return rotated  # type: ignore[no-any-return]
        if k is MISSING:
            refuse(Verbs.__call__, self, q, k)
        rotation = Rotation(positions, self, layout, None, None, None, None, inverse)
        call = Call(APPLY_ROTARY_QK, (q, k), rotation, outs_of(inplace, q, k))
        return run(call, contiguous)  # type: ignore[no-any-return]

    @overload
    def apply(self, x: TensorLike, positions: Numbers | None = ..., *, out: OutTensor = ...,
              contiguous: bool = ..., **turn: Unpack[CallOptions]) -> Tensor: ...  # fmt: skip
    @overload
    def apply(self, x: SupportsArray[Number], positions: Numbers | None = ..., *,
              out: OutArray = ..., contiguous: bool = ...,
              **turn: Unpack[CallOptions]) -> Array[Number]: ...  # fmt: skip
    def apply(
        self,
        x: Any,
        positions: npt.ArrayLike | torch.Tensor | None = None,
        *,
        layout: str | None = None,
        inverse: bool = False,
        contiguous: bool = False,
        out: Any = None,
    ) -> Any:
        """Rotate one array or tensor: `apply_rotary` with this description."""
        return apply_rotary(
            x, positions, self, layout=layout, inverse=inverse, contiguous=contiguous, out=out
        )

    @overload
    def norm(self, q: TensorLike, k: TensorLike, positions: Numbers | None = ...,
             **options: Unpack[NormCallOptions]) -> Pair[Tensor]: ...  # fmt: skip
    @overload
    def norm(self, q: SupportsArray[Number], k: SupportsArray[Number],
             positions: Numbers | None = ..., **options: Unpack[NormCallOptions],
    ) -> Pair[Array[Number]]: ...  # fmt: skip
    @overload
    def norm(self, q: None, k: Item, positions: Numbers | None = ...,
             **options: Unpack[NormCallOptions]) -> tuple[None, Item]: ...  # fmt: skip
    @overload
    def norm(self, q: Item, k: None, positions: Numbers | None = ...,
             **options: Unpack[NormCallOptions]) -> tuple[Item, None]: ...  # fmt: skip
    @takes_words
    def norm(
        self,
        q: Any,
        k: Any,
        positions: npt.ArrayLike | torch.Tensor | None = None,
        more: NoReturn = MISSING,
        q_weight: npt.ArrayLike | torch.Tensor | None = None,
        k_weight: npt.ArrayLike | torch.Tensor | None = None,
        eps: float = 1e-6,
        norm_over: Literal["head", "token"] = "head",
        weight_offset: float = 0.0,
        norm_first: bool = True,
        compute: Literal["float32", "as_written"] | None = None,
        layout: str | None = None,
        inplace: bool = False,
        out: tuple[Any, Any] | None = None,
        **unknown: NoReturn,
    ) -> tuple[Any, Any]:
        """RMS norm and rotation of queries and keys: `norm_rotary_qk` with this description.

        Args:
            q, k, positions: as in a call.
            q_weight, k_weight, eps, norm_over, weight_offset, norm_first, compute, layout: as in
                `norm_rotary_qk`.
            inplace, out: as in `norm_rotary_qk`.

        Example:
            >>> import numpy as np
            >>> import posenc_native as pn
            >>> rope = pn.Rotary.preset("qwen3")
            >>> q, k = np.full((2, 1, 8, 5, 128), 7.0, np.float32)
            >>> q, k = rope.norm(q, k, q_weight=np.full(128, 2.0, np.float32))
            >>> float(np.abs(q[0, 0, 0]).max()), float(np.abs(k[0, 0, 0]).max())
            (2.0, 1.0)
        """
        if unknown or k is MISSING or more is not MISSING:
            refuse(Verbs.norm, self, q, k, positions, more, **unknown)
        by_position: Any = norm_rotary_qk  # which takes half the time of keywords
        return by_position(  # type: ignore[no-any-return]
            q, k, positions, self, more, q_weight, k_weight, eps, norm_over, weight_offset,
            norm_first, layout, None, None, None, None, compute, inplace, out,
        )  # fmt: skip

    @takes_words
    def append(
        self,
        q: Any,
        k: Any,
        v: Any,
        positions: npt.ArrayLike | torch.Tensor | None,
        keys: Any,
        values: Any,
        slots: npt.ArrayLike | torch.Tensor,
        more: NoReturn = MISSING,
        layout: str | None = None,
        cache_layout: str = "bhsd",
        norm: bool | None = None,
        q_weight: npt.ArrayLike | torch.Tensor | None = None,
        k_weight: npt.ArrayLike | torch.Tensor | None = None,
        eps: float = 1e-6,
        norm_over: Literal["head", "token"] = "head",
        weight_offset: float = 0.0,
        norm_first: bool = True,
        compute: Literal["float32", "as_written"] | None = None,
        return_k: bool = False,
        k_scale: Any = None,
        v_scale: Any = None,
        scales: tuple[Any, Any] | None = None,
        inplace: bool = False,
        out: Any = None,
        **unknown: NoReturn,
    ) -> Any:
        """Rotate q and k, write k and v into caches: `rotary_append` with this description.

        Args:
            q, k, positions: as in a call.
            v, keys, values, slots, cache_layout: as in `rotary_append`.
            norm, q_weight, k_weight, eps, norm_over, weight_offset, norm_first, compute: likewise.
            layout, return_k, k_scale, v_scale, scales, inplace, out: likewise.

        Example:
            >>> import numpy as np
            >>> import posenc_native as pn
            >>> rope = pn.Rotary(64)
            >>> keys, values = np.zeros((2, 1, 2, 16, 64), np.float32)
            >>> q, k = np.ones((1, 8, 1, 64), np.float32), np.ones((1, 2, 1, 64), np.float32)
            >>> q = rope.append(q, k, k.copy(), 7, keys, values, [7])
            >>> bool((keys[:, :, 7:8] == rope.apply(k, 7)).all())
            True
        """
        if unknown or slots is MISSING or more is not MISSING:
            refuse(Verbs.append, self, q, k, v, positions, keys, values, slots, more, **unknown)
        return rotary_append(
            q, k, v, positions, self, keys, values, slots, more, layout, cache_layout, norm,
            q_weight, k_weight, eps, norm_over, weight_offset, norm_first, None, None, None, None,
            compute, return_k, k_scale, v_scale, scales, inplace, out,
        )  # fmt: skip

    def append_latent(
        self,
        q: Any,
        k_rope: Any,
        latent: Any,
        positions: npt.ArrayLike | torch.Tensor | None,
        cache: Any,
        slots: npt.ArrayLike | torch.Tensor,
        *,
        layout: str | None = None,
        cache_layout: str = "bsd",
        return_k: bool = False,
        k_scale: Any = None,
        scales: tuple[Any, Any] | None = None,
        inplace: bool = False,
        out: Any = None,
    ) -> Any:
        """A step of latent attention (MLA): rotate q, write latent and rotated key to a cache.

        DeepSeek-V2, V3 and R1 and Kimi K2 keep one row for each token, which all heads share: the
        latent, L dims, which is the value and the first part of the key; and R dims of the key that
        rotate. R is ``head_dim - rotary_start``: 64 in their presets.

        Args:
            q: queries; the last R dims of each head rotate. Heads have n + R dims, for any n, or
                are None, as in `append`.
            k_rope: the dims of the key that rotate, with the axes of the layout except h, for
                example ``[b, s, R]``, or with h = 1.
            latent: like `k_rope`, with L dims, already normed by the model; copied bit for bit.
            positions: as in a call.
            cache: rows ``[.., L + R]``, latent first, as in vLLM; or a pair
                ``(latent_cache, k_cache)`` of two caches, or of views of rows in another order.
            slots: as in `rotary_append`; tokens with slot -1 are not written.
            cache_layout: as there, but h is optional: "bsd" for a row per batch entry, "sd" for one
                pool, "psd" for pages, "pshd" for an axis of one head.
            layout: default the layout of the description.
            k_scale: the divisor of all numbers of 8 bits (`rotary_append` has the formats): a
                number, or float32 ``[1]``. Default 1.
            scales: instead of this, memory ``(latent_scales, k_scales)`` for a scale that is made
                for each row, as in `rotary_append`: float32 with the shape of the cache without d.
            return_k: also return the rotated `k_rope`.
            inplace: write the rotated dims to `q` (and `k_rope`, if it is returned).
            out: memory like `q`, or with `return_k` a pair ``(q_out, k_out)``; without a gradient.

        Returns:
            `q` with rotated last dims, or ``(q, k_rope)``. Gradients as in `rotary_append`.

        Raises:
            ValueError, TypeError: as in `rotary_append`; or widths do not fit the description or
                the cache. Then nothing has been written.

        Source: DeepSeek-AI 2024, "DeepSeek-V2", section 2.1.

        Example:
            >>> import numpy as np
            >>> import posenc_native as pn
            >>> rope = pn.Rotary.preset("deepseek-v3", layout="thd")
            >>> q = np.ones((3, 16, 192), np.float32)  # three tokens, 16 heads of 128 + 64 dims
            >>> k_rope, latent = np.ones((3, 64), np.float32), np.ones((3, 512), np.float32)
            >>> cache = np.zeros((10, 64, 576), np.float32)  # ten pages of 64 tokens
            >>> slots = [129, 130, -1]  # on page 2; the third token is padding
            >>> q = rope.append_latent(
            ...     q, k_rope, latent, 40, cache, slots, cache_layout="psd", inplace=True
            ... )
            >>> row = cache[2, 1]
            >>> bool((row[512:] == q[0, 0, 128:]).all()), bool((row[:512] == latent[0]).all())
            (True, True)
        """
        return append_latent(
            self, q, k_rope, latent, positions, cache, slots, layout, cache_layout, return_k,
            k_scale, scales, inplace, out,
        )  # fmt: skip

    def bind(
        self,
        q: Any,
        k: Any,
        *,
        layout: str | None = None,
        inverse: bool = False,
        inplace: bool = False,
    ) -> BoundRotary:
        """Check q and k once, for a loop that rotates others like them.

        Args:
            q, k: arrays or tensors like those in the loop; their values do not matter, and they are
                not kept.
            layout, inverse, inplace: as in a call.

        Returns:
            A function ``step(q, k, positions)`` that matches ``rope(q, k, positions)`` bit for bit.
            A call with q or k of another shape, dtype, device or memory layout behaves like an
            ordinary call, with the same errors. So does a call that autograd, torch.compile or a
            torch mode is tracing.

        Raises:
            ValueError, TypeError: as a call with q and k. If native code does not read them, as on
                another device, ``step`` raises these errors instead.

        Example:
            >>> import numpy as np
            >>> import posenc_native as pn
            >>> rope = pn.Rotary(64)
            >>> q, k = np.ones((1, 8, 1, 64), np.float32), np.ones((1, 2, 1, 64), np.float32)
            >>> step = rope.bind(q, k, inplace=True)
            >>> for position in range(100, 103):
            ...     q[:], k[:] = 1.0, 1.0  # a new token
            ...     q, k = step(q, k, position)
            >>> bool((k == rope(np.ones_like(k), np.ones_like(k), 102)[1]).all())
            True
        """
        self._check_width("Rotary", "q", q)
        layout = self.layout if layout is None else layout
        native: Any = NotImplemented
        if self.axis_map is None:
            native = bound_natively(
                q, k, self.inv_freq, layout, self.pairing, self.rotary_start, self.scale, inverse,
                inplace,
            )  # fmt: skip
        options = {"layout": layout, "inverse": inverse, "inplace": inplace}
        return BoundRotary(self, native, options)


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
