"""The implementation that runs, its SIMD target, and its number of threads.

Environment variables, read when the package is imported:

``POSENC_BACKEND``   "native" or "reference" (default: native if it was built)
``POSENC_ISA``       a SIMD target by name, e.g. AVX2 (default: the best that the processor has)
``OMP_NUM_THREADS``  threads of the NumPy functions (default: the processors of this process)
"""

from __future__ import annotations

import importlib
import os
import warnings
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from posenc_native.core.calls.tables import Tables

if TYPE_CHECKING:
    from pathlib import Path

# The native module, or None and the reason why it is missing.
native: ModuleType | None
try:
    native = importlib.import_module("posenc_native._core")
    native.use_tables(Tables)
    missing = ""
except ImportError as error:  # not built, or built for another Python
    native = None
    missing = str(error)

# The module whose functions run: native or reference; the latter is loaded when it is chosen. Both
# have the same functions.
implementation: ModuleType


class ClosedDoor:
    """A fast path (`door`) that has every function and takes no call."""

    def __getattr__(self, name: str) -> Any:
        return _not_mine


def _not_mine(*arguments: Any) -> Any:
    return NotImplemented


# The fast path that public functions try first (csrc/bindings/numpy/door.h). It takes plain arrays
# and plain tensors, and returns NotImplemented for other calls. Closed unless native code
# runs.
door: Any = ClosedDoor()


def set_backend(name: str) -> None:
    """Choose the implementation: "native" (C++) or "reference" (plain float64 NumPy).

    With "reference", torch tensors are computed by a composition of torch operations.

    Raises:
        ValueError: the name is unknown.
        RuntimeError: the name is "native", but the native module is missing.

    Example:
        >>> import posenc_native as pn
        >>> pn.set_backend("reference")
        >>> pn.set_backend("native")
    """
    if name not in ("native", "reference"):
        raise ValueError(f"set_backend: name: expected 'native' or 'reference', got {name!r}")
    if name == "reference":
        use(importlib.import_module(".plain.arrays", __package__))
    elif native is not None:
        use(native)
    else:
        raise RuntimeError(f"set_backend: the native module is not available: {missing}")


def use(module: ModuleType) -> None:
    """Use the functions of a module, and its fast path (`door`), if any."""
    global door, implementation
    implementation, door = module, getattr(module, "door", ClosedDoor())


def set_num_threads(n: int) -> None:
    """Set the number of threads that a large call on NumPy arrays may use.

    Calls on torch tensors use torch's threads (`torch.set_num_threads`).

    Args:
        n: number of threads, at least 1.

    Raises:
        TypeError: n is not an int.
        ValueError: n is below 1.

    Example:
        >>> import posenc_native as pn
        >>> pn.set_num_threads(2)
        >>> pn.get_num_threads()
        2
    """
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)):
        raise TypeError(f"set_num_threads: n: expected an int, got {type(n).__name__}")
    if not 1 <= n < 2**31:
        raise ValueError(f"set_num_threads: n: expected 1 <= n < 2^31, got {n}")
    if native is not None:
        native.set_num_threads(int(n))


def get_num_threads() -> int:
    """The number of threads that a large call on NumPy arrays may use; 1 without native code.

    Example:
        >>> import posenc_native as pn
        >>> pn.get_num_threads() >= 1
        True
    """
    return int(native.get_num_threads()) if native is not None else 1


def torch_library() -> Path | None:
    """The path of the torch operators, or None if they were not built."""
    from pathlib import Path

    if native is None or native.__file__ is None:
        return None
    path = Path(native.__file__).with_name("_torch_ops.so")
    return path if path.exists() else None


def _default_threads() -> int:
    # OpenMP allows a list with a number per level of nesting.
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if first.isascii() and first.isdigit() and len(first) < 10 and int(first) > 0:
        return int(first)
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every operating system
        return os.cpu_count() or 1


def _configure_from_environment() -> None:
    if native is not None:
        native.set_num_threads(_default_threads())
        isa = os.environ.get("POSENC_ISA", "")
        if not native.set_target(isa):
            known = ", ".join(native.available_targets())
            raise ValueError(f"POSENC_ISA: expected one of {known}, got {isa!r}")
    chosen = os.environ.get("POSENC_BACKEND")
    if native is None and not chosen:
        warnings.warn(
            f"posenc_native: its native module is not available ({missing}), so everything is "
            "computed in plain NumPy, many times slower. `pip install .` in a copy of its sources "
            "builds it; such a copy as the current directory hides an installed package. To do "
            "without it deliberately, set POSENC_BACKEND=reference in the environment.",
            RuntimeWarning,
            stacklevel=2,
        )
    set_backend(chosen or ("native" if native is not None else "reference"))


_configure_from_environment()
