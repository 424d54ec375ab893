"""The operations as compositions of torch operations: for devices without a kernel, and under
``set_backend("reference")``. Differentiable by themselves; the phases are exact here too.

Arguments are tensors on one device, of the kinds that the operators take.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import arguments, backend, reference
from .arguments import rotary_view, wrong_type, wrong_value
from .frequencies import checked_frequencies
from .torch_autograd import call, needs_function, sinusoidal_rates, tracing, transformed

# Asked once: whether a file is there is nothing that torch.compile can follow.
_LIBRARY = backend.torch_library()
_ops = torch.ops.posenc_native


def sinusoidal(
    function: str, positions: Tensor, spec: tuple[Any, ...], dtype: torch.dtype
) -> Tensor:
    """`posenc_native.sinusoidal`; spec is (dim, base, layout, shift, scale)."""
    dim, base, layout, shift, scale = spec
    arguments.check_sinusoidal_layout(function, layout)
    dim, base, shift, scale = arguments.frequency_parameters(function, dim, base, shift, scale)
    arguments.check_byte_count(function, (*positions.shape, dim), dtype.itemsize)
    real = torch.float64 if dtype == torch.float64 else torch.float32
    arguments.check_dtype(function, "positions", positions.dtype, arguments.POSITION_DTYPES)
    _check_values(function, positions, None)
    turns = _sinusoidal_turns(function, dim, base, shift, scale).to(positions.device)
    cos, sin = _cos_sin(_phases(positions[..., None], *turns), real)
    if positions.is_floating_point() and needs_function(positions):
        rates = sinusoidal_rates(dim, base, shift, scale, cos)
        cos, sin = _moving(cos, sin, positions[..., None].to(real) * rates)
    halves = [cos, sin] if layout == "cos_sin" else [sin, cos]
    if layout == "interleaved":
        return torch.stack(halves, -1).flatten(-2).to(dtype)
    return torch.cat(halves, -1).to(dtype)


def add_sinusoidal(
    function: str,
    x: Tensor,
    positions: Tensor | None,
    x_scale: float,
    alpha: float,
    base: float,
    layout: str,
    shift: float,
    scale: float,
) -> Tensor:
    """`posenc_native.add_sinusoidal`."""
    arguments.check_dtype(function, "x", x.dtype, arguments.FLOAT_DTYPES)
    if x.ndim < 2:
        wrong_value(function, "x", "shape [..., seq, dim]", list(x.shape))
    if positions is None:
        positions = torch.arange(x.shape[-2], device=x.device)
    elif positions.shape not in (x.shape[-2:-1], x.shape[:-1]):
        expected = f"shape [seq] = {list(x.shape[-2:-1])} or x.shape[:-1] = {list(x.shape[:-1])}"
        wrong_value(function, "positions", expected, list(positions.shape))
    real = torch.float64 if x.dtype == torch.float64 else torch.float32
    spec = (x.shape[-1], base, layout, shift, scale)
    table = sinusoidal(function, positions, spec, real)
    return (x.to(real) * x_scale + alpha * table).to(x.dtype)


def apply_rotary(
    function: str, inputs: tuple[Tensor, ...], options: tuple[Any, ...]
) -> tuple[Tensor, ...]:
    """`posenc_native.apply_rotary` of x or of q and k; options as the operator has them."""
    positions, inv_freq, layout, pairing, rotary_start, axis_map, scale, inverse = options
    shape = tuple(inv_freq.shape)
    arguments.check_frequency_axes(function, shape)
    views = _views(function, inputs, layout, pairing, rotary_start, shape[-1])
    names = ("x",) if len(views) == 1 else ("q", "k")
    arguments.check_frequency_heads(function, shape, dict(zip(names, views, strict=True)))
    by_axis = arguments.rotary_axes(function, positions is None, axis_map is None, len(shape))
    if positions is None:
        positions = torch.arange(views[0].tokens, device=inputs[0].device)
    axes = tuple(positions.shape[:1]) if by_axis else ()
    axes = shape[:1] if len(shape) == 3 else axes
    views[0].check_tokens(function, "positions", tuple(positions.shape), before=axes)
    real = torch.float64 if inputs[0].dtype == torch.float64 else torch.float32
    cos, sin = tables(function, positions, inv_freq, axis_map, real)
    cos, sin = cos * scale, sin * (-scale if inverse else scale)
    by_head = len(shape) > 1
    return tuple(_turn(x, cos, sin, v, by_head) for x, v in zip(inputs, views, strict=True))


def apply_rotary_tables(
    function: str, inputs: tuple[Tensor, ...], options: tuple[Any, ...]
) -> tuple[Tensor, ...]:
    """`posenc_native.apply_rotary_tables` of x or of q and k; options as the operator has them."""
    cos, sin, layout, pairing, rotary_start, inverse, compute = options
    as_written = arguments.rounds_as_written(function, compute)
    pairs = cos.shape[-1] if cos.ndim else 0
    views = _views(function, inputs, layout, pairing, rotary_start, pairs)
    for name, table in (("cos", cos), ("sin", sin)):
        arguments.check_dtype(function, name, table.dtype, arguments.FLOAT_DTYPES)
        views[0].check_tokens(function, name, tuple(table.shape), after=(pairs,))
    if cos.dtype != sin.dtype:
        wrong_type(function, "sin", f"the dtype of cos, {cos.dtype}", sin.dtype)
    real = torch.float64 if inputs[0].dtype == torch.float64 else torch.float32
    real = inputs[0].dtype if as_written else real
    cos, sin = cos.to(real), (-sin if inverse else sin).to(real)
    return tuple(_turn(x, cos, sin, v) for x, v in zip(inputs, views, strict=True))


# --- Relative


def toeplitz_bias(
    function: str,
    diagonals: Tensor,
    leading: tuple[int, ...],
    dtype: torch.dtype,
    q_len: tuple[int, ...],
    k_len: tuple[int, ...],
    start: tuple[int, ...] | None,
    q_offset: Tensor | None,
) -> Tensor:
    """`posenc_native.toeplitz_bias`, of the leading axes."""
    rank = len(q_len)
    entries = _entries(
        function, diagonals.shape[diagonals.ndim - rank :], q_len, k_len, start, q_offset,
        diagonals.device,
    )  # fmt: skip
    arguments.check_heads(function, tuple(diagonals.shape[: diagonals.ndim - rank]), leading)
    if q_offset is not None:
        arguments.check_offset_shape(function, tuple(q_offset.shape), leading)
    flat = diagonals.flatten(diagonals.ndim - rank)
    if q_offset is None:
        bias = flat[..., entries].expand(*leading, *entries.shape)
    else:
        flat = flat.expand(*leading, flat.shape[-1])
        bias = flat.gather(-1, _planes(entries, leading).flatten(-2)).unflatten(
            -1, entries.shape[-2:]
        )
    return bias.to(dtype)


def add_toeplitz_bias(function: str, scores: Tensor, diagonals: Tensor, *options: Any) -> Tensor:
    """`posenc_native.add_toeplitz_bias`."""
    real = torch.float64 if scores.dtype == torch.float64 else torch.float32
    leading = tuple(scores.shape[:-2])
    bias = toeplitz_bias(function, diagonals.to(real), leading, real, *options)
    return (scores.to(real) + bias).to(scores.dtype)


def diagonal_sums(
    function: str,
    grad: Tensor,
    shape: tuple[int, ...],
    q_len: tuple[int, ...],
    k_len: tuple[int, ...],
    start: tuple[int, ...] | None,
    q_offset: Tensor | None,
) -> Tensor:
    """`posenc_native.diagonal_sums`, of the shape."""
    rank = len(q_len)
    heads, counts = shape[: len(shape) - rank], shape[len(shape) - rank :]
    leading = tuple(grad.shape[:-2])
    entries = _entries(function, counts, q_len, k_len, start, q_offset, grad.device)
    arguments.check_heads(function, heads, leading)
    if q_offset is not None:
        arguments.check_offset_shape(function, tuple(q_offset.shape), leading)
    real = torch.float64 if grad.dtype == torch.float64 else torch.float32
    by_plane = grad.to(real)
    if q_offset is None:  # the same entries in all planes: fewer of them first
        by_plane = _sum_to(by_plane, (*heads, *grad.shape[-2:]))
    index = _planes(entries, tuple(by_plane.shape[:-2])).flatten(-2)
    zeros = torch.zeros((*by_plane.shape[:-2], math.prod(counts)), dtype=real, device=grad.device)
    sums = zeros.scatter_add(-1, index, by_plane.flatten(-2))
    return _sum_to(sums, (*heads, sums.shape[-1])).reshape(shape)


def relative_gather(
    function: str,
    x: Tensor,
    content: Tensor | None,
    k_len: int,
    index: Tensor | None,
    start: int | None,
    q_offset: Tensor | None,
    missing: int | None,
    scale: float,
) -> Tensor:
    """`posenc_native.relative_gather`."""
    columns = _columns(
        function, x, index, x.shape[-1], x.shape[-2], k_len, start, q_offset, missing
    )
    real = torch.float64 if x.dtype == torch.float64 else torch.float32
    padded = torch.nn.functional.pad(x.to(real), (0, 1))
    result = padded.gather(-1, columns)
    if content is not None:
        result = content.to(real) + result
    return (result * scale).to(x.dtype)


def relative_scatter(
    function: str,
    grad: Tensor,
    width: int,
    index: Tensor | None,
    start: int | None,
    q_offset: Tensor | None,
    missing: int | None,
    scale: float,
) -> Tensor:
    """`posenc_native.relative_scatter`."""
    columns = _columns(
        function, grad, index, width, grad.shape[-2], grad.shape[-1], start, q_offset, missing
    )
    real = torch.float64 if grad.dtype == torch.float64 else torch.float32
    zeros = torch.zeros((*grad.shape[:-1], width + 1), dtype=real, device=grad.device)
    sums = zeros.scatter_add(-1, columns, grad.to(real))
    return (sums[..., :-1] * scale).to(grad.dtype)


def _entries(
    function: str,
    counts: tuple[int, ...],
    q_len: tuple[int, ...],
    k_len: tuple[int, ...],
    start: tuple[int, ...] | None,
    q_offset: Tensor | None,
    device: torch.device,
) -> Tensor:
    """The entry of every query and key among the flattened ones, [q_len, k_len].

    With q_offset, [*q_offset.shape, q_len, k_len].
    """
    if q_offset is not None and len(q_len) != 1:
        expected = "none where q_len and k_len are tuples"
        wrong_value(function, "q_offset", expected, f"shape {list(q_offset.shape)}")
    flat = torch.zeros(1, 1, dtype=torch.int64, device=device)
    for axis, (queries, keys, count) in enumerate(zip(q_len, k_len, counts, strict=True)):
        first = queries - 1 if start is None else start[axis]
        low, high = (first, first)
        if q_offset is not None and concrete(q_offset) and q_offset.numel():
            low, high = first - int(q_offset.max()), first - int(q_offset.min())
        if queries and keys and not (queries - 1 <= low and high <= count - keys):
            wrong_value(
                function, "diagonals",
                f"entries for all distances, at least {queries + keys - 1}",
                f"{count} with query 0 and key 0 at entry {low}",
            )  # fmt: skip
        i = torch.arange(queries, device=device)[:, None]
        entries = first + torch.arange(keys, device=device) - i
        rows, columns = flat.shape
        flat = flat[:, None, :, None] * count + entries[None, :, None, :]
        flat = flat.reshape(rows * queries, columns * keys)
    if q_offset is None:
        return flat
    # What cannot be looked at does not lead out of the entries.
    moved = flat - q_offset.long()[..., None, None]
    return moved.clamp(0, max(counts[0] - 1, 0))


def _planes(entries: Tensor, leading: tuple[int, ...]) -> Tensor:
    """Entries of every plane: those with q_offset have its axes first."""
    shape = (*entries.shape[:-2], *(1,) * (len(leading) + 2 - entries.ndim), *entries.shape[-2:])
    return entries.reshape(shape).expand(*leading, *entries.shape[-2:])


def _sum_to(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """x summed over the leading axes that the shape has not, or of size 1."""
    extra = x.ndim - len(shape)
    x = x.sum(tuple(range(extra))) if extra else x
    repeated = [i for i, size in enumerate(shape) if size == 1 and x.shape[i] != 1]
    return x.sum(repeated, keepdim=True) if repeated else x


def _columns(
    function: str,
    x: Tensor,
    index: Tensor | None,
    width: int,
    queries: int,
    keys: int,
    start: int | None,
    q_offset: Tensor | None,
    missing: int | None,
) -> Tensor:
    """The column of every query and key, [*leading, queries, keys]; `width` where there is none."""
    leading = tuple(x.shape[:-2])
    if q_offset is not None:
        arguments.check_offset_shape(function, tuple(q_offset.shape), leading)
    i = torch.arange(queries, device=x.device)[:, None]
    first = queries - 1 if start is None else start
    entries = first + torch.arange(keys, device=x.device) - i
    if q_offset is not None:
        entries = entries - q_offset.long()[..., None, None]
    if index is None:
        columns = entries
    else:
        if index.ndim != 1:
            wrong_value(function, "index", "shape [q_len + k_len - 1]", list(index.shape))
        if missing is not None and 0 <= missing < width:
            wrong_value(function, "missing", f"none of the columns 0 .. {width - 1}", missing)
        if concrete(index, q_offset):
            if entries.numel() and not (
                int(entries.min()) >= 0 and int(entries.max()) < index.shape[0]
            ):
                wrong_value(
                    function, "index", f"entries for all distances, at least {queries + keys - 1}",
                    f"{index.shape[0]} with query 0 and key 0 at entry {first}",
                )  # fmt: skip
            bad = (index < 0) | (index >= width)
            if missing is not None:
                bad = bad & (index != missing)
            if bool(bad.any()):
                wrong_value(function, "index", f"columns 0 .. {width - 1}", int(index[bad][0]))
        if entries.numel():
            entries = entries.clamp(0, index.shape[0] - 1)
        columns = index.long()[entries]
    columns = torch.where((columns >= 0) & (columns < width), columns, width)
    return _planes(columns, leading)


def _views(
    function: str,
    inputs: tuple[Tensor, ...],
    layout: str,
    pairing: str,
    rotary_start: int,
    pairs: int,
) -> list[arguments.RotaryView]:
    """How x, or q and k, are rotated."""
    views = []
    for name, x in zip(("x",) if len(inputs) == 1 else ("q", "k"), inputs, strict=True):
        arguments.check_dtype(function, name, x.dtype, arguments.FLOAT_DTYPES)
        if x.dtype != inputs[0].dtype:
            wrong_type(function, name, f"the dtype of q, {inputs[0].dtype}", x.dtype)
        shape = tuple(x.shape)
        views.append(
            rotary_view(function, shape, layout, _pairing(pairing), rotary_start, pairs, name)
        )
    if len(views) == 2:
        arguments.check_same_tokens(function, views[0], views[1])
    return views


def _turn(
    x: Tensor, cos: Tensor, sin: Tensor, view: arguments.RotaryView, by_head: bool = False
) -> Tensor:
    """The pairs of x turned; the arithmetic in the dtype of cos and sin."""
    end = view.start + 2 * view.pairs
    half = view.block // 2
    turned = x[..., view.start : end].to(cos.dtype)
    # [..., blocks, 2, half]: the partners are the axis of length 2.
    partners = turned.unflatten(-1, (-1 if view.pairs else 0, 2, half))
    cos, sin = (
        view.align(table, by_head).unflatten(-1, (-1 if view.pairs else 0, half))
        for table in (cos, sin)
    )
    a, b = partners.unbind(-2)
    result = torch.stack([a * cos - b * sin, b * cos + a * sin], -2).flatten(-3).to(x.dtype)
    if 2 * view.pairs == x.shape[-1]:
        return result
    return torch.cat([x[..., : view.start], result, x[..., end:]], -1)


def tables(
    function: str,
    positions: Tensor,
    inv_freq: Tensor,
    axis_map: Tensor | None,
    real: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Cosines and sines of positions * inv_freq, in the dtype `real`: [..., P], or [..., H, P]."""
    arguments.check_dtype(function, "inv_freq", inv_freq.dtype, arguments.FREQUENCY_DTYPES)
    arguments.check_dtype(function, "positions", positions.dtype, arguments.POSITION_DTYPES)
    if axis_map is not None:
        arguments.check_dtype(function, "axis_map", axis_map.dtype, arguments.INTEGER_DTYPES)
        arguments.check_shape(
            function, "axis_map", tuple(axis_map.shape), tuple(inv_freq.shape[-1:])
        )
        if positions.ndim < 1:
            wrong_value(function, "positions", "shape [A, ...] with axis_map", "shape []")
    _check_values(function, positions, axis_map)
    summed = inv_freq.ndim == 3
    rows = positions.shape if axis_map is None and not summed else positions.shape[1:]
    arguments.check_byte_count(function, (*rows, *inv_freq.shape[-2:]), 8)
    # Positions of every pair, and its frequencies: [..., P] or [..., H, P], axes first if summed.
    if axis_map is None:
        points = positions[..., None]
    else:
        points = positions.movedim(0, -1)[..., axis_map.long()]
    if inv_freq.ndim > 1:
        points = points[..., None, :]
    turns = _frequency_turns(function, inv_freq).to(positions.device)
    weights = inv_freq
    if summed:
        ones = (1,) * (positions.ndim - 1)
        turns, weights = (t.reshape(*t.shape[:-2], *ones, *t.shape[-2:]) for t in (turns, weights))
    phases = _phases(points, *turns)
    if summed:
        phases = phases.sum(0)
    cos, sin = _cos_sin(phases, real)
    angle = points.to(torch.promote_types(real, weights.dtype)) * weights
    if not (angle.requires_grad or transformed()):
        return cos, sin
    return _moving(cos, sin, (angle.sum(0) if summed else angle).to(real))


