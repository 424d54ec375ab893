"""Find out how the modules of a model make tables of cos and sin, by calling them.

A rotary-embedding module of transformers turns positions into a table. Each of its columns is the
cos or sin of one coordinate times one frequency. The coordinates and frequencies differ from model
to model: text repeats all frequencies in halves or in pairs, M-RoPE divides them among time, height
and width, vision towers put height next to width. `probe_tables` finds both for every column, with
a copy of the module whose frequencies can be told apart. It contains no name of a model or class. A
module that fits none of these forms raises `NotServed`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from posenc_native.encodings.rotary.tables import rotary_tables

from .forms import Form, NotServed, Orders, Tables, match_columns, packed, table_dtype
from .instances import with_decorators_of
from .position_tables import tables_of_positions
from .signatures import (
    constant_name,
    cos_and_sin,
    forward_arguments,
    table_names,
    with_marked_frequencies,
    with_own_buffers,
)  # fmt: skip
from .speech import makes_speech_tables, speech_tables

__all__ = ["probe_tables"]


def probe_tables(module: nn.Module) -> Tables:
    """How a module makes its tables.

    Args:
        module: on the CPU, with float32 frequencies. It is not changed.

    Raises:
        NotServed: its columns are not cos(coordinate * frequency) * attention_scaling and so on.
    """
    kind, arguments = type(module).__name__, forward_arguments(module)
    if "input_ids_shape" in arguments:
        return _sine_embedding(module)
    if name := constant_name(module):
        return _constant_table(module, name)
    if any(True for _ in module.parameters()) or not all(
        name.endswith("inv_freq") for name, _ in module.named_buffers()
    ):
        raise NotServed(f"{kind} has parameters or other buffers")
    if "position_ids" in arguments:
        return tables_of_positions(module)
    if makes_speech_tables(module) and table_names(module) == ("",):
        return speech_tables(module)
    if "pixel_values" in arguments:
        return _image_tables(module)
    raise NotServed(f"{kind}.forward takes no position_ids")


# --- tables of images -----------------------------------------------------------------------------


def _patch_centres(height: int, width: int, device: torch.device) -> Tensor:
    """Centers of height x width patches of a square with side 2 around 0, float64 [2, patches].

    Source: Simeoni et al. 2025, "DINOv3".
    """
    axes = [
        (2 * torch.arange(count, dtype=torch.float64, device=device) + 1) / count - 1
        for count in (height, width)
    ]
    return torch.stack(torch.meshgrid(*axes, indexing="ij")).flatten(1)


def _image_tables(module: nn.Module) -> Tables:
    """A module that makes tables for the patches of an image, from their centers: DINOv3."""
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
        except Exception as error:  # any error of a model
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
        axis_map, index = (tensor.to(device) for tensor in columns.in_order(order))
        first = torch.tensor([form.columns.index(angle) for angle in order], device=device)

        def forward(self: Any, pixel_values: Tensor) -> tuple[Tensor, Tensor]:
            device = pixel_values.device
            exact = table_dtype(pixel_values)
            if self.training:
                # In training the module changes coordinates at random; this stays, in float32.
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

        return with_decorators_of(original, forward)

    exact = make({form: tuple(range(form.angles))}, cpu)
    ours = exact(with_own_buffers(module).eval(), image(7, 9))
    for a, b in zip(own(with_own_buffers(module), 7, 9), ours, strict=True):
        # The module rounds a phase, of at most 2 pi times the largest frequency, three times.
        bound = 2e-6 * max(1.0, float(module._buffers["inv_freq"].abs().max()))  # type: ignore[union-attr]
        if float((a - b[..., torch.tensor(form.columns)]).abs().max()) > bound:
            raise NotServed(f"{kind} computes its tables in its own way")
    return Tables((form,), make)


# --- tables that a model stores -------------------------------------------------------------------


def _sine_embedding(module: nn.Module) -> Tables:
    """An embedding whose rows are the sines and cosines of their index: RoFormer."""
    kind, weight = type(module).__name__, getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2 or weight.shape[1] % 2:
        raise NotServed(f"{kind} has no table of sines")
    width = weight.shape[1]
    frequencies = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    rows = min(len(weight), 64)
    cos, sin = rotary_tables(rows, frequencies, dtype=torch.float32)
    # The bound is wide because the weights may have been cast.
    own = weight[:rows].float()
    if not torch.allclose(torch.cat((sin, cos), dim=1), own, rtol=0, atol=1e-2):
        raise NotServed(f"{kind} computes its tables in its own way")
    form = Form(tuple(range(width // 2)), "sin|cos", (4,), (0, 1))

    def make(orders: Orders, device: torch.device) -> Callable[..., Any]:
        chosen = frequencies[torch.tensor(orders[form])].to(device)

        def forward(
            self: Any,
            input_ids_shape: Any,
            past_key_values_length: int = 0,
            position_ids: Tensor | None = None,
        ) -> Tensor:
            if position_ids is None:
                last = past_key_values_length + input_ids_shape[1]
                position_ids = torch.arange(past_key_values_length, last, device=self.weight.device)
            exact = table_dtype(self.weight)
            cos, sin = rotary_tables(position_ids, chosen.to(position_ids.device), dtype=exact)
            return torch.cat((sin, cos), dim=-1)

        return with_decorators_of(type(module).forward, forward)

    return Tables((form,), make)


def _constant_table(module: nn.Module, name: str) -> Tables:
    """A table of complex numbers for the patches of one image size: the vision encoder of Llama 4.

    Its rows are multiples of the axial frequencies of its configuration, first for one coordinate,
    then for the other. The columns of frequency 1 show which multiples.
    """
    kind, table = type(module).__name__, cast(Tensor, module._buffers[name])
    parameters = getattr(getattr(module, "config", None), "rope_parameters", None) or {}
    base, pairs = parameters.get("rope_theta"), table.shape[-1]
    if not table.is_complex() or table.ndim != 3 or 1 not in table.shape[:2] or not base:
        raise NotServed(f"{kind} keeps a table of an unknown form")
    inserted = 1 if table.shape[1] == 1 else 0
    rows, count = table.squeeze(inserted), pairs // 2
    multiples = torch.arange(len(rows) + 1, dtype=torch.float32)
    circle = torch.polar(torch.ones_like(multiples), multiples)
    positions = torch.stack([(rows[:, [a]] - circle).abs().argmin(dim=1) for a in (0, count)])
    # In float32 and in the same steps as transformers.
    frequencies = 1.0 / (base ** (torch.arange(0, pairs, 2).float() / pairs))
    axis_map = torch.arange(2).repeat_interleave(count)
    cos, sin = rotary_tables(positions, frequencies.repeat(2), axis_map=axis_map)
    bound = 1e-6 + float(positions.max()) * 2.0**-23
    if pairs % 2 or float((torch.complex(cos, sin) - rows).abs().max()) > bound:
        raise NotServed(f"{kind} computes its tables in its own way")
    form = Form(tuple(range(pairs)), "complex", (3,), (inserted,))
    return Tables((form,), None, {name: packed(cos, sin, form)})
