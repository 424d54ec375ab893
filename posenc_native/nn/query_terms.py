"""Relative terms that also depend on the query: Transformer-XL, Shaw et al., Segment Anything."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from posenc_native.core.calls import arguments
from posenc_native.encodings.relative.bias import add_toeplitz_bias
from posenc_native.encodings.relative.columns import clipped_index
from posenc_native.encodings.relative.distances import first_query, relative_positions
from posenc_native.encodings.relative.entries import signed_integer
from posenc_native.encodings.relative.lookup import relative_gather, relative_scatter
from posenc_native.encodings.relative.windows import decomposed_scores
from posenc_native.encodings.sinusoids.tables import sinusoidal
from posenc_native.engines.arrays import of_wholes
from posenc_native.engines.following import needs_grad, tracing
from posenc_native.engines.torch.sharded.taken_apart import beside, sharded, taken_apart

from .initial import initialize, reset_layers
from .module import Described, flag, positive_size
from .placement import device_of, local_heads, local_network

if TYPE_CHECKING:
    from posenc_native.core.calls.kinds import Device, SinusoidalLayout

_AXES = ("t", "h", "w")  # the names of a grid's axes: frames, rows, columns
_product = taken_apart(torch.matmul, lambda: sharded().matrices.matmul)


class RelativePositionalEncoding(Described):
    """Scores of Transformer-XL and the Conformer: content, and sinusoids of distances.

    ``((q_i + u) . k_j + (q_i + v) . W r_(i - j)) * scale``, where r is the sinusoidal table of
    distances and u, v, W are learned. No ``[q_len, k_len, d]`` is made, and no distance wraps into
    the upper triangle.

    Args:
        d_model: width of the table of distances, even.
        num_heads: H.
        head_dim: by default d_model / num_heads.
        causal: True, as in Transformer-XL: scores of keys after the query are -inf, and distances
            to them need no rows (half the work). False, as in the Conformer: all keys are scored.
        layout, base: for the sinusoids, as in `posenc_native.sinusoidal`: a name, "sin_cos" in
            Transformer-XL, "interleaved" in ESPnet's and NeMo's Conformer; a number above 0.
        scale: factor of the sum; by default 1 / sqrt(head_dim).

    Attributes:
        pos_bias_u, pos_bias_v: parameters, ``[H, head_dim]``.
        linear_pos: a linear layer, d_model to H * head_dim, without bias.

    Shape:
        q ``[..., H, q_len, head_dim]``, k ``[..., H, k_len, head_dim]``; the result is
        ``[..., H, q_len, k_len]``.

    Source: Dai et al. 2019, "Transformer-XL", section 3.3; Gulati et al. 2020, "Conformer".

    Example:
        >>> import torch
        >>> from posenc_native import nn as pnn
        >>> relative = pnn.RelativePositionalEncoding(64, num_heads=4)
        >>> relative(torch.randn(1, 4, 5, 16), torch.randn(1, 4, 5, 16)).shape
        torch.Size([1, 4, 5, 5])
        >>> relative.table(5).shape
        torch.Size([9, 64])
    """

    head_axes: ClassVar[dict[str, int | None]] = {
        "pos_bias_u": 0, "pos_bias_v": 0, "linear_pos.weight": 0,
    }  # fmt: skip

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        head_dim: int | None = None,
        *,
        causal: bool = False,
        layout: SinusoidalLayout = "sin_cos",
        base: float = 10000.0,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        function = "RelativePositionalEncoding"
        arguments.check_sinusoidal_layout(function, layout)
        self.d_model: int = arguments.even_size(function, "d_model", d_model)
        num_heads = positive_size(function, "num_heads", num_heads)
        if head_dim is None and d_model % num_heads:
            expected = f"a multiple of num_heads = {num_heads}"
            arguments.wrong_value(function, "d_model", expected, d_model)
        head_dim = d_model // num_heads if head_dim is None else head_dim
        width = positive_size(function, "head_dim", head_dim)
        self.causal: bool = flag(function, "causal", causal)
        self.layout: SinusoidalLayout = layout
        self.base: float = arguments.positive_number(function, "base", base)
        self.scale: float = _score_scale(function, scale, width)
        self.linear_pos: nn.Linear = nn.Linear(d_model, num_heads * width, bias=False)
        self.pos_bias_u: nn.Parameter = nn.Parameter(torch.zeros(num_heads, width))
        self.pos_bias_v: nn.Parameter = nn.Parameter(torch.zeros(num_heads, width))

    def reset_parameters(self) -> None:
        """Draw the linear layer; reset u and v to zeros."""
        reset_layers(self.linear_pos)
        for bias in (self.pos_bias_u, self.pos_bias_v):
            nn.init.zeros_(bias)

    def table(
        self,
        q_len: int,
        k_len: int | None = None,
        q_offset: int | None = None,
        dtype: torch.dtype | None = None,
        device: Device | None = None,
    ) -> Tensor:
        """Sinusoids of falling distances query - key, ``[q_len + k_len - 1, d_model]``.

        The first row is for the farthest key before a query, distance q_offset + q_len - 1; with
        ``causal``, the last is for distance 0. For ``[q_len, k_len, d_model]`` see `matrix`.
        q_offset may be omitted, and is then 0, if q_len and k_len are equal.
        """
        k_len = q_len if k_len is None else k_len
        q_offset = first_query("RelativePositionalEncoding.table", q_len, k_len, q_offset)
        device = device_of(self, device)
        distances = -relative_positions(q_len, k_len, q_offset=q_offset, device=device)
        if self.causal:
            distances = distances[: max(min(q_offset + q_len, distances.shape[0]), 0)]
        rows: Tensor = sinusoidal(
            distances, self.d_model, base=self.base, layout=self.layout,
            dtype=self.linear_pos.weight.dtype if dtype is None else dtype,
        )  # fmt: skip
        return rows

    def matrix(self, q_len: int, k_len: int | None = None, q_offset: int | None = None) -> Tensor:
        """The rows of `table` for every query and key, ``[q_len, k_len, d_model]``.

        It is large and meant for inspection: the scores do not need it.
        """
        k_len = q_len if k_len is None else k_len
        table = self.table(q_len, k_len, q_offset)
        entries = torch.arange(k_len, device=table.device) - torch.arange(
            q_len, device=table.device
        ).unsqueeze(1) + (q_len - 1)  # fmt: skip
        if self.causal:  # missing distances are zeros
            table = nn.functional.pad(table, (0, 0, 0, q_len + k_len - 1 - table.shape[0]))
        return table[entries]

    def forward(self, q: Tensor, k: Tensor, q_offset: int | None = None) -> Tensor:
        """Scaled scores, ``[..., H, q_len, k_len]``.

        q_offset: position of the first query among the keys; by default ``k_len - q_len``, if the
            keys begin with a memory or a cache.
        """
        bias_u, bias_v = (local_heads(self, x) for x in (self.pos_bias_u, self.pos_bias_v))
        heads, width = bias_u.shape
        _check_vectors("RelativePositionalEncoding", width, heads, q=q, k=k)
        q_len, k_len = q.shape[-2], k.shape[-2]
        q_offset = _first_query_position("RelativePositionalEncoding", q_offset, q_len, k_len)
        to_rows = local_network(self, self.linear_pos)
        rows = to_rows(self.table(q_len, k_len, q_offset, device=q.device))
        rows = rows.unflatten(-1, (heads, width)).movedim(0, -1)  # [H, head_dim, distances]
        content = _product(q + beside(q, bias_u[:, None]), k.mT)
        positions = _product(q + beside(q, bias_v[:, None]), rows)
        scores: Tensor = relative_gather(
            positions, None, k_len, content=content, scale=self.scale,
            out=_reusable(content, positions),
        )  # fmt: skip
        return _without_future(scores, q_offset) if self.causal else scores

    def _other_arguments(self) -> dict[str, Any]:
        heads, width = self.pos_bias_u.shape
        return {
            "num_heads": heads, "head_dim": None if heads * width == self.d_model else width,
            "scale": _scale_as_given(self.scale, width),
        }  # fmt: skip


class ShawRelativePosition(Described):
    """Learned vectors for clipped distances, added to keys and values.

    ``score_ij = q_i . (k_j + K[clip(j - i)]) * scale`` and
    ``out_i = sum p_ij (v_j + V[clip(j - i)])``, with tables K and V of ``left + right + 1`` rows
    that all heads share.

    Args:
        head_dim: width of a head.
        left: the largest distance before the query with a separate row.
        right: the largest distance after it; by default `left`.
        values: whether there is a table for the values.
        causal: True to include the causal mask: scores of keys after the query are -inf.
        scale: factor of the scores; by default 1 / sqrt(head_dim).

    Shape:
        q ``[..., H, q_len, head_dim]``, k and v ``[..., H, k_len, head_dim]``.

    Raises:
        ValueError, TypeError: as in `posenc_native.relative_gather`.

    Source: Shaw et al. 2018, "Self-Attention with Relative Position Representations".

    Example:
        >>> import torch
        >>> from posenc_native import nn as pnn
        >>> shaw = pnn.ShawRelativePosition(16, left=4)
        >>> q, k, v = (torch.randn(1, 2, 7, 16) for _ in range(3))
        >>> probabilities = torch.softmax(shaw(q, k), -1)
        >>> shaw.attend(probabilities, v).shape
        torch.Size([1, 2, 7, 16])
    """

    head_axes: ClassVar[dict[str, int | None]] = {"key_table": None, "value_table": None}

    def __init__(
        self,
        head_dim: int,
        left: int,
        right: int | None = None,
        *,
        values: bool = True,
        causal: bool = False,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        function = "ShawRelativePosition"
        self.causal: bool = flag(function, "causal", causal)
        self.left: int = arguments.size(function, "left", left)
        self.right: int = self.left if right is None else arguments.size(function, "right", right)
        head_dim = positive_size(function, "head_dim", head_dim)
        self.scale: float = _score_scale(function, scale, head_dim)
        shape = (self.left + self.right + 1, head_dim)
        self.key_table: nn.Parameter = nn.Parameter(torch.empty(shape))
        self.value_table: nn.Parameter | None = nn.Parameter(torch.empty(shape)) if values else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the tables with Xavier's uniform initialization."""
        for table in self.parameters():
            values = torch.empty(table.shape, device=table.device)
            initialize(table, nn.init.xavier_uniform_(values))

    def forward(self, q: Tensor, k: Tensor, q_offset: int | None = None) -> Tensor:
        """Scaled scores, ``[..., H, q_len, k_len]``.

        q_offset: position of the first query among the keys; by default ``k_len - q_len``.
        """
        _check_vectors("ShawRelativePosition", self.key_table.shape[1], None, q=q, k=k)
        q_len, k_len = q.shape[-2], k.shape[-2]
        q_offset = _first_query_position("ShawRelativePosition", q_offset, q_len, k_len)
        index = clipped_index(
            q_len, k_len, self.left, self.right, q_offset=q_offset, device=q.device
        )
        content, positions = _product(q, k.mT), _product(q, local_heads(self, self.key_table).mT)
        scores: Tensor = relative_gather(
            positions, index, k_len, content=content, scale=self.scale,
            out=_reusable(content, positions),
        )  # fmt: skip
        return _without_future(scores, q_offset) if self.causal else scores

    def attend(self, probabilities: Tensor, v: Tensor, q_offset: int | None = None) -> Tensor:
        """The weighted sum of values and table rows, ``[..., H, q_len, head_dim]``."""
        out: Tensor = _product(probabilities, v)
        if self.value_table is None:
            return out
        q_len, k_len = probabilities.shape[-2:]
        q_offset = _first_query_position("ShawRelativePosition", q_offset, q_len, k_len)
        index = clipped_index(
            q_len, k_len, self.left, self.right, q_offset=q_offset, device=v.device
        )
        columns: Tensor = relative_scatter(probabilities, index, self.value_table.shape[0])
        return out + _product(columns, local_heads(self, self.value_table))  # type: ignore[no-any-return]

    def _other_arguments(self) -> dict[str, Any]:
        width = self.key_table.shape[1]
        return {
            "head_dim": width, "right": None if self.right == self.left else self.right,
            "values": self.value_table is not None, "scale": _scale_as_given(self.scale, width),
        }  # fmt: skip


