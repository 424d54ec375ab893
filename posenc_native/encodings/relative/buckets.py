"""Buckets of distances for T5 and DeBERTa, from exact integer thresholds.

Both give each near distance its own bucket and divide far distances into logarithmic steps. The
beginning of each step is computed once, in integers. Code that takes the logarithm of each distance
instead depends on its rounding: in bfloat16, more than a hundred of WavLM's 800 distances land in a
neighboring bucket.
"""

from __future__ import annotations

import decimal
import math
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import wrong_value
from posenc_native.core.calls.constants import constant
from posenc_native.core.frequencies.frequencies import EXACT
from posenc_native.engines.arrays import Arrays

from .distances import Window, spread

if TYPE_CHECKING:
    from posenc_native.core.calls.kinds import Array, Tensor, TensorLike

__all__ = ["deberta_bucket", "relative_position_bucket"]


# The beginning of each step is computed to 70 digits; CPM-Ant has the most, 512.
BUCKET_LIMIT = 2**14


@overload
def relative_position_bucket(relative_position: TensorLike, bidirectional: bool = ...,
    num_buckets: int = ..., max_distance: int = ...) -> Tensor: ...  # fmt: skip
@overload
def relative_position_bucket(relative_position: npt.ArrayLike, bidirectional: bool = ...,
    num_buckets: int = ..., max_distance: int = ...) -> Array[np.int64]: ...  # fmt: skip
def relative_position_bucket(
    relative_position: npt.ArrayLike | TensorLike,
    bidirectional: bool = True,
    num_buckets: int = 32,
    max_distance: int = 128,
) -> Any:
    """T5's bucket of each distance, from exact integer thresholds: no logarithm, no rounding.

    The first half of the buckets of a direction hold one distance each. The other buckets hold the
    distances up to max_distance in logarithmic steps; the last bucket holds everything beyond.

    Args:
        relative_position: key minus query, integers of any dtype and shape.
        bidirectional: True: half of the buckets for keys before the query, half for keys after it.
            False: all keys after it share bucket 0.
        num_buckets: number of buckets, even and >= 4 if bidirectional, otherwise >= 2; at most
            16,384.
        max_distance: the last bucket begins here at the latest; greater than the number of
            distances with their own bucket.

    Returns:
        int64 with the shape of relative_position.

    Raises:
        ValueError: num_buckets or max_distance is out of range.
        TypeError: relative_position is not of integers.

    Source: Raffel et al. 2020, "Exploring the Limits of Transfer Learning"; in transformers
    ``T5Attention._relative_position_bucket``, whose float32 logarithm agrees.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> pn.relative.relative_position_bucket(np.array([-200, -12, -1, 0, 1, 90, 91]))
        array([15,  9,  1,  0, 17, 30, 31])
    """
    arrays = Arrays("relative_position_bucket", relative_position=relative_position)
    distances = arrays.integers("relative_position", relative_position, arguments.INTEGER_DTYPES)
    options = _t5_options(arrays, bidirectional, num_buckets, max_distance)
    return _t5_bucket(arrays, distances, *options)


@overload
def deberta_bucket(relative_position: TensorLike, bucket_size: int = ...,
                   max_position: int = ...) -> Tensor: ...  # fmt: skip
@overload
def deberta_bucket(relative_position: npt.ArrayLike, bucket_size: int = ...,
                   max_position: int = ...) -> Array[np.int64]: ...  # fmt: skip
def deberta_bucket(
    relative_position: npt.ArrayLike | TensorLike, bucket_size: int = 256, max_position: int = 512
) -> Any:
    """DeBERTa v2's bucket of each distance, from exact integer thresholds.

    With ``mid = bucket_size // 2``, a distance r of at most mid is its own bucket; beyond, it is
    ``sign(r) * (mid + ceil((mid - 1) * ln(|r| / mid) / ln((max_position - 1) / mid)))``, at most
    bucket_size in either direction (the models clamp buckets to that when they use them).

    Args:
        relative_position: query minus key, integers of any dtype and shape.
        bucket_size: number of buckets per direction, 2 to 16,384.
        max_position: trained length; greater than bucket_size // 2 + 1.

    Returns:
        int64 with the shape of relative_position, in -bucket_size .. bucket_size.

    Raises:
        ValueError: bucket_size or max_position is out of range.
        TypeError: relative_position is not of integers.

    Source: He et al. 2021, "DeBERTa", and its ``make_log_bucket_position``.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> pn.relative.deberta_bucket(np.array([-511, -130, -128, 0, 5, 129, 600]))
        array([-255, -130, -128,    0,    5,  129,  256])
    """
    arrays = Arrays("deberta_bucket", relative_position=relative_position)
    distances = arrays.integers("relative_position", relative_position, arguments.INTEGER_DTYPES)
    return deberta_bucket_of(arrays, distances, bucket_size, max_position)


def _bucket_count(function: str, argument: str, value: object) -> int:
    count = arguments.size(function, argument, value)
    if count > BUCKET_LIMIT:
        wrong_value(function, argument, f"a number <= {BUCKET_LIMIT}", count)
    return count


