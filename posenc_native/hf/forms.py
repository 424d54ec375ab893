"""The form of a model's tables, and the angle behind each of their columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from posenc_native.encodings.rotary.tables import rotary_tables

__all__ = [
    "Columns", "Form", "NotServed", "Orders", "Tables", "match_columns", "packed", "table_dtype",
]  # fmt: skip


class NotServed(Exception):
    """A part of a model cannot be patched; the message says why."""


@dataclass(frozen=True)
class Form:
    """The form in which a rotary function expects its tables.

    Attributes:
        columns: the angle in each column: 0, 1, ... in the order in which they first appear.
        packing: "cos, sin": two tensors; "complex": one tensor, cos + i sin; "sin|cos": one tensor
            with sin and cos side by side.
        ranks: the numbers of axes that a table may have, columns included.
        inserted: indices of axes of size 1 that are neither batch nor tokens.
        axes: the number of coordinates in the last axis of the positions; 0 if they have none.
    """

    columns: tuple[int, ...]
    packing: str = "cos, sin"
    ranks: tuple[int, ...] = (2, 3)
    inserted: tuple[int, ...] = ()
    axes: int = 0

    @property
    def angles(self) -> int:
        """The number of angles in a table, each counted once."""
        return max(self.columns) + 1


# The angles of a form, in the wanted order of columns.
Orders = dict[Form, tuple[int, ...]]


@dataclass
class Tables:
    """How one module makes its tables.

    Attributes:
        forms: the forms that its tables may have. There are several if the kinds of layers differ
            in the width of a head, or if the module takes positions with any number of coordinates.
        forward: makes a forward, given the orders of these forms and the module's device. The
            forward has the module's own decorators and returns exact tables in float32 with every
            angle once: (cos, sin), or both side by side if they are one tensor. None if the
            module's own forward does so from `buffers`.
        buffers: replacements for buffers of the module.
    """

    forms: tuple[Form, ...]
    forward: Callable[[Orders, torch.device], Callable[..., Any]] | None
    buffers: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Columns:
    """The coordinate and the frequency of every angle of a `Form`, int64 [angles]."""

    form: Form
    axis: Tensor
    frequency: Tensor
    frequencies: int  # the number of the module's frequencies

    def in_order(self, order: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Axis and frequency of the angles in this order."""
        index = torch.tensor(order)
        return self.axis[index], self.frequency[index]


def match_columns(
    tables: tuple[Tensor, Tensor], coordinates: Tensor, frequencies: Tensor, **form: Any
) -> Columns | None:
    """The origin of each column of cos and sin [tokens, width]; None if one has another origin.

    coordinates: [axes, tokens]
    """
    # Without their factor, which may change with the length of the text.
    length = torch.hypot(*tables).clamp_min(1e-6)
    exact = rotary_tables(coordinates, frequencies, dtype=torch.float64)
    difference = torch.zeros((), dtype=torch.float64)
    for own, ours in zip(tables, exact, strict=True):
        candidates = ours.movedim(0, 1).flatten(1)  # [tokens, axes * frequencies]
        distance = ((own / length).double()[:, :, None] - candidates[:, None]).abs().amax(dim=0)
        difference = torch.maximum(difference, distance)
    if float(difference.min(dim=1).values.max()) > 1e-3:
        return None
    nearest = difference.argmin(dim=1).tolist()
    angles = list(dict.fromkeys(nearest))
    return Columns(
        Form(tuple(angles.index(angle) for angle in nearest), **form),
        torch.tensor(angles) // len(frequencies),
        torch.tensor(angles) % len(frequencies),
        len(frequencies),
    )


def packed(cos: Tensor, sin: Tensor, form: Form) -> Any:
    """Compact tables in the form that a patched module returns."""
    for axis in form.inserted:
        cos, sin = cos.unsqueeze(axis), sin.unsqueeze(axis)
    if form.packing == "cos, sin":
        return cos, sin
    return torch.cat((sin, cos) if form.packing == "sin|cos" else (cos, sin), dim=-1)


def table_dtype(x: Tensor) -> torch.dtype:
    """The dtype of exact tables for x: float64 if x is float64, otherwise float32."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32
