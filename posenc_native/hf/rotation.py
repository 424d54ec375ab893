"""Find out what a rotary function does by calling it.

A rotary function gets heads and tables of cos and sin, and returns rotated heads. Every dim of its
result is ``x[a] * cos[.., c] + sign * x[b] * sin[.., d]`` or ``x[a]``. One call with unit vectors
as heads and whole numbers as tables shows a, b, c, d and sign. Two dims that share their angle
are a pair; the function is then a rotation of pairs, by `Tables`. This file
contains no name of a model or function.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from posenc_native.core.calls.tables import Tables
from posenc_native.encodings.rotary.apply import apply_rotary_qk
from posenc_native.encodings.rotary.norm import norm_rotary_qk

from .forms import Form, NotServed
from .normed.norms import PutOff, now, over
from .signatures import RotaryArguments, rotary_arguments, title_of

if TYPE_CHECKING:
    from posenc_native.core.calls.kinds import Pairing

__all__ = ["Rotation", "may_be_overwritten", "probe_function"]


@dataclass
class Rotation:
    """The behavior of a rotary function with tables of one form.

    Attributes:
        order: the angles in the order of the columns that it needs: those of the pairs of a head,
            in the order of `Tables`.
        pairing: "half", "interleaved", a block size. None: its dims are not pairs, see `mixed`.
        out_pairing: the pairing of the result: DeepSeek-V3 takes pairs 2i, 2i + 1 and returns them
            as i, i + P.
        inverse: whether it rotates in the other direction.
        mixed: without pairing, for every rotated dim: (a, angle of cos, b, angle of sin, sign).
        part: the rotated part of a head that is wider: "leading", "trailing"; "whole": heads cannot
            be wider.
        prefix: whether leading tokens that have no row in the tables stay unchanged.
        keeps_dtype: whether heads keep their dtype when tables are float32.
        dims: the number of rotated dims of a head.
        rows: `mixed`, transposed.
        layouts: the layout of the head tensor, by (axes of a head tensor, axes of a table without
            `Form.inserted`, unsqueeze_dim).
    """

    order: tuple[int, ...]
    pairing: Pairing | None
    out_pairing: Pairing | Literal["same"] = "same"
    inverse: bool = False
    mixed: tuple[tuple[int, int, int, int, int], ...] = ()
    part: str = "whole"
    prefix: bool = False
    keeps_dtype: bool = False
    dims: int = field(init=False)
    rows: Tensor = field(init=False)
    layouts: dict[tuple[int, int, Any], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.dims = len(self.mixed) if self.pairing is None else 2 * len(self.order)
        self.rows = torch.tensor(self.mixed, dtype=torch.int64).reshape(-1, 5).T

    @property
    def keeps_pairs(self) -> bool:
        """Whether it rotates pairs without moving their dims."""
        return self.pairing is not None and self.out_pairing == "same"

    def layout(self, heads: tuple[Tensor, ...], table: torch.Size, dim: Any) -> str | None:
        """The layout of heads that this rotation covers; otherwise None."""
        layout = self.layouts.get((heads[0].ndim, len(table), dim))
        if layout is not None:
            at, rows = layout.index("s"), table[-2]
            for x in heads:
                tokens = x.shape[at]
                if tokens != rows and not (self.prefix and tokens > rows):
                    return None
        return layout

    def __call__(
        self,
        heads: tuple[Tensor, ...],
        cos: Tensor,
        sin: Tensor,
        layout: str,
        inplace: bool = False,
        norms: tuple[PutOff | None, ...] | None = None,
    ) -> tuple[Tensor, ...]:
        """x, or q and k, rotated; in one call unless they differ in more than their heads.

        norms: the norms still to be applied to them.
        """
        shape, table = heads[0].shape, cos.shape
        if self.part == "whole" and shape[-1] != self.dims:
            raise ValueError(f"patched model: expected heads of size {self.dims}, got {shape[-1]}")
        if self.prefix and (extra := shape[layout.index("s")] - table[-2]) > 0:
            cos = torch.nn.functional.pad(cos, (0, 0, extra, 0), value=1.0)
            sin = torch.nn.functional.pad(sin, (0, 0, extra, 0))
        if len(table) == 3 and table[0] == 1 and (layout[0] != "b" or shape[0] != 1):
            cos, sin = cos[0], sin[0]  # the same positions for the whole batch
        if norms is not None:
            if self.keeps_pairs and None not in norms:
                heads = tuple(map(_as_normed, heads, norms))
            else:
                heads, norms = tuple(map(now, norms, heads)), None
        if self.pairing is None:
            return tuple(self._mix(x, cos, sin, layout) for x in heads)
        norms = norms or (None, None)
        written = tuple(map(may_be_overwritten, heads, norms)) if inplace else (False, False)
        if len(heads) == 2 and written[0] == written[1] and _alike(*heads, *norms):
            # In place, one tensor that is both q and k would be rotated twice.
            once = written[0] and heads[0] is not heads[1]
            return self._turn(heads, norms, cos, sin, layout, once)
        tensors = zip(heads, norms, written, strict=False)
        return tuple(
            self._turn((x, None), (n, None), cos, sin, layout, w)[0] for x, n, w in tensors
        )

    def _turn(
        self,
        heads: tuple[Any, ...],
        norms: tuple[PutOff | None, ...],
        cos: Tensor,
        sin: Tensor,
        layout: str,
        inplace: bool,
    ) -> tuple[Tensor, ...]:
        """q and k (None: only q) rotated in one call, which also applies their pending norms."""
        (q, k), (q_norm, k_norm) = heads, norms
        start = q.shape[-1] - self.dims if self.part == "trailing" else 0
        if q_norm is None:
            rotated: tuple[Tensor, ...] = apply_rotary_qk(
                q, k, None, Tables(cos, sin), layout=layout, pairing=self.pairing,
                rotary_start=start, inverse=self.inverse, out_pairing=self.out_pairing,
                inplace=inplace,
            )  # fmt: skip
            return rotated
        tables = Tables(cos, -sin if self.inverse else sin)
        normed: tuple[Tensor, ...] = norm_rotary_qk(
            q, k, None, tables, q_weight=q_norm.weight,
            k_weight=None if k_norm is None else k_norm.weight, eps=q_norm.eps,
            norm_over=over(q_norm, q), weight_offset=q_norm.offset, layout=layout,
            pairing=self.pairing, rotary_start=start, inplace=inplace,
        )  # fmt: skip
        return normed

    def _mix(self, x: Tensor, cos: Tensor, sin: Tensor, layout: str) -> Tensor:
        """Rotates dims whose cos and sin have different angles; rounded once."""
        a, of_cos, b, of_sin, sign = self.rows.to(x.device)
        letters = "bs"[3 - cos.ndim :]
        shape = [x.shape[i] if n in letters else 1 for i, n in enumerate(layout[:-1])] + [-1]
        start = x.shape[-1] - self.dims if self.part == "trailing" else 0
        before, middle, after = x.split((start, self.dims, x.shape[-1] - start - self.dims), dim=-1)
        middle = middle.to(torch.promote_types(x.dtype, cos.dtype))
        turned = middle[..., a] * cos[..., of_cos].reshape(shape)
        turned = turned + middle[..., b] * (sin[..., of_sin] * sign).reshape(shape)
        return torch.cat((before, turned.to(x.dtype), after), dim=-1)


def may_be_overwritten(x: Tensor, norm: PutOff | None = None) -> bool:
    """Whether x may be overwritten: not if autograd may need it or if x shows a value twice."""
    weight = None if norm is None else norm.weight
    wanted = x.requires_grad or (weight is not None and weight.requires_grad)
    return not (torch.is_grad_enabled() and wanted) and 0 not in x.stride()


def _as_normed(x: Tensor, norm: PutOff | None) -> Tensor:
    """x in the dtype that its norm returns."""
    if (
        norm is not None
        and norm.promotes
        and norm.weight is not None
        and norm.weight.dtype != x.dtype
    ):
        return x.to(torch.promote_types(x.dtype, norm.weight.dtype))
    return x


def _alike(q: Tensor, k: Tensor, q_norm: PutOff | None, k_norm: PutOff | None) -> bool:
    """Whether they differ only in heads, or in tokens, which is an error with one table."""
    if q_norm is not None and k_norm is not None:
        options = (
            (q_norm.eps, q_norm.offset, over(q_norm, q)),
            (k_norm.eps, k_norm.offset, over(k_norm, k)),
        )
        if options[0] != options[1]:
            return False
    sizes, others = q.shape, k.shape
    return q.dtype == k.dtype and sizes[0] == others[0] and sizes[-1] == others[-1]


# --- probing --------------------------------------------------------------------------------------

# The orders in which a function may expect the axes of its heads.
_LAYOUTS = ("bhsd", "bshd", "hsd", "shd")

_SIZES = {"b": 2, "h": 3, "s": 5}

_Dim = tuple[int, int, int, int, int]  # a, angle of cos, b, angle of sin, sign


def probe_function(original: Callable[..., Any], form: Form) -> Rotation:
    """The behavior of a rotary function with tables of one form.

    Raises:
        NotServed: it takes other arguments, or does something else.
    """
    title = title_of(original)
    probe = _FunctionProbe(original, rotary_arguments(original), form)
    width, extra = len(form.columns), 6
    # Tables are as wide as the rotated part, or have one column per pair.
    for size in (width, 2 * width):
        rows = probe.rows(size)
        if rows is not None:
            break
    else:
        raise NotServed(f"{title} cannot be probed with heads of {width}")
    if None in rows:
        raise NotServed(f"{title} rotates in an unknown way")
    rotation = _as_rotation(rows, form.angles)  # type: ignore[arg-type]
    wider = probe.rows(size + extra)
    if wider:  # otherwise it only takes heads that are as wide as the rotated part
        shifted = [row and (row[0] + extra, row[1], row[2] + extra, *row[3:]) for row in rows]
        if wider == [*rows, *[None] * extra]:
            rotation.part = "leading"
        elif wider == [*[None] * extra, *shifted]:
            rotation.part = "trailing"
        else:
            raise NotServed(f"{title} rotates a part of a head in an unknown way")
    probe.find_layouts(rotation)
    if not rotation.layouts:
        raise NotServed(f"{title} takes heads in an unknown layout")
    return rotation


@dataclass
class _FunctionProbe:
    """Calls of a rotary function with small tensors."""

    original: Callable[..., Any]
    arguments: RotaryArguments
    form: Form

    def shapes(self) -> Iterator[tuple[str, str, Any]]:
        """Layouts of heads, axes of tables, and unsqueeze_dim; most cannot be combined."""
        has_dim = "unsqueeze_dim" in self.arguments.defaults
        default = self.arguments.defaults.get("unsqueeze_dim")
        dims = dict.fromkeys((default, 1, 2, 0, -2, -3) if has_dim else (None,))
        for layout, rank, dim in itertools.product(_LAYOUTS, self.form.ranks, dims):
            yield layout, "bs" if rank - len(self.form.inserted) == 3 else "s", dim

    def call(self, heads: list[Tensor], cos: Tensor, sin: Tensor, dim: Any) -> list[Tensor] | None:
        """The rotated heads; None if the function does not take these arguments."""
        for axis in self.form.inserted:
            cos, sin = cos.unsqueeze(axis), sin.unsqueeze(axis)
        names = self.arguments
        arguments: dict[str, Any] = dict(zip(names.heads, heads, strict=True))
        if self.form.packing == "cos, sin":
            arguments |= {"cos": cos, "sin": sin}
        else:
            is_complex = self.form.packing == "complex"
            table = torch.complex(cos, sin) if is_complex else torch.cat((sin, cos), dim=-1)
            arguments[names.tables[0]] = table
        for name in names.positions:
            arguments[name] = torch.zeros(*cos.shape[:-1], self.form.axes or 1, dtype=torch.int64)
        if dim is not None:
            arguments["unsqueeze_dim"] = dim
        try:
            results = self.original(**arguments)
        except Exception:  # any error of a model
            return None
        results = results if isinstance(results, (tuple, list)) else (results,)
        if len(results) != len(heads) or any(
            not isinstance(a, Tensor) or a.shape != b.shape
            for a, b in zip(results, heads, strict=False)
        ):
            return None
        return list(results)

    def rows(self, size: int) -> list[_Dim | None] | None:
        """The `_Dim` of every dim of a head of this size; None for a dim that stays unchanged.

        None if the function does not take such heads.
        """
        title, width = title_of(self.original), len(self.form.columns)
        # Whole numbers that differ from each other, and from 1.
        cos = torch.arange(2, width + 2, dtype=torch.float32)
        sin = cos + width
        # One head per dim, and one more: a count equal to that of the columns would be ambiguous.
        unit, count = torch.eye(size + 1, size, dtype=torch.float32), size + 1
        results = None
        for layout, axes, dim in self.shapes():
            x = unit.reshape([count if letter == "h" else 1 for letter in layout[:-1]] + [size])
            shape = [1] * len(axes) + [width]
            heads = [x.clone() for _ in self.arguments.heads]
            results = self.call(heads, cos.reshape(shape), sin.reshape(shape), dim)
            if results is not None:
                break
        if results is None:
            return None
        if any(not torch.equal(result, results[0]) for result in results):
            raise NotServed(f"{title} rotates q and k in different ways")
        rows: list[Any] = [self._row(column) for column in results[0].reshape(count, size).T]
        for i, row in enumerate(rows):
            if row == (i,):
                rows[i] = None
            elif row is None or len(row) == 1:
                raise NotServed(f"{title} rotates in an unknown way")
        return rows

    def _row(self, column: Tensor) -> tuple[int, ...] | None:
        """A `_Dim` from the share of every dim in one; (a,) if that is 1; None for others."""
        columns, width = self.form.columns, len(self.form.columns)
        shares = {int(i): float(column[i]) for i in column.nonzero()}
        if len(shares) == 1:
            ((a, share),) = shares.items()
            return (a,) if share == 1 else None
        if len(shares) != 2:
            return None
        (a, cos), (b, sin) = sorted(shares.items(), key=lambda share: abs(share[1]))
        of_cos, of_sin = round(cos) - 2, round(abs(sin)) - 2 - width
        if cos != of_cos + 2 or not (0 <= of_cos < width and 0 <= of_sin < width):
            return None
        return a, columns[of_cos], b, columns[of_sin], 1 if sin > 0 else -1

    def find_layouts(self, rotation: Rotation) -> None:
        """Fill in layouts, prefix and keeps_dtype from the function's results for random heads."""
        random = torch.Generator("cpu").manual_seed(0)

        def numbers(*shape: int) -> Tensor:
            return torch.randn(shape, generator=random, dtype=torch.float32)

        order, columns = torch.tensor(rotation.order), torch.tensor(self.form.columns)
        size = rotation.dims + (0 if rotation.part == "whole" else 2)

        def fits(layout: str, axes: str, dim: Any, extra: int = 0, like: Any = None) -> bool:
            sizes = [_SIZES[n] + (extra if n == "s" else 0) for n in layout[:-1]]
            heads = [numbers(*sizes, size) for _ in self.arguments.heads]
            cos, sin = (numbers(*(_SIZES[n] for n in axes), self.form.angles) for _ in range(2))
            inputs = heads if like is None else [x.to(like) for x in heads]
            theirs = self.call(inputs, cos[..., columns], sin[..., columns], dim)
            if theirs is None or like is not None:
                return theirs is not None and theirs[0].dtype == like
            try:
                ours = rotation(tuple(heads), cos[..., order], sin[..., order], layout)
            except ValueError:
                return False
            return all(torch.allclose(a, b, 1e-4, 1e-5) for a, b in zip(theirs, ours, strict=True))

        for layout, axes, dim in self.shapes():
            key = len(layout), len(axes) + 1, dim
            if key not in rotation.layouts and fits(layout, axes, dim):
                rotation.layouts[key] = layout
                rotation.keeps_dtype = fits(layout, axes, dim, like=torch.bfloat16)
                rotation.prefix = True
                rotation.prefix = fits(layout, axes, dim, extra=2)


