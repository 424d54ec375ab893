"""Norm and rotation of q and k: exact values, how far results may be from them, cases."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from oracle import COMPUTATION, dtype_name, half_ulp

import posenc_native as pn
from posenc_native.engines.plain import arrays as reference


class Case(NamedTuple):
    """Which dims are turned, and how."""

    dims: int
    pairs: int
    start: int
    pairing: Any

    @property
    def inv_freq(self) -> np.ndarray:
        return pn.rotary.rotary_frequencies(2 * self.pairs)[0]

    @property
    def options(self) -> dict[str, Any]:
        return {"pairing": self.pairing, "rotary_start": self.start}


# Whole vectors of every target, of some, of none; a slice at either end; blocks.
CASES = [
    Case(128, 64, 0, "half"),
    Case(128, 64, 0, "interleaved"),
    Case(256, 64, 64, "interleaved"),
    Case(64, 16, 32, "half"),
    Case(80, 40, 0, "half"),
    Case(96, 16, 8, 8),
    Case(20, 5, 3, "interleaved"),
    Case(21, 5, 3, "half"),
    Case(2, 0, 0, "half"),
    Case(1, 0, 1, "half"),
]


def heads_of(layout: str, case: Case, heads: int = 3, tokens: int = 5, batch: int = 2) -> Any:
    """The shape of a tensor in the layout."""
    sizes = {"b": batch, "s": tokens, "t": tokens, "h": heads, "d": case.dims}
    return tuple(sizes[letter] for letter in layout)


def weights_of(
    kind: str, heads: int, case: Case, rng: np.random.Generator, dtype: Any = np.float32
) -> np.ndarray | None:
    """A weight "[D]", "[H, D]" or "[H * D]", or "none"."""
    if kind == "none":
        return None
    shape = {"[D]": (case.dims,), "[H, D]": (heads, case.dims), "[H * D]": (heads * case.dims,)}
    return rng.standard_normal(shape[kind]).astype(dtype)


def exact(q: np.ndarray, k: np.ndarray, *args: Any, **options: Any) -> tuple[np.ndarray, ...]:
    """The result in float64."""
    wide = {
        name: x.astype(np.float64) if name.endswith("weight") and x is not None else x
        for name, x in options.items()
    }
    before = pn.engines.backend.implementation
    pn.engines.backend.use(reference)
    try:
        return pn.norm_rotary_qk(q.astype(np.float64), k.astype(np.float64), *args, **wide)
    finally:
        pn.engines.backend.use(before)


def roundings(count: int) -> float:
    """Roundings of x r w before the rotation, in halves of a last place.

    Of the sum of `count` squares: of each partial sum one a product and one a term, of which there
    are count / 64, then 6 (of heads, as many as there are, within count / 64 too); the root halves
    them. Then the mean, eps, root, division, and two products; factors are rounded once.
    """
    return (2 * (count / 64) + 6) / 2 + 7


def assert_normed(
    actual: np.ndarray, expected: np.ndarray, magnitude: Any, count: int, more: float = 0.0
) -> None:
    """As close to exact values as it should be.

    magnitude: the largest of what is rotated, |x r w|, of the head. more: of a rotation's scale.
    """
    name = dtype_name(actual.dtype)
    unit = 2.0 ** (-53 if name == "float64" else -24)
    relative = 2 * COMPUTATION[name] + roundings(count) * unit + more
    computed = np.asarray(magnitude, np.float64) * 2 * relative
    error = np.abs(actual.astype(np.float64) - expected)
    excess = error - computed - half_ulp(name, np.abs(expected) + computed)
    assert np.all(excess <= 0), f"off by {error[~(excess <= 0)].max()} ({name})"
