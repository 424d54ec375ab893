"""Plant faults, one at a time, and see which test notices each: how strong the tests are.

    make mutants                        ten rows of the matrix again, in minutes
    make mutants ARGS='--recorded'      all rows: is each still killed by the test that it names?
    make mutants ARGS='--all'           every mutant anew, in hours; goes on where it stopped
    make mutants ARGS='--all g017 h03'  these
    make mutants ARGS='--second'        a test of another file for each; after the last one, the
                                        files of tests that no mutant needs
    make mutants ARGS='--generate'      choose other generated mutants (generated.toml)

tests/mutants/ has the mutants (generated.toml by a seed, planted.toml by hand) and the matrix
(killed.csv): what killed each, after how many seconds, how many tests come near it, and, for one
that lives, why nothing could tell it from the original.

C++ is compiled once, for one SIMD target, with every mutant behind a switch (switches.py); Python
is changed in a copy of the repository. One run of all tests notes which of them reach which mutant
(plugin.py; coverage.py for Python): a mutant runs these, the quickest and those of its own room
first. A survivor is also fuzzed. Tools for one language (mutmut, cosmic-ray, mull) know neither the
other one nor what of it a test reached. Everything is in build/mutants.

What was noted is kept: remove build/mutants/watched once a mutant is on another line. A test that
this machine skips is not as recorded, either.
"""

from __future__ import annotations

import argparse
import ast
import concurrent.futures
import contextlib
import dataclasses
import functools
import json
import os
import queue
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from mutants import generate, mutant, switches
from mutants.mutant import ALONE, Found, Mutant
from mutants.plugin import function
from mutants.warm import Warm

ROOT = mutant.ROOT
WORK = ROOT / "build" / "mutants"
SCRIPTS = ROOT / "scripts"
PYTHON = sys.executable
PYTEST = ("-p", "no:cacheprovider", "-p", "mutants.plugin")
SEED = 31
# Which module has which sources.
MODULES = {
    "_core": ("csrc/core", "csrc/cpu", "csrc/bindings/numpy"),
    "_cuda_on_host": ("csrc/cuda",),
    "_torch_ops": ("csrc/bindings/torch",),
}
# Plugins of pytest are imported before it is asked to see their assertions (warm.py).
QUIET = [f"-Wignore::pytest.Pytest{of}Warning" for of in ("Config", "AssertRewrite")]
# A test that was quick and is not is stopped: a mutant may run for ever.
PATIENCE, LONGER = 90.0, 6.0
# The seconds of tests, as they were watched, after which a mutant is a survivor to be looked at.
ENOUGH = 100.0
# Of which a second killer is looked for in fewer.
ENOUGH_AGAIN = 30.0
FUZZ_SECONDS = 20
Result = TypeVar("Result")
# What the ranks of a DTensor run, which tests start.
RANKS = "posenc_native/engines/torch/sharded/"


def build(mutants: list[Mutant], modules: list[str]) -> list[Mutant]:
    """Compile with these mutants behind switches; returns those that the compiler refused."""
    source = WORK / "source"
    source.mkdir(parents=True, exist_ok=True)
    woven = {m.file for m in mutants}
    for file in _listed():
        if file not in woven and not file.startswith(("tests/", "docs/", "benchmarks/")):
            _write(source / file, (ROOT / file).read_bytes())
    _write(WORK / "switches.h", switches.HEADER.encode())
    refused: list[Mutant] = []
    while True:
        for file in sorted({m.file for m in mutants}):
            these = [m for m in mutants if m.file == file and m not in refused]
            text = (ROOT / file).read_text(encoding="utf-8")
            _write(source / file, switches.woven(text, these).encode())
        log = WORK / "build.log"
        if _compile(source, modules, log) == 0:
            return refused
        said = log.read_text(encoding="utf-8")
        worse = []
        # The line of an error; for one in a template of others, the lines that led to it.
        for what in ("error:", "  required from"):
            for path, line in set(re.findall(rf"/source/(csrc/[\w./-]+):(\d+):\d+: *{what}", said)):
                text = (source / path).read_text(encoding="utf-8").splitlines()[int(line) - 1]
                number = re.search(r"On\((\d+)\)", text)
                worse += [m for m in mutants if number and m.number == int(number[1])]
            if set(worse) - set(refused):
                break
        if not set(worse) - set(refused):
            sys.exit(f"mutants: the build failed for another reason: {log}")
        print("refused by the compiler:", *sorted({m.name for m in worse}), flush=True)
        refused += sorted(set(worse) - set(refused), key=lambda m: m.name)


