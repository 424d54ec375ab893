"""`python -m benchmarks.gpu`, also `make gpu`: test, check and time on a machine with a GPU.

A call takes nine minutes at most. It runs what fits, records how each step ended, and the next
call goes on from there. No network, no pip, and no virtual environment of this project: it takes a
Python with torch and NumPy, and a folder that `make gpu-kit` made elsewhere or, without one, what
compiling and testing take. See benchmarks/README.md.
"""

from __future__ import annotations

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
from dataclasses import dataclass
from pathlib import Path

from benchmarks import command
from benchmarks.command import Refused
from benchmarks.gpu import install, kit, record, steps
from benchmarks.gpu.kit import ROOT
from benchmarks.gpu.steps import (
    BUDGET,
    FAILED,
    NAMES,
    PASSED,
    SKIPPED,
    Outcome,
    Step,
)

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


@dataclass
class Call:
    """The steps of one call, in a temporary directory with copies of what they need.

    Args:
        wheel: the wheel to take (default: of the kit, of --out, of dist/)
        build: compile, whatever wheels there are (default without one); the wheel is kept
        installed: take posenc_native as this Python has it, and no kit but that of --kit
        kit: the folder that `make gpu-kit` made (default: build/gpu-kit, where it is there)
        steps: some of: small run, tests, times, memcheck, racecheck, initcheck, synccheck
        again: also what has passed with this package before
        filter: of the times: cases that have TEXT
        budget: seconds for all of this call (default: 540)
        out: the folder for results, the log and a wheel that was built. What is recorded there, or
            else in benchmarks/results, is continued (default: benchmarks/results; --quick: nowhere)
        quick: tiny sizes, few tests: does all of it run?
        dry_run: --quick, with the processor in place of the GPU: on any machine
    """

    wheel: Path | None = None
    build: bool = False
    installed: bool = False
    kit: Path | None = None
    steps: str = ",".join(NAMES)
    again: bool = False
    filter: str = ""
    budget: float = BUDGET
    out: Path | None = None
    quick: bool = False
    dry_run: bool = False

    def __post_init__(self) -> None:
        self.asked = [step.strip() for step in self.steps.split(",")]
        if unknown := set(self.asked) - set(NAMES):
            raise Refused(f"--steps: no step {', '.join(sorted(unknown))}")
        if self.kit is not None and not self.kit.is_dir():
            raise Refused(f"--kit: no folder {self.kit}; `make gpu-kit` makes one")
        if self.wheel is not None and not self.wheel.is_file():
            raise Refused(f"--wheel: no file {self.wheel}")
        if (self.wheel is not None) + self.build + self.installed > 1:
            raise Refused("one of --wheel, --build and --installed, not several")
        if self.kit is None and not self.installed and kit.FOLDER.is_dir():
            self.kit = kit.FOLDER
        self.quick = self.quick or self.dry_run
        self.device = "cpu" if self.dry_run else "cuda"
        self.commit, self.end = kit.commit(), time.monotonic() + self.budget
        self.keys: dict[str, str] = {}
        self.this_call: dict[str, Outcome] = {}

    def run(self, name: str, folder: Path) -> bool:
        """The steps that fit into this call, on the device of this name; whether they passed."""
        self.work, self.site, self.progress = (folder / n for n in ("work", "site", "progress"))
        out = self.out or (folder / "results" if self.quick else RESULTS)
        self.kept = out.resolve()
        self.kept.mkdir(parents=True, exist_ok=True)
        # Quick cases have names of their own, and steps would pass for what they are not.
        name = "gpu-" + re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") + "-quick" * self.quick
        self.results, self.log = self.kept / f"{name}.json", self.kept / f"{name}.log"
        before = RESULTS / self.results.name
        if before.exists() and not self.results.exists() and not self.quick:
            shutil.copy(before, self.results)
        if self.results.exists():
            print(f"==> continuing {self.results}")
        if self.step("install", self.install, self.left()):
            waiting = [step for group in self.to_run() for step in group]
            while waiting:
                step, *waiting = waiting
                limit = steps.limit(step, waiting, self.left())
                if not limit:
                    break  # those after it would come before it
                self.step(step.name, lambda seconds, step=step: self.program(step, seconds), limit)
        self.summary()
        return all(outcome.status != FAILED for outcome in self.this_call.values())

    def left(self) -> float:
        """Seconds of this call."""
        return self.end - time.monotonic()

    def step(self, name: str, work: Callable[[float], Outcome], limit: float) -> bool:
        """Run a step in its time, say how it went, record it; whether it passed."""
        print(f"==> {name}, at most {limit:.0f} s", flush=True)
        self._to_log(f"\n==> {name}, {record.now()}, {self.commit or 'commit unknown'}")
        began = time.monotonic()
        try:
            outcome = work(limit)
        except Exception as error:  # the rest goes on
            said = "" if isinstance(error, Refused) else f"{type(error).__name__}: "
            outcome = Outcome(FAILED, said + str(error))
        seconds = time.monotonic() - began
        if outcome.status == FAILED or name == "install":
            print("\n".join(outcome.output.splitlines()[-60 if outcome.status == FAILED else 0 :]))
        said = f"{outcome.status} after {seconds:.0f} s: {outcome.detail}"
        print(f"    {said}", flush=True)
        self._to_log(f"==> {name} {said}")
        self.this_call[name] = outcome
        recorded = record.load(self.results)
        recorded["steps"][name] = {
            "status": outcome.status, "detail": outcome.detail, "seconds": round(seconds),
            "date": record.now(), "commit": self.commit, "of": self.keys.get(name),
        }  # fmt: skip
        if self.progress.exists() and (outcome.status != PASSED or name == "times"):
            lines = self.progress.read_text(encoding="utf-8").splitlines()
            tests = {test: how for how, test in (line.split(" ", 1) for line in lines)}
            recorded["steps"][name]["tests"] = tests
        record.save(self.results, recorded)
        return outcome.status == PASSED

    def _to_log(self, line: str) -> None:
        with self.log.open("a", encoding="utf-8") as log:
            print(line, file=log)

    def install(self, limit: float) -> Outcome:
        """The kit and the package into `site`; what is imported afterwards must be from there."""
        install.copy_tests(self.work)
        self.site.mkdir()
        folder = self.kit and self.kit.resolve()
        if folder is not None:
            kit.check(folder)
            packages = sorted(set(folder.glob("*.whl")) - set(folder.glob(kit.OURS)))
            print(f"    {folder}: {len(packages)} packages beside ours", flush=True)
            for package in packages:
                kit.unpack(package, self.site)
        if not self.installed:
            wheel = install.find_wheel(self.wheel, build=self.build, folder=folder, out=self.kept)
            if wheel is None:
                outcome = install.build(folder, self.site, self.kept, limit, self.log)
                wheel = self.wheel = kit.newest([self.kept])
                if outcome.status != PASSED or wheel is None:
                    return outcome
            print(f"    {wheel}", flush=True)
            kit.unpack(wheel, self.site)
            self.commit = self.commit or kit.description(wheel).get("commit")
        outcome = self._python(["-c", _SHOW, self.device], min(60, max(10, self.left())))
        where = outcome.detail = outcome.output.partition("\n")[0]
        if outcome.status != PASSED:
            outcome.detail = outcome.output.rstrip().rpartition("\n")[2]
        elif not self.installed and str(self.site) not in where:
            outcome.status, outcome.detail = FAILED, f"an editable install hides it: {where}"
        else:  # what the outcome of each step depends on
            package = Path(where).parent
            of = "quick " * self.quick + kit.digest([package.name], package.parent, compiled=True)
            self.keys = {s.name: f"{of} {kit.digest(s.of, self.work)}" for s in steps.STEPS}
        return outcome

    def _python(
        self, arguments: list[str], limit: float, under: list[str] | None = None, **more: str
    ) -> Outcome:
        given = [*(under or ()), sys.executable, *arguments]
        environment = install.environment(self.site) | more
        return steps.run(given, cwd=self.work, environment=environment, limit=limit, log=self.log)

    def program(self, step: Step, limit: float) -> Outcome:
        """A step's tests; they go on where those of an earlier call stopped."""
        timed = step.name == "times"
        entry = record.load(self.results)["steps"].get(step.name, {})
        known = entry.get("tests", {}) if entry.get("of") == self.keys[step.name] else {}
        if self.again:
            known = {n: how for n, how in known.items() if timed and self.filter not in n}
        self.progress.write_text("".join(f"{how} {name}\n" for name, how in known.items()))
        imported = ("pytest", "allpairspy", "hypothesis", "mpmath", "ml_dtypes", "packaging")
        if said := install.missing(imported[: 1 if timed else None], self.site):
            return Outcome(FAILED, said)
        # Every test is named as it begins or ends, so that one that never does is known. Warnings
        # are not errors: a torch other than the one tested daily has warnings of its own.
        # The settings are named, since pytest would look for them beside --results.
        given = ["-m", "pytest", "-c", "pyproject.toml", "-v", "--no-header", "--durations=5",
                 "-W", "default", "-p", "no:cacheprovider", "-p", "benchmarks.gpu.resume",
                 "--device", self.device, "--until", steps.until(limit),
                 "--progress", str(self.progress),
                 "--results", str(self.results), "--commit", self.commit or "",
                 *["--quick"] * self.quick]  # fmt: skip
        given += step.quick if self.quick else step.tests
        if timed:
            given += ["--filter", self.filter]
        if step.name == "tests":
            given += ["-k", self.device]  # with this kind of device alone
        processes = min(step.side_by_side, (os.cpu_count() or 1) * 3 // 4)
        if processes > 1 and not self.quick and not install.missing(["xdist"], self.site):
            given += ["-p", "xdist", "-n", str(processes)]
        tool = steps.sanitizer(step.name, self.device) if step.watched else []
        if tool is None:
            return Outcome(SKIPPED, "compute-sanitizer is not installed")
        outcome = steps.judge(self._python(given, limit, tool, **step.environment))
        if timed:
            self._show_times(outcome)
        return steps.judge_sanitizer(outcome) if step.watched else outcome

    def _show_times(self, outcome: Outcome) -> None:
        """The table, with what earlier calls have timed; a goal that is missed is no failure."""
        if (text := self.results.with_suffix(".txt")).exists():
            print(text.read_text(encoding="utf-8"))
        cases = record.load(self.results)["cases"].values()
        goals = [row["goal"] for case in cases for row in case.get("rows", ()) if "goal" in row]
        outcome.detail += f"; goals missed: {sum(not goal['met'] for goal in goals)}"

    def to_run(self) -> tuple[list[Step], list[Step]]:
        """Steps that were asked for and have not run to an end, and those to be tried again."""
        recorded = record.load(self.results)["steps"]
        if self.again:
            recorded = {name: recorded[name] for name in self.this_call}
        asked = {name: key for name, key in self.keys.items() if name in self.asked}
        return steps.to_run(recorded, asked)

    def summary(self) -> None:
        """How all steps stand, those of earlier calls too, and what the next call is."""
        print("\n==> summary")
        recorded = record.load(self.results)["steps"]
        for name in ("install", *NAMES):
            entry = recorded.get(name)
            if entry is None:
                print(f"    {name:<10} not run")
                continue
            when = "this call" if name in self.this_call else entry["date"]
            if entry["of"] not in (None, self.keys.get(name, entry["of"])):
                when += ", of other sources"
            print(f"    {name:<10} {entry['status']:<10} {entry['seconds']:>4.0f} s  {when}  "
                  f"{entry['detail']}")  # fmt: skip
        if self.quick and self.out is None:
            print("==> recorded nowhere: --quick without --out")
        else:
            print(f"==> recorded in {self.results}; all output is in {self.log}")
        if not self.keys:
            print("==> nothing else can run before install passes")
            return
        unfinished, tried = self.to_run()
        failed = [step for step in tried if recorded[step.name]["status"] == FAILED]
        others = {name: key for name, key in self.keys.items() if name not in self.asked}
        for words, group in (
            ("still to run", unfinished),
            ("failed", failed),
            ("not asked for (--steps), and still to run", steps.to_run(recorded, others)[0]),
        ):
            if group:
                print(f"==> {words}: {', '.join(step.name for step in group)}")
        if unfinished or failed:
            print(f"==> next call: {self._next_call(unfinished + failed)}")
        else:
            print("==> nothing is left to run of what was asked for; --again repeats it")

    def _next_call(self, waiting: list[Step]) -> str:
        """This call's command; what it repeated or built need not be repeated or built again."""
        given = sys.argv[1:]
        if self.build and self.wheel:
            given = [word for word in given if word != "--build"] + ["--wheel", str(self.wheel)]
        if self.again:
            given += ["--steps", ",".join(step.name for step in waiting)]
        return shlex.join(["python3", "-m", "benchmarks.gpu", *given])


def _terminated(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def main() -> None:
    call = command.run(Call)
    # What ends a machine's loan ends the step that runs, and what is recorded stays.
    signal.signal(signal.SIGTERM, _terminated)
    # Another process asks what the device is, so that this one does not hold it.
    describe = [sys.executable, "-m", "benchmarks.gpu.device", call.device]
    done = subprocess.run(describe, capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode:
        said = done.stderr.strip().rpartition("\n")[2]
        sys.exit(f"python -m benchmarks.gpu: {sys.executable}: {said}")
    name = json.loads(done.stdout.splitlines()[-1])["device"]
    with tempfile.TemporaryDirectory(prefix="posenc-gpu-", ignore_cleanup_errors=True) as folder:
        sys.exit(not call.run(name, Path(folder)))


if __name__ == "__main__":
    main()
