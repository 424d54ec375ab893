"""The installed build, its optional packages, and the features in use."""

from __future__ import annotations

import numpy as np

from . import backend
from .backend import get_num_threads, native, torch_library
from .late import torch_operations

# Optional packages, besides torch.
_OPTIONAL = ("transformers", "matplotlib", "ml_dtypes", "rich", "rich-argparse", "safetensors",
             "gguf", "pyyaml", "shtab")  # fmt: skip


Value = str | int | list[str]


def configuration(*, ask_torch: bool = True) -> dict[str, Value]:
    """The entries of `show_config` by name: numbers as numbers, lists as lists.

    Without `ask_torch`, torch is not imported, which takes seconds. Entries that need it say so.
    """
    import platform

    uses_native = backend.implementation is native
    targets: list[str] = native.available_targets() if native is not None else []
    return {
        "posenc_native": _version("posenc-native"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "numpy": np.__version__,
        "backend": "native" if uses_native else "reference",
        "native module": "built" if native is not None else f"not available: {backend.missing}",
        "SIMD targets": targets,
        "SIMD target in use": native.current_target() if native is not None else "none",
        "threads (NumPy)": get_num_threads(),
        "huge pages": _huge_pages(),
        "torch": _version("torch"),
        "torch operators": (
            "built for the stable ABI of torch >= 2.10"
            if torch_library() is not None
            else "not built: tensors are computed by compositions of torch operations"
        ),
        **_operators(ask_torch),
        **{name: _version(name) for name in _OPTIONAL},
    }


def _huge_pages() -> str:
    """How large results get their memory (csrc/bindings/huge_pages.h), set by Linux."""
    from pathlib import Path

    try:
        modes = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
    except OSError:
        return "left to the system"
    mode = modes.partition("[")[2].partition("]")[0]
    return {
        "madvise": "requested for results of 4 MiB and more",
        "always": "provided by the system",
        "never": "disabled in the system (transparent_hugepage)",
    }.get(mode, "left to the system")


def _operators(ask_torch: bool) -> dict[str, str]:
    if torch_library() is None:
        return {"CUDA kernels": "not built"}
    if not ask_torch:
        unknown = "unknown (torch not imported; use --check)"
        return {"calls (torch)": unknown, "CUDA kernels": unknown}
    try:
        torch_operations()
    except (ImportError, OSError) as error:  # torch is missing or too old
        return {"CUDA kernels": f"not in use: {error}"}

    from .torch import cuda, door

    slowly = "through torch's dispatcher: this version of torch is unknown"
    said = "read directly" if door.IS_OPEN else slowly
    return {"calls (torch)": said, **cuda.configuration()}


def show_config() -> None:
    """Print the version, the features of this build and those in use.

    Example:
        >>> import posenc_native as pn
        >>> pn.show_config()  # doctest: +ELLIPSIS
        posenc_native...
    """
    entries = configuration_texts()
    width = max(map(len, entries))
    lines = (f"{name:{width}}  {text}" for name, text in entries.items())
    print("\n".join(lines))  # noqa: T201


def configuration_texts() -> dict[str, str]:
    """The configuration with every value as one line of text."""
    return {name: text_of(value) for name, value in configuration().items()}


def text_of(value: Value) -> str:
    """A value as one line of text."""
    return (", ".join(value) or "none") if isinstance(value, list) else str(value)


def _version(distribution: str) -> str:
    from importlib import metadata  # imports half of the standard library

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"
