"""What waits for torch to be there: the operations on tensors, and what torch.compile is told.

Nothing here imports torch before a caller has a tensor.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar

from posenc_native.base import arguments

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])

_torch_operations: ModuleType | None = None
_constants: list[Callable[..., Any]] = []


def torch_operations() -> ModuleType:
    """The module of operations on tensors, engines/tensors; it imports torch."""
    global _torch_operations
    if _torch_operations is None:
        _torch_operations = importlib.import_module(".tensors", __package__)
        for function in _constants:
            sys.modules["torch"].compiler.assume_constant_result(function)
    return _torch_operations


def operations_on(value: object) -> ModuleType | None:
    """`torch_operations` if the value is a tensor, else None."""
    if _torch_operations is None:
        return torch_operations() if arguments.is_tensor(value) else None
    return _torch_operations if isinstance(value, _torch_operations.Tensor) else None


def constant(function: AnyFunction) -> AnyFunction:
    """Declare that torch.compile may run the function while it traces and keep the result.

    For functions whose arguments never change: integers, immutable objects.
    """
    _constants.append(function)
    if _torch_operations is not None:
        sys.modules["torch"].compiler.assume_constant_result(function)
    return function
