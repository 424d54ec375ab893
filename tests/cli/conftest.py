"""A model where the examples of the command line have it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import LLAMA


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model as the examples have it, in the working directory."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "path" / "to" / "model"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    return folder
