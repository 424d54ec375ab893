"""How the modules of a model make tables of cos and sin, found by calling them.

A rotary-embedding module of transformers turns positions into a table, every column of which is the
cos or sin of one coordinate times one frequency. Which coordinate and which frequency differs from
model to model: text repeats all frequencies in halves or in pairs, M-RoPE shares them out among
time, height and width, vision towers put height beside width. `probe_tables` finds both for every
column, with a copy of the module whose frequencies can be told apart. It knows no name of a model
or of a class. A module that does not answer like one of these forms raises `NotServed`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from posenc_native.rotary.by_tables import rotary_tables

from .forms import Form, NotServed, Orders, Tables, Wrap, packed, table_dtype
from .image_tables import tables_of_images
from .position_tables import tables_of_positions
from .signatures import constant_name, forward_arguments

__all__ = ["probe_tables"]


def probe_tables(module: nn.Module, wrap: Wrap) -> Tables:
    """How a module makes its tables.

    Args:
        module: on the CPU, with float32 frequencies. It is left as it is.
        wrap: puts the decorators of its forward around another one.

    Raises:
        NotServed: its columns are not cos(coordinate * frequency) * attention_scaling and so on.
    """
    kind, arguments = type(module).__name__, forward_arguments(module)
    if "input_ids_shape" in arguments:
        return _sine_embedding(module, wrap)
    if name := constant_name(module):
        return _constant_table(module, name)
    if any(True for _ in module.parameters()) or not all(
        name.endswith("inv_freq") for name, _ in module.named_buffers()
    ):
        raise NotServed(f"{kind} has parameters or other buffers")
    if "position_ids" in arguments:
        return tables_of_positions(module, wrap)
    if "pixel_values" in arguments:
        return tables_of_images(module, wrap)
    raise NotServed(f"{kind}.forward takes no position_ids")


# --- tables that a model keeps --------------------------------------------------------------------


def _sine_embedding(module: nn.Module, wrap: Wrap) -> Tables:
    """An embedding whose rows are the sines and cosines of their number: RoFormer."""
    kind, weight = type(module).__name__, getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2 or weight.shape[1] % 2:
        raise NotServed(f"{kind} has no table of sines")
    width = weight.shape[1]
    frequencies = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    rows = min(len(weight), 64)
    cos, sin = rotary_tables(rows, frequencies, dtype=torch.float32)
    # The weights may have been cast, hence the wide bound.
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

        return forward

    return Tables((form,), make)


def _constant_table(module: nn.Module, name: str) -> Tables:
    """A table of complex numbers for the patches of one size of image: the vision of Llama 4.

    Its rows show multiples of the axial frequencies of its configuration, first those of one
    coordinate, then of the other. Which multiples is read off the columns of frequency 1.
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
    # In float32 and in these steps, as transformers does it.
    frequencies = 1.0 / (base ** (torch.arange(0, pairs, 2).float() / pairs))
    axis_map = torch.arange(2).repeat_interleave(count)
    cos, sin = rotary_tables(positions, frequencies.repeat(2), axis_map=axis_map)
    bound = 1e-6 + float(positions.max()) * 2.0**-23
    if pairs % 2 or float((torch.complex(cos, sin) - rows).abs().max()) > bound:
        raise NotServed(f"{kind} computes its tables in its own way")
    form = Form(tuple(range(pairs)), "complex", (3,), (inserted,))
    return Tables((form,), None, {name: packed(cos, sin, form)})
