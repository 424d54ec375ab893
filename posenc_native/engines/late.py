"""Late import of the operations on tensors.

Nothing here imports torch before a caller has a tensor.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType

from posenc_native.core.calls import arguments

_torch_operations: ModuleType | None = None


def torch_operations() -> ModuleType:
    """The module of operations on tensors, engines/torch; this imports torch."""
    global _torch_operations
    if _torch_operations is None:
        _torch_operations = importlib.import_module(".torch", __package__)
    return _torch_operations


def torch_is_there() -> bool:
    """Whether torch is imported. If so, the operations are imported too.

    Called outside of calls, since a first call inside torch.compile cannot import them.
    """
    if sys.modules.get("torch") is None:
        return False
    torch_operations()
    return True


def operations_on(value: object) -> ModuleType | None:
    """`torch_operations` if the value is a tensor, otherwise None."""
    if _torch_operations is None:
        return torch_operations() if arguments.is_tensor(value) else None
    return _torch_operations if isinstance(value, _torch_operations.Tensor) else None


def is_compiling() -> Callable[[], bool]:
    """The function that tells whether torch.compile is tracing; False without torch."""
    return _never if _torch_operations is None else _torch_operations.is_dynamo_compiling


def _never() -> bool:
    return False
