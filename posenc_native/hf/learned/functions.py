"""Rotary functions known only by name, learned from their calls.

In diffusers and timm tables come in many forms (a tuple, complex numbers, sin and cos side by side,
rotation matrices; a column for each dim or for each pair; for each token, head or row of the
batch), and options of a call decide what they mean. So a function is learned when it is called. It
gets random numbers in tensors of the same kind as this call's, as small as their axes allow. Its
result must be that of a rotation by `Tables`. From then on, calls of that
kind use this rotation; all others go to the model's own function.

If tables have a column for each dim and the function uses one of a pair's, the two must be equal.
This is checked once for each tensor, and again if its values change.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from posenc_native.hf.holders import Way, is_followed, nobody_else_sees
from posenc_native.hf.signatures import RotaryArguments, title_of

from .makers import have_same_values
from .rotations import LearnedRotation, Ordered, are_matrices, as_two, rotations

__all__ = ["Learned", "may_rotate"]

_NAMED = re.compile(r"apply\w*_(?:rot|rope)|^apply_rope")


def may_rotate(name: str, function: Any) -> bool:
    """Whether to learn a function, judged by its name and by its having arguments for tables."""
    if not _NAMED.search(name) or not inspect.isfunction(function):
        return False
    parameters = inspect.signature(function).parameters.values()
    return len(parameters) > 1 and all(
        parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for parameter in parameters
    )


# --- a call ---------------------------------------------------------------------------------------


class _Call(NamedTuple):
    """The arguments of a call by name: first heads, then tables, and other options."""

    tensors: tuple[str, ...]  # names of tensors, or of tuples of them
    options: tuple[tuple[str, type, Any], ...]


def _sorted(arguments: dict[str, Any]) -> _Call | None:
    """The arguments of a call by kind; None if there are others."""
    tensors: list[str] = []
    options = []
    for name, value in arguments.items():
        if isinstance(value, Tensor) or _holds_tensors(value):
            tensors.append(name)
        elif value is None or isinstance(value, (bool, int, float, str)):
            options.append((name, type(value), value))
        else:
            return None
    if not tensors or not isinstance(arguments[tensors[0]], Tensor):
        return None
    return _Call(tuple(tensors), tuple(options))


def _holds_tensors(value: Any) -> bool:
    """Whether it is a tuple or list of tensors, or of such tuples."""
    return (
        type(value) in (tuple, list)
        and len(value) > 0
        and all(isinstance(part, Tensor) or _holds_tensors(part) for part in value)
    )


def _leaves(value: Any) -> list[Tensor]:
    """The tensors of tables."""
    return [value] if isinstance(value, Tensor) else [t for part in value for t in _leaves(part)]


# --- learning -------------------------------------------------------------------------------------


def _smaller(arguments: dict[str, Any], call: _Call) -> dict[str, Any]:
    """The same arguments with random numbers, and axes as short as still distinguishable."""
    random = torch.Generator("cpu").manual_seed(0)
    short = _short_sizes(_leaves([arguments[name] for name in call.tensors]))

    def small(x: Tensor) -> Tensor:
        axes = _axes(x)
        shape = [*(short[size] for size in axes), *x.shape[len(axes) :]]
        # Rotation matrices also keep their columns.
        if are_matrices(x):
            shape[-3] = x.shape[-3]
        if not (x.is_floating_point() or x.is_complex()):
            return torch.zeros(shape, dtype=x.dtype)
        dtype = torch.complex64 if x.is_complex() else torch.float32
        return torch.randn(shape, generator=random, dtype=dtype).to(x.dtype)

    return arguments | {name: _of_each(small, arguments[name]) for name in call.tensors}


def _learn(
    original: Callable[..., Any], arguments: dict[str, Any], call: _Call
) -> LearnedRotation | str:
    """The rotation of calls like this one, or the reason why it is unknown."""
    title = title_of(original)
    kind = arguments[call.tensors[0]].device.type
    autocast = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
    try:
        with torch.no_grad(), torch.device("cpu"):
            small = _smaller(arguments, call)
            with torch.autocast("cpu", enabled=autocast[0], dtype=autocast[1]):
                result = original(**small)
            with torch.autocast("cpu", enabled=False):
                return _checked(original, small, call, result, title)
    except Exception as error:  # any error of a model
        return f"{title} cannot be called with small tensors: {type(error).__name__}"


def _checked(
    original: Callable[..., Any], small: dict[str, Any], call: _Call, result: Any, title: str
) -> LearnedRotation | str:
    results: list[Any] = _results(result)
    gives = type(result)
    count = len(results)
    heads, tables = call.tensors[:count], call.tensors[count:]
    shapes = [getattr(small[name], "shape", None) for name in heads]
    if (
        gives not in (Tensor, tuple, list)
        or not tables
        or not all(isinstance(x, Tensor) and x.is_floating_point() for x in results)
        or [x.shape for x in results] != shapes
        or len({x.dtype for x in results}) != 1
    ):
        return f"{title} does not return its first arguments rotated"
    exact = small | {name: _of_each(_in_float32, small[name]) for name in call.tensors}
    # With a column for each dim, the pairs are made equal: a function may use either column.
    for pairing, parts in ((None, 1), ("interleaved", 1), ("half", 1), ("half", 2)):
        regular = functools.partial(_regular, pairing=pairing, parts=parts)
        alike = exact | {name: _of_each(regular, exact[name]) for name in tables}
        theirs = _results(original(**alike))
        xs, leaves = [alike[n] for n in heads], _leaves([alike[n] for n in tables])
        for rotation in rotations(xs[0], leaves, theirs[0].dtype, count, gives):
            if pairing is None and rotation.every_dim:
                rotation = dataclasses.replace(rotation, unequal=True)
            if _agree(rotation, xs, leaves, theirs):
                return dataclasses.replace(rotation, dtype=results[0].dtype)
    return f"{title} is not a known rotation"


def _agree(
    rotation: LearnedRotation, xs: list[Tensor], leaves: list[Tensor], theirs: list[Tensor]
) -> bool:
    """Whether a rotation gives these results."""
    try:
        tables = _Tables.made(leaves, rotation)
        if tables is None:
            return False
        ours = [rotation(x, tables) for x in xs]
    except (RuntimeError, IndexError, ValueError):  # axes that cannot be broadcast
        return False
    # Some return 16 bits for any input.
    step = max(16 * torch.finfo(theirs[0].dtype).eps, 2e-6)
    return all(torch.allclose(a, b, step, step) for a, b in zip(ours, theirs, strict=True))


def _regular(table: Tensor, pairing: str | None, parts: int) -> Tensor:
    """A table as models make them: matrices that rotate, or pairs with two equal columns.

    parts: 2 if it has cos and sin side by side.
    """
    if are_matrices(table):
        cos, sin = table[..., 0, 0], table[..., 1, 0]
        return torch.stack((cos, -sin, sin, cos), dim=-1).reshape(table.shape)
    if pairing is None or not table.is_floating_point() or table.shape[-1] % (2 * parts):
        return table
    result = []
    for part in table.chunk(parts, dim=-1):
        half = part[..., : part.shape[-1] // 2]
        both = torch.cat((half, half), dim=-1)
        result.append(both if pairing == "half" else half.repeat_interleave(2, dim=-1))
    return torch.cat(result, dim=-1)


def _of_each(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Apply a function to each tensor of a value."""
    if isinstance(value, Tensor):
        return function(value)
    return type(value)(_of_each(function, part) for part in value)


