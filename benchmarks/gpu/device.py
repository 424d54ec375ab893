"""All that these scripts ask of CUDA, in one place; stand_in.py takes it where there is no GPU.

    python -m benchmarks.gpu.device cuda

prints what the device is as JSON, or exits with why it is none. torch is imported where it is first
needed: the command that starts the steps asks another process, so that it does not hold the GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Protocol


class Event(Protocol):
    """A point in the device's queue, as torch.cuda.Event has it."""

    def record(self) -> None: ...
    def query(self) -> bool: ...
    def synchronize(self) -> None: ...
    def elapsed_time(self, end: Any) -> float: ...


class Device(Protocol):
    """What is timed and checked."""

    kind: str  # torch's name of it, which is in the names of its tests too

    def description(self) -> dict[str, Any]:
        """Its name and what times depend on; LookupError with the reason where there is none."""

    def problem(self) -> str:
        """Why the package's kernels do not run on it; "" if they do."""

    def event(self) -> Event: ...

    def sleep(self, cycles: int) -> None:
        """Queue so many cycles of doing nothing."""

    def synchronize(self) -> None: ...

    def release_memory(self) -> None: ...

    def sanitizer(self) -> list[str] | None:
        """The command compute-sanitizer; None where it is not installed."""


class Cuda:
    """A GPU, by way of torch and the CUDA toolkit."""

    kind = "cuda"

    def description(self) -> dict[str, Any]:
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
        from posenc_native.engines import backend

        if backend.torch_library() is None:
            return "the torch operators were not built"
        import torch

        from posenc_native.engines.tensors import cuda

        return cuda.problem(torch.cuda.current_device())

    def event(self) -> Event:
        import torch

        return torch.cuda.Event(enable_timing=True)

    def sleep(self, cycles: int) -> None:
        import torch

        torch.cuda._sleep(cycles)

    def synchronize(self) -> None:
        import torch

        torch.cuda.synchronize()

    def release_memory(self) -> None:
        import torch

        torch.cuda.empty_cache()

    def sanitizer(self) -> list[str] | None:
        program = cuda_tool("compute-sanitizer")
        return None if program is None else [program]


def _driver() -> str:
    query = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    try:
        done = subprocess.run(query, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip().partition("\n")[0] or "unknown"


def cuda_tool(name: str) -> str | None:
    """A program of the CUDA toolkit: on the path, or where toolkits are installed."""
    if found := shutil.which(name):
        return found
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    homes += sorted(map(str, Path("/usr/local").glob("cuda-*")), reverse=True)
    for home in filter(None, homes):
        for path in (Path(home, "bin", name), Path(home, "compute-sanitizer", name)):
            if os.access(path, os.X_OK):
                return str(path)
    return None


def lost(device: Device) -> str:
    """What is wrong if the device will do nothing more for this process; "" if it will.

    A kernel that fails (an address that is none, most often) takes the whole context with it.
    """
    try:
        device.synchronize()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    return ""


NAMES = ("cuda", "stand-in")


def named(name: str) -> Device:
    """The device of one of NAMES."""
    if name == "stand-in":
        from benchmarks.gpu.stand_in import StandIn

        return StandIn()
    return Cuda()


def add_argument(parser: argparse.ArgumentParser) -> None:
    """--device, for a program that a step runs."""
    parser.add_argument("--device", choices=NAMES, default="cuda", help="(default: %(default)s)")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.device")
    parser.add_argument("name", choices=NAMES)
    try:
        print(json.dumps(named(parser.parse_args(arguments).name).description()))
    except LookupError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
