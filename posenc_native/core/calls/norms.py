"""The RMS norm of q and k before (or after) their rotation: its options and their checks.

    y = x / sqrt(mean(x^2) + eps) * (weight + weight_offset)

    norm_over   the mean is over          weights
    head        the dims of a head        [D], or [H, D]
    token       all heads of a token      [H, D], or [H * D]

Source: Zhang and Sennrich 2019, "Root Mean Square Layer Normalization"; of queries and keys: Henry
et al. 2020, "Query-Key Normalization for Transformers"; Dehghani et al. 2023, "Scaling Vision
Transformers to 22 Billion Parameters".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict

from . import arguments
from .arguments import wrong_value
from .rotation import PairOptions
from .views import RotaryView

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch

    from .kinds import FrequencyAxes

NORMS = ("head", "token")


class Norm(NamedTuple):
    """The options of a norm, in the order of the operators' schemas and of the native module.

    `compute` comes between them and the options of the rotation; where angles come from `Tables`,
    these include it.
    """

    q_weight: Any = None
    k_weight: Any = None
    norm: bool = True
    eps: float = 1e-6
    norm_over: str = "head"
    weight_offset: float = 0.0
    norm_first: bool = True
    # The factor of queries by position that a Rotary has (engines/plain/query_scale.py). No public
    # function has these options.
    query_scale: str = "none"
    query_beta: float = 0.0
    query_length: float = 1.0
    query_shift: float = 0.0


# Norm's options of queries at the door, where a Rotary has its own.
NO_QUERY_SCALE = (None, None, None, None)


class OwnNorm(TypedDict, total=False):
    """Keywords of a norm itself."""

    q_weight: npt.ArrayLike | torch.Tensor | None
    k_weight: npt.ArrayLike | torch.Tensor | None
    eps: float
    norm_over: Literal["head", "token"]
    weight_offset: float
    norm_first: bool


NORM_KEYWORDS = tuple(OwnNorm.__annotations__)


class NormOptions(OwnNorm, total=False):
    """Keywords of all functions that apply a norm."""

    compute: Literal["float32", "as_written"] | None


class NormCallOptions(NormOptions, total=False):
    """Keywords of a norm whose rotation a `Rotary` describes."""

    layout: str | None
    inplace: bool
    out: Any
    q_scale: Any
    k_scale: Any


class NormedRotationOptions(NormOptions, PairOptions, total=False):
    """Keywords of a norm and a rotation."""

    axis_map: npt.ArrayLike | torch.Tensor | None
    scale: float | None
    inv_freq_axes: FrequencyAxes | None


def check_norm(function: str, norm: Norm, dtype: object, layout: object) -> Norm:
    """The norm with checked numbers and names; `weight_shape` checks the weights."""
    if isinstance(layout, str) and "g" in layout:
        expected = "letters of b, s, h, d (or t, h, d), with the heads along one axis"
        wrong_value(function, "layout", expected, repr(layout))
    eps = arguments.finite_number(function, "eps", norm.eps)
    if eps < 0:
        wrong_value(function, "eps", "a number >= 0", eps)
    arguments.check_name(function, "norm_over", norm.norm_over, NORMS)
    offset = arguments.factor(function, "weight_offset", norm.weight_offset, dtype)
    if not norm.norm and not (norm.q_weight is None and norm.k_weight is None):
        wrong_value(function, "norm", "True if a weight is given", False)
    return norm._replace(
        norm=bool(norm.norm), eps=eps, weight_offset=offset, norm_first=bool(norm.norm_first)
    )


def weight_shape(
    function: str, argument: str, weight: Any, norm_over: str, view: RotaryView
) -> tuple[int, ...]:
    """The shape in which a weight multiplies x: 1 or the heads at h, and the dims of a head.

    Raises:
        TypeError, ValueError: the weight has no float dtype, or its shape does not fit the view.
    """
    arguments.check_dtype(function, argument, weight.dtype, arguments.FLOAT_DTYPES)
    heads, dims = view.heads, view.shape[-1]
    by_head = (heads, dims)
    allowed = {"head": [(dims,), by_head], "token": [by_head, (heads * dims,)]}[norm_over]
    shape = tuple(weight.shape)
    if not arguments.one_of(shape, allowed):
        names = {"head": "[D] or [H, D]", "token": "[H, D] or [H * D]"}[norm_over]
        sizes = " or ".join(str(list(size)) for size in allowed)
        wrong_value(function, argument, f"shape {names} = {sizes}", list(shape))
    # The dims of one head, or of all heads one after the other.
    rows = 1 if norm_over == "head" and len(shape) == 1 else heads
    lengths = {"h": rows, "d": dims}
    return tuple(lengths.get(letter, 1) for letter in view.layout)


def mean_axes(norm_over: str, view: RotaryView) -> tuple[int, ...]:
    """The axes over which the squares are averaged."""
    if norm_over == "token" and "h" in view.layout:
        return (view.layout.index("h"), len(view.layout) - 1)
    return (len(view.layout) - 1,)
