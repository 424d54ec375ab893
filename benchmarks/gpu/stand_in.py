"""A device for dry runs: the processor computes, and a queue is kept as a GPU would keep one.

As a program it stands in for compute-sanitizer: it takes the options that checks.py gives, runs the
command and ends with a summary, also when it is interrupted.
"""

from __future__ import annotations

import argparse
import platform
import signal
import subprocess
import sys
import time
from typing import Any


class StandIn:
    """The queue is a time at which it will be empty: what is recorded then has that time.

    Work that the host does between two calls of this class counts as work of the device, queued
    when the host has done it. Sleep is of the device alone.
    """

    kind = "cpu"
    cycles_per_second = 1e9

    def __init__(self) -> None:
        self._seen = self._empty_at = time.perf_counter()

    def description(self) -> dict[str, Any]:
        """The processor, and sizes at which cases are small."""
        return {
            "device": "stand-in",
            "compute_capability": "none",
            "multiprocessors": 1,
            "memory_bytes": 1 << 30,
            "l2_bytes": 1 << 20,
            "driver": platform.machine(),
        }

    def problem(self) -> str:
        """The kernels of the processor stand in for those of CUDA."""
        from posenc_native.engines import backend

        return "" if backend.torch_library() else "the torch operators were not built"

    def event(self) -> _Event:
        """One that has not been recorded."""
        return _Event(self)

    def sleep(self, cycles: int) -> None:
        """Put cycles into the queue."""
        self._empty_at = self.queue_ends() + cycles / self.cycles_per_second

    def queue_ends(self) -> float:
        """When all that has been queued by now will be done."""
        now = time.perf_counter()
        self._empty_at = max(self._empty_at, self._seen) + (now - self._seen)
        self._seen = now
        return self._empty_at

    def synchronize(self) -> None:
        """Wait until the queue is empty; the wait is not work."""
        moment = self.queue_ends()
        while time.perf_counter() < moment:
            time.sleep(0)
        self._seen = self._empty_at = time.perf_counter()

    def release_memory(self) -> None:
        """There is none of its own."""

    def sanitizer(self) -> list[str] | None:
        return [sys.executable, "-m", "benchmarks.gpu.stand_in"]


class _Event:
    def __init__(self, device: StandIn) -> None:
        self._device = device
        self.at = 0.0

    def record(self) -> None:
        self.at = self._device.queue_ends()

    def query(self) -> bool:
        return time.perf_counter() >= self.at

    def synchronize(self) -> None:
        self._device.synchronize()

    def elapsed_time(self, end: _Event) -> float:
        """Milliseconds, as torch has it."""
        return (end.at - self.at) * 1e3


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.stand_in", description=__doc__)
    tools = ("memcheck", "racecheck", "initcheck", "synccheck")
    parser.add_argument("--tool", choices=tools, required=True)
    parser.add_argument("--launch-timeout", type=int)
    parser.add_argument("--report-api-errors", choices=("no",))
    parser.add_argument("--error-exitcode", type=int)
    parser.add_argument("--print-limit", type=int)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    # The interrupt reaches the command too, which ends; the summary is still to come.
    signal.signal(signal.SIGINT, lambda number, frame: None)
    print("========= COMPUTE-SANITIZER", flush=True)
    status = subprocess.run(options.command, check=False).returncode
    if options.tool == "racecheck":
        print("========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)")
    else:
        print("========= ERROR SUMMARY: 0 errors")
    sys.exit(status)


if __name__ == "__main__":
    main()
