"""Fake implementations of the operators: the shapes, strides and dtypes of results.

torch.compile, torch.export and the meta device need them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from posenc_native.core.calls.caches import Cache
from posenc_native.core.calls.norms import Norm
from posenc_native.core.calls.rotation import Rotation


def register() -> None:
    """Register the fakes of all operators with torch, once, after their library is loaded."""

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

    for suffix in ("", "_from_tables"):
        fake(f"norm_rotary_qk{suffix}")(
            lambda q, k, *options: (torch.empty_like(q), torch.empty_like(k))
        )
        fake(f"norm_rotary_qk{suffix}_backward")(_norm_gradients)
        fake(f"rotary_append{suffix}")(_appended)

    @fake("rotary_backward")
    def _(grad, x, *options, of_positions):  # type: ignore[no-untyped-def]
        return torch.empty_like(x), *_angle_gradients(x, Rotation(*options), of_positions)

    @fake("rotary_qk_backward")
    def _(grad_q, grad_k, q, k, *options, of_positions):  # type: ignore[no-untyped-def]
        of_angles = _angle_gradients(q, Rotation(*options), of_positions)
        return torch.empty_like(q), torch.empty_like(k), *of_angles

    for name in ("sinusoidal_out", "add_sinusoidal_out", "add_sinusoidal_", "rotary_out", "rotary_",
                 "rotary_qk_out", "rotary_qk_", "rotary_from_tables_out", "rotary_from_tables_",
                 "rotary_qk_from_tables_out", "rotary_qk_from_tables_", "toeplitz_bias_out",
                 "add_toeplitz_bias_", "add_toeplitz_bias_out", "relative_gather_out",
                 "relative_scatter_out", "norm_rotary_qk_", "norm_rotary_qk_from_tables_",
                 "norm_rotary_qk_out", "norm_rotary_qk_from_tables_out", "rotary_append_",
                 "rotary_append_from_tables_", "rotary_append_out",
                 "rotary_append_from_tables_out"):  # fmt: skip
        fake(name)(lambda *args, **kwargs: None)

    @fake("toeplitz_bias")
    def _(diagonals, shape, dtype, *grid):  # type: ignore[no-untyped-def]
        return diagonals.new_empty(shape, dtype=dtype)

    # The last argument of both is the length of the last axis of the result.
    for name in ("relative_gather", "relative_scatter"):
        fake(name)(lambda x, *options: x.new_empty((*x.shape[:-1], options[-1])))

    @fake("diagonal_sums")
    def _(grad, keep, q_len, k_len, entries, start, q_offset):  # type: ignore[no-untyped-def]
        lengths = zip(q_len or grad.shape[-2:-1], k_len or grad.shape[-1:], strict=True)
        counts = entries or [torch.sym_max(q + k - 1, 0) for q, k in lengths]
        dtype = torch.float64 if grad.dtype == torch.float64 else torch.float32
        shape = (*grad.shape[grad.ndim - 2 - keep : -2], *counts)
        return grad.new_empty(shape, dtype=dtype)

    @fake("accumulated_phases")
    def _(steps, state):  # type: ignore[no-untyped-def]
        return steps.new_empty(steps.shape, dtype=torch.int64)

    @fake("phase_tables")
    def _(phases, dtype):  # type: ignore[no-untyped-def]
        return tuple(phases.new_empty(phases.shape, dtype=dtype) for _ in range(2))

    for name, count in (("rotary_by_steps", 1), ("rotary_qk_by_steps", 2)):
        _register_by_steps(fake, name, count)

    @fake("frequency_turns")
    def _(inv_freq):  # type: ignore[no-untyped-def]
        return inv_freq.new_empty((2, inv_freq.shape[0]), dtype=torch.int64)

    @fake("sinusoidal_turns")
    def _(dim, base, shift, scale):  # type: ignore[no-untyped-def]
        return torch.empty((2, dim // 2), dtype=torch.int64)


def _register_by_steps(fake: Any, name: str, count: int) -> None:
    """Fakes of a rotation by steps, for one or two tensors."""

    # If all options have their defaults, torch.compile does not pass them while it traces.
    def state(
        steps: Tensor, _: Any, starts: Tensor | None, layout: str = "bhsd", *others: Any
    ) -> Tensor:
        inner = [steps.shape[layout.index(letter)] for letter in "bh" if letter in layout]
        if starts is not None:
            inner = [starts.shape[0] - 1, *inner]
        return steps.new_empty((*inner, steps.shape[-1]), dtype=torch.int64)

    def results(*args: Any) -> Any:
        return *map(torch.empty_like, args[:count]), state(*args[count:])

    def gradients(*args: Any) -> Any:
        found = tuple(map(torch.empty_like, args[count : 2 * count]))
        return found if count > 1 else found[0]

    fake(name)(results)
    for form in ("_", "_out"):
        fake(name + form)(lambda *args, **outs: state(*args[count:]))
    fake(f"{name}_backward")(gradients)


def _norm_gradients(grad_q: Tensor, grad_k: Tensor, q: Tensor, k: Tensor, *options: Any) -> Any:
    """Fakes of the gradients of q, k and their weights, which are flat."""
    weights = options[-len(Norm._fields) :][:2]
    sizes = [0 if weight is None else weight.numel() for weight in weights]
    sums = [q.new_empty(size, dtype=torch.float64) for size in sizes]
    return torch.empty_like(q), torch.empty_like(k), *sums


def _appended(q: Tensor, k: Tensor, v: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
    return_k = Cache(*options[-len(Cache._fields) :]).return_k
    return torch.empty_like(q), torch.empty_like(k) if return_k else k.new_empty(0)


def _angle_gradients(x: Tensor, rotation: Rotation, of_positions: bool) -> tuple[Tensor, Tensor]:
    """Fakes of the gradients of frequencies, and of positions if requested."""
    positions, inv_freq = rotation.positions, rotation.inv_freq
    sizes = dict(zip(rotation.layout.replace("t", "s"), x.shape, strict=True))
    by_axis = rotation.axis_map is not None or inv_freq.ndim == 3
    axes = positions.shape[0] if by_axis and positions is not None else 1
    shape = (axes, sizes.get("b", 1), sizes["s"]) if of_positions else (0,)
    return (
        inv_freq.new_empty(inv_freq.shape, dtype=torch.float64),
        inv_freq.new_empty(shape, dtype=torch.float64),
    )
