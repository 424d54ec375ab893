"""Biases by distance for DTensors, sharded along batch, heads, queries and keys; entries are whole.

The entry of query i and key j is start + j - i. In a part with another first query and key, it is

    start - (first query) + (first key) + j - i
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from posenc_native.engines.distances import Lengths
from posenc_native.engines.following import needs_grad
from posenc_native.engines.torch import relative as plain
from posenc_native.engines.torch.inputs import integer_tensor
from posenc_native.engines.torch.results import no_output_for_gradient

from .cut import Cut, Names, mesh_of, overwritten, result_like, whole
from .errors import NotThePart


def toeplitz_bias(diagonals: Any, *rest: Any) -> Tensor:
    """The bias is sharded like the diagonals, along their batch and heads."""
    function = "toeplitz_bias"
    q_len, k_len, start, q_offset, dtype, out = rest
    diagonals = whole(diagonals, mesh_of((diagonals, q_offset, out)))
    leading = _leading(diagonals.ndim - len(q_len))
    entries = _entries(len(q_len))
    batch: Names = () if q_offset is None else ("b0",)
    if q_offset is not None:
        q_offset = integer_tensor(function, "q_offset", q_offset, diagonals.device)
        batch = _leading(q_offset.ndim + 1)[:-1]
    # The batch comes from q_offset, unless the diagonals have a batch.
    of_offset = bool(batch) and all(n == 1 for n in diagonals.shape[: len(leading) - 1])
    if of_offset:
        leading = (*(f"unit{axis}" for axis in range(len(leading) - 1)), "h")
    cut = Cut(diagonals, (*leading, *entries), ("h",) if of_offset else leading)
    if of_offset:
        local_offset = cut.part(q_offset, tuple(f"n{i}" for i in range(q_offset.ndim)))
    else:
        local_offset = cut.part(q_offset, batch) if batch else None
    names = (*(batch or leading[:-1]), "h", "q", "k")
    place = _place(function, cut, out, names, names[:-2], "diagonals", diagonals)
    part = plain.toeplitz_bias(
        cut.local(diagonals), q_len, k_len, start, local_offset, dtype, place
    )
    return _joined(cut, part, names, out)


def add_toeplitz_bias(scores: Any, diagonals: Any, *rest: Any) -> Tensor:
    """Scores stay sharded; tokens in a grid are gathered."""
    function = "add_toeplitz_bias"
    q_len, k_len, start, q_offset, out = rest
    scores = whole(scores, mesh_of((scores, diagonals, q_offset)))
    cut, grid = _of_matrices(scores, q_len, k_len, start)
    leading = diagonals.ndim - len(q_len)
    if not 1 <= leading <= scores.ndim - 2:
        raise NotThePart
    own = cut.part(diagonals, (*cut.names[-2 - leading : -2], *_entries(len(q_len))))
    offset = _offset_part(function, cut, q_offset)
    read = [t for t in (scores, diagonals) if isinstance(t, Tensor)]

    def add(part: Tensor, to: Tensor | None) -> Tensor:
        return plain.add_toeplitz_bias(part, own, *grid, offset, to)

    return result_like(function, cut, "scores", scores, out, read, add)


def diagonal_sums(grad: Any, shape: tuple[int, ...], *rest: Any) -> Tensor:
    """Sums over sharded axes are Partial; kept axes stay sharded."""
    q_len, k_len, start, q_offset = rest
    grad = whole(grad, mesh_of((grad, q_offset)))
    cut, grid = _of_matrices(grad, q_len, k_len, start)
    kept = len(shape) - len(q_len)
    names = cut.names[len(cut.names) - 2 - kept : -2]
    heads = tuple(cut.span(name)[1] for name in names)
    offset = _offset_part("diagonal_sums", cut, q_offset)
    sums = plain.diagonal_sums(cut.local(grad), (*heads, *shape[kept:]), *grid, offset)
    summed = tuple(name for name in cut.names if name not in names)
    return cut.join(sums, (*names, *_entries(len(q_len))), summed=summed)


def relative_gather(x: Any, index: Any, k_len: int, *rest: Any) -> Tensor:
    """The result is sharded like x, along batch, heads and queries; columns are whole."""
    function = "relative_gather"
    start, q_offset, missing, content, scale, out = rest
    x = whole(x, mesh_of((x, index, q_offset, content, out)))
    cut = _of_rows(x, "w")
    names = (*cut.names[:-1], "k")
    own = cut.part(content, names)
    read = [t for t in (x, content) if t is not None]
    if out is not None and out is content and needs_grad(*read):
        result = relative_gather(x, index, k_len, start, q_offset, missing, content, scale, None)
        return content.copy_(result)  # type: ignore[no-any-return]
    place = _place(function, cut, out, names, names[:-1], "x", *read)
    if out is not None and out is content:
        own = place
    part = plain.relative_gather(
        cut.local(x), *_columns(function, cut, index, k_len, start, q_offset), missing, own, scale,
        place,
    )  # fmt: skip
    return _joined(cut, part, names, out)


def relative_scatter(grad: Any, index: Any, width: int, *rest: Any) -> Tensor:
    """Sharded like grad, along batch, heads and queries; keys are gathered, as sums are rounded."""
    function = "relative_scatter"
    start, q_offset, missing, scale, out = rest
    grad = whole(grad, mesh_of((grad, index, q_offset, out)))
    cut = _of_rows(grad, "k")
    names = (*cut.names[:-1], "w")
    place = _place(function, cut, out, names, names[:-1], "grad", grad)
    part = plain.relative_scatter(
        cut.local(grad), *_columns(function, cut, index, width, start, q_offset), missing, scale,
        place,
    )  # fmt: skip
    return _joined(cut, part, names, out)


def _place(
    function: str, cut: Cut, out: Any, names: Names, may: Names, like: str, *read: Tensor
) -> Tensor | None:
    """The part of `out`, whose axes have these names and may be sharded; None without `out`."""
    if out is None:
        return None
    no_output_for_gradient(function, *read)
    of_out = Cut(whole(out, cut.mesh), names, may)
    if of_out.by != cut.by:
        raise NotThePart
    return of_out.place(function, "out", out, like)


def _joined(cut: Cut, part: Tensor, names: Names, out: Any) -> Tensor:
    if out is None:
        return cut.join(part, names)
    overwritten(out)
    return out  # type: ignore[no-any-return]


def _leading(count: int) -> Names:
    """The names of the axes before the last: batch axes and heads."""
    return (*(f"b{axis}" for axis in range(count - 1)), "h")[:count] if count > 0 else ()


def _entries(axes: int) -> Names:
    return tuple(f"e{axis}" for axis in range(axes))


def _of_matrices(
    x: Any, q_len: Lengths, k_len: Lengths, start: Lengths | None
) -> tuple[Cut, tuple[Lengths, Lengths, Lengths | None]]:
    """The cut of [..., H, q_len, k_len], and the lengths and start of the part."""
    names = (*_leading(x.ndim - 2), "q", "k")
    grid = len(q_len) > 1
    cut = Cut(x, names, names[:-2] if grid else names)
    if grid or not cut.is_cut("q", "k"):
        return cut, (q_len, k_len, start)
    (first_query, queries), (first_key, keys) = cut.span("q"), cut.span("k")
    first = q_len[0] - 1 if start is None else start[0]
    return cut, ((queries,), (keys,), (first - first_query + first_key,))


def _of_rows(x: Any, last: str) -> Cut:
    names = (*_leading(x.ndim - 2), "q", last)
    return Cut(x, names, names[:-1])


def _offset_part(function: str, cut: Cut, q_offset: Any) -> Any:
    """The part of q_offset, which has the first of the leading axes."""
    if q_offset is None:
        return None
    q_offset = integer_tensor(function, "q_offset", q_offset, cut.device)
    return cut.part(q_offset, cut.names[: q_offset.ndim])


def _columns(
    function: str, cut: Cut, index: Any, count: int, start: int | None, q_offset: Any
) -> tuple[Any, int, int | None, Any]:
    """index, k_len or width, start and q_offset for the part."""
    own = cut.part(integer_tensor(function, "index", index, cut.device), ("e0",))
    offset = _offset_part(function, cut, q_offset)
    if cut.is_cut("q"):
        start = (cut.sizes["q"] - 1 if start is None else start) - cut.span("q")[0]
    return own, count, start, offset
