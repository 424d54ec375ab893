"""`python -m benchmarks.gpu`, also `make gpu`: test, check and time on a machine with a GPU.

A call takes nine minutes at most. It runs what fits, records how each step ended, and the next
call goes on from there. No network, no pip, and no virtual environment of this project: it takes a
Python with torch and NumPy, and a folder that `make gpu-kit` made elsewhere or, without one, what
compiling and testing take. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.gpu import checks, device, install, kit, record, sources, steps, wheels
from benchmarks.gpu.checks import FAILED, PASSED, SKIPPED, UNFINISHED, Outcome
from benchmarks.gpu.steps import Step

RESULTS = sources.ROOT / "benchmarks" / "results"
# Seconds that a case takes at most, about: with kernels of torch.compile, or under a sanitizer.
_LONGEST_CASE = 45
# Where the package was imported from, what it is, and whether it can do anything on the device:
# compositions of torch operations, which take over where it cannot, are not what is tested.
_SHOW = """
import sys
import posenc_native
from benchmarks.gpu import device
print(posenc_native.__file__)
problem = device.named(sys.argv[1]).problem()
posenc_native.show_config()
sys.exit(problem or None)
"""


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--wheel",
        type=Path,
        help="the wheel to take (default: that of the kit, of --out, of dist/)",
    )
    source.add_argument(
        "--build", action="store_true",
        help="compile, whatever wheels there are (default without one); the wheel is kept",
    )  # fmt: skip
    source.add_argument(
        "--installed",
        action="store_true",
        help="take posenc_native as this Python has it, and no kit but that of --kit",
    )
    parser.add_argument(
        "--kit", type=Path, metavar="FOLDER",
        help="what `make gpu-kit` made (default: build/gpu-kit, where it is there)",
    )  # fmt: skip
    parser.add_argument(
        "--steps", type=lambda text: [step.strip() for step in text.split(",")],
        default=list(steps.NAMES), help="some of: " + ", ".join(steps.NAMES),
    )  # fmt: skip
    parser.add_argument(
        "--again", action="store_true", help="also what has passed with this package before"
    )
    parser.add_argument(
        "--filter", default="", metavar="TEXT", help="of the times: cases that have TEXT"
    )
    parser.add_argument(
        "--budget", type=float, default=steps.BUDGET,
        help="seconds for all of this call (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER",
        help="where results, the log and a wheel that was built go. What is recorded there, or "
        "else in benchmarks/results, is continued (default: benchmarks/results; --quick: nowhere)",
    )  # fmt: skip
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes, few tests: does all of it run?"
    )
    parser.add_argument(
        "--dry-run", action="store_true",
        help="--quick, with the processor in place of the GPU: on any machine",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    if unknown := set(options.steps) - set(steps.NAMES):
        parser.error(f"--steps: no step {', '.join(sorted(unknown))}")
    if options.kit is not None and not options.kit.is_dir():
        parser.error(f"--kit: no folder {options.kit}; `make gpu-kit` makes one")
    if options.wheel is not None and not options.wheel.is_file():
        parser.error(f"--wheel: no file {options.wheel}")
    options.quick = options.quick or options.dry_run
    options.device = "stand-in" if options.dry_run else "cuda"
    return options


class Run:
    """The steps of one call, in a temporary directory with copies of what they need."""

    def __init__(
        self, options: argparse.Namespace, folder: Path, description: dict[str, Any], began: float
    ) -> None:
        self.options = options
        self.device = device.named(options.device)
        self.end = began + options.budget
        self.work, self.site = folder / "work", folder / "site"
        self.kit: Path | None = options.kit and options.kit.resolve()
        if self.kit is None and not options.installed and kit.FOLDER.is_dir():
            self.kit = kit.FOLDER
        self.out = (options.out or (folder / "results" if options.quick else RESULTS)).resolve()
        self.out.mkdir(parents=True, exist_ok=True)
        # Quick cases have names of their own, and steps would pass for what they are not.
        name = record.file_name(description["device"]) + "-quick" * options.quick
        self.results, self.log = self.out / f"{name}.json", self.out / f"{name}.log"
        self.environment = install.environment(self.site)
        self.commit = sources.commit()
        self.keys: dict[str, str] = {}
        self.built: Path | None = None
        self.this_call: list[str] = []

    def continue_from(self) -> None:
        """What was recorded, also where it has to go to another folder now."""
        before = RESULTS / self.results.name
        if not self.results.exists() and before.exists() and not self.options.quick:
            shutil.copy(before, self.results)
            print(f"==> continuing {before} in {self.out}")
        elif self.results.exists():
            print(f"==> continuing {self.results}")

    def step(self, step: Step, run: Callable[[float], Outcome], limit: float) -> Outcome:
        """Run a step in its time, say how it went, record it."""
        print(f"==> {step.name}, at most {limit:.0f} s", flush=True)
        with self.log.open("a", encoding="utf-8") as log:
            print(f"\n==> {step.name}, {record.now()}, {self.commit or 'commit unknown'}", file=log)
        began = time.monotonic()
        try:
            outcome = run(limit)
        except Exception as error:  # the rest goes on
            outcome = Outcome(FAILED, f"{type(error).__name__}: {error}")
        outcome.seconds = time.monotonic() - began
        if outcome.status == FAILED:
            print(outcome.last_lines())
        elif step.name == "times":
            print(outcome.output)
        said = f"{outcome.status} after {outcome.seconds:.0f} s: {outcome.detail}"
        print(f"    {said}", flush=True)
        with self.log.open("a", encoding="utf-8") as log:
            print(f"==> {step.name} {said}", file=log)
        entry = {
            "status": outcome.status, "detail": outcome.detail, "seconds": round(outcome.seconds),
            "date": record.now(), "commit": self.commit, "of": self.keys.get(step.name),
            "done": outcome.done,
        }  # fmt: skip
        record.put_step(self.results, step.name, entry)
        self.this_call.append(step.name)
        return outcome

    def _run(self, command: list[str], limit: float, **more: str) -> Outcome:
        environment = self.environment | more
        return checks.run(
            command, cwd=self.work, environment=environment, limit=limit, log=self.log
        )

    def _program(self, name: str, *arguments: str) -> list[str]:
        command = [sys.executable, "-m", f"benchmarks.gpu.{name}", "--device", self.options.device]
        return [*command, *["--quick"] * self.options.quick, *arguments]

    # --- Steps

    def is_to_build(self) -> bool:
        """Whether installing takes minutes. What is wrong with a kit or a wheel, it says itself."""
        try:
            if self.kit is not None:
                kit.check(self.kit)
            return not self.options.installed and self.wheel() is None
        except (ValueError, kit.Misfit):
            return False

    def wheel(self) -> Path | None:
        """The wheel to unpack; None if there is none, and one is to be built."""
        if self.options.wheel is not None:
            return self.options.wheel.resolve()
        if self.options.build:  # what an earlier call built need not be built again
            built = wheels.newest([self.out])
            found = wheels.description(built) if built else {}
            wanted = {"sources": sources.digest(sources.PACKAGE), "gpus": install.gpus()}
            return built if wanted.items() <= found.items() else None
        folders = [self.kit, self.out, sources.ROOT / "dist"]
        return install.prebuilt([folder for folder in folders if folder is not None])

    def build(self, limit: float) -> Outcome:
        """A wheel in the folder of results."""
        if missing := checks.missing(("scikit_build_core", "pybind11"), self.site):
            return Outcome(FAILED, f"{sys.executable} has no {', '.join(missing)} to build with: "
                           "bring the folder that  make gpu-kit  makes")  # fmt: skip
        nvcc = device.cuda_tool("nvcc") or "no nvcc"
        print(f"    building with {nvcc}", flush=True)
        highway = kit.highway(self.kit) if self.kit is not None else None
        outcome = checks.run(
            install.build_command(self.out), cwd=sources.ROOT, limit=limit, log=self.log,
            environment=install.build_environment(self.environment, highway),
        )  # fmt: skip
        wheel = wheels.newest([self.out])
        if outcome.status == PASSED and wheel is not None:
            of = sources.digest(sources.PACKAGE)
            wheels.describe(wheel, of, install.gpus(), self.commit)
            self.built = wheel
        return outcome

    def install(self, limit: float) -> Outcome:
        """The kit and the package into `site`; what is imported afterwards must be from there."""
        self.site.mkdir()
        if self.kit is not None:
            kit.check(self.kit)
            found = kit.packages(self.kit)
            print(f"    {self.kit}: {len(found)} packages beside ours", flush=True)
            for package in found:
                wheels.unpack(package, self.site)
        output = ""
        if not self.options.installed:
            wheel = self.wheel()
            if wheel is None:
                outcome = self.build(limit)
                if outcome.status != PASSED:
                    return outcome
                wheel, output = self.built, outcome.output
            if reason := wheels.misfit(wheel):
                return Outcome(FAILED, f"{wheel}: {reason}")
            print(f"    {wheel}", flush=True)
            wheels.unpack(wheel, self.site)
            self.commit = self.commit or wheels.description(wheel).get("commit")
        limit = min(steps.INSTALL.limit, max(steps.INSTALL.least, self.left()))
        outcome = self._run([sys.executable, "-c", _SHOW, self.options.device], limit)
        print(outcome.output)
        where = outcome.output.partition("\n")[0]
        outcome.output = output + outcome.output
        outcome.detail = where
        if outcome.status != PASSED:
            outcome.detail = outcome.output.rstrip().rpartition("\n")[2]
            return outcome
        if not self.options.installed and str(self.site) not in where:
            outcome.status, outcome.detail = FAILED, f"an editable install hides it: {where}"
        self._find_keys(Path(where).parent)
        return outcome

    def _find_keys(self, package: Path) -> None:
        """What the outcome of each step depends on."""
        of = sources.digest([package.name], package.parent, compiled=True)
        quick = "quick " * self.options.quick
        self.keys = {
            step.name: quick + sources.digest(step.of, self.work) + " " + of for step in steps.STEPS
        }

    def _first(self, name: str) -> int:
        """The case to begin with, where an earlier call ran out of time."""
        entry = record.load(self.results)["steps"].get(name, {})
        unfinished = entry.get("status") == UNFINISHED and entry["of"] == self.keys[name]
        return entry["done"] if unfinished and not self.options.again else 0

    def small_run(self, limit: float) -> Outcome:
        """Every operator against the CPU."""
        first = self._first("small run")
        # A failure is that of the launch before it, and not of whatever comes later.
        outcome = self._run(self._small_run(limit, first), limit, CUDA_LAUNCH_BLOCKING="1")
        return checks.judge_small_run(outcome, first)

    def _small_run(self, limit: float, first: int) -> list[str]:
        return self._program("small_run", "--until", self._until(limit), "--first", str(first))

    def _until(self, limit: float) -> str:
        """Until when a program begins cases: the one that runs by then is to end in its limit."""
        return f"{time.time() + max(limit / 2, limit - _LONGEST_CASE):.0f}"

    def tests(self, limit: float) -> Outcome:
        """The tests that take a device."""
        # numpy's and torch's own are asked for by others long before.
        if missing := checks.missing(("pytest", "hypothesis", "mpmath", "ml_dtypes"), self.site):
            return Outcome(FAILED, f"{sys.executable} has no {', '.join(missing)}, which the tests "
                           "import: bring the folder that  make gpu-kit  makes")  # fmt: skip
        side_by_side = not checks.missing(("xdist",), self.site)
        command = checks.test_command(self.device.kind, self.work, self.options.quick, side_by_side)
        return checks.judge_tests(self._run(command, limit, **checks.TEST_ENVIRONMENT))

    def times(self, limit: float) -> Outcome:
        """The table of times. A goal that is missed is no failure: the table says it."""
        options = self.options
        command = self._program(
            "times", "--until", self._until(limit), "--results", str(self.results),
            "--of", self.keys["times"], "--filter", options.filter, *["--again"] * options.again,
            *(["--commit", self.commit] if self.commit else []),
        )  # fmt: skip
        outcome = self._run(command, limit)
        said = [line for line in outcome.output.splitlines() if line.startswith("cases: ")]
        outcome.detail = ", ".join(filter(None, (*said[-1:], outcome.detail)))
        return outcome

    def sanitize(self, tool: str, limit: float) -> Outcome:
        """The small run under one of compute-sanitizer's tools."""
        program = self.device.sanitizer()
        if program is None:
            return Outcome(SKIPPED, "compute-sanitizer is not installed")
        first = self._first(tool)
        command = checks.sanitizer_command(program, tool, self._small_run(limit, first))
        # Every tensor in an allocation of its own, so that its ends are known.
        outcome = self._run(command, limit, PYTORCH_NO_CUDA_MEMORY_CACHING="1")
        return checks.judge_sanitizer(checks.judge_small_run(outcome, first))

    # --- All of them

    def runs(self, step: Step) -> Callable[[float], Outcome]:
        """What runs a step."""
        known = {"small run": self.small_run, "tests": self.tests, "times": self.times}
        return known.get(step.name, lambda limit: self.sanitize(step.name, limit))

    def left(self) -> float:
        """Seconds of this call."""
        return self.end - time.monotonic()

    def to_run(self) -> tuple[list[Step], list[Step]]:
        """Steps that were asked for and have not run to an end, and those to be tried again."""
        recorded = record.load(self.results)["steps"]
        if self.options.again:
            recorded = {name: recorded[name] for name in self.this_call}
        asked = {name: key for name, key in self.keys.items() if name in self.options.steps}
        return steps.to_run(recorded, asked)

    def everything(self) -> bool:
        """The steps that fit into this call, and whether they passed."""
        self.continue_from()
        install.copy_tests(self.work)
        first = steps.BUILD if self.is_to_build() else steps.INSTALL
        limit = steps.limit(first, steps.STEPS, self.left())
        if not limit:
            sys.exit(f"--budget: expected {first.least} s or more, got {self.options.budget:g}: "
                     f"{first.name} takes them")  # fmt: skip
        begun = [self.step(first, self.install, limit)]
        if begun[0].status == PASSED:
            waiting = [step for group in self.to_run() for step in group]
            while waiting:
                step, *waiting = waiting
                limit = steps.limit(step, waiting, self.left())
                if not limit:
                    break  # those after it would come before it
                begun.append(self.step(step, self.runs(step), limit))
        self.summary(installed=begun[0].status == PASSED)
        return all(outcome.status != FAILED for outcome in begun)

    def summary(self, installed: bool) -> None:
        """How all steps stand, those of earlier calls too, and what the next call is."""
        print("\n==> summary")
        recorded = record.load(self.results)["steps"]
        for name in ("install", *steps.NAMES):
            entry = recorded.get(name)
            if entry is None:
                print(f"    {name:<10} not run")
                continue
            when = "this call" if name in self.this_call else entry["date"]
            if entry["of"] not in (None, self.keys.get(name, entry["of"])):
                when += ", of other sources"
            print(f"    {name:<10} {entry['status']:<10} {entry['seconds']:>4.0f} s  {when}  "
                  f"{entry['detail']}")  # fmt: skip
        if self.options.quick and self.options.out is None:
            print("==> recorded nowhere: --quick without --out")
        else:
            print(f"==> recorded in {self.results}; all output is in {self.log}")
        if not installed:
            print("==> nothing else can run before install passes")
            return
        unfinished, tried = self.to_run()
        failed = [step for step in tried if recorded[step.name]["status"] == FAILED]
        for words, group in (("still to run", unfinished), ("failed", failed)):
            if group:
                print(f"==> {words}: {', '.join(step.name for step in group)}")
        if unfinished or failed:
            print(f"==> next call: {self._next_call(unfinished + failed)}")
        else:
            print("==> nothing is left to run of what was asked for; --again repeats it")
        others = {name: key for name, key in self.keys.items() if name not in self.options.steps}
        if waiting := steps.to_run(recorded, others)[0]:
            names = ", ".join(step.name for step in waiting)
            print(f"==> not asked for (--steps), and still to run: {names}")

    def _next_call(self, waiting: list[Step]) -> str:
        """This call's command; what it repeated or built need not be repeated or built again."""
        given = [word for word in sys.argv[1:] if word != "--build" or self.built is None]
        if self.built is not None:
            given += ["--wheel", str(self.built)]
        if self.options.again:
            given += ["--steps", ",".join(step.name for step in waiting)]
        return shlex.join(["python3", "-m", "benchmarks.gpu", *given])


def _description(name: str) -> dict[str, Any]:
    """What the device is. Another process asks, so that this one does not hold it."""
    command = [sys.executable, "-m", "benchmarks.gpu.device", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=sources.ROOT)
    if done.returncode:
        sys.exit(f"python -m benchmarks.gpu: {done.stderr.strip()}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _terminated(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def main(arguments: list[str] | None = None) -> None:
    began = time.monotonic()
    options = _arguments(arguments)
    # What ends a machine's loan ends the step that runs, and what is recorded stays.
    signal.signal(signal.SIGTERM, _terminated)
    description = _description(options.device)
    folder = Path(tempfile.mkdtemp(prefix="posenc-gpu-"))
    try:
        passed = Run(options, folder, description, began).everything()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit(not passed)


if __name__ == "__main__":
    main()
