"""The module of rotations with data-dependent angles: Selective RoPE."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import wrong_value
from posenc_native.encodings.selective.rotary import selective_rotary_qk
from posenc_native.engines.arrays import any_dtensor

from .initial import reset_layers
from .module import Described, flag, positive_size

if TYPE_CHECKING:
    from posenc_native.core.calls.kinds import Pairing

__all__ = ["SelectiveRotaryEmbedding", "SelectiveState"]


class SelectiveState(NamedTuple):
    """The state of earlier tokens that a decoder keeps beside its cache.

    ``phases``, int64 ``[b, heads, P]``, turns times 2^64: the phase of each pair. ``projected``,
    ``[b, kernel_size - 1, heads * P]``: projections that the convolution still needs.
    """

    phases: Tensor
    projected: Tensor


class _OfEachHead(nn.Module):
    """A linear map per head, whose columns have one learned length."""

    def __init__(self, heads: int, width: int, results: int) -> None:
        super().__init__()
        self.weight: nn.Parameter = nn.Parameter(torch.empty(heads, width, results))
        self.scalar: nn.Parameter = nn.Parameter(torch.empty(heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reset to initial values."""
        for weight in self.weight:
            nn.init.kaiming_uniform_(weight)
        nn.init.ones_(self.scalar)

    def forward(self, x: Tensor) -> Tensor:
        weight = F.normalize(self.weight, dim=-2) * self.scalar[:, None, None]
        return torch.einsum("bshi,hio->bsho", x, weight).flatten(-2)