def _moving(cos: Tensor, sin: Tensor, angle: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of phases, which are integers, with the derivatives, of any order, of the angle.

    cos(phase + d), sin(phase + d) for a d that is 0, but changes as the angle does.
    """
    d = angle - angle.detach()
    return cos * d.cos() - sin * d.sin(), sin * d.cos() + cos * d.sin()


def _sinusoidal_turns(function: str, dim: int, base: float, shift: float, scale: float) -> Tensor:
    """[2, P]: the fractions and the whole turns of frequencies, as 64-bit patterns."""
    if _LIBRARY is not None:
        return call(_ops.sinusoidal_turns.default, dim, base, shift, scale)  # type: ignore[no-any-return]
    exact = checked_frequencies(function, dim, base, shift, scale)
    return _fixed_point_tensor(exact)


def _frequency_turns(function: str, inv_freq: Tensor) -> Tensor:
    """[2, *inv_freq.shape]: the fractions and the whole turns, as 64-bit patterns."""
    if inv_freq.is_meta:
        return inv_freq.new_empty((2, *inv_freq.shape), dtype=torch.int64)
    flat = inv_freq.detach().cpu().flatten()
    if _LIBRARY is not None:
        turns = call(_ops.frequency_turns.default, flat)
    else:
        turns = _fixed_point_tensor(reference._inv_freq(function, flat.numpy()))
    return turns.unflatten(-1, inv_freq.shape)  # type: ignore[no-any-return]


def _fixed_point_tensor(values: tuple[Any, ...]) -> Tensor:
    turns = reference._fixed_point(values)
    words = [[t >> shift & (2**64 - 1) for t in turns] for shift in (0, 64)]
    return torch.from_numpy(np.array(words, dtype=np.uint64).reshape(2, -1).view(np.int64).copy())


def concrete(*tensors: Tensor | None) -> bool:
    """Whether values can be looked at: plain tensors on the CPU, and nothing is traced.

    On other devices looking would wait for them; there a bad value gives a wrong result.
    """
    return not tracing() and all(t is None or (type(t) is Tensor and t.is_cpu) for t in tensors)


def _check_values(function: str, positions: Tensor, axis_map: Tensor | None) -> None:
    if not concrete(positions, axis_map):
        return
    if positions.is_floating_point() and not bool((positions.abs() < 2.0**63).all()):
        wrong_value(function, "positions", "finite values of magnitude below 2^63", "larger or NaN")
    if axis_map is not None:
        axes = positions.shape[0]
        if bool(((axis_map < 0) | (axis_map >= axes)).any()):
            wrong_value(function, "axis_map", f"values in 0 .. {axes - 1}", axis_map.tolist())


def _phases(points: Tensor, fraction: Tensor, whole: Tensor) -> Tensor:
    """csrc/core/phase.h in torch operations on 64-bit integers, which wrap as C's do."""
    low_half = 0xFFFFFFFF
    points = points.detach()
    if not points.dtype.is_floating_point:
        return points.to(torch.int64) * fraction
    # By magnitude, since 1 - p of a small negative p would round.
    magnitude = points.abs()
    floor = torch.floor(magnitude)
    # The fraction of a position as two 32-bit halves, and its product with the frequency.
    scaled = (magnitude - floor) * 2.0**32
    high = torch.floor(scaled)
    low = torch.floor((scaled - high) * 2.0**32).to(torch.int64)
    high = high.to(torch.int64)
    f_high, f_low = fraction >> 32 & low_half, fraction & low_half
    cross1 = high * f_low + (low * f_low >> 32 & low_half)
    cross2 = low * f_high + (cross1 & low_half)
    product = high * f_high + (cross1 >> 32 & low_half) + (cross2 >> 32 & low_half)
    phase = floor.to(torch.int64) * fraction + product + (high << 32 | low) * whole
    return torch.where(points < 0, -phase, phase)


def _cos_sin(phase: Tensor, real: torch.dtype) -> tuple[Tensor, Tensor]:
    quadrant = phase + (1 << 61) >> 62
    angle = (phase - (quadrant << 62)).to(real) * (2 * np.pi / 2.0**64)
    cos, sin = torch.cos(angle), torch.sin(angle)
    odd = (quadrant & 1).bool()
    cos, sin = torch.where(odd, sin, cos), torch.where(odd, cos, sin)
    cos = torch.where((quadrant + 1 & 2).bool(), -cos, cos)
    sin = torch.where((quadrant & 2).bool(), -sin, sin)
    return cos, sin


def _pairing(pairing: str) -> str | int:
    return int(pairing) if pairing.lstrip("-").isdigit() else pairing
