"""Cases of biases, sums and look-ups by distance."""

from __future__ import annotations

import math
from typing import Any

from fuzz.memory import Operand
from fuzz.operands import FLOATS, INTEGERS, Builder

from .common import Case, Dtype, finish, number, result_dtype


def _grid(builder: Builder) -> tuple[list[int], list[int]]:
    """Lengths of queries and keys along each axis of a grid."""
    rank = builder.choices.one_of((1, 1, 1, 1, 2, 3))
    within = max(math.isqrt(builder.elements // 3), 1)
    return builder.sizes(rank, within), builder.sizes(rank, within)


def _windows(
    builder: Builder, arguments: dict[str, Any], queries: list[int], keys: list[int],
    leading: list[int], every: bool = False,
) -> list[int]:  # fmt: skip
    """origin and q_offset; returns the numbers of entries."""
    choices = builder.choices
    entries = [max(q + k - 1, 0) for q, k in zip(queries, keys, strict=True)]
    if choices.chance(50):
        return entries
    first = [q - 1 + choices.below(4) for q in queries]
    spare = [choices.below(5) for _ in queries]
    offset = choices.integer(-3, 3) if len(queries) == 1 else 0
    entries = [max(f + k, 0) + s for f, k, s in zip(first, keys, spare, strict=True)]
    if offset or choices.chance(20):
        first[0] += offset
        arguments["q_offset"] = offset
    if len(queries) == 1 and choices.chance(40):
        arguments["q_offset"] = _offsets(builder, leading, every)
        # Room for offsets of -2 .. 2.
        first[0] = queries[0] + 1 + choices.below(3)
        entries[0] = first[0] + 2 + max(keys[0], 1) + choices.below(3)
    if builder.fault(2, "origin"):
        first[0] += choices.one_of((-4, 4, -1, 1, 2**40, -(2**40), 2**60, 2**61, 2**62, 2**63))
    arguments["origin"] = tuple(first) if len(first) > 1 or choices.chance(20) else first[0]
    return entries


def _offsets(builder: Builder, leading: list[int], every: bool) -> Operand:
    """q_offset for some of the leading axes, or for every one or none."""
    choices = builder.choices
    dtype = choices.one_of(INTEGERS)
    shape = leading[
        : choices.one_of((0, len(leading))) if every else choices.below(len(leading) + 1)
    ]
    low = 0 if dtype[0] == "u" else -2
    values = [choices.integer(low, 2) for _ in range(math.prod(shape))]
    if values and builder.fault(2, "q_offset: value"):
        bits = int(dtype.removeprefix("u").removeprefix("int"))
        top = 2**bits - 1 if dtype[0] == "u" else 2 ** (bits - 1) - 1
        values[choices.below(len(values))] = choices.one_of(
            (top, low - (dtype[0] == "i"), 5, top // 2)
        )
    return builder.operand("q_offset", shape, dtype, values)


def _lengths(builder: Builder, lengths: list[int]) -> Any:
    return lengths[0] if len(lengths) == 1 else tuple(lengths)


def toeplitz_bias(builder: Builder) -> Case:
    """Diagonals laid down."""
    choices, arguments = builder.choices, dict[str, Any]()
    queries, keys = _grid(builder)
    heads = builder.sizes(choices.integer(0, 3), 12)
    entries = _windows(builder, arguments, queries, keys, heads[:-1], every=True)
    diagonals = builder.operand("diagonals", [*heads, *entries], choices.one_of(FLOATS))
    arguments |= {"diagonals": diagonals, "q_len": _lengths(builder, queries)}
    arguments["k_len"] = _lengths(builder, keys)
    if builder.fault(1, "q_len"):
        arguments["q_len"] = choices.one_of((-1, 2**61, 2**62, 2**63, 1, (1, 2), (1, 1, 1, 1), ()))
    dtype = diagonals.dtype
    if choices.chance(50):
        dtype = result_dtype(builder, arguments)
    out = None
    if choices.chance(60):
        offset = arguments.get("q_offset")
        batch = list(offset.shape) if isinstance(offset, Operand) and offset.shape else heads[:-1]
        shape = [*batch, *heads[-1:], math.prod(queries), math.prod(keys)]
        kind = arguments["dtype"].name if isinstance(arguments.get("dtype"), Dtype) else dtype
        out = builder.out(diagonals, shape, kind, replaceable=False)
        if out is not None:
            arguments["out"] = out
    return finish(builder, "toeplitz_bias", arguments)


def _matrices(
    builder: Builder, arguments: dict[str, Any]
) -> tuple[list[int], list[int], list[int]]:
    """Leading axes, queries and keys; writes q_len and k_len of a grid."""
    queries, keys = _grid(builder)
    leading = builder.sizes(builder.choices.integer(0, 4), 12)
    if len(queries) > 1 or builder.choices.chance(10):
        arguments["q_len"] = _lengths(builder, queries)
        arguments["k_len"] = _lengths(builder, keys)
    if builder.fault(1, "k_len"):
        arguments["k_len"] = builder.choices.one_of((-1, 2**62, 2**63, 1, (1, 2), (1, 1, 1, 1), ()))
    return leading, queries, keys


def add_toeplitz_bias(builder: Builder) -> Case:
    """Scores and diagonals."""
    choices, arguments = builder.choices, dict[str, Any]()
    leading, queries, keys = _matrices(builder, arguments)
    heads = leading[choices.below(len(leading) + 1) :]
    heads = [1 if i < len(heads) - 1 and choices.chance(20) else h for i, h in enumerate(heads)]
    entries = _windows(builder, arguments, queries, keys, leading)
    shape = [*leading, math.prod(queries), math.prod(keys)]
    scores = builder.operand("scores", shape, choices.one_of(FLOATS))
    diagonals = builder.operand("diagonals", [*heads, *entries], choices.one_of(FLOATS))
    arguments |= {"scores": scores, "diagonals": diagonals}
    out = builder.out(scores, scores.shape, scores.dtype, replaceable=True)
    if out is not None:
        arguments["out"] = out
    return finish(builder, "add_toeplitz_bias", arguments)


def diagonal_sums(builder: Builder) -> Case:
    """Sums along diagonals."""
    choices, arguments = builder.choices, dict[str, Any]()
    leading, queries, keys = _matrices(builder, arguments)
    keep = choices.integer(0, len(leading))
    if keep != 1 or choices.chance(20):
        arguments["keep"] = keep
    if builder.fault(1, "keep"):
        arguments["keep"] = choices.one_of((-1, 7, None, "1", 2**63))
    entries = _windows(builder, arguments, queries, keys, leading)
    if "origin" in arguments:
        arguments["entries"] = _lengths(builder, entries)
    if builder.fault(1, "entries"):
        arguments["entries"] = choices.one_of((-1, 0, 1, 4096, (1, 2), 2**62))
    shape = [*leading, math.prod(queries), math.prod(keys)]
    arguments["grad"] = builder.operand("grad", shape, choices.one_of(FLOATS))
    return finish(builder, "diagonal_sums", arguments)


def _look_up(
    builder: Builder, arguments: dict[str, Any], leading: list[int], queries: int, keys: int,
    width: int,
) -> None:  # fmt: skip
    """index, origin, q_offset, missing, scale."""
    choices = builder.choices
    entries = _windows(builder, arguments, [queries], [keys], leading)[0]
    if isinstance(arguments.get("origin"), tuple):
        arguments["origin"] = arguments["origin"][0]
    arguments["index"] = None
    if choices.chance(70):
        dtype = choices.one_of(INTEGERS)
        values = [choices.below(max(width, 1)) for _ in range(entries)]
        if not width and values:
            builder.faults.append("index: no columns")
        if dtype[0] == "i" and choices.chance(30):
            arguments["missing"] = -1
            values = [-1 if choices.chance(25) else value for value in values]
        if values and builder.fault(1.5, "index: value"):
            values[choices.below(entries)] = choices.one_of(
                (width, 127, -1 if dtype[0] == "i" else 100)
            )
        arguments["index"] = builder.operand("index", [entries], dtype, values)
    if builder.fault(1, "missing"):
        arguments["missing"] = choices.one_of((0, width, width - 1, 2**63, -(2**63), 1.5, "x"))
    if choices.chance(30):
        arguments["scale"] = number(builder, "scale", (0.5, -2.0, 0.0, 1, 0.1))


def relative_gather(builder: Builder) -> Case:
    """Columns by distance."""
    choices, arguments = builder.choices, dict[str, Any]()
    within = max(math.isqrt(builder.elements // 3), 1)
    queries, keys, width = (builder.sizes(1, within)[0] for _ in range(3))
    leading = builder.sizes(choices.integer(0, 4), 12)
    x = builder.operand("x", [*leading, queries, width], choices.one_of(FLOATS))
    arguments |= {"x": x, "k_len": keys}
    if builder.fault(1, "k_len"):
        arguments["k_len"] = choices.one_of((-1, 2**62, 2**63, keys + 1, (keys,)))
    _look_up(builder, arguments, leading, queries, keys, width)
    shape, content = [*leading, queries, keys], None
    if choices.chance(40):
        content = arguments["content"] = builder.operand("content", shape, x.dtype)
    out = builder.out(content or x, shape, x.dtype, replaceable=content is not None)
    if out is not None:
        arguments["out"] = out
    return finish(builder, "relative_gather", arguments)


def relative_scatter(builder: Builder) -> Case:
    """Sums by column."""
    choices, arguments = builder.choices, dict[str, Any]()
    within = max(math.isqrt(builder.elements // 3), 1)
    queries, keys, width = (builder.sizes(1, within)[0] for _ in range(3))
    leading = builder.sizes(choices.integer(0, 4), 12)
    grad = builder.operand("grad", [*leading, queries, keys], choices.one_of(FLOATS))
    arguments |= {"grad": grad, "width": width}
    if builder.fault(1, "width"):
        arguments["width"] = choices.one_of((-1, 2**62, 2**63, width + 1, (width,)))
    _look_up(builder, arguments, leading, queries, keys, width)
    out = builder.out(grad, [*leading, queries, width], grad.dtype, replaceable=False)
    if out is not None:
        arguments["out"] = out
    return finish(builder, "relative_scatter", arguments)
