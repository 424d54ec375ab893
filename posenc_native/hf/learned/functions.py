"""Rotary functions of which nothing but the name is known, learned from how they are called.

In diffusers and timm tables come in many forms (a tuple, complex numbers, sin beside cos, matrices
of rotation; a column for each dim or for each pair; for each token, head or row of the batch), and
options of a call decide what they mean. So a function is learned when it is called: with random
numbers in tensors of the kind that this call has, as small as their axes allow, it must give what
one of the rotations of `apply_rotary_tables` gives. Calls of that kind take this rotation from then
on; all others go to the model's own function.

Where tables have a column for each dim, both columns of a pair have to be alike. That is looked at
once for each tensor.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import re
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from posenc_native.engines.tensors.following import transformed
from posenc_native.hf.signatures import title_of
from posenc_native.rotary.by_tables import apply_rotary_tables

if TYPE_CHECKING:
    from posenc_native.base.kinds import Pairing

__all__ = ["learning", "may_rotate"]

_NAMED = re.compile(r"apply\w*_(?:rot|rope)|^apply_rope")


def may_rotate(name: str, function: Any) -> bool:
    """Whether a function is one to learn, by its name and by having arguments for tables."""
    if not _NAMED.search(name) or not inspect.isfunction(function):
        return False
    parameters = inspect.signature(function).parameters.values()
    return len(parameters) > 1 and all(
        each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for each in parameters
    )


# --- a call ---------------------------------------------------------------------------------------


class _Call(NamedTuple):
    """The arguments of a call by name: heads and then tables, and what else there is."""

    tensors: tuple[str, ...]  # of tensors, or of two tensors
    options: tuple[tuple[str, Any], ...]


def _sorted(given: dict[str, Any]) -> _Call | None:
    """What the arguments of a call can be; None: something else."""
    tensors: list[str] = []
    options = []
    for name, value in given.items():
        if isinstance(value, Tensor) or _is_pair(value):
            tensors.append(name)
        elif value is None or isinstance(value, (bool, int, float, str)):
            options.append((name, value))
        else:
            return None
    if not tensors or not isinstance(given[tensors[0]], Tensor):
        return None
    return _Call(tuple(tensors), tuple(options))


def _is_pair(value: Any) -> bool:
    return (
        isinstance(value, (tuple, list))
        and len(value) == 2
        and all(isinstance(each, Tensor) for each in value)
    )


def _leaves(values: list[Any]) -> list[Tensor]:
    """The tensors of tables."""
    return [each for value in values for each in ([value] if isinstance(value, Tensor) else value)]


# --- what tables can be ---------------------------------------------------------------------------


def _as_two(kind: str, leaves: list[Tensor]) -> tuple[Tensor, Tensor]:
    """cos and sin of tables of a kind, as views."""
    if kind == "complex":
        parts = torch.view_as_real(leaves[0])
        return parts[..., 0], parts[..., 1]
    if kind == "matrix":
        return leaves[0][..., 0, 0], leaves[0][..., 1, 0]
    if kind == "angles":
        return leaves[0].cos(), leaves[0].sin()
    one, other = leaves if len(leaves) == 2 else leaves[0].chunk(2, dim=-1)
    return (one, other) if kind == "cos, sin" else (other, one)


def _kinds(leaves: list[Tensor]) -> tuple[str, ...]:
    """The kinds that tables may be of."""
    first = leaves[0]
    if len(leaves) == 2:
        alike = first.shape == leaves[1].shape and not any(map(torch.is_complex, leaves))
        return ("cos, sin", "sin, cos") if alike else ()
    if len(leaves) != 1:
        return ()
    if first.is_complex():
        return ("complex",)
    if not first.is_floating_point():
        return ()
    if _are_matrices(first):
        return ("matrix",)
    return ("sin, cos", "cos, sin", "angles") if first.shape[-1] % 2 == 0 else ("angles",)


def _are_matrices(table: Tensor) -> bool:
    """Whether a table may have a matrix of rotation for every pair."""
    return table.ndim > 3 and table.shape[-2:] == (2, 2)


# --- what a function does with them ---------------------------------------------------------------


@dataclass(frozen=True)
class _Rotation:
    """What calls of a kind do, in the words of `apply_rotary_tables`.

    Attributes:
        kind: of tables: "cos, sin", "sin, cos" (two, or one with both side by side), "complex",
            "matrix", "angles".
        axes: for each axis of a table but its columns, the axis of x that it belongs to; -1 where
            it has the size 1.
        layout: of x.
        pairing: of its dims.
        inverse: whether it turns the other way.
        start: the first dim that is rotated.
        dims: how many dims are rotated.
        every_dim: whether tables have a column for each dim, not for each pair.
        dtype: of the result.
        heads: how many tensors are rotated.
        split: how many heads x has in its last axis, 0 where they have an axis; `layout` and `axes`
            are those of x with an axis for them.
    """

    kind: str
    axes: tuple[int, ...]
    layout: str
    pairing: Pairing
    inverse: bool
    start: int
    dims: int
    every_dim: bool
    dtype: torch.dtype
    heads: int
    split: int = 0

    def columns(self, table: Tensor) -> tuple[Tensor, Tensor]:
        """The columns of the first and of the second dims of pairs: views [.., pairs]."""
        if not self.every_dim:
            return table, table
        if self.pairing == "half":
            one, other = table.chunk(2, dim=-1)
            return one, other
        return table[..., ::2], table[..., 1::2]

    def along(self, table: Tensor, rank: int) -> Tensor:
        """A table with axes that are broadcast to those of x."""
        kept = [axis for axis in self.axes if axis >= 0]
        table = table[tuple(slice(None) if axis >= 0 else 0 for axis in self.axes)]
        shape = [1] * (rank - 1)
        for size, axis in zip(table.shape[:-1], kept, strict=True):
            shape[axis] = size
        order = sorted(range(len(kept)), key=kept.__getitem__)
        return table.permute(*order, -1).reshape(*shape, table.shape[-1])

    def in_order(self, table: Tensor) -> Tensor:
        """A table as `apply_rotary_tables` wants it: [s, P], [b, s, P] or [b, h, s, P]."""
        varies = {self.layout[axis] for axis in self.axes if axis >= 0}
        letters = "bhs" if "h" in varies else "bs" if "b" in varies else "s"
        table = self.along(table, len(self.layout))
        kept = [self.layout.index(letter) for letter in letters if letter in self.layout]
        shape = [table.shape[axis] for axis in kept]
        table = table.permute(*kept, *(a for a in range(table.ndim) if a not in kept))
        return table.reshape(*([1] * (letters[0] == "b" and "b" not in self.layout)), *shape, -1)

    def __call__(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x rotated by tables in order."""
        heads = x.unflatten(-1, (self.split, -1)) if self.split else x
        rotated: Tensor = apply_rotary_tables(
            heads.to(self.dtype), cos, sin, layout=self.layout, pairing=self.pairing,
            rotary_start=self.start, inverse=self.inverse,
        )  # fmt: skip
        return rotated.flatten(-2) if self.split else rotated

    def plainly(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """The same in plain operations, also by columns of a pair that are not alike."""
        if self.split:
            heads = x.unflatten(-1, (self.split, -1))
            return _Rotation(**{**vars(self), "split": 0}).plainly(heads, cos, sin).flatten(-2)
        before, middle, after = x.split(
            (self.start, self.dims, x.shape[-1] - self.start - self.dims), dim=-1
        )
        whole = _Rotation(**{**vars(self), "every_dim": True})
        a, b = whole.columns(middle)
        of_a, of_b = zip(*(self.columns(self.along(t, x.ndim)) for t in (cos, sin)), strict=True)
        sign = -1 if self.inverse else 1
        turned = a * of_a[0] - sign * b * of_a[1], b * of_b[0] + sign * a * of_b[1]
        half = self.pairing == "half"
        middle = torch.cat(turned, dim=-1) if half else torch.stack(turned, dim=-1).flatten(-2)
        return torch.cat((before, middle, after), dim=-1)


def _rotations(
    x: Tensor, leaves: list[Tensor], dtype: torch.dtype, count: int
) -> Iterator[_Rotation]:
    """All that calls with such tensors may do."""
    for kind in _kinds(leaves):
        table, _ = _as_two(kind, leaves)
        width = table.shape[-1]
        for split in (0, *_splits(table.shape[:-1], x)):
            heads = x.unflatten(-1, (split, -1)) if split else x
            size = heads.shape[-1]
            for axes in _matches(table.shape[:-1], heads.shape[:-1], bool(split)):
                layout = _layout(heads.ndim, {axis for axis in axes if axis >= 0}, bool(split))
                for every_dim, dims in ((True, width), (False, 2 * width)):
                    if layout is None or dims > size or dims % 2:
                        continue
                    starts = (0,) if dims == size else (0, size - dims)
                    pairings: tuple[Pairing, ...] = ("interleaved", "half")
                    for start, pairing, back in itertools.product(starts, pairings, (False, True)):
                        yield _Rotation(
                            kind, axes, layout, pairing, back, start, dims, every_dim, dtype,
                            count, split,
                        )  # fmt: skip


def _splits(table: tuple[int, ...], x: Tensor) -> list[int]:
    """How many heads the last axis of x may have, where tables have an axis for them."""
    if x.ndim != 3 or len(table) != 3:
        return []
    return [size for size in dict.fromkeys(table) if size > 1 and x.shape[-1] % size == 0]


def _matches(
    table: tuple[int, ...], x: tuple[int, ...], in_any_order: bool
) -> Iterator[tuple[int, ...]]:
    """The axes of x, in their order, to which those of a table with more than one entry belong."""
    own = [i for i, size in enumerate(table) if size != 1]
    choose = itertools.permutations if in_any_order else itertools.combinations
    for chosen in choose(range(len(x)), len(own)):
        if all(table[i] == x[axis] for i, axis in zip(own, chosen, strict=True)):
            axes = [-1] * len(table)
            for i, axis in zip(own, chosen, strict=True):
                axes[i] = axis
            yield tuple(axes)


def _layout(rank: int, varies: set[int], split: bool) -> str | None:
    """The layout of x whose tables vary along these axes; tokens are the last of them."""
    if not varies or not 2 < rank < 5:
        return None
    if split:
        return "bshd"
    tokens = max(varies)
    if rank == 3:
        return "bsd" if tokens == 1 else "shd"
    return {2: "bhsd", 1: "bshd"}.get(tokens)


# --- learning -------------------------------------------------------------------------------------


def _smaller(given: dict[str, Any], call: _Call) -> dict[str, Any]:
    """The same arguments with random numbers, and axes as short as they can be told apart."""
    random = torch.Generator("cpu").manual_seed(0)
    shapes = [leaf.shape[:-1] for leaf in _leaves([given[name] for name in call.tensors])]
    sizes = sorted({size for shape in shapes for size in shape if size > 2})
    short = {size: at + 3 for at, size in enumerate(sizes)} | {1: 1, 2: 2}

    def small(x: Tensor) -> Tensor:
        shape = [*(short[size] for size in x.shape[:-1]), *x.shape[-1:]]
        # Matrices of rotation keep their columns too.
        if _are_matrices(x):
            shape[-3] = x.shape[-3]
        if not (x.is_floating_point() or x.is_complex()):
            return torch.zeros(shape, dtype=x.dtype)
        dtype = torch.complex64 if x.is_complex() else torch.float32
        return torch.randn(shape, generator=random, dtype=dtype).to(x.dtype)

    return given | {name: _of_each(small, given[name]) for name in call.tensors}


def _learn(original: Callable[..., Any], given: dict[str, Any], call: _Call) -> _Rotation | str:
    """What calls like this one do; why that is not known."""
    title = title_of(original)
    with torch.no_grad(), torch.device("cpu"), torch.autocast("cpu", enabled=False):
        small = _smaller(given, call)
        try:
            results = _results(original(**small))
        except Exception as error:  # whatever a model may raise
            return f"{title} cannot be called with small tensors: {type(error).__name__}"
        count = len(results)
        heads, tables = call.tensors[:count], call.tensors[count:]
        shapes = [getattr(small[name], "shape", None) for name in heads]
        dtypes = {each.dtype for each in results}
        if not tables or [each.shape for each in results] != shapes or len(dtypes) != 1:
            return f"{title} does not give what it gets, rotated"
        exact = small | {name: _of_each(_in_float32, small[name]) for name in call.tensors}
        dtype = dtypes.pop()
        for pairing in (None, "interleaved", "half"):
            # Of a column for each dim, pairs that are alike: a function may use either.
            one = len(_leaves([exact[name] for name in tables])) == 1
            regular = functools.partial(_regular, pairing=pairing, one=one)
            alike = exact | {name: _of_each(regular, exact[name]) for name in tables}
            theirs = _results(original(**alike))
            xs, leaves = [alike[n] for n in heads], _leaves([alike[n] for n in tables])
            for rotation in _rotations(xs[0], leaves, dtype, count):
                if (rotation.pairing if rotation.every_dim else None) == pairing and _agree(
                    rotation, xs, leaves, theirs
                ):
                    return rotation
    return f"{title} is no rotation that is known"


def _agree(
    rotation: _Rotation, xs: list[Tensor], leaves: list[Tensor], theirs: list[Tensor]
) -> bool:
    """Whether a rotation gives these results."""
    cos, sin = _as_two(rotation.kind, leaves)
    try:
        ours = [rotation.plainly(x, cos, sin) for x in xs]
    except RuntimeError:  # axes that cannot be broadcast
        return False
    # Some give 16 bits, whatever they get.
    step = max(16 * torch.finfo(theirs[0].dtype).eps, 2e-6)
    return all(torch.allclose(a, b.float(), step, step) for a, b in zip(ours, theirs, strict=True))


def _regular(table: Tensor, pairing: str | None, one: bool) -> Tensor:
    """A table as models make them: matrices that rotate, columns of a pair that are alike.

    one: it may have cos and sin side by side.
    """
    if _are_matrices(table):
        cos, sin = table[..., 0, 0], table[..., 1, 0]
        return torch.stack((cos, -sin, sin, cos), dim=-1).reshape(table.shape)
    parts = 2 if one and table.shape[-1] % 4 == 0 else 1
    if pairing is None or not table.is_floating_point() or table.shape[-1] % (2 * parts):
        return table
    result = []
    for part in table.chunk(parts, dim=-1):
        half = part[..., : part.shape[-1] // 2]
        both = torch.cat((half, half), dim=-1)
        result.append(both if pairing == "half" else half.repeat_interleave(2, dim=-1))
    return torch.cat(result, dim=-1)


def _of_each(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """A function of a tensor, or of each of two."""
    return function(value) if isinstance(value, Tensor) else type(value)(map(function, value))


def _in_float32(x: Tensor) -> Tensor:
    if x.is_complex():
        return x.to(torch.complex64)
    return x.float() if x.is_floating_point() else x


def _results(value: Any) -> list[Tensor]:
    return [*value] if isinstance(value, (tuple, list)) else [value]


# --- tables that have been looked at --------------------------------------------------------------


class _Tables:
    """cos and sin in order, of the tensors that a model made last; None where pairs differ."""

    def __init__(self) -> None:
        self._kept: dict[Any, tuple[Any, int, Any]] = {}

    def of(self, leaves: list[Tensor], rotation: _Rotation) -> tuple[Tensor, Tensor] | None:
        if any(leaf.requires_grad or leaf.is_inference() for leaf in leaves):
            return self._made(leaves, rotation)
        key = *(id(leaf) for leaf in leaves), rotation
        versions = sum(leaf._version for leaf in leaves)
        if key in self._kept:
            alive, version, tables = self._kept[key]
            if version == versions and all(
                ref() is leaf for ref, leaf in zip(alive, leaves, strict=True)
            ):
                return tables  # type: ignore[no-any-return]
        tables = self._made(leaves, rotation)

        def forget(_: Any) -> None:
            self._kept.pop(key, None)

        alive = tuple(weakref.ref(leaf, forget) for leaf in leaves)
        self._kept[key] = alive, versions, tables
        return tables

    @staticmethod
    def _made(leaves: list[Tensor], rotation: _Rotation) -> tuple[Tensor, Tensor] | None:
        if rotation.kind == "matrix":
            cos, minus_sin, sin, other_cos = leaves[0].flatten(-2).unbind(-1)
            if not (torch.equal(cos, other_cos) and torch.equal(minus_sin, -sin)):
                return None
        result = []
        for table in _as_two(rotation.kind, leaves):
            one, other = rotation.columns(table)
            if rotation.every_dim and not torch.equal(one, other):
                return None
            exact = one if rotation.dtype == torch.float64 else one.float()
            result.append(rotation.in_order(exact).contiguous())
        return result[0], result[1]


# --- the function in its place --------------------------------------------------------------------


def learning(original: Callable[..., Any], report: Callable[[str], object]) -> Callable[..., Any]:
    """A function with the arguments of a model's own that rotates through this library.

    Args:
        original: the model's function. It is called while torch.compile or a transform follows,
            and where a kind of call is no rotation that is known.
        report: called with the reason, at least once.
    """
    parameters = inspect.signature(original).parameters
    names = tuple(parameters)
    defaults = {
        name: each.default
        for name, each in parameters.items()
        if each.default is not inspect.Parameter.empty
    }
    known: dict[Any, _Rotation | str] = {}
    kept = _Tables()

    def rotary(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling() or transformed():
            return original(*args, **kwargs)
        given = defaults | dict(zip(names, args, strict=False)) | kwargs
        call = _sorted({name: given[name] for name in names if name in given})
        if call is None:
            report(f"{title_of(original)} takes other arguments than heads, tables and numbers")
            return original(*args, **kwargs)
        values = [given[name] for name in call.tensors]
        if not _are_plain(_leaves(values)):
            return original(*args, **kwargs)
        key = call, *_kinds_of(_leaves(values))
        rotation = known.get(key)
        if rotation is None:
            rotation = known[key] = _learn(original, given, call)
            if isinstance(rotation, str):
                report(rotation)
        if isinstance(rotation, str):
            return original(*args, **kwargs)
        tables = kept.of(_leaves(values[rotation.heads :]), rotation)
        if tables is None:
            report(f"{title_of(original)} got tables whose columns of a pair differ")
            return original(*args, **kwargs)
        rotated = tuple(rotation(x, *tables) for x in values[: rotation.heads])
        return rotated if len(rotated) > 1 else rotated[0]

    rotary.__name__ = title_of(original)
    return rotary


def _are_plain(tensors: list[Tensor]) -> bool:
    """Whether these can be looked at here: numbers of torch's own, all on one device."""
    first = tensors[0]
    if first.is_meta:
        return False
    if first.is_cuda and torch.cuda.is_current_stream_capturing():
        return False  # nothing may be waited for
    return all(
        type(x) in (Tensor, torch.nn.Parameter) and x.device == first.device and x.numel() > 0
        for x in tensors
    )


def _kinds_of(tensors: list[Tensor]) -> Iterator[tuple[Any, ...]]:
    """What of tensors decides which calls are alike: of long axes only which of them are longer."""
    sizes = sorted({size for x in tensors for size in x.shape[:-1] if size > 2})
    numbers = {size: at + 3 for at, size in enumerate(sizes)} | {1: 1, 2: 2}
    for x in tensors:
        yield x.dtype, x.device.type, x.shape[-1], *(numbers[size] for size in x.shape[:-1])
