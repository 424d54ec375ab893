"""Whether the CUDA kernels can run on a device, and the warning if they cannot.

The kernels include their own CUDA runtime: they need a driver with its major version or newer, and
a GPU with an architecture that they were compiled for. Elsewhere tensors are computed by
compositions of torch operations, after one warning.
"""

from __future__ import annotations

import warnings

import torch

from posenc_native.engines import backend

_ops = torch.ops.posenc_native

_usable: dict[int, bool] = {}


def problem(device: int) -> str:
    """The reason why the kernels cannot run on this CUDA device; "" if they can.

    Creates the device's context, if there is none yet.
    """
    if not _ops.cuda_architectures():
        return "they were not built (build with POSENC_CUDA=ON, which needs nvcc)"
    if torch.version.cuda is None:
        return "this build of torch has no CUDA"
    runtime, driver = _ops.cuda_versions()
    if driver // 1000 < runtime // 1000:
        return (
            f"the kernels need a driver for CUDA {version_text(runtime)}, "
            f"this one supports {version_text(driver)}"
        )
    failure: str = _ops.cuda_failure(device)
    if not failure:
        return ""
    major, minor = torch.cuda.get_device_capability(device)
    return (
        f"{failure} (compute capability {major}.{minor}; "
        f"the kernels were compiled for {_ops.cuda_architectures()})"
    )


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def usable(device: int) -> bool:
    """Whether the kernels can run on a CUDA device; a RuntimeWarning the first time they cannot."""
    known = _usable.get(device)
    if known is None:
        text = problem(device)
        known = _usable[device] = not text
        if known and backend.native is not None:
            backend.native.use_gpu(device)  # the fast path takes its tensors from now on
        if text:
            warnings.warn(
                f"posenc_native: the CUDA kernels cannot run on cuda:{device}: {text}. Tensors "
                "there are computed by compositions of torch operations, many times slower.",
                RuntimeWarning,
                stacklevel=2,
            )
    return known


def version_text(version: int) -> str:
    """CUDA's version number in its usual form."""
    return f"{version // 1000}.{version % 1000 // 10}" if version else "none"


def configuration() -> dict[str, str]:
    """The kernels, the driver and the devices, for `show_config`. Does not initialize CUDA."""
    architectures = _ops.cuda_architectures()
    if not architectures:
        return {
            "CUDA kernels": "not built: CUDA tensors are computed by compositions of operations"
        }
    runtime, driver = _ops.cuda_versions()
    entries = {
        "CUDA kernels": f"built for {architectures} with CUDA {version_text(runtime)}",
        "CUDA driver": f"supports {version_text(driver)}" if driver else "none",
    }
    if not torch.cuda.is_initialized():
        return entries
    for device in range(torch.cuda.device_count()):
        state = problem(device) or "in use"
        entries[f"cuda:{device}"] = f"{torch.cuda.get_device_name(device)}: {state}"
    return entries
