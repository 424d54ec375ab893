"""What pytest notes for the mutants: -p mutants.plugin.

POSENC_MUTANTS_WATCH=FOLDER     which tests reach which mutant, how long they take, which fail
POSENC_MUTANTS_REPORT=FILE      the test that runs, and the first that failed
"""

from __future__ import annotations

import collections
import json
import mmap
import os
from pathlib import Path

MOST = 2048  # as in switches.py

WORKER = os.environ.get("PYTEST_XDIST_WORKER")
FOLDER = os.environ.get("POSENC_MUTANTS_WATCH")
if WORKER and FOLDER:
    # Now: conftest.py, which loads the native modules, comes before pytest_configure.
    REACHED = Path(FOLDER) / f"reached-{WORKER}"
    REACHED.write_bytes(bytes(MOST))
    os.environ["POSENC_MUTANTS_REACHED"] = str(REACHED)


def pytest_configure(config) -> None:
    if WORKER and FOLDER:
        config.pluginmanager.register(_Watch(Path(FOLDER), WORKER))
    if file := os.environ.get("POSENC_MUTANTS_REPORT"):
        config.pluginmanager.register(_Report(Path(file)))


def function(nodeid: str) -> str:
    """A test without its parameters."""
    return nodeid.partition("[")[0]


class _Watch:
    def __init__(self, folder: Path, worker: str) -> None:
        import coverage

        self.out = folder / f"watched-{worker}.json"
        with REACHED.open("r+b") as file:
            self.reached = mmap.mmap(file.fileno(), MOST)
        self.coverage = coverage.Coverage(
            config_file=str(folder / "coverage.ini"), data_suffix=worker
        )
        self.coverage.start()
        # What tests start says which test it was.
        os.environ["COVERAGE_PROCESS_START"] = str(folder / "coverage.ini")
        self.seconds = collections.Counter()
        self.native = collections.defaultdict(set)
        self.failed = set()
        self.passed = set()

    def pytest_runtest_logstart(self, nodeid, location) -> None:
        self.now = function(nodeid)
        os.environ["POSENC_MUTANTS_CONTEXT"] = self.now
        self.coverage.switch_context(self.now)
        self.reached[:] = bytes(MOST)

    def pytest_runtest_logreport(self, report) -> None:
        name = function(report.nodeid)
        self.seconds[name] += report.duration
        if report.failed:
            self.failed.add(name)
        elif report.when == "call" and report.passed:
            self.passed.add(name)

    def pytest_runtest_logfinish(self, nodeid, location) -> None:
        self.native[self.now] |= {i for i, hit in enumerate(self.reached[:]) if hit}

    def pytest_sessionfinish(self, session) -> None:
        self.coverage.stop()
        self.coverage.save()
        tests = {
            name: {
                "seconds": round(seconds, 3),
                "native": sorted(self.native[name]),
                "failed": name in self.failed,
            }
            for name, seconds in self.seconds.items()
            if name in self.passed | self.failed
        }
        self.out.write_text(json.dumps(tests))


class _Report:
    def __init__(self, file: Path) -> None:
        self.file = file

    def pytest_runtest_logstart(self, nodeid, location) -> None:
        self.file.write_text(json.dumps({"running": nodeid}))

    def pytest_runtest_logreport(self, report) -> None:
        if report.failed:
            self.file.write_text(json.dumps({"failed": report.nodeid}))
            self.file = Path(os.devnull)

    def pytest_collectreport(self, report) -> None:
        if report.failed:
            self.file.write_text(json.dumps({"failed": report.nodeid + " (collection)"}))
            self.file = Path(os.devnull)
