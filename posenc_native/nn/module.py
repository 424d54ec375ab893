"""Common parts of modules: how they are printed and called, and what their arguments mean."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from torch import Tensor, nn

from posenc_native.core.calls import arguments
from posenc_native.core.calls.suggestions.vocabulary import answer_methods, missing_hint
from posenc_native.core.documents.reprs import call_arguments
from posenc_native.encodings.relative.heads import shown_heads
from posenc_native.encodings.rotary.rotary import Rotary, rotary_in

if TYPE_CHECKING:
    from typing_extensions import Self

    from posenc_native.core.calls.kinds import SupportsRotary


Init = TypeVar("Init", bound=Callable[..., None])


class Module(nn.Module):
    """A module whose wrong calls say what to write."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        answer_methods(cls)


class Described(Module):
    """A module that returns a tensor and is printed as the call that makes it."""

    __call__: Callable[..., Tensor]  # torch's returns Any

    def extra_repr(self) -> str:
        """The arguments of that call, for print(model)."""
        computed = self._other_arguments()
        shown: dict[str, Any] = {}
        for name in inspect.signature(type(self)).parameters:
            value = computed[name] if name in computed else getattr(self, name, self)
            if name in computed or value is None or isinstance(value, _WRITTEN):
                shown[name] = value
        if isinstance(shown.get("heads"), range) and "num_heads" in shown:
            shown["heads"] = shown_heads(shown["heads"], shown["num_heads"])
        return call_arguments(type(self), **shown)

    def _other_arguments(self) -> dict[str, Any]:
        """The arguments that are not attributes with the same names."""
        return {}


_WRITTEN = (int, float, str, tuple, range)  # types of attributes that are shown: no parameters


class Rotating(Module):
    """A module that rotates q and k. Its ``apply`` is torch's, and says so if it gets a tensor."""

    def apply(self, fn: Callable[[nn.Module], None], *positional: Any, **options: Any) -> Self:
        """Call a function with this module, like every ``torch.nn.Module.apply``.

        It does not rotate: ``module.rope.apply(x, positions)`` of a `RotaryEmbedding` does.
        """
        if positional or options or not callable(fn):
            function = f"{type(self).__name__}.apply"
            hint = missing_hint("k", {kind.__name__ for kind in type(self).__mro__})
            expected = "one function of a module, as in torch.nn.Module.apply"
            got = ", ".join([*(type(value).__name__ for value in (fn, *positional)), *options])
            arguments.wrong_type(function, "fn", expected, got, hint)
        return super().apply(fn)


def takes_rotation(init: Init) -> Init:
    """A constructor that passes ``**rotation`` on to a `Rotary`: help() shows what that takes."""
    signature = inspect.signature(init)
    own = {
        name: parameter
        for name, parameter in signature.parameters.items()
        if parameter.kind is not parameter.VAR_KEYWORD
    }
    shown = {"self": own.pop("self"), **inspect.signature(Rotary).parameters, **own}
    itself: Any = init
    itself.__signature__ = signature.replace(parameters=[*shown.values()])
    return init


def rotary_of(
    function: str, head_dim: int | SupportsRotary, layout: str | None, options: Mapping[str, Any]
) -> Rotary:
    """The `Rotary` of a module's arguments: from the first alone if it is or has a `Rotary`."""
    rope: Rotary | None = rotary_in(head_dim)
    if rope is None:
        of_calls = {} if layout is None else {"layout": layout}
        return Rotary(head_dim, **of_calls, **options)  # type: ignore[arg-type]
    defaults = inspect.signature(Rotary).parameters
    if unknown := {*options} - {*defaults}:
        raise TypeError(f"{function}: unknown keywords {', '.join(unknown)}")
    names = [
        name
        for name, value in options.items()
        if not (value is None or (np.isscalar(value) and value == defaults[name].default))
    ]
    if names:
        expected = "an int beside other arguments (a Rotary includes them)"
        arguments.wrong_value(function, "head_dim", expected, f"a Rotary and {', '.join(names)}")
    return rope if layout in (None, rope.layout) else rope.with_layout(layout)


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
