"""Modules of rotary encodings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import is_count
from posenc_native.core.calls.pairs import positions_in
from posenc_native.core.calls.suggestions.vocabulary import MISSING, refuse, takes_words
from posenc_native.core.calls.views import check_frequency_axes
from posenc_native.core.documents.reprs import call_arguments
from posenc_native.encodings.relative.heads import Heads, heads_of, shown_heads
from posenc_native.encodings.rotary.apply import apply_rotary_qk
from posenc_native.encodings.rotary.rotary import Rotary, rotary_in
from posenc_native.encodings.rotary.tables import tables_and_reach, xpos_tables

from .initial import initialize_heads
from .module import BufferCheck, Rotating, check_frequencies, rotary_of, takes_rotation
from .placement import local_heads

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from posenc_native.core.calls.kinds import Pairing, SupportsRotary
    from posenc_native.core.calls.rotation import RotaryArguments
    from posenc_native.engines.bound import BoundRotary

    # None for 0 .. s-1, an int p for p .. p + s-1, or the positions of all tokens.
    Positions = npt.ArrayLike | Tensor | None


class RotaryModule(Rotating):
    """A module with a `Rotary` and no buffers: how it is made, moved and printed."""

    _made_by: tuple[str, str] | None = None  # class method and its arguments, for print(model)

    @takes_rotation
    def __init__(
        self,
        head_dim: int | SupportsRotary,
        *,
        layout: str | None = None,
        **rotation: Unpack[RotaryArguments],
    ) -> None:
        super().__init__()
        self.rope: Rotary = rotary_of(type(self).__name__, head_dim, layout, rotation)

    @classmethod
    def from_config(
        cls,
        config: Any,
        layer_type: str | None = None,
        *,
        layer: int | None = None,
        seq_len: int | None = None,
        ignore: Sequence[str] = (),
        **options: Any,
    ) -> Self:
        """The rotation of a Hugging Face model.

        Args:
            config, layer_type, layer, seq_len, ignore: as in `posenc_native.Rotary.from_config`.
            options: arguments of the module that do not define the rotation.

        Raises:
            ValueError, TypeError, OSError: as there.

        Example:
            >>> from posenc_native import nn as pnn
            >>> config = {"model_type": "llama", "head_dim": 64, "rope_theta": 500000.0}
            >>> pnn.RotaryEmbedding.from_config(config)
            RotaryEmbedding(64, base=500000.0)
        """
        rope = Rotary.from_config(config, layer_type, layer=layer, seq_len=seq_len, ignore=ignore)
        return cls(rope, **options)

    @classmethod
    def preset(
        cls, name: str, layer_type: str | None = None, *, seq_len: int | None = None, **options: Any
    ) -> Self:
        """The rotation of a published model, by name; `posenc_native.Rotary.presets` lists them.

        Args:
            name, layer_type, seq_len: as in `posenc_native.Rotary.preset`.
            options: arguments of the module that do not define the rotation.

        Raises:
            ValueError, TypeError: as there.

        Example:
            >>> from posenc_native import nn as pnn
            >>> pnn.RotaryEmbedding.preset("gemma-3-27b", "sliding_attention").rope.base
            10000.0
        """
        module = cls(Rotary.preset(name, layer_type, seq_len=seq_len), **options)
        keywords = {"name": name, "layer_type": layer_type, "seq_len": seq_len}
        module._made_by = "preset", call_arguments(cls.preset, **keywords)
        return module

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move the frequencies with the model, before tracing and graph capture."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        device = fn(torch.empty(0)).device
        if device.type != "meta":
            self.rope._torch(device)
        return self

    def _computed_buffers(self) -> Mapping[str, BufferCheck]:
        return {"inv_freq": check_frequencies}  # in old checkpoints

    def _get_name(self) -> str:
        name = type(self).__name__
        return name if self._made_by is None else f"{name}.{self._made_by[0]}"

    def extra_repr(self) -> str:
        """The arguments of the call that makes it, for print(model)."""
        if self._made_by is not None:
            return self._made_by[1]
        return self.rope._written_arguments(whole=True)


class RotatingModule(RotaryModule):
    """A module that rotates like its `Rotary`, after its own norm if it has a norm."""

    def __rotary__(self) -> Rotary:
        """The `Rotary`, which functions that take a `Rotary` use: the rotation without the norm."""
        return self.rope

    def norm(
        self, q: Tensor | None, k: Tensor | None, positions: Positions = None, **options: Any
    ) -> tuple[Tensor, Tensor]:
        """Norm and rotate q and k: `posenc_native.Rotary.norm`, with the module's norm if any."""
        norm: Any = self.rope.norm
        own = self._norm_options(q, k)
        return norm(q, k, positions, **own, **options)  # type: ignore[no-any-return]

    def append(
        self,
        q: Tensor | None,
        k: Tensor,
        v: Tensor,
        positions: Positions,
        keys: Tensor,
        values: Tensor,
        slots: npt.ArrayLike | Tensor,
        **options: Any,
    ) -> Any:
        """Rotate q and k, and write k and v to caches: `posenc_native.Rotary.append`.

        A module with a norm applies it to q and k first.
        """
        own = self._norm_options(q, k)
        keywords = {"norm": True, **own, **options} if own else options
        return self.rope.append(q, k, v, positions, keys, values, slots, **keywords)

    def _norm_options(self, q: Tensor | None, k: Tensor | None) -> dict[str, Any]:
        """The options of the module's norm; none if it has no norm."""
        return {}


