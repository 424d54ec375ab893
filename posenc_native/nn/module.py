"""Common parts of modules: how they are printed and called, their arguments, sums of scores."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from posenc_native.core.calls import arguments
from posenc_native.core.calls.suggestions.vocabulary import answer_methods, missing_hint
from posenc_native.core.documents.reprs import call_arguments
from posenc_native.encodings.relative.heads import shown_heads
from posenc_native.encodings.rotary.rotary import Rotary, rotary_in
from posenc_native.engines.plain.numbers import readable
from posenc_native.engines.torch.sharded.taken_apart import sharded, taken_apart

if TYPE_CHECKING:
    from typing_extensions import Self

    from posenc_native.core.calls.kinds import SupportsRotary


Init = TypeVar("Init", bound=Callable[..., None])


class SavedBuffer(NamedTuple):
    """A buffer of an original's checkpoint, which a module here computes and does not store."""

    function: str
    name: str  # with the names of the modules around
    tensor: Tensor

    def wrong(self, expected: str, got: object, hint: str = "") -> NoReturn:
        """Raise the ValueError for this buffer."""
        arguments.wrong_value(self.function, self.name, expected, got, hint)

    def check_shape(self, *shapes: Sequence[int]) -> None:
        """ValueError unless it has one of the shapes."""
        if self.tensor.shape not in shapes:
            expected = " or ".join(str(list(shape)) for shape in shapes)
            self.wrong(f"shape {expected}", list(self.tensor.shape))

    def values(self, kind: str = "floating-point") -> Tensor | None:
        """The values on the CPU, floats in float64; None if they cannot be read.

        kind: of the numbers, "floating-point" or "integer".
        """
        tensor = self.tensor.detach()
        floats, dtype = tensor.is_floating_point(), arguments.dtype_name(tensor.dtype)
        if floats != (kind == "floating-point") or tensor.is_complex():
            arguments.wrong_type(self.function, self.name, f"{kind} numbers", dtype)
        if type(tensor) is not Tensor or tensor.is_meta:
            return None
        tensor = tensor.cpu()
        if not readable(tensor):
            return None
        return tensor.double() if floats else tensor.long()

    def rounding(self) -> float:
        """How far a value of about 1 is from what was rounded to the dtype of the buffer."""
        return torch.finfo(self.tensor.dtype).eps if self.tensor.is_floating_point() else 0.0

    def check_values(
        self, values: Tensor, own: Tensor, bound: Tensor | float, what: str, hint: str = ""
    ) -> None:
        """ValueError, which shows the number that is farthest away, unless |values - own| <= bound.

        what: the expected numbers in words.
        """
        excess = ((values - own).abs() - bound).nan_to_num(torch.inf)
        if not excess.numel() or excess.max() <= 0:
            return
        at = tuple(int(i) for i in np.unravel_index(int(excess.argmax()), tuple(own.shape)))
        expected = f"{what} ({own[at].item():.6g} at {list(at)})"
        self.wrong(expected, f"{values[at].item():.6g}", hint)


# Raises if the buffer contradicts what the module computes.
BufferCheck = Callable[[Any, SavedBuffer], None]


class Module(nn.Module):
    """A module whose wrong calls say what to write, and that loads checkpoints of originals.

    Many originals save tables that the modules here compute. A subclass names these buffers in
    `_computed_buffers`, so that ``load_state_dict(strict=True)`` takes an original's checkpoint.
    The values are not used, but checked: others would mean that the module is not that original.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        answer_methods(cls)

    def _computed_buffers(self) -> Mapping[str, BufferCheck]:
        """The buffers of originals that this module computes, by name, and their checks."""
        return {}

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Also take, and check, the buffers that an original saves."""
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        # After torch's, whose hooks may have changed names. A subclass may have such a buffer.
        own = {*self._parameters, *self._buffers, *self._modules}
        for name, check in self._computed_buffers().items():
            key = prefix + name
            if name in own or key not in state_dict:
                continue
            if key in unexpected_keys:
                unexpected_keys.remove(key)
            function, tensor = f"{type(self).__name__}.load_state_dict", state_dict[key]
            try:
                if not isinstance(tensor, Tensor):
                    arguments.wrong_type(function, key, "a tensor", type(tensor).__name__)
                check(self, SavedBuffer(function, key, tensor))
            except (TypeError, ValueError) as error:
                error_msgs.append(str(error))  # torch raises one error for all


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


