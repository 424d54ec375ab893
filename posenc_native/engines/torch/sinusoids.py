"""Sinusoidal tables for tensors, and their sum with x."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import wrong_type, wrong_value
from posenc_native.engines.following import needs_grad
from posenc_native.engines.plain import sinusoids as plain

from .gradients import sinusoids as sinusoid_gradients
from .gradients.functions import one_tensor
from .inputs import composable, position_tensor, same_device, table_dtype, table_spec
from .library import call, operators_take, ops
from .results import (
    check_output,
    check_writable,
    copy_out,
    no_gradient_of_output,
    no_output_for_gradient,
    written,
)
from .turns import sinusoidal_turns


def sinusoidal(positions: Any, *rest: Any) -> Tensor:
    """`posenc_native.sinusoidal` for tensors.

    rest: dim, base, layout, shift and scale, dtype, device and out.
    """
    function = "sinusoidal"
    *spec, dtype, device, out = rest
    if out is not None:
        if not isinstance(out, Tensor):
            wrong_type(function, "out", "a tensor", type(out).__name__)
        no_gradient_of_output(function, out)
        check_writable(out)
        device = out.device if device is None else torch.device(device)
        if out.device != device:
            wrong_value(function, "out", f"a tensor on {device}", out.device)
    dtype = table_dtype(function, dtype, out)
    if isinstance(positions, (int, np.integer)):
        count = arguments.size(function, "positions", positions)
        shape = (count, arguments.even_size(function, "dim", spec[0]))
        arguments.check_byte_count(function, shape, dtype.itemsize)
        result = torch.empty(shape, dtype=dtype, device=device) if out is None else out
        if operators_take(result):  # the operator counts positions itself: none in memory
            arguments.check_shape(function, "out", result.shape, shape)
            fresh = out is None
            operator = ops.sinusoidal_out.default
            options = table_spec(function, *spec[1:])
            call(operator, None, shape[1], *options, out=result, fresh=fresh)
            return result if fresh else written(result)
    positions = position_tensor(function, positions, device)
    if out is not None:
        no_output_for_gradient(function, positions)
    if operators_take(positions, out) and forward_ad._current_level < 0:
        width = arguments.even_size(function, "dim", spec[0])
        options = table_spec(function, *spec[1:])
        if out is None:
            return sinusoid_gradients.SINUSOIDAL(positions, width, *options, dtype)  # type: ignore[no-any-return]
        call(ops.sinusoidal_out.default, positions, width, *options, out=out)
        return written(out)
    composable(function, positions=positions, out=out)
    real = torch.float64 if dtype == torch.float64 else torch.float32
    table = plain.sinusoidal(function, positions, tuple(spec), dtype, real, sinusoidal_turns)
    return table if out is None else copy_out(function, out, table, positions)


def add_sinusoidal(x: Tensor, positions: Any, *rest: Any) -> Tensor:
    """`posenc_native.add_sinusoidal` for tensors.

    rest: x_scale and alpha, base, layout, shift and scale, and out.
    """
    function = "add_sinusoidal"
    x_scale, alpha, *spec, out = rest
    if positions is not None:
        positions = position_tensor(function, positions, x.device)
    check_output(function, out, x)
    same_device(function, x, positions=positions, out=out)
    x_scale = arguments.factor(function, "x_scale", x_scale, x.dtype)
    alpha = arguments.factor(function, "alpha", alpha, x.dtype)
    if not operators_take(x, positions, out) or forward_ad._current_level >= 0:
        composable(function, x=x, positions=positions, out=out)
        result = plain.add_sinusoidal(
            function, x, positions, x_scale, alpha, tuple(spec), sinusoidal_turns
        )
        return result if out is None else copy_out(function, out, result, x, positions)
    options = (x_scale, alpha, *table_spec(function, *spec))
    learned = positions is not None and needs_grad(positions)
    return one_tensor(
        sinusoid_gradients.ADD_SINUSOIDAL, function, x, (positions, *options), out, learned
    )
