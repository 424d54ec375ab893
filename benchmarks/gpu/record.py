"""The file of results of a device: its steps and its cases by name, kept from call to call."""

from __future__ import annotations

import json
import os
from datetime import datetime, timezone
from pathlib import Path
from typing import Any


def now() -> str:
    """The time, as records have it."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def load(path: Path) -> dict[str, Any]:
    """What is recorded; no steps and no cases where there is no file yet."""
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return {"machine": {}, "steps": {}, "cases": {}} | found


def save(path: Path, record: dict[str, Any]) -> None:
    """In one go: what stops the program half way leaves the file as it was."""
    temporary = path.with_name(f"{path.name}.part")
    temporary.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(temporary, path)
