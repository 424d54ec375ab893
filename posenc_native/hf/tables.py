"""How the modules of a model make tables of cos and sin, found by calling them.

A rotary-embedding module of transformers turns positions into a table, every column of which is the
cos or sin of one coordinate times one frequency. Which coordinate and which frequency differs from
model to model: text repeats all frequencies in halves or in pairs, M-RoPE shares them out among
time, height and width, vision towers put height beside width. `probe_tables` finds both for every
column, with a copy of the module whose frequencies can be told apart. No name of a model or of a
class is known to this file. What does not answer so raises `NotServed`.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn

from posenc_native.rotary import rotary_tables

__all__ = [
    "Form",
    "NotServed",
    "Orders",
    "Tables",
    "constant_name",
    "makes_tables",
    "match_columns",
    "probe_tables",
    "table_names",
]


class NotServed(Exception):
    """A part of a model does something else; the message says what."""


@dataclass(frozen=True)
class Form:
    """What the tables of a model look like to the function that rotates by them.

    Attributes:
        columns: for each column, which angle it shows: 0, 1, ... in the order in which they first
            appear.
        packing: "cos, sin": two tensors; "complex": one, cos + i sin; "sin|cos": one, sin beside
            cos.
        ranks: how many axes a table may have, columns included.
        inserted: indices of axes of size 1 that are neither batch nor tokens.
        axes: how many coordinates the positions have as their last axis; 0 where they have none.
    """

    columns: tuple[int, ...]
    packing: str = "cos, sin"
    ranks: tuple[int, ...] = (2, 3)
    inserted: tuple[int, ...] = ()
    axes: int = 0

    @property
    def angles(self) -> int:
        """How many different angles a table shows."""
        return max(self.columns) + 1


# The angles of a form in the order of the columns that are wanted.
Orders = dict[Form, tuple[int, ...]]

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass
class Tables:
    """How one module makes its tables.

    Attributes:
        forms: the forms that they may have: several where kinds of layer differ in the width of a
            head, or where the module takes positions with any number of coordinates.
        forward: from the orders of these forms and the device where the module is, a forward that
            gives exact tables in float32, every angle once: (cos, sin), or both side by side where
            they are one tensor. None if the module's own does, from `buffers`.
        buffers: what takes the place of buffers of the module.
    """

    forms: tuple[Form, ...]
    forward: Callable[[Orders, torch.device], Callable[..., Any]] | None
    buffers: dict[str, Tensor] = field(default_factory=dict)


def table_names(module: nn.Module) -> tuple[str, ...]:
    """What stands before ``inv_freq`` in the buffers of a rotary-embedding module; else nothing.

    Most have ``inv_freq`` itself. Models whose kinds of layer differ (Gemma 3) have one a kind:
    ``sliding_attention_inv_freq``, ``full_attention_inv_freq``.
    """
    return tuple(
        name.removesuffix("inv_freq")
        for name, buffer in module._buffers.items()
        if name.endswith("inv_freq")
        and not name.endswith("original_inv_freq")
        and buffer is not None
        and buffer.ndim == 1
    )


def makes_tables(module: nn.Module) -> bool:
    """Whether a module looks like one whose output a rotary function gets."""
    return bool(
        table_names(module) or constant_name(module) or "input_ids_shape" in _arguments(module)
    )


def probe_tables(module: nn.Module, wrap: Wrap) -> Tables:
    """How a module makes its tables.

    Args:
        module: on the CPU, with float32 frequencies. It is left as it is.
        wrap: puts the decorators of its forward around another one.

    Raises:
        NotServed: its columns are not cos(coordinate * frequency) * attention_scaling and so on.
    """
    kind, arguments = type(module).__name__, _arguments(module)
    if "input_ids_shape" in arguments:
        return _sine_embedding(module, wrap)
    if name := constant_name(module):
        return _constant(module, name)
    if any(True for _ in module.parameters()) or not all(
        name.endswith("inv_freq") for name, _ in module.named_buffers()
    ):
        raise NotServed(f"{kind} has parameters or other buffers")
    if "position_ids" in arguments:
        return _of_positions(module, wrap)
    if "pixel_values" in arguments:
        return _of_patches(module, wrap)
    raise NotServed(f"{kind}.forward takes no position_ids")


def _arguments(module: nn.Module) -> list[str]:
    return list(inspect.signature(type(module).forward).parameters)


def constant_name(module: nn.Module) -> str | None:
    """The name of a module's only buffer, if that is a table of complex numbers."""
    names = list(module._buffers)
    return names[0] if len(names) == 1 and names[0].startswith("freqs_ci") else None


