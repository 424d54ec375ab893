"""Which implementation runs, on which SIMD target, with how many threads; and what was built.

Environment, read when the package is imported:

``POSENC_BACKEND``   "native" or "reference" (default: native where it was built)
``POSENC_ISA``       a SIMD target by name, e.g. AVX2 (default: the best that the processor has)
``OMP_NUM_THREADS``  threads of the NumPy functions (default: the processors of this process)
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from . import arguments, reference

if TYPE_CHECKING:
    from pathlib import Path

native: ModuleType | None
try:
    native = importlib.import_module("._core", __package__)
    _missing = ""
except ImportError as error:  # not built, or built for another Python
    native = None
    _missing = str(error)

# Packages that parts of this one use where they are there, beside torch.
_OPTIONAL = ("transformers", "matplotlib", "ml_dtypes", "rich", "rich-argparse", "safetensors")

# The module whose functions run: native or reference. Both have the same ones.
implementation: ModuleType = reference
_torch_operations: ModuleType | None = None


def set_backend(name: str) -> None:
    """Choose what computes: "native" (C++) or "reference" (plain float64 NumPy).

    With "reference", torch tensors are computed by a composition of torch operations.

    Raises:
        ValueError: unknown name.
        RuntimeError: "native", but the native module is not there.

    Example:
        >>> import posenc_native as pn
        >>> pn.set_backend("reference")
        >>> pn.set_backend("native")
    """
    global implementation
    if name not in ("native", "reference"):
        raise ValueError(f"set_backend: name: expected 'native' or 'reference', got {name!r}")
    if name == "reference":
        implementation = reference
    elif native is not None:
        implementation = native
    else:
        raise RuntimeError(f"set_backend: the native module is not available: {_missing}")


def torch_operations() -> ModuleType:
    """The module of operations on tensors, torch_ops.

    Imported here and not at the top, because it imports torch.
    """
    global _torch_operations
    if _torch_operations is None:
        _torch_operations = importlib.import_module(".torch_ops", __package__)
    return _torch_operations


def operations_on(value: object) -> ModuleType | None:
    """`torch_operations` if the value is a tensor, else None."""
    if _torch_operations is None:
        return torch_operations() if arguments.is_tensor(value) else None
    return _torch_operations if isinstance(value, _torch_operations.Tensor) else None


def set_num_threads(n: int) -> None:
    """Set how many threads a large call on NumPy arrays may use.

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
    """How many threads a large call on NumPy arrays may use; 1 without the native module.

    Example:
        >>> import posenc_native as pn
        >>> pn.get_num_threads() >= 1
        True
    """
    return int(native.get_num_threads()) if native is not None else 1


def torch_library() -> Path | None:
    """Where the torch operators are, or None if they were not built."""
    from pathlib import Path

    if native is None or native.__file__ is None:
        return None
    path = Path(native.__file__).with_name("_torch_ops.so")
    return path if path.exists() else None


def configuration() -> dict[str, str]:
    """What `show_config` shows, as text by name."""
    import platform

    uses_native = implementation is native
    targets: list[str] = native.available_targets() if native is not None else []
    return {
        "posenc_native": _version("posenc-native"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "numpy": np.__version__,
        "backend": "native" if uses_native else "reference",
        "native module": "built" if native is not None else f"not available: {_missing}",
        "SIMD targets": ", ".join(targets) or "none",
        "SIMD target in use": native.current_target() if native is not None else "none",
        "threads (NumPy)": str(get_num_threads()),
        "huge pages": _huge_pages(),
        "torch": _version("torch"),
        "torch operators": (
            "built for the stable ABI of torch >= 2.10"
            if torch_library() is not None
            else "not built: tensors are computed by compositions of torch operations"
        ),
        **_cuda_configuration(),
        **{name: _version(name) for name in _OPTIONAL},
    }


def _huge_pages() -> str:
    """How large results get their memory, csrc/bindings/huge_pages.h: what Linux says of it."""
    from pathlib import Path

    try:
        modes = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
    except OSError:
        return "left to the system"
    mode = modes.partition("[")[2].partition("]")[0]
    return {
        "madvise": "asked for, for results of 4 MiB and more",
        "always": "given by the system",
        "never": "switched off in the system (transparent_hugepage)",
    }.get(mode, "left to the system")


def _cuda_configuration() -> dict[str, str]:
    if torch_library() is None:
        return {"CUDA kernels": "not built"}
    try:
        torch_operations()
    except (ImportError, OSError) as error:  # no torch here, or one that is too old
        return {"CUDA kernels": f"not in use: {error}"}
    from . import torch_cuda

    return torch_cuda.configuration()


def show_config() -> None:
    """Print the version, what was built and what is in use.

    Example:
        >>> import posenc_native as pn
        >>> pn.show_config()  # doctest: +ELLIPSIS
        posenc_native...
    """
    entries = configuration()
    width = max(map(len, entries))
    print("\n".join(f"{name:{width}}  {value}" for name, value in entries.items()))  # noqa: T201


def _version(distribution: str) -> str:
    from importlib import metadata  # brings half of the standard library along

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"


def _default_threads() -> int:
    # OpenMP allows a list, one number for each level of nesting.
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if first.isdigit() and int(first) > 0:
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
    default = "native" if native is not None else "reference"
    set_backend(os.environ.get("POSENC_BACKEND") or default)


_configure_from_environment()
