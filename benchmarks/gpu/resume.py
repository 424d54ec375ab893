"""A plugin of pytest that goes on where an earlier call stopped, and stops in time.

    python -m pytest -p benchmarks.gpu.resume --device cuda --progress FILE --until TIME ...

The file has a line for every test that began and for every one that passed. What has passed is not
repeated. What began and did not pass comes last: it may end the program, or the device, again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import device
from benchmarks.gpu.steps import MORE_TO_DO

_BEFORE = pytest.StashKey[dict[str, str]]()
_DEVICE = pytest.StashKey[device.Cuda]()
_LEFT_OUT = pytest.StashKey[bool]()
_FAILED = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    add = parser.getgroup("gpu").addoption
    add("--device", choices=list(device.DEVICES), default="cuda")
    add("--progress", type=Path, required=True, help="which tests began, and which passed")
    add("--until", type=float, default=math.inf, help="seconds since 1970: no test begins later")
    add("--filter", default="", help="only tests that have this text in their names")
    # Of times.py.
    add("--quick", action="store_true", help="tiny sizes")
    add("--results", type=Path, help="where figures go")
    add("--commit", help="what is timed, for people to read")


def pytest_configure(config: pytest.Config) -> None:
    path: Path = config.getoption("progress")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else ()
    config.stash[_BEFORE] = {name: how for how, name in (line.split(" ", 1) for line in lines)}
    config.stash[_DEVICE] = device.DEVICES[config.getoption("device")]()


@pytest.fixture(scope="session")
def on(pytestconfig: pytest.Config) -> device.Cuda:
    """The device."""
    return pytestconfig.stash[_DEVICE]


@pytest.fixture(scope="session")
def in_parts(pytestconfig: pytest.Config) -> bool:
    """Whether an earlier call, or another process of this one, runs some of the tests."""
    return bool(pytestconfig.stash[_BEFORE]) or hasattr(pytestconfig, "workerinput")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    before = config.stash[_BEFORE]
    to_do = [item for item in items if before.get(item.nodeid) != "passed"]
    chosen = [item for item in to_do if config.getoption("filter") in item.name]
    config.stash[_LEFT_OUT] = len(chosen) < len(to_do)
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = sorted(chosen, key=lambda item: item.nodeid in before)


def _write(item: pytest.Item, how: str) -> None:
    with item.config.getoption("progress").open("a", encoding="utf-8") as file:
        file.write(f"{how} {item.nodeid}\n")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    if time.time() <= item.config.getoption("until"):
        _write(item, "begun")
        return None
    item.session.shouldstop = "out of time"
    return True  # it is taken care of: by the next call


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    report = yield
    if report.failed:
        item.stash[_FAILED] = True
        if why := device.lost(item.config.stash[_DEVICE]):
            item.session.shouldstop = f"the device is lost since {item.name}: {why}"
    elif report.when == "teardown" and _FAILED not in item.stash:
        _write(item, "passed")
    return report


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    stash, late = session.config.stash, time.time() > session.config.getoption("until")
    if exitstatus == pytest.ExitCode.INTERRUPTED and late and not session.testsfailed:
        session.exitstatus = MORE_TO_DO
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and stash[_BEFORE]:
        session.exitstatus = pytest.ExitCode.OK
    if session.exitstatus == pytest.ExitCode.OK and stash.get(_LEFT_OUT, False):
        session.exitstatus = MORE_TO_DO
