"""Functions of autograd around the operators.

Each operator has up to three:

    traced     with setup_context, the only form that torch.func takes and that compiles; its apply
               inspects signatures, which takes longer than a small rotation
    eager      with everything in forward, for ordinary training
    in place   the eager one, overwriting its inputs

A backward writes gradients to fresh memory. For large ones it would take half the time to turn the
incoming gradient in place, but nothing tells for certain that nobody else holds it: reference
counts, which have no public name, leave out memory shared by NumPy, DLPack or processes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from posenc_native.base.arguments import wrong_value
from posenc_native.engines.tensors.following import needs_grad, tracing
from posenc_native.engines.tensors.library import LIBRARY, call, ops
from posenc_native.engines.tensors.results import check_no_leaf, written

Function = torch.autograd.Function


class Differentiable(NamedTuple):
    """An operator in its forms: with gradients, out of place and in place, and bare."""

    name: str
    functional: Callable[..., Any]
    in_place: Callable[..., Any]
    bare: tuple[Any, Any] | None  # functional, in place; looked up once

    @classmethod
    def of(
        cls, name: str, inputs: int, functional: Callable[..., Any], backward: Callable[..., Any]
    ) -> Differentiable:
        """The operator `name` on so many tensors, from its functional form and its backward."""
        bare = None
        if LIBRARY is not None:
            bare = getattr(ops, name).default, getattr(ops, f"{name}_").default
        return cls(name, functional, in_place_function(name, inputs, backward, functional), bare)


def shape_of(x: Tensor) -> Tensor:
    """A tensor of the shape of x that keeps none of its memory."""
    return x.detach().new_empty(()).expand(x.shape)


def apply(function: type[Function], *args: Any) -> Any:
    """Function.apply, which has no types."""
    return function.apply(*args)


def keep(ctx: Any, options: tuple[Any, ...]) -> None:
    """Keep all arguments after the inputs, tensors among them, for the backward."""
    # Saved as torch saves tensors: it notices if positions are overwritten before the backward.
    ctx.save_for_backward(*[o for o in options if isinstance(o, Tensor)])
    ctx.is_tensor = [isinstance(o, Tensor) for o in options]
    ctx.others = [None if isinstance(o, Tensor) else o for o in options]


def kept(ctx: Any) -> list[Any]:
    """What `keep` kept, in its order."""
    tensors = list(ctx.saved_tensors)
    return [
        tensors.pop(0) if is_tensor else other
        for is_tensor, other in zip(ctx.is_tensor, ctx.others, strict=True)
    ]


def in_sum_precision(x: Tensor) -> Tensor:
    """x in the precision of sums: float32, or float64 for float64."""
    return x if x.dtype == torch.float64 else x.float()


def eager_function(name: str, inputs: int, backward: Callable[..., Any]) -> type[Function]:
    """The eager Function of an operator with so many inputs."""

    def forward(ctx: Any, *args: Any) -> Any:
        keep(ctx, args[inputs:])
        return call(getattr(ops, name).default, *args)

    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type(f"{name}_eager", (Function,), members)


def in_place_function(
    name: str,
    inputs: int,
    backward: Callable[..., Any],
    functional: Callable[..., Any],
) -> Callable[..., Any]:
    """The operator in place, for inputs that require a gradient and are not leaves.

    functional: the same out of place, for inputs that autograd lets no Function overwrite.
    """

    def forward(ctx: Any, *args: Any) -> Any:
        keep(ctx, args[inputs:])
        call(getattr(ops, f"{name}_").default, *args)
        ctx.mark_dirty(*args[:inputs])
        return args[0] if inputs == 1 else args[:inputs]

    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    function = type(f"{name}_in_place", (Function,), members)

    def apply(*args: Any) -> Any:
        tensors = args[:inputs]
        if not tracing():
            check_no_leaf(*tensors)
            # A Function over views may have one output only.
            if (inputs == 1 and _may_be_written(args[0])) or all(x._base is None for x in tensors):
                return function.apply(*args)  # type: ignore[attr-defined]
        # torch's own copy refuses before it writes, where a Function finds out when it has written.
        if inputs == 1:
            return args[0].copy_(functional(*args))
        return tuple(x.copy_(y) for x, y in zip(tensors, functional(*args), strict=True))

    return apply


# Whether a view came out of a Function, of `split` and the like, or of no_grad; torch has no public
# name for it.
_creation_meta = getattr(torch._C._autograd, "_get_creation_meta", None)


def _may_be_written(x: Tensor) -> bool:
    """Whether autograd lets a Function overwrite this tensor, as far as can be told."""
    if x._base is None:
        return True
    return _creation_meta is not None and _creation_meta(x).name == "DEFAULT"


def one_tensor(
    operator: Differentiable,
    function: str,
    x: Tensor,
    options: tuple[Any, ...],
    out: Tensor | None,
    learned: bool = False,
) -> Tensor:
    """The operator functional, in place or into `out`, as `out` asks for.

    learned: an option requires a gradient.
    """
    if out is None:
        return operator.functional(x, *options)  # type: ignore[no-any-return]
    if learned or needs_grad(x):
        if out is not x:
            expected = "no out, or x itself, where a gradient is required"
            wrong_value(function, "out", expected, "another tensor")
        return operator.in_place(x, *options)  # type: ignore[no-any-return]
    if out is x:
        call(getattr(ops, f"{operator.name}_").default, x, *options)
    else:
        call(getattr(ops, f"{operator.name}_out").default, x, *options, out=out)
    return written(out)