class RotaryEmbedding(RotatingModule):
    """Rotate queries and keys by their positions.

    Args:
        head_dim: width of a head, which q and k must have; or a `posenc_native.Rotary`, or a module
            that has one, in place of all arguments.
        base, rotary_dim, pairing, scaling, axis_map, rotary_start, inv_freq, scale: as in
            `posenc_native.Rotary`.
        layout: default layout of the calls: "bhsd" (default), "bshd", "thd" ...; with a `Rotary`,
            replaces the layout of that.

    Attributes:
        rope: the `posenc_native.Rotary`.

    Functions that take a `Rotary` (`posenc_native.rerotate`, pictures) also take the module.

    Shape:
        q, k in the layout; they may differ in heads. positions None for 0 .. s-1, an int p
        for p .. p + s - 1, ``[s]`` or ``[b, s]``.

    ``preset(name)`` and ``from_config(config)`` make the rotation of a published model. ``append``
    rotates and writes to a KV cache, ``append_latent`` to one of latent attention, ``norm``
    normalizes and rotates, ``bind`` checks once for a loop.

    A buffer ``inv_freq`` in an original's checkpoint is compared and not stored; other frequencies
    are an error.

    Raises:
        ValueError, TypeError: as in `posenc_native.Rotary` and `posenc_native.apply_rotary_qk`; or
            the width of heads is not head_dim.

    Source: Su et al. 2021, "RoFormer".

    Example:
        >>> import torch
        >>> from posenc_native import nn as pnn
        >>> rope = pnn.RotaryEmbedding(64, base=500000.0)
        >>> q, k = rope(torch.randn(1, 8, 5, 64), torch.randn(1, 2, 5, 64))
        >>> q.shape
        torch.Size([1, 8, 5, 64])
        >>> pnn.RotaryEmbedding.preset("llama-3.1")
        RotaryEmbedding.preset('llama-3.1')
    """

    @takes_words
    def forward(
        self,
        q: Tensor,
        k: Tensor | None,
        positions: Positions = None,
        layout: str | None = None,
        inplace: bool = False,
        contiguous: bool = False,
        more: NoReturn = MISSING,
        **unknown: NoReturn,
    ) -> tuple[Tensor, Tensor]:
        """Rotate q and k.

        Args:
            q, k: ``[b, h, s, d]`` or as in layout, floating-point; with ``k=None`` only q.
            positions: None for 0 .. s-1, an int p for p .. p + s-1, ``[s]`` or ``[b, s]``.
            layout: default the layout of the module.
            inplace, contiguous: as in `posenc_native.apply_rotary_qk`.
        """
        if unknown or k is MISSING or more is not MISSING:
            options = layout, inplace, contiguous
            refuse(RotaryEmbedding.forward, self, q, k, positions, *options, more, **unknown)
        keys: Any = k  # for type checkers, results are tensors, as with other modules
        # The method itself, since calling the object takes twice as long.
        return self.rope.__call__(
            q, keys, positions, layout=layout, inplace=inplace, contiguous=contiguous
        )

    def append_latent(
        self,
        q: Tensor | None,
        k_rope: Tensor,
        latent: Tensor,
        positions: Positions,
        cache: Tensor | tuple[Tensor, Tensor],
        slots: npt.ArrayLike | Tensor,
        **options: Any,
    ) -> Any:
        """A step of latent attention: `posenc_native.Rotary.append_latent`."""
        return self.rope.append_latent(q, k_rope, latent, positions, cache, slots, **options)

    def bind(self, q: Tensor, k: Tensor, **options: Any) -> BoundRotary:
        """A rotation for tensors like q and k that checks once: `posenc_native.Rotary.bind`."""
        return self.rope.bind(q, k, **options)


