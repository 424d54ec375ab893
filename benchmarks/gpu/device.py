"""All that these scripts ask of CUDA, in one place; the processor takes it in a dry run.

    python -m benchmarks.gpu.device cuda

prints what the device is as JSON, or exits with why it is none. torch is imported where it is first
needed: the command that starts the steps asks another process, so that it does not hold the GPU.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


class Cuda:
    """A GPU, by way of torch and the CUDA toolkit."""

    kind = "cuda"  # torch's name of it, which is in the names of its tests too

    def description(self) -> dict[str, Any]:
        """Its name and what times depend on; LookupError with the reason where there is none."""
        try:
            import torch
        except ImportError as error:
            raise LookupError(f"{sys.executable} has no torch: {error}") from error
        if not torch.cuda.is_available():
            raise LookupError(f"{sys.executable} has no torch that sees a CUDA device")
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        return {
            "device": properties.name,
            "compute_capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": properties.multi_processor_count,
            "memory_bytes": properties.total_memory,
            "l2_bytes": properties.L2_cache_size,
            "driver": _driver(),
        }

    def problem(self) -> str:
        """Why the package's kernels do not run on it; "" if they do."""
        from posenc_native.engines import backend

        if backend.torch_library() is None:
            return "the torch operators were not built"
        import torch

        from posenc_native.engines.tensors import cuda

        return cuda.problem(torch.cuda.current_device())

    def event(self) -> Any:
        """A point in the device's queue."""
        import torch

        return torch.cuda.Event(enable_timing=True)

    def sleep(self, cycles: int) -> None:
        """Queue so many cycles of doing nothing."""
        import torch

        torch.cuda._sleep(cycles)

    def synchronize(self) -> None:
        import torch

        torch.cuda.synchronize()

    def release_memory(self) -> None:
        import torch

        torch.cuda.empty_cache()

    def sanitizer(self, tool: str) -> list[str] | None:
        """What stands before a program that one of compute-sanitizer's tools is to watch.

        It does not report what the driver refuses torch, and the limit of time is ours: torch takes
        its time before the first call of CUDA. None where it is not installed.
        """
        program = cuda_tool("compute-sanitizer")
        return program and [program, "--tool", tool, "--launch-timeout", "0", "--report-api-errors",
                            "no", "--error-exitcode", "86", "--print-limit", "20"]  # fmt: skip


class StandIn(Cuda):
    """The processor, for dry runs. It has no queue: all is done when it has been asked for."""

    kind = "cpu"

    def description(self) -> dict[str, Any]:
        """The processor, and sizes at which cases are small."""
        return {
            "device": "stand-in", "compute_capability": "none", "multiprocessors": 1,
            "memory_bytes": 1 << 30, "l2_bytes": 1 << 20, "driver": platform.machine(),
        }  # fmt: skip

    def problem(self) -> str:
        """The kernels of the processor stand in for those of CUDA."""
        from posenc_native.engines import backend

        return "" if backend.torch_library() else "the torch operators were not built"

    def event(self) -> Any:
        return _Moment()

    def sleep(self, cycles: int) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def release_memory(self) -> None:
        pass

    def sanitizer(self, tool: str) -> list[str]:
        """The program, and the last line that a tool would print."""
        summary = f"{'RACECHECK' if tool == 'racecheck' else 'ERROR'} SUMMARY: 0 errors"
        return ["sh", "-c", f'"$@"; status=$?; echo "========= {summary}"; exit $status', tool]


class _Moment:
    """An event of a device without a queue."""

    def record(self) -> None:
        self.at = time.perf_counter()

    def query(self) -> bool:
        """False: nothing of what comes after it has been waited for."""
        return False

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: _Moment) -> float:
        """Milliseconds, as torch has it."""
        return (end.at - self.at) * 1e3


def _driver() -> str:
    query = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    try:
        done = subprocess.run(query, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip().partition("\n")[0] or "unknown"


def cuda_tool(name: str) -> str | None:
    """A program of the CUDA toolkit: on the path, or where toolkits are installed."""
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    homes += sorted(map(str, Path("/usr/local").glob("cuda-*")), reverse=True)
    folders = [f"{home}/{folder}" for home in homes if home
               for folder in ("bin", "compute-sanitizer")]  # fmt: skip
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(folders))


def lost(device: Cuda) -> str:
    """What is wrong if the device will do nothing more for this process; "" if it will.

    A kernel that fails (an address that is none, most often) takes the whole context with it.
    """
    try:
        device.synchronize()
    except Exception as error:
        return in_a_line(error)
    return ""


def in_a_line(error: BaseException) -> str:
    """An error's kind and the first line of what it says."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


DEVICES: dict[str, type[Cuda]] = {"cuda": Cuda, "stand-in": StandIn}


if __name__ == "__main__":
    try:
        print(json.dumps(DEVICES[sys.argv[1]]().description()))
    except LookupError as error:
        sys.exit(str(error))
