"""Biases by distance and look-ups, composed of differentiable torch operations."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from posenc_native.base import arguments
from posenc_native.base.arguments import wrong_value
from posenc_native.engines.distances import Columns, Grid

from .phases import concrete, whole_numbers


def toeplitz_bias(
    function: str, diagonals: Tensor, leading: tuple[int, ...], dtype: torch.dtype, grid: Grid
) -> Tensor:
    """`posenc_native.toeplitz_bias`, with these leading axes."""
    rank = len(grid.q_len)
    heads, counts = diagonals.shape[: diagonals.ndim - rank], diagonals.shape[-rank:]
    entries = _entries(function, tuple(heads), tuple(counts), leading, grid, diagonals.device)
    flat = diagonals.flatten(diagonals.ndim - rank)
    if grid.q_offset is None:
        bias = flat[..., entries].expand(*leading, *entries.shape)
    else:
        flat = flat.expand(*leading, flat.shape[-1])
        bias = flat.gather(-1, _planes(entries, leading).flatten(-2)).unflatten(
            -1, entries.shape[-2:]
        )
    return bias.to(dtype)


def add_toeplitz_bias(function: str, scores: Tensor, diagonals: Tensor, grid: Grid) -> Tensor:
    """`posenc_native.add_toeplitz_bias`."""
    real = torch.float64 if scores.dtype == torch.float64 else torch.float32
    leading = tuple(scores.shape[:-2])
    bias = toeplitz_bias(function, diagonals.to(real), leading, real, grid)
    return (scores.to(real) + bias).to(scores.dtype)


def diagonal_sums(function: str, grad: Tensor, shape: tuple[int, ...], grid: Grid) -> Tensor:
    """`posenc_native.diagonal_sums`, with this shape."""
    rank = len(grid.q_len)
    heads, counts = shape[: len(shape) - rank], shape[len(shape) - rank :]
    leading = tuple(grad.shape[:-2])
    entries = _entries(function, heads, counts, leading, grid, grad.device)
    real = torch.float64 if grad.dtype == torch.float64 else torch.float32
    by_plane = grad.to(real)
    if grid.q_offset is None:  # all planes have the same entries, so sum the planes first
        by_plane = _sum_to(by_plane, (*heads, *grad.shape[-2:]))
    index = _planes(entries, tuple(by_plane.shape[:-2])).flatten(-2)
    zeros = torch.zeros((*by_plane.shape[:-2], math.prod(counts)), dtype=real, device=grad.device)
    sums = zeros.scatter_add(-1, index, by_plane.flatten(-2))
    return _sum_to(sums, (*heads, sums.shape[-1])).reshape(shape)


def relative_gather(
    function: str, x: Tensor, content: Tensor | None, k_len: int, columns: Columns, scale: float
) -> Tensor:
    """`posenc_native.relative_gather`."""
    found = _columns(function, columns, (*x.shape[:-1], k_len), x.shape[-1], x.device)
    real = torch.float64 if x.dtype == torch.float64 else torch.float32
    padded = torch.nn.functional.pad(x.to(real), (0, 1))
    result = padded.gather(-1, found)
    if content is not None:
        result = content.to(real) + result
    return (result * scale).to(x.dtype)


def relative_scatter(
    function: str, grad: Tensor, width: int, columns: Columns, scale: float
) -> Tensor:
    """`posenc_native.relative_scatter`."""
    found = _columns(function, columns, tuple(grad.shape), width, grad.device)
    real = torch.float64 if grad.dtype == torch.float64 else torch.float32
    zeros = torch.zeros((*grad.shape[:-1], width + 1), dtype=real, device=grad.device)
    sums = zeros.scatter_add(-1, found, grad.to(real))
    return (sums[..., :-1] * scale).to(grad.dtype)


def _entries(
    function: str,
    heads: tuple[int, ...],
    counts: tuple[int, ...],
    leading: tuple[int, ...],
    grid: Grid,
    device: torch.device,
) -> Tensor:
    """The flattened entry of every query and key, [q_len, k_len].

    With q_offset, [*q_offset.shape, q_len, k_len].
    """
    q_len, k_len, start, q_offset = grid
    if q_offset is not None and len(q_len) != 1:
        expected = "None if q_len and k_len are tuples"
        wrong_value(function, "q_offset", expected, f"shape {list(q_offset.shape)}")
    if q_offset is not None:
        q_offset = whole_numbers(q_offset)
    flat = torch.zeros(1, 1, dtype=torch.int64, device=device)
    for axis, (queries, keys, count) in enumerate(zip(q_len, k_len, counts, strict=True)):
        first = queries - 1 if start is None else start[axis]
        low, high = (first, first)
        known = q_offset is None
        if q_offset is not None and concrete(q_offset) and q_offset.numel():
            low, high = first - int(q_offset.max()), first - int(q_offset.min())
            known = True
        if known and queries and keys and not (queries - 1 <= low and high <= count - keys):
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
    arguments.check_heads(function, heads, leading)
    if q_offset is None:
        return flat
    arguments.check_offset_shape(function, tuple(q_offset.shape), leading)
    # Offsets that cannot be read must not lead outside the entries.
    moved: Tensor = flat - q_offset[..., None, None]
    return moved.clamp(0, max(counts[0] - 1, 0))


def _planes(entries: Tensor, leading: tuple[int, ...]) -> Tensor:
    """The entries of every plane; with q_offset, its axes come first."""
    shape = (*entries.shape[:-2], *(1,) * (len(leading) + 2 - entries.ndim), *entries.shape[-2:])
    return entries.reshape(shape).expand(*leading, *entries.shape[-2:])


def _sum_to(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """x summed over the leading axes that the shape lacks or has with size 1."""
    extra = x.ndim - len(shape)
    x = x.sum(tuple(range(extra))) if extra else x
    repeated = [i for i, size in enumerate(shape) if size == 1 and x.shape[i] != 1]
    return x.sum(repeated, keepdim=True) if repeated else x


def _columns(
    function: str, columns: Columns, shape: tuple[int, ...], width: int, device: torch.device
) -> Tensor:
    """The column of every query and key, with this shape; `width` if there is none."""
    index, start, q_offset, missing = columns
    *leading, queries, keys = shape
    if q_offset is not None:
        arguments.check_offset_shape(function, tuple(q_offset.shape), tuple(leading))
        q_offset = whole_numbers(q_offset)
    i = torch.arange(queries, device=device)[:, None]
    first = queries - 1 if start is None else start
    entries = first + torch.arange(keys, device=device) - i
    if q_offset is not None:
        entries = entries - q_offset[..., None, None]
    if index is None:
        found = entries
    else:
        index = whole_numbers(index)
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
        found = index.long()[entries]
    found = torch.where((found >= 0) & (found < width), found, width)
    return _planes(found, tuple(leading))
