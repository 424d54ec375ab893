"""What has to pass: programs under a time limit, and what their output means."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu.install import cuda_tool

PASSED, FAILED, SKIPPED = "passed", "FAILED", "skipped"
_LAST_LINES = 60  # of a program that fails


@dataclass
class Outcome:
    """How a step ended."""

    status: str
    detail: str = ""
    output: str = ""
    seconds: float = 0.0

    def last_lines(self) -> str:
        return "\n".join(self.output.splitlines()[-_LAST_LINES:])


def run(command: Sequence[str], *, cwd: Path, environment: dict[str, str], limit: float) -> Outcome:
    """Run a program; FAILED where its exit status is not 0 or its time is up."""
    began = time.monotonic()
    # A file and no pipe: what the program leaves running cannot keep it open.
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as file:
        process = subprocess.Popen(
            command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=file,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            status = process.wait(limit)
            detail = f"exit status {status}" if status else ""
        except subprocess.TimeoutExpired:
            # With all that it has started: its session is its own.
            os.killpg(process.pid, signal.SIGKILL)
            status, detail = process.wait(), f"stopped after {limit:.0f} s"
        file.seek(0)
        output = file.read()
    return Outcome(FAILED if status else PASSED, detail, output, time.monotonic() - began)


def test_command(device: str, work: Path, quick: bool) -> list[str]:
    """pytest, on the tests that take a device, with this device alone.

    Warnings are not errors there: a torch other than the one tested daily has warnings of its own.
    """
    hf = (f"hf/test_{name}.py" for name in ("patch", "compile", "precision"))
    names = ["engines/tensors", "nn/test_rotary.py", *hf]
    if quick:
        names = ["engines/tensors/test_cuda.py", "nn/test_rotary.py"]
    files = [work / "tests" / name for name in names]
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider",
               "--durations=5", "-W", "default", "-k", device, *map(str, files)]  # fmt: skip
    if not quick and importlib.util.find_spec("xdist"):
        command += ["-n", str(max(1, min(8, (os.cpu_count() or 1) // 2)))]
    return command


def judge_tests(outcome: Outcome) -> Outcome:
    """pytest's own summary as the detail."""
    summary = re.findall(r"^=*\s*((?:\d+ \w+(?:, )?)+) in [\d.]+s", outcome.output, re.M)
    if summary:
        outcome.detail = ", ".join(filter(None, (summary[-1], outcome.detail)))
    return outcome


def sanitizer() -> str | None:
    """compute-sanitizer, where it is installed."""
    return cuda_tool("compute-sanitizer")


def sanitizer_command(program: str, tool: str, small_run: Sequence[str]) -> list[str]:
    """The small run under a tool, which does not report what the driver refuses torch."""
    # The limit of time is ours: torch takes its time before the first call of CUDA.
    return [program, "--tool", tool, "--launch-timeout", "0", "--report-api-errors", "no",
            "--error-exitcode", "86", "--print-limit", "20", *small_run]  # fmt: skip


# What the tool says where a driver, a container or a device gives it no access.
_REFUSED = re.compile(
    r"^=+ .*(not supported|unsupported|insufficient|permission|unable to|internal sanitizer error|"
    r"failed to initialize|terminated before first instrumented).*$",
    re.I | re.M,
)
_SUMMARY = re.compile(r"^=+ ((?:ERROR|RACECHECK) SUMMARY: .*)$", re.M)


def judge_sanitizer(outcome: Outcome) -> Outcome:
    """Failed with the tool's summary, or skipped where the tool has not looked at anything."""
    summaries = _SUMMARY.findall(outcome.output)
    refusal = _REFUSED.search(outcome.output)
    if refusal and outcome.status == FAILED and not (summaries and _found(summaries[-1])):
        outcome.status, outcome.detail = SKIPPED, refusal.group().strip("= ")
    elif summaries:
        outcome.detail = ", ".join(filter(None, (summaries[-1], outcome.detail)))
        if _found(summaries[-1]):
            outcome.status = FAILED
    elif outcome.status == PASSED:
        outcome.status, outcome.detail = FAILED, "the tool wrote no summary"
    return outcome


def _found(summary: str) -> bool:
    """Whether a summary counts anything."""
    return any(int(number) for number in re.findall(r"\d+", summary))