def _compile(source: Path, modules: list[str], log: Path) -> int:
    pybind11 = subprocess.check_output([PYTHON, "-m", "pybind11", "--cmakedir"], text=True).strip()
    programs = Path(PYTHON).parent
    configure = [
        programs / "cmake", "-S", source, "-B", WORK / "cmake", "-G", "Ninja",
        f"-DCMAKE_MAKE_PROGRAM={programs / 'ninja'}", "-DCMAKE_BUILD_TYPE=Release",
        f"-DCMAKE_CXX_FLAGS=-include {WORK / 'switches.h'}",
        "-DSKBUILD_PROJECT_NAME=posenc_native", "-DSKBUILD_PROJECT_VERSION=0",
        "-DPOSENC_TORCH=ON", "-DPOSENC_CUDA=OFF", "-DPOSENC_CUDA_ON_HOST=ON",
        "-DPOSENC_TARGETS=native", f"-DPython_EXECUTABLE={PYTHON}", f"-Dpybind11_DIR={pybind11}",
    ]  # fmt: skip
    with log.open("w") as out:
        status = subprocess.call(configure, stdout=out, stderr=out)
        ninja = [programs / "ninja", "-C", WORK / "cmake", "-k", "0", *modules]
        return status or subprocess.call(ninja, stdout=out, stderr=out)


def _write(file: Path, content: bytes) -> None:
    """Only what is different: a new time would compile it again."""
    if not file.exists() or file.read_bytes() != content:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