# --- columns --------------------------------------------------------------------------------------

# Small, so that float32 phases are good to 1e-4; some far, so that close frequencies differ.
_TOKENS = torch.tensor([1, 2, 5, 13, 40, 111])


@dataclass(frozen=True)
class _Columns:
    """The coordinate and the frequency of every angle of a `Form`, int64 [angles]."""

    form: Form
    axis: Tensor
    frequency: Tensor
    frequencies: int  # how many the module has

    def in_order(self, order: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Axis and frequency of the angles that are asked for."""
        index = torch.tensor(order)
        return self.axis[index], self.frequency[index]


def _copy(module: nn.Module) -> nn.Module:
    """A copy with buffers of its own; a call may change them. A configuration is not copied."""
    result = copy.copy(module)
    buffers = {
        name: buffer if buffer is None else buffer.clone()
        for name, buffer in module._buffers.items()
    }
    result.__dict__["_buffers"] = buffers
    return result


def _marked(module: nn.Module, name: str) -> nn.Module:
    """A copy whose frequencies differ by much, as those of a model need not."""
    result = _copy(module)
    for ending in ("inv_freq", "original_inv_freq"):
        buffer = result._buffers.get(name + ending)
        if buffer is not None:
            count = len(buffer)
            buffer.copy_(0.05 + 0.9 * (torch.arange(count) + 0.5) / count)
    return result


def match_columns(
    tables: tuple[Tensor, Tensor], coordinates: Tensor, frequencies: Tensor, **form: Any
) -> _Columns | None:
    """What drives each column of cos and sin [tokens, width]; None if one has another origin.

    coordinates: [axes, tokens]
    """
    # A factor that may change with the length is not looked at here.
    length = torch.hypot(*tables).clamp_min(1e-6)
    exact = rotary_tables(coordinates, frequencies, dtype=torch.float64)
    difference = torch.zeros(())
    for own, each in zip(tables, exact, strict=True):
        candidates = each.movedim(0, 1).flatten(1)  # [tokens, axes * frequencies]
        distance = ((own / length).double()[:, :, None] - candidates[:, None]).abs().amax(dim=0)
        difference = torch.maximum(difference, distance)
    if float(difference.min(dim=1).values.max()) > 1e-3:
        return None
    nearest = difference.argmin(dim=1).tolist()
    angles = list(dict.fromkeys(nearest))
    return _Columns(
        Form(tuple(angles.index(angle) for angle in nearest), **form),
        torch.tensor(angles) // len(frequencies),
        torch.tensor(angles) % len(frequencies),
        len(frequencies),
    )


def _pair(result: Any, module: nn.Module) -> tuple[Tensor, Tensor]:
    """cos and sin out of what a rotary-embedding module gives."""
    if isinstance(result, Tensor) and result.is_complex():
        return result.real, result.imag
    if (
        isinstance(result, tuple)
        and len(result) == 2
        and all(isinstance(table, Tensor) and table.is_floating_point() for table in result)
    ):
        return result
    raise NotServed(f"{type(module).__name__} does not return a pair (cos, sin)")


def _packed(cos: Tensor, sin: Tensor, form: Form) -> Any:
    """Compact tables as a patched module returns them."""
    for axis in form.inserted:
        cos, sin = cos.unsqueeze(axis), sin.unsqueeze(axis)
    if form.packing == "cos, sin":
        return cos, sin
    return torch.cat((sin, cos) if form.packing == "sin|cos" else (cos, sin), dim=-1)


# --- tables of positions --------------------------------------------------------------------------


@dataclass(frozen=True)
class _Call:
    """A way to call a rotary-embedding module.

    Attributes:
        name: what stands before ``inv_freq``.
        where: which axis of position_ids chooses the coordinate, "first" or "last"; None if there
            is no such axis.
        axes: how many coordinates there are.
        batch: whether the positions have an axis for it.
    """

    name: str
    where: str | None
    axes: int
    batch: bool = True

    def positions(self, tokens: Tensor) -> Tensor:
        """[axes, s] or [axes, b, s]; every coordinate has values of its own."""
        each = torch.stack([tokens + axis * (tokens + 7) for axis in range(self.axes)])
        return each[:, None] if self.batch else each

    def __call__(self, forward: Callable[..., Any], module: nn.Module, positions: Tensor) -> Any:
        """What a forward gives for these positions; it may change the module."""
        if self.where is None:
            positions = positions[0]
        elif self.where == "last":
            positions = positions.movedim(0, -1)
        kwargs = {"layer_type": self.name[:-1]} if self.name else {}
        try:
            return forward(
                module, torch.zeros(1, dtype=torch.float32), position_ids=positions, **kwargs
            )
        except Exception as error:  # whatever a model may raise
            raise _Rejected(
                f"{type(module).__name__} cannot be probed with positions "
                f"{list(positions.shape)}: {error}"
            ) from error


class _Rejected(NotServed):
    """A module does not take these positions."""


def _calls(name: str) -> Iterator[list[_Call]]:
    """Ways to call a module; those of one list may all be right."""
    for axes in (2, 3, 4):
        yield [_Call(name, "first", axes)]
    for batch in (True, False):  # some would take a batch and tokens for tokens and coordinates
        yield [_Call(name, "last", axes, batch) for axes in (2, 3)]
    yield [_Call(name, None, 1)]


def _of_positions(module: nn.Module, wrap: Wrap) -> Tables:
    kind = type(module).__name__
    found: dict[_Call, _Columns] = {}
    for name in table_names(module):
        reason = NotServed(f"{kind} makes tables of an unknown form")
        for calls in _calls(name):
            try:
                fitting = {call: _columns(module, call) for call in calls}
            except _Rejected as rejected:
                reason = rejected
                continue
            fitting = {call: columns for call, columns in fitting.items() if columns}
            if fitting:
                found |= cast("dict[_Call, _Columns]", fitting)
                break
        else:
            raise reason
    forms = tuple(dict.fromkeys(columns.form for columns in found.values()))
    if len({call.where for call in found}) > 1 or len({form.packing for form in forms}) > 1:
        raise NotServed(f"{kind} makes tables of several forms")
    orders = {form: tuple(range(form.angles)) for form in forms}
    # Frequencies that follow the length are in inv_freq. A module that computes them anew in every
    # call has left them where they were, and may have another factor than it says.
    for buffer, own_scale in itertools.product(("inv_freq", "original_inv_freq"), (False, True)):
        if any(name + buffer not in module._buffers for name in table_names(module)):
            continue
        make = _Exact(type(module).forward, found, buffer, own_scale)
        exact = wrap(make(orders, torch.device("cpu")))
        if all(_agree(module, call, columns, exact) for call, columns in found.items()):
            return Tables(forms, make)
    raise NotServed(f"{kind} computes its tables in its own way")


def _columns(module: nn.Module, call: _Call) -> _Columns | None:
    """The columns of the tables that a call gives; None if this is not how to call the module."""
    positions = call.positions(_TOKENS)
    tokens = list(positions.shape[1:])
    for probe in (_marked(module, call.name), _copy(module)):
        result = call(type(module).forward, probe, positions)
        own = _pair(result, module)
        shape = list(own[0].shape[:-1])
        inserted: tuple[int, ...] = ()
        if len(shape) == len(tokens) + 1 and 1 in shape:
            inserted = (shape.index(1),)
            shape.remove(1)
        if shape != tokens:
            return None
        cos, sin = (table.reshape(len(_TOKENS), -1) for table in own)
        packing = "complex" if isinstance(result, Tensor) else "cos, sin"
        ranks = (2, 3) if call.where is None else (own[0].ndim,)
        axes = call.axes if call.where == "last" else 0
        # As the call has left them: they may follow the length; some modules do not look at that.
        for ending in ("inv_freq", "original_inv_freq"):
            frequencies = probe._buffers.get(call.name + ending)
            columns = None
            if frequencies is not None:
                columns = match_columns(
                    (cos, sin), positions.reshape(call.axes, -1), frequencies,
                    packing=packing, ranks=ranks, inserted=inserted, axes=axes,
                )  # fmt: skip
            if columns is not None:
                # A coordinate that drives nothing was one too many.
                return columns if int(columns.axis.max()) == call.axes - 1 else None
    return None


def _agree(
    module: nn.Module, call: _Call, columns: _Columns, exact_forward: Callable[..., Any]
) -> bool:
    """Whether exact tables are those of the module, also beyond the trained length.

    There some scalings change frequencies.
    """
    form = columns.form
    beyond = 2 * int(getattr(module, "max_seq_len_cached", 0)) + 3
    for last in (40, beyond):
        frequencies = cast(Tensor, module._buffers[call.name + "inv_freq"])
        # Theirs, in radians; positions of further coordinates are up to twice as far and 7 more.
        phase_error = (last * (2 * call.axes - 1) + 14) * float(frequencies.abs().max()) * 2.0**-23
        if phase_error > 0.25:
            continue
        positions = call.positions(torch.tensor([0, 1, 3, last // 2, last]))
        theirs = _pair(call(type(module).forward, _copy(module), positions), module)
        ours = call(exact_forward, _copy(module), positions)
        cos, sin = ours if form.packing == "cos, sin" else ours.chunk(2, dim=-1)
        index = torch.tensor(form.columns)
        scale = max(1.0, float(theirs[0].abs().max()))
        for a, b in zip(theirs, (cos[..., index], sin[..., index]), strict=True):
            if a.shape != b.shape or float((a - b).abs().max()) > scale * (1e-5 + phase_error):
                return False
    return True


@dataclass
class _Exact:
    """The exact forward of a module that takes positions.

    Attributes:
        original: its own forward, with decorators.
        buffer: which of its buffers has the frequencies.
        own_scale: whether the factor is what its own tables show at position 0.
    """

    original: Callable[..., Any]
    columns: dict[_Call, _Columns]
    buffer: str
    own_scale: bool

    def __call__(self, orders: Orders, device: torch.device) -> Callable[..., Any]:
        original, buffer, own_scale = self.original, self.buffer, self.own_scale
        first = next(iter(self.columns))
        where = first.where
        form = self.columns[first].form
        count = first.axes if where == "first" else None
        # (name, axes) -> which coordinate and which frequency; on the device, so that no call has
        # to wait for a copy, though it may move later.
        chosen: dict[tuple[str, int], tuple[Tensor | None, Tensor | None]] = {}
        for call, columns in self.columns.items():
            axis, frequency = columns.in_order(orders[columns.form])
            every = torch.equal(frequency, torch.arange(columns.frequencies))
            chosen[call.name, call.axes] = (
                None if where is None else axis.to(device),
                None if every else frequency.to(device),
            )

        def forward(
            self: Any, x: Tensor, position_ids: Tensor, layer_type: str | None = None
        ) -> Any:
            name = first.name if layer_type is None or not first.name else f"{layer_type}_"
            device = position_ids.device
            dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
            scale = 1.0 if own_scale else getattr(self, name + "attention_scaling", 1.0)
            tokens = position_ids
            if tokens.dtype in (torch.float16, torch.bfloat16):  # a buffer that has been cast
                tokens = tokens.float()
            if where == "last":
                tokens = tokens.movedim(-1, 0)
            elif count is not None:
                tokens = tokens.expand(count, -1, -1)
            axis_map, index = chosen[name, 1 if where is None else tokens.shape[0]]
            frequencies = getattr(self, name + buffer).to(device)
            cos, sin = rotary_tables(
                tokens,
                frequencies if index is None else frequencies[index.to(device)],
                axis_map=None if axis_map is None else axis_map.to(device),
                scale=scale,
                dtype=dtype,
            )
            if own_scale:
                last = position_ids.max()
                ends = torch.stack((torch.zeros_like(last), last))[None]
                factor = original(self, x.new_zeros(1, dtype=dtype), position_ids=ends)[0][0, 0, 0]
                cos, sin = cos * factor, sin * factor
            return _packed(cos, sin, form)

        return forward


# --- tables of the patches of an image ------------------------------------------------------------


def _centres(height: int, width: int, device: torch.device) -> Tensor:
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


def _of_patches(module: nn.Module, wrap: Wrap) -> Tables:
    """Tables whose coordinates are the centres of patches, in turns: DINOv3."""
    kind, original = type(module).__name__, type(module).forward
    patch = getattr(getattr(module, "config", None), "patch_size", None)
    if patch is None or table_names(module) != ("",):
        raise NotServed(f"{kind}.forward takes no position_ids")
    patch_height, patch_width = (patch, patch) if isinstance(patch, int) else tuple(patch)
    cpu = torch.device("cpu")

    def own(probe: nn.Module, height: int, width: int) -> tuple[Tensor, Tensor]:
        try:
            result = original(
                probe.eval(), torch.zeros(1, 3, height * patch_height, width * patch_width)
            )
        except Exception as error:  # whatever a model may raise
            raise NotServed(f"{kind} cannot be probed with an image: {error}") from error
        return _pair(result, module)

    marked = _marked(module, "")
    coordinates = 2 * math.pi * _centres(13, 5, cpu)
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
            exact = torch.float64 if pixel_values.dtype == torch.float64 else torch.float32
            if self.training:
                # Its own random changes of the coordinates stay; in float32.
                shape = pixel_values.new_zeros((), dtype=exact).expand(pixel_values.shape)
                cos, sin = original(self, shape)
                return cos[..., first.to(device)], sin[..., first.to(device)]
            height, width = pixel_values.shape[-2:]
            coordinates = _centres(height // patch_height, width // patch_width, device)
            return rotary_tables(
                coordinates,
                2 * math.pi * self.inv_freq.to(device).double()[index.to(device)],
                axis_map=axis_map.to(device),
                dtype=exact,
            )

        return forward

    exact = wrap(make({form: tuple(range(form.angles))}, cpu))
    ours = exact(_copy(module).eval(), torch.zeros(1, 3, 7 * patch_height, 9 * patch_width))
    for a, b in zip(own(_copy(module), 7, 9), ours, strict=True):
        # A phase of theirs, at most 2 pi times the largest frequency, is rounded three times.
        bound = 2e-6 * max(1.0, float(module._buffers["inv_freq"].abs().max()))  # type: ignore[union-attr]
        if float((a - b[..., torch.tensor(form.columns)]).abs().max()) > bound:
            raise NotServed(f"{kind} computes its tables in its own way")
    return Tables((form,), make)


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
    # It may have been cast.
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
            exact = torch.float64 if self.weight.dtype == torch.float64 else torch.float32
            cos, sin = rotary_tables(position_ids, chosen.to(position_ids.device), dtype=exact)
            return torch.cat((sin, cos), dim=-1)

        return forward

    return Tables((form,), make)


def _constant(module: nn.Module, name: str) -> Tables:
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
    multiples = torch.arange(len(rows) + 1)
    circle = torch.polar(torch.ones(len(multiples)), multiples.float())
    positions = torch.stack([(rows[:, [a]] - circle).abs().argmin(dim=1) for a in (0, count)])
    # In float32 and in these steps, as transformers does it.
    frequencies = 1.0 / (base ** (torch.arange(0, pairs, 2).float() / pairs))
    axis_map = torch.arange(2).repeat_interleave(count)
    cos, sin = rotary_tables(positions, frequencies.repeat(2), axis_map=axis_map)
    bound = 1e-6 + float(positions.max()) * 2.0**-23
    if pairs % 2 or float((torch.complex(cos, sin) - rows).abs().max()) > bound:
        raise NotServed(f"{kind} computes its tables in its own way")
    form = Form(tuple(range(pairs)), "complex", (3,), (inserted,))
    return Tables((form,), None, {name: _packed(cos, sin, form)})
