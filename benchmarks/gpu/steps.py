"""The steps, their order and limits; programs under a limit, and what their output means."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Seconds of a call. Machines that are lent end a call after ten minutes; one is for leaving.
BUDGET = 540
# The exit status of a program that has more to do and was out of time: EX_TEMPFAIL of sysexits.h.
# pytest and compute-sanitizer have other uses for small numbers.
MORE_TO_DO = 75
PASSED, FAILED, SKIPPED, UNFINISHED = "passed", "FAILED", "skipped", "unfinished"


@dataclass(frozen=True)
class Step:
    """A part of the work that can have a call of its own: tests, which pytest runs."""

    name: str
    limit: float  # seconds that it gets at most where other steps wait
    least: float  # seconds without which it is left to the next call
    of: tuple[str, ...]  # what its outcome depends on, beside the package
    tests: tuple[str, ...]
    quick: tuple[str, ...]  # in place of these with --quick
    environment: Mapping[str, str] = field(default_factory=dict)
    watched: bool = False  # by the tool of compute-sanitizer that has its name
    side_by_side: int = 1  # processes, on at most three quarters of the cores


_SMALL = ("benchmarks/gpu/small_run.py",)
_OF_SMALL = (*_SMALL, "tests/shared")
_QUICK_SMALL = (*_SMALL, "-k", "bfloat16 or operator")
_TESTS = ("tests/engines/torch", "tests/nn/test_rotary.py",
          *(f"tests/hf/test_{name}.py" for name in ("patch", "compile", "precision")),
          *(f"tests/encodings/{name}/test_errors.py"
            for name in ("rotary", "sinusoids", "relative")),
          "tests/encodings/rotary/test_errors_of_norm.py",
          "tests/encodings/rotary/test_errors_of_q_and_k.py",
          "tests/encodings/relative/test_errors_of_distances.py")  # fmt: skip
_TIMES = ("-s", "benchmarks/gpu/times.py")  # it prints its table as it grows

# Most news for a minute first. The small run tells within one whether anything works. Tests come
# before times, since times of wrong results are worth nothing. Times come before the sanitizers: no
# other machine can give them, while what sanitizers look for has been looked for on the host.
# Of the sanitizers memcheck and racecheck find what users would meet; initcheck and synccheck find
# less in kernels that keep nothing in shared memory but sums.
STEPS = (
    # A failure is that of the launch before it, and not of whatever comes later.
    Step("small run", 120, 30, _OF_SMALL, _SMALL, _QUICK_SMALL, {"CUDA_LAUNCH_BLOCKING": "1"}),
    # torch's own threads would get into each other's way.
    Step("tests", 240, 120, ("pyproject.toml", "tests"), _TESTS,
         ("tests/engines/torch/test_cuda.py", "tests/nn/test_rotary.py"),
         {"OMP_NUM_THREADS": "2"}, side_by_side=8),
    Step("times", 300, 60, ("benchmarks/clock/harness.py", "benchmarks/gpu/peers.py",
                            "benchmarks/gpu/rows.py", "benchmarks/gpu/timing.py",
                            "benchmarks/peers"), _TIMES, _TIMES),
    # Every tensor in an allocation of its own, so that its ends are known.
    *(Step(tool, 180, 90, _OF_SMALL, _SMALL, _QUICK_SMALL,
           {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "OMP_NUM_THREADS": "1"}, watched=True,
           side_by_side=12)
      for tool in ("memcheck", "racecheck", "initcheck", "synccheck")),
)  # fmt: skip
NAMES = tuple(step.name for step in STEPS)


def to_run(
    recorded: Mapping[str, Mapping[str, Any]], keys: Mapping[str, str]
) -> tuple[list[Step], list[Step]]:
    """Steps of `keys` that have not run to an end for what they depend on, and those to try again.

    One that failed, or could not run on that machine, has another try when all others had one.
    """
    unfinished, again = [], []
    for step in STEPS:
        entry = recorded.get(step.name)
        if step.name not in keys:
            continue
        if entry is None or entry["of"] != keys[step.name] or entry["status"] == UNFINISHED:
            unfinished.append(step)
        elif entry["status"] != PASSED:
            again.append(step)
    return unfinished, again


def limit(step: Step, after: Sequence[Step], seconds: float) -> float:
    """What a step gets of the seconds that are left; 0 where that is too little to begin it."""
    given = min(step.limit, seconds) if after else seconds
    return given if given >= step.least else 0


@dataclass
class Outcome:
    """How a step ended."""

    status: str
    detail: str = ""
    output: str = ""


# Of its limit, what a program has to end after an interrupt: to name what ran, to sum up. At most
# a quarter of it.
_GRACE = 15.0


def run(
    command: Sequence[str], *, cwd: Path, environment: Mapping[str, str], limit: float, log: Path
) -> Outcome:
    """Run a program, its output at the end of `log`; FAILED where its exit status is not 0.

    Out of time, it is interrupted, and killed where that does not end it.
    """
    grace = min(_GRACE, limit / 4)
    # A file and no pipe: what the program leaves running cannot keep it open, and what stops this
    # program too leaves all that there was.
    with log.open("ab") as file:
        start = file.tell()
        process = subprocess.Popen(
            command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=file,
            stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=_can_be_interrupted,
        )  # fmt: skip
        try:
            status = process.wait(limit - grace)
            detail = f"exit status {status}" if status not in (0, MORE_TO_DO) else ""
            ended = {0: PASSED, MORE_TO_DO: UNFINISHED}.get(status, FAILED)
        except subprocess.TimeoutExpired:
            # One that ends as if nothing were left to do was still not given its time.
            ended, detail = FAILED, f"interrupted after {limit - grace:.0f} s"
            # With all that it has started: its session is its own.
            os.killpg(process.pid, signal.SIGINT)
            try:
                process.wait(grace)
            except subprocess.TimeoutExpired:
                detail = f"killed after {limit:.0f} s: it did not end when interrupted"
        finally:  # also where this program is to end: nothing is left running
            if process.poll() is None or ended == FAILED:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    with log.open("rb") as file:
        file.seek(start)
        return Outcome(ended, detail, file.read().decode("utf-8", errors="replace"))


def _can_be_interrupted() -> None:
    """Also where this program, which a shell has started in the background, cannot."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def until(limit: float) -> str:
    """Until when a program begins cases: the one that runs by then is to end in its limit.

    A case takes 45 s at most, about: with kernels of torch.compile, or under a sanitizer.
    """
    return f"{time.time() + max(limit / 2, limit - 45):.0f}"