def _listed() -> list[str]:
    """Files as git sees them: tracked, or new and not ignored."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.check_output(listed, cwd=ROOT, text=True).split("\0")[:-1]
    return [name for name in names if (ROOT / name).is_file()]


def make_tree(name: str, modules: list[str]) -> Path:
    """A copy of the repository with the modules built here, and a Python that sees it first.

    Modules that were not asked for are those of the virtual environment.
    """
    tree = WORK / name / "repository"
    shutil.rmtree(WORK / name, ignore_errors=True)
    tree.mkdir(parents=True)
    for file in _listed():
        (tree / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / file, tree / file)
    packages = sysconfig.get_path("purelib")
    for module in MODULES:
        folder = WORK / "cmake" if module in modules else Path(packages) / "posenc_native"
        for file in folder.glob(f"{module}.*so"):
            shutil.copy2(file, tree / "posenc_native" / file.name)
    venv = WORK / name / "venv"
    subprocess.check_call([PYTHON, "-m", "venv", "--without-pip", venv])
    own = next((venv / "lib").glob("python*/site-packages"))
    lines = [str(tree), packages, str(SCRIPTS)]
    lines.append(
        "import os; 'COVERAGE_PROCESS_START' in os.environ and "
        "__import__('coverage').process_startup()"
    )
    (own / "mutants.pth").write_text("\n".join(lines) + "\n")
    return tree


def _environment(**more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("POSENC_")}
    return {**kept, "PYTHONDONTWRITEBYTECODE": "1", "OMP_WAIT_POLICY": "PASSIVE", **more}


def watch(tree: Path, jobs: int) -> None:
    """One run of all tests: who reaches what, for how long."""
    folder = WORK / "watched"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "coverage.ini").write_text(
        f"[run]\nsource = {tree / 'posenc_native'}\nparallel = true\ncore = ctrace\n"
        f"data_file = {folder / 'coverage'}\ncontext = ${{POSENC_MUTANTS_CONTEXT-}}\n"
        "disable_warnings = no-data-collected, module-not-imported, module-not-measured\n"
    )
    python = tree.parent / "venv" / "bin" / "python"
    with (folder / "log").open("w") as log:
        subprocess.call(
            [python, "-m", "pytest", *PYTEST, "-q", "--tb=line", f"-n{jobs}", "--dist=loadfile"],
            cwd=tree,
            env=_environment(POSENC_MUTANTS_WATCH=str(folder)),
            stdout=log,
            stderr=log,
        )


def reached(tree: Path, mutants: list[Mutant]) -> tuple[dict[str, list[str]], dict[str, float]]:
    """Which functions of tests come to the line of each mutant, and how many seconds each takes."""
    import coverage

    folder = WORK / "watched"
    tests: dict[str, dict] = {}
    for file in sorted(folder.glob("watched-*.json")):
        tests.update(json.loads(file.read_text()))
    if not tests:
        sys.exit(f"mutants: no test was watched: {folder / 'log'}")
    # What was renamed or removed since they were watched reaches nothing any more.
    tests = {name: test for name, test in tests.items() if stands(tree, name)}
    failed = sorted(name for name, test in tests.items() if test["failed"])
    seconds = {
        name: test["seconds"]
        for name, test in tests.items()
        # Those of the mutants themselves look for the sources as they were.
        if not test["failed"] and not name.startswith("tests/packaging/test_mutants.py")
    }
    print(
        f"{len(seconds)} functions of tests; left out, since they fail when watched:",
        *failed,
        sep="\n  ",
    )
    native: dict[int, list[str]] = {}
    for name in seconds:
        for number in tests[name]["native"]:
            native.setdefault(number, []).append(name)
    combined = folder / "combined"
    if not combined.exists():
        every = coverage.Coverage(config_file=str(folder / "coverage.ini"), data_file=str(combined))
        parts = [str(file) for file in folder.glob("coverage.*") if file.suffix != ".ini"]
        every.combine(parts, keep=True)
        every.save()
    data = coverage.CoverageData(basename=str(combined))
    data.read()
    lines = {Path(name): name for name in data.measured_files()}
    known: dict[str, list[str]] = {}
    for m in mutants:
        if m.native:
            known[m.name] = native.get(m.number, [])
            continue
        file = tree / m.file
        contexts: set[str] = set()
        if file in lines:
            by_line = data.contexts_by_lineno(lines[file])
            first = m.line(file.read_text(encoding="utf-8")) + 1
            for line in range(first, first + len(m.before.splitlines())):
                contexts |= {part for text in by_line.get(line, ()) for part in text.split("|")}
        near = contexts & set(seconds)
        if RANKS in m.file:  # other processes run it, of which no line was noted
            near |= {name for name in seconds if name.startswith("tests/distributed/")}
        # What runs on import is there for every test, and so may be what no test was seen at.
        known[m.name] = sorted(near) if near and in_function(file, m) else sorted(seconds)
    return known, seconds


def stands(tree: Path, name: str) -> bool:
    """Whether a function of tests is still in its file."""
    file = tree / name.partition("::")[0]
    head = f"def {name.rpartition('::')[2]}("
    return file.exists() and head in file.read_text(encoding="utf-8")


def in_function(file: Path, m: Mutant) -> bool:
    """Whether the mutant is in a function of Python. Else it runs once, when it is imported."""
    text = file.read_text(encoding="utf-8")
    line = m.line(text) + 1
    return any(
        node.body[0].lineno <= line <= node.end_lineno
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef)
    )


def _words(path: str) -> set[str]:
    """Words of a path by which files and their tests are alike."""
    words = set(re.split(r"[^a-z0-9]+", path.lower()))
    if "sharded" in words:  # tests that start ranks have a folder of their own
        words.add("distributed")
    return words - {"posenc", "native", "csrc", "core", "tests", "test", "py", "cc", "h", "engines"}


class Runner:
    """Runs tests with one mutant on, in a tree of its own."""

    def __init__(self, tree: Path, seconds: dict[str, float]) -> None:
        self.tree, self.seconds = tree, seconds
        self.report = tree.parent / "report.json"

    @functools.cached_property
    def warm(self) -> Warm:
        return Warm(self.tree.parent / "venv" / "bin" / "python", self.tree, _environment())

    def kill(self, m: Mutant, tests: list[str]) -> Found:
        """The first of these tests that notices the mutant, or the fuzzer."""
        begun = time.monotonic()
        with self.planted(m):
            by = self.first(m, tests) or self.fuzz(m)
        return Found(m.name, m.file, by, round(time.monotonic() - begun, 1), len(tests))

    def kill_again(self, m: Mutant, row: Found, tests: list[str]) -> Found:
        """The row with a test of another file that notices the mutant."""
        file = row.killed_by.partition("::")[0]
        others = [name for name in tests if name.partition("::")[0] != file]
        with self.planted(m):
            return dataclasses.replace(
                row, also_killed_by=self.first(m, others, ENOUGH_AGAIN) or ALONE
            )

    def first(self, m: Mutant, tests: list[str], enough: float = ENOUGH) -> str:
        """The first of these tests that notices the mutant, which is planted, or ""; looked for in
        the quickest that take `enough` seconds.
        """
        words = _words(m.file)

        def cost(name: str) -> float:
            near = words & _words(name.partition("::")[0])
            return (self.seconds[name] + 0.05) * (0.3 if near else 1.0)

        left = sorted(tests, key=cost)
        by = ""
        limit, spent = 8.0, 0.0  # a few tests first, then more, for most mutants die early
        while left and not by and spent < enough:
            some: list[str] = []
            total = 0.0
            while left and (not some or total + self.seconds[left[0]] < limit):
                total += self.seconds[left[0]]
                some.append(left.pop(0))
            by = self.run(m, some, total)
            # A test that fails now and then is not what noticed.
            if by and spent and "::" in by and not self.run(m, [by.partition(" (")[0]], 0):
                at = some.index(function(by.partition(" (")[0]))
                left, by = [*some[at + 1 :], *left], ""
            spent += total
            limit = min(6 * limit, enough)
        return by

    @contextlib.contextmanager
    def planted(self, m: Mutant) -> Iterator[None]:
        """The tree with a mutant of Python in it; one of C++ is there, and switched on by `run`."""
        file = self.tree / m.file
        original = file.read_text(encoding="utf-8")
        if not m.native:
            file.write_text(m.written(original), encoding="utf-8")
        try:
            yield
        finally:
            file.write_text(original, encoding="utf-8")

    def run(self, m: Mutant | None, tests: list[str], seconds: float) -> str:
        """The test that failed, or ""."""
        self.report.unlink(missing_ok=True)
        number = str(m.number) if m and m.native else ""
        status = self.warm.run(
            [*PYTEST, *QUIET, "-q", "-x", "--tb=no", *tests],
            {"POSENC_MUTANTS_REPORT": str(self.report), "POSENC_MUTANT": number},
            PATIENCE + LONGER * seconds,
        )
        noted = json.loads(self.report.read_text()) if self.report.exists() else {}
        if "failed" in noted:
            return noted["failed"]
        if status == 0:
            return ""
        if status == 4:  # pytest was not called as it wants to be
            raise RuntimeError(f"pytest found none of {' '.join(tests)}")
        if status is not None and status > 0:
            raise RuntimeError(f"pytest did not run {' '.join(tests)}: status {status}")
        return f"{noted.get('running', tests[0])} ({'for ever' if status is None else 'crash'})"

    def fuzz(self, m: Mutant) -> str:
        """The word fuzz if a random call notices what no test does, else nothing."""
        found = self._fuzz(m, "--seconds", str(FUZZ_SECONDS), "--until-found").stdout
        # Seldom a call finds something without a mutant too, or never again.
        seeds = re.findall(r"^# \w+, seed (\d+):", found, re.MULTILINE)
        by_mutant = any(self._finds(m, seed) and not self._finds(None, seed) for seed in seeds)
        return "fuzz" if by_mutant else ""

    def _finds(self, m: Mutant | None, seed: str) -> bool:
        return self._fuzz(m, "--seed", seed).returncode != 0

    def _fuzz(self, m: Mutant | None, *arguments: str) -> subprocess.CompletedProcess[str]:
        more = {"POSENC_MUTANT": str(m.number)} if m and m.native else {}
        python = self.tree.parent / "venv" / "bin" / "python"
        return subprocess.run(
            [python, "-m", "fuzz", *arguments],
            cwd=self.tree,
            env=_environment(**more),
            capture_output=True,
            text=True,
            check=False,
        )


def shared(
    runners: list[Runner], mutants: list[Mutant], work: Callable[[Runner, Mutant], Result]
) -> Iterator[Result]:
    """What work(runner, mutant) returns for each, as it comes: a mutant a runner at a time."""
    free: queue.SimpleQueue[Runner] = queue.SimpleQueue()
    for runner in runners:
        free.put(runner)

    def one(m: Mutant) -> Result:
        runner = free.get()
        try:
            return work(runner, m)
        finally:
            free.put(runner)

    with concurrent.futures.ThreadPoolExecutor(len(runners)) as pool:
        for found in concurrent.futures.as_completed([pool.submit(one, m) for m in mutants]):
            yield found.result()


def run_all(mutants: list[Mutant], jobs: int, again: bool, second: bool) -> None:
    """Fill the matrix, or its second killers; what stands in it already is kept, unless it is asked
    for by name.
    """
    modules = list(MODULES)
    if refused := build([m for m in mutant.load() if m.native], modules):
        sys.exit(f"mutants: these do not compile: {', '.join(m.name for m in refused)}")
    trees = [make_tree(f"worker-{i}", modules) for i in range(jobs)]
    if not (WORK / "watched").exists():
        watch(trees[0], jobs)
    tests, seconds = reached(trees[0], mutants)
    rows = mutant.load_found()
    if second:
        known = [m for m in mutants if m.name in rows and rows[m.name].by_a_test]
        todo = [m for m in known if again or not rows[m.name].also_killed_by]
    else:
        todo = [m for m in mutants if again or m.name not in rows]

    def work(runner: Runner, m: Mutant) -> tuple[Found, float]:
        begun = time.monotonic()
        if second:
            found = runner.kill_again(m, rows[m.name], tests[m.name])
        else:
            found = runner.kill(m, tests[m.name])
        return found, time.monotonic() - begun

    for row, took in shared([Runner(tree, seconds) for tree in trees], todo, work):
        rows[row.name] = row
        mutant.save_found(rows)
        by = row.also_killed_by if second else row.killed_by or "LIVES"
        print(f"{row.name}  {took:6.1f} s  {by}  {row.file}", flush=True)
    if second and all(row.also_killed_by for row in rows.values() if row.by_a_test):
        print("needed by no mutant:", *idle_files(rows.values(), seconds), sep="\n  ")


def idle_files(rows: Iterable[Found], tests: Iterable[str]) -> list[str]:
    """The files of tests none of which is a killer of a mutant, first or second."""
    busy = {test.partition("::")[0] for row in rows for test in (row.killed_by, row.also_killed_by)}
    return sorted({test.partition("::")[0] for test in tests} - busy)


def ten() -> list[Mutant]:
    """Of what compiles soon, from all over the matrix."""
    rows = mutant.load_found()
    quick = ("csrc/core", "csrc/cpu", "csrc/bindings/numpy", "posenc_native")
    known = [
        m
        for m in mutant.load()
        if m.file.startswith(quick) and m.name in rows and rows[m.name].by_a_test
    ]
    return known[:: max(1, len(known) // 10)][:10]


def run_again(mutants: list[Mutant], jobs: int) -> int:
    """Their rows again: how many tests do not fail with the mutant, or do without."""
    rows = mutant.load_found()
    todo = [m for m in mutants if m.name in rows and "::" in rows[m.name].killed_by]
    modules = list(MODULES)
    build([m for m in todo if m.native], modules)
    runners = [Runner(make_tree(f"again-{i}", modules), {}) for i in range(jobs)]
    passes: dict[str, bool] = {}  # without a mutant

    def work(runner: Runner, m: Mutant) -> tuple[Mutant, str, bool]:
        # With any parameters: SIMD targets are among them, and other processors have others.
        test = function(rows[m.name].killed_by.partition(" (")[0])
        with runner.planted(m):
            killed = runner.run(m, [test], 0) != ""
        if test not in passes:
            passes[test] = runner.run(None, [test], 0) == ""
        return m, test, killed and passes[test]

    wrong = 0
    for m, test, holds in shared(runners, todo, work):
        wrong += not holds
        print(f"{m.name}  {'as recorded' if holds else 'NOT AS RECORDED'}: {test}", flush=True)
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--all", action="store_true", help="every mutant, or those that are named")
    parser.add_argument("--recorded", action="store_true", help="every row again, or these")
    parser.add_argument("--second", action="store_true", help="a second killer of each, or these")
    parser.add_argument("--generate", action="store_true", help="write generated.toml anew")
    parser.add_argument("--seed", type=int, default=SEED, help="of --generate")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="mutants at a time")
    parser.add_argument("names", nargs="*", help="of a matrix: these alone, again")
    options = parser.parse_args()
    if options.generate:
        refused: set[tuple[str, str, str]] = set()
        while True:
            chosen = generate.generate(options.seed, frozenset(refused))
            mutant.save_generated(chosen)
            worse = build([m for m in mutant.load() if m.native], list(MODULES))
            refused |= {(m.file, m.before, m.after) for m in worse}
            if not worse:
                return 0
    named = [m for m in mutant.load() if not options.names or m.name in options.names]
    if options.all or options.second:
        run_all(named, options.jobs, bool(options.names), options.second)
        return 0
    return run_again(named if options.recorded else ten(), options.jobs)


if __name__ == "__main__":
    sys.exit(main())
