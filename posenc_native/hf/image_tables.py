"""Modules that make tables of the patches of an image, from the centres of these: DINOv3."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from posenc_native.rotary.by_tables import rotary_tables

from .forms import NotServed, Orders, Tables, Wrap, match_columns, table_dtype
from .signatures import cos_and_sin, table_names, with_marked_frequencies, with_own_buffers

__all__ = ["tables_of_images"]


def _patch_centres(height: int, width: int, device: torch.device) -> Tensor:
    """Centres of height x width patches of a square of side 2 around 0, float64 [2, patches].

    Source: Simeoni et al. 2025, "DINOv3".
    """
    return torch.stack(
        torch.meshgrid(
            *(
                (2 * torch.arange(count, dtype=torch.float64, device=device) + 1) / count - 1
                for count in (height, width)
            ),
            indexing="ij",
        )
    ).flatten(1)


def tables_of_images(module: nn.Module, wrap: Wrap) -> Tables:
    """How a module makes tables of the centres of patches, in turns; `wrap` as in `probe_tables`.

    Raises:
        NotServed: in a way that is not known.
    """
    kind, original = type(module).__name__, type(module).forward
    patch = getattr(getattr(module, "config", None), "patch_size", None)
    if patch is None or table_names(module) != ("",):
        raise NotServed(f"{kind}.forward takes no position_ids")
    patch_height, patch_width = (patch, patch) if isinstance(patch, int) else tuple(patch)
    cpu = torch.device("cpu")

    def image(height: int, width: int) -> Tensor:
        shape = 1, 3, height * patch_height, width * patch_width
        return torch.zeros(shape, dtype=torch.float32)

    def own(probe: nn.Module, height: int, width: int) -> tuple[Tensor, Tensor]:
        try:
            result = original(probe.eval(), image(height, width))
        except Exception as error:  # whatever a model may raise
            raise NotServed(f"{kind} cannot be probed with an image: {error}") from error
        return cos_and_sin(result, module)

    marked = with_marked_frequencies(module, "")
    coordinates = 2 * math.pi * _patch_centres(13, 5, cpu)
    tables = own(marked, 13, 5)
    columns = None
    if tables[0].shape[:-1] == coordinates.shape[1:]:
        frequencies = cast(Tensor, marked._buffers["inv_freq"])
        columns = match_columns(tables, coordinates, frequencies, ranks=(2,))
    if columns is None:
        raise NotServed(f"{kind} makes tables of an unknown form")
    form = columns.form

    def make(orders: Orders, device: torch.device) -> Callable[..., Any]:
        order = orders[form]
        axis_map, index = (each.to(device) for each in columns.in_order(order))
        first = torch.tensor([form.columns.index(angle) for angle in order], device=device)

        def forward(self: Any, pixel_values: Tensor) -> tuple[Tensor, Tensor]:
            device = pixel_values.device
            exact = table_dtype(pixel_values)
            if self.training:
                # The module changes coordinates at random here, and goes on doing so; in float32.
                shape = pixel_values.new_zeros((), dtype=exact).expand(pixel_values.shape)
                cos, sin = original(self, shape)
                return cos[..., first.to(device)], sin[..., first.to(device)]
            height, width = pixel_values.shape[-2:]
            coordinates = _patch_centres(height // patch_height, width // patch_width, device)
            return rotary_tables(
                coordinates,
                2 * math.pi * self.inv_freq.to(device).double()[index.to(device)],
                axis_map=axis_map.to(device),
                dtype=exact,
            )

        return forward

    exact = wrap(make({form: tuple(range(form.angles))}, cpu))
    ours = exact(with_own_buffers(module).eval(), image(7, 9))
    for a, b in zip(own(with_own_buffers(module), 7, 9), ours, strict=True):
        # The module rounds a phase, of at most 2 pi times the largest frequency, three times.
        bound = 2e-6 * max(1.0, float(module._buffers["inv_freq"].abs().max()))  # type: ignore[union-attr]
        if float((a - b[..., torch.tensor(form.columns)]).abs().max()) > bound:
            raise NotServed(f"{kind} computes its tables in its own way")
    return Tables((form,), make)
