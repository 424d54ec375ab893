"""What the rotary parts of a model do, found by calling them with small tensors.

`posenc_native.hf` replaces two things in a model, and both are described here: the module that
makes tables of cos and sin from position ids (`probe_tables`), and the function that rotates heads
by such tables (`probe_function`). No name of a model or of a class is known to this file. What does
not answer like any form below raises `NotServed`.
"""

from __future__ import annotations

import copy
import inspect
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from .rotary import apply_rotary_qk_tables, apply_rotary_tables, rotary_tables

__all__ = [
    "PIECES",
    "NotServed",
    "Tables",
    "in_pieces",
    "probe_function",
    "probe_tables",
    "table_names",
]

# How a table of P values a token may be widened for a function that multiplies whole heads by it.
FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "halves": lambda table: torch.cat((table, table), dim=-1),
    "pairs": lambda table: table.repeat_interleave(2, dim=-1),
    "plain": lambda table: table,
}

# "deinterleaved" takes pairs 2i, 2i + 1 and gives them back as i, i + P (DeepSeek-V3).
_PAIRINGS = ("half", "interleaved", "deinterleaved")

# Where unsqueeze_dim puts the axis of heads into a table [b, s, P].
_LAYOUTS = {1: "bhsd", -3: "bhsd", 2: "bshd", -2: "bshd"}

# As a sum of so many numbers of 8 significant bits, a float32 goes through bfloat16 unharmed.
PIECES = 3


class NotServed(Exception):
    """A part of a model does something else; the message says what."""


# --- tables ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tables:
    """How a rotary-embedding module makes its tables.

    Attributes:
        names: what stands before ``inv_freq`` in its buffers, one for each kind of layer.
        form: how it widens a table, a key of `FORMS`.
        axes: how many coordinates a position has, ``[axes, b, s]``; None for ``[b, s]``.
        axis_map: with axes, int64 [P]: which of them drives each pair.
    """

    names: tuple[str, ...]
    form: str
    axes: int | None = None
    axis_map: Tensor | None = None

    def exact_forward(self, device: torch.device) -> Callable[..., tuple[Tensor, Tensor]]:
        """A forward that gives exact tables in float32, not widened: cos, sin [b, s, P] each.

        device: where the module is, so that no call has to wait for a copy of axis_map; it may
            move later.
        """
        names, axes = self.names, self.axes
        axis_map = None if self.axis_map is None else self.axis_map.to(device)

        def forward(
            self: Any, x: Tensor, position_ids: Tensor, layer_type: str | None = None
        ) -> tuple[Tensor, Tensor]:
            name = names[0] if layer_type is None or names == ("",) else f"{layer_type}_"
            device = position_ids.device
            if axes is not None:
                position_ids = position_ids.expand(axes, -1, -1)
            return rotary_tables(
                position_ids,
                getattr(self, name + "inv_freq").to(device),
                axis_map=None if axis_map is None else axis_map.to(device),
                scale=getattr(self, name + "attention_scaling", 1.0),
                dtype=torch.float64 if x.dtype == torch.float64 else torch.float32,
            )

        return forward


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


