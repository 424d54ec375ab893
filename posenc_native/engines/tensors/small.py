"""Small calls skip torch's dispatcher: the door (csrc/bindings/numpy/door.h) reads the tensors.

The dispatcher takes longer than a small call does. So for a small call the door does what the
operator would do, with the same bits.

It returns NotImplemented, and the general path calls the operator, if something follows what
operators do on this thread: autograd, forward mode, torch.func, a mode, whatever traces, counts or
profiles operators, or a kernel that torch.library has put in the place of ours. It also does so for
tensors that are not plain ones on the CPU, for storages that have been freed, for writing to
tensors of inference mode outside of it, and for calls that are worth several threads.

What it cannot ask about, and so passes by:

    a kernel over ours that C++ has registered (TORCH_LIBRARY_IMPL), past torch.library
    a dispatch key that somebody excludes on this thread, so that torch would find no kernel

`posenc_native.set_backend("reference")` switches it off along with the operators; nothing switches
it off alone. tests/engines/tensors/test_followers.py has the list of all that can follow torch.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch.autograd import forward_ad

from posenc_native.engines import backend

from .library import LIBRARY

# The public function calls this one and takes half as long again.
increment_version = getattr(torch._C, "_increment_version", torch.autograd.graph.increment_version)

is_dynamo_compiling = torch.compiler.is_dynamo_compiling

# What the module asks torch before every call, in C++: in Python each answer would take longer than
# all of these do. The order is that of Questions in csrc/bindings/numpy/tensors.h.
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
# Likewise, where this torch has them under these names; else Python answers.
_QUICKER = (
    "_ZN2at6native6is_negERKNS_6TensorE",  # bool at::native::is_neg(const at::Tensor&)
    # void torch::autograd::impl::bump_version(const at::Tensor&)
    "_ZN5torch8autograd4impl12bump_versionERKN2at6TensorE",
    # PyObject* THPVariable_Wrap(const at::TensorBase&)
    "_Z16THPVariable_WrapRKN2at10TensorBaseE",
)
# Dispatch keys that are included on a thread while somebody follows operators there.
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
# Dispatch keys at which a call on plain tensors on the CPU may stop. A fallback for all operators
# need not be asked for: torch has its own there, and takes no second one.
_STOPS = ("CPU", "AutogradCPU", "Autograd", "ADInplaceOrView", "BackendSelect", "AutocastCPU")
# What calls at the door stand for, in the order of Operation in csrc/bindings/numpy/tensors.h.
_OPERATORS = (
    "rotary", "rotary_qk", "norm_rotary_qk", "rotary_append",
    "rotary_from_tables", "rotary_qk_from_tables", "norm_rotary_qk_from_tables",
    "rotary_append_from_tables", "rotary_tables", "sinusoidal", "add_sinusoidal", "toeplitz_bias",
    "add_toeplitz_bias", "diagonal_sums", "relative_gather", "relative_scatter",
    "rotary_by_steps", "rotary_qk_by_steps",
)  # fmt: skip


def _kernels(name: str) -> tuple[tuple[str, ...], ...]:
    """The names that kernels over those of an operator would have: new, in place, to `out`."""
    return tuple(
        tuple(f"posenc_native/{name}{form}/{stop}" for stop in _STOPS) for form in ("", "_", "_out")
    )


def _address(libraries: ctypes.CDLL, name: str) -> int:
    return ctypes.cast(libraries[name], ctypes.c_void_p).value or 0


def _reads_tensors(module: Any) -> bool:
    """Let the NumPy module read tensors; False if this torch is not one that it knows."""
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
    kernels = tuple(_kernels(name) for name in _OPERATORS)
    return bool(
        module.use_tensors(
            torch.empty(0), torch.nn.Parameter, torch.empty_like, torch.float32,
            increment_version, tuple(addresses), tuple(keys), vars(forward_ad), registered, kernels,
        )
    )  # fmt: skip


def _open_door(native: Any) -> bool:
    """Let the door take tensors, and torch.compile trace past it; False where it takes none."""
    if LIBRARY is None or native is None or not _reads_tensors(native):
        return False
    for name, function in vars(native.door).items():
        if callable(function) and not name.startswith("__"):
            _trace_past(function)
    return True


def _trace_past(function: Any) -> None:
    # A function of its own for each: torch keeps them by identity.
    def not_mine(*arguments: Any) -> Any:
        return NotImplemented

    torch.compiler.substitute_in_graph(function, skip_signature_check=True)(not_mine)


# Whether it takes tensors: for that torch must have the exchange of DLPack 1.3.
DOOR_IS_OPEN = _open_door(backend.native)
