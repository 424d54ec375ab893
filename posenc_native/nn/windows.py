"""Biases between the patches of a window, as in Swin, BEiT and Swin v2."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from posenc_native.core.calls import arguments
from posenc_native.encodings.absolute.resampling import resample_positions
from posenc_native.encodings.relative.bias import add_toeplitz_bias, toeplitz_bias
from posenc_native.encodings.relative.heads import Heads, heads_of
from posenc_native.encodings.relative.windows import swin_diagonals, swin_v2_coordinates

from .initial import initialize_heads, reset_layers
from .module import BufferCheck, Described, SavedBuffer, add_bias, positive_size
from .placement import local_heads, local_network


def _check_index(module: WindowBias, saved: SavedBuffer) -> None:
    """A buffer "relative_position_index": the row of the table for each query and key."""
    extra = int(module.class_token)
    tokens = math.prod(module.window) + extra
    saved.check_shape((tokens, tokens))
    values = saved.values("integer")
    if values is None:
        return
    index = torch.zeros(1, 1, dtype=torch.int64, device="cpu")
    for size in module.window:  # the last axis varies fastest
        places = torch.arange(size, device="cpu")
        steps = places[:, None] - places + size - 1
        index = index[:, None, :, None] * (2 * size - 1) + steps[:, None, :]
        index = index.flatten(2).flatten(0, 1)
    if extra:  # the last rows: from the class token, to it, and from it to itself
        rows = math.prod(2 * size - 1 for size in module.window)
        index = nn.functional.pad(index, (1, 0, 1, 0))
        index[0, :], index[:, 0], index[0, 0] = rows, rows + 1, rows + 2
    saved.check_values(values, index, 0, f"the index of a window {module.window}")


def _check_coordinates(module: SwinV2RelativeBias, saved: SavedBuffer) -> None:
    """A buffer "relative_coords_table": the input of the network."""
    sizes = [2 * size - 1 for size in module.window]
    saved.check_shape((1, *sizes, len(sizes)))
    values = saved.values()
    if values is None:
        return
    windows = module.window, module.pretrained_window
    own = swin_v2_coordinates(*windows, dtype=torch.float64, device="cpu")[None]
    # Originals compute in float32: five operations, each off by a rounding of what is at most
    # three times the result.
    bound = own.abs() * (16 * 2.0**-24 + saved.rounding())
    what = f"the coordinates of window {windows[0]}, pretrained_window {windows[1]}"
    saved.check_values(values, own, bound, what)


class WindowBias(Described):
    """A bias between the patches of a window; a subclass defines the number of each distance."""

    window: tuple[int, ...]
    class_token: bool = False

    def _computed_buffers(self) -> Mapping[str, BufferCheck]:
        return {"relative_position_index": _check_index}

    def diagonals(self) -> Tensor:
        """The diagonals for the patches, ``[H, 2 * rows - 1, 2 * columns - 1]``."""
        raise NotImplementedError

    def forward(self, scores: Tensor, inplace: bool = False) -> Tensor:
        """Add the bias to scores; `inplace` overwrites them."""
        sum_: Tensor = add_toeplitz_bias(
            scores, self.diagonals(), q_len=self.window, k_len=self.window,
            out=scores if inplace else None,
        )  # fmt: skip
        return sum_

    def bias(self, dtype: torch.dtype | None = None) -> Tensor:
        """The bias matrix, ``[H, N, N]``."""
        laid: Tensor = toeplitz_bias(self.diagonals(), self.window, self.window, dtype=dtype)
        return laid


class SwinRelativeBias(WindowBias):
    """Swin's learned bias between the patches of a window; with a class token, BEiT's.

    Args:
        num_heads: H.
        window: (rows, columns) of patches, or one number for both.
        class_token: BEiT's token 0 before the patches, with three more rows in the table: from the
            class token, to it, and from it to itself.
        heads: the heads of this rank, as in `ALiBi`: a range, a slice or (rank, ranks).

    The parameter ``relative_position_bias_table`` has the same name in Swin's and BEiT's
    checkpoints. Their buffer ``relative_position_index`` is compared and not stored; the index of
    another window is an error.

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
        >>> larger = pnn.SwinRelativeBias(4, 14, class_token=True).resampled(24)
        >>> larger.relative_position_bias_table.shape  # to be trained further
        torch.Size([2212, 4])
    """

    head_axes: ClassVar[dict[str, int | None]] = {"relative_position_bias_table": 1}

    def __init__(
        self,
        num_heads: int,
        window: int | tuple[int, int],
        *,
        class_token: bool = False,
        heads: Heads = None,
    ) -> None:
        super().__init__()
        self.num_heads: int = arguments.size("SwinRelativeBias", "num_heads", num_heads)
        self.heads: range = heads_of("SwinRelativeBias", heads, self.num_heads)
        self.window = _window_sizes("SwinRelativeBias", window)
        self.class_token = class_token
        rows = math.prod(2 * size - 1 for size in self.window) + 3 * class_token
        self.relative_position_bias_table: nn.Parameter = nn.Parameter(
            torch.empty(rows, len(self.heads))
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the table normally with standard deviation 0.02, as in Swin's code."""
        table = self.relative_position_bias_table
        values = torch.empty(table.shape[0], self.num_heads, device=table.device)
        nn.init.trunc_normal_(values, std=0.02)
        initialize_heads(self, "relative_position_bias_table", values)

    def resampled(self, window: int | tuple[int, int], **options: Any) -> SwinRelativeBias:
        """A module like this one for another window, with a resampled table.

        The default is Swin's own, bicubic without antialias; with a class token BEiT's own, a
        cubic spline of distances in a geometric progression. Rows of the class token stay. timm
        resamples both with ``spacing="geometric", interpolation="linear"``.

        Args:
            window: (rows, columns) of patches, or one number for both.
            options: keywords of `posenc_native.absolute.resample_positions` for the interpolation:
                interpolation and spacing names, antialias and align_corners bools.
        """
        function = "SwinRelativeBias.resampled"
        if taken := {"size", "old_size", "prefix", "suffix"} & {*options}:
            expected = "no keyword beside window for sizes and rows, which the module knows"
            arguments.wrong_value(function, "options", expected, ", ".join(sorted(taken)))
        axes = len(self.window)
        sizes = _window_sizes(function, (window,) * axes if isinstance(window, int) else window)
        if len(sizes) != axes:
            arguments.wrong_value(function, "window", f"an int, or {axes} ints", list(sizes))
        own: dict[str, Any] = {"spacing": "geometric"} if self.class_token else {"antialias": False}
        table = resample_positions(
            self.relative_position_bias_table.detach(), tuple(2 * size - 1 for size in sizes),
            old_size=tuple(2 * size - 1 for size in self.window), suffix=3 * self.class_token,
            **{**own, **options},
        )  # fmt: skip
        module = copy.deepcopy(self)
        module.window = sizes
        learned = self.relative_position_bias_table.requires_grad
        module.relative_position_bias_table = nn.Parameter(table, learned)
        return module

    def diagonals(self) -> Tensor:
        """The diagonals for the patches, ``[H, 2 * rows - 1, 2 * columns - 1]``."""
        table = local_heads(self, self.relative_position_bias_table)
        patches: Tensor = swin_diagonals(table[:-3] if self.class_token else table, self.window)
        return patches

    def forward(self, scores: Tensor, inplace: bool = False) -> Tensor:
        """Add the bias to scores; `inplace` overwrites them."""
        if self.class_token:
            return add_bias("SwinRelativeBias", scores, self.bias(), inplace)
        return super().forward(scores, inplace)

    def bias(self, dtype: torch.dtype | None = None) -> Tensor:
        """The bias matrix, ``[H, N, N]``."""
        patches = super().bias(dtype)
        if not self.class_token:
            return patches
        #   itself | from the class token
        #   -------+---------------------
        #   to it  | patches
        count = patches.shape[-1]
        table = local_heads(self, self.relative_position_bias_table)
        rows = table[-3:].to(patches.dtype)[:, :, None, None]
        from_class, to_class, itself = rows.unbind()
        first = torch.cat([itself, from_class.expand(-1, 1, count)], -1)
        rest = torch.cat([to_class.expand(-1, count, 1), patches], -1)
        return torch.cat([first, rest], -2)


