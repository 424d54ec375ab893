"""`python -m benchmarks.gpu`, also `make gpu`: test, check and time on a machine with a GPU.

A call takes nine minutes at most. It runs what fits, records how each step ended, and the next
call goes on from there. No network, no pip, and no virtual environment of this project: it takes a
Python with torch and NumPy, and a folder that `make gpu-kit` made elsewhere or, without one, what
compiling and testing take. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.gpu import device, install, kit, record, steps
from benchmarks.gpu.kit import ROOT, Refused
from benchmarks.gpu.steps import FAILED, PASSED, SKIPPED, UNFINISHED, Outcome, Step

RESULTS = ROOT / "benchmarks" / "results"
# Where the package was imported from, what it is, and whether it can do anything on the device:
# compositions of torch operations, which take over where it cannot, are not what is tested.
_SHOW = """
import sys
import posenc_native
from benchmarks.gpu import device
print(posenc_native.__file__)
problem = device.DEVICES[sys.argv[1]]().problem()
posenc_native.show_config()
sys.exit(problem or None)
"""


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """What the command line chose."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add, source = parser.add_argument, parser.add_mutually_exclusive_group().add_argument
    source("--wheel", type=Path, help="the wheel to take (default: of the kit, of --out, of dist/)")
    source(
        "--build",
        action="store_true",
        help="compile, whatever wheels there are (default without one); the wheel is kept",
    )
    source(
        "--installed",
        action="store_true",
        help="take posenc_native as this Python has it, and no kit but that of --kit",
    )
    add(
        "--kit",
        type=Path,
        metavar="FOLDER",
        help="what `make gpu-kit` made (default: build/gpu-kit, where it is there)",
    )
    add(
        "--steps",
        type=lambda text: [step.strip() for step in text.split(",")],
        default=list(steps.NAMES),
        help="some of: " + ", ".join(steps.NAMES),
    )
    add("--again", action="store_true", help="also what has passed with this package before")
    add("--filter", default="", metavar="TEXT", help="of the times: cases that have TEXT")
    add(
        "--budget",
        type=float,
        default=steps.BUDGET,
        help="seconds for all of this call (default: %(default)s)",
    )
    add(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="where results, the log and a wheel that was built go. What is recorded there, or "
        "else in benchmarks/results, is continued (default: benchmarks/results; --quick: nowhere)",
    )
    add("--quick", action="store_true", help="tiny sizes, few tests: does all of it run?")
    add("--dry-run", action="store_true",
        help="--quick, with the processor in place of the GPU: on any machine")  # fmt: skip
    options = parser.parse_args(given)
    if unknown := set(options.steps) - set(steps.NAMES):
        parser.error(f"--steps: no step {', '.join(sorted(unknown))}")
    if options.kit is not None and not options.kit.is_dir():
        parser.error(f"--kit: no folder {options.kit}; `make gpu-kit` makes one")
    if options.wheel is not None and not options.wheel.is_file():
        parser.error(f"--wheel: no file {options.wheel}")
    if options.kit is None and not options.installed and kit.FOLDER.is_dir():
        options.kit = kit.FOLDER
    options.quick = options.quick or options.dry_run
    options.device = "stand-in" if options.dry_run else "cuda"
    return options