def _as_rotation(rows: list[_Dim], angles: int) -> Rotation:
    """The rotation of pairs that gives these dims; of single dims if their angles differ."""
    pairs = len(rows) // 2
    dims = torch.arange(2 * pairs)
    places: dict[Any, Tensor] = {
        "half": dims.reshape(2, -1),
        "interleaved": dims.reshape(-1, 2).T,
    }
    for blocks in (2, 3, 4):
        if len(rows) % (2 * blocks) == 0:
            in_blocks = dims.reshape(blocks, 2, -1).transpose(0, 1).flatten(1)
            places[len(rows) // blocks] = in_blocks
    # First those that do not move the dims of a pair.
    moves = sorted(itertools.product(places, places), key=lambda move: move[0] != move[1])
    for (pairing, out_pairing), inverse in itertools.product(moves, (False, True)):
        order = []
        for a, b, first, second in torch.cat((places[pairing], places[out_pairing])).T.tolist():
            angle, sign = rows[first][1], 1 if inverse else -1
            if rows[first] == (a, angle, b, angle, sign) and (
                rows[second] == (b, angle, a, angle, -sign)
            ):
                order.append(angle)
        if len(order) == pairs:
            to: Any = "same" if out_pairing == pairing else out_pairing
            return Rotation(tuple(order), pairing, to, inverse)
    return Rotation(tuple(range(angles)), None, mixed=tuple(rows))
