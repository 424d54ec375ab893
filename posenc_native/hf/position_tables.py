"""Modules that make tables from position ids with any number of coordinates.

They are nearly all modules for text.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from posenc_native.encodings.rotary.tables import rotary_tables
from posenc_native.engines import backend, late

from .forms import Columns, NotServed, Orders, Tables, match_columns, packed, table_dtype
from .instances import with_decorators_of
from .signatures import cos_and_sin, table_names, with_marked_frequencies, with_own_buffers

__all__ = ["tables_of_positions"]

_SCALE = "attention_scaling"  # the attribute with the factor of cos and sin

# Near enough for float32 phases good to 1e-4, far enough to tell close frequencies apart.
_TOKENS = torch.tensor([1, 2, 5, 13, 40, 111], device="cpu")  # whatever the default device is


@dataclass(frozen=True)
class _Call:
    """A way to call a rotary-embedding module."""

    name: str  # the prefix of ``inv_freq``
    # The axis of position_ids that selects the coordinate, "first" or "last"; or None.
    where: str | None
    axes: int  # the number of coordinates
    batch: bool = True  # whether the positions have a batch axis

    def positions(self, tokens: Tensor) -> Tensor:
        """[axes, s] or [axes, b, s]; every coordinate has different values."""
        positions = torch.stack([tokens + axis * (tokens + 7) for axis in range(self.axes)])
        return positions[:, None] if self.batch else positions

    def __call__(self, forward: Callable[..., Any], module: nn.Module, positions: Tensor) -> Any:
        """The result of a forward for these positions; the call may change the module."""
        if self.where is None:
            positions = positions[0]
        elif self.where == "last":
            positions = positions.movedim(0, -1)
        kwargs = {"layer_type": self.name[:-1]} if self.name else {}
        try:
            return forward(
                module, torch.zeros(1, dtype=torch.float32), position_ids=positions, **kwargs
            )
        except Exception as error:  # any error of a model
            raise _Rejected(
                f"{type(module).__name__} cannot be probed with positions "
                f"{list(positions.shape)}: {error}"
            ) from error


class _Rejected(NotServed):
    """A module does not take these positions."""


def _ways_to_call(name: str) -> Iterator[list[_Call]]:
    """Ways to call a module; several from one list may be right."""
    for axes in (2, 3, 4):
        yield [_Call(name, "first", axes)]
    for batch in (True, False):  # some would take batch and tokens for tokens and coordinates
        yield [_Call(name, "last", axes, batch) for axes in (2, 3)]
    yield [_Call(name, None, 1)]


def tables_of_positions(module: nn.Module) -> Tables:
    """How a module makes tables from position_ids.

    Raises:
        NotServed: in an unknown way.
    """
    kind = type(module).__name__
    matched: dict[_Call, Columns] = {}
    for name in table_names(module):
        reason = NotServed(f"{kind} makes tables of an unknown form")
        for calls in _ways_to_call(name):
            try:
                fitting = {call: _match_call(module, call) for call in calls}
            except _Rejected as rejected:
                reason = rejected
                continue
            fitting = {call: columns for call, columns in fitting.items() if columns}
            if fitting:
                matched |= cast("dict[_Call, Columns]", fitting)
                break
        else:
            raise reason
    forms = tuple(dict.fromkeys(columns.form for columns in matched.values()))
    if len({call.where for call in matched}) > 1 or len({form.packing for form in forms}) > 1:
        raise NotServed(f"{kind} makes tables of several forms")
    orders = {form: tuple(range(form.angles)) for form in forms}
    # A module whose frequencies depend on the length usually keeps them in inv_freq. A module that
    # recomputes them in every call leaves its buffers alone; its factor may differ from its
    # attribute.
    for buffer, own_scale in itertools.product(("inv_freq", "original_inv_freq"), (False, True)):
        if any(name + buffer not in module._buffers for name in table_names(module)):
            continue
        keeps = not own_scale and all(_keeps_frequencies(module, call) for call in matched)
        for at_once in (True, False) if keeps else (False,):
            make = _ExactForward(type(module).forward, matched, buffer, own_scale, at_once)
            exact = make(orders, torch.device("cpu"))
            if all(
                _agrees_beyond_trained_length(module, call, columns, exact)
                for call, columns in matched.items()
            ):
                return Tables(forms, make)
    raise NotServed(f"{kind} computes its tables in its own way")


def _match_call(module: nn.Module, call: _Call) -> Columns | None:
    """The columns of the tables that a call gives; None if the module is not called in this way."""
    positions = call.positions(_TOKENS)
    tokens = list(positions.shape[1:])
    for probe in (with_marked_frequencies(module, call.name), with_own_buffers(module)):
        result = call(type(module).forward, probe, positions)
        own = cos_and_sin(result, module)
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
        # As the call left them: they may depend on the length. Some modules read one of the two.
        for ending in ("inv_freq", "original_inv_freq"):
            frequencies = probe._buffers.get(call.name + ending)
            columns = None
            if frequencies is not None:
                columns = match_columns(
                    (cos, sin), positions.reshape(call.axes, -1), frequencies,
                    packing=packing, ranks=ranks, inserted=inserted, axes=axes,
                )  # fmt: skip
            if columns is not None:
                # If the last coordinate drives no column, the call had one too many; unless the
                # module takes no fewer, and heads are too narrow for all of them.
                idle = int(columns.axis.max()) < call.axes - 1
                return None if idle and _takes_fewer(module, call) else columns
    return None


def _takes_fewer(module: nn.Module, call: _Call) -> bool:
    """Whether the module takes positions with one coordinate fewer, as far as can be told."""
    fewer = replace(call, axes=call.axes - 1)
    if fewer.axes < 2:
        return True
    try:
        fewer(type(module).forward, with_own_buffers(module), fewer.positions(_TOKENS))
    except _Rejected:
        return False
    return True


def _beyond_trained_length(module: nn.Module) -> int:
    return 2 * int(getattr(module, "max_seq_len_cached", 0)) + 3


def _keeps_frequencies(module: nn.Module, call: _Call) -> bool:
    """Whether calls leave the module unchanged, also beyond the trained length.

    If so, its decorators, which adapt frequencies to the length, can be skipped.
    """
    for last in (1, _beyond_trained_length(module)):
        probe = with_own_buffers(module)
        call(type(module).forward, probe, call.positions(torch.tensor([0, last])))
        own, left = vars(module), vars(probe)
        if own.keys() != left.keys() or module._buffers.keys() != probe._buffers.keys():
            return False
        if any(left[name] is not own[name] for name in own if name != "_buffers"):
            return False
        for name, buffer in module._buffers.items():
            after = probe._buffers[name]
            if buffer is not None and (after is None or not torch.equal(buffer, after)):
                return False
    return True


def _agrees_beyond_trained_length(
    module: nn.Module, call: _Call, columns: Columns, exact_forward: Callable[..., Any]
) -> bool:
    """Whether exact tables match the module's, also beyond the trained length.

    There some scalings change frequencies.
    """
    form = columns.form
    for last in (40, _beyond_trained_length(module)):
        frequencies = cast(Tensor, module._buffers[call.name + "inv_freq"])
        # The module's error in radians. Each further coordinate is up to twice as far and 7 more.
        phase_error = (last * (2 * call.axes - 1) + 14) * float(frequencies.abs().max()) * 2.0**-23
        if phase_error > 0.25:
            continue
        positions = call.positions(torch.tensor([0, 1, 3, last // 2, last]))
        theirs = cos_and_sin(
            call(type(module).forward, with_own_buffers(module), positions), module
        )
        ours = call(exact_forward, with_own_buffers(module), positions)
        cos, sin = ours if form.packing == "cos, sin" else ours.chunk(2, dim=-1)
        index = torch.tensor(form.columns)
        scale = max(1.0, float(theirs[0].abs().max()))
        for a, b in zip(theirs, (cos[..., index], sin[..., index]), strict=True):
            if a.shape != b.shape or float((a - b).abs().max()) > scale * (1e-5 + phase_error):
                return False
    return True


@dataclass
class _ExactForward:
    """The exact forward of a module that takes positions.

    If possible, a small call on the CPU goes directly to native code and skips the decorators of
    the module's own forward.
    """

    original: Callable[..., Any]  # its own forward, with decorators
    columns: dict[_Call, Columns]
    buffer: str  # the buffer with the frequencies
    own_scale: bool  # whether the factor is read from its own tables at position 0
    at_once: bool  # whether small calls may skip the decorators

    def __call__(self, orders: Orders, device: torch.device) -> Callable[..., Any]:
        original, buffer, own_scale = self.original, self.buffer, self.own_scale
        calls, first = self.columns, next(iter(self.columns))
        where = first.where
        form = self.columns[first].form
        count = first.axes if where == "first" else None
        # (name, axes) -> coordinates and frequencies. They are already on the device, so that no
        # call waits for a copy; the module may still move later.
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
            dtype = table_dtype(x)
            scale = 1.0 if own_scale else getattr(self, name + _SCALE, 1.0)
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
            return packed(cos, sin, form)

        decorated = with_decorators_of(original, forward)
        plain = where is None and form.packing == "cos, sin" and not form.inserted
        if not (plain and self.at_once) or any(index is not None for _, index in chosen.values()):
            return decorated
        late.torch_operations()  # without it the fast path (`door`) takes no tensors
        # For each kind of layer: the attributes that a call needs.
        named = {call.name[:-1] or None: (call.name + buffer, call.name + _SCALE) for call in calls}

        @functools.wraps(decorated)
        def settled(
            self: Any, x: Tensor, position_ids: Tensor, layer_type: str | None = None
        ) -> Any:
            if x.dtype is not torch.float64 and layer_type in named:
                name, of_scale = named[layer_type]
                tables = backend.door.rotary_tables(
                    position_ids, self._buffers[name], None, getattr(self, of_scale, 1.0), None
                )
                if tables is not NotImplemented:
                    return tables
            return decorated(self, x, position_ids=position_ids, **_given(layer_type))

        return settled


def _given(layer_type: str | None) -> dict[str, str]:
    return {} if layer_type is None else {"layer_type": layer_type}
