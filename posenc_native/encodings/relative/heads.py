"""The heads of a layer on this rank, if tensor parallelism gives each rank some of them."""

from __future__ import annotations

from typing import Any

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import wrong_type, wrong_value

Heads = range | slice | tuple[int, int] | None


def heads_of(function: str, heads: Any, num_heads: int) -> range:
    """The argument heads: consecutive heads of num_heads; (rank, ranks) is an equal share of them.

    Raises:
        TypeError, ValueError: it is neither, the heads do not exist, or ranks does not divide them.
    """
    if heads is None:
        return range(num_heads)
    expected = f"a range or slice of consecutive heads in 0 .. {num_heads}, or (rank, ranks)"
    if isinstance(heads, slice):
        own = range(*heads.indices(num_heads))
        if own.step != 1 or (heads.stop or 0) > num_heads:
            wrong_value(function, "heads", expected, heads)
        return own
    if isinstance(heads, range):
        own = heads if len(heads) else range(0)
        if own.step != 1 or own.start < 0 or own.stop > num_heads:
            wrong_value(function, "heads", expected, heads)
        return own
    if not isinstance(heads, tuple) or len(heads) != 2:
        wrong_type(function, "heads", expected, type(heads).__name__)
    rank = arguments.size(function, "heads[0]", heads[0])
    ranks = arguments.size(function, "heads[1]", heads[1])
    if rank >= ranks:
        wrong_value(function, "heads[0]", f"a rank below ranks = {ranks}", rank)
    if num_heads % ranks:
        wrong_value(function, "heads", f"ranks that divide {num_heads} heads", ranks)
    share = num_heads // ranks
    return range(rank * share, (rank + 1) * share)


def shown_heads(heads: range, num_heads: int) -> range | None:
    """The heads to show in `print(model)`: None if all heads are here."""
    return None if heads == range(num_heads) else heads
