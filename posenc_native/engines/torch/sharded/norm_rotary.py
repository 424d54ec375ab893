"""The steps before attention for DTensors, sharded along batch, tokens and heads.

For a norm over all heads of a token (norm_over="token"), heads are gathered, since the mean needs
them all. The cache determines whether its inputs are sharded along batch or heads: nothing is
written elsewhere.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from posenc_native.core.calls.arguments import wrong_type, wrong_value
from posenc_native.core.calls.caches import Cache, check_cache_layout, scale_of
from posenc_native.core.calls.norms import Norm
from posenc_native.core.calls.pairs import in_place
from posenc_native.core.calls.rotation import by_tables
from posenc_native.engines import backend
from posenc_native.engines.following import needs_grad
from posenc_native.engines.rotations import to_of
from posenc_native.engines.torch import norm_rotary as plain
from posenc_native.engines.torch.inputs import integer_tensor
from posenc_native.engines.torch.library import operators_take
from posenc_native.engines.torch.results import no_gradient_of, no_output_for_gradient
from posenc_native.engines.verbs import NORM_ROTARY_QK, ROTARY_APPEND, Outs, RotaryVerb

from .cut import Cut, mesh_of, must_be_traced, overwritten, shown, whole
from .errors import NotThePart
from .recorded import nonlinear
from .rotary import cut_of, part_of, places_of, tensors_of, token_names


def norm_rotary_qk(
    inputs: tuple[Any, ...], rotation: Any, compute: str, norm: Norm, outs: Outs
) -> tuple[Tensor, ...]:
    """`norm_rotary_qk`."""
    return _run(NORM_ROTARY_QK, inputs, rotation, compute, norm, (), outs)


def rotary_append(
    inputs: tuple[Any, ...],
    rotation: Any,
    compute: str,
    norm: Norm,
    cache: tuple[Any, ...],
    outs: Outs,
) -> tuple[Tensor, ...]:
    """`rotary_append`."""
    return _run(ROTARY_APPEND, inputs, rotation, compute, norm, cache, outs)


def _run(
    verb: RotaryVerb,
    inputs: tuple[Any, ...],
    rotation: Any,
    compute: str,
    norm: Norm,
    cache: tuple[Any, ...],
    outs: Outs,
) -> tuple[Tensor, ...]:
    function = verb.name
    mesh = mesh_of((inputs, rotation, norm, cache, outs))
    whole_inputs = tuple(whole(x, mesh) for x in inputs)
    read = tensors_of(inputs, rotation, norm)
    if in_place(outs, inputs):
        no_gradient_of(function, "inplace", *read)
    elif outs is not None:
        no_output_for_gradient(function, *read)
    call = _Call(function, whole_inputs, rotation, norm)
    if cache:
        call = _Append(function, whole_inputs, rotation, norm, Cache(*cache))
    places: Outs = None
    if outs is not None:
        places = places_of(function, call.cuts, inputs, whole_inputs, outs)
    triples = zip(outs or (), inputs, places or (), strict=False)
    written = {i: place for i, (out, x, place) in enumerate(triples) if out is x}
    followed = torch.is_grad_enabled() and needs_grad(*read)
    if followed and outs is None and not cache and call.is_one_node():
        return call.recorded(compute)
    rooms = None if outs is not None or followed else call.rooms()
    with torch.set_grad_enabled(followed):
        if rooms is not None:
            places = tuple(room.to_local() for room in rooms)
        parts = call.run(compute, places, written)
    if rooms is not None:
        return rooms
    if outs is not None:
        overwritten(*outs)
        return outs
    return tuple(cut.join(part, cut.names) for cut, part in zip(call.cuts, parts, strict=False))


class _Call:
    """A call for q and k, each with its own cut."""

    def __init__(
        self, function: str, inputs: tuple[DTensor, ...], rotation: Any, norm: Norm
    ) -> None:
        self.function = function
        self.inputs = inputs
        self.rotation = rotation
        self.norm = norm
        self.results = 2
        whole_axes = "gdh" if norm.norm_over == "token" else "gd"
        self.cuts = [cut_of(x, rotation.layout, whole_axes) for x in inputs]

    def rooms(self) -> tuple[DTensor, ...] | None:
        """Memory for small results; None if they must be joined."""
        outs = zip(self.cuts[: self.results], self.inputs, strict=False)
        rooms = tuple(room for cut, x in outs if (room := cut.room(x)) is not None)
        return rooms if len(rooms) == self.results else None

    def parts(self, written: dict[int, Tensor]) -> list[Tensor]:
        """The local parts of the inputs; an overwritten input is its output itself."""
        return [
            written[i] if i in written else cut.local(x)
            for i, (cut, x) in enumerate(zip(self.cuts, self.inputs, strict=True))
        ]

    def run(self, compute: str, places: Outs, written: dict[int, Tensor]) -> tuple[Tensor, ...]:
        """The local results. q and k that are sharded in different ways need two calls."""
        q, k = self.parts(written)
        if self.cuts[0].lies_as(self.cuts[1]):
            return self._run((q, k), (0, 1), compute, places)
        no_q, no_k = _without_heads(k, self.cuts[1]), _without_heads(q, self.cuts[0])
        of_q = None if places is None else (places[0], no_k)
        of_k = None if places is None else (no_q, places[1])
        return (
            self._run((q, no_k), (0,), compute, of_q)[0],
            self._run((no_q, k), (1,), compute, of_k)[1],
        )

    def is_one_node(self) -> bool:
        """Whether a call that needs a gradient can be one node for q and k."""
        there = zip(self.cuts, self.inputs, strict=True)
        weights = self.norm.q_weight, self.norm.k_weight
        return (
            all(weight is None or isinstance(weight, Tensor) for weight in weights)
            and not must_be_traced(*tensors_of(self.rotation))
            and self.cuts[0].lies_as(self.cuts[1])
            and all(tuple(x.placements) == cut.own for cut, x in there)
            and operators_take(self.inputs[0].to_local(), *tensors_of(self.rotation))
        )

    def recorded(self, compute: str) -> tuple[DTensor, ...]:
        """New results, as one node."""
        rotation = part_of(self.function, self.cuts[0], self.rotation)
        norm = self.norm_of(0, 1)

        def of_weights(q_weight: Any, k_weight: Any) -> Norm:
            return norm._replace(q_weight=q_weight, k_weight=k_weight)

        def run(tensors: Any, places: Outs) -> Any:
            return _of_parts(tensors[:2], rotation, compute, of_weights(*tensors[2:]), (), places)

        def gradients(tensors: Any, grads: Any) -> Any:
            own = of_weights(*tensors[2:])
            return plain.norm_rotary_gradients(tensors[:2], rotation, compute, own, grads)

        own = norm.q_weight, norm.k_weight
        return nonlinear(self.cuts, self.inputs, own, tensors_of(rotation), run, gradients)

    def _run(
        self, pair: tuple[Tensor, Tensor], there: tuple[int, ...], compute: str, places: Outs
    ) -> tuple[Tensor, ...]:
        own = part_of(self.function, self.cuts[there[0]], self.rotation)
        return _of_parts(pair, own, compute, self.norm_of(*there), (), places)

    def norm_of(self, *there: int) -> Norm:
        """The norm with the weights of those of q (0) and k (1) that are `there`."""
        weights = [
            _weight(weight, cut) if i in there else None
            for i, (weight, cut) in enumerate(
                zip((self.norm.q_weight, self.norm.k_weight), self.cuts, strict=False)
            )
        ]
        return self.norm._replace(q_weight=weights[0], k_weight=weights[1])


class _Append(_Call):
    """A call for q, k and v, sharded like the caches."""

    def __init__(
        self, function: str, inputs: tuple[DTensor, ...], rotation: Any, norm: Norm, cache: Cache
    ) -> None:
        super().__init__(function, inputs, rotation, norm)
        letters = tuple(check_cache_layout(function, cache.cache_layout))
        caches = []
        for name in ("keys", "values"):
            tensor = getattr(cache, name)
            if not isinstance(tensor, DTensor):
                wrong_type(function, name, "a DTensor, as k is", type(tensor).__name__)
            caches.append(Cut(tensor, letters, ("b", "h")))
        by = caches[0].by
        if norm.norm_over == "token" and "h" in by:
            expected = "caches that are not sharded along heads, with norm_over='token'"
            wrong_value(function, "keys", expected, shown(cache.keys.placements))
        written = [
            cut.place(function, name, getattr(cache, name), "k", "a DTensor sharded along b or h")
            for name, cut in zip(("keys", "values"), caches, strict=True)
        ]
        mesh = caches[0].mesh
        for name, cut in zip(("values", *"qkv"), (caches[1], *self.cuts), strict=False):
            if cut.mesh != mesh:
                wrong_value(function, name, f"a DTensor on the mesh of keys, {mesh}", cut.mesh)
        if caches[1].by != by:
            expected = f"the placements of keys, {shown(cache.keys.placements)}"
            wrong_value(function, "values", expected, shown(cache.values.placements))
        self.cuts = [cut.cut_as(by) for cut in self.cuts]
        self.cache = cache._replace(keys=written[0], values=written[1])
        self.whole_cache = cache
        self._take_scales()
        self.results = 1 + bool(cache.return_k)

    def run(self, compute: str, places: Outs, written: dict[int, Tensor]) -> tuple[Tensor, ...]:
        """The local results of q, and of k if it is returned; writes the parts of the caches."""
        parts = tuple(self.parts(written))
        of_k = self.cuts[1]
        slots = integer_tensor(self.function, "slots", self.cache.slots, of_k.device)
        own = self.cache._replace(slots=of_k.part(slots, token_names(of_k, slots, 0)))
        rotation = part_of(self.function, self.cuts[0], self.rotation)
        results = _of_parts(parts, rotation, compute, self.norm_of(0, 1), tuple(own), places)
        made = [x for x in self.whole_cache[-2:] if x is not None]
        overwritten(self.whole_cache.keys, self.whole_cache.values, *made)
        return results

    def _take_scales(self) -> None:
        """The parts of scales: of all heads, or memory that is sharded like its cache."""
        for i, of in enumerate("kv"):
            _, of_heads, made = scale_of(self.cache, i)
            changes: dict[str, Any] = {}
            if isinstance(of_heads, Tensor) and of_heads.ndim == 1 and len(of_heads) > 1:
                changes[f"{of}_scale_of_heads"] = self.cuts[1].part(of_heads, ("h",))
            if made is not None:
                changes[f"{of}_scales"] = self._part_of_made(f"scales[{i}]", i, made)
            self.cache = self.cache._replace(**changes)

    def _part_of_made(self, argument: str, i: int, made: Any) -> Tensor:
        if not isinstance(made, DTensor):
            wrong_type(self.function, argument, "a DTensor, as k is", type(made).__name__)
        cache: Any = self.whole_cache[i]
        if tuple(made.placements) != tuple(cache.placements):
            expected = f"the placements of the cache, {shown(cache.placements)}"
            wrong_value(self.function, argument, expected, shown(made.placements))
        return made.to_local()


def _of_parts(
    inputs: tuple[Tensor, ...],
    rotation: Any,
    compute: str,
    norm: Norm,
    cache: tuple[Any, ...],
    outs: Outs,
) -> tuple[Tensor, ...]:
    computed = None if by_tables(rotation) else compute
    door = backend.door.rotary_append if cache else backend.door.norm_rotary_qk
    results = door(*inputs, *rotation, computed, *norm, *cache, to_of(outs, inputs))
    if results is not NotImplemented:
        return results  # type: ignore[no-any-return]
    if not cache:
        return plain.norm_rotary_qk(inputs, rotation, compute, norm, outs)
    return plain.rotary_append(inputs, rotation, compute, norm, cache, outs)


def _weight(weight: Any, cut: Cut) -> Any:
    if not isinstance(weight, Tensor):
        return weight
    if weight.ndim == 2:
        return cut.part(weight, ("h", "d"))
    one_head = weight.ndim == 1 and weight.shape[0] == cut.sizes["d"]
    return cut.part(weight, ("d",) if one_head else ("h d",))


def _without_heads(part: Tensor, cut: Cut) -> Tensor:
    if "h" not in cut.names:
        raise NotThePart
    return part.narrow(cut.names.index("h"), 0, 0).detach()
