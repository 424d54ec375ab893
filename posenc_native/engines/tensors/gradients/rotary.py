"""Gradients of rotations: the same operator turned the other way, to any order.

In forward mode it is the composition that turns, and so it is where a backward that is run there
gets gradients with tangents.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from posenc_native.base.rotation import Rotation, TableRotation
from posenc_native.engines.tensors.composed import rotary as composed
from posenc_native.engines.tensors.following import forward_mode, needs_function, tracing
from posenc_native.engines.tensors.library import call, ops

from .functions import Differentiable, Function, eager_function, keep, kept


def rotary(x: Tensor, *rotation: Any) -> Tensor:
    """Differentiable ``rotary(x, *rotation)``."""
    if not needs_function(x):
        return call(ops.rotary.default, x, *rotation)  # type: ignore[no-any-return]
    if forward_mode():
        return composed.apply_rotary("apply_rotary", (x,), Rotation(*rotation))[0]
    function = _RotaryTraced if tracing() else _RotaryEager
    return function.apply(x, *rotation)  # type: ignore[no-any-return]


def rotary_qk(q: Tensor, k: Tensor, *rotation: Any) -> tuple[Tensor, Tensor]:
    """Differentiable ``rotary_qk(q, k, *rotation)``."""
    if not needs_function(q, k):
        return call(ops.rotary_qk.default, q, k, *rotation)  # type: ignore[no-any-return]
    if forward_mode():
        q, k = composed.apply_rotary("apply_rotary_qk", (q, k), Rotation(*rotation))
        return q, k
    if q is k and tracing():  # torch.compile allows no Function one tensor twice
        rotated = rotary(q, *rotation)
        return rotated, rotated
    function = _RotaryQKTraced if tracing() else _RotaryQKEager
    return function.apply(q, k, *rotation)  # type: ignore[no-any-return]


def rotary_from_tables(x: Tensor, *rotation: Any) -> Tensor:
    """Differentiable ``rotary_from_tables(x, *rotation)``."""
    if not needs_function(x):
        return call(ops.rotary_from_tables.default, x, *rotation)  # type: ignore[no-any-return]
    if forward_mode():
        return composed.apply_rotary_tables("apply_rotary_tables", (x,), TableRotation(*rotation))[
            0
        ]
    function = _FromTablesTraced if tracing() else _FromTablesEager
    return function.apply(x, *rotation)  # type: ignore[no-any-return]


def rotary_qk_from_tables(q: Tensor, k: Tensor, *rotation: Any) -> tuple[Tensor, Tensor]:
    """Differentiable ``rotary_qk_from_tables(q, k, *rotation)``."""
    if not needs_function(q, k):
        return call(ops.rotary_qk_from_tables.default, q, k, *rotation)  # type: ignore[no-any-return]
    if forward_mode():
        q, k = composed.apply_rotary_tables(
            "apply_rotary_qk_tables", (q, k), TableRotation(*rotation)
        )
        return q, k
    if q is k and tracing():  # as above
        rotated = rotary_from_tables(q, *rotation)
        return rotated, rotated
    function = _QKFromTablesTraced if tracing() else _QKFromTablesEager
    return function.apply(q, k, *rotation)  # type: ignore[no-any-return]


def _rotary_backward(ctx: Any, grad: Tensor) -> Any:
    back = Rotation(*kept(ctx)).turned_back()
    return rotary(grad, *back), *[None] * len(back)


def _rotary_qk_backward(ctx: Any, grad_q: Tensor, grad_k: Tensor) -> Any:
    back = Rotation(*kept(ctx)).turned_back()
    return *rotary_qk(grad_q, grad_k, *back), *[None] * len(back)


def _from_tables_backward(ctx: Any, grad: Tensor) -> Any:
    back = TableRotation(*kept(ctx)).turned_back()
    return rotary_from_tables(grad, *back), *[None] * len(back)


def _qk_from_tables_backward(ctx: Any, grad_q: Tensor, grad_k: Tensor) -> Any:
    back = TableRotation(*kept(ctx)).turned_back()
    return *rotary_qk_from_tables(grad_q, grad_k, *back), *[None] * len(back)


# --- Functions. The traced ones are written out: torch.compile cannot follow a factory.


class _RotaryTraced(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, *rotation: Any) -> Any:
        return ops.rotary.default(x, *rotation)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        keep(ctx, inputs[1:])

    backward = staticmethod(_rotary_backward)


class _RotaryQKTraced(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(q: Tensor, k: Tensor, *rotation: Any) -> Any:
        return ops.rotary_qk.default(q, k, *rotation)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        keep(ctx, inputs[2:])

    backward = staticmethod(_rotary_qk_backward)


class _FromTablesTraced(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, *rotation: Any) -> Any:
        return ops.rotary_from_tables.default(x, *rotation)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        keep(ctx, inputs[1:])

    backward = staticmethod(_from_tables_backward)


class _QKFromTablesTraced(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(q: Tensor, k: Tensor, *rotation: Any) -> Any:
        return ops.rotary_qk_from_tables.default(q, k, *rotation)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        keep(ctx, inputs[2:])

    backward = staticmethod(_qk_from_tables_backward)


_RotaryEager = eager_function("rotary", 1, _rotary_backward)

_RotaryQKEager = eager_function("rotary_qk", 2, _rotary_qk_backward)

_FromTablesEager = eager_function("rotary_from_tables", 1, _from_tables_backward)

_QKFromTablesEager = eager_function("rotary_qk_from_tables", 2, _qk_from_tables_backward)

ROTARY = Differentiable.of("rotary", 1, rotary, _rotary_backward)
ROTARY_QK = Differentiable.of("rotary_qk", 2, rotary_qk, _rotary_qk_backward)
FROM_TABLES = Differentiable.of("rotary_from_tables", 1, rotary_from_tables, _from_tables_backward)
QK_FROM_TABLES = Differentiable.of(
    "rotary_qk_from_tables", 2, rotary_qk_from_tables, _qk_from_tables_backward
)