def t5_bucket_of_window(
    arrays: Arrays, window: Window, bidirectional: bool, num_buckets: int, max_distance: int
) -> Any:
    """`relative_position_bucket` of a window; if it is known, only near distances are computed.

    Errors name the function of `arrays`.
    """
    options = _t5_options(arrays, bidirectional, num_buckets, max_distance)
    limit = options[2]
    if not window.known(arrays) or limit > _LIMIT_KEPT:
        return _t5_bucket(arrays, spread(arrays, window), *options)
    near = _t5_buckets_near(*options)
    index = np.empty(window.entries, np.int64)
    # Distance d is at d + before, and its bucket at d + limit.
    first = min(max(window.before - limit, 0), window.entries)
    last = min(max(window.before + limit + 1, first), window.entries)
    index[:first], index[last:] = near[0], near[-1]
    at = first - window.before + limit
    index[first:last] = near[at : at + last - first]
    return arrays.index(index)


# The buckets of at most this many near distances are kept: 256 KiB.
_LIMIT_KEPT = 2**14


@lru_cache(maxsize=8)
def _t5_buckets_near(bidirectional: bool, buckets: int, limit: int) -> npt.NDArray[np.int64]:
    """The buckets of the distances -limit .. limit."""
    arrays = Arrays("t5_diagonals")
    near = _t5_bucket(arrays, np.arange(-limit, limit + 1), bidirectional, buckets, limit)
    near.flags.writeable = False
    return near  # type: ignore[no-any-return]


def _t5_options(
    arrays: Arrays, bidirectional: bool, num_buckets: int, max_distance: int
) -> tuple[bool, int, int]:
    """Whether there are two directions, the buckets of one direction, and max_distance; checked."""
    function = arrays.function
    two_directions = arrays.flag("bidirectional", bidirectional)
    count = _bucket_count(function, "num_buckets", num_buckets)
    if count < (4 if two_directions else 2) or (two_directions and count % 2):
        expected = "an even number >= 4 (bidirectional)" if two_directions else "a number >= 2"
        wrong_value(function, "num_buckets", expected, count)
    buckets = count // 2 if two_directions else count
    limit = arguments.size(function, "max_distance", max_distance)
    if limit <= buckets // 2:
        expected = f"a number > {buckets // 2} (the distances with their own bucket)"
        wrong_value(function, "max_distance", expected, limit)
    return two_directions, buckets, limit


def _t5_bucket(
    arrays: Arrays, distances: Any, bidirectional: bool, buckets: int, limit: int
) -> Any:
    xp = arrays.xp
    # First, so that the sign of any int64 can be removed.
    distances = xp.clip(distances, -limit, limit)
    far = abs(distances) if bidirectional else xp.clip(-distances, 0, None)
    bucket = arrays.steps(t5_steps(buckets, limit), far)
    return bucket + buckets * (distances > 0) if bidirectional else bucket


@constant
def t5_steps(buckets: int, max_distance: int) -> list[int]:
    """The first distances of buckets 1, 2 ... of a direction."""
    return list(_t5_steps(buckets, max_distance))


@lru_cache(maxsize=64)
def _t5_steps(buckets: int, max_distance: int) -> tuple[int, ...]:
    # Bucket exact + k holds the distances n with
    #     k <= ln(n / exact) / ln(max_distance / exact) * (buckets - exact) < k + 1.
    exact = buckets // 2
    power = buckets - exact
    return tuple(range(1, exact + 1)) + _steps(exact, max_distance, power, power, above=False)[1:]


def _steps(first: int, last: int, power: int, count: int, *, above: bool) -> tuple[int, ...]:
    """For k = 0 .. count - 1 the least n at, or above, first * (last / first) ** (k / power).

    above: strictly above. Computed to 70 digits, of which integers take 20; if that does not decide
    it, in integers.
    """
    steps = []
    with decimal.localcontext(EXACT):
        ratio = (Decimal(last) / first) ** (1 / Decimal(power))
        root = Decimal(first)
        for k in range(count):
            nearest = int(root.to_integral_value())
            if abs(root - nearest) > Decimal("1e-30"):
                steps.append(math.ceil(root))
            else:  # is it an integer? Both sides times `first`, since k may be power + 1
                left, right = nearest**power * first, last**k * first ** (power + 1 - k)
                steps.append(nearest + (left <= right if above else left < right))
            root *= ratio
    return tuple(steps)


def deberta_bucket_of(arrays: Arrays, distances: Any, bucket_size: int, max_position: int) -> Any:
    """`deberta_bucket` of int64 distances; errors name the function of `arrays`."""
    function, xp = arrays.function, arrays.xp
    size = _bucket_count(function, "bucket_size", bucket_size)
    if size < 2:
        wrong_value(function, "bucket_size", "an int >= 2", size)
    limit = arguments.size(function, "max_position", max_position)
    if limit <= size // 2 + 1:
        wrong_value(function, "max_position", f"an int > {size // 2 + 1}", limit)
    steps = deberta_steps(size, limit)
    distances = xp.clip(distances, -steps[-1], steps[-1])
    return arrays.steps(steps, abs(distances)) * xp.sign(distances)


@constant
def deberta_steps(bucket_size: int, max_position: int) -> list[int]:
    """The first distances of buckets 1, 2 ... bucket_size."""
    return list(_deberta_steps(bucket_size, max_position))


@lru_cache(maxsize=64)
def _deberta_steps(bucket_size: int, max_position: int) -> tuple[int, ...]:
    # Bucket middle + k, k > 0, holds the distances n with
    #     k - 1 < ln(n / middle) / ln(last / middle) * power <= k.
    middle = bucket_size // 2
    power, last = middle - 1, max_position - 1
    if power == 0:  # they are all in bucket 1
        return (1,)
    far = _steps(middle, last, power, bucket_size - middle, above=True)
    end = min(last * last, 2**63 - 2) + 1
    return tuple(range(1, middle + 1)) + tuple(min(step, end) for step in far)
