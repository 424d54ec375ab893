"""Functions that torch.compile runs once for a constant of its graph instead of tracing them.

Nothing here imports torch.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


def constant(function: AnyFunction) -> AnyFunction:
    """Declare that torch.compile may run the function while it traces and keep the result.

    For functions whose arguments never change: integers, immutable objects.
    """
    # This is all that torch.compiler.assume_constant_result does. It cannot be called before torch
    # is imported, nor later while torch traces.
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def constant_without_tensors(function: AnyFunction) -> AnyFunction:
    """As `constant` for calls without tensors, for functions that make NumPy arrays from numbers.

    torch.compile traces NumPy functions as operations on tensors. It lacks some of them, and under
    ``torch.set_default_device`` it can follow hardly any. A call with a tensor, an array, a device
    or a torch dtype is traced, since its result is a tensor or changes. The array belongs to the
    graph, which returns the same array in every call: copy it before you write to it.
    """

    @constant
    def run(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or not torch.compiler.is_dynamo_compiling():
            return function(*args, **kwargs)
        changing = (np.ndarray, torch.Tensor, torch.device, torch.dtype)
        if kwargs.get("device") is not None or any(
            isinstance(value, changing) for value in (*args, *kwargs.values())
        ):
            return function(*args, **kwargs)
        return run(*args, **kwargs)

    return call  # type: ignore[return-value]
