"""Where checkpoints are, and the figures that tests have recorded, at the end."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """The folder of the checkpoints of this run."""
    return tmp_path_factory.mktemp("checkpoints")


def pytest_terminal_summary(terminalreporter):
    for report in terminalreporter.getreports("passed") + terminalreporter.getreports("failed"):
        for name, value in getattr(report, "user_properties", ()):
            if report.when == "call":
                place = report.nodeid.partition("::")[2]
                terminalreporter.write_line(f"{place}: {name}: {value}")
