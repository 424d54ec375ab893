"""Fake implementations of the operators: the shapes, strides and dtypes of results.

torch.compile, torch.export and the meta device need them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from posenc_native.core.calls.caches import Cache
from posenc_native.core.calls.norms import Norm
from posenc_native.core.calls.rotation import Rotation
from posenc_native.engines.verbs import NORM_ROTARY_QK


def register(operator: str, forms: tuple[str, ...], new: Callable[..., Any]) -> None:
    """Register the fakes of an operator: its new results, and none of its other forms."""
    for form in forms:
        _fake(operator + form)(_nothing if form else new)


def _fake(name: str) -> Any:
    return torch.library.register_fake(f"posenc_native::{name}")


def _nothing(*args: Any, **outs: Any) -> None:
    pass


def like_x(x: Tensor, *options: Any) -> Tensor:
    """A result like the first input."""
    return torch.empty_like(x)


def like_q_and_k(q: Tensor, k: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
    """Results like the first two inputs."""
    return torch.empty_like(q), torch.empty_like(k)


def appended(q: Tensor, k: Tensor, v: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
    """q, and k if it is returned."""
    return_k = Cache(*options[-len(Cache._fields) :]).return_k
    return torch.empty_like(q), torch.empty_like(k) if return_k else k.new_empty(0)


def sinusoidal(
    positions: Tensor, dim: int, base: float, layout: str, shift: float, scale: float, dtype: Any
) -> Tensor:
    """A table."""
    return positions.new_empty((*positions.shape, dim), dtype=dtype)


def rotary_tables(
    positions: Tensor, inv_freq: Tensor, axis_map: Tensor | None, scale: float, dtype: Any
) -> tuple[Tensor, Tensor]:
    """cos and sin."""
    rows = positions.shape if axis_map is None else positions.shape[1:]
    shape = (*rows, inv_freq.shape[0])
    return positions.new_empty(shape, dtype=dtype), positions.new_empty(shape, dtype=dtype)


def toeplitz_bias(diagonals: Tensor, shape: Any, dtype: Any, *grid: Any) -> Tensor:
    """A bias."""
    return diagonals.new_empty(shape, dtype=dtype)


def of_last_axis(x: Tensor, *options: Any) -> Tensor:
    """A result with another last axis, whose length is the last argument."""
    return x.new_empty((*x.shape[:-1], options[-1]))


def diagonal_sums(
    grad: Tensor, keep: int, q_len: Any, k_len: Any, entries: Any, start: Any, q_offset: Any
) -> Tensor:
    """Sums along diagonals."""
    lengths = zip(q_len or grad.shape[-2:-1], k_len or grad.shape[-1:], strict=True)
    counts = entries or [torch.sym_max(q + k - 1, 0) for q, k in lengths]
    dtype = torch.float64 if grad.dtype == torch.float64 else torch.float32
    shape = (*grad.shape[grad.ndim - 2 - keep : -2], *counts)
    return grad.new_empty(shape, dtype=dtype)


def register_others() -> None:
    """Register the fakes of operators without a verb here: gradients, turns, phases and steps."""

    @_fake("rotary_backward")
    def _(grad, x, *options, of_positions):  # type: ignore[no-untyped-def]
        return torch.empty_like(x), *_angle_gradients(x, Rotation(*options), of_positions)

    @_fake("rotary_qk_backward")
    def _(grad_q, grad_k, q, k, *options, of_positions):  # type: ignore[no-untyped-def]
        of_angles = _angle_gradients(q, Rotation(*options), of_positions)
        return torch.empty_like(q), torch.empty_like(k), *of_angles

    for operator in NORM_ROTARY_QK.operators:
        _fake(f"{operator}_backward")(_norm_gradients)

    @_fake("accumulated_phases")
    def _(steps, state):  # type: ignore[no-untyped-def]
        return steps.new_empty(steps.shape, dtype=torch.int64)

    @_fake("phase_tables")
    def _(phases, dtype):  # type: ignore[no-untyped-def]
        return tuple(phases.new_empty(phases.shape, dtype=dtype) for _ in range(2))

    for name, count in (("rotary_by_steps", 1), ("rotary_qk_by_steps", 2)):
        _register_by_steps(name, count)

    @_fake("frequency_turns")
    def _(inv_freq):  # type: ignore[no-untyped-def]
        return inv_freq.new_empty((2, inv_freq.shape[0]), dtype=torch.int64)

    @_fake("sinusoidal_turns")
    def _(dim, base, shift, scale):  # type: ignore[no-untyped-def]
        return torch.empty((2, dim // 2), dtype=torch.int64)


def _register_by_steps(name: str, count: int) -> None:
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
        grads = tuple(map(torch.empty_like, args[count : 2 * count]))
        return grads if count > 1 else grads[0]

    _fake(name)(results)
    for form in ("_", "_out"):
        _fake(name + form)(lambda *args, **outs: state(*args[count:]))
    _fake(f"{name}_backward")(gradients)


def _norm_gradients(grad_q: Tensor, grad_k: Tensor, q: Tensor, k: Tensor, *options: Any) -> Any:
    """Fakes of the gradients of q, k and their weights, which are flat."""
    weights = options[-len(Norm._fields) :][:2]
    sizes = [0 if weight is None else weight.numel() for weight in weights]
    sums = [q.new_empty(size, dtype=torch.float64) for size in sizes]
    return torch.empty_like(q), torch.empty_like(k), *sums


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
