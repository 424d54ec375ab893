"""Biases of attention scores by the distance between key and query: ALiBi, T5 and the like."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from posenc_native.core.calls import arguments
from posenc_native.encodings.relative.alibi import alibi_diagonals, alibi_slopes
from posenc_native.encodings.relative.bias import add_toeplitz_bias, toeplitz_bias
from posenc_native.encodings.relative.heads import Heads, heads_of
from posenc_native.encodings.relative.kernels import fire_bias, kerple_diagonals, sandwich_diagonals
from posenc_native.encodings.relative.tables import clipped_diagonals, t5_diagonals

from .initial import initialize_heads, reset_layers
from .module import Described, add_bias, check_scores, flag, positive_size
from .placement import device_of, local_heads, local_network
from .query_terms import gate_of_queries

if TYPE_CHECKING:
    from posenc_native.core.calls.kinds import Device, KerpleKind


class ToeplitzBias(Described):
    """A bias that depends on key - query alone: the base class of ALiBi, T5 and the like.

    A subclass defines `diagonals`, one number per distance. Calling the module adds the bias to
    scores without the bias matrix in memory; `bias` makes the matrix.

    Shape:
        scores ``[..., H, q_len, k_len]``; q_offset, the position of the first query, an int or
        integers for the first axis of the scores (decoding with a cache). It may be omitted, and is
        then 0, only if q_len and k_len are equal.

    In a decoding step, making the diagonals takes longer than adding them. Layers that share a
    bias, like T5's, can share its diagonals: ``module(scores, diagonals=module.diagonals(...))``.
    """

    def diagonals(
        self,
        q_len: int,
        k_len: int,
        q_offset: int | Tensor | None = None,
        device: Device | None = None,
    ) -> Tensor:
        """The diagonals: ``[H, q_len + k_len - 1]``, or ``[B, H, ...]`` for q_offset ``[B]``."""
        raise NotImplementedError

    def forward(
        self,
        scores: Tensor,
        q_offset: int | Tensor | None = None,
        inplace: bool = False,
        *,
        diagonals: Tensor | None = None,
    ) -> Tensor:
        """Add the bias to scores; `inplace` overwrites them.

        diagonals: the result of `diagonals` for scores of these lengths and this q_offset, if it
            has already been computed.
        """
        check_scores(type(self).__name__, scores)
        q_len, k_len = scores.shape[-2:]
        if diagonals is None:
            diagonals = self.diagonals(q_len, k_len, q_offset, scores.device)
        if diagonals.ndim == 3:  # for q_offset [B], whose axis is the first one of the scores
            diagonals = diagonals.unflatten(0, (-1, *(1,) * (scores.ndim - 4)))
        out = scores if inplace else None
        sum_: Tensor = add_toeplitz_bias(scores, diagonals, out=out)
        return sum_

    def bias(
        self,
        q_len: int,
        k_len: int,
        q_offset: int | Tensor | None = None,
        dtype: torch.dtype | None = None,
        device: Device | None = None,
    ) -> Tensor:
        """The bias matrix, ``[..., H, q_len, k_len]``, for example as an attn_mask.

        device: for modules without parameters; otherwise the result is on the parameters' device.
        """
        diagonals = self.diagonals(q_len, k_len, q_offset, device)
        laid: Tensor = toeplitz_bias(diagonals, q_len, k_len, dtype=dtype)
        return laid


class BiasOfHeads(ToeplitzBias):
    """A bias whose heads may be split over ranks, with an optional causal mask."""

    head_axes: ClassVar[dict[str, int | None]] = {}  # axes of heads, by parameter

    def __init__(self, num_heads: int, heads: Heads, causal: bool) -> None:
        super().__init__()
        function = type(self).__name__
        self.causal: bool = flag(function, "causal", causal)
        self.num_heads: int = arguments.size(function, "num_heads", num_heads)
        self.heads: range = heads_of(function, heads, self.num_heads)

    def diagonals(
        self,
        q_len: int,
        k_len: int,
        q_offset: int | Tensor | None = None,
        device: Device | None = None,
    ) -> Tensor:
        """The diagonals: ``[H, q_len + k_len - 1]``, or ``[B, H, ...]`` for q_offset ``[B]``."""
        lengths = {"q_len": q_len, "k_len": k_len, "q_offset": q_offset}
        values: Tensor = self._diagonals(device_of(self, device), causal=self.causal, **lengths)
        return values

    def _diagonals(self, device: torch.device, **call: Any) -> Any:
        """The diagonals of a call, from the subclass's function of posenc_native and parameters."""
        raise NotImplementedError


