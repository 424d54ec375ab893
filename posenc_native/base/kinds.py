"""Kinds of arguments, for type checkers: what the overloads of public functions are written in.

NumPy's arrays stand first in them and torch's after: where torch is not installed its types are
unknown to a checker, would match anything, and are not reached.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

if TYPE_CHECKING:
    Device = str | int | torch.device
    Integers = int | npt.ArrayLike | torch.Tensor
# The dtype of an array, which the result has too.
Number = TypeVar("Number", bound=np.generic)


class SupportsArray(Protocol):
    """An array of another library that NumPy can read: pandas, xarray, JAX."""

    def __array__(self) -> np.ndarray[Any, Any]: ...
