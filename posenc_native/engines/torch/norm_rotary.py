"""The steps before attention for tensors: norm and rotation, and the append to a cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import wrong_type, wrong_value
from posenc_native.core.calls.caches import Cache, check_cache_layout, has_eight_bits
from posenc_native.core.calls.errors import named
from posenc_native.core.calls.norms import Norm, check_norm
from posenc_native.core.calls.pairs import in_place
from posenc_native.core.calls.rotation import Rotation, by_tables, flat
from posenc_native.core.calls.views import rounds_as_written
from posenc_native.engines.following import angles_followed, needs_grad, transformed
from posenc_native.engines.plain import norm_rotary as plain
from posenc_native.engines.verbs import ROTARY_APPEND, Outs

from . import rotary
from .door import increment_version
from .gradients import norm_rotary as gradients
from .inputs import composable, from_array, of_schema, same_device
from .library import call, forms_of, operators_take
from .results import (
    check_copy,
    check_elements_apart,
    check_output,
    check_writable,
    no_gradient_of,
    no_output_for_gradient,
    overlap,
    pair_results,
    same_view,
)
from .rotary import angle_tensors, read_rotation
from .turns import frequency_turns


def norm_rotary_qk(
    inputs: tuple[Any, ...], rotation: Rotation, compute: str, norm: Norm, outs: Outs
) -> tuple[Tensor, ...]:
    """`posenc_native.norm_rotary_qk` for tensors."""
    return _Call("norm_rotary_qk", inputs, rotation, compute, norm).norm_rotary(outs)


def norm_rotary_gradients(
    inputs: tuple[Any, ...], rotation: Rotation, compute: str, norm: Norm, grads: Sequence[Tensor]
) -> tuple[Tensor | None, ...]:
    """The gradients of q, k and the weights."""
    call = _Call("norm_rotary_qk", inputs, rotation, compute, norm)
    operator = gradients.NORM_ROTARY[call.tables]
    kept = [*inputs, *call.options]
    found = operator.backward(kept, [isinstance(x, Tensor) for x in kept], *grads)
    return tuple([found[i] for i in (0, 1, operator.at + 2, operator.at + 3)])


def rotary_append(
    inputs: tuple[Any, ...],
    rotation: Rotation,
    compute: str,
    norm: Norm,
    cache: tuple[Any, ...],
    outs: Outs,
) -> tuple[Tensor, ...]:
    """`posenc_native.rotary_append` for tensors; cache: the fields of a `Cache`."""
    return _Call("rotary_append", inputs, rotation, compute, norm).append(Cache(*cache), outs)


# By whether tables have the angles.
_APPEND = {tables: forms_of(ROTARY_APPEND.operators[tables]) for tables in (False, True)}


class _Call:
    """A call with converted options: tensors on one device, others in the schema's types."""

    def __init__(
        self, function: str, inputs: tuple[Any, ...], rotation: Rotation, compute: str, norm: Norm
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
        self.read = read_rotation(function, q, rotation)
        self.rotation = of_schema(function, self.read)  # a pairing is a text there
        self.tables = by_tables(rotation)

    @property
    def options(self) -> tuple[Any, ...]:
        """The options that follow the inputs in the schema."""
        computed = () if self.tables else (self.compute,)
        return (*flat(self.rotation), *computed, *self.norm)

    def tensors(self) -> dict[str, Tensor]:
        """All tensors of the call by name, except a cache."""
        named = dict(zip("qkv", self.inputs, strict=False))
        options = {**angle_tensors(self.rotation), **self.norm._asdict()}
        return named | {name: x for name, x in options.items() if isinstance(x, Tensor)}

    def angles_are_followed(self) -> bool:
        """Whether a derivative by the angles' inputs may be needed, which plain operations have."""
        if transformed():
            return True
        if self.tables:
            return needs_grad(self.rotation.inv_freq.cos, self.rotation.inv_freq.sin)
        return angles_followed(self.rotation.inv_freq, self.rotation.positions)

    def check_outputs(self, outs: Outs) -> None:
        """TypeError or ValueError unless the results can be written there."""
        if outs is None:
            return
        function, tensors = self.function, self.tensors().values()
        for i, (name, x, out) in enumerate(zip("qk", self.inputs, outs, strict=False)):
            check_output(function, out, x, "out" if len(outs) == 1 else f"out[{i}]", name)
        if in_place(outs, self.inputs):
            no_gradient_of(function, "inplace", *tensors)
        else:
            no_output_for_gradient(function, *tensors)

    def norm_rotary(self, outs: Outs) -> tuple[Tensor, ...]:
        """Norm and rotate q and k."""
        function, (q, k) = self.function, self.inputs[:2]
        tensors = self.tensors()
        self.check_outputs(outs)
        if self.angles_are_followed() or not operators_take(*tensors.values(), *(outs or ())):
            composable(function, **tensors)
            results = plain.norm_rotary(
                function, q, k, self.rotation, self.as_written, self.norm, frequency_turns
            )
            others = [x for name, x in tensors.items() if name not in "qk"]
            return pair_results(function, q, k, results, outs, *others)
        operator = gradients.NORM_ROTARY[self.tables]
        if outs is not None:
            forms = operator.bare
            if in_place(outs, self.inputs):
                call(forms.in_place, q, k, *self.options)
            else:
                call(forms.to_out, q, k, *self.options, out_q=outs[0], out_k=outs[1])
            increment_version(outs)
            return outs
        return operator(q, k, *self.options)  # type: ignore[no-any-return]

    def append(self, cache: Cache, outs: Outs) -> tuple[Tensor, ...]:
        """Norm and rotate q, and k if requested; write k and v to their caches."""
        function, (q, k, v) = self.function, self.inputs
        for name in ("keys", "values"):
            tensor = getattr(cache, name)
            if not isinstance(tensor, Tensor):
                wrong_type(function, name, "a tensor, as q is", type(tensor).__name__)
            if tensor.requires_grad and torch.is_grad_enabled():
                wrong_value(function, name, "a tensor that requires no gradient", "one that does")
        check_cache_layout(function, cache.cache_layout)
        cache = cache._replace(
            slots=_slots(function, cache.slots, q),
            return_k=bool(cache.return_k),
            k_scale_of_heads=_scale(function, "k_scale", cache.k_scale_of_heads, q),
            v_scale_of_heads=_scale(function, "v_scale", cache.v_scale_of_heads, q),
        )
        tensors = {**self.tensors(), "slots": cache.slots, **_scales_of_heads(cache)}
        made = _made_scales(function, cache)
        check_writable(cache.keys, cache.values, *made.values())
        self.check_outputs(outs)
        written = (cache.keys, cache.values, *made.values(), *(outs or ()))
        native = operators_take(*tensors.values(), *written)
        if transformed() or not native or needs_grad(*tensors.values()):
            return self._append_plainly(cache, outs)
        options = (*self.options, *cache)
        forms = _APPEND[self.tables]
        results: Any = outs
        if outs is None:
            results = call(forms.new, q, k, v, *options)
        elif in_place(outs, self.inputs):
            call(forms.in_place, q, k, v, *options)
        else:
            out_k = outs[1] if cache.return_k else None
            call(forms.to_out, q, k, v, *options, out_q=outs[0], out_k=out_k)
        increment_version(written)
        return results if cache.return_k else results[:1]  # type: ignore[no-any-return]

    def _append_plainly(self, cache: Cache, outs: Outs) -> tuple[Tensor, ...]:
        function, (_, k, v) = self.function, self.inputs
        tensors = {**self.tensors(), **_scales_of_heads(cache)}
        made = _made_scales(function, cache)
        composable(function, **tensors, slots=cache.slots, keys=cache.keys, values=cache.values)
        write = plain.append(function, k, v, self.rotation, cache)
        caches = {"keys": cache.keys, "values": cache.values, **made}
        written = dict(caches)
        for name, to in written.items():
            check_elements_apart(function, name, to)
        for i, (name, out) in enumerate(zip("qk", outs or (), strict=False)):
            other = f"out[{i}]" if cache.return_k else "out"
            written[name if out is self.inputs[i] else other] = out
        read = {**tensors, **written, "slots": cache.slots}
        places = list(written)[len(caches) :]
        own = dict(zip(places, "qk", strict=False))  # the input of each result
        for name, to in written.items():
            for other, x in read.items():
                if other == own.get(name) and same_view(to, x):
                    continue
                if other != name and overlap(to, x):
                    wrong_value(function, name, f"no memory in common with {other}", "an overlap")
        with named(function):
            rotated = self._rotated()
        for name, out, result in zip(places, outs or (), rotated, strict=False):
            check_copy(function, name, out, result)
        with torch.no_grad():
            keys = rotated[1].detach()
            if has_eight_bits(cache.keys):  # rounded once
                keys = plain.unrounded(
                    function, self.inputs[0], k, self.rotation, self.as_written, self.norm,
                    frequency_turns,
                )[1].detach()  # fmt: skip
            write(keys)
        if outs is None:
            return rotated[: 1 + cache.return_k]
        return tuple(out.copy_(result) for out, result in zip(outs, rotated, strict=False))

    def _rotated(self) -> tuple[Tensor, ...]:
        """New results. Without a norm they have the gradient of the rotation alone."""
        if self.norm.norm or self.norm.query_scale != "none":
            return self.norm_rotary(None)
        q, k = self.inputs[:2]
        if self.as_written:
            of_call = self.rotation, True, self.norm, frequency_turns
            return plain.norm_rotary(self.function, q, k, *of_call)
        return rotary.apply_rotary_qk(q, k, self.read, None)


def _scale(function: str, argument: str, scale: Any, q: Tensor) -> Tensor | None:
    """Scales of heads on the device of q; arrays are moved, tensors must be on it."""
    if scale is None:
        return None
    if not isinstance(scale, Tensor):
        array = arguments.as_array(function, argument, scale)
        arguments.check_dtype(function, argument, array.dtype, ("float32",))
        return from_array(array, q.device)
    same_device(function, q, **{argument: scale})
    return scale


def _scales_of_heads(cache: Cache) -> dict[str, Tensor]:
    """Scales that are read, by name."""
    both = {"k_scale": cache.k_scale_of_heads, "v_scale": cache.v_scale_of_heads}
    return {name: scale for name, scale in both.items() if scale is not None}


def _made_scales(function: str, cache: Cache) -> dict[str, Tensor]:
    """Memory for scales, by name."""
    made = {"scales[0]": cache.k_scales, "scales[1]": cache.v_scales}
    for name, scales in made.items():
        if scales is not None and not isinstance(scales, Tensor):
            wrong_type(function, name, "a tensor, as q is", type(scales).__name__)
    return {name: scales for name, scales in made.items() if scales is not None}


def _weight(function: str, argument: str, weight: Any, q: Tensor) -> Tensor | None:
    """A weight on the device of q; arrays are moved, tensors must be on it."""
    if weight is None:
        return None
    if not isinstance(weight, Tensor):
        array = arguments.as_array(function, argument, weight)
        arguments.check_dtype(function, argument, array.dtype, arguments.FLOAT_DTYPES)
        if arguments.dtype_name(array.dtype) == "bfloat16":  # torch cannot read NumPy's bfloat16
            return from_array(array.astype("float32"), q.device).bfloat16()
        return from_array(array, q.device)
    same_device(function, q, **{argument: weight})
    return weight


def _slots(function: str, slots: Any, q: Tensor) -> Tensor:
    """Slots on the device of q; arrays and lists are moved, tensors must be on it."""
    if isinstance(slots, Tensor):
        same_device(function, q, slots=slots)
        return slots
    array = arguments.as_integers(function, "slots", slots)
    arguments.check_dtype(function, "slots", array.dtype, arguments.INTEGER_DTYPES)
    return from_array(array, q.device)
