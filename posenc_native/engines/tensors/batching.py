"""How the operators are batched by torch.vmap: the mapped axis becomes part of the batch.

The relative operators have no rule: under torch.func they are composed of torch operations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .library import ops


def register() -> None:
    """Tell torch of the rules; once, after the library of the operators is loaded."""

    def vmap(name: str) -> Any:
        return torch.library.register_vmap(f"posenc_native::{name}")

    @vmap("sinusoidal")
    def _(info, in_dims, positions, *rest):  # type: ignore[no-untyped-def]
        return ops.sinusoidal(positions.movedim(in_dims[0], 0), *rest), 0

    @vmap("rotary_tables")
    def _(info, in_dims, positions, inv_freq, axis_map, scale, dtype):  # type: ignore[no-untyped-def]
        _only_batched("rotary_tables", in_dims, 0)
        positions = positions.movedim(in_dims[0], 0 if axis_map is None else 1)
        return ops.rotary_tables(positions, inv_freq, axis_map, scale, dtype), (0, 0)

    @vmap("add_sinusoidal")
    def _(info, in_dims, x, positions, *rest):  # type: ignore[no-untyped-def]
        x = _batch_first(x, in_dims[0], info.batch_size)
        if positions is not None and in_dims[1] is not None:
            positions = positions.movedim(in_dims[1], 0)
            shape = (info.batch_size, *(1,) * (x.ndim - 1 - positions.ndim), *positions.shape[1:])
            positions = positions.reshape(shape).expand(x.shape[:-1])
        elif positions is not None and positions.ndim > 1:
            positions = positions.expand(x.shape[:-1])
        return ops.add_sinusoidal(x, positions, *rest), 0

    # What a call leaves out, torch leaves out here too: the defaults of the schemas again.
    defaults = ("bhsd", "half", 0, None, 1.0, False)

    @vmap("rotary")
    def _(info, in_dims, x, positions, inv_freq, *options):  # type: ignore[no-untyped-def]
        options += defaults[len(options) :]
        (result,) = _batched_rotation(info, in_dims, "rotary", (x,), positions, inv_freq, options)
        return result, 0

    @vmap("rotary_qk")
    def _(info, in_dims, q, k, positions, inv_freq, *options):  # type: ignore[no-untyped-def]
        options += defaults[len(options) :]
        results = _batched_rotation(
            info, in_dims, "rotary_qk", (q, k), positions, inv_freq, options
        )
        return results, (0, 0)

    @vmap("rotary_from_tables")
    def _(info, in_dims, x, cos, sin, layout="bhsd", *rest):  # type: ignore[no-untyped-def]
        (result,) = _batched_by_tables(
            info, in_dims, "rotary_from_tables", (x,), (cos, sin), layout, rest
        )
        return result, 0

    @vmap("rotary_qk_from_tables")
    def _(info, in_dims, q, k, cos, sin, layout="bhsd", *rest):  # type: ignore[no-untyped-def]
        results = _batched_by_tables(
            info, in_dims, "rotary_qk_from_tables", (q, k), (cos, sin), layout, rest
        )
        return results, (0, 0)


def _batched_rotation(
    info: Any,
    in_dims: tuple[Any, ...],
    name: str,
    inputs: tuple[Tensor, ...],
    positions: Tensor | None,
    inv_freq: Tensor,
    options: tuple[Any, ...],
) -> tuple[Tensor, ...]:
    """A rotation by positions of x, or of q and k, mapped along in_dims."""
    layout, pairing, start, axis_map, *rest = options
    _only_batched(name, in_dims, *range(len(inputs) + 1))

    def angles(batch: int) -> tuple[Tensor | None, Tensor]:
        if positions is None:
            return None, inv_freq
        axes = 0 if axis_map is None else 1
        dim = in_dims[len(inputs)]
        return _fold_tokens(positions, dim, info.batch_size, batch, axes, 0), inv_freq

    options = (pairing, start, axis_map, *rest)
    return _batched_call(info, in_dims, name, inputs, angles, layout, options)


def _batched_by_tables(
    info: Any,
    in_dims: tuple[Any, ...],
    name: str,
    inputs: tuple[Tensor, ...],
    tables: tuple[Tensor, Tensor],
    layout: str,
    options: tuple[Any, ...],
) -> tuple[Tensor, ...]:
    """A rotation by tables of x, or of q and k, mapped along in_dims."""
    dims = in_dims[len(inputs) : len(inputs) + 2]

    def angles(batch: int) -> tuple[Tensor, ...]:
        return tuple(
            _fold_tokens(table, dim, info.batch_size, batch, 0, 1)
            for table, dim in zip(tables, dims, strict=True)
        )

    return _batched_call(info, in_dims, name, inputs, angles, layout, options)


def _batched_call(
    info: Any,
    in_dims: tuple[Any, ...],
    name: str,
    inputs: tuple[Tensor, ...],
    angles: Callable[[int], tuple[Tensor | None, ...]],
    layout: str,
    options: tuple[Any, ...],
) -> tuple[Tensor, ...]:
    """The operator on x, or on q and k; angles(b) gives what follows them, for b in a batch."""
    folded = [
        _fold_batch(x, dim, layout, info.batch_size)
        for x, dim in zip(inputs, in_dims[: len(inputs)], strict=True)
    ]
    first, batched_layout, _ = folded[0]
    batch = first.shape[batched_layout.index("b")]
    results = getattr(ops, name)(
        *(x for x, _, _ in folded), *angles(batch), batched_layout, *options
    )
    if len(inputs) == 1:
        results = (results,)
    return tuple(restore(r) for r, (_, _, restore) in zip(results, folded, strict=True))


def _only_batched(name: str, in_dims: tuple[Any, ...], *allowed: int) -> None:
    for i, dim in enumerate(in_dims):
        if dim is not None and i not in allowed:
            raise NotImplementedError(
                f"{name}: vmap over frequencies or an axis_map is not supported"
            )


def _batch_first(x: Tensor, dim: int | None, batch_size: int) -> Tensor:
    return x.expand(batch_size, *x.shape) if dim is None else x.movedim(dim, 0)


def _fold_batch(
    x: Tensor, dim: int | None, layout: str, batch_size: int
) -> tuple[Tensor, str, Callable[[Tensor], Tensor]]:
    """The mapped axis made part of b: (x, its layout, how to get the mapped axis back, first)."""
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
    """[s] or [b, s] (between other axes) of a mapped call, as it is for the folded batch."""
    batched_rank = before + 2 + after
    if dim is None:
        if values.ndim < batched_rank:
            return values  # one for all, still
        values = values.unsqueeze(before).expand(
            *values.shape[:before], batch_size, *values.shape[before:]
        )
    else:
        values = values.movedim(dim, before)
    if values.ndim == batched_rank:  # mapped [s]: the same for every b of an example
        inner = batch // batch_size
        values = values.unsqueeze(before + 1).expand(
            *values.shape[: before + 1], inner, *values.shape[before + 1 :]
        )
    return values.flatten(before, before + 1)
