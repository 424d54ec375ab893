"""Calls on plain tensors skip torch's dispatcher: the fast path (`door`) reads the tensors.

The dispatcher, and the Python before it, take longer than a small call and as long as a GPU needs
for a large one. The fast path (csrc/bindings/numpy/door.h) therefore does the work of the operator,
with the same bits: small calls by itself, large ones with torch's threads, and those of a GPU with
its kernels (csrc/bindings/runners.h). The general path takes the first call on a GPU, to find out
whether the kernels run there.

It returns NotImplemented, and the general path calls the operator, if something on this thread
tracks operators: autograd, forward mode, torch.func, a mode, anything that traces, counts or
profiles operators, or a kernel with which torch.library has replaced ours. It also does so for
tensors that are not plain, or are on several devices, for freed storages, for writes to inference
tensors outside inference mode, and for arrays and lists beside tensors of a GPU.

It cannot detect, and therefore bypasses:

    a kernel that C++ has registered over ours (TORCH_LIBRARY_IMPL), without torch.library
    a dispatch key that is excluded on this thread, so that torch would find no kernel

`posenc_native.set_backend("reference")` disables it together with the operators; it cannot be
disabled alone. tests/engines/torch/test_followers.py lists everything that can track torch.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch.autograd import forward_ad

from posenc_native.engines import backend
from posenc_native.engines.verbs import OPERATORS

from .library import LIBRARY, ops

# The public function calls this function and takes 1.5 times as long.
increment_version = getattr(torch._C, "_increment_version", torch.autograd.graph.increment_version)

is_dynamo_compiling = torch.compiler.is_dynamo_compiling

# Functions of torch that the module calls before every call, in C++: a single call in Python would
# take longer than all of these. The order is that of Questions in csrc/bindings/numpy/tensors.h.
_QUESTIONS = (
    "_ZN2at12hasCallbacksEv",  # bool at::hasCallbacks(): profilers, ExecutionTraceObserver
    "_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv",  # int64_t ...::stack_len()
    # bool c10::impl::tls_is_dispatch_key_included(c10::DispatchKey)
    "_ZN3c104impl28tls_is_dispatch_key_includedENS_11DispatchKeyE",
    "_ZN3c1013InferenceMode10is_enabledEv",  # bool c10::InferenceMode::is_enabled()
    "_ZN3c108GradMode10is_enabledEv",  # bool c10::GradMode::is_enabled()
    "aoti_torch_get_storage_size",  # of the stable ABI
    "aoti_torch_get_storage_offset",
    "aoti_torch_empty_strided",
    "aoti_torch_delete_tensor_object",
)
# The same, if this torch has them under these names; otherwise Python functions are used.
_QUICKER = (
    "_ZN2at6native6is_negERKNS_6TensorE",  # bool at::native::is_neg(const at::Tensor&)
    # void torch::autograd::impl::bump_version(const at::Tensor&)
    "_ZN5torch8autograd4impl12bump_versionERKN2at6TensorE",
    # PyObject* THPVariable_Wrap(const at::TensorBase&)
    "_Z16THPVariable_WrapRKN2at10TensorBaseE",
)
# Dispatch keys that are included on a thread while something tracks operators there.
_FOLLOWERS = (
    "Python",  # TorchDispatchMode
    "PreDispatch",  # modes with pre_dispatch=True
    "PythonDispatcher",
    "FuncTorchDynamicLayerFrontMode",  # torch.func
    "Functionalize",
    "Tracer",  # torch.jit.trace
    "VmapMode",
    "FuncTorchVmapMode",
    "TESTING_ONLY_GenericMode",
)


def _stops(device: str) -> tuple[str, ...]:
    """Dispatch keys at which a call on plain tensors may stop.

    Fallbacks for all operators need no check: torch has its own there, and accepts no second.
    """
    of_device = device, f"Autograd{device}", f"Autocast{device}"
    return (*of_device, "Autograd", "ADInplaceOrView", "BackendSelect")


def _kernels(device: str) -> tuple[tuple[tuple[str, ...], ...], ...]:
    """The names of kernels that could replace those of the operators: new, in place, to `out`."""
    return tuple(
        tuple(
            tuple(f"posenc_native/{name}{form}/{stop}" for stop in _stops(device))
            for form in ("", "_", "_out")
        )
        for name in OPERATORS
    )


def _address(libraries: ctypes.CDLL, name: str) -> int:
    return ctypes.cast(libraries[name], ctypes.c_void_p).value or 0


def _reads_tensors(module: Any) -> bool:
    """Let the NumPy module read tensors; False if it does not know this version of torch."""
    try:
        core: Any = torch._C
        libraries = ctypes.CDLL(core.__file__)
        addresses = [_address(libraries, name) for name in _QUESTIONS]
        keys = [int(core._parse_dispatch_key(name)) for name in _FOLLOWERS]
        registered = torch.library._impls
    except (OSError, AttributeError, RuntimeError):
        return False
    for name in _QUICKER:
        try:
            addresses.append(_address(libraries, name))
        except AttributeError:
            addresses.append(0)
    return bool(
        module.use_tensors(
            torch.empty(0), torch.nn.Parameter, torch.empty_like, torch.float32,
            increment_version, tuple(addresses), tuple(keys), vars(forward_ad), registered,
            _kernels("CPU"), _kernels("CUDA"), ops.runners(),
        )
    )  # fmt: skip


def _open_door(native: Any) -> bool:
    """Let the fast path take tensors, and torch.compile skip it; False if it takes no tensors."""
    if LIBRARY is None or native is None or not _reads_tensors(native):
        return False
    for name, function in vars(native.door).items():
        if callable(function) and not name.startswith("__"):
            _trace_past(function)
    return True


def _trace_past(function: Any) -> None:
    # A separate function per fast path, since torch stores them by identity.
    def not_mine(*arguments: Any) -> Any:
        return NotImplemented

    torch.compiler.substitute_in_graph(function, skip_signature_check=True)(not_mine)


# Whether the fast path takes tensors, for which torch must have the exchange API of DLPack 1.3.
IS_OPEN = _open_door(backend.native)