def _in_float32(x: Tensor) -> Tensor:
    if x.is_complex():
        return x.to(torch.complex64)
    return x.float() if x.is_floating_point() else x


def _results(value: Any) -> list[Tensor]:
    return [*value] if isinstance(value, (tuple, list)) else [value]


# --- tables that have been checked ----------------------------------------------------------------


class _Tables:
    """Tables in order, for the tensors that a model made last; None if pairs may not differ.

    They are kept with a copy of these tensors, and used again only for the same values. A write
    through ``.data`` changes neither version nor address, so only values show it. Comparing takes
    less time than making cos and sin anew, and a tenth of that of rotating 24 heads.
    """

    def __init__(self) -> None:
        self._kept: dict[Any, tuple[Any, Any, Any]] = {}

    def of(self, leaves: list[Tensor], rotation: LearnedRotation) -> Ordered | None:
        if any(leaf.requires_grad or leaf.is_inference() for leaf in leaves):
            return self.made(leaves, rotation)
        key = *(id(leaf) for leaf in leaves), rotation
        kept = self._kept.get(key)
        if kept is not None:
            alive, before, tables = kept
            if all(ref() is leaf for ref, leaf in zip(alive, leaves, strict=True)) and all(
                map(have_same_values, leaves, before)
            ):
                return tables  # type: ignore[no-any-return]
        with torch.inference_mode(False), torch.no_grad():
            made = self.made(leaves, rotation)
            if made is not None:
                made = tuple((_apart(cos, leaves), _apart(sin, leaves)) for cos, sin in made)
            copies = [leaf.clone() for leaf in leaves]

        def forget(_: Any) -> None:
            self._kept.pop(key, None)

        alive = tuple(weakref.ref(leaf, forget) for leaf in leaves)
        self._kept[key] = alive, copies, made
        return made

    @staticmethod
    def made(leaves: list[Tensor], rotation: LearnedRotation) -> Ordered | None:
        if rotation.kind == "matrix":
            cos, minus_sin, sin, other_cos = leaves[0].flatten(-2).unbind(-1)
            if not (torch.equal(cos, other_cos) and torch.equal(minus_sin, -sin)):
                return None
        columns = [rotation.columns(table) for table in as_two(rotation.kind, leaves)]
        differ = rotation.every_dim and not all(torch.equal(*pair) for pair in columns)
        if differ and not rotation.unequal:
            return None

        def in_order(table: Tensor) -> Tensor:
            exact = table if rotation.dtype == torch.float64 else table.float()
            return rotation.in_order(exact).contiguous()

        cosines, sines = columns
        return tuple(
            (in_order(cosines[partner]), in_order(sines[partner]))
            for partner in range(2 if differ else 1)
        )


