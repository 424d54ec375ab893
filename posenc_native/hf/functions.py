"""The replacement of a model's own rotary function."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from posenc_native.engines import backend, late

from .forms import Form
from .holders import nobody_else_sees
from .normed.norms import PutOff, now
from .rotation import Rotation
from .signatures import is_table, rotary_arguments, title_of

__all__ = ["PIECES", "Replacement", "TablesInUse", "in_pieces", "rotary_function"]

# A float32 is the sum of three numbers with 8 significant bits, which a cast to bfloat16 keeps.
PIECES = 3


class TablesInUse:
    """How tables of one width are used.

    Attributes:
        form: their form in the model.
        rotation: the function's rotation by them; None if that is unknown.
        inserted: the axes to remove from them.
        widened: indices of columns, for the form.
        picked: the same for the rotation, if it needs other columns than there are.
    """

    def __init__(self, form: Form, columns: tuple[int, ...], rotation: Rotation | None) -> None:
        self.form, self.rotation = form, rotation
        self.inserted = form.inserted[::-1]
        self.widened = torch.tensor([columns.index(angle) for angle in form.columns])
        self.picked: Tensor | None = None
        if rotation is not None and rotation.order != columns:
            self.picked = torch.tensor([columns.index(angle) for angle in rotation.order])


class Replacement(NamedTuple):
    """A rotary function of a model, its replacement, and its tables by their number of columns."""

    own: Callable[..., Any]
    ours: Callable[..., Any]
    tables: dict[int, TablesInUse]


def rotary_function(
    original: Callable[..., Any],
    uses: dict[int, TablesInUse],
    *,
    inplace: bool | None = False,
    pieces: int = 1,
) -> Callable[..., Any]:
    """A function with the arguments of a model's own, for exact tables with columns in our order.

    A call with arguments other than heads and tables, or one that the rotation does not cover, goes
    to the model's own function, with exact tables in the form that it expects.

    The function has one more keyword, ``norms_``: the norms still to be applied to the heads.

    Args:
        original: the model's function.
        uses: the use of a table, by its number of columns. Another number is an error: the model
            has cut a table to a size that was meant for its own form.
        inplace: rotate q and k in place if no gradient is needed; None: if nothing else can see it.
        pieces: the number of parts, side by side, whose sum is the table (`in_pieces`).
    """
    parameters = inspect.signature(original).parameters
    names = tuple(parameters)
    defaults = {name: parameter.default for name, parameter in parameters.items()}
    default_dim = defaults.get("unsqueeze_dim")
    table_names = tuple(name for name in names if is_table(name))
    cos_and_sin = tuple(sorted(table_names[:2])) if len(table_names) > 1 else table_names
    packing = next(iter(uses.values())).form.packing
    whole = packing == "cos, sin" and pieces == 1
    rotates = any(use.rotation for use in uses.values())
    known = rotary_arguments(original) if rotates else None
    head_names = known.heads if known else ()
    ignored = {*table_names, *head_names, *(known.positions if known else ()), "unsqueeze_dim"}
    # A call with this many positional arguments has heads and tables and nothing else.
    usual = len(head_names) + len(cos_and_sin)
    if not known or {*names[:usual]} != {*head_names, *cos_and_sin}:
        usual = -1
    settled: tuple[Callable[..., Any], ...] = ()
    settled_norms: tuple[Callable[..., Any], ...] = ()
    if whole and names[:usual] == (*head_names, *cos_and_sin):
        settled = settled_rotations(uses, default_dim, len(head_names), bool(inplace))
        # Other code may hold q and k from before a norm: they are never overwritten.
        settled_norms = settled_rotations(uses, default_dim, len(head_names), False, norms=True)
    two = len(head_names) == 2
    first_head = names.index(head_names[0]) if known else 0
    last_head = first_head + len(head_names)
    places = [names.index(name) for name in cos_and_sin]
    first_tensor = next(name for name in names if name not in table_names)

    def rotary(*args: Any, norms_: tuple[PutOff | None, ...] | None = None, **kwargs: Any) -> Any:
        if len(args) == usual and not kwargs:
            if norms_ is None:
                for bound in settled:
                    rotated = backend.door.call_bound(bound, *args)
                    if rotated is not NotImplemented:
                        return rotated if two else rotated[0]
            elif settled_norms:
                q_norm, k_norm = norms_
                if q_norm and k_norm and q_norm[2:5] == k_norm[2:5]:
                    for bound in settled_norms:
                        rotated = backend.door.call_bound(
                            bound, *args, q_norm.weight, k_norm.weight, *q_norm[2:5]
                        )
                        if rotated is not NotImplemented:
                            return rotated
        if len(args) == usual and not kwargs:
            heads, dim, plain = args[first_head:last_head], default_dim, True
            cos, sin = args[places[0]], args[places[-1]]
        else:
            arguments = dict(zip(names, args, strict=False)) | kwargs
            heads = tuple(arguments.get(name) for name in head_names)
            dim = arguments.get("unsqueeze_dim", default_dim)
            cos, sin = arguments[cos_and_sin[0]], arguments[cos_and_sin[-1]]
            plain = rotates and all(
                n in ignored or _is_default(value, defaults.get(n))
                for n, value in arguments.items()
            )
            arguments = {}  # `nobody_else_sees` counts the references to heads
        if not whole:
            cos, sin = _cos_and_sin_of(cos, sin, packing, pieces)
        width = cos.shape[-1]
        if width not in uses:
            raise ValueError(
                f"patched model: expected tables of {sorted(uses)} columns, got {width}"
            )
        use = uses[width]
        if plain and use.rotation is not None and heads[-1] is not None:
            for axis in use.inserted:
                cos, sin = cos.squeeze(axis), sin.squeeze(axis)
            layout = use.rotation.layout(heads, cos.shape, dim)
            if layout is not None:
                if use.picked is not None:
                    index = use.picked.to(cos.device)
                    cos, sin = cos[..., index], sin[..., index]
                overwrite = nobody_else_sees(heads) if inplace is None else inplace
                # Other code may hold q and k from before a norm: the values are k in Gemma 4.
                if norms_ is not None and inplace:
                    overwrite = False
                rotated = use.rotation(heads, cos, sin, layout, overwrite, norms_)
                return rotated if len(rotated) > 1 else rotated[0]
        arguments = dict(zip(names, args, strict=False)) | kwargs
        for name, norm in zip(head_names, norms_ or (), strict=False):
            arguments[name] = now(norm, arguments[name])
        index = use.widened.to(cos.device)
        dtype = None if use.rotation and use.rotation.keeps_dtype else arguments[first_tensor].dtype
        for name in table_names:
            arguments[name] = _as_the_model_has_it(arguments[name], packing, pieces, index, dtype)
        return original(**arguments)

    rotary.__name__ = title_of(original)
    return rotary


def settled_rotations(
    uses: dict[int, TablesInUse], dim: Any, heads: int, inplace: bool, norms: bool = False
) -> tuple[Callable[..., Any], ...]:
    """Native calls for plain tensors, in the usual order of arguments.

    Everything that is the same in every layer and step is determined here. Each call returns
    NotImplemented for unsupported arguments, before it writes anything.
    """
    if backend.implementation is not backend.native or (norms and heads != 2):
        return ()
    late.torch_operations()  # without it no tensor is read
    settled = []
    for columns, use in uses.items():
        rotation = use.rotation
        if rotation is None or rotation.pairing is None or use.picked is not None or use.inserted:
            continue
        if norms and (rotation.inverse or not rotation.keeps_pairs):
            continue
        layouts: dict[str, int] = {}
        for (_, rank, unsqueeze_dim), layout in rotation.layouts.items():
            # A table without a batch axis also lacks the axes that the layout lacks.
            if unsqueeze_dim == dim and rank == 2 + ("b" in layout):
                layouts[layout] = layouts.get(layout, 0) | 1 << rank
        settled += [
            backend.native.bind_tables(
                heads, layout, ranks, columns, rotation.dims if rotation.part == "whole" else -1,
                rotation.part == "trailing", rotation.pairing, rotation.inverse,
                rotation.out_pairing, inplace, norms,
            )
            for layout, ranks in layouts.items()
        ]  # fmt: skip
    return tuple(settled)


def _is_default(value: Any, default: Any) -> bool:
    """Whether an argument is its default. Tensors are not compared."""
    return value is default or (isinstance(value, (bool, int, float, str)) and value == default)


def _cos_and_sin_of(cos: Tensor, sin: Tensor, packing: str, pieces: int) -> tuple[Tensor, Tensor]:
    """cos and sin from the arguments of a rotary function, or from one tensor with both."""
    if packing == "cos, sin":
        return sum(cos.float().chunk(pieces, dim=-1)), sum(sin.float().chunk(pieces, dim=-1))  # type: ignore[return-value]
    first, second = cos.chunk(2, dim=-1)
    return (second, first) if packing == "sin|cos" else (first, second)


def _as_the_model_has_it(
    table: Tensor, packing: str, pieces: int, index: Tensor, dtype: torch.dtype | None
) -> Tensor:
    """A table in the form that the model's own function expects."""
    if packing == "cos, sin":
        if pieces > 1:
            table, _ = _cos_and_sin_of(table, table, packing, pieces)
        return table[..., index].to(dtype or table.dtype)
    cos, sin = (part[..., index] for part in _cos_and_sin_of(table, table, packing, pieces))
    if packing == "complex":
        return torch.complex(cos, sin)
    return torch.cat((sin, cos), dim=-1).to(dtype or table.dtype)


def in_pieces(table: Tensor) -> Tensor:
    """A float32 table as the sum of `PIECES` tables of bfloat16 numbers, side by side."""
    pieces = []
    for _ in range(PIECES):
        piece = table.bfloat16().float()
        pieces.append(piece)
        table = table - piece
    return torch.cat(pieces, dim=-1)