class SwinV2RelativeBias(WindowBias):
    """Swin v2's continuous bias: a small network of log-spaced distances, 0 to 16.

    Args:
        num_heads: H.
        window: (rows, columns) of patches, or one number for both.
        pretrained_window: the window that the network was trained with, if it differs; 0 for the
            same.
        hidden: width of the network.

    The network is ``continuous_position_bias_mlp``, as in transformers' checkpoints. The buffers
    ``relative_coords_table`` and ``relative_position_index`` of originals are compared and not
    stored; those of other windows are an error.

    Shape:
        scores ``[..., H, N, N]`` for the N patches of a window.

    Source: Liu et al. 2022, "Swin Transformer V2".

    Example:
        >>> import torch
        >>> from posenc_native import nn as pnn
        >>> pnn.SwinV2RelativeBias(4, 8)(torch.zeros(2, 4, 64, 64)).shape
        torch.Size([2, 4, 64, 64])
    """

    head_axes: ClassVar[dict[str, int | None]] = {
        f"continuous_position_bias_mlp.{name}": axis
        for name, axis in (("0.weight", None), ("0.bias", None), ("2.weight", 0))
    }

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
        self.window = _window_sizes(function, window)
        self.pretrained_window: tuple[int, ...] = self.window
        if pretrained_window is not None:
            self.pretrained_window = _window_sizes(
                function, pretrained_window, "pretrained_window", 0
            )
        num_heads = arguments.size(function, "num_heads", num_heads)
        hidden = positive_size(function, "hidden", hidden)
        self.continuous_position_bias_mlp: nn.Sequential = nn.Sequential(
            nn.Linear(len(self.window), hidden),
            nn.ReLU(inplace=True),
            nn.Linear(hidden, num_heads, bias=False),
        )
        # Raises if the windows do not fit together.
        swin_v2_coordinates(self.window, self.pretrained_window)

    def reset_parameters(self) -> None:
        """Reset the network to initial values."""
        reset_layers(self.continuous_position_bias_mlp)

    def diagonals(self) -> Tensor:
        """The diagonals, ``[H, 2 * rows - 1, 2 * columns - 1]``."""
        weight = self.continuous_position_bias_mlp[0].weight
        coordinates = swin_v2_coordinates(
            self.window, self.pretrained_window, dtype=weight.dtype, device=weight.device
        )
        network = local_network(self, self.continuous_position_bias_mlp)
        table = network(coordinates).flatten(0, -2)
        diagonals: Tensor = swin_diagonals(16 * torch.sigmoid(table), self.window)
        return diagonals

    def _computed_buffers(self) -> Mapping[str, BufferCheck]:
        return {**super()._computed_buffers(), "relative_coords_table": _check_coordinates}

    def _other_arguments(self) -> dict[str, Any]:
        first, _, last = self.continuous_position_bias_mlp
        unchanged = self.pretrained_window == self.window
        return {
            "num_heads": last.out_features, "hidden": first.out_features,
            "pretrained_window": None if unchanged else self.pretrained_window,
        }  # fmt: skip


def _window_sizes(
    function: str, window: int | tuple[int, ...], argument: str = "window", least: int = 1
) -> tuple[int, ...]:
    sizes = tuple(window) if isinstance(window, (tuple, list)) else (window, window)
    sizes = tuple(arguments.size(function, argument, size) for size in sizes)
    if not 1 <= len(sizes) <= 3 or min(sizes) < least:
        expected = f"an int, or an int for each of up to 3 axes, at least {least}"
        arguments.wrong_value(function, argument, expected, window)
    return sizes