def _apart(table: Tensor, leaves: list[Tensor]) -> Tensor:
    """A table on memory of its own: a view would keep the model's tensor alive."""
    shared = table._base is not None or any(table is leaf for leaf in leaves)
    return table.clone() if shared else table


# --- the replacement ------------------------------------------------------------------------------


class Learned:
    """A model's function, and what is known of its calls.

    Args:
        original: the model's function. It is called while torch.compile or a transform is active,
            and if a kind of call is not a known rotation.
        report: called with the reason, at least once.

    Attributes:
        arguments: names of its arguments.
    """

    def __init__(self, original: Callable[..., Any], report: Callable[[str], object]) -> None:
        parameters = inspect.signature(original).parameters
        self.arguments: RotaryArguments = RotaryArguments(tuple(parameters), (), (), (), {})
        self._original, self._report = original, report
        self._title = title_of(original)
        self._defaults = {
            name: parameter.default
            for name, parameter in parameters.items()
            if parameter.default is not inspect.Parameter.empty
        }
        self._known: dict[Any, LearnedRotation | str] = {}
        self._compared: set[Any] = set()  # kinds whose rotation agreed in a full call
        self._tables = _Tables()

    def function(
        self,
        inplace: bool | None,
        way: Way = Way(),  # noqa: B008
    ) -> Callable[..., Any]:
        """A function with the arguments of the model's own that rotates with this library.

        Args:
            inplace: as in `rotary_function`.
            way: how calls reach it.
        """
        original = self._original

        def rotary(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or is_followed():
                return original(*args, **kwargs)
            known = self._rotation(args, kwargs)
            if known is None:
                return original(*args, **kwargs)
            rotation, tables, heads = known
            over = inplace
            if over is None:
                over = nobody_else_sees(heads, way)
            # One tensor that is both q and k would be rotated twice.
            once = len({id(x) for x in heads}) == len(heads)
            over = over and once and all(map(rotation.may_overwrite, heads))
            rotated = [rotation(x, tables, over) for x in heads]
            return rotated[0] if rotation.gives is Tensor else rotation.gives(rotated)

        rotary.__name__ = self._title
        return rotary

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        arguments = self._defaults | self.arguments.by_name(args, kwargs)
        return arguments, _sorted(
            {name: arguments[name] for name in self.arguments.names if name in arguments}
        )

    def _rotation(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[LearnedRotation, Ordered, tuple[Tensor, ...]] | None:
        """The rotation of a call, its tables and its heads; None: unknown."""
        arguments, call = self._call(args, kwargs)
        if call is None:
            self._report(f"{self._title} takes arguments other than heads, tables and numbers")
            return None
        values = [arguments[name] for name in call.tensors]
        if not _are_plain(_leaves(values)):
            return None
        key = call, *_kinds_of(_leaves(values))
        rotation = self._known.get(key)
        if rotation is None and len(self._known) < _MOST_KINDS:
            rotation = self._known[key] = _learn(self._original, arguments, call)
            if isinstance(rotation, str):
                self._report(rotation)
        if rotation is None or isinstance(rotation, str):
            return None
        leaves = _leaves(values[rotation.heads :])
        if _are_learned_themselves(leaves, rotation):
            return None
        tables = self._tables.of(leaves, rotation)
        if tables is None:
            self._report(f"{self._title} got tables whose columns of a pair differ")
            return None
        heads = tuple(values[: rotation.heads])
        if key not in self._compared:
            # Once with the full call: a function may behave differently with more tokens.
            theirs = functools.partial(self._original, *args, **kwargs)
            if not _agrees_in_full(theirs, rotation, heads, tables):
                self._known[key] = reason = (
                    f"{self._title} behaves differently with more tokens or heads"
                )
                self._report(reason)
                return None
            self._compared.add(key)
        return rotation, tables, heads


# Kinds of calls of one function; with more of them, one of its options is a counter.
_MOST_KINDS = 64


def _are_learned_themselves(leaves: list[Tensor], rotation: LearnedRotation) -> bool:
    """Whether gradients go to all numbers of tables, of which the rotation uses only some."""
    some = rotation.every_dim or rotation.kind == "matrix"
    return some and torch.is_grad_enabled() and any(x.requires_grad and x.is_leaf for x in leaves)


def _agrees_in_full(
    original: Callable[[], Any],
    rotation: LearnedRotation,
    heads: tuple[Tensor, ...],
    tables: Ordered,
) -> bool:
    """Whether a rotation gives the result of a whole call of the model's function."""
    # Nothing may be saved for backward. Gradient checkpointing counts what a call saves, and the
    # call that recomputes it does not compare.
    with torch.no_grad():
        return _are_close([rotation(x, tables) for x in heads], _results(original()))


def _are_close(ours: list[Tensor], theirs: list[Tensor]) -> bool:
    """Whether two results are equal except for rounding, where both are finite."""
    for a, b in zip(ours, theirs, strict=True):
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        finite = a.isfinite() & b.isfinite()
        x, y = (t.detach().double()[finite] for t in (a, b))
        if x.numel() == 0:
            continue
        step = max(torch.finfo(a.dtype).eps, 2.0**-23)
        if float((x - y).abs().max()) > 16 * step * float(y.abs().max()):
            return False
    return True


def _are_plain(tensors: list[Tensor]) -> bool:
    """Whether the tensors can be read here: torch's own types, not empty, all on one device."""
    first = tensors[0]
    if first.is_meta:
        return False
    if first.is_cuda and torch.cuda.is_current_stream_capturing():
        return False  # waiting is not allowed
    return all(
        type(x) in (Tensor, torch.nn.Parameter) and x.device == first.device and x.numel() > 0
        for x in tensors
    )


def _kinds_of(tensors: list[Tensor]) -> Iterator[tuple[Any, ...]]:
    """The properties of tensors that decide which calls are alike; of long axes only the order."""
    short = _short_sizes(tensors)
    kind = tensors[0].device.type
    if torch.is_autocast_enabled(kind):
        yield (torch.get_autocast_dtype(kind),)
    for x in tensors:
        axes = _axes(x)
        yield x.dtype, x.device.type, *x.shape[len(axes) :], *(short[size] for size in axes)


def _axes(x: Tensor) -> tuple[int, ...]:
    """The sizes of all axes but the columns, which integers (rows of tables) have not."""
    return tuple(x.shape[:-1] if x.is_floating_point() or x.is_complex() else x.shape)


def _short_sizes(tensors: list[Tensor]) -> dict[int, int]:
    """Shorter sizes for all axes but columns, in the same order and still distinct."""
    # Sizes that may be the number of heads in the last axis of x are kept.
    own = [
        size for t in tensors[1:] if tensors[0].ndim == 3 and t.ndim == 4 for size in t.shape[:3]
    ]
    result = {1: 1, 2: 2} | {size: size for size in own if tensors[0].shape[-1] % size == 0}
    next_size = 3
    for size in sorted({size for x in tensors for size in _axes(x)} - result.keys()):
        while next_size in result.values():
            next_size += 1
        result[size] = next_size
        next_size += 1
    return result