class ALiBi(BiasOfHeads):
    """Attention with linear biases: ``-slope * |distance|``.

    Args:
        num_heads: H.
        symmetric: False for ``slope * (key - query)``, which is positive for future keys and needs
            a causal mask.
        learned: the slopes are parameters.
        heads: the heads of this rank, if tensor parallelism splits them: a range or slice of
            consecutive heads, or (rank, ranks) for an equal share. Scores then have only these
            heads.
        causal: True to include the causal mask: keys after the query are -inf, so that ``bias`` is
            an attn_mask for scaled_dot_product_attention, which accepts no is_causal beside a mask.

    Raises:
        ValueError, TypeError: as in `posenc_native.add_toeplitz_bias`.

    Source: Press et al. 2022, "Train Short, Test Long".

    Example:
        >>> import torch
        >>> from posenc_native import nn as pnn
        >>> pnn.ALiBi(8)(torch.zeros(1, 8, 1, 4), q_offset=3)[0, 0]
        tensor([[-1.5000, -1.0000, -0.5000,  0.0000]])
    """

    head_axes: ClassVar[dict[str, int | None]] = {"slopes": 0}

    def __init__(
        self,
        num_heads: int,
        *,
        symmetric: bool = True,
        learned: bool = False,
        heads: Heads = None,
        causal: bool = False,
    ) -> None:
        super().__init__(arguments.head_count("ALiBi", "num_heads", num_heads), heads, causal)
        self.symmetric = symmetric
        self.learned = learned
        self.slopes: nn.Parameter | None = None
        if learned:
            self.slopes = nn.Parameter(torch.empty(len(self.heads)))
            self.reset_parameters()
        self.diagonals(1, 1)  # raises if `symmetric` is not a bool

    def reset_parameters(self) -> None:
        """Reset learned slopes to `posenc_native.relative.alibi_slopes`."""
        if self.slopes is not None:
            slopes = torch.tensor(alibi_slopes(self.num_heads), dtype=torch.float32)
            initialize_heads(self, "slopes", slopes)

    def _diagonals(self, device: torch.device, **call: Any) -> Any:
        slopes = None if self.slopes is None else local_heads(self, self.slopes)
        return alibi_diagonals(
            self.num_heads, symmetric=self.symmetric, slopes=slopes, heads=self.heads,
            device=device, **call,
        )  # fmt: skip


