"""Modules of relative encodings: biases of attention scores and terms of their content."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from posenc_native.base import arguments
from posenc_native.base.calls import call_arguments
from posenc_native.engines.tensors.following import tracing
from posenc_native.relative.alibi import alibi_diagonals, alibi_slopes
from posenc_native.relative.bias import add_toeplitz_bias, toeplitz_bias
from posenc_native.relative.columns import clipped_index
from posenc_native.relative.distances import relative_positions
from posenc_native.relative.entries import _signed
from posenc_native.relative.kernels import fire_bias, kerple_diagonals, sandwich_diagonals
from posenc_native.relative.lookup import relative_gather, relative_scatter
from posenc_native.relative.tables import clipped_diagonals, t5_diagonals
from posenc_native.relative.windows import swin_diagonals, swin_v2_coordinates
from posenc_native.sinusoids.tables import sinusoidal


class ToeplitzBias(nn.Module):
    """A bias that depends on key - query alone; what ALiBi, T5 and the like have in common.

    A subclass says what the distances are worth: `diagonals`. Calling the module adds the bias to
    scores, without making it; `bias` makes it.

    Shape:
        scores ``[..., H, q_len, k_len]``; q_offset, the position of the first query, an int or
        integers for the first axis of the scores (decoding with a cache).

    To make the diagonals takes longer than to add them in one step of decoding. Layers that share
    a bias, as T5's do, can share them: ``module(scores, diagonals=module.diagonals(...))``.
    """

    def diagonals(
        self, q_len: int, k_len: int, q_offset: int | Tensor = 0, device: Any = None
    ) -> Tensor:
        """``[H, q_len + k_len - 1]``, or ``[B, H, ...]`` for q_offset ``[B]``."""
        raise NotImplementedError

    def forward(
        self,
        scores: Tensor,
        q_offset: int | Tensor = 0,
        inplace: bool = False,
        *,
        diagonals: Tensor | None = None,
    ) -> Tensor:
        """Scores with the bias added; written over them if `inplace`.

        diagonals: those of `diagonals`, for scores of these lengths, where they are there already;
            they have the q_offset in them.
        """
        if scores.ndim < 3:
            expected = "shape [..., H, q_len, k_len]"
            arguments.wrong_value(type(self).__name__, "scores", expected, list(scores.shape))
        q_len, k_len = scores.shape[-2:]
        if diagonals is None:
            diagonals = self.diagonals(q_len, k_len, q_offset, scores.device)
        if diagonals.ndim == 3:  # of q_offset [B]: the first axis, whatever lies between
            diagonals = diagonals.unflatten(0, (-1, *(1,) * (scores.ndim - 4)))
        out = scores if inplace else None
        sum_: Tensor = add_toeplitz_bias(scores, diagonals, out=out)
        return sum_

    def bias(
        self,
        q_len: int,
        k_len: int,
        q_offset: int | Tensor = 0,
        dtype: torch.dtype | None = None,
        device: Any = None,
    ) -> Tensor:
        """The bias itself, ``[..., H, q_len, k_len]``, as an attn_mask for example.

        device: for modules without parameters; of others the result is where these are.
        """
        diagonals = self.diagonals(q_len, k_len, q_offset, device)
        laid: Tensor = toeplitz_bias(diagonals, q_len, k_len, dtype=dtype)
        return laid


class ALiBi(ToeplitzBias):
    """Attention with linear biases: ``-slope * |distance|``.

    Args:
        num_heads: H.
        symmetric: False for ``slope * (key - query)``, the causal form, which rises over future
            keys and wants a causal mask.
        learned: the slopes are parameters.

    Raises:
        ValueError, TypeError: as in `posenc_native.add_toeplitz_bias`.

    Source: Press et al. 2022, "Train Short, Test Long".

    Example:
        >>> import torch
        >>> from posenc_native import nn as pnn
        >>> pnn.ALiBi(8)(torch.zeros(1, 8, 1, 4), q_offset=3)[0, 0]
        tensor([[-1.5000, -1.0000, -0.5000,  0.0000]])
    """

    def __init__(self, num_heads: int, *, symmetric: bool = True, learned: bool = False) -> None:
        super().__init__()
        slopes = alibi_slopes(num_heads)
        self.num_heads = len(slopes)
        self.symmetric = symmetric
        self.slopes = nn.Parameter(torch.tensor(slopes, dtype=torch.float32)) if learned else None
        self.diagonals(1, 1)  # a symmetric that is no bool shows here

    def diagonals(
        self, q_len: int, k_len: int, q_offset: int | Tensor = 0, device: Any = None
    ) -> Tensor:
        """``[H, q_len + k_len - 1]``, or ``[B, H, ...]`` for q_offset ``[B]``."""
        values: Tensor = alibi_diagonals(
            self.num_heads, q_len, k_len, symmetric=self.symmetric, q_offset=q_offset,
            slopes=self.slopes, device=_device(self, device),
        )  # fmt: skip
        return values

    def extra_repr(self) -> str:
        """The call, for print(model)."""
        return call_arguments(
            type(self), num_heads=self.num_heads, symmetric=self.symmetric,
            learned=self.slopes is not None,
        )  # fmt: skip


class Kerple(ToeplitzBias):
    """Kernelised bias with two learned numbers a head: ``-r1 * log(1 + r2 * d)`` of the distance d
    to earlier keys, or with kind "power" ``-r1 * d ** r2``.

    Args:
        num_heads: H.
        kind: "log" or "power".

    Raises:
        ValueError, TypeError: as in `posenc_native.kerple_diagonals`.

    Source: Chi et al. 2022, "KERPLE"; parameters drawn and bounded as in its code.

    Example:
        >>> import torch
        >>> from posenc_native import nn as pnn
        >>> pnn.Kerple(4)(torch.zeros(2, 4, 8, 8)).shape
        torch.Size([2, 4, 8, 8])
    """

    def __init__(self, num_heads: int, *, kind: str = "log") -> None:
        super().__init__()
        if kind not in ("log", "power"):
            arguments.wrong_value("Kerple", "kind", "'log' or 'power'", repr(kind))
        self.kind = kind
        num_heads = arguments.size("Kerple", "num_heads", num_heads)
        self.r1 = nn.Parameter(torch.rand(num_heads) * 2)
        self.r2 = nn.Parameter(torch.rand(num_heads) * (1 if kind == "log" else 2))

    def diagonals(
        self, q_len: int, k_len: int, q_offset: int | Tensor = 0, device: Any = None
    ) -> Tensor:
        """``[H, q_len + k_len - 1]``, or ``[B, H, ...]`` for q_offset ``[B]``."""
        r1 = self.r1.clamp(min=0.01)
        r2 = self.r2.clamp(min=0.01, max=None if self.kind == "log" else 2.0)
        values: Tensor = kerple_diagonals(r1, r2, q_len, k_len, kind=self.kind, q_offset=q_offset)
        return values

    def extra_repr(self) -> str:
        """The call, for print(model)."""
        return call_arguments(type(self), num_heads=self.r1.shape[0], kind=self.kind)


class Sandwich(ToeplitzBias):
    """Inner products of sinusoidal encodings as a bias, per head scaled down.

    Args:
        num_heads: H.
        dim, base: of the sinusoidal encoding.

    Source: Chi et al. 2023, "Dissecting Transformer Length Extrapolation via the Lens of Receptive
    Field Analysis".

    Example:
        >>> import torch
        >>> from posenc_native import nn as pnn
        >>> pnn.Sandwich(4)(torch.zeros(2, 4, 8, 8)).shape
        torch.Size([2, 4, 8, 8])
    """

    def __init__(self, num_heads: int, *, dim: int = 128, base: float = 10000.0) -> None:
        super().__init__()
        self.num_heads = arguments.size("Sandwich", "num_heads", num_heads)
        self.dim = arguments.even_size("Sandwich", "dim", dim)
        self.base = arguments.positive_number("Sandwich", "base", base)

    def diagonals(
        self, q_len: int, k_len: int, q_offset: int | Tensor = 0, device: Any = None
    ) -> Tensor:
        """``[H, q_len + k_len - 1]``, or ``[B, H, ...]`` for q_offset ``[B]``."""
        values: Tensor = sandwich_diagonals(
            self.num_heads, q_len, k_len, dim=self.dim, base=self.base, q_offset=q_offset,
            device=_device(self, device),
        )  # fmt: skip
        return values

    def extra_repr(self) -> str:
        """The call, for print(model)."""
        return call_arguments(type(self), num_heads=self.num_heads, dim=self.dim, base=self.base)


class T5RelativeBias(ToeplitzBias):
    """T5's learned bias of distance buckets.

    Args:
        num_heads: H.
        num_buckets: rows of the table.
        max_distance: from here on distances share a bucket.
        bidirectional: True in encoders; False in decoders, where future keys share bucket 0.

    The parameter ``weight`` ``[num_buckets, H]`` is ``relative_attention_bias.weight`` of
    transformers' models.

    Raises:
        ValueError, TypeError: as in `posenc_native.t5_diagonals`.

    Source: Raffel et al. 2020, "Exploring the Limits of Transfer Learning".

    Example:
        >>> import torch
        >>> from posenc_native import nn as pnn
        >>> pnn.T5RelativeBias(4)(torch.zeros(2, 4, 8, 8)).shape
        torch.Size([2, 4, 8, 8])
    """

    def __init__(
        self,
        num_heads: int,
        num_buckets: int = 32,
        max_distance: int = 128,
        bidirectional: bool = True,
    ) -> None:
        super().__init__()
        self.max_distance, self.bidirectional = max_distance, bidirectional
        num_heads = arguments.size("T5RelativeBias", "num_heads", num_heads)
        num_buckets = arguments.size("T5RelativeBias", "num_buckets", num_buckets)
        self.weight = nn.Parameter(torch.randn(num_buckets, num_heads) * 0.02)
        self.diagonals(1, 1)  # an impossible configuration shows here

    def diagonals(
        self, q_len: int, k_len: int, q_offset: int | Tensor = 0, device: Any = None
    ) -> Tensor:
        """``[H, q_len + k_len - 1]``, or ``[B, H, ...]`` for q_offset ``[B]``."""
        values: Tensor = t5_diagonals(
            self.weight, q_len, k_len, bidirectional=self.bidirectional,
            max_distance=self.max_distance, q_offset=q_offset,
        )  # fmt: skip
        return values

    def extra_repr(self) -> str:
        """The call, for print(model)."""
        buckets, heads = self.weight.shape
        return call_arguments(
            type(self), num_heads=heads, num_buckets=buckets, max_distance=self.max_distance,
            bidirectional=self.bidirectional,
        )  # fmt: skip


class ClippedRelativeBias(ToeplitzBias):
    """A learned number for each distance up to a limit, the farther ones sharing the last.

    Args:
        num_heads: H.
        left: the farthest key before the query with a number of its own.
        right: the farthest after it; by default `left`.

    Example:
        >>> import torch
        >>> from posenc_native import nn as pnn
        >>> pnn.ClippedRelativeBias(4, 16)(torch.zeros(2, 4, 8, 8)).shape
        torch.Size([2, 4, 8, 8])
    """

    def __init__(self, num_heads: int, left: int, right: int | None = None) -> None:
        super().__init__()
        num_heads = arguments.size("ClippedRelativeBias", "num_heads", num_heads)
        self.left = arguments.size("ClippedRelativeBias", "left", left)
        right = self.left if right is None else right
        width = self.left + arguments.size("ClippedRelativeBias", "right", right) + 1
        self.weight = nn.Parameter(torch.randn(width, num_heads) * 0.02)

    def diagonals(
        self, q_len: int, k_len: int, q_offset: int | Tensor = 0, device: Any = None
    ) -> Tensor:
        """``[H, q_len + k_len - 1]``, or ``[B, H, ...]`` for q_offset ``[B]``."""
        values: Tensor = clipped_diagonals(
            self.weight, q_len, k_len, left=self.left, q_offset=q_offset
        )
        return values

    def extra_repr(self) -> str:
        """The call, for print(model)."""
        width, heads = self.weight.shape
        right = width - 1 - self.left
        return call_arguments(
            type(self), num_heads=heads, left=self.left, right=None if right == self.left else right
        )


class FIRE(nn.Module):
    """A small network of the distance relative to the position of the query.

    Every row has its own divisor, so that this bias is a matrix, made in each call.

    Args:
        num_heads: H.
        hidden: width of the network.
        c: first value of the learned factor of distances.
        threshold: positions up to here are divided alike; a learned factor scales it.

    Shape:
        scores ``[..., H, q_len, k_len]``; q_offset as in `ToeplitzBias`.

    Raises:
        ValueError, TypeError: as in `posenc_native.fire_bias`.

    Source: Li et al. 2024, "Functional Interpolation for Relative Positions Improves Long Context
    Transformers".

    Example:
        >>> import torch
        >>> from posenc_native import nn as pnn
        >>> pnn.FIRE(4)(torch.zeros(2, 4, 8, 8)).shape
        torch.Size([2, 4, 8, 8])
    """

    def __init__(
        self, num_heads: int, *, hidden: int = 32, c: float = 0.1, threshold: float = 512.0
    ) -> None:
        super().__init__()
        num_heads = arguments.size("FIRE", "num_heads", num_heads)
        hidden = _positive("FIRE", "hidden", hidden)
        self.threshold = arguments.positive_number("FIRE", "threshold", threshold)
        self.network = nn.Sequential(nn.Linear(1, hidden), nn.ReLU(), nn.Linear(hidden, num_heads))
        self.c = nn.Parameter(torch.tensor(arguments.positive_number("FIRE", "c", c)))
        self.threshold_scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, scores: Tensor, q_offset: int | Tensor = 0) -> Tensor:
        """Scores with the bias added."""
        if scores.ndim < 3:
            expected = "shape [..., H, q_len, k_len]"
            arguments.wrong_value("FIRE", "scores", expected, list(scores.shape))
        return _sum("FIRE", scores, self.bias(scores.shape[-2], scores.shape[-1], q_offset))

    def bias(
        self,
        q_len: int,
        k_len: int,
        q_offset: int | Tensor = 0,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """The bias itself, ``[H, q_len, k_len]``, or ``[B, H, ...]`` for q_offset ``[B]``."""
        values: Tensor = fire_bias(
            q_len, k_len, self.network, c=self.c, threshold=self.threshold * self.threshold_scale,
            q_offset=q_offset,
        )  # fmt: skip
        return values if dtype is None else values.to(dtype)

    def extra_repr(self) -> str:
        """The call, for print(model)."""
        first, _, last = self.network
        return call_arguments(
            type(self), num_heads=last.out_features, hidden=first.out_features,
            threshold=self.threshold,
        )  # fmt: skip


class SwinRelativeBias(nn.Module):
    """Swin's learned bias between the patches of a window; with a class token, BEiT's.

    Args:
        num_heads: H.
        window: (rows, columns) of patches, or one number for both.
        class_token: BEiT's token 0 before the patches, with three more rows in the table: from the
            class token, to it, and from it to itself.

    The parameter ``relative_position_bias_table`` is that of Swin's and BEiT's checkpoints.

    Shape:
        scores ``[..., H, N, N]`` for the N patches (and the class token) of a window.

    Raises:
        ValueError, TypeError: as in `posenc_native.add_toeplitz_bias`.

    Source: Liu et al. 2021, "Swin Transformer"; Bao et al. 2022, "BEiT".

    Example:
        >>> import torch
        >>> from posenc_native import nn as pnn
        >>> pnn.SwinRelativeBias(4, (7, 7))(torch.zeros(2, 4, 49, 49)).shape
        torch.Size([2, 4, 49, 49])
    """

    def __init__(
        self, num_heads: int, window: int | tuple[int, int], *, class_token: bool = False
    ) -> None:
        super().__init__()
        num_heads = arguments.size("SwinRelativeBias", "num_heads", num_heads)
        self.window = _window("SwinRelativeBias", window)
        self.class_token = class_token
        rows = math.prod(2 * size - 1 for size in self.window) + 3 * class_token
        self.relative_position_bias_table = nn.Parameter(torch.zeros(rows, num_heads))
        nn.init.trunc_normal_(self.relative_position_bias_table, std=0.02)

    def diagonals(self) -> Tensor:
        """``[H, 2 * rows - 1, 2 * columns - 1]``, of the patches."""
        table = self.relative_position_bias_table
        patches: Tensor = swin_diagonals(table[:-3] if self.class_token else table, self.window)
        return patches

    def forward(self, scores: Tensor, inplace: bool = False) -> Tensor:
        """Scores with the bias added; written over them if `inplace`."""
        if self.class_token:
            return _sum("SwinRelativeBias", scores, self.bias(), inplace)
        sum_: Tensor = add_toeplitz_bias(
            scores, self.diagonals(), q_len=self.window, k_len=self.window,
            out=scores if inplace else None,
        )  # fmt: skip
        return sum_

    def bias(self, dtype: torch.dtype | None = None) -> Tensor:
        """The bias itself, ``[H, N, N]``."""
        patches: Tensor = toeplitz_bias(self.diagonals(), self.window, self.window, dtype=dtype)
        if not self.class_token:
            return patches
        #   itself | from the class token
        #   -------+---------------------
        #   to it  | patches
        count = patches.shape[-1]
        rows = self.relative_position_bias_table[-3:].to(patches.dtype)[:, :, None, None]
        from_class, to_class, itself = rows.unbind()
        first = torch.cat([itself, from_class.expand(-1, 1, count)], -1)
        others = torch.cat([to_class.expand(-1, count, 1), patches], -1)
        return torch.cat([first, others], -2)

    def extra_repr(self) -> str:
        """The call, for print(model)."""
        heads = self.relative_position_bias_table.shape[1]
        return call_arguments(
            type(self), num_heads=heads, window=self.window, class_token=self.class_token
        )


class SwinV2RelativeBias(nn.Module):
    """Swin v2's continuous bias: a small network of log-spaced distances, 0 to 16.

    Args:
        num_heads: H.
        window: (rows, columns) of patches, or one number for both.
        pretrained_window: the window that the network was trained with, if another; 0 for the same.
        hidden: width of the network.

    The network is ``continuous_position_bias_mlp``, as in transformers' checkpoints.

    Shape:
        scores ``[..., H, N, N]`` for the N patches of a window.

    Source: Liu et al. 2022, "Swin Transformer V2".

    Example:
        >>> import torch
        >>> from posenc_native import nn as pnn
        >>> pnn.SwinV2RelativeBias(4, 8)(torch.zeros(2, 4, 64, 64)).shape
        torch.Size([2, 4, 64, 64])
    """

    def __init__(
        self,
        num_heads: int,
        window: int | tuple[int, int],
        *,
        pretrained_window: int | tuple[int, int] | None = None,
        hidden: int = 512,
    ) -> None:
        super().__init__()
        function = "SwinV2RelativeBias"
        self.window = self.pretrained_window = _window(function, window)
        if pretrained_window is not None:
            self.pretrained_window = _window(function, pretrained_window, "pretrained_window", 0)
        num_heads = arguments.size(function, "num_heads", num_heads)
        hidden = _positive(function, "hidden", hidden)
        self.continuous_position_bias_mlp = nn.Sequential(
            nn.Linear(len(self.window), hidden),
            nn.ReLU(inplace=True),
            nn.Linear(hidden, num_heads, bias=False),
        )
        swin_v2_coordinates(
            self.window, self.pretrained_window
        )  # windows that do not fit show here

    def diagonals(self) -> Tensor:
        """``[H, 2 * rows - 1, 2 * columns - 1]``."""
        weight = self.continuous_position_bias_mlp[0].weight
        coordinates = swin_v2_coordinates(
            self.window, self.pretrained_window, dtype=weight.dtype, device=weight.device
        )
        table = self.continuous_position_bias_mlp(coordinates).flatten(0, -2)
        diagonals: Tensor = swin_diagonals(16 * torch.sigmoid(table), self.window)
        return diagonals

    def forward(self, scores: Tensor, inplace: bool = False) -> Tensor:
        """Scores with the bias added; written over them if `inplace`."""
        sum_: Tensor = add_toeplitz_bias(
            scores, self.diagonals(), q_len=self.window, k_len=self.window,
            out=scores if inplace else None,
        )  # fmt: skip
        return sum_

    def bias(self, dtype: torch.dtype | None = None) -> Tensor:
        """The bias itself, ``[H, N, N]``."""
        laid: Tensor = toeplitz_bias(self.diagonals(), self.window, self.window, dtype=dtype)
        return laid

    def extra_repr(self) -> str:
        """The call, for print(model)."""
        first, _, last = self.continuous_position_bias_mlp
        same = self.pretrained_window == self.window
        return call_arguments(
            type(self), num_heads=last.out_features, window=self.window,
            pretrained_window=None if same else self.pretrained_window, hidden=first.out_features,
        )  # fmt: skip


class RelativePositionalEncoding(nn.Module):
    """Scores of Transformer-XL and the Conformer: content, and sinusoids of distances.

    ``((q_i + u) . k_j + (q_i + v) . W r_(i - j)) * scale``, where r is the sinusoidal table of
    distances and u, v, W are learned. No ``[q_len, k_len, d]`` is made, and no distance wraps round
    into the upper triangle.

    Args:
        d_model: width of the table of distances, even.
        num_heads: H.
        head_dim: by default d_model / num_heads.
        causal: only keys up to the query get a position score (half the work); the others none, to
            be masked. As in Transformer-XL; False is the Conformer.
        layout, base: of the sinusoids, as in `posenc_native.sinusoidal`: "sin_cos" in
            Transformer-XL, "interleaved" in ESPnet's and NeMo's Conformer.
        scale: of the sum; by default 1 / sqrt(head_dim).

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

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        head_dim: int | None = None,
        *,
        causal: bool = False,
        layout: str = "sin_cos",
        base: float = 10000.0,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        function = "RelativePositionalEncoding"
        arguments.check_sinusoidal_layout(function, layout)
        self.d_model = arguments.even_size(function, "d_model", d_model)
        num_heads = _positive(function, "num_heads", num_heads)
        if head_dim is None and d_model % num_heads:
            expected = f"a multiple of num_heads = {num_heads}"
            arguments.wrong_value(function, "d_model", expected, d_model)
        head_dim = d_model // num_heads if head_dim is None else head_dim
        width = _positive(function, "head_dim", head_dim)
        self.causal, self.layout = causal, layout
        self.base = arguments.positive_number(function, "base", base)
        self.scale = _scale(function, scale, width)
        self.linear_pos = nn.Linear(d_model, num_heads * width, bias=False)
        self.pos_bias_u = nn.Parameter(torch.zeros(num_heads, width))
        self.pos_bias_v = nn.Parameter(torch.zeros(num_heads, width))

    def table(
        self,
        q_len: int,
        k_len: int | None = None,
        q_offset: int = 0,
        dtype: torch.dtype | None = None,
        device: Any = None,
    ) -> Tensor:
        """Sinusoids of the distances query - key, ``[q_len + k_len - 1, d_model]``, falling.

        The first row is the farthest key before a query, distance q_offset + q_len - 1; where
        ``causal``, the last is distance 0. For ``[q_len, k_len, d_model]`` see `matrix`.
        """
        k_len = q_len if k_len is None else k_len
        device = _device(self, device)
        distances = -relative_positions(q_len, k_len, q_offset=q_offset, device=device)
        if self.causal:
            distances = distances[: max(min(q_offset + q_len, distances.shape[0]), 0)]
        rows: Tensor = sinusoidal(
            distances, self.d_model, base=self.base, layout=self.layout,
            dtype=self.linear_pos.weight.dtype if dtype is None else dtype,
        )  # fmt: skip
        return rows

    def matrix(self, q_len: int, k_len: int | None = None, q_offset: int = 0) -> Tensor:
        """The rows of `table` for every query and key, ``[q_len, k_len, d_model]``.

        Large, and for looking at: the scores do not need it.
        """
        k_len = q_len if k_len is None else k_len
        table = self.table(q_len, k_len, q_offset)
        entries = torch.arange(k_len, device=table.device) - torch.arange(
            q_len, device=table.device
        ).unsqueeze(1) + (q_len - 1)  # fmt: skip
        if self.causal:  # distances that are not there are zeros
            table = nn.functional.pad(table, (0, 0, 0, q_len + k_len - 1 - table.shape[0]))
        return table[entries]

    def forward(self, q: Tensor, k: Tensor, q_offset: int | None = None) -> Tensor:
        """Scaled scores, ``[..., H, q_len, k_len]``.

        q_offset: position of the first query among the keys; by default ``k_len - q_len``, for
            keys that begin with a memory or a cache.
        """
        heads, width = self.pos_bias_u.shape
        _check_vectors("RelativePositionalEncoding", width, heads, q=q, k=k)
        q_len, k_len = q.shape[-2], k.shape[-2]
        q_offset = _first_query("RelativePositionalEncoding", q_offset, q_len, k_len)
        rows = self.linear_pos(self.table(q_len, k_len, q_offset, device=q.device))
        rows = rows.unflatten(-1, (heads, width)).movedim(0, -1)  # [H, head_dim, distances]
        content = (q + self.pos_bias_u[:, None]) @ k.mT
        positions = (q + self.pos_bias_v[:, None]) @ rows
        scores: Tensor = relative_gather(
            positions,
            None,
            k_len,
            content=content,
            scale=self.scale,
            out=_reusable(content, positions),
        )
        return scores

    def extra_repr(self) -> str:
        """The call, for print(model)."""
        heads, width = self.pos_bias_u.shape
        return call_arguments(
            type(self), d_model=self.d_model, num_heads=heads,
            head_dim=None if heads * width == self.d_model else width, causal=self.causal,
            layout=self.layout, base=self.base, scale=_shown_scale(self.scale, width),
        )  # fmt: skip


