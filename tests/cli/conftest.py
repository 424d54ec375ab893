"""A model where the examples of the command line have it, and limits."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import LLAMA

MEMORY = 4 << 30  # of addresses: NumPy, matplotlib and their libraries take a part
SECONDS = 60  # of the processor


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model as the examples have it, in the working directory."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "path" / "to" / "model"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    return folder


@pytest.fixture
def limits() -> Iterator[None]:
    """Little more memory than there is now, and little time."""
    resource = pytest.importorskip("resource", reason="limits of memory are those of POSIX")
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = Path("/proc/self/statm")
    if used.exists():
        now = int(used.read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, before[1]))
    start = time.process_time()
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert time.process_time() - start < SECONDS
