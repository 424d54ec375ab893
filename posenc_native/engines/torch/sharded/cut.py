"""The sharded axes of a DTensor, the place of the local part, and its values."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from posenc_native.core.calls.arguments import wrong_type, wrong_value
from posenc_native.engines.following import forward_mode, needs_grad, tracing
from posenc_native.engines.torch.door import increment_version
from posenc_native.engines.torch.results import no_output_for_gradient

from .errors import NotThePart

# The names of a tensor's axes. An axis that merges two in C order has the names of both: "g h".
Names = tuple[str, ...]

# Up to this size torch.empty_like makes results, in a third of the time of from_local; beyond, the
# allocation dominates, and the operators do it faster.
_SMALL_BYTES = 1 << 20


class Cut:
    """How a DTensor is distributed over its mesh.

    by: for each dimension of the mesh the name of the axis that it shards, or "".
    """

    def __init__(self, x: DTensor, names: Names, may: Names) -> None:
        """may: the axes along which x may stay sharded; along others it is gathered."""
        if len(names) != x.ndim:
            raise NotThePart
        self.mesh = x.device_mesh
        if self.mesh.get_coordinate() is None:
            raise NotThePart(f"this rank is not in {self.mesh}")
        self.names = names
        self.sizes: dict[str, int] = dict(zip(names, x.shape, strict=True))
        self.device = x.device
        # A subclass of Shard may order its parts differently.
        kept = []
        for placement in x.placements:
            name = names[placement.dim] if type(placement) is Shard else ""
            kept.append(name if name in may else "")
        self.by: Names = tuple(kept)
        # The placements of a tensor that does not have to be redistributed.
        self.own = self.placements(names)

    def lies_as(self, other: Cut) -> bool:
        """Whether another tensor is sharded along the same axes, over the same devices."""
        return self.by == other.by and self.mesh == other.mesh

    def span(self, name: str) -> tuple[int, int]:
        """The start and the length of the part along an axis."""
        begin, count = 0, self.sizes[name]
        for dim, cut in enumerate(self.by):
            if cut == name:
                ranks = self.mesh.size(dim)
                chunk = -(-count // ranks)  # as torch.chunk has them
                before = min(self.mesh.get_local_rank(dim) * chunk, count)
                begin, count = begin + before, min(chunk, count - before)
        return begin, count

    def ranks(self, name: str) -> tuple[int, int]:
        """The number of the local part along an axis, and the number of parts."""
        rank, count = 0, 1
        for dim, cut in enumerate(self.by):
            if cut == name:
                size = self.mesh.size(dim)
                rank, count = rank * size + self.mesh.get_local_rank(dim), count * size
        return rank, count

    def is_cut(self, *names: str) -> bool:
        """Whether x is sharded along any of these axes."""
        return any(name in self.by for name in names)

    def placements(self, names: Names, shape: torch.Size | None = None) -> tuple[Any, ...]:
        """The placements of a tensor with these axes; axes of size 1 are shared by all parts."""
        own: list[Any] = []
        for cut in self.by:
            axis = names.index(cut) if cut and cut in names else -1
            if axis >= 0 and shape is not None and shape[axis] != self.sizes[cut]:
                axis = -1
            own.append(Replicate() if axis < 0 else Shard(axis))
        return tuple(own)

    def local(self, x: DTensor) -> Tensor:
        """The local part of x, the tensor of this cut."""
        if tuple(x.placements) != self.own:
            x = x.redistribute(placements=self.own)
        return x.to_local()

    def part(self, t: Any, names: Names) -> Any:
        """The values of another argument for the local part of x.

        A plain tensor holds the whole argument.
        """
        if t is None:
            return None
        if t.ndim != len(names):
            raise NotThePart
        for axis, name in enumerate(names):
            if " " in name:
                return self._part_of_two(t, names, axis)
        for size, name in zip(t.shape, names, strict=True):
            # Not `in`, which does not find symbolic lengths of torch.compile.
            if name in self.sizes and size != 1 and size != self.sizes[name]:
                raise NotThePart
        if not isinstance(t, DTensor):
            if not needs_grad(t):
                for axis, name in enumerate(names):
                    if self.is_cut(name) and t.shape[axis] == self.sizes[name]:
                        t = t.narrow(axis, *self.span(name))
                return t
            t = whole(t, self.mesh)
        elif t.device_mesh != self.mesh:
            raise NotThePart(_meshes(t, self.mesh))
        placements = self.placements(names, t.shape)
        if tuple(t.placements) != placements:
            t = t.redistribute(placements=placements)
        if not needs_grad(t):
            return t.to_local()
        # If x is sharded and t is not, each rank has only the gradient of its part.
        shared = [
            Partial() if cut and isinstance(p, Replicate) else p
            for cut, p in zip(self.by, placements, strict=True)
        ]
        return t.to_local(grad_placements=shared)

    def _part_of_two(self, t: Tensor, names: Names, axis: int) -> Any:
        """`part` of a tensor with an axis that merges two axes of x in C order."""
        two = tuple(names[axis].split())
        sizes = tuple(self.sizes[name] for name in two)
        if t.shape[axis] == 1:
            opened = t.unflatten(axis, (1, 1))
        elif t.shape[axis] == sizes[0] * sizes[1]:
            opened = t.unflatten(axis, sizes)
        else:
            raise NotThePart
        part = self.part(opened, (*names[:axis], *two, *names[axis + 1 :]))
        return part.flatten(axis, axis + 1)

    def of_all(self, t: Tensor, name: str) -> Tensor:
        """A value of every part along an axis, gathered: [parts, ...]."""
        dims = [dim for dim, cut in enumerate(self.by) if cut == name]
        # Other dimensions of the mesh hold different values; nothing is gathered over them.
        placements: list[Any] = [Replicate()] * self.mesh.ndim
        for axis, dim in enumerate(dims):
            placements[dim] = Shard(axis)
        shape = torch.Size((*(self.mesh.size(dim) for dim in dims), *t.shape))
        own = t.contiguous().reshape((1,) * len(dims) + tuple(t.shape))
        # torch.compile cannot read the strides of a gradient, which `_strides` does.
        strides = _strides_in(list(range(len(shape))), shape)
        all_parts = DTensor.from_local(
            own, self.mesh, placements, run_check=False, shape=shape, stride=strides
        )
        result: Tensor = gathered(all_parts, self.mesh)
        return result.flatten(0, len(dims) - 1)

    def join(self, part: Tensor, names: Names, *, summed: Names = ()) -> DTensor:
        """The DTensor of a local result; along sharded `summed` axes it is a pending sum."""
        shape = torch.Size(
            self.sizes.get(name, size) for name, size in zip(names, part.shape, strict=True)
        )
        placements = [
            Partial() if cut and cut in summed else placement
            for cut, placement in zip(self.by, self.placements(names), strict=True)
        ]
        return DTensor.from_local(
            part, self.mesh, placements, run_check=False, shape=shape, stride=_strides(part, shape)
        )

    def room(self, x: DTensor) -> DTensor | None:
        """Memory for a small result like x; None if the result must be joined."""
        if torch.compiler.is_compiling() or x.nbytes > _SMALL_BYTES:
            return None
        if tuple(x.placements) != self.own:
            return None
        return torch.empty_like(x)  # type: ignore[return-value]

    def cut_as(self, by: Names) -> Cut:
        """The cut of the same tensor along other axes."""
        if not {*by} <= {"", *self.names}:
            raise NotThePart
        other = copy.copy(self)
        other.by = by
        other.own = other.placements(self.names)
        return other

    def of_sizes(self, **sizes: int) -> Cut:
        """The same cut for a tensor whose axes have other sizes."""
        other = copy.copy(self)
        other.sizes = self.sizes | sizes
        return other

    def place(
        self, function: str, argument: str, out: Any, like: str, expected: str | None = None
    ) -> Tensor:
        """The local part of a DTensor that will be written to.

        Raises:
            TypeError, ValueError: it is not a DTensor, or is placed unlike the result.
        """
        if not isinstance(out, DTensor):
            wrong_type(function, argument, f"a DTensor, as {like} is", type(out).__name__)
        wanted = self.own
        if out.device_mesh != self.mesh:
            wrong_value(function, argument, f"a DTensor on the mesh of {like}, {self.mesh}",
                        out.device_mesh)  # fmt: skip
        if tuple(out.placements) != wanted:
            if expected is None:
                expected = f"a DTensor placed like the result, {shown(wanted)}"
            wrong_value(function, argument, expected, shown(out.placements))
        with torch.no_grad():
            return out.to_local()


def result_like(
    function: str, cut: Cut, name: str, x: DTensor, out: Any, read: list[Tensor], compute: Any
) -> Tensor:
    """Apply `compute` to the local part of x, for a new DTensor sharded like x or for `out`.

    name: of x; read: all tensors of the call; compute: takes a part, and None or an output.
    """
    if out is None:
        if must_be_traced(*read):
            return cut.join(compute(cut.local(x), None), cut.names)
        return new_like([cut], [x], lambda parts, to: [compute(parts[0], to and to[0])])[0]
    if out is x and needs_grad(*read):
        cut.place(function, "out", out, name)
        return x.copy_(cut.join(compute(cut.local(x), None), cut.names))  # type: ignore[no-any-return]
    no_output_for_gradient(function, *read)
    place = cut.place(function, "out", out, name)
    with torch.no_grad():
        compute(place if out is x else cut.local(x), place)
    overwritten(out)
    return out  # type: ignore[no-any-return]


def new_like(
    cuts: Sequence[Cut], inputs: Sequence[DTensor], compute: Callable[..., Sequence[Tensor]]
) -> tuple[DTensor, ...]:
    """New DTensors sharded like the inputs, without a gradient.

    compute: takes the parts of the inputs, and None or a tuple of those of the outputs.
    """
    with torch.no_grad():
        pairs = list(zip(cuts, inputs, strict=True))
        parts = [cut.local(x) for cut, x in pairs]
        rooms = [room for cut, x in pairs if (room := cut.room(x)) is not None]
        if len(rooms) == len(parts):
            compute(parts, tuple([room.to_local() for room in rooms]))
            return tuple(rooms)
        results = compute(parts, None)
        return tuple([cut.join(part, cut.names) for cut, part in zip(cuts, results, strict=True)])


def must_be_traced(*read: Tensor) -> bool:
    """Whether torch must follow the operations of a call that reads these tensors."""
    return tracing() or forward_mode() or needs_grad(*read)


def whole(t: Tensor, mesh: Any) -> DTensor:
    """A plain tensor as the DTensor that it stands for, the same on every rank."""
    if isinstance(t, DTensor):
        return t
    return DTensor.from_local(t, mesh, [Replicate()] * mesh.ndim, run_check=False)


def summed(t: Tensor, mesh: Any) -> DTensor:
    """`whole`, after a pending sum is computed."""
    t = whole(t, mesh)
    if not any(p.is_partial() for p in t.placements):
        return t
    return t.redistribute(placements=[Replicate() if p.is_partial() else p for p in t.placements])


def gathered(value: Any, mesh: Any) -> Any:
    """The whole of a DTensor as a plain tensor, with which every rank computes the same."""
    if not isinstance(value, DTensor):
        return value
    return value.redistribute(placements=[Replicate()] * mesh.ndim).to_local()


def elementwise(function: Callable[[Tensor], Tensor], x: DTensor) -> DTensor:
    """Apply an elementwise function to the parts of x."""
    part = function(x.to_local().contiguous())
    stride = _strides(part, x.shape)
    return DTensor.from_local(
        part, x.device_mesh, x.placements, run_check=False, shape=x.shape, stride=stride
    )


def mesh_of(*values: Any) -> Any:
    """The mesh of the first DTensor among the values."""
    return next(dtensors(values)).device_mesh


def dtensors(values: Any) -> Iterator[DTensor]:
    """All DTensors, including those in tuples."""
    for value in values:
        if isinstance(value, DTensor):
            yield value
        elif isinstance(value, tuple):
            yield from dtensors(value)


def _meshes(t: DTensor, mesh: Any) -> str:
    return f"a DTensor on {t.device_mesh} beside one on {mesh}: tensors of a call share a mesh"


def overwritten(*outs: Tensor) -> None:
    """Notify autograd, since only the local parts were written to."""
    if not torch.compiler.is_compiling():
        increment_version(outs)


def _strides(part: Tensor, shape: torch.Size) -> tuple[int, ...]:
    """The strides of the whole, in the memory order of a part."""
    order = list(range(part.ndim))
    if not part.is_contiguous():
        order.sort(key=part.stride().__getitem__, reverse=True)
    return _strides_in(order, shape)


def _strides_in(order: list[int], shape: torch.Size) -> tuple[int, ...]:
    """The strides of axes in this memory order, the last one contiguous."""
    strides, step = [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis] = step
        step *= max(shape[axis], 1)
    return tuple(strides)


def shown(placements: Any) -> str:
    """Placements as errors show them."""
    return f"[{', '.join(map(str, placements))}]"