class Call:
    """The steps of one call, in a temporary directory with copies of what they need."""

    def __init__(self, options: argparse.Namespace, folder: Path, name: str) -> None:
        self.options, self.device = options, device.DEVICES[options.device]()
        self.end = time.monotonic() + options.budget
        self.work, self.site, self.passed = (folder / n for n in ("work", "site", "passed"))
        self.kit = options.kit and options.kit.resolve()
        self.out = (options.out or (folder / "results" if options.quick else RESULTS)).resolve()
        self.out.mkdir(parents=True, exist_ok=True)
        # Quick cases have names of their own, and steps would pass for what they are not.
        name = "gpu-" + re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        name += "-quick" * options.quick
        self.results, self.log = self.out / f"{name}.json", self.out / f"{name}.log"
        before = RESULTS / self.results.name
        if before.exists() and not self.results.exists() and not options.quick:
            shutil.copy(before, self.results)
        if self.results.exists():
            print(f"==> continuing {self.results}")
        self.commit = kit.commit()
        self.keys: dict[str, str] = {}
        self.this_call: dict[str, Outcome] = {}

    def left(self) -> float:
        """Seconds of this call."""
        return self.end - time.monotonic()

    def everything(self) -> bool:
        """The steps that fit into this call, and whether they passed."""
        if not self.step("install", self.install, self.left()):
            return False
        waiting = [step for group in self.to_run() for step in group]
        while waiting:
            step, *waiting = waiting
            limit = steps.limit(step, waiting, self.left())
            if not limit:
                break  # those after it would come before it
            self.step(step.name, lambda seconds, step=step: self.program(step, seconds), limit)
        return all(outcome.status != FAILED for outcome in self.this_call.values())

    def step(self, name: str, work: Callable[[float], Outcome], limit: float) -> bool:
        """Run a step in its time, say how it went, record it; whether it passed."""
        print(f"==> {name}, at most {limit:.0f} s", flush=True)
        with self.log.open("a", encoding="utf-8") as log:
            print(f"\n==> {name}, {record.now()}, {self.commit or 'commit unknown'}", file=log)
        began = time.monotonic()
        try:
            outcome = work(limit)
        except Exception as error:  # the rest goes on
            said = str(error) if isinstance(error, Refused) else device.in_a_line(error)
            outcome = Outcome(FAILED, said)
        seconds = time.monotonic() - began
        if outcome.status == FAILED or name in ("install", "times"):
            print("\n".join(outcome.output.splitlines()[-60 if outcome.status == FAILED else 0 :]))
        said = f"{outcome.status} after {seconds:.0f} s: {outcome.detail}"
        print(f"    {said}", flush=True)
        with self.log.open("a", encoding="utf-8") as log:
            print(f"==> {name} {said}", file=log)
        self.this_call[name] = outcome
        recorded = record.load(self.results)
        recorded["steps"][name] = {
            "status": outcome.status, "detail": outcome.detail, "seconds": round(seconds),
            "date": record.now(), "commit": self.commit, "of": self.keys.get(name),
        }  # fmt: skip
        if outcome.status in (FAILED, UNFINISHED) and self.passed.exists():
            recorded["steps"][name]["passed"] = self.passed.read_text("utf-8").splitlines()
        record.save(self.results, recorded)
        return outcome.status == PASSED

    def install(self, limit: float) -> Outcome:
        """The kit and the package into `site`; what is imported afterwards must be from there."""
        install.copy_tests(self.work)
        self.site.mkdir()
        packages: list[Path] = []
        if self.kit is not None:
            kit.check(self.kit)
            packages = sorted(set(self.kit.glob("*.whl")) - set(self.kit.glob(kit.OURS)))
            print(f"    {self.kit}: {len(packages)} packages beside ours", flush=True)
        for package in packages:
            kit.unpack(package, self.site)
        if not self.options.installed:
            wheel = install.find_wheel(self.options, self.kit, self.out)
            if wheel is None:
                outcome = install.build(self.kit, self.site, self.out, limit, self.log)
                wheel = self.options.wheel = kit.newest([self.out])
                if outcome.status != PASSED or wheel is None:
                    return outcome
            print(f"    {wheel}", flush=True)
            kit.unpack(wheel, self.site)
            self.commit = self.commit or kit.description(wheel).get("commit")
        outcome = self._run([sys.executable, "-c", _SHOW, self.options.device],
                            min(60, max(10, self.left())))  # fmt: skip
        where = outcome.detail = outcome.output.partition("\n")[0]
        if outcome.status != PASSED:
            outcome.detail = outcome.output.rstrip().rpartition("\n")[2]
        elif not self.options.installed and str(self.site) not in where:
            outcome.status, outcome.detail = FAILED, f"an editable install hides it: {where}"
        else:  # what the outcome of each step depends on
            package = Path(where).parent
            of = kit.digest([package.name], package.parent, compiled=True)
            quick = "quick " * self.options.quick
            self.keys = {
                step.name: f"{quick}{kit.digest(step.of, self.work)} {of}" for step in steps.STEPS
            }
        return outcome

    def _run(self, command: list[str], limit: float, **more: str) -> Outcome:
        environment = install.environment(self.site) | more
        return steps.run(command, cwd=self.work, environment=environment, limit=limit, log=self.log)

    def program(self, step: Step, limit: float) -> Outcome:
        """A step's program; it goes on where that of an earlier call stopped."""
        options = self.options
        entry = record.load(self.results)["steps"].get(step.name, {})
        known = entry.get("of") == self.keys[step.name] and not options.again
        self.passed.write_text("".join(f"{n}\n" for n in entry.get("passed", ()) if known))
        given = ["--device", options.device, "--until", steps.until(limit)]
        if not step.tests:  # a goal that is missed is no failure: the table says it
            command = ["benchmarks.gpu.times", *given, "--results", str(self.results),
                       "--of", self.keys[step.name], "--filter", options.filter,
                       "--commit", self.commit or "", *["--quick"] * options.quick,
                       *["--again"] * options.again]  # fmt: skip
            return steps.judge(self._run([sys.executable, "-m", *command], limit))
        imported = ("pytest", "allpairspy", "hypothesis", "mpmath", "ml_dtypes", "packaging")
        if said := install.missing(imported, self.site):
            return Outcome(FAILED, said)
        # Every test is named as it begins or ends, so that one that never does is known. Warnings
        # are not errors: a torch other than the one tested daily has warnings of its own.
        command = ["pytest", "-v", "--no-header", "--durations=5", "-W", "default",
                   "-p", "no:cacheprovider", "-p", "benchmarks.gpu.resume", *given,
                   "--passed", str(self.passed)]  # fmt: skip
        command += step.quick_tests if options.quick else step.tests
        if step.name == "tests":
            command += ["-k", self.device.kind]  # with this kind of device alone
            if not options.quick and not install.missing(["xdist"], self.site):
                command += ["-p", "xdist", "-n", str(max(1, min(8, (os.cpu_count() or 1) // 2)))]
        elif options.quick:
            command += ["-k", "bfloat16 or operator"]
        tool = self.device.sanitizer(step.name) if step.watched else []
        if tool is None:
            return Outcome(SKIPPED, "compute-sanitizer is not installed")
        ran = self._run([*tool, sys.executable, "-m", *command], limit, **step.environment)
        outcome = steps.judge(ran)
        return steps.judge_sanitizer(outcome) if step.watched else outcome

    def to_run(self) -> tuple[list[Step], list[Step]]:
        """Steps that were asked for and have not run to an end, and those to be tried again."""
        recorded = record.load(self.results)["steps"]
        if self.options.again:
            recorded = {name: recorded[name] for name in self.this_call}
        asked = {name: key for name, key in self.keys.items() if name in self.options.steps}
        return steps.to_run(recorded, asked)

    def summary(self) -> None:
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
        if not self.keys:
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
        given = sys.argv[1:]
        if self.options.build and self.options.wheel:
            given = [word for word in given if word != "--build"]
            given += ["--wheel", str(self.options.wheel)]
        if self.options.again:
            given += ["--steps", ",".join(step.name for step in waiting)]
        return shlex.join(["python3", "-m", "benchmarks.gpu", *given])


def _terminated(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def main(given: list[str] | None = None) -> None:
    options = arguments(given)
    # What ends a machine's loan ends the step that runs, and what is recorded stays.
    signal.signal(signal.SIGTERM, _terminated)
    # Another process asks what the device is, so that this one does not hold it.
    command = [sys.executable, "-m", "benchmarks.gpu.device", options.device]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode:
        sys.exit(f"python -m benchmarks.gpu: {done.stderr.strip()}")
    name = json.loads(done.stdout.splitlines()[-1])["device"]
    with tempfile.TemporaryDirectory(prefix="posenc-gpu-", ignore_cleanup_errors=True) as folder:
        call = Call(options, Path(folder), name)
        succeeded = call.everything()
        call.summary()
    sys.exit(not succeeded)


if __name__ == "__main__":
    main()
