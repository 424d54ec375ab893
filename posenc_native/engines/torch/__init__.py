"""Operations on torch tensors: native operators, or plain torch operations (engines/plain).

    door        calls on plain tensors: the NumPy module reads them, bypassing the dispatcher
    library     the operators, CPU and CUDA; gradients/ differentiates them
    turns       exact frequencies for engines/plain, which computes on other devices, under
                torch.func and after set_backend("reference")
    sharded/    DTensors, split into local parts (sharded/taken_apart.py detects them)

The public functions call these operations if an argument is a tensor (engines/late.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor
from torch.library import register_vmap

from posenc_native.engines import verbs
from posenc_native.engines.verbs import RotaryVerb, Verb

from . import batching, fakes, library, norm_rotary, relative, rotary, sinusoids
from .door import is_dynamo_compiling
from .gradients import at_door
from .gradients.maps import are_fixed_on_cpu, is_eager_on_cpu, linear_map
from .inputs import diagonals_tensor
from .sharded.taken_apart import sharded, taken_apart

__all__ = [
    "Tensor",
    "add_sinusoidal",
    "add_toeplitz_bias",
    "apply_rotary",
    "apply_rotary_qk",
    "are_fixed_on_cpu",
    "at_door",
    "diagonal_sums",
    "diagonals_tensor",
    "is_dynamo_compiling",
    "is_eager_on_cpu",
    "linear_map",
    "norm_rotary_qk",
    "relative_gather",
    "relative_scatter",
    "rotary_append",
    "rotary_tables",
    "sinusoidal",
    "toeplitz_bias",
]


def _on_tensors(
    verb: Verb,
    run: Callable[..., Any],
    parts: Callable[[], Callable[..., Any]],
    fake: Callable[..., Any],
    vmap: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """The operation on plain tensors and DTensors: the half of its record that needs torch.

    Args:
        verb: the other half, with the names of its operators.
        run: the operation on plain tensors, by an operator or by plain operations.
        parts: returns the rule for DTensors, a function with the arguments of run.
        fake: makes new results without values: their shapes, strides and dtypes.
        vmap: the rule for a mapped axis; without it, plain operations compute the verb there.
    """
    rotates = isinstance(verb, RotaryVerb)
    for tables, operator in enumerate(verb.operators) if library.LIBRARY is not None else ():
        fakes.register(operator, verb.forms, fake)
        if vmap is not None:
            rule = partial(vmap, operator, verb, bool(tables)) if rotates else vmap
            register_vmap(f"posenc_native::{operator}", rule)
    return taken_apart(run, parts, tuples=rotates)  # only rotations have tensors in tuples


apply_rotary = _on_tensors(
    verbs.APPLY_ROTARY,
    rotary.apply_rotary,
    parts=lambda: sharded().rotary.rotate,
    fake=fakes.like_x,
    vmap=batching.rotation,
)
apply_rotary_qk = _on_tensors(
    verbs.APPLY_ROTARY_QK,
    rotary.apply_rotary_qk,
    parts=lambda: sharded().rotary.rotate_two,
    fake=fakes.like_q_and_k,
    vmap=batching.rotation,
)
norm_rotary_qk = _on_tensors(
    verbs.NORM_ROTARY_QK,
    norm_rotary.norm_rotary_qk,
    parts=lambda: sharded().norm_rotary.norm_rotary_qk,
    fake=fakes.like_q_and_k,
)
rotary_append = _on_tensors(
    verbs.ROTARY_APPEND,
    norm_rotary.rotary_append,
    parts=lambda: sharded().norm_rotary.rotary_append,
    fake=fakes.appended,
)
rotary_tables = _on_tensors(
    verbs.ROTARY_TABLES,
    rotary.rotary_tables,
    parts=lambda: sharded().rotary.rotary_tables,
    fake=fakes.rotary_tables,
    vmap=batching.rotary_tables,
)
sinusoidal = _on_tensors(
    verbs.SINUSOIDAL,
    sinusoids.sinusoidal,
    parts=lambda: sharded().sinusoids.sinusoidal,
    fake=fakes.sinusoidal,
    vmap=batching.sinusoidal,
)
add_sinusoidal = _on_tensors(
    verbs.ADD_SINUSOIDAL,
    sinusoids.add_sinusoidal,
    parts=lambda: sharded().sinusoids.add_sinusoidal,
    fake=fakes.like_x,
    vmap=batching.add_sinusoidal,
)
toeplitz_bias = _on_tensors(
    verbs.TOEPLITZ_BIAS,
    relative.toeplitz_bias,
    parts=lambda: sharded().relative.toeplitz_bias,
    fake=fakes.toeplitz_bias,
)
add_toeplitz_bias = _on_tensors(
    verbs.ADD_TOEPLITZ_BIAS,
    relative.add_toeplitz_bias,
    parts=lambda: sharded().relative.add_toeplitz_bias,
    fake=fakes.like_x,
)
diagonal_sums = _on_tensors(
    verbs.DIAGONAL_SUMS,
    relative.diagonal_sums,
    parts=lambda: sharded().relative.diagonal_sums,
    fake=fakes.diagonal_sums,
)
relative_gather = _on_tensors(
    verbs.RELATIVE_GATHER,
    relative.relative_gather,
    parts=lambda: sharded().relative.relative_gather,
    fake=fakes.of_last_axis,
)
relative_scatter = _on_tensors(
    verbs.RELATIVE_SCATTER,
    relative.relative_scatter,
    parts=lambda: sharded().relative.relative_scatter,
    fake=fakes.of_last_axis,
)

if library.LIBRARY is not None:
    fakes.register_others()
