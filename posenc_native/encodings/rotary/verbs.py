"""The methods of a `Rotary` that rotate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NoReturn, overload

import numpy as np
import numpy.typing as npt

from posenc_native.core.calls import arguments
from posenc_native.core.calls.norms import Norm
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
from posenc_native.encodings.rotary.packed import split_qkv
from posenc_native.engines import backend
from posenc_native.engines.bound import BoundRotary, bound_natively
from posenc_native.engines.rotations import Call, outs_of, run
from posenc_native.engines.scaled_queries import query_factors
from posenc_native.engines.verbs import APPLY_ROTARY_QK

if TYPE_CHECKING:
    import torch
    from typing_extensions import Unpack

    from posenc_native.core.calls.kinds import (
        Array,
        Dtype,
        Item,
        Number,
        Numbers,
        NumbersOfTwo,
        NumPyDtype,
        OutArray,
        OutTensor,
        Pair,
        Pairing,
        SupportsArray,
        Tensor,
        TensorLike,
        TorchDtype,
    )
    from posenc_native.core.calls.norms import NormCallOptions, OwnNorm
    from posenc_native.core.calls.rotation import CallOptions

__all__ = ["Verbs"]


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
    query_scale: Mapping[str, Any] | None
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
        q_scale: Any = None,
        k_scale: Any = None,
        **unknown: NoReturn,
    ) -> tuple[Any, Any]:
        """RMS norm and rotation of queries and keys: `norm_rotary_qk` with this description.

        Args:
            q, k, positions: as in a call.
            q_weight, k_weight, eps, norm_over, weight_offset, norm_first, compute, layout: as in
                `norm_rotary_qk`.
            inplace, out, q_scale, k_scale: as in `norm_rotary_qk`.

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
            norm_first, layout, None, None, None, None, compute, inplace, out, q_scale, k_scale,
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
        q_scale: Any = None,
        **unknown: NoReturn,
    ) -> Any:
        """Rotate q and k, write k and v into caches: `rotary_append` with this description.

        Args:
            q, k, positions: as in a call.
            v, keys, values, slots, cache_layout: as in `rotary_append`.
            norm, q_weight, k_weight, eps, norm_over, weight_offset, norm_first, compute: likewise.
            layout, return_k, k_scale, v_scale, q_scale, scales, inplace, out: likewise.

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
            compute, return_k, k_scale, v_scale, scales, inplace, out, q_scale,
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
                ``(latent_cache, k_cache)`` of two caches, or of views of rows in another order; or
                uint8 rows of vLLM's fp8_ds_mla: L float8_e4m3fn, a float32 scale for each 128 of
                these, then R numbers like `k_rope`: ``[.., 656]`` in bfloat16.
            slots: as in `rotary_append`; tokens with slot -1 are not written.
            cache_layout: as there, but h is optional: "bsd" for a row per batch entry, "sd" for one
                pool, "psd" for pages, "pshd" for an axis of one head.
            layout: default the layout of the description.
            k_scale: the divisor of all numbers of 8 bits (`rotary_append` has the formats): a
                number, or float32 ``[1]``. Default 1.
            scales: instead of this, memory ``(latent_scales, k_scales)`` for a scale that is made
                for each row, as in `rotary_append`: float32 with the shape of the cache without d,
                or of the latent for each of G groups of L / G dims, ``[.., G]``.
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

    @overload
    def split_qkv(self, qkv: TensorLike, positions: Numbers | None = ..., *, heads: int,
        kv_heads: int | None = ..., grouped: bool = ..., layout: str | None = ...,
        **norm: Unpack[OwnNorm]) -> tuple[Tensor, Tensor, Tensor]: ...  # fmt: skip
    @overload
    def split_qkv(self, qkv: SupportsArray[Number], positions: Numbers | None = ..., *, heads: int,
        kv_heads: int | None = ..., grouped: bool = ..., layout: str | None = ...,
        **norm: Unpack[OwnNorm],
    ) -> tuple[Array[Number], Array[Number], Array[Number]]: ...  # fmt: skip
    def split_qkv(
        self,
        qkv: Any,
        positions: npt.ArrayLike | torch.Tensor | None = None,
        *,
        heads: int,
        kv_heads: int | None = None,
        grouped: bool = False,
        layout: str | None = None,
        q_weight: npt.ArrayLike | torch.Tensor | None = None,
        k_weight: npt.ArrayLike | torch.Tensor | None = None,
        **norm: Any,
    ) -> tuple[Any, Any, Any]:
        """Split the result of one projection into q, k and v; norm and rotate q and k.

        In training the gradients of the three are written to one matrix, without a concatenation.

        Args:
            qkv: ``[b, s, (heads + 2 kv_heads) * head_dim]``: the axes of the layout except h and d,
                then all heads.
            positions: as in a call. `ContextParallel` makes those of a rank.
            heads, kv_heads: heads of q, and of k and v each; default the same number.
            grouped: False if the heads of q come first, then those of k, then those of v; True if
                each group has its heads of q, its k and its v (Megatron).
            layout: axes of the results, default the layout of the description.
            q_weight, k_weight: weights of an RMS norm of heads; without them there is none.
            **norm: eps, norm_over, weight_offset, norm_first, as in `norm_rotary_qk`.

        Returns:
            ``(q, k, v)``, new and in C order.

        Raises:
            ValueError, TypeError: the matrix does not have these heads; or as in a call.

        Example:
            >>> import numpy as np
            >>> import posenc_native as pn
            >>> qkv = np.ones((2, 5, (8 + 2 * 2) * 64), np.float32)
            >>> q, k, v = pn.Rotary(64).split_qkv(qkv, heads=8, kv_heads=2)
            >>> q.shape, v.shape
            ((2, 8, 5, 64), (2, 2, 5, 64))
        """
        weights = q_weight, k_weight
        normed = any(weight is not None for weight in weights)
        return split_qkv(
            self, qkv, positions, heads, kv_heads, grouped, layout, Norm(*weights, normed, **norm)
        )

    @overload
    def query_factors(self, positions: TensorLike, *, dtype: Dtype = ...) -> Tensor: ...
    @overload
    def query_factors(self, positions: Numbers, *, dtype: TorchDtype) -> Tensor: ...
    @overload
    def query_factors(self, positions: npt.ArrayLike, *, dtype: NumPyDtype = ...) -> Array[Any]: ...
    def query_factors(self, positions: Any, *, dtype: Any = None) -> Any:
        """The factors of queries at positions, by ``query_scale``; 1 without one.

        Calls for q and k multiply q by them. Llama 4 multiplies queries in its layers without a
        rotation, where ``q * rope.query_factors(positions)[:, None]`` does it.

        Args:
            positions: an int n for 0 .. n-1, or ints or floats of any shape. Below 0 the factor is
                1.
            dtype: of the result, default float32. Logarithms are computed in float64.

        ``query_scale={"type": "llama4", "beta": 0.1, "original_max_position_embeddings": 8192,
        "shift": 0}`` is ``1 + beta * ln(1 + floor((p + shift) / L))``. The type is "llama4"
        (default) or "logn", ``max(1, ln(p + 1) / ln(L))``, which has the length alone. shift is 1
        in Llama 4, and 0 (default) in Ministral 3 and Mistral 4.

        Example:
            >>> import posenc_native as pn
            >>> scale = {"beta": 0.1, "original_max_position_embeddings": 8192}
            >>> pn.Rotary(64, query_scale=scale).query_factors([8191, 8192, 100_000]).round(4)
            array([1.    , 1.0693, 1.2565], dtype=float32)

        Source: Nakanishi 2025, "Scalable-Softmax Is Superior for Attention".
        """
        return query_factors(self.query_scale, positions, dtype)

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
        if self.axis_map is None and self.query_scale is None:
            native = bound_natively(
                q, k, self.inv_freq, layout, self.pairing, self.rotary_start, self.scale, inverse,
                inplace,
            )  # fmt: skip
        options = {"layout": layout, "inverse": inverse, "inplace": inplace}
        return BoundRotary(self, native, options)
