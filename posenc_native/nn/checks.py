"""What arguments of several modules must be."""

from __future__ import annotations

from torch import Tensor

from posenc_native.base import arguments

__all__ = ["check_scores", "flag", "positive_size"]


def positive_size(function: str, argument: str, value: int) -> int:
    """A size of at least 1."""
    size = arguments.size(function, argument, value)
    if size == 0:
        arguments.wrong_value(function, argument, "an int >= 1", 0)
    return size


def flag(function: str, argument: str, value: bool) -> bool:
    """An argument that is a bool."""
    if not isinstance(value, bool):
        arguments.wrong_type(function, argument, "a bool", type(value).__name__)
    return value


def check_scores(function: str, scores: Tensor) -> None:
    """ValueError unless scores have axes for heads, queries and keys."""
    if scores.ndim < 3:
        expected = "shape [..., H, q_len, k_len]"
        arguments.wrong_value(function, "scores", expected, list(scores.shape))