def check_frequencies(module: Any, saved: SavedBuffer) -> None:
    """A buffer "inv_freq" of a module with a `Rotary`: the frequencies, which may be cast."""
    rope: Rotary = module.rope
    saved.check_shape(rope.inv_freq.shape)
    values = saved.values()
    if values is None:
        return

    def bound(own: Tensor) -> Tensor:
        # Originals compute in float32: an exponent of up to 20, that is off by 2 u, makes 43 u;
        # blends of a scaling, such as YaRN's, multiply that by less than 8.
        smallest = torch.finfo(saved.tensor.dtype).tiny * saved.rounding()
        return own.abs() * (2.0**-15 + saved.rounding()) + smallest

    own = torch.from_numpy(np.array(rope.inv_freq))
    kind = (rope.scaling or {}).get("rope_type", (rope.scaling or {}).get("type"))
    # Old originals divided positions, or computed other frequencies for each length.
    if kind in ("linear", "dynamic"):
        unscaled = torch.from_numpy(np.array(Rotary(rope.rotary_dim, base=rope.base).inv_freq))
        if ((values - unscaled).abs() <= bound(unscaled)).all():
            return
    hint = ""
    for base in _possible_bases(values):
        other = torch.from_numpy(np.array(Rotary(2 * len(values), base=base).inv_freq))
        if not hint and ((values - other).abs() <= bound(other)).all():
            hint = f"base={base} makes the frequencies that came"
    saved.check_values(values, own, bound(own), "the frequencies of this module", hint)


def _possible_bases(inv_freq: Tensor) -> list[float]:
    """Round numbers first: values that were cast to 16 bits do not tell all digits."""
    count = len(inv_freq)
    first = [
        float(w) ** (-count / i) for i, w in enumerate(inv_freq) if i in (1, count - 1) and w > 0
    ]
    bases = [float(f"{base:.{digits}e}") for digits in range(6) for base in first]
    return [base for base in bases if 0 < base < math.inf]


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


def check_scores(function: str, scores: Tensor) -> None:
    """ValueError unless scores have axes for heads, queries and keys."""
    if scores.ndim < 3:
        expected = "shape [..., H, q_len, k_len]"
        arguments.wrong_value(function, "scores", expected, list(scores.shape))


def add_bias(
    function: str, scores: Tensor, bias: Tensor, inplace: bool = False, gate: Tensor | None = None
) -> Tensor:
    """Scores plus a bias [H, q_len, k_len] or [B, H, q_len, k_len], times a gate like the scores.

    As with `add_toeplitz_bias`, the result has the scores' shape and dtype and is rounded once.
    """
    batch = tuple(bias.shape[:-3])
    if tuple(scores.shape[-3:]) != tuple(bias.shape[-3:]) or (
        batch and (scores.ndim < 4 or not arguments.one_of(batch, (tuple(scores.shape[:1]), (1,))))
    ):
        letters = ", ".join(map(str, (*batch, "...", *bias.shape[-3:])))
        arguments.wrong_value(function, "scores", f"shape [{letters}]", list(scores.shape))
    if gate is not None and gate.shape[:-1] != scores.shape[:-1]:
        expected = f"shape {list(gate.shape[:-1])} and keys, as of hidden_states"
        arguments.wrong_value(function, "scores", expected, list(scores.shape))
    if batch:
        bias = bias.unflatten(0, (-1, *(1,) * (scores.ndim - 4)))
    result: Tensor = _sum(scores, bias, inplace, gate)
    return result


def _add(scores: Tensor, bias: Tensor, inplace: bool, gate: Tensor | None) -> Tensor:
    if gate is not None:  # in one pass, without their product in memory
        if inplace:
            return scores.addcmul_(gate, bias)
        return torch.addcmul(scores, gate, bias).to(scores.dtype)
    return scores.add_(bias) if inplace else (scores + bias).to(scores.dtype)


_sum = taken_apart(_add, lambda: sharded().matrices.add_bias)