class LearnedRotaryEmbedding(Rotating):
    """Rotate queries and keys by learned frequencies.

    Args:
        head_dim: width of a head, which q and k must have; or a `posenc_native.Rotary`, or a module
            that has one, which provides the initial frequencies, pairing, axis_map, rotary_start,
            scale and the default layout.
        inv_freq: the initial frequencies, radians per position: ``[P]``, ``[H, P]`` for different
            frequencies per head, ``[A, H, P]`` for positions with several axes (mixed frequencies);
            default those of `posenc_native.Rotary` with `base`.
        num_heads: makes the default frequencies ``[num_heads, P]``, initially equal in all heads.
        heads: the heads of this rank, if frequencies differ per head, as in `ALiBi`.
        base, rotary_dim: base and width of the default frequencies.
        pairing, axis_map, rotary_start, scale: as in `posenc_native.apply_rotary`.
        layout: default layout of the calls.

    Attributes:
        inv_freq: the parameter, float32. Half precision would shift distant positions, so exclude
            this parameter when you cast a model. If it was cast, its rounded values are used.

    Shape:
        q, k in the layout, with as many heads as there are rows of frequencies; positions None for
        0 .. s-1, ``[s]``, ``[b, s]``, with an axis ``[A, ...]`` first for several axes.

    Raises:
        ValueError, TypeError: as in `posenc_native.apply_rotary_qk`.

    Source: Heo et al. 2024, "Rotary Position Embedding for Vision Transformer" (arXiv:2403.13298),
    for mixed frequencies per head.

    Example:
        >>> import torch
        >>> from posenc_native import nn as pnn
        >>> rope = pnn.LearnedRotaryEmbedding(64, num_heads=8)
        >>> q, k = rope(torch.randn(1, 8, 5, 64), torch.randn(1, 8, 5, 64))
        >>> (q.sum() + k.sum()).backward()
        >>> rope.inv_freq.grad.shape
        torch.Size([8, 32])
    """

    def __init__(
        self,
        head_dim: int | SupportsRotary,
        *,
        inv_freq: npt.ArrayLike | Tensor | None = None,
        num_heads: int | None = None,
        base: float = 10000.0,
        rotary_dim: int | None = None,
        pairing: Pairing = "half",
        axis_map: npt.ArrayLike | None = None,
        rotary_start: int = 0,
        layout: str | None = None,
        scale: float = 1.0,
        heads: Heads = None,
    ) -> None:
        super().__init__()
        function = "LearnedRotaryEmbedding"
        width: Any = head_dim
        rope = rotary_in(head_dim)
        if rope is not None:
            if (inv_freq, base, rotary_dim, pairing, rotary_start, scale) != (
                None, 10000.0, None, "half", 0, 1.0
            ) or axis_map is not None:  # fmt: skip
                expected = "an int beside arguments of the rotation (a Rotary includes them)"
                arguments.wrong_value(function, "head_dim", expected, "a Rotary beside one of them")
            width, inv_freq, layout = rope.head_dim, rope.inv_freq, layout or rope.layout
            pairing, axis_map = rope.pairing, rope.axis_map
            rotary_start, scale = rope.rotary_start, rope.scale
            if num_heads is not None:
                count = arguments.size(function, "num_heads", num_heads)
                inv_freq, num_heads = np.tile(rope.inv_freq, (count, 1)), None
        if inv_freq is None:
            initial = Rotary(width, base=base, rotary_dim=rotary_dim).inv_freq
            if num_heads is not None:
                initial = np.tile(initial, (arguments.size(function, "num_heads", num_heads), 1))
            device = None
        else:
            if (num_heads, base, rotary_dim) != (None, 10000.0, None):
                got = "at least one"
                arguments.wrong_value(
                    function, "num_heads, base, rotary_dim", "none beside inv_freq", got
                )
            device = inv_freq.device if isinstance(inv_freq, Tensor) else None
            if isinstance(inv_freq, Tensor):
                inv_freq = inv_freq.detach().double().cpu().numpy()
            initial = np.array(inv_freq)
            check_frequency_axes(function, initial.shape)
        # Checks the slice, the pairing and the axis_map.
        self._like = Rotary(
            width, inv_freq=[0.0] * initial.shape[-1], pairing=pairing, axis_map=axis_map,
            rotary_start=rotary_start, layout=layout or "bhsd", scale=scale,
        )  # fmt: skip
        self.head_dim: int = self._like.head_dim
        self._initial = initial.astype(np.float32)
        # The number of heads with different frequencies.
        self.num_heads: int = initial.shape[-2] if initial.ndim > 1 else 0
        self.heads: range = heads_of(function, heads, self.num_heads)
        shape = (*initial.shape[:-2], len(self.heads), initial.shape[-1])
        self.inv_freq: nn.Parameter = nn.Parameter(
            torch.empty(
                shape if self.num_heads else initial.shape, dtype=torch.float32, device=device
            )
        )
        self.reset_parameters()

    @property
    def head_axes(self) -> dict[str, int | None]:
        """The axis of heads of each parameter; None for a parameter that all heads share."""
        return {"inv_freq": -2 if self.num_heads else None}

    def reset_parameters(self) -> None:
        """Reset the frequencies to their initial values."""
        initialize_heads(self, "inv_freq", torch.from_numpy(self._initial.copy()))

    def forward(
        self,
        q: Tensor,
        k: Tensor | None,
        positions: Positions = None,
        layout: str | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Rotate q and k; layout: default the layout of the module."""
        self._like._check_width("LearnedRotaryEmbedding", "q", q)
        inv_freq = local_heads(self, self.inv_freq)
        if inv_freq.dtype not in (torch.float32, torch.float64):
            inv_freq = inv_freq.float()
        x: Any = q
        keys: Any = k
        _, axis_map = self._like._of(keys if x is None else x)
        return apply_rotary_qk(
            x, keys, positions, inv_freq, layout=self._like.layout if layout is None else layout,
            pairing=self._like.pairing, rotary_start=self._like.rotary_start, axis_map=axis_map,
            scale=self._like.scale,
        )  # fmt: skip

    def __rotary__(self) -> Rotary:
        """The rotation by the current frequencies; ValueError if they differ per head."""
        arguments.check_shape(
            "LearnedRotaryEmbedding", "inv_freq of a Rotary", tuple(self.inv_freq.shape),
            (len(self._like.inv_freq),),
        )  # fmt: skip
        inv_freq = self.inv_freq.detach().double().cpu().numpy()
        return Rotary(**{**self._like._arguments(), "inv_freq": inv_freq})

    def __frequencies__(self) -> Tensor:
        """The parameter, which gradients of functions that take the module reach."""
        return self.inv_freq

    def extra_repr(self) -> str:
        """The call, for print(model)."""
        like = self._like
        axes = None if like.axis_map is None else tuple(like.axis_map.tolist())
        options = call_arguments(
            type(self), pairing=like.pairing, axis_map=axes, rotary_start=like.rotary_start,
            layout=None if like.layout == "bhsd" else like.layout, scale=like.scale,
            heads=shown_heads(self.heads, self.num_heads),
        )  # fmt: skip
        shape = list(self.inv_freq.shape)
        return f"{self.head_dim}, inv_freq=<{shape}>" + (f", {options}" if options else "")


class XPos(RotaryModule):
    """Rotate and scale queries and keys so that scores decay with distance.

    Args:
        head_dim, base, rotary_dim, pairing, scaling, rotary_start, inv_freq, scale: as in
            `RotaryEmbedding`, for one position axis; the paper's code uses pairing "interleaved".
        center, scale_base, gamma: as in `posenc_native.rotary.xpos_tables`. If `center` is a
            number, keys that were rotated once can be cached.

    Shape:
        q, k in the layout; they may differ in heads and in length. positions, k_positions None for
        0 .. s-1, ``[s]`` or ``[b, s]``.

    Raises:
        ValueError, TypeError: as in `posenc_native.rotary.xpos_tables` (which says how far from the
            center positions may be for the dtype of q and k: 3257 for float16 and the defaults) and
            `posenc_native.apply_rotary_qk`.

    Source: Sun et al. 2022, "A Length-Extrapolatable Transformer".

    Example:
        >>> import torch
        >>> from posenc_native import nn as pnn
        >>> xpos = pnn.XPos(64, pairing="interleaved")
        >>> q, k = xpos(torch.randn(1, 8, 1, 64), torch.randn(1, 2, 1, 64), torch.tensor([77]))
        >>> k.shape
        torch.Size([1, 2, 1, 64])
    """

    @takes_rotation
    def __init__(
        self,
        head_dim: int | SupportsRotary,
        *,
        layout: str | None = None,
        center: float | str = 0.0,
        scale_base: float = 512.0,
        gamma: float = 0.4,
        **rotation: Unpack[RotaryArguments],
    ) -> None:
        super().__init__(head_dim, layout=layout, **rotation)
        if self.rope.axis_map is not None:
            arguments.wrong_value("XPos", "axis_map", "None, for one axis", "several axes")
        self.decay: dict[str, Any] = {"center": center, "scale_base": scale_base, "gamma": gamma}
        xpos_tables(0, self.rope.inv_freq, **self.decay)  # raises if the decay is invalid

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        positions: Positions = None,
        layout: str | None = None,
        inplace: bool = False,
        contiguous: bool = False,
        *,
        k_positions: Positions = None,
    ) -> tuple[Tensor, Tensor]:
        """Rotate and scale q and k; k_positions None for those of q, or for 0 .. s-1 if these are.

        With `center` "length", half the number of keys.
        """
        rope = self.rope
        rope._check_width("XPos", "q", q)
        layout = rope.layout if layout is None else layout
        pair: tuple[Any, Any] = positions, positions if k_positions is None else k_positions
        own = [
            positions_in("XPos", at or 0, x, layout) if at is None or is_count(at) else at
            for at, x in zip(pair, (q, k), strict=True)
        ]
        # Known without reading a tensor, which may be on a GPU.
        spans = tuple(
            (at or 0, (at or 0) + x.shape[0] - 1) if at is None or type(at) is int else None
            for at, x in zip(pair, own, strict=True)
        )
        shared = k_positions is None and (positions is not None or own[0].shape == own[1].shape)
        dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
        tables, reach = tables_and_reach(
            "XPos", own[0] if shared else tuple(own), rope, dtype, spans=spans, **self.decay
        )
        if reach is not None and q.dtype in (torch.float16, torch.bfloat16):
            reach.check("XPos", "positions", arguments.dtype_name(q.dtype))
        return apply_rotary_qk(
            q, k, None, tables, layout=layout, pairing=rope.pairing,
            rotary_start=rope.rotary_start, inplace=inplace, contiguous=contiguous,
        )  # fmt: skip

    def extra_repr(self) -> str:
        """The call, for print(model)."""
        decay = call_arguments(type(self), **self.decay)
        return super().extra_repr() + (f", {decay}" if decay else "")
