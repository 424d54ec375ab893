"""Rules of torch.vmap for the operators: the mapped axis becomes part of the batch.

The relative operators have no rule: under torch.func plain operations compute them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from posenc_native.core.calls.rotation import flat, from_flat, schema
from posenc_native.engines.verbs import RotaryVerb

from .library import ops


def sinusoidal(info: Any, in_dims: Any, positions: Tensor, *rest: Any) -> tuple[Tensor, int]:
    """Positions."""
    return ops.sinusoidal(positions.movedim(in_dims[0], 0), *rest), 0


def rotary_tables(
    info: Any, in_dims: Any, positions: Tensor, inv_freq: Tensor, axis_map: Any, *rest: Any
) -> Any:
    """Positions; frequencies are the same for all."""
    _only_batched("rotary_tables", in_dims, 0)
    positions = positions.movedim(in_dims[0], 0 if axis_map is None else 1)
    return ops.rotary_tables(positions, inv_freq, axis_map, *rest), (0, 0)


def add_sinusoidal(info: Any, in_dims: Any, x: Tensor, positions: Any, *rest: Any) -> Any:
    """x, and positions."""
    x = _batch_first(x, in_dims[0], info.batch_size)
    if positions is not None and in_dims[1] is not None:
        positions = positions.movedim(in_dims[1], 0)
        shape = (info.batch_size, *(1,) * (x.ndim - 1 - positions.ndim), *positions.shape[1:])
        positions = positions.reshape(shape).expand(x.shape[:-1])
    elif positions is not None and positions.ndim > 1:
        positions = positions.expand(x.shape[:-1])
    return ops.add_sinusoidal(x, positions, *rest), 0


def rotation(
    name: str, verb: RotaryVerb, tables: bool, info: Any, in_dims: tuple[Any, ...], *args: Any
) -> tuple[Any, Any]:
    """A rotation of x, or of q and k; options that a call omits have their defaults."""
    names, inputs = schema(tables), len(verb.rotated)
    options = dict(zip(names, flat(from_flat(args[inputs:], tables)), strict=True))
    folded = [
        _fold_batch(x, dim, options["layout"], info.batch_size)
        for x, dim in zip(args[:inputs], in_dims, strict=False)
    ]
    layout = folded[0][1]

    def tokens(option: str, before: int = 0, after: int = 0, by_head: bool = False) -> Any:
        """An option with values per token, for the folded batch."""
        values: Any = options[option]
        if values is None:
            return None
        x = folded[option.startswith("k_")][0]
        batch = x.shape[layout.index("b")]
        dim = in_dims[inputs + names.index(option)]
        # Per head: [b, h, s, P], or [h, s, P] if the example has no batch.
        rank = values.ndim - (dim is not None)
        batched = "b" in options["layout"]
        if by_head and rank == before + batched + 3:
            after += 1
            if not batched and dim is None:
                values = values.unsqueeze(before)
        return _fold_tokens(values, dim, info.batch_size, batch, before, after)

    by_axis = options["axis_map"] is not None
    if not tables:
        by_token: tuple[str, ...] = ("positions", "k_positions")
        by_axis = by_axis or options["inv_freq"].ndim == 3
        axes: dict[str, Any] = {"before": int(by_axis)}
    elif options["rows"] is not None:
        by_token, axes = ("rows", "k_rows"), {}
    else:
        by_token = ("cos", "sin", "k_cos", "k_sin")
        axes = {"before": int(by_axis), "after": 1, "by_head": "h" in options["layout"]}
    fields = [inputs + names.index(option) for option in by_token]
    _only_batched(name, in_dims, *range(inputs), *fields)
    options |= {option: tokens(option, **axes) for option in by_token}
    options["layout"] = layout
    results = getattr(ops, name)(*(x for x, _, _ in folded), *options.values())
    if inputs == 1:
        return folded[0][2](results), 0
    restored = (restore(r) for r, (_, _, restore) in zip(results, folded, strict=True))
    return tuple(restored), (0, 0)


def _only_batched(name: str, in_dims: tuple[Any, ...], *allowed: int) -> None:
    for i, dim in enumerate(in_dims):
        if dim is not None and i not in allowed:
            raise NotImplementedError(
                f"{name}: vmap over frequencies, an axis_map or tables with rows is not supported"
            )


def _batch_first(x: Tensor, dim: int | None, batch_size: int) -> Tensor:
    return x.expand(batch_size, *x.shape) if dim is None else x.movedim(dim, 0)


def _fold_batch(
    x: Tensor, dim: int | None, layout: str, batch_size: int
) -> tuple[Tensor, str, Callable[[Tensor], Tensor]]:
    """Make the mapped axis part of b; returns x, its layout, and a function to unfold a result."""
    x = _batch_first(x, dim, batch_size)
    if "b" not in layout:
        return x, "b" + layout.replace("t", "s"), lambda y: y
    at = layout.index("b")
    sizes = (batch_size, x.shape[1 + at])
    folded = x.movedim(0, at).flatten(at, at + 1)
    return folded, layout, lambda y: y.unflatten(at, sizes).movedim(at, 0)


def _fold_tokens(
    values: Tensor, dim: int | None, batch_size: int, batch: int, before: int, after: int
) -> Tensor:
    """Values [s], [1, s] or [b, s] (between other axes) of a mapped call, for the folded batch."""
    batched_rank = before + 2 + after
    if dim is None:
        if values.ndim < batched_rank or values.shape[before] == 1:
            return values  # still the same for all
        values = values.unsqueeze(before).expand(
            *values.shape[:before], batch_size, *values.shape[before:]
        )
    else:
        values = values.movedim(dim, before)
    if values.ndim == batched_rank:  # mapped [s]
        values = values.unsqueeze(before + 1)
    if values.shape[before + 1] == 1:  # the same for every b of an example
        inner = batch // batch_size
        values = values.expand(*values.shape[: before + 1], inner, *values.shape[before + 2 :])
    return values.flatten(before, before + 1)