# What pytest says: its summary, and why it stopped.
_SAID = re.compile(
    r"^=*\s*((?:\d+ \w+(?:, )?)+) in [\d.]+s|^!+ (?:\S*Interrupted: )?(.*?) !+$", re.M
)
_BEGUN = re.compile(r"^\S+::.*$", re.M)


def judge(outcome: Outcome) -> Outcome:
    """What pytest has said, or the test in which it ended, as the detail."""
    said = ["".join(groups) for groups in _SAID.findall(outcome.output)]
    begun = _BEGUN.findall(outcome.output)
    if outcome.status == FAILED and not said and begun:
        said = [f"it ended in {begun[-1]}"]
    outcome.detail = ", ".join(filter(None, (*reversed(said[-2:]), outcome.detail)))
    return outcome


def sanitizer(tool: str, on: str) -> list[str] | None:
    """What stands before a program that one of compute-sanitizer's tools is to watch.

    It does not report what the driver refuses torch, and the limit of time is ours: torch takes
    its time before the first call of CUDA. None where it is not installed. The processor's programs
    are not watched: they end with the line that the tool would print.
    """
    if on == "cpu":
        summary = f"{'RACECHECK' if tool == 'racecheck' else 'ERROR'} SUMMARY: 0 errors"
        return ["sh", "-c", f'"$@"; status=$?; echo "========= {summary}"; exit $status', tool]
    program = cuda_tool("compute-sanitizer")
    return program and [program, "--tool", tool, "--launch-timeout", "0", "--report-api-errors",
                        "no", "--error-exitcode", "86", "--print-limit", "20",
                        "--target-processes", "all"]  # fmt: skip


def cuda_tool(name: str) -> str | None:
    """A program of the CUDA toolkit: on the path, or where toolkits are installed."""
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    homes += sorted(map(str, Path("/usr/local").glob("cuda-*")), reverse=True)
    folders = [f"{home}/{folder}" for home in homes if home
               for folder in ("bin", "compute-sanitizer")]  # fmt: skip
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(folders))


# What the tool says where a driver, a container or a device gives it no access.
_REFUSED = re.compile(
    r"^=+ .*(not supported|unsupported|insufficient|permission|unable to|internal sanitizer error|"
    r"failed to initialize|terminated before first instrumented).*$",
    re.I | re.M,
)
_SUMMARY = re.compile(r"^=+ ((?:ERROR|RACECHECK) SUMMARY: .*)$", re.M)


def judge_sanitizer(outcome: Outcome) -> Outcome:
    """Failed with the tool's summary, or skipped where the tool has not looked at anything."""
    # Of several processes: the worst one's.
    summaries = _SUMMARY.findall(outcome.output) or [""]
    summary = max(summaries, key=lambda text: sum(map(int, re.findall(r"\d+", text))))
    found = any(int(number) for number in re.findall(r"\d+", summary))
    refusal = _REFUSED.search(outcome.output)
    if refusal and outcome.status == FAILED and not found:
        return Outcome(SKIPPED, refusal.group().strip("= "), outcome.output)
    if outcome.status != FAILED and not summary:
        return Outcome(FAILED, "the tool wrote no summary", outcome.output)
    detail = ", ".join(filter(None, (summary, outcome.detail)))
    return Outcome(FAILED if found else outcome.status, detail, outcome.output)
