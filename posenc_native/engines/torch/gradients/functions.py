"""Operators that autograd can differentiate.

One of three autograd Functions records an operator and looks up its derivatives by its key:

    _Traced    with setup_context, the only form that torch.func takes and that compiles; its apply
               inspects signatures, which takes longer than a small rotation
    _Eager     with everything in forward, for ordinary training
    _InPlace   the eager form, overwriting its inputs

A backward writes gradients to new memory. Rotating a large incoming gradient in place would take
half the time, but it cannot be certain that nothing else holds that gradient: reference counts,
which have no public name, do not include memory shared by NumPy, DLPack or processes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from posenc_native.core.calls.arguments import wrong_value
from posenc_native.engines.following import needs_grad, tracing
from posenc_native.engines.torch.library import call, forms_of
from posenc_native.engines.torch.results import check_no_leaf, written


class Differentiable:
    """An operator and its derivatives. A call returns new tensors."""

    def __init__(self, name: str, inputs: int = 1) -> None:
        """inputs: the number of arguments, from the first on, that an in-place call overwrites."""
        self.name = name
        self.inputs = inputs
        self.key = f"{type(self).__name__} {name}"
        self.bare = forms_of(name)
        _KNOWN[self.key] = self

    def forward(self, *args: Any) -> Any:
        """The results, without autograd."""
        return call(self.bare.new, *args)

    def keeps(self, *args: Any) -> tuple[Any, ...]:
        """The arguments to keep for the backward, where they are `kept`."""
        return args[self.inputs :]

    def backward(self, kept: list[Any], wanted: Sequence[bool], *grads: Tensor) -> Any:
        """Gradients of the first arguments, from those of the results; other arguments have none.

        wanted: for each argument, whether it needs a gradient.
        """
        raise NotImplementedError

    def __call__(self, *args: Any) -> Any:
        """The results as new tensors."""
        if needs_grad(*[arg for arg in args if isinstance(arg, Tensor)]):
            return self.followed(*args)
        return self.forward(*args)

    def followed(self, *args: Any) -> Any:
        """The results, recorded by autograd."""
        if tracing():
            return _Traced.apply(self.key, *args)  # type: ignore[no-untyped-call]
        return _eagerly(_Eager, self, args)

    def in_place(self, *args: Any) -> Any:
        """Apply the operator in place to inputs, some of which require a gradient."""
        tensors = args[: self.inputs]
        if not tracing():
            check_no_leaf(*tensors)
            # A Function over views may have one output only.
            single = self.inputs == 1 and _may_be_written(args[0])
            if single or all(x._base is None for x in tensors):
                return _eagerly(_InPlace, self, args)
        # torch's copy raises before it writes; a Function would raise only after it has written.
        results = self(*args)
        if self.inputs == 1:
            return args[0].copy_(results)
        return tuple(x.copy_(y) for x, y in zip(tensors, results, strict=True))


_KNOWN: dict[str, Differentiable] = {}


def _places(args: tuple[Any, ...]) -> list[int]:
    """The indices of the arguments that are tensors."""
    return [i for i, arg in enumerate(args) if isinstance(arg, Tensor)]


def _keep(ctx: Any, options: tuple[Any, ...]) -> None:
    ctx.places = _places(options)
    # Saved with torch's function, which notices if positions are overwritten before the backward.
    ctx.save_for_backward(*[options[i] for i in ctx.places])
    ctx.others = list(options)
    for i in ctx.places:
        ctx.others[i] = None


def _kept(ctx: Any) -> list[Any]:
    options = list(ctx.others)
    for i, tensor in zip(ctx.places, ctx.saved_tensors, strict=True):
        options[i] = tensor
    return options


# Whether a tensor hides the axis of a batch of gradients; torch has no public name for it.
_is_batched = getattr(torch._C._functorch, "is_legacy_batchedtensor", lambda x: False)


def per_gradient(backward: Callable[..., Any], grads: Sequence[Any]) -> Any:
    """backward(*grads); for a batch of gradients (``is_grads_batched``), once for each of them.

    A Function loses the graph of batched tensors without an error, and few operations take them.
    """
    if torch.compiler.is_compiling():
        return backward(*grads)
    at = [i for i, grad in enumerate(grads) if grad is not None and _is_batched(grad)]
    if not at:
        return backward(*grads)
    levels, batches = zip(*(_unbatched(grads[i]) for i in at), strict=True)
    results = []
    for unbatched in zip(*batches, strict=True):
        single = list(grads)
        for i, grad in zip(at, unbatched, strict=True):
            single[i] = grad
        results.append(backward(*single))
    return [
        None if column[0] is None else torch._add_batch_dim(torch.stack(column), 0, levels[0])
        for column in zip(*results, strict=True)
    ]


def _unbatched(grad: Tensor) -> tuple[int, Tensor]:
    """The level of a batch and its gradients, [batch, ...].

    Levels are tried, because threads of a GPU do not know which are active.
    """
    for level in range(1, 64):
        gradients = torch._remove_batch_dim(grad, level, 1, 0)
        if not _is_batched(gradients):
            return level, gradients
    raise NotImplementedError("posenc_native: batches of batches of gradients are not supported")


class _Traced(torch.autograd.Function):
    """For torch.compile and torch.func."""

    generate_vmap_rule = True

    @staticmethod
    def forward(key: str, *args: Any) -> Any:
        return _KNOWN[key].forward(*args)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        key, *args = inputs
        ctx.key, ctx.count = key, len(args)
        _keep(ctx, _KNOWN[key].keeps(*args))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        backward = partial(_KNOWN[ctx.key].backward, _kept(ctx), ctx.needs_input_grad[1:])
        gradients = per_gradient(backward, grads)
        return None, *gradients, *[None] * (ctx.count - len(gradients))


# torch inspects every argument of a Function, which takes longer than finding the tensors here. The
# eager Functions therefore get the operator, its arguments as a tuple, and the tensors among them.


def _eagerly(function: Any, operator: Differentiable, args: tuple[Any, ...]) -> Any:
    places = _places(args)
    return function.apply(operator, args, places, *[args[i] for i in places])


def _backward(ctx: Any, *grads: Tensor) -> Any:
    places = ctx.of_args
    wanted = [False] * ctx.count
    for i, need in zip(places, ctx.needs_input_grad[3:], strict=True):
        wanted[i] = need
    gradients = per_gradient(partial(ctx.operator.backward, _kept(ctx), wanted), grads)
    return None, None, None, *[gradients[i] if i < len(gradients) else None for i in places]


class _Eager(torch.autograd.Function):
    """For ordinary training."""

    @staticmethod
    def forward(
        ctx: Any,
        operator: Differentiable,
        args: tuple[Any, ...],
        places: list[int],
        *tensors: Tensor,
    ) -> Any:
        ctx.operator, ctx.of_args, ctx.count = operator, places, len(args)
        _keep(ctx, operator.keeps(*args))
        return operator.forward(*args)

    backward = staticmethod(_backward)


class _InPlace(torch.autograd.Function):
    """For inputs that require a gradient and are not leaves."""

    @staticmethod
    def forward(
        ctx: Any,
        operator: Differentiable,
        args: tuple[Any, ...],
        places: list[int],
        *tensors: Tensor,
    ) -> Any:
        ctx.operator, ctx.of_args, ctx.count = operator, places, len(args)
        _keep(ctx, operator.keeps(*args))
        inputs = args[: operator.inputs]
        call(operator.bare.in_place, *args)
        ctx.mark_dirty(*inputs)
        return inputs[0] if operator.inputs == 1 else inputs

    backward = staticmethod(_backward)


# Whether a view comes from a Function, from `split` and the like, or from no_grad; torch has no
# public name for it.
_creation_meta = getattr(torch._C._autograd, "_get_creation_meta", None)


def _may_be_written(x: Tensor) -> bool:
    """Whether autograd lets a Function overwrite this tensor, as far as can be determined."""
    if x._base is None:
        return True
    return _creation_meta is not None and _creation_meta(x).name == "DEFAULT"


def shape_of(x: Tensor) -> Tensor:
    """A tensor with the shape of x that keeps none of its memory."""
    return x.detach().new_empty(()).expand(x.shape)


def in_sum_precision(x: Tensor) -> Tensor:
    """x in the precision of sums: float32, or float64 for float64."""
    return x if x.dtype == torch.float64 else x.float()


def one_tensor(
    operator: Differentiable,
    function: str,
    x: Tensor,
    options: tuple[Any, ...],
    out: Tensor | None,
    learned: bool = False,
) -> Tensor:
    """Apply the operator to a new tensor, in place, or into `out`, depending on `out`.

    learned: an option requires a gradient.
    """
    if out is None:
        return operator(x, *options)  # type: ignore[no-any-return]
    if learned or needs_grad(x):
        if out is not x:
            expected = "no out, or x itself, if a gradient is required"
            wrong_value(function, "out", expected, "another tensor")
        return operator.in_place(x, *options)  # type: ignore[no-any-return]
    if out is x:
        call(operator.bare.in_place, x, *options)
    else:
        call(operator.bare.to_out, x, *options, out=out)
    return written(out)