class _Convolution(nn.Module):
    """A weighted sum over the last tokens, with separate weights per channel."""

    def __init__(self, channels: int, size: int) -> None:
        super().__init__()
        self.size = size
        self.weight: nn.Parameter = nn.Parameter(torch.empty(channels, 1, size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reset to the initial values of torch's convolutions."""
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        """The results for the last s tokens of ``[b, size - 1 + s, channels]``."""
        if x.shape[1] < self.size:  # no tokens, which conv1d refuses
            return x[:, :0] * self.weight[:, 0, 0]
        return F.conv1d(x.transpose(1, 2), self.weight, groups=x.shape[-1]).transpose(1, 2)


class SelectiveRotaryEmbedding(Described):
    """Rotate q and k by angles that depend on the tokens.

    ``steps = temperature * gate * (conv(projection(normalized tokens)) + exp(bias))``

    The angle of a token is the exact sum of all steps up to it: `selective_rotary_qk`.

    Args:
        head_dim: dims of a head of q and k; all are rotated, P = head_dim / 2 pairs.
        model_dim: dims of the tokens, a multiple of `heads`.
        heads: number of heads of steps; it divides the heads of q and k.
        rank: rank of the projection, ``phi_proj``; None: each head projects its part of the token,
            with columns of one length.
        kernel_size: number of tokens in the convolution ``phi_conv1d``; None: each projection minus
            the previous projection, so that an angle depends on its token alone.
        activation: activation of the convolution, None or "silu".
        gate: None, or a sigmoid of the tokens for each head ("head", with `gate_rank` "low_rank")
            or for each pair ("pair").
        gate_rank: rank of the gates "low_rank" and "pair".
        bias: whether to add a learned number to every step, the exponential of ``phi_bias``.
        base: base of the temperature, which is ``largest * base^(-p / P)`` in pair p; at least 1.
        largest: temperature of pair 0.
        learned_temperature: whether the temperature is learned.
        layout, pairing: as in `selective_rotary_qk`.

    Parameters have the names and shapes of the published implementation, whose ``state_dict``
    loads.

    Raises:
        ValueError: sizes do not fit, or a name is unknown.
        TypeError: an argument has a wrong type.

    Example:
        >>> import torch
        >>> from posenc_native import nn as pnn
        >>> rotate = pnn.SelectiveRotaryEmbedding(16, 64, heads=2)
        >>> tokens, q, k = torch.randn(1, 5, 64), torch.randn(1, 4, 5, 16), torch.randn(1, 2, 5, 16)
        >>> rotated_q, rotated_k, state = rotate(q, k, tokens)
        >>> state.phases.shape
        torch.Size([1, 2, 8])
        >>> step = torch.randn(1, 1, 64)  # the next token goes on from the state
        >>> next_q, _, state = rotate(torch.randn(1, 4, 1, 16), None, step, state)

    Source: Movahedi et al., "Selective Rotary Position Embedding", ICLR 2026, arXiv:2511.17388.
    """

    __call__: Callable[..., Any]

    def __init__(
        self,
        head_dim: int,
        model_dim: int,
        heads: int = 1,
        *,
        rank: int | None = 16,
        kernel_size: int | None = 4,
        activation: Literal["silu"] | None = None,
        gate: Literal["head", "low_rank", "pair"] | None = None,
        gate_rank: int = 16,
        bias: bool = False,
        base: float = 500000.0,
        largest: float = 1.0,
        learned_temperature: bool = False,
        layout: str = "bhsd",
        pairing: Pairing = "half",
    ) -> None:
        super().__init__()
        function = type(self).__name__
        self.head_dim: int = positive_size(function, "head_dim", head_dim)
        self.model_dim: int = positive_size(function, "model_dim", model_dim)
        self.heads: int = positive_size(function, "heads", heads)
        if head_dim % 2:
            wrong_value(function, "head_dim", "an even number", head_dim)
        if model_dim % heads:
            wrong_value(function, "model_dim", f"a multiple of {heads} heads", model_dim)
        if activation not in (None, "silu"):
            wrong_value(function, "activation", "None or 'silu'", repr(activation))
        if gate not in (None, "head", "low_rank", "pair"):
            wrong_value(function, "gate", "None, 'head', 'low_rank' or 'pair'", repr(gate))
        self.rank: int | None = None if rank is None else positive_size(function, "rank", rank)
        self.kernel_size: int | None = (
            None if kernel_size is None else positive_size(function, "kernel_size", kernel_size)
        )
        self.activation: str | None = activation
        self.gate: str | None = gate
        self.gate_rank: int = positive_size(function, "gate_rank", gate_rank)
        self.bias: bool = flag(function, "bias", bias)
        self.base: float = arguments.positive_number(function, "base", base)
        self.largest: float = arguments.finite_number(function, "largest", largest)
        if self.base < 1:
            wrong_value(function, "base", "a number of at least 1", base)
        self.learned_temperature: bool = flag(function, "learned_temperature", learned_temperature)
        self.layout: str = layout
        self.pairing: Any = pairing
        pairs = head_dim // 2
        channels = heads * pairs
        self.phi_proj: nn.Module = (
            _OfEachHead(heads, model_dim // heads, pairs)
            if rank is None
            else nn.Sequential(
                nn.Linear(model_dim, rank, bias=False), nn.Linear(rank, channels, bias=False)
            )
        )
        if kernel_size is not None:
            self.phi_conv1d: _Convolution = _Convolution(channels, kernel_size)
        if bias:
            self.phi_bias: nn.Parameter = nn.Parameter(torch.empty(1, 1, heads, pairs))
        self.temperature: nn.Parameter = nn.Parameter(
            torch.empty(1, 1, 1, pairs), requires_grad=learned_temperature
        )
        if gate == "head":
            self.phase_gate_proj: nn.Module = nn.Linear(model_dim, heads)
        elif gate is not None:
            self.phase_gate_proj = nn.Sequential(
                nn.Linear(model_dim, gate_rank, bias=False),
                nn.Linear(gate_rank, heads if gate == "low_rank" else channels),
            )
        self._reset_own()

    def _reset_own(self) -> None:
        pairs = self.head_dim // 2
        powers = [self.largest * self.base ** (-p / pairs) for p in range(pairs)]
        with torch.no_grad():
            self.temperature.copy_(torch.tensor(powers).reshape(1, 1, 1, -1))
            if self.bias:
                self.phi_bias.zero_()

    def reset_parameters(self) -> None:
        """Reset to initial values, as at construction."""
        for part in self.children():
            reset_layers(part)
        self._reset_own()

    def steps(self, tokens: Tensor, state: SelectiveState | None = None) -> tuple[Tensor, Tensor]:
        """The steps of tokens ``[b, s, model_dim]`` for each pair, and the data for later tokens.

        Returns:
            ``[b, s, heads, P]`` radians in float32 (float64), and the state's ``projected``.
        """
        function = type(self).__name__
        if tokens.ndim != 3 or tokens.shape[-1] != self.model_dim:
            expected = f"shape [b, s, {self.model_dim}]"
            wrong_value(function, "tokens", expected, f"shape {list(tokens.shape)}")
        if any_dtensor(tokens, *(() if state is None else state)):
            return _steps_of_parts(self, tokens, state)
        return self._steps(tokens, None if state is None else state.projected, None)

    def _steps(
        self, tokens: Tensor, before: Tensor | None, parameters: dict[str, Tensor] | None
    ) -> tuple[Tensor, Tensor]:
        """`steps` with the module's parameters, or with other parameters in their place."""

        def run(name: str, x: Tensor) -> Tensor:
            child = getattr(self, name)
            if parameters is None:
                return child(x)  # type: ignore[no-any-return]
            own = {key: parameters[f"{name}.{key}"] for key, _ in child.named_parameters()}
            return torch.func.functional_call(child, own, (x,))  # type: ignore[no-any-return]

        def own(name: str) -> Tensor:
            return getattr(self, name) if parameters is None else parameters[name]

        of_heads = tokens.unflatten(-1, (self.heads, -1))
        length = of_heads.square().sum(-1, keepdim=True)
        of_heads = of_heads * torch.rsqrt(length + 1e-6)
        flat = of_heads.flatten(-2)
        projected = run("phi_proj", of_heads if self.rank is None else flat)
        looks_back = 1 if self.kernel_size is None else self.kernel_size - 1
        if before is None:
            before = projected.new_zeros(len(projected), looks_back, projected.shape[-1])
        window = torch.cat((before.to(projected.dtype), projected), dim=1)
        if self.kernel_size is None:
            phi = projected - window[:, :-1]
        else:
            phi = run("phi_conv1d", window)
            phi = F.silu(phi) if self.activation else phi
        phi = phi.unflatten(-1, (self.heads, -1))
        if self.bias:
            phi = phi + own("phi_bias").exp()
        if self.gate is not None:
            opened = run("phase_gate_proj", flat).sigmoid()
            opened = opened.unflatten(-1, (self.heads, -1))  # [b, s, h, 1 or P]
            phi = phi * opened
        real = torch.float64 if phi.dtype == torch.float64 else torch.float32
        tail = window[:, window.shape[1] - looks_back :]
        return phi.to(real) * own("temperature").to(real), tail

    def forward(
        self, q: Tensor, k: Tensor | None, tokens: Tensor, state: SelectiveState | None = None
    ) -> tuple[Tensor, Tensor | None, SelectiveState]:
        """Rotate q and k of these tokens, which follow those of the state.

        Args:
            q, k: as in `selective_rotary_qk`, in the module's layout; k may be None.
            tokens: ``[b, s, model_dim]``, the input of the attention.
            state: the state after the previous tokens; None for the first tokens.

        Returns:
            ``(q, k, state)``.
        """
        steps, projected = self.steps(tokens, state)
        letters = "bshd"
        order = [letters.index(letter) for letter in self.layout if letter in letters]
        if sorted(order) != [0, 1, 2, 3]:
            function = type(self).__name__
            wrong_value(function, "layout", "the letters b, s, h and d", repr(self.layout))
        phases = None if state is None else state.phases
        turned_q, turned_k, phases = selective_rotary_qk(
            q, k, steps.permute(order), state=phases, layout=self.layout, pairing=self.pairing
        )
        return turned_q, turned_k, SelectiveState(phases, projected)


def _steps_of_parts(
    module: SelectiveRotaryEmbedding, tokens: Tensor, state: SelectiveState | None
) -> tuple[Tensor, Tensor]:
    """Steps of DTensors, sharded along the batch like them. The convolution needs all tokens."""
    from posenc_native.engines.torch.sharded.cut import Cut, mesh_of, whole

    tokens = whole(tokens, mesh_of((tokens, *(state or ()))))
    cut = Cut(tokens, ("b", "s", "d"), ("b",))
    parameters = {
        name: cut.part(parameter, tuple(f"n{axis}" for axis in range(parameter.ndim)))
        for name, parameter in module.named_parameters()
    }
    projected = None if state is None else cut.part(state.projected, ("b", "n", "channels"))
    steps, tail = module._steps(cut.local(tokens), projected, parameters)
    return cut.join(steps, ("b", "s", "h", "P")), cut.join(tail, ("b", "n", "channels"))
