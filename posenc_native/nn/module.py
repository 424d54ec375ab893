"""Common parts of modules: how they are printed and called, and checks of arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from posenc_native.base import arguments
from posenc_native.base.calls import call_arguments
from posenc_native.base.suggestions.vocabulary import MISSING, check_given, takes_words
from posenc_native.relative.heads import shown_heads

if TYPE_CHECKING:
    from typing_extensions import Self


class Described(nn.Module):
    """A module that returns a tensor and is printed as the call that makes it."""

    __call__: Callable[..., Tensor]  # torch's returns Any

    def extra_repr(self) -> str:
        """The arguments of that call, for print(model)."""
        others = self._other_arguments()
        given: dict[str, Any] = {}
        for name in inspect.signature(type(self)).parameters:
            value = others[name] if name in others else getattr(self, name, self)
            if name in others or value is None or isinstance(value, _WRITTEN):
                given[name] = value
        if isinstance(given.get("heads"), range) and "num_heads" in given:
            given["heads"] = shown_heads(given["heads"], given["num_heads"])
        return call_arguments(type(self), **given)

    def _other_arguments(self) -> dict[str, Any]:
        """The arguments that are not attributes with the same names."""
        return {}


_WRITTEN = (int, float, str, tuple, range)  # types of attributes that are shown: no parameters


class Rotating(nn.Module):
    """A module that rotates q and k. Its ``apply`` is torch's, and says so if it gets a tensor."""

    _for_one_tensor = "for queries alone write module(q, None)"

    @takes_words
    def apply(self, fn: Callable[[nn.Module], None], *others: Any, **options: Any) -> Self:
        """Call a function with this module, like every ``torch.nn.Module.apply``.

        It does not rotate: ``module.rope.apply(x, positions)`` of a `RotaryEmbedding` does.
        """
        check_given(Rotating.apply, fn, owner=self)
        if others or options or not callable(fn):
            function = f"{type(self).__name__}.apply"
            expected = "one function of a module, as in torch.nn.Module.apply"
            given = ", ".join([*(type(value).__name__ for value in (fn, *others)), *options])
            arguments.wrong_type(function, "fn", expected, given, self._for_one_tensor)
        return super().apply(fn)

    def _check_both(self, q: Any, k: Any) -> None:
        """TypeError for a call with q alone."""
        if k is MISSING:
            check_given(type(self).forward, q, k, owner=self, k=self._for_one_tensor)


def positive_size(function: str, argument: str, value: int) -> int:
    """A size of at least 1."""
    size = arguments.size(function, argument, value)
    if size == 0:
        arguments.wrong_value(function, argument, "an int >= 1", 0)
    return size


def flag(function: str, argument: str, value: bool) -> bool:
    """An argument that is a bool."""
    if not isinstance(value, bool):
        arguments.wrong_type(function, argument, "a bool", type(value).__name__)
    return value
