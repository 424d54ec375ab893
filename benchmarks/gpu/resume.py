"""A plugin of pytest that goes on where an earlier call stopped, and stops in time.

python -m pytest -p benchmarks.gpu.resume --device cuda --passed FILE --until TIME ...
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

_BEFORE = pytest.StashKey[set[str]]()
_DEVICE = pytest.StashKey[device.Cuda]()
_FAILED = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    add = parser.getgroup("gpu").addoption
    add("--device", choices=list(device.DEVICES), default="cuda")
    add("--passed", type=Path, required=True, help="tests that have passed, which are not repeated")
    add("--until", type=float, default=math.inf, help="seconds since 1970: no test begins later")


def pytest_configure(config: pytest.Config) -> None:
    path: Path = config.getoption("passed")
    config.stash[_BEFORE] = (
        set(path.read_text(encoding="utf-8").splitlines()) if path.exists() else set()
    )
    config.stash[_DEVICE] = device.DEVICES[config.getoption("device")]()


@pytest.fixture(scope="session")
def on(pytestconfig: pytest.Config) -> device.Cuda:
    """The device."""
    return pytestconfig.stash[_DEVICE]


@pytest.fixture(scope="session")
def in_parts(pytestconfig: pytest.Config) -> bool:
    """Whether an earlier call has run some of the tests."""
    return bool(pytestconfig.stash[_BEFORE])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    before = config.stash[_BEFORE]
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in before])
    items[:] = [item for item in items if item.nodeid not in before]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    if time.time() <= item.config.getoption("until"):
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
        with item.config.getoption("passed").open("a", encoding="utf-8") as file:
            file.write(f"{item.nodeid}\n")
    return report


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    late = time.time() > session.config.getoption("until")
    if exitstatus == pytest.ExitCode.INTERRUPTED and late and not session.testsfailed:
        session.exitstatus = MORE_TO_DO
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and session.config.stash[_BEFORE]:
        session.exitstatus = pytest.ExitCode.OK