class ShawRelativePosition(nn.Module):
    """Learned vectors for clipped distances, added to keys and values.

    ``score_ij = q_i . (k_j + K[clip(j - i)]) * scale`` and
    ``out_i = sum p_ij (v_j + V[clip(j - i)])``, with tables K and V of ``left + right + 1`` rows
    that all heads share.

    Args:
        head_dim: width of a head.
        left: the farthest key before the query with a row of its own.
        right: the farthest after it; by default `left`.
        values: whether there is a table for the values.
        scale: of the scores; by default 1 / sqrt(head_dim).

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

    def __init__(
        self,
        head_dim: int,
        left: int,
        right: int | None = None,
        *,
        values: bool = True,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        function = "ShawRelativePosition"
        self.left = arguments.size(function, "left", left)
        self.right = self.left if right is None else arguments.size(function, "right", right)
        head_dim = _positive(function, "head_dim", head_dim)
        self.scale = _scale(function, scale, head_dim)
        shape = (self.left + self.right + 1, head_dim)
        self.key_table = nn.Parameter(torch.empty(shape))
        self.value_table = nn.Parameter(torch.empty(shape)) if values else None
        for table in self.parameters():
            nn.init.xavier_uniform_(table)

    def _index(self, q_len: int, k_len: int, q_offset: int | None, device: torch.device) -> Tensor:
        offset = _first_query("ShawRelativePosition", q_offset, q_len, k_len)
        index: Tensor = clipped_index(
            q_len, k_len, self.left, self.right, q_offset=offset, device=device
        )
        return index

    def forward(self, q: Tensor, k: Tensor, q_offset: int | None = None) -> Tensor:
        """Scaled scores, ``[..., H, q_len, k_len]``.

        q_offset: position of the first query among the keys; by default ``k_len - q_len``.
        """
        _check_vectors("ShawRelativePosition", self.key_table.shape[1], None, q=q, k=k)
        index = self._index(q.shape[-2], k.shape[-2], q_offset, q.device)
        content, positions = q @ k.mT, q @ self.key_table.mT
        scores: Tensor = relative_gather(
            positions, index, k.shape[-2], content=content, scale=self.scale,
            out=_reusable(content, positions),
        )  # fmt: skip
        return scores

    def attend(self, probabilities: Tensor, v: Tensor, q_offset: int | None = None) -> Tensor:
        """``[..., H, q_len, head_dim]``: the weighted values, with those of the table."""
        out = probabilities @ v
        if self.value_table is None:
            return out
        q_len, k_len = probabilities.shape[-2:]
        index = self._index(q_len, k_len, q_offset, v.device)
        columns: Tensor = relative_scatter(probabilities, index, self.value_table.shape[0])
        return out + columns @ self.value_table

    def extra_repr(self) -> str:
        """The call, for print(model)."""
        width = self.key_table.shape[1]
        return call_arguments(
            type(self), head_dim=width, left=self.left,
            right=None if self.right == self.left else self.right,
            values=self.value_table is not None, scale=_shown_scale(self.scale, width),
        )  # fmt: skip


def _reusable(content: Tensor, positions: Tensor) -> Tensor | None:
    """The content scores as a place for the sum, if autograd wants neither of the two."""
    wanted = torch.is_grad_enabled() and (content.requires_grad or positions.requires_grad)
    return None if wanted or tracing() else content


def _sum(function: str, scores: Tensor, bias: Tensor, inplace: bool = False) -> Tensor:
    """Scores plus a bias [H, q_len, k_len] or [B, H, q_len, k_len], as `add_toeplitz_bias` has it:
    of the scores' shape and dtype, rounded once.
    """
    batch = tuple(bias.shape[:-3])
    if tuple(scores.shape[-3:]) != tuple(bias.shape[-3:]) or (
        batch and (scores.ndim < 4 or batch not in (tuple(scores.shape[:1]), (1,)))
    ):
        letters = ", ".join(map(str, (*batch, "...", *bias.shape[-3:])))
        arguments.wrong_value(function, "scores", f"shape [{letters}]", list(scores.shape))
    if batch:
        bias = bias.unflatten(0, (-1, *(1,) * (scores.ndim - 4)))
    return scores.add_(bias) if inplace else (scores + bias).to(scores.dtype)


def _positive(function: str, argument: str, value: int) -> int:
    """A size of at least 1."""
    size = arguments.size(function, argument, value)
    if size == 0:
        arguments.wrong_value(function, argument, "an int >= 1", 0)
    return size


def _window(
    function: str, window: int | tuple[int, ...], argument: str = "window", least: int = 1
) -> tuple[int, ...]:
    sizes = tuple(window) if isinstance(window, (tuple, list)) else (window, window)
    sizes = tuple(arguments.size(function, argument, size) for size in sizes)
    if not 1 <= len(sizes) <= 3 or min(sizes) < least:
        expected = f"an int, or one for each of up to 3 axes, at least {least}"
        arguments.wrong_value(function, argument, expected, window)
    return sizes


def _scale(function: str, scale: float | None, head_dim: int) -> float:
    if scale is None:
        return 1 / math.sqrt(head_dim)
    return arguments.finite_number(function, "scale", scale)


def _shown_scale(scale: float, head_dim: int) -> float | None:
    """The argument scale that stands for this one."""
    return None if scale == _scale("", None, head_dim) else scale


def _first_query(function: str, q_offset: int | None, q_len: int, k_len: int) -> int:
    """Position of the first query: the last queries of as many keys, if nothing else is said."""
    return k_len - q_len if q_offset is None else _signed(function, "q_offset", q_offset)


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


def _device(module: nn.Module, device: Any) -> torch.device:
    """The one given, or where the module's parameters are."""
    if device is not None:
        return torch.device(device)
    like = next(module.parameters(), None)
    place: torch.device = (torch.empty(0) if like is None else like).device
    return place