def probe_tables(
    module: nn.Module, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Tables:
    """How a rotary-embedding module makes its tables.

    Args:
        module: on the CPU, with float32 frequencies. It is left as it is.
        wrap: puts the decorators of its forward around another one.

    Raises:
        NotServed: its tables are not ``cos(position * inv_freq) * attention_scaling`` and so on.
    """
    kind, names = type(module).__name__, table_names(module)
    if "position_ids" not in inspect.signature(type(module).forward).parameters:
        raise NotServed(f"{kind}.forward takes no position_ids")
    if any(True for _ in module.parameters()) or not all(
        name.endswith("inv_freq") for name, _ in module.named_buffers()
    ):
        raise NotServed(f"{kind} has parameters or other buffers")
    tables = _several_axes(module, names) or _one_axis(module, names)
    if tables is None:
        raise NotServed(f"{kind} makes tables of an unknown form")
    # The proof: all names, and beyond the trained length, where some scalings change frequencies.
    beyond = 2 * int(getattr(module, "max_seq_len_cached", 0)) + 3
    for name, last in itertools.product(names, (40, beyond)):
        frequencies = cast(Tensor, module._buffers[name + "inv_freq"])
        phase_error = last * float(frequencies.abs().max()) * 2.0**-23  # theirs, in radians
        if phase_error > 0.25:
            continue
        positions = torch.tensor([[0, 1, 3, last // 2, last]])
        if tables.axes is not None:
            positions = torch.stack([positions + axis for axis in range(tables.axes)])
        theirs = _call(type(module).forward, module, name, positions)
        exact_forward = wrap(tables.exact_forward(torch.device("cpu")))
        exact = _call(exact_forward, module, name, positions)
        scale = max(1.0, float(theirs[0].abs().max()))
        for a, b in zip(theirs, exact, strict=True):
            b = FORMS[tables.form](b)
            if a.shape != b.shape or float((a - b).abs().max()) > scale * (1e-5 + phase_error):
                raise NotServed(f"{kind} computes its tables in its own way")
    return tables


def _call(
    forward: Callable[..., Any], module: nn.Module, name: str, positions: Tensor
) -> tuple[Tensor, Tensor]:
    """cos and sin of a rotary-embedding module; of a copy, because some calls change frequencies.

    Not `NotServed` but what the module raises, as `_Rejected`, where it takes no such positions.
    """
    kwargs = {"layer_type": name[:-1]} if name else {}
    try:
        x = torch.zeros(1, dtype=torch.float32)
        result = forward(copy.deepcopy(module), x, position_ids=positions, **kwargs)
    except Exception as error:  # whatever a model may raise
        shape = list(positions.shape)
        raise _Rejected(
            f"{type(module).__name__} cannot be probed with positions {shape}: {error}"
        ) from error
    if not (
        isinstance(result, tuple)
        and len(result) == 2
        and all(isinstance(table, Tensor) and table.is_floating_point() for table in result)
    ):
        raise NotServed(f"{type(module).__name__} does not return a pair (cos, sin)")
    return result


class _Rejected(NotServed):
    """A module does not take these positions."""


def _one_axis(module: nn.Module, names: tuple[str, ...]) -> Tables | None:
    _, sin = _call(type(module).forward, module, names[0], torch.tensor([[1, 2, 5, 13]]))
    pairs = len(cast(Tensor, module._buffers[names[0] + "inv_freq"]))
    for form, widen in FORMS.items():
        narrow = _narrow(sin, form)
        if narrow.shape[-1] == pairs and torch.allclose(widen(narrow), sin, rtol=0, atol=1e-6):
            return Tables(names, form)
    return None


def _several_axes(module: nn.Module, names: tuple[str, ...]) -> Tables | None:
    """The tables of a module that takes [axes, b, s] and gives [b, s, ...]; else None."""
    frequencies = cast(Tensor, module._buffers[names[0] + "inv_freq"])
    tokens = torch.tensor([1, 2, 5, 13, 400, 1200])
    for axes in (2, 3, 4):
        # Every axis has other positions, so every pair shows which axis drives it.
        positions = torch.stack([tokens + axis * (tokens + 7) for axis in range(axes)])[:, None]
        try:
            tables = _call(type(module).forward, module, names[0], positions)
        except _Rejected:
            continue
        if tables[0].ndim != 3:  # it took the axes for a batch
            continue
        scale = getattr(module, names[0] + "attention_scaling", 1.0)
        candidates = torch.cat(rotary_tables(positions, frequencies, scale=scale), dim=-2)
        for form, widen in FORMS.items():
            wide = widen(candidates)  # [axes, 1, cos and sin: 2 * tokens, width]
            if wide.shape[-1] == tables[0].shape[-1]:
                difference = (wide - torch.cat(tables, dim=-2)).abs().amax(dim=(1, 2))
                nearest = difference.argmin(dim=0)  # [width]
                axis_map = _narrow(nearest, form).contiguous()
                if torch.equal(widen(axis_map), nearest):
                    return Tables(names, form, axes, axis_map)
        raise NotServed(f"{type(module).__name__} mixes position axes in an unknown way")
    return None


def _narrow(wide: Tensor, form: str) -> Tensor:
    """The table from which `FORMS` makes the wide one."""
    if form == "halves":
        return wide[..., : wide.shape[-1] // 2]
    return wide[..., ::2] if form == "pairs" else wide


# --- rotation -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Rotation:
    """What a model's rotary function does, in the words of `apply_rotary_tables`."""

    pairing: str  # one of _PAIRINGS
    inverse: bool
    part: str  # of a head wider than its table: "leading", "trailing"; "whole": it is an error

    def __call__(
        self,
        heads: tuple[Tensor, ...],
        cos: Tensor,
        sin: Tensor,
        layout: str,
        inplace: bool = False,
    ) -> tuple[Tensor, ...]:
        """x, or q and k, rotated; in one call unless they differ in more than their heads."""
        pairing = self.pairing
        if pairing == "deinterleaved":
            heads = tuple(torch.cat((x[..., ::2], x[..., 1::2]), dim=-1) for x in heads)
            pairing = "half"
        over = [inplace and _may_be_overwritten(x) for x in heads]
        if len(heads) == 2 and over[0] == over[1] and _alike(*heads):
            # One tensor for both would be turned twice.
            twice = heads[0] is heads[1]
            return self._rotate(heads, cos, sin, layout, pairing, over[0] and not twice)
        rotated = [
            self._rotate((x,), cos, sin, layout, pairing, over_x)
            for x, over_x in zip(heads, over, strict=True)
        ]
        return tuple(x for (x,) in rotated)

    def _rotate(
        self,
        heads: tuple[Tensor, ...],
        cos: Tensor,
        sin: Tensor,
        layout: str,
        pairing: str,
        over: bool,
    ) -> tuple[Tensor, ...]:
        table, shape = cos.shape, heads[0].shape
        width = 2 * table[-1]
        if self.part == "whole" and shape[-1] != width:
            raise ValueError(f"patched model: expected heads of size {width}, got {shape[-1]}")
        if table[0] == 1 and shape[0] != 1:  # the same positions for the whole batch
            cos, sin = cos[0], sin[0]
        start = shape[-1] - width if self.part == "trailing" else 0
        if len(heads) == 2:
            return apply_rotary_qk_tables(
                *heads, cos, sin, layout=layout, pairing=pairing, rotary_start=start,
                inverse=self.inverse, inplace=over,
            )  # fmt: skip
        (x,) = heads
        rotated = apply_rotary_tables(
            x, cos, sin, layout=layout, pairing=pairing, rotary_start=start, inverse=self.inverse,
            out=x if over else None,
        )  # fmt: skip
        return (rotated,)


def _may_be_overwritten(x: Tensor) -> bool:
    """Not what autograd may need, nor a view that shows one value several times."""
    return not (torch.is_grad_enabled() and x.requires_grad) and 0 not in x.stride()


def _alike(q: Tensor, k: Tensor) -> bool:
    """Whether they differ in heads alone, or in tokens, which is an error with one table."""
    of_q, of_k = q.shape, k.shape
    return q.dtype == k.dtype and of_q[0] == of_k[0] and of_q[-1] == of_k[-1]


def probe_function(
    original: Callable[..., Any],
    form: str,
    widths: frozenset[int],
    *,
    inplace: bool = False,
    pieces: int = 1,
) -> Callable[..., Any]:
    """A function with the arguments of a model's rotary function, for tables that are not widened.

    Args:
        original: the model's function, ``f(q, k, cos, sin, unsqueeze_dim=1)`` or with one tensor in
            place of q and k, or sin before cos.
        form: how the model widens its tables, a key of `FORMS`.
        widths: which numbers of pairs a head its tables have. Another is an error: the model has
            cut a table to a size that was meant for its own form.
        inplace: rotate where q and k are, if no gradient is needed.
        pieces: the parts of which a table is the sum, side by side (`in_pieces`).

    Raises:
        NotServed: it takes other arguments, or does something else.
    """
    title = getattr(original, "__name__", type(original).__name__)
    parameters = inspect.signature(original).parameters
    names = list(parameters)
    count = min(names.index("cos"), names.index("sin"))  # how many tensors it rotates
    optional = [
        parameter.default is not inspect.Parameter.empty for parameter in parameters.values()
    ]
    if (
        count not in (1, 2)
        or set(names[count : count + 2]) != {"cos", "sin"}
        or optional != [False] * (count + 2) + [True] * (len(names) - count - 2)
    ):
        raise NotServed(f"{title} has unknown arguments: {', '.join(names)}")
    # GPT-J's has no unsqueeze_dim: heads are its third axis.
    dims: tuple[int | None, ...] = (1, 2) if "unsqueeze_dim" in names else (None,)
    default = parameters["unsqueeze_dim"].default if "unsqueeze_dim" in names else 2
    found = {_probe_rotation(original, title, count, names, form, dim) for dim in dims}
    if len(found) > 1:
        raise NotServed(f"{title} depends on unsqueeze_dim in its own way")
    rotate, sin_first = found.pop(), names[count] == "sin"

    def rotary(*args: Any, **kwargs: Any) -> Any:
        dim = default
        if kwargs or len(args) != count + 2:
            given = dict(zip(names, args, strict=False)) | kwargs
            args, dim = tuple(given[n] for n in names[: count + 2]), given.get("unsqueeze_dim", dim)
        cos, sin = args[count:]
        if sin_first:
            cos, sin = sin, cos
        if pieces > 1:
            cos = sum(cos.float().chunk(pieces, dim=-1))
            sin = sum(sin.float().chunk(pieces, dim=-1))
        if cos.shape[-1] not in widths:
            raise ValueError(
                f"patched model: expected tables of {sorted(widths)} pairs, got {cos.shape[-1]}"
            )
        layout = _LAYOUTS[dim]
        rotated = rotate(args[:count], cos, sin, layout, inplace)
        return rotated if count == 2 else rotated[0]

    rotary.__name__ = title
    return rotary


def _probe_rotation(
    original: Callable[..., Any],
    title: str,
    count: int,
    names: list[str],
    form: str,
    dim: int | None,
) -> _Rotation:
    """The rotation that gives what `original` gives on random heads and random tables."""
    batch, tokens, pairs, rest = 2, 3, 4, 6
    random = torch.Generator("cpu").manual_seed(0)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random, dtype=torch.float32)

    layout = _LAYOUTS[dim or 2]
    kwargs = {} if dim is None else {"unsqueeze_dim": dim}
    cos, sin = numbers(batch, tokens, pairs), numbers(batch, tokens, pairs)

    def find(size: int, *parts: str) -> _Rotation | None:
        heads = [numbers(batch, n, tokens, size) for n in (2, 1)[:count]]
        if layout == "bshd":
            heads = [x.transpose(1, 2) for x in heads]
        tables = [FORMS[form](cos), FORMS[form](sin)]
        outputs = original(*heads, *(tables if names[count] == "cos" else tables[::-1]), **kwargs)
        if count == 1:
            outputs = (outputs,)
        for pairing, inverse, part in itertools.product(_PAIRINGS, (False, True), parts):
            rotation = _Rotation(pairing, inverse, part)
            expected = rotation(tuple(heads), cos, sin, layout)
            if all(
                isinstance(a, Tensor) and a.shape == b.shape and torch.allclose(a, b, 1e-4, 1e-5)
                for a, b in zip(outputs, expected, strict=True)
            ):
                return rotation
        return None

    try:
        fitting = find(2 * pairs, "whole")
    except Exception as error:  # whatever a model may raise
        raise NotServed(f"{title} cannot be probed: {error}") from error
    if fitting is None:
        raise NotServed(f"{title} rotates in an unknown way")
    try:
        wider = find(2 * pairs + rest, "leading", "trailing")
    except Exception:  # it takes nothing but heads that fit
        return fitting
    if wider is None:
        raise NotServed(f"{title} rotates a part of a head in an unknown way")
    return wider


def in_pieces(table: Tensor) -> Tensor:
    """A float32 table as `PIECES` tables of bfloat16 numbers side by side, whose sum it is."""
    pieces = []
    for _ in range(PIECES):
        piece = table.bfloat16().float()
        pieces.append(piece)
        table = table - piece
    return torch.cat(pieces, dim=-1)
