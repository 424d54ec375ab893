"""Modules of sinusoidal encodings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from posenc_native.core.calls import arguments
from posenc_native.encodings.sinusoids.spec import SinusoidalSpec
from posenc_native.encodings.sinusoids.tables import add_sinusoidal, sinusoidal

from .absolute import PositionalEncoding
from .initial import initialize, reset_layers
from .module import BufferCheck, Described, SavedBuffer
from .placement import device_of, precision_of

if TYPE_CHECKING:
    from posenc_native.core.calls.kinds import Combination, Device, EmbeddingScale, SinusoidalLayout


def _check_table(module: Any, saved: SavedBuffer) -> None:
    """A buffer "pe": rows 0 .. n-1 of the table, as in PyTorch's tutorial, or with batch first."""
    width, steepest = module._columns()
    shape = tuple(saved.tensor.shape)
    if shape[-1:] != (width,) or not (len(shape) == 2 or (len(shape) == 3 and 1 in shape[:2])):
        saved.wrong(f"shape [n, {width}], [n, 1, {width}] or [1, n, {width}]", list(shape))
    values = saved.values()
    if values is None:
        return
    values = values.reshape(-1, width)
    positions = torch.arange(len(values), device="cpu")
    # Originals compute in float32. The exponent x of a frequency e^-x is off by 2 u x; the
    # frequency and its product with p by 3 u: the angle by at most (2 x + 3) e^-x p u <= 3 p u.
    u = 2.0**-24
    bound = positions[:, None].double() * (4 * u * steepest) + 4 * u + saved.rounding()
    own = module._table(positions).double()
    if ((values - own).abs() <= bound).all():
        return
    hint = ""
    for name, table in module._other_tables(positions):
        if ((values - table.double()).abs() <= bound).all():
            hint = f"{name} makes the table that came"
    what = "the table of this module from position 0 on"
    saved.check_values(values, own, bound, what, hint)


def _check_scratch(_: Any, saved: SavedBuffer) -> None:
    """fairseq's "_float_tensor": one number without meaning; only its device and dtype are used."""
    saved.check_shape((1,))