class Kerple(BiasOfHeads):
    """Kernelized bias with two learned numbers per head: ``-r1 * log(1 + r2 * d)``.

    d is the distance to earlier keys. With kind "power" the bias is ``-r1 * d ** r2``.

    Args:
        num_heads: H.
        kind: "log" or "power".
        heads: the heads of this rank, as in `ALiBi`: a range, a slice or (rank, ranks).
        causal: True to include the causal mask, as in `ALiBi`: keys after the query are -inf.

    Raises:
        ValueError, TypeError: as in `posenc_native.relative.kerple_diagonals`.

    Source: Chi et al. 2022, "KERPLE"; parameters are initialized and bounded as in its code.

    Example:
        >>> import torch
        >>> from posenc_native import nn as pnn
        >>> pnn.Kerple(4)(torch.zeros(2, 4, 8, 8)).shape
        torch.Size([2, 4, 8, 8])
    """

    head_axes: ClassVar[dict[str, int | None]] = {"r1": 0, "r2": 0}

    def __init__(
        self, num_heads: int, *, kind: KerpleKind = "log", heads: Heads = None, causal: bool = False
    ) -> None:
        super().__init__(num_heads, heads, causal)
        if kind not in ("log", "power"):
            arguments.wrong_value("Kerple", "kind", "'log' or 'power'", repr(kind))
        self.kind: KerpleKind = kind
        self.r1: nn.Parameter = nn.Parameter(torch.empty(len(self.heads)))
        self.r2: nn.Parameter = nn.Parameter(torch.empty(len(self.heads)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw r1 from 0 .. 2 and r2 from 0 .. 1 (0 .. 2 for a power), as in the paper's code."""
        for name, most in (("r1", 2), ("r2", 1 if self.kind == "log" else 2)):
            initialize_heads(self, name, torch.rand(self.num_heads, device=self.r1.device) * most)

    def _diagonals(self, device: torch.device, **call: Any) -> Any:
        r1 = local_heads(self, self.r1).clamp(min=0.01)
        r2 = local_heads(self, self.r2).clamp(min=0.01, max=None if self.kind == "log" else 2.0)
        return kerple_diagonals(r1, r2, kind=self.kind, **call)


class Sandwich(BiasOfHeads):
    """Inner products of sinusoidal encodings as a bias, scaled down for each head.

    Args:
        num_heads: H.
        dim, base: width and base of the sinusoidal encoding.
        heads: the heads of this rank, as in `ALiBi`: a range, a slice or (rank, ranks).
        causal: True to include the causal mask, as in `ALiBi`: keys after the query are -inf.

    Source: Chi et al. 2023, "Dissecting Transformer Length Extrapolation via the Lens of Receptive
    Field Analysis".

    Example:
        >>> import torch
        >>> from posenc_native import nn as pnn
        >>> pnn.Sandwich(4)(torch.zeros(2, 4, 8, 8)).shape
        torch.Size([2, 4, 8, 8])
    """

    def __init__(
        self,
        num_heads: int,
        *,
        dim: int = 128,
        base: float = 10000.0,
        heads: Heads = None,
        causal: bool = False,
    ) -> None:
        super().__init__(num_heads, heads, causal)
        self.dim: int = arguments.even_size("Sandwich", "dim", dim)
        self.base: float = arguments.positive_number("Sandwich", "base", base)

    def _diagonals(self, device: torch.device, **call: Any) -> Any:
        return sandwich_diagonals(
            self.num_heads, dim=self.dim, base=self.base, heads=self.heads, device=device, **call
        )


class TableOfDistances(BiasOfHeads):
    """A bias with a learned table: one row per distance or per group of distances."""

    head_axes: ClassVar[dict[str, int | None]] = {"weight": 1}

    def __init__(self, rows: int, num_heads: int, heads: Heads, causal: bool) -> None:
        super().__init__(num_heads, heads, causal)
        self.weight: nn.Parameter = nn.Parameter(torch.empty(rows, len(self.heads)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the table from a normal distribution with standard deviation 0.02."""
        shape = (self.weight.shape[0], self.num_heads)
        initialize_heads(self, "weight", torch.randn(shape, device=self.weight.device) * 0.02)


class T5RelativeBias(TableOfDistances):
    """T5's learned bias for distance buckets.

    Args:
        num_heads: H.
        num_buckets: rows of the table.
        max_distance: distances from here on share a bucket.
        bidirectional: True in encoders; False in decoders, where future keys share bucket 0. Only
            `causal` masks them.
        heads: the heads of this rank, as in `ALiBi`: a range, a slice or (rank, ranks).
        causal: True to include the causal mask, as in `ALiBi`: keys after the query are -inf.
        gate_dim: for WavLM's gate, the width of a head's part of the hidden states; calls then
            take ``hidden_states=``. By default there is no gate. Not with `causal`.

    The parameter ``weight`` ``[num_buckets, H]`` is ``relative_attention_bias.weight`` in models of
    transformers, ``rel_attn_embed.weight`` in WavLM, whose layers share it. Each has a gate of its
    own, ``gru_rel_pos_const`` and ``gru_rel_pos_linear``.

    Raises:
        ValueError, TypeError: as in `posenc_native.relative.t5_diagonals`; or hidden states do not
            fit, or come without a gate.

    Source: Raffel et al. 2020, "Exploring the Limits of Transfer Learning"; Chen et al. 2022,
    "WavLM", section IV-A.

    Example:
        >>> import torch
        >>> from posenc_native import nn as pnn
        >>> pnn.T5RelativeBias(4)(torch.zeros(2, 4, 8, 8)).shape
        torch.Size([2, 4, 8, 8])
        >>> wavlm = pnn.T5RelativeBias(4, 320, 800, gate_dim=16)
        >>> wavlm(torch.zeros(2, 4, 8, 8), hidden_states=torch.zeros(2, 8, 64)).shape
        torch.Size([2, 4, 8, 8])
    """

    head_axes: ClassVar[dict[str, int | None]] = TableOfDistances.head_axes | {
        "gru_rel_pos_const": 1, "gru_rel_pos_linear.weight": None, "gru_rel_pos_linear.bias": None,
    }  # fmt: skip

    def __init__(
        self,
        num_heads: int,
        num_buckets: int = 32,
        max_distance: int = 128,
        bidirectional: bool = True,
        heads: Heads = None,
        *,
        causal: bool = False,
        gate_dim: int | None = None,
    ) -> None:
        num_buckets = arguments.size("T5RelativeBias", "num_buckets", num_buckets)
        super().__init__(num_buckets, num_heads, heads, causal)
        self.num_buckets: int = num_buckets
        self.max_distance: int = max_distance
        self.bidirectional: bool = bidirectional
        self.gate_dim: int | None = None
        if gate_dim is not None:
            self.gate_dim = positive_size("T5RelativeBias", "gate_dim", gate_dim)
            if causal:
                arguments.wrong_value("T5RelativeBias", "causal", "False with a gate", True)
            self.gru_rel_pos_const = nn.Parameter(torch.ones(1, len(self.heads), 1, 1))
            self.gru_rel_pos_linear: nn.Linear = nn.Linear(self.gate_dim, 8)
        self.diagonals(1, 1)  # raises if the configuration is invalid

    def reset_parameters(self) -> None:
        """Draw the table as `ClippedRelativeBias`; reset the constant to 1, and draw the gate."""
        super().reset_parameters()
        if getattr(self, "gate_dim", None) is not None:
            nn.init.ones_(self.gru_rel_pos_const)
            reset_layers(self.gru_rel_pos_linear)

    def forward(
        self, scores: Tensor, q_offset: int | Tensor | None = None, inplace: bool = False, *,
        diagonals: Tensor | None = None, hidden_states: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Add the bias to scores, times `gate` if the module has one; else as `ToeplitzBias`."""
        if hidden_states is None and self.gate_dim is None:
            return super().forward(scores, q_offset, inplace, diagonals=diagonals)
        check_scores("T5RelativeBias", scores)
        gate, (q_len, k_len) = self.gate(hidden_states), scores.shape[-2:]
        if diagonals is None:
            diagonals = self.diagonals(q_len, k_len, q_offset, scores.device)
        bias: Tensor = toeplitz_bias(diagonals, q_len, k_len)
        return add_bias("T5RelativeBias", scores, bias, inplace, gate)

    def gate(self, hidden_states: Tensor | None) -> Tensor:
        """WavLM's factor ``[..., H, q_len, 1]``, from the attention's input, of local heads."""
        function, width = "T5RelativeBias", self.gate_dim
        if width is None:
            expected = "None without a gate, which the argument gate_dim makes"
            arguments.wrong_value(function, "hidden_states", expected, "hidden states")
        const = local_heads(self, self.gru_rel_pos_const)
        if hidden_states is None or hidden_states.shape[-1] != const.shape[1] * width:
            expected = f"shape [..., q_len, H * gate_dim = {const.shape[1] * width}]"
            got = None if hidden_states is None else list(hidden_states.shape)
            arguments.wrong_value(function, "hidden_states", expected, got)
        linear = [local_heads(self, p) for p in self.gru_rel_pos_linear.parameters()]
        factor: Tensor = gate_of_queries(hidden_states, const, *linear)
        return factor

    def _diagonals(self, device: torch.device, **call: Any) -> Any:
        return t5_diagonals(
            local_heads(self, self.weight), bidirectional=self.bidirectional,
            max_distance=self.max_distance, **call,
        )  # fmt: skip


class ClippedRelativeBias(TableOfDistances):
    """A learned number for each distance up to a limit; farther distances share the last.

    Args:
        num_heads: H.
        left: the largest distance before the query with a separate number.
        right: the largest distance after it; by default `left`.
        heads: the heads of this rank, as in `ALiBi`: a range, a slice or (rank, ranks).
        causal: True to include the causal mask, as in `ALiBi`: keys after the query are -inf.

    Example:
        >>> import torch
        >>> from posenc_native import nn as pnn
        >>> pnn.ClippedRelativeBias(4, 16)(torch.zeros(2, 4, 8, 8)).shape
        torch.Size([2, 4, 8, 8])
    """

    def __init__(
        self,
        num_heads: int,
        left: int,
        right: int | None = None,
        *,
        heads: Heads = None,
        causal: bool = False,
    ) -> None:
        left = arguments.size("ClippedRelativeBias", "left", left)
        after = left if right is None else arguments.size("ClippedRelativeBias", "right", right)
        super().__init__(left + after + 1, num_heads, heads, causal)
        self.left: int = left
        self.right: int | None = None if after == left else after

    def _diagonals(self, device: torch.device, **call: Any) -> Any:
        return clipped_diagonals(local_heads(self, self.weight), left=self.left, **call)


class FIRE(Described):
    """A small network applied to the distance relative to the position of the query.

    Every row has a different divisor, so this bias is a matrix that each call makes.

    Args:
        num_heads: H.
        hidden: width of the network.
        c: initial value of the learned factor of distances.
        threshold: positions up to here have the same divisor; a learned factor scales it.
        causal: True to include the causal mask, as in `ALiBi`: keys after the query are -inf.

    Shape:
        scores ``[..., H, q_len, k_len]``, floats; q_offset as in `ToeplitzBias`: an int or integers
        ``[B]``.

    Raises:
        ValueError, TypeError: as in `posenc_native.relative.fire_bias`.

    Source: Li et al. 2024, "Functional Interpolation for Relative Positions Improves Long Context
    Transformers".

    Example:
        >>> import torch
        >>> from posenc_native import nn as pnn
        >>> pnn.FIRE(4)(torch.zeros(2, 4, 8, 8)).shape
        torch.Size([2, 4, 8, 8])
    """

    head_axes: ClassVar[dict[str, int | None]] = {
        "network.0.weight": None, "network.0.bias": None, "network.2.weight": 0,
        "network.2.bias": 0, "c": None, "threshold_scale": None,
    }  # fmt: skip

    def __init__(
        self,
        num_heads: int,
        *,
        hidden: int = 32,
        c: float = 0.1,
        threshold: float = 512.0,
        causal: bool = False,
    ) -> None:
        super().__init__()
        self.causal: bool = flag("FIRE", "causal", causal)
        num_heads = arguments.size("FIRE", "num_heads", num_heads)
        hidden = positive_size("FIRE", "hidden", hidden)
        self.threshold: float = arguments.positive_number("FIRE", "threshold", threshold)
        self.network: nn.Sequential = nn.Sequential(
            nn.Linear(1, hidden), nn.ReLU(), nn.Linear(hidden, num_heads)
        )
        self.first_c: float = arguments.positive_number("FIRE", "c", c)
        # Both numbers have an axis: FSDP2 refuses parameters without axes.
        self.c: nn.Parameter = nn.Parameter(torch.tensor([self.first_c]))
        self.threshold_scale: nn.Parameter = nn.Parameter(torch.tensor([1.0]))

    def reset_parameters(self) -> None:
        """Reset c, the scale of the threshold, and the network to initial values."""
        reset_layers(self.network)
        nn.init.constant_(self.c, self.first_c)
        nn.init.ones_(self.threshold_scale)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        """Also load numbers without an axis."""
        for name in ("c", "threshold_scale"):
            tensor = state_dict.get(prefix + name)
            if isinstance(tensor, Tensor) and not tensor.ndim:
                state_dict[prefix + name] = tensor.reshape(1)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def forward(self, scores: Tensor, q_offset: int | Tensor | None = None) -> Tensor:
        """Add the bias to scores."""
        check_scores("FIRE", scores)
        return add_bias("FIRE", scores, self.bias(scores.shape[-2], scores.shape[-1], q_offset))

    def bias(
        self,
        q_len: int,
        k_len: int,
        q_offset: int | Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """The bias matrix, ``[H, q_len, k_len]``, or ``[B, H, ...]`` for q_offset ``[B]``."""
        c, scale = (local_heads(self, x) for x in (self.c, self.threshold_scale))
        weight = self.network[0].weight
        values: Tensor = fire_bias(
            q_len, k_len, local_network(self, self.network), c=c, threshold=self.threshold * scale,
            causal=self.causal, q_offset=q_offset, dtype=weight.dtype, device=weight.device,
        )  # fmt: skip
        return values if dtype is None else values.to(dtype)

    def _other_arguments(self) -> dict[str, Any]:
        first, _, last = self.network
        return {"num_heads": last.out_features, "hidden": first.out_features, "c": self.first_c}
