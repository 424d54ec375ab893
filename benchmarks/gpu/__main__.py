"""`python -m benchmarks.gpu`, also `make gpu`: test, check and time on a machine with a GPU.

No network, and no virtual environment of this project: it takes a Python with torch, NumPy, pytest,
hypothesis, mpmath and ml_dtypes, and, where there is no wheel, what compiling takes. See
benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.gpu import checks, install
from benchmarks.gpu.checks import FAILED, PASSED, SKIPPED, Outcome

RESULTS = Path(__file__).parents[1] / "results"
# In this order, each with a limit in seconds; together they may take --budget.
LIMITS = {"install": 240, "small run": 60, "times": 150, "tests": 200, "memcheck": 120,
          "racecheck": 120}  # fmt: skip
BUDGET = 480
_LEAST = 5  # a step that has less is not begun


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--wheel", type=Path, help="the wheel to take (default: the newest in dist/ that fits)"
    )
    source.add_argument(
        "--build", action="store_true", help="compile, whatever is in dist/ (default without one)"
    )
    source.add_argument(
        "--installed", action="store_true", help="take posenc_native as this Python has it"
    )
    parser.add_argument(
        "--steps",
        type=lambda text: [step.strip() for step in text.split(",")],
        default=[*LIMITS][1:],
        help="some of: " + ", ".join([*LIMITS][1:]),
    )
    parser.add_argument(
        "--budget", type=float, default=BUDGET, help="seconds for all of it (default: %(default)s)"
    )
    parser.add_argument(
        "--out", type=Path, help="folder of results (default: benchmarks/results; quick: nowhere)"
    )
    parser.add_argument("--logs", type=Path, help="folder to keep the steps' whole output in")
    parser.add_argument("--device", default="cuda", help="cpu shows that this script runs")
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes, few tests: does all of it run?"
    )
    options = parser.parse_args(arguments)
    if unknown := set(options.steps) - LIMITS.keys():
        parser.error(f"--steps: no step {', '.join(sorted(unknown))}")
    return options


class Run:
    """The steps, in a temporary directory with copies of what they need."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options = options
        self.end = time.monotonic() + options.budget
        self.work, self.site = folder / "work", None if options.installed else folder / "site"
        self.environment = install.environment(self.site)
        self.outcomes: dict[str, Outcome] = {}

    def step(self, name: str, run: Callable[[float], Outcome]) -> Outcome:
        """Run a step in what time is left, say how it went, keep its output."""
        limit = min(LIMITS[name], self.end - time.monotonic())
        print(f"==> {name}", flush=True)
        began = time.monotonic()
        if limit < _LEAST:
            outcome = Outcome(FAILED, "not begun: no time is left (--budget)")
        else:
            try:
                outcome = run(limit)
            except Exception as error:  # the rest goes on
                outcome = Outcome(FAILED, f"{type(error).__name__}: {error}")
        outcome.seconds = time.monotonic() - began
        if outcome.status == FAILED:
            print(outcome.last_lines())
        elif name == "times":
            print(outcome.output)
        print(f"    {outcome.status} after {outcome.seconds:.0f} s: {outcome.detail}", flush=True)
        if self.options.logs is not None:
            self.options.logs.mkdir(parents=True, exist_ok=True)
            log = self.options.logs / f"gpu-{name.replace(' ', '-')}.log"
            log.write_text(outcome.output, encoding="utf-8")
        self.outcomes[name] = outcome
        return outcome

    def _run(self, command: list[str], limit: float, **more: str) -> Outcome:
        environment = self.environment | more
        return checks.run(command, cwd=self.work, environment=environment, limit=limit)

    def _small_run(self) -> list[str]:
        command = [sys.executable, "-m", "benchmarks.gpu.small_run", "--device",
                   self.options.device]  # fmt: skip
        return command + ["--quick"] * self.options.quick

    def install(self, limit: float) -> Outcome:
        """The package into `site`; what is imported afterwards must be from there."""
        options = self.options
        outcome = Outcome(PASSED)
        if self.site is not None:
            wheel = options.wheel
            if wheel is None and not options.build:
                wheel = install.newest_fitting_wheel(install.ROOT / "dist")
            if wheel is not None:
                print(f"    {wheel}")
                command, environment = install.wheel_command(wheel.resolve(), self.site), None
            else:
                print(f"    building with {install.cuda_tool('nvcc') or 'no nvcc'}")
                command = install.build_command(self.site, self.work.parent / "build")
                environment = install.build_environment()
            outcome = checks.run(
                command, cwd=self.work, environment=environment or self.environment, limit=limit
            )
        if outcome.status == PASSED:
            code = "import posenc_native as p; print(p.__file__); p.show_config()"
            shown = self._run([sys.executable, "-c", code], 60)
            print(shown.output)
            where = shown.output.partition("\n")[0]
            outcome.output += shown.output
            outcome.status, outcome.detail = shown.status, where
            if self.site is not None and str(self.site) not in where:
                outcome.status, outcome.detail = FAILED, f"an editable install hides it: {where}"
        return outcome

    def small_run(self, limit: float) -> Outcome:
        """Every operator against the CPU."""
        outcome = self._run(self._small_run(), limit)
        lines = [line for line in outcome.output.splitlines() if " differ" in line]
        outcome.detail = ", ".join(filter(None, (*lines[-1:], outcome.detail)))
        return outcome

    def tests(self, limit: float) -> Outcome:
        """The tests that take a device."""
        command = checks.test_command(self.options.device, self.work, self.options.quick)
        # Tests side by side; torch's own threads would get into each other's way.
        return checks.judge_tests(self._run(command, limit, OMP_NUM_THREADS="2"))

    def times(self, limit: float) -> Outcome:
        """The table of times. A goal that is missed is no failure: the table says it."""
        options = self.options
        out = options.out or (self.work / "results" if options.quick else RESULTS)
        seconds = str(max(1.0, limit - 30))  # the case that runs by then is to end
        command = [sys.executable, "-m", "benchmarks.gpu.times", "--device", options.device,
                   "--seconds", seconds, "--out", str(out.resolve())]  # fmt: skip
        outcome = self._run(command + ["--quick"] * options.quick, limit)
        goals = [line for line in outcome.output.splitlines() if line.startswith("goals missed")]
        outcome.detail = ", ".join(filter(None, (*goals, outcome.detail)))
        return outcome

    def sanitize(self, tool: str, limit: float) -> Outcome:
        """The small run under one of compute-sanitizer's tools."""
        if self.options.device == "cpu":
            return Outcome(SKIPPED, "compute-sanitizer looks at CUDA devices")
        program = checks.sanitizer()
        if program is None:
            return Outcome(SKIPPED, "compute-sanitizer is not installed")
        command = checks.sanitizer_command(program, tool, self._small_run())
        # Every tensor in an allocation of its own, so that its ends are known.
        outcome = self._run(command, limit, PYTORCH_NO_CUDA_MEMORY_CACHING="1")
        return checks.judge_sanitizer(outcome)

    def everything(self) -> bool:
        """All steps that were asked for, and whether they passed."""
        install.copy_tests(self.work)
        if self.step("install", self.install).status == PASSED:
            steps: dict[str, Callable[[float], Outcome]] = {
                "small run": self.small_run,
                "times": self.times,
                "tests": self.tests,
                "memcheck": lambda limit: self.sanitize("memcheck", limit),
                "racecheck": lambda limit: self.sanitize("racecheck", limit),
            }
            for name, run in steps.items():
                if name in self.options.steps:
                    self.step(name, run)
        print("\n==> summary")
        for name, outcome in self.outcomes.items():
            print(f"    {name:<10} {outcome.status:<8} {outcome.seconds:>4.0f} s  {outcome.detail}")
        return all(outcome.status != FAILED for outcome in self.outcomes.values())


def _has_device() -> bool:
    """Whether torch sees a GPU. Another process asks, so that this one does not hold the GPU."""
    code = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def main(arguments: list[str] | None = None) -> None:
    options = _arguments(arguments)
    if options.device == "cuda" and not _has_device():
        sys.exit(f"python -m benchmarks.gpu: {sys.executable} has no torch that sees a CUDA device")
    folder = Path(tempfile.mkdtemp(prefix="posenc-gpu-"))
    try:
        passed = Run(options, folder).everything()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit(not passed)


if __name__ == "__main__":
    main()
