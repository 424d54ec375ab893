"""What is asked of a GPU, by way of torch; the processor takes its place in a dry run.

    python -m benchmarks.gpu.device cuda

prints what the device is as JSON, or exits with why it is none. Only what runs on the device
imports this: the command that starts the steps asks another process, and does not hold the GPU.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch


class Captured:
    """A call that is captured in a CUDA graph the first time and replayed after that."""

    def __init__(self, call: Callable[[Any], object]) -> None:
        self._call = call
        self._graphs: dict[int, Any] = {}

    def __call__(self, b: Any) -> None:
        if not b.memory.is_cuda:  # where rows are tried without a GPU
            self._call(b)
            return
        if b.work not in self._graphs:
            self._call(b)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self._call(b)
            self._graphs[b.work] = graph
        self._graphs[b.work].replay()


class Cuda:
    """A GPU."""

    kind = "cuda"  # torch's name of it, which is in the names of its tests too

    def description(self) -> dict[str, Any]:
        """Its name and what times depend on; LookupError with the reason where there is none."""
        if not torch.cuda.is_available():
            raise LookupError("torch sees no CUDA device")
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
        if self.kind != "cuda":
            return ""  # kernels of the processor stand in for those of CUDA
        from posenc_native.engines.torch import cuda

        return cuda.problem(torch.cuda.current_device())

    def event(self) -> Any:
        """A point in the device's queue."""
        return torch.cuda.Event(enable_timing=True)

    def sleep(self, cycles: int) -> None:
        """Queue so many cycles of doing nothing."""
        torch.cuda._sleep(cycles)

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def release_memory(self) -> None:
        torch.cuda.empty_cache()


class StandIn(Cuda):
    """The processor, for dry runs. It has no queue: all is done when it has been asked for."""

    kind = "cpu"

    def description(self) -> dict[str, Any]:
        """The processor, and sizes at which cases are small."""
        return {
            "device": "stand-in", "compute_capability": "none", "multiprocessors": 1,
            "memory_bytes": 1 << 30, "l2_bytes": 1 << 20, "driver": platform.machine(),
        }  # fmt: skip

    def event(self) -> Any:
        return _Moment()

    def sleep(self, cycles: int) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def release_memory(self) -> None:
        pass


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


DEVICES: dict[str, type[Cuda]] = {device.kind: device for device in (Cuda, StandIn)}


if __name__ == "__main__":
    try:
        print(json.dumps(DEVICES[sys.argv[1]]().description()))
    except LookupError as error:
        sys.exit(str(error))