class DecomposedRelativePosition(Described):
    """Learned vectors for the distances along each axis of an image: Segment Anything, MViT v2.

    ``scores = q . k * scale + q . Rh[y - ky] + q . Rw[x - kx]``, with a table for each axis, which
    all heads share. Keys may be pooled, and sizes may differ from call to call; see
    `posenc_native.relative.decomposed_scores` for the row of each distance, and
    for tables that are then resampled.

    Args:
        head_dim: width of a head.
        size: (rows, columns) of the queries, or (frames, rows, columns); one number for both of an
            image.
        k_size: of the keys, if they are pooled; by default `size`.
        class_token: MViT's token 0 before the patches, to which no position belongs.
        scale: factor of ``q . k``; by default 1 / sqrt(head_dim).

    Attributes:
        rel_pos_h, rel_pos_w: parameters ``[2 n - 1, head_dim]``, n the larger of the sizes of
            queries and keys; for three axes also ``rel_pos_t``. They have the same names and
            shapes in the checkpoints of Segment Anything and MViT v2.

    Shape:
        q ``[..., H, q_len, head_dim]``, k ``[..., H, k_len, head_dim]``; the result is
        ``[..., H, q_len, k_len]``. Lengths include the class token.

    Raises:
        ValueError, TypeError: as in `decomposed_scores`.

    Source: Li et al. 2022, "MViTv2", section 4.1; Kirillov et al. 2023, "Segment Anything".

    Example:
        >>> import torch
        >>> from posenc_native.nn import DecomposedRelativePosition
        >>> relative = DecomposedRelativePosition(16, 14, k_size=7)
        >>> q, k = torch.randn(1, 4, 196, 16), torch.randn(1, 4, 49, 16)
        >>> relative(q, k).shape
        torch.Size([1, 4, 196, 49])
        >>> relative.bias(q).shape  # the term alone, as an attn_mask
        torch.Size([1, 4, 196, 49])
    """

    head_axes: ClassVar[dict[str, int | None]] = {
        "rel_pos_t": None, "rel_pos_h": None, "rel_pos_w": None,
    }  # fmt: skip

    def __init__(
        self,
        head_dim: int,
        size: int | tuple[int, ...],
        *,
        k_size: int | tuple[int, ...] | None = None,
        class_token: bool = False,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        function = "DecomposedRelativePosition"
        self.head_dim: int = positive_size(function, "head_dim", head_dim)
        self.size: tuple[int, ...] = _grid_sizes(function, "size", size)
        self.k_size: tuple[int, ...] = self.size
        if k_size is not None:
            self.k_size = _grid_sizes(function, "k_size", k_size)
        if len(self.k_size) != len(self.size):
            expected = f"{len(self.size)} sizes, as in size"
            arguments.wrong_value(function, "k_size", expected, len(self.k_size))
        self.class_token: bool = flag(function, "class_token", class_token)
        self.scale: float = _score_scale(function, scale, self.head_dim)
        self.rel_pos_t: nn.Parameter | None = None
        pairs = zip(_AXES[-len(self.size) :], self.size, self.k_size, strict=True)
        for axis, q_len, k_len in pairs:
            rows = 2 * max(q_len, k_len) - 1
            setattr(self, f"rel_pos_{axis}", nn.Parameter(torch.empty(rows, self.head_dim)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the tables normally with standard deviation 0.02, as in MViT's code."""
        for table in self.parameters():
            values = torch.empty(table.shape, device=table.device)
            initialize(table, nn.init.trunc_normal_(values, std=0.02))

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        size: tuple[int, ...] | None = None,
        k_size: tuple[int, ...] | None = None,
    ) -> Tensor:
        """Scores with the scale and the term, ``[..., H, q_len, k_len]``.

        size, k_size: of this call, if they are not the module's; k_size is then `size` by default.
        """
        _check_vectors("DecomposedRelativePosition", self.head_dim, None, q=q, k=k)
        content = _product(q * self.scale, k.mT)
        return self._added(q, size, k_size, content)

    def bias(
        self, q: Tensor, size: tuple[int, ...] | None = None, k_size: tuple[int, ...] | None = None
    ) -> Tensor:
        """The term alone, ``[..., H, q_len, k_len]``: for an attn_mask of fused attention."""
        _check_vectors("DecomposedRelativePosition.bias", self.head_dim, None, q=q)
        return self._added(q, size, k_size, None)

    def _added(
        self,
        q: Tensor,
        size: tuple[int, ...] | None,
        k_size: tuple[int, ...] | None,
        content: Tensor | None,
    ) -> Tensor:
        if size is None:
            size, k_size = self.size, self.k_size if k_size is None else k_size
        names = [f"rel_pos_{axis}" for axis in _AXES[-len(self.size) :]]
        tables = tuple(local_heads(self, getattr(self, name)) for name in names)
        inplace = content is not None and _reusable(content, *tables) is not None
        scores: Tensor = decomposed_scores(
            q, tables, size, k_size, content=content, prefix=int(self.class_token),
            inplace=inplace,
        )  # fmt: skip
        return scores

    def _other_arguments(self) -> dict[str, Any]:
        return {
            "k_size": None if self.k_size == self.size else self.k_size,
            "scale": _scale_as_given(self.scale, self.head_dim),
        }


def _grid_sizes(function: str, argument: str, size: int | tuple[int, ...]) -> tuple[int, ...]:
    sizes = tuple(size) if isinstance(size, (tuple, list)) else (size, size)
    if len(sizes) not in (2, 3):
        expected = "an int, (rows, columns) or (frames, rows, columns)"
        arguments.wrong_value(function, argument, expected, size)
    return tuple(positive_size(function, argument, one) for one in sizes)


@of_wholes
def gate_of_queries(x: Tensor, const: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """WavLM's gate ``[..., H, q_len, 1]`` of states ``[..., q_len, H * gate_dim]``.

    const: ``[1, H, 1, 1]``; weight ``[8, gate_dim]`` and bias ``[8]`` are summed in groups of 4.
    """
    of_heads = x.unflatten(-1, (const.shape[1], weight.shape[1])).transpose(-2, -3)
    numbers = nn.functional.linear(of_heads, weight, bias).unflatten(-1, (2, 4))
    a, b = numbers.sum(-1).sigmoid().chunk(2, -1)
    gate: Tensor = a * (b * const[0] - 1) + 2
    return gate


def _reusable(content: Tensor, *added: Tensor) -> Tensor | None:
    """The content scores, for the sum to overwrite, if autograd needs no derivative of it."""
    return None if needs_grad(content, *added) or tracing() else content


def _without_future(scores: Tensor, q_offset: int) -> Tensor:
    """Scores ``[..., q_len, k_len]`` with -inf for later keys, in place if possible."""
    q_len, k_len = scores.shape[-2:]
    entries = (*scores.shape[-3:-2], max(q_len + k_len - 1, 0))
    masked: Tensor = add_toeplitz_bias(
        scores, torch.zeros(entries, device=scores.device), q_offset=q_offset,
        origin=q_len - 1 + q_offset, causal=True, out=_reusable(scores, scores),
    )  # fmt: skip
    return masked


def _score_scale(function: str, scale: float | None, head_dim: int) -> float:
    if scale is None:
        return 1 / math.sqrt(head_dim)
    return arguments.finite_number(function, "scale", scale)


def _scale_as_given(scale: float, head_dim: int) -> float | None:
    """The argument for this scale: None for the default."""
    return None if scale == _score_scale("", None, head_dim) else scale


def _first_query_position(function: str, q_offset: int | None, q_len: int, k_len: int) -> int:
    """Position of the first query; by default the queries align with the last keys."""
    return k_len - q_len if q_offset is None else signed_integer(function, "q_offset", q_offset)


def _check_vectors(function: str, width: int, heads: int | None, **tensors: Tensor) -> None:
    """ValueError unless the tensors are [..., H, seq, head_dim]."""
    for name, tensor in tensors.items():
        if (
            tensor.ndim < 2 + (heads is not None)
            or tensor.shape[-1] != width
            or (heads is not None and tensor.shape[-3] != heads)
        ):
            axis = "" if heads is None else f"H = {heads}, "
            expected = f"shape [..., {axis}seq, head_dim = {width}]"
            arguments.wrong_value(function, name, expected, list(tensor.shape))
