"""What has to pass: programs under a time limit, and what their output means."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

PASSED, FAILED, SKIPPED, UNFINISHED = "passed", "FAILED", "skipped", "unfinished"
# The exit status of a program that has more to do and was out of time: EX_TEMPFAIL of sysexits.h.
# pytest and compute-sanitizer have other uses for small numbers.
MORE_TO_DO = 75
_LAST_LINES = 60  # of a program that fails
# Of its limit, what a program has to end after an interrupt: to name what ran, to sum up. At most
# a quarter of it.
_GRACE = 15.0


@dataclass
class Outcome:
    """How a step ended."""

    status: str
    detail: str = ""
    output: str = ""
    seconds: float = 0.0
    done: int = 0  # cases with which the next call need not begin, where it is unfinished

    def last_lines(self) -> str:
        return "\n".join(self.output.splitlines()[-_LAST_LINES:])


def run(
    command: Sequence[str], *, cwd: Path, environment: dict[str, str], limit: float, log: Path
) -> Outcome:
    """Run a program, its output at the end of `log`; FAILED where its exit status is not 0.

    Out of time, it is interrupted, and killed where that does not end it.
    """
    began = time.monotonic()
    grace = min(_GRACE, limit / 4)
    # A file and no pipe: what the program leaves running cannot keep it open, and what stops this
    # program too leaves all that there was.
    with log.open("ab") as file:
        start = file.tell()
        process = _start(command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=file,
                         stderr=subprocess.STDOUT, start_new_session=True)  # fmt: skip
        try:
            status = process.wait(limit - grace)
            detail = f"exit status {status}" if status not in (0, MORE_TO_DO) else ""
        except subprocess.TimeoutExpired:
            detail = f"interrupted after {limit - grace:.0f} s"
            # With all that it has started: its session is its own.
            os.killpg(process.pid, signal.SIGINT)
            try:
                # One that ends as if nothing were left to do was still not given its time.
                status = process.wait(grace) or signal.SIGINT
            except subprocess.TimeoutExpired:
                detail = f"killed after {limit:.0f} s: it did not end when interrupted"
                status = None
            _kill(process)
        except BaseException:  # this program is to end, and leaves nothing running
            _kill(process)
            raise
    with log.open("rb") as file:
        file.seek(start)
        output = file.read().decode("utf-8", errors="replace")
    ended = {0: PASSED, MORE_TO_DO: UNFINISHED}.get(status, FAILED)
    return Outcome(ended, detail, output, time.monotonic() - began)


def _start(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """A program that can be interrupted, also where this one, in the background, cannot."""
    before = signal.getsignal(signal.SIGINT)
    if before == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        return subprocess.Popen(command, **options)
    finally:
        if before == signal.SIG_IGN:
            signal.signal(signal.SIGINT, before)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """The program, and what is left of its session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def missing(modules: Sequence[str], site: Path | None) -> list[str]:
    """Those that programs with `site` on their path do not find."""
    path = [str(site), *sys.path] if site else sys.path
    return [name for name in modules if PathFinder.find_spec(name, path) is None]


def test_command(kind: str, work: Path, quick: bool, side_by_side: bool) -> list[str]:
    """pytest, on the tests that take a device, with this kind of device alone.

    Every test is named as it ends, so that one that never does is known. Warnings are not errors
    there: a torch other than the one tested daily has warnings of its own.
    """
    hf = (f"hf/test_{name}.py" for name in ("patch", "compile", "precision"))
    names = ["engines/tensors", "nn/test_rotary.py", *hf]
    families = ("rotary", "sinusoids", "relative", "qkv")
    bad_calls = (each for name in families for each in (work / "tests" / name).glob("test_errors*"))
    if quick:
        names, bad_calls = ["engines/tensors/test_cuda.py", "nn/test_rotary.py"], iter(())
    files = [*(work / "tests" / name for name in names), *bad_calls]
    command = [sys.executable, "-m", "pytest", "-v", "--no-header", "-p", "no:cacheprovider",
               "--durations=5", "-W", "default", "-k", kind, *map(str, files)]  # fmt: skip
    if not quick and side_by_side:
        command += ["-p", "xdist", "-n", str(max(1, min(8, (os.cpu_count() or 1) // 2)))]
    return command


# Plugins that happen to be installed there, of other versions of pytest perhaps, stay out of it.
TEST_ENVIRONMENT = {
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    # Tests side by side; torch's own threads would get into each other's way.
    "OMP_NUM_THREADS": "2",
}


def judge_tests(outcome: Outcome) -> Outcome:
    """pytest's own summary as the detail."""
    summary = re.findall(r"^=*\s*((?:\d+ \w+(?:, )?)+) in [\d.]+s", outcome.output, re.M)
    if summary:
        outcome.detail = ", ".join(filter(None, (summary[-1], outcome.detail)))
    return outcome


def judge_small_run(outcome: Outcome, first: int) -> Outcome:
    """How many cases it has done and how many results differ, as the detail."""
    done = re.findall(r"^cases \d+ to (\d+) of (\d+) are done", outcome.output, re.M)
    if done and outcome.status != FAILED:
        outcome.done = int(done[-1][0])
    said = [line for line in outcome.output.splitlines() if " differ" in line]
    begun = re.findall(r"^case \d+ of \d+: .*$", outcome.output, re.M)
    if outcome.status == FAILED and not done and begun:
        said.append(f"it ended in {begun[-1]}")
    elif done:
        said.append(f"cases {first + 1} to {done[-1][0]} of {done[-1][1]}")
    outcome.detail = ", ".join(filter(None, (*said[-2:], outcome.detail)))
    return outcome


def sanitizer_command(program: Sequence[str], tool: str, small_run: Sequence[str]) -> list[str]:
    """The small run under a tool, which does not report what the driver refuses torch."""
    # The limit of time is ours: torch takes its time before the first call of CUDA.
    return [*program, "--tool", tool, "--launch-timeout", "0", "--report-api-errors", "no",
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
    elif outcome.status != FAILED:
        outcome.status, outcome.detail = FAILED, "the tool wrote no summary"
    return outcome


def _found(summary: str) -> bool:
    """Whether a summary counts anything."""
    return any(int(number) for number in re.findall(r"\d+", summary))
