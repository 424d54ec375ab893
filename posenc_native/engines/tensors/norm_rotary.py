"""What stands before attention, for tensors: norm and rotation, and the append to a cache."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from posenc_native.base import arguments
from posenc_native.base.arguments import wrong_type, wrong_value
from posenc_native.base.caches import Cache, check_cache_layout
from posenc_native.base.norms import Norm, check_norm
from posenc_native.base.rotation import Rotation, TableRotation
from posenc_native.base.views import rounds_as_written

from .composed import norm_rotary as composed
from .following import angles_followed, needs_grad, transformed
from .gradients import norm_rotary as gradients
from .inputs import composable, from_array, of_schema, same_device
from .library import call, operators_take, ops
from .results import check_writable, no_gradient_of, overlap, pair_results, write_result
from .rotary import read_rotation, table_indices
from .small import increment_version

AnyRotation = Rotation | TableRotation


def run(
    function: str,
    inputs: tuple[Any, ...],
    rotation: Any,
    compute: str,
    norm: Norm,
    cache: tuple[Any, ...],
    inplace: bool,
) -> tuple[Tensor, ...]:
    """`posenc_native.norm_rotary_qk` and `rotary_append`, by positions and by tables, for tensors.

    cache: the fields of a `Cache`, or nothing.
    """
    call = _Call(function, inputs, rotation, compute, norm)
    return call.append(Cache(*cache), inplace) if cache else call.norm_rotary(inplace)


class _Call:
    """One call, its options read: tensors on one device, the rest in the types of the schema."""

    rotation: AnyRotation

    def __init__(
        self, function: str, inputs: tuple[Any, ...], rotation: Any, compute: str, norm: Norm
    ) -> None:
        q, *others = inputs
        for name, x in zip("kv", others, strict=False):
            if not isinstance(x, Tensor):
                wrong_type(function, name, "a tensor, as q is", type(x).__name__)
        self.function = function
        self.inputs = inputs
        self.as_written = rounds_as_written(function, compute)
        self.compute = compute
        norm = check_norm(function, norm, q.dtype, rotation.layout)
        self.norm = norm._replace(
            q_weight=_weight(function, "q_weight", norm.q_weight, q),
            k_weight=_weight(function, "k_weight", norm.k_weight, q),
        )
        if isinstance(rotation, Rotation):
            self.rotation = of_schema(function, read_rotation(function, q, rotation))
            self.suffix = ""
        else:
            for name, table in (("cos", rotation.cos), ("sin", rotation.sin)):
                if not isinstance(table, Tensor):
                    wrong_type(function, name, "a tensor, as q is", type(table).__name__)
            self.rotation = of_schema(function, table_indices(function, q, rotation))
            self.suffix = "_from_tables"

    @property
    def options(self) -> tuple[Any, ...]:
        """What follows the inputs in the schema."""
        computed = () if self.suffix else (self.compute,)
        return (*self.rotation, *computed, *self.norm)

    def tensors(self) -> dict[str, Tensor]:
        """All tensors of the call by name, but for a cache."""
        named = dict(zip("qkv", self.inputs, strict=False))
        options = {**self.rotation._asdict(), **self.norm._asdict()}
        return named | {name: x for name, x in options.items() if isinstance(x, Tensor)}

    def angles_are_followed(self) -> bool:
        """Whether a derivative by what makes the angles may be wanted: the composition has it."""
        first, second = self.rotation[0], self.rotation[1]
        return transformed() or (
            needs_grad(first, second) if self.suffix else angles_followed(first, second)
        )

    def norm_rotary(self, inplace: bool) -> tuple[Tensor, ...]:
        """Q and k, normed and rotated."""
        function, (q, k) = self.function, self.inputs[:2]
        tensors = self.tensors()
        if inplace:
            check_writable(q, k)
            no_gradient_of(function, "inplace", *tensors.values())
        if self.angles_are_followed() or not operators_take(*tensors.values()):
            composable(function, **tensors)
            results = composed.norm_rotary(
                function, q, k, self.rotation, self.as_written, self.norm
            )
            others = [x for name, x in tensors.items() if name not in "qk"]
            return pair_results(function, q, k, results, inplace, *others)
        if inplace:
            operator = getattr(ops, f"norm_rotary_qk{self.suffix}_")
            call(operator.default, q, k, *self.options)
            increment_version((q, k))
            return q, k
        return gradients.norm_rotary_qk(self.suffix, q, k, *self.options)

    def append(self, cache: Cache, inplace: bool) -> tuple[Tensor, ...]:
        """Q, and k if it is wanted, normed and rotated; k and v in their caches."""
        function, (q, k, v) = self.function, self.inputs
        for name in ("keys", "values"):
            to = getattr(cache, name)
            if not isinstance(to, Tensor):
                wrong_type(function, name, "a tensor, as q is", type(to).__name__)
            if to.requires_grad and torch.is_grad_enabled():
                wrong_value(function, name, "a tensor that requires no gradient", "one that does")
        check_cache_layout(function, cache.cache_layout)
        cache = cache._replace(
            slots=_slots(function, cache.slots, q), return_k=bool(cache.return_k)
        )
        tensors = {**self.tensors(), "slots": cache.slots}
        written = {"keys": cache.keys, "values": cache.values}
        if inplace:
            written |= {"q": q, "k": k} if cache.return_k else {"q": q}
            no_gradient_of(function, "inplace", *tensors.values())
        check_writable(*written.values())
        native = operators_take(*tensors.values(), cache.keys, cache.values)
        if transformed() or not native or needs_grad(*tensors.values()):
            return self._append_composed(cache, written, inplace)
        options = (*self.options, *cache)
        if inplace:
            call(getattr(ops, f"rotary_append{self.suffix}_").default, q, k, v, *options)
            results: tuple[Tensor, ...] = (q, k)
        else:
            operator = getattr(ops, f"rotary_append{self.suffix}")
            results = call(operator.default, q, k, v, *options)
        increment_version(tuple(written.values()))
        return results if cache.return_k else results[:1]

    def _append_composed(
        self, cache: Cache, written: dict[str, Tensor], inplace: bool
    ) -> tuple[Tensor, ...]:
        function, (q, k, v) = self.function, self.inputs
        tensors = self.tensors()
        composable(function, **tensors, slots=cache.slots, keys=cache.keys, values=cache.values)
        write = composed.append(function, k, v, self.rotation, cache)
        for name, to in written.items():
            for other, x in {**tensors, **written, "slots": cache.slots}.items():
                if other != name and overlap(to, x):
                    wrong_value(function, name, f"no memory in common with {other}", "an overlap")
        rotated_q, rotated_k = self.norm_rotary(inplace=False)
        with torch.no_grad():
            write(rotated_k.detach())
        if inplace:
            write_result(function, "q", q, rotated_q)
            if cache.return_k:
                write_result(function, "k", k, rotated_k)
            return (q, k)[: 1 + cache.return_k]
        return (rotated_q, rotated_k)[: 1 + cache.return_k]


def _weight(function: str, argument: str, weight: Any, q: Tensor) -> Tensor | None:
    """A weight on the device of q; arrays are moved, tensors must be there."""
    if weight is None:
        return None
    if not isinstance(weight, Tensor):
        array = arguments.as_array(function, argument, weight)
        arguments.check_dtype(function, argument, array.dtype, arguments.FLOAT_DTYPES)
        if arguments.dtype_name(array.dtype) == "bfloat16":  # torch does not know NumPy's
            return from_array(array.astype("float32"), q.device).bfloat16()
        return from_array(array, q.device)
    same_device(function, q, **{argument: weight})
    return weight


def _slots(function: str, slots: Any, q: Tensor) -> Tensor:
    """Slots on the device of q; arrays and lists are moved, tensors must be there."""
    if isinstance(slots, Tensor):
        same_device(function, q, slots=slots)
        return slots
    array = arguments.as_array(function, "slots", slots)
    arguments.check_dtype(function, "slots", array.dtype, arguments.INTEGER_DTYPES)
    return from_array(array, q.device)
