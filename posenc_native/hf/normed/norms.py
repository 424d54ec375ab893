"""Find out what a norm module computes by calling it; and a norm that is postponed."""

from __future__ import annotations

import collections
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules import module as every_module

from posenc_native.hf.forms import NotServed
from posenc_native.hf.signatures import is_compiled

__all__ = [
    "NormProbe", "PutOff", "at_once", "now", "over", "probe_norm", "unless",
    "with_own_weight",
]  # fmt: skip

_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


class PutOff(NamedTuple):
    """A pending norm; eps and offset are as in `posenc_native.norm_rotary_qk`."""

    module: nn.Module  # the module of the norm
    weight: Tensor | None  # ``[D]`` or, for all heads in a row, ``[H * D]``; None for none
    eps: float
    offset: float
    promotes: bool  # whether the result has the promoted dtype of x and the weight, not that of x
    heads_axis: int  # the axis of heads in x when x is rotated


def over(norm: PutOff, x: Tensor) -> Literal["head", "token"]:
    """The axis of the mean, as `posenc_native.norm_rotary_qk` calls it."""
    weight = norm.weight
    return "head" if weight is None or weight.shape[-1] == x.shape[-1] else "token"


def at_once(norm: PutOff | None, x: Tensor) -> Tensor:
    """x normed if its norm is pending, in the shape that the norm would have got."""
    return x if norm is None else norm.module(x)


def now(norm: PutOff | None, x: Tensor) -> Tensor:
    """x normed by its own module if that is pending, in the shape in which it would be rotated."""
    if norm is None or over(norm, x) == "head":
        return at_once(norm, x)
    heads = x.movedim(norm.heads_axis, -2)
    return at_once(norm, heads.flatten(-2)).reshape(heads.shape).movedim(-2, norm.heads_axis)


def unless(norm: PutOff | None, module: nn.Module, x: Tensor) -> Tensor:
    """x unchanged if its norm is postponed, otherwise normed."""
    return module(x) if norm is None else x


@dataclass
class NormProbe:
    """The formula of the modules of one class, and whether one of them may be postponed."""

    kind: type[nn.Module]  # the class, whose forward was probed
    weight: str | None  # the name of the parameter; None for a norm without weights
    eps: str  # the name of the attribute
    offset: float  # this and the following as in `PutOff`
    promotes: bool
    heads_axis: int = 1  # read where the norm is used

    def __post_init__(self) -> None:
        self._forward = self.kind.forward

    def put_off(self, module: nn.Module) -> PutOff | None:
        """The pending norm; None if a call of the module does more than was probed."""
        # Runs in every layer of every step: so without loops and nn.Module.__getattr__.
        own = module.__dict__
        if (
            type(module) is not self.kind
            or self.kind.forward is not self._forward
            or "forward" in own
            or own["_forward_pre_hooks"]
            or own["_forward_hooks"]
            or own["_backward_pre_hooks"]
            or own["_backward_hooks"]
            or every_module._global_forward_pre_hooks
            or every_module._global_forward_hooks
            or every_module._global_backward_pre_hooks
            or every_module._global_backward_hooks
        ):
            return None
        weight = own["_parameters"].get(self.weight)
        if weight is None and self.weight is not None:  # for example parametrized
            weight = getattr(module, self.weight)
        return PutOff(module, weight, own[self.eps], self.offset, self.promotes, self.heads_axis)


def probe_norm(module: nn.Module, title: str) -> NormProbe:
    """The formula of a module, from calls of a copy with random weights.

    Raises:
        NotServed: it is not an RMS norm, or more than one.
    """
    if is_compiled(module):
        raise NotServed(f"torch.jit has compiled {title}")
    probe, name = with_own_weight(module, title)
    weight = None if name is None else getattr(probe, name)
    random = torch.Generator("cpu").manual_seed(0)
    shape = (6, 16 if weight is None else len(weight))
    # Some rows are so small that eps matters, others so large that it does not.
    x = torch.randn(shape, generator=random, dtype=torch.float32)
    x *= torch.tensor([1e-4, 1e-3, 1e-2, 1.0, 1.0, 100.0], dtype=torch.float32)[:, None]
    result = _called(probe, x, title)
    for eps, offset in ((e, o) for e in _small_numbers(module) for o in (0.0, 1.0)):
        if weight is None and offset:
            continue
        exact = x.double()
        exact = exact * (exact.square().mean(-1, keepdim=True) + getattr(module, eps)).rsqrt()
        expected = exact if weight is None else exact * (weight.double() + offset)
        # The sum of squares and a few products, in float32.
        bound = (shape[-1] + 8) * 2.0**-24 * expected.abs().amax(-1, keepdim=True)
        if result.dtype == x.dtype and bool(((result - expected).abs() <= bound).all()):
            promotes = _called(probe, x.bfloat16(), title).dtype != torch.bfloat16
            if weight is not None and _called(probe.bfloat16(), x.bfloat16(), title).dtype != (
                torch.bfloat16
            ):
                break
            return NormProbe(type(module), name, eps, offset, promotes)
    raise NotServed(f"{title} is not an RMS norm: {type(module).__name__}")


def with_own_weight(module: nn.Module, title: str) -> tuple[Any, str | None]:
    """A copy on the CPU with random float32 weights and without hooks; its parameter's name."""
    names = [name for name, weight in module._parameters.items() if weight is not None]
    several = len(names) > 1 or any(getattr(module, name).ndim != 1 for name in names)
    if several or module._modules or module._buffers:
        raise NotServed(f"{title} has more than a vector of weights: {type(module).__name__}")
    probe = type(module).__new__(type(module))
    probe.__dict__.update(module.__dict__)
    for place in ("forward", "_old_forward", "_hf_hook"):
        probe.__dict__.pop(place, None)
    for hooks in _HOOKS:
        probe.__dict__[hooks] = collections.OrderedDict()
    probe.__dict__["_parameters"] = dict.fromkeys(module._parameters)
    for name in names:
        random = torch.Generator("cpu").manual_seed(1)
        shape = getattr(module, name).shape
        weight = 1 + 0.5 * torch.randn(shape, generator=random, dtype=torch.float32)
        probe.register_parameter(name, nn.Parameter(weight))
    return probe.eval(), names[0] if names else None


def _called(probe: Callable[[Tensor], Any], x: Tensor, title: str) -> Tensor:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about dtypes that differ
            result = probe(x)
    except Exception as error:  # any error of a model
        raise NotServed(f"{title} takes something other than heads: {error}") from None
    if not isinstance(result, Tensor) or result.shape != x.shape:
        raise NotServed(f"{title} returns something other than heads")
    return result


def _small_numbers(module: nn.Module) -> list[str]:
    """Names of attributes that may be an eps."""
    return [n for n, value in vars(module).items() if type(value) is float and 0 <= value < 0.1]