class SinusoidalPositionalEncoding(PositionalEncoding):
    """Add sinusoidal positions to embeddings: ``dropout(x * x_scale + alpha * table)``.

    Args:
        d_model: width of the embeddings, even. For an odd width add the table of a
            `SinusoidalEmbedding`, as ``x + table(x.shape[1], device=x.device)``; the one of
            PyTorch's tutorial is made by
            ``SinusoidalEmbedding(29, SinusoidalSpec(29, remainder="cut", shift=0.5))``.
        dropout: probability of dropout after the sum.
        base, layout, shift, scale: as in `posenc_native.sinusoidal`: numbers, layout a name.
        how, x_scale, batch_first: as in `PositionalEncoding`; x is ``[b, s, d_model]``, of
            floats. "add" takes one pass, without a table in memory, unless `alpha` is learned.
        alpha: factor of the table.
        learned_alpha: `alpha` is a parameter, ``[1]`` (ESPnet's ScaledPositionalEncoding, and with
            ``alpha=d_model**-0.5`` the ScaledSinusoidalEmbedding of x-transformers).

    A checkpoint of PyTorch's tutorial loads strictly: its table ``pe`` is compared and not stored,
    and fairseq's ``_float_tensor`` is ignored. Another table is an error.

    Raises:
        ValueError, TypeError: as in `posenc_native.add_sinusoidal` and
            `posenc_native.absolute.combine`.

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.5.

    Example:
        >>> import torch
        >>> from posenc_native import nn as pnn
        >>> encode = pnn.SinusoidalPositionalEncoding(8, dropout=0.0)
        >>> encode(torch.zeros(1, 2, 8))[0, 1, :2]
        tensor([0.8415, 0.5403])
        >>> encode(torch.zeros(1, 1, 8), start=1)[0, 0, :2]  # decoding, one token before
        tensor([0.8415, 0.5403])
    """

    def __init__(
        self,
        d_model: int,
        dropout: float = 0.1,
        *,
        base: float = 10000.0,
        layout: SinusoidalLayout = "interleaved",
        shift: float = 0.0,
        scale: float = 1.0,
        how: Combination = "add",
        x_scale: EmbeddingScale = 1.0,
        alpha: float = 1.0,
        learned_alpha: bool = False,
        batch_first: bool = True,
    ) -> None:
        super().__init__(d_model, dropout, how=how, x_scale=x_scale, batch_first=batch_first)
        function = "SinusoidalPositionalEncoding"
        arguments.check_sinusoidal_layout(function, layout)
        if self.d_model % 2:
            hint = f"a SinusoidalEmbedding has odd widths: {arguments.odd_width(d_model, shift)}"
            arguments.wrong_value(function, "d_model", "an even int", d_model, hint)
        _, base, shift, scale = arguments.frequency_parameters(
            function, d_model, base, shift, scale
        )
        self.base: float = base
        self.shift: float = shift
        self.scale: float = scale
        self.layout = layout
        self.learned_alpha = learned_alpha
        self._first_alpha = arguments.finite_number(function, "alpha", alpha)
        self.alpha: float | Tensor = self._first_alpha
        if learned_alpha:
            self.alpha = nn.Parameter(torch.full((1,), self._first_alpha))

    def reset_parameters(self) -> None:
        """Reset a learned alpha to its initial value."""
        if isinstance(self.alpha, nn.Parameter):
            nn.init.constant_(self.alpha, self._first_alpha)

    def encoding(
        self,
        positions: int | Tensor,
        device: Device | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """``alpha * table``: ``[s, d_model]`` for an int, or ``positions.shape + (d_model,)``."""
        place = device_of(self, device)
        if not isinstance(positions, Tensor) and arguments.is_symbolic(positions):
            # A count that torch.export keeps symbolic.
            positions = torch.arange(positions, device=place)
        table: Tensor = sinusoidal(
            positions, self.d_model, dtype=dtype, device=place, **self._spec()
        )
        if isinstance(self.alpha, Tensor):
            return self.alpha.to(table.dtype) * table
        return table if self.alpha == 1 else self.alpha * table

    def _combined(self, x: Tensor, points: int | Tensor, encoding: Tensor | None) -> Tensor:
        if self.how != "add" or encoding is not None or isinstance(self.alpha, Tensor):
            return super()._combined(x, points, encoding)
        positions = points if isinstance(points, Tensor) else None
        total: Tensor = add_sinusoidal(
            x, positions, x_scale=self.x_scale, alpha=self.alpha, **self._spec()
        )
        return total

    def _spec(self) -> dict[str, Any]:
        return {
            "base": self.base, "layout": self.layout, "shift": self.shift, "scale": self.scale,
        }  # fmt: skip

    def _computed_buffers(self) -> Mapping[str, BufferCheck]:
        return {"pe": _check_table, "_float_tensor": _check_scratch}

    def _columns(self) -> tuple[int, float]:
        """The width of the table, and the highest frequency in radians."""
        return self.d_model, abs(self.scale)

    def _table(self, positions: Tensor, **others: Any) -> Tensor:
        """The table without alpha, which originals do not save."""
        options = {**self._spec(), **others}
        table: Tensor = sinusoidal(positions, self.d_model, dtype=torch.float32, **options)
        return table

    def _other_tables(self, positions: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Tables that a checkpoint may have, and the arguments that make them."""
        for layout in arguments.SINUSOIDAL_LAYOUTS:
            for shift in (0.0, 1.0) if self.d_model > 2 else (0.0,):
                words = f"layout={layout!r}, shift={shift:g}"
                yield words, self._table(positions, layout=layout, shift=shift)

    def _other_arguments(self) -> dict[str, Any]:
        return {**super()._other_arguments(), "alpha": self._first_alpha}


class SinusoidalEmbedding(Described):
    """Sinusoidal embeddings of positions, timesteps, grids or boxes, in any project's convention.

    Args:
        dim: width of the embedding.
        preset: one of `posenc_native.SinusoidalSpec.presets`, or a `posenc_native.SinusoidalSpec`
            of this dim.
        channels_first: the columns come before the axes of the grid: ``[b, dim, h, w]``.
        learned_scale: initial value of a parameter ``[1]`` that multiplies the table.
        options: options of the preset.

    Shape:
        One of positions, sizes and mask, as in a `posenc_native.SinusoidalSpec`: positions
        ``[...]`` for one coordinate, ``[..., A]`` for A coordinates; sizes of a grid, A ints, as
        ``x.shape[1:-1]``; a mask ``[..., n_1 ... n_A]``. The result is ``[..., dim]``.

    With one coordinate, an original's buffer ``pe`` loads as in `SinusoidalPositionalEncoding`.

    Raises:
        ValueError, TypeError: as in `posenc_native.SinusoidalSpec` and its ``preset``.

    Example:
        >>> import torch
        >>> from posenc_native import nn as pnn
        >>> embed = pnn.SinusoidalEmbedding(320, "diffusers_timestep", flip_sin_to_cos=True)
        >>> embed(torch.tensor([998.39, 7.0])).shape
        torch.Size([2, 320])
        >>> embed = pnn.SinusoidalEmbedding(256, "detr", normalize=True, channels_first=True)
        >>> embed(mask=torch.ones(2, 25, 34, dtype=torch.bool)).shape  # where there is an image
        torch.Size([2, 256, 25, 34])
    """

    def __init__(
        self,
        dim: int,
        preset: str | SinusoidalSpec = "transformer",
        *,
        channels_first: bool = False,
        learned_scale: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        function = "SinusoidalEmbedding"
        if isinstance(preset, SinusoidalSpec):
            if preset.dim != dim or options:
                expected = f"dim = {preset.dim} and no options (the spec includes them)"
                arguments.wrong_value(function, "dim", expected, (dim, options))
            self.spec: SinusoidalSpec = preset
        else:
            self.spec = SinusoidalSpec.preset(preset, dim, **options)
        self.channels_first = channels_first
        self.scale: nn.Parameter | None = None
        self.learned_scale = learned_scale
        if learned_scale is not None:
            first = arguments.finite_number(function, "learned_scale", learned_scale)
            self.scale = nn.Parameter(torch.full((1,), first))

    def reset_parameters(self) -> None:
        """Reset a learned scale to its initial value."""
        if self.scale is not None and self.learned_scale is not None:
            nn.init.constant_(self.scale, self.learned_scale)

    def forward(
        self,
        positions: Any = None,
        *,
        sizes: Any = None,
        mask: Any = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> Tensor:
        """The table; `device` is for positions, sizes or a mask that are not a tensor."""
        table: Tensor = self.spec(positions, sizes=sizes, mask=mask, dtype=dtype, device=device)
        if self.scale is not None:
            table = table * self.scale.to(dtype)
        if self.channels_first:
            table = table.movedim(-1, -1 - len(self.spec.axis_order))
        return table

    def _computed_buffers(self) -> Mapping[str, BufferCheck]:
        # Originals have no common form of a table for a grid, or for values from 0 without 0.
        listed = len(self.spec.axis_order) == 1 and not self.spec.logarithm
        table = {"pe": _check_table} if listed else {}
        return {**table, "_float_tensor": _check_scratch}

    def _columns(self) -> tuple[int, float]:
        """The width of the table, and the highest frequency in radians."""
        spec = self.spec
        scale: Any = spec.scale
        frequencies = spec.inv_freq if spec.inv_freq else (scale if np.ndim(scale) else (scale,))
        width = self._table(torch.ones(1, device="cpu")).shape[-1]
        return width, max(map(abs, frequencies))

    def _table(self, positions: Tensor) -> Tensor:
        # Floats, since a spec reads few integers as sizes or asks what they are.
        table: Tensor = self.spec(positions.double(), dtype=torch.float32)
        return table

    def _other_tables(self, positions: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Other conventions have other presets, too many to try."""
        return iter(())

    def _other_arguments(self) -> dict[str, Any]:
        return {"dim": self.spec.dim, "preset": self.spec}


class TimestepEmbedding(Described):
    """The time embedding of a diffusion model: ``linear(silu(linear(sinusoids)))``.

    Args:
        dim: width of the result.
        frequency_dim: width of the sinusoids.
        preset, options: as in `SinusoidalEmbedding`: preset a name or a `SinusoidalSpec`.

    Shape:
        timesteps ``[...]``, integers, float32 or float64; the result is ``[..., dim]`` in the dtype
        of the parameters. Gradients reach floating-point timesteps.

    Raises:
        ValueError, TypeError: as in `SinusoidalEmbedding`.

    Source: Ho et al. 2020, "Denoising Diffusion Probabilistic Models"; DiT's TimestepEmbedder,
    whose parameters have the same names.

    Example:
        >>> import torch
        >>> from posenc_native import nn as pnn
        >>> pnn.TimestepEmbedding(32)(torch.tensor([0.5, 999.0])).shape
        torch.Size([2, 32])
    """

    def __init__(
        self,
        dim: int,
        frequency_dim: int = 256,
        preset: str | SinusoidalSpec = "dit_timestep",
        **options: Any,
    ) -> None:
        super().__init__()
        self.sinusoids: SinusoidalEmbedding = SinusoidalEmbedding(frequency_dim, preset, **options)
        self.mlp: nn.Sequential = nn.Sequential(
            nn.Linear(frequency_dim, dim), nn.SiLU(), nn.Linear(dim, dim)
        )

    def reset_parameters(self) -> None:
        """Reset the layers to initial values."""
        self.sinusoids.reset_parameters()
        reset_layers(self.mlp)

    def forward(self, timesteps: Tensor) -> Tensor:
        """``mlp(sinusoids)``."""
        weight: Any = self.mlp[0].weight
        embedded: Tensor = self.mlp(self.sinusoids(timesteps, dtype=weight.dtype))
        return embedded


class FourierFeatures(Described):
    """Sines and cosines of ``2 pi W x``, with random or learned frequencies W.

    The phase is exact: the turns ``W x`` (with `log`, also the logarithm) are computed in float64
    (on MPS, in float32) for any dtype, also under autocast, and whole turns are removed before the
    sine. Sines and cosines are computed in float32 (float64 for float64).

    Args:
        in_features: number of coordinates of x.
        dim: width of the result, even.
        std: standard deviation of the initial frequencies W, in turns per unit of x.
        learned: W is a trained parameter; otherwise it is a buffer, saved with the model.
        layout: "sin_cos", "cos_sin" or "interleaved".
        log: take the natural logarithm of x first (noise levels).
        amplitude: factor of the result.

    Attributes:
        weight: W, ``[dim / 2, in_features]``.

    Shape:
        x ``[..., in_features]``, any float dtype; the result is ``[..., dim]`` in its dtype.
        Gradients of any order reach x, the variance and a learned W.

    Raises:
        ValueError, TypeError: sizes or numbers do not fit.

    Frequencies of another kind are data: NeRF's are loaded as a weight ``2^k e_axis / (2 pi)``,
    BARF's as ``2^k e_axis / 2``.

    Source: Tancik et al. 2020, "Fourier Features Let Networks Learn High Frequency Functions in Low
    Dimensional Domains" (cos_sin); diffusers' GaussianFourierProjection (in_features 1, log);
    learned with amplitude ``dim**-0.5``, Li et al. 2021, "Learnable Fourier Features for
    Multi-Dimensional Spatial Positional Encoding". Lin et al. 2021, "BARF", equation 14, for
    alpha; Barron et al. 2021, "Mip-NeRF", equations 12 to 14, for a variance.

    Example:
        >>> import torch
        >>> from posenc_native import nn as pnn
        >>> features = pnn.FourierFeatures(2, 64, std=10.0, layout="cos_sin")
        >>> features(torch.rand(5, 2)).shape
        torch.Size([5, 64])
        >>> features(torch.rand(5, 2), torch.full((5, 2), 0.01), alpha=1.5).shape
        torch.Size([5, 64])
    """

    weight: Tensor

    def __init__(
        self,
        in_features: int,
        dim: int,
        *,
        std: float = 1.0,
        learned: bool = False,
        layout: SinusoidalLayout = "sin_cos",
        log: bool = False,
        amplitude: float = 1.0,
    ) -> None:
        super().__init__()
        function = "FourierFeatures"
        arguments.check_sinusoidal_layout(function, layout)
        self.in_features: int = arguments.size(function, "in_features", in_features)
        if not self.in_features:
            arguments.wrong_value(function, "in_features", "at least 1", 0)
        self.dim: int = arguments.even_size(function, "dim", dim)
        self.std: float = arguments.positive_number(function, "std", std)
        self.amplitude: float = arguments.finite_number(function, "amplitude", amplitude)
        self.layout: SinusoidalLayout = layout
        self.log: bool = log
        self.learned: bool = learned
        weight = torch.empty(self.dim // 2, self.in_features)
        if learned:
            self.weight = nn.Parameter(weight)
        else:
            self.register_buffer("weight", weight)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new frequencies."""
        values = torch.empty(self.weight.shape, device=self.weight.device)
        initialize(self.weight, values.normal_(0.0, self.std))

    def forward(
        self, x: Tensor, variance: Tensor | None = None, *, alpha: float | Tensor | None = None
    ) -> Tensor:
        """``amplitude * (sin, cos)(2 pi W x)``, attenuated by `variance` and by `alpha`.

        variance: of x, ``[..., in_features]`` like x, or its covariance with another such axis, in
            squares of the unit of x; for mip-NeRF's integrated encoding. The result is the mean
            over a normal distribution: a frequency w has the factor ``exp(-(2 pi)^2 w . V w / 2)``.
            Not with `log`.
        alpha: BARF's progress from coarse to fine, a number or a tensor ``[]``. A frequency k
            octaves above the lowest, ``k = log2(|w| / |w|_min)``, has the factor
            ``(1 - cos(pi clip(alpha - k, 0, 1))) / 2``: 0 up to k, 1 from k + 1 on.
        """
        if x.ndim < 1 or x.shape[-1] != self.in_features:
            expected = f"shape [..., in_features = {self.in_features}]"
            arguments.wrong_value("FourierFeatures", "x", expected, list(x.shape))
        real = precision_of(x)
        # In float64 products of float32 numbers are exact. In float32 the phase would be off by
        # 2^-24 of all turns. MPS has no float64.
        wide = real if x.device.type == "mps" else torch.float64
        points = x.to(wide).log() if self.log else x.to(wide)
        weight = self.weight.to(wide)
        turns = _inner_products(points, weight)
        angle = ((turns - turns.round()) * (2 * math.pi)).to(real)
        factor: float | Tensor = self.amplitude
        if variance is not None:
            factor = factor * self._attenuation(x, variance.to(wide), weight).to(real)
        if alpha is not None:
            factor = factor * _window(weight.detach(), alpha).to(real)
        halves = [angle.sin() * factor, angle.cos() * factor]
        if self.layout == "interleaved":
            return torch.stack(halves, -1).flatten(-2).to(x.dtype)
        return torch.cat(halves[::-1] if self.layout == "cos_sin" else halves, -1).to(x.dtype)

    def _attenuation(self, x: Tensor, variance: Tensor, weight: Tensor) -> Tensor:
        """The mean of ``cos(2 pi W e)`` for errors e of this variance, ``[..., dim / 2]``."""
        if self.log:
            expected = "None with log, after which x has another variance"
            arguments.wrong_value("FourierFeatures", "variance", expected, list(variance.shape))
        if variance.shape == x.shape:
            squares = _inner_products(variance, weight**2)
        elif variance.shape == (*x.shape, self.in_features):
            pairs = weight[:, :, None] * weight[:, None, :]
            squares = _inner_products(variance.flatten(-2), pairs.flatten(-2))
        else:
            expected = f"shape {list(x.shape)}, as x, or {[*x.shape, self.in_features]}"
            arguments.wrong_value("FourierFeatures", "variance", expected, list(variance.shape))
        return (squares * (-2 * math.pi**2)).exp()


def _inner_products(points: Tensor, weight: Tensor) -> Tensor:
    """``[..., rows]`` of points ``[..., n]`` and rows ``[rows, n]``, in the dtype of both."""
    if points.dtype == torch.float64:  # whose products neither autocast nor TF32 rounds
        return points @ weight.mT
    return (points[..., None, :] * weight).sum(-1)


def _window(weight: Tensor, alpha: float | Tensor) -> Tensor:
    """BARF's factor of each frequency, ``[dim / 2]``."""
    if isinstance(alpha, Tensor):
        arguments.check_shape("FourierFeatures", "alpha", tuple(alpha.shape), ())
        alpha = alpha.to(weight)
    else:
        alpha = arguments.finite_number("FourierFeatures", "alpha", alpha)
    lengths = (weight**2).sum(-1).sqrt()
    # A frequency of 0 is below all others. There may be none: [:1].
    lowest = lengths.where(lengths > 0, math.inf).sort().values[:1]
    share = (alpha - (lengths / lowest).log2()).clamp(0, 1)
    return (1 - (math.pi * share).cos()) / 2
