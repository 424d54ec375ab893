"""The module that norms and rotates queries and keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor, nn

from posenc_native.core.calls import arguments
from posenc_native.core.calls.norms import NORMS
from posenc_native.core.calls.suggestions.vocabulary import MISSING, refuse, takes_words
from posenc_native.core.documents.reprs import call_arguments
from posenc_native.encodings.rotary.norm import norm_rotary_qk

from .module import positive_size, takes_rotation
from .placement import local_heads
from .rotary import RotatingModule

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from posenc_native.core.calls.kinds import SupportsRotary
    from posenc_native.core.calls.rotation import RotaryArguments

    from .rotary import Positions


class NormRotaryEmbedding(RotatingModule):
    """Norm and rotate queries and keys by their positions, in one pass.

    Args:
        head_dim, base, rotary_dim, pairing, scaling, axis_map, rotary_start, inv_freq, scale: as in
            `RotaryEmbedding`.
        eps, norm_over, weight_offset, norm_first: as in `posenc_native.norm_rotary_qk`.
        heads, kv_heads: the numbers of heads of q and k (by default equal), for different weights
            per head, ``[heads, head_dim]`` and ``[kv_heads, head_dim]``. The norm over a "token"
            needs them; without them all heads share ``[head_dim]``.
        weights: False for a norm without weights.

    Attributes:
        rope: the `posenc_native.Rotary`.
        q_weight, k_weight: the parameters, or None.

    ``.preset(...)`` and ``.from_config(...)`` also take the arguments beside head_dim and the
    rotation: ``NormRotaryEmbedding.from_config(config, eps=config.rms_norm_eps)``. Functions that
    take a `Rotary` also take the module, and use only its rotation.

    A model's original norms have their weights under ``q_norm.weight`` and ``k_norm.weight``. These
    load under the names here, including weights of all heads in a row (OLMo 2)::

        weights = {"q_weight": attention.q_norm.weight, "k_weight": attention.k_norm.weight}
        module.load_state_dict(weights)

    Shape:
        q, k in the layout; they may differ in heads. positions None for 0 .. s-1, ``[s]`` or
        ``[b, s]``.

    Raises:
        ValueError, TypeError: as in `RotaryEmbedding` and `posenc_native.norm_rotary_qk`.

    Source: Zhang and Sennrich 2019, "Root Mean Square Layer Normalization"; Henry et al. 2020,
    "Query-Key Normalization for Transformers"; Su et al. 2021, "RoFormer".

    Example:
        >>> import torch
        >>> from posenc_native import nn as pnn
        >>> rope = pnn.NormRotaryEmbedding(64, base=1e6)
        >>> q, k = rope(torch.randn(1, 8, 5, 64), torch.randn(1, 2, 5, 64))
        >>> (q.sum() + k.sum()).backward()
        >>> rope.q_weight.grad.shape
        torch.Size([64])
        >>> over_token = {"norm_over": "token", "heads": 40, "kv_heads": 8}
        >>> rope = pnn.NormRotaryEmbedding.preset("olmo-3", "full_attention", **over_token)
        >>> rope.k_weight.shape
        torch.Size([8, 128])
    """

    @takes_rotation
    def __init__(
        self,
        head_dim: int | SupportsRotary,
        *,
        layout: str | None = None,
        eps: float = 1e-6,
        norm_over: str = "head",
        weight_offset: float = 0.0,
        norm_first: bool = True,
        heads: int | None = None,
        kv_heads: int | None = None,
        weights: bool = True,
        **rotation: Unpack[RotaryArguments],
    ) -> None:
        super().__init__(head_dim, layout=layout, **rotation)
        function = type(self).__name__
        self.eps: float = arguments.finite_number(function, "eps", eps)
        if self.eps < 0:
            arguments.wrong_value(function, "eps", "a number >= 0", eps)
        arguments.check_name(function, "norm_over", norm_over, NORMS)
        self.norm_over: str = norm_over
        self.weight_offset: float = arguments.finite_number(
            function, "weight_offset", weight_offset
        )
        self.norm_first: bool = bool(norm_first)
        self.heads: int | None
        self.kv_heads: int | None
        self.heads, self.kv_heads = _head_counts(function, heads, kv_heads, norm_over, weights)
        self.q_weight: nn.Parameter | None = None
        self.k_weight: nn.Parameter | None = None
        if weights:
            for name, count in (("q_weight", self.heads), ("k_weight", self.kv_heads)):
                of_heads = () if count is None else (count,)
                setattr(self, name, nn.Parameter(torch.empty(*of_heads, self.rope.head_dim)))
        self.reset_parameters()

    @property
    def head_axes(self) -> dict[str, int | None]:
        """The axis of heads of each parameter; None for a parameter that all heads share."""
        if self.norm_over == "token":
            expected = "'head', or queries and keys that are DTensors: the mean is over all heads"
            arguments.wrong_value("HeadParallel", "norm_over", expected, self.norm_over)
        axis = None if self.heads is None else 0
        return {"q_weight": axis, "k_weight": axis}

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Reset the weights to 1 - weight_offset, which changes nothing."""
        for weight in self.parameters():
            weight.fill_(1.0 - self.weight_offset)

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
        """Norm and rotate q and k; arguments as in `RotaryEmbedding.forward`."""
        if unknown or k is MISSING or more is not MISSING:
            options = layout, inplace, contiguous
            refuse(NormRotaryEmbedding.forward, self, q, k, positions, *options, more, **unknown)
        if contiguous:
            function = type(self).__name__
            q = arguments.in_order(function, q, inplace)
            k = None if k is None else arguments.in_order(function, k, inplace)
        by_position: Any = norm_rotary_qk  # at once, in half the time of a method and keywords
        return by_position(  # type: ignore[no-any-return]
            q, k, positions, self.rope, more, *self._norm_options(q, k).values(), layout,
            None, None, None, None, None, inplace,
        )  # fmt: skip

    def _norm_options(self, q: Tensor | None, k: Tensor | None) -> dict[str, Any]:
        """The options of the norm, in the order of `norm_rotary_qk`; weights of local heads."""
        # Mostly parameters: found in a tenth of the time of an attribute, which get() would read.
        own = self._parameters
        q_weight = own["q_weight"] if "q_weight" in own else self.q_weight  # noqa: SIM401
        k_weight = own["k_weight"] if "k_weight" in own else self.k_weight  # noqa: SIM401
        return {
            "q_weight": None if q_weight is None or q is None else local_heads(self, q_weight),
            "k_weight": None if k_weight is None or k is None else local_heads(self, k_weight),
            "eps": self.eps,
            "norm_over": self.norm_over,
            "weight_offset": self.weight_offset,
            "norm_first": self.norm_first,
        }

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        """Also load the weights of all heads in a row as weights per head."""
        for name, weight in self.named_parameters(recurse=False):
            tensor = state_dict.get(prefix + name)
            if isinstance(tensor, Tensor) and tensor.shape == (weight.numel(),):
                state_dict[prefix + name] = tensor.reshape(weight.shape)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def extra_repr(self) -> str:
        """The call, for print(model)."""
        norm = call_arguments(
            type(self), eps=self.eps, norm_over=self.norm_over, weight_offset=self.weight_offset,
            norm_first=self.norm_first, heads=self.heads,
            kv_heads=None if self.kv_heads == self.heads else self.kv_heads,
            weights=self.q_weight is not None,
        )  # fmt: skip
        return super().extra_repr() + (f", {norm}" if norm else "")


def _head_counts(
    function: str, heads: int | None, kv_heads: int | None, norm_over: str, weights: bool
) -> tuple[int | None, int | None]:
    """The heads of q and k for weights per head; None and None if all heads share the weights."""
    if heads is None:
        if kv_heads is not None:
            arguments.wrong_value(function, "kv_heads", "None without heads", kv_heads)
        if norm_over == "token" and weights:
            expected = "an int, for the weights of all heads (weights=False for no weights)"
            arguments.wrong_value(function, "heads", expected, None)
        return None, None
    if not weights:
        expected = "None without weights, since no parameter depends on it"
        arguments.wrong_value(function, "heads", expected, heads)
    heads = positive_size(function, "heads", heads)
    return heads, heads if kv_heads is None else positive_size(function, "kv_heads", kv_heads)
