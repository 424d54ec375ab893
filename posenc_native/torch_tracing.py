"""What tracing and batching need to know of the operators.

fakes   shapes, strides and dtypes of the results, for torch.compile, torch.export and meta
vmap    the mapped axis becomes part of the batch (relative: torch.func takes the composition)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_ops = torch.ops.posenc_native


def register() -> None:
    """Tell torch about all operators; once, after their library is loaded."""

    def fake(name: str) -> Any:
        return torch.library.register_fake(f"posenc_native::{name}")

    @fake("sinusoidal")
    def _(positions, dim, base, layout, shift, scale, dtype):  # type: ignore[no-untyped-def]
        return positions.new_empty((*positions.shape, dim), dtype=dtype)

    @fake("rotary_tables")
    def _(positions, inv_freq, axis_map, scale, dtype):  # type: ignore[no-untyped-def]
        rows = positions.shape if axis_map is None else positions.shape[1:]
        shape = (*rows, inv_freq.shape[0])
        return positions.new_empty(shape, dtype=dtype), positions.new_empty(shape, dtype=dtype)

    for name in ("rotary_qk", "rotary_qk_from_tables"):
        fake(name)(lambda q, k, *options: (torch.empty_like(q), torch.empty_like(k)))
    for name in ("add_sinusoidal", "rotary", "rotary_from_tables", "add_toeplitz_bias"):
        fake(name)(lambda x, *options: torch.empty_like(x))

    @fake("rotary_backward")
    def _(grad, x, positions, inv_freq, *options):  # type: ignore[no-untyped-def]
        return torch.empty_like(x), *_angle_gradients(x, positions, inv_freq, options)

    @fake("rotary_qk_backward")
    def _(grad_q, grad_k, q, k, positions, inv_freq, *options):  # type: ignore[no-untyped-def]
        angles = _angle_gradients(q, positions, inv_freq, options)
        return torch.empty_like(q), torch.empty_like(k), *angles

    for name in ("sinusoidal_out", "add_sinusoidal_out", "add_sinusoidal_", "rotary_out", "rotary_",
                 "rotary_qk_", "rotary_from_tables_out", "rotary_from_tables_",
                 "rotary_qk_from_tables_", "toeplitz_bias_out", "add_toeplitz_bias_",
                 "add_toeplitz_bias_out", "relative_gather_out",
                 "relative_scatter_out"):  # fmt: skip
        fake(name)(lambda *args, **kwargs: None)

    @fake("toeplitz_bias")
    def _(diagonals, shape, dtype, *grid):  # type: ignore[no-untyped-def]
        return diagonals.new_empty(shape, dtype=dtype)

    # The last argument is the last length.
    for name in ("relative_gather", "relative_scatter"):
        fake(name)(lambda x, *options: x.new_empty((*x.shape[:-1], options[-1])))

    @fake("diagonal_sums")
    def _(grad, keep, q_len, k_len, entries, start, q_offset):  # type: ignore[no-untyped-def]
        lengths = zip(q_len or grad.shape[-2:-1], k_len or grad.shape[-1:], strict=True)
        counts = entries or [torch.sym_max(q + k - 1, 0) for q, k in lengths]
        dtype = torch.float64 if grad.dtype == torch.float64 else torch.float32
        shape = (*grad.shape[grad.ndim - 2 - keep : -2], *counts)
        return grad.new_empty(shape, dtype=dtype)

    @fake("frequency_turns")
    def _(inv_freq):  # type: ignore[no-untyped-def]
        return inv_freq.new_empty((2, inv_freq.shape[0]), dtype=torch.int64)

    @fake("sinusoidal_turns")
    def _(dim, base, shift, scale):  # type: ignore[no-untyped-def]
        return torch.empty((2, dim // 2), dtype=torch.int64)

    def vmap(name: str) -> Any:
        return torch.library.register_vmap(f"posenc_native::{name}")

    @vmap("sinusoidal")
    def _(info, in_dims, positions, *rest):  # type: ignore[no-untyped-def]
        return _ops.sinusoidal(positions.movedim(in_dims[0], 0), *rest), 0

    @vmap("rotary_tables")
    def _(info, in_dims, positions, inv_freq, axis_map, scale, dtype):  # type: ignore[no-untyped-def]
        _only_batched("rotary_tables", in_dims, 0)
        positions = positions.movedim(in_dims[0], 0 if axis_map is None else 1)
        return _ops.rotary_tables(positions, inv_freq, axis_map, scale, dtype), (0, 0)

    @vmap("add_sinusoidal")
    def _(info, in_dims, x, positions, *rest):  # type: ignore[no-untyped-def]
        x = _batch_first(x, in_dims[0], info.batch_size)
        if positions is not None and in_dims[1] is not None:
            positions = positions.movedim(in_dims[1], 0)
            shape = (info.batch_size, *(1,) * (x.ndim - 1 - positions.ndim), *positions.shape[1:])
            positions = positions.reshape(shape).expand(x.shape[:-1])
        elif positions is not None and positions.ndim > 1:
            positions = positions.expand(x.shape[:-1])
        return _ops.add_sinusoidal(x, positions, *rest), 0

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


def _angle_gradients(
    x: Tensor, positions: Tensor | None, inv_freq: Tensor, options: tuple[Any, ...]
) -> tuple[Tensor, Tensor]:
    """Fakes of the gradients of frequencies, and of positions if they are wanted."""
    layout, _, _, axis_map, *_ = options
    sizes = dict(zip(layout.replace("t", "s"), x.shape, strict=True))
    by_axis = axis_map is not None or inv_freq.ndim == 3
    axes = positions.shape[0] if by_axis and positions is not None else 1
    shape = (axes, sizes.get("b", 1), sizes["s"]) if options[-1] else (0,)
    return (
        inv_freq.new_empty(inv_freq.shape, dtype=torch.float64),
        inv_freq.new_empty(shape, dtype=torch.float64),
    )


def _batched_rotation(
    info: Any,
    in_dims: tuple[Any, ...],
    name: str,
    inputs: tuple[Tensor, ...],
    positions: Tensor | None,
    inv_freq: Tensor,
    options: tuple[Any, ...],
) -> tuple[Tensor, ...]:
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
    results = getattr(_ops, name)(
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
