"""The native operators, ``torch.ops.posenc_native.*``: loading, calling, supported inputs.

They have only a schema and kernels for CPU and CUDA: fakes.py and batching.py let torch trace and
batch them, and gradients/ differentiates them. A call has the overhead of autograd only if a
gradient is needed: registered with the dispatcher, autograd would add several microseconds to every
call.

Errors of operators cross torch as RuntimeErrors. Their text begins with the name of the original
exception, which `call` raises.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor
from torch.autograd import forward_ad

from posenc_native.core.calls.errors import error_from_text, error_of, fault_of
from posenc_native.engines import backend
from posenc_native.engines.following import exports_to_onnx, functorch_active
from posenc_native.engines.plain import arrays

from . import cuda

# Determined once, here: torch.compile cannot trace an access to the file system.
LIBRARY = backend.torch_library()
if LIBRARY is not None:
    torch.ops.load_library(str(LIBRARY))
ops = torch.ops.posenc_native


class Forms(NamedTuple):
    """The overloads of an operator; None for a form that it does not have."""

    new: Any
    in_place: Any
    to_out: Any
    backward: Any


def forms_of(operator: str) -> Forms:
    """The operator with this name, looked up once."""
    names = (f"{operator}{form}" for form in ("", "_", "_out", "_backward"))
    return Forms(*(getattr(getattr(ops, name, None), "default", None) for name in names))


def relative_operators_take(x: Tensor, *others: Tensor | None) -> bool:
    """As `operators_take`, but False under torch.func and forward mode."""
    return not functorch_active() and forward_ad._current_level < 0 and operators_take(x, *others)


_warned_of_missing_operators = False


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _warn_of_missing_operators() -> None:
    """Warn once that calls on tensors are slow, and how to make them fast."""
    global _warned_of_missing_operators
    if _warned_of_missing_operators:
        return
    _warned_of_missing_operators = True
    warnings.warn(
        "posenc_native was built without its operators for torch: tensors are computed by torch "
        "operations, several times slower. In a copy of its sources, `pip install "
        "scikit-build-core pybind11` and then `pip install --no-build-isolation .` build them for "
        f"this torch ({torch.__version__}; 2.10 or newer). To do without them deliberately, call "
        'posenc_native.set_backend("reference").',
        RuntimeWarning,
        stacklevel=2,
    )


def operators_in_use() -> bool:
    """Whether the operators are built and enabled."""
    if backend.implementation is arrays:
        return False
    if LIBRARY is None:
        _warn_of_missing_operators()
        return False
    if functorch_active():
        # A compiled torch.func.grad ignores the backward of Functions (torch 2.13); there plain
        # operations are correct.
        return not torch.compiler.is_compiling()
    return not (torch.compiler.is_exporting() and exports_to_onnx())


def operators_take(x: Tensor, *others: Tensor | None) -> bool:
    """Whether the operators take these tensors: all on the CPU, or all on CUDA."""
    if not operators_in_use():
        return False
    if x.is_cpu:
        for t in others:  # a loop: all() of a generator takes three times as long
            if t is not None and not t.is_cpu:
                return False
        return True
    return x.is_cuda and all(t is None or t.is_cuda for t in others) and cuda.usable(x.get_device())


def call(operator: Any, *args: Any, **kwargs: Any) -> Any:
    """The operator's result; its errors are raised as their original exceptions."""
    try:
        return operator(*args, **kwargs)
    except RuntimeError as error:
        raise_ours(error)


def call_for(function: str, operator: Any, *args: Any) -> Any:
    """As `call`, for a function with another name than the operator, which errors then show."""
    try:
        return call(operator, *args)
    except (ValueError, TypeError) as error:
        fault = fault_of(error)
        if fault is None:
            raise
        raise error_of(type(error), fault._replace(function=function)) from None


def raise_ours(error: RuntimeError) -> NoReturn:
    """Raise the original exception of an operator's RuntimeError, or the error itself."""
    text = str(error)
    for kind in (ValueError, TypeError):
        if text.startswith(f"{kind.__name__}: "):
            raise error_from_text(kind, text.removeprefix(f"{kind.__name__}: ")) from None
    # torch's own errors lose their type in the stable ABI; OutOfMemoryError is worth restoring.
    if "empty" in text and "API call failed" in text:
        raise torch.OutOfMemoryError("posenc_native: no memory for the result") from error
    raise error
