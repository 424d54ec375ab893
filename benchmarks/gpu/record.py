"""The file of results of a device: its steps and its cases by name, kept from call to call."""

from __future__ import annotations

import json
import os
import re
from datetime import datetime, timezone
from pathlib import Path
from typing import Any


def file_name(device: str) -> str:
    """For results of a device of this name, without a suffix."""
    return "gpu-" + re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")


def now() -> str:
    """The time, as records have it."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def load(path: Path) -> dict[str, Any]:
    """What is recorded; no steps and no cases where there is no file yet."""
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return {"machine": {}, "steps": {}, "cases": []} | found


def save(path: Path, record: dict[str, Any]) -> None:
    """In one go: what stops the program half way leaves the file as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.part")
    temporary.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(temporary, path)


def put_step(path: Path, name: str, entry: dict[str, Any]) -> None:
    """Record how a step ended, in place of what was known of it."""
    record = load(path)
    record["steps"][name] = entry
    save(path, record)


def put_case(record: dict[str, Any], case: dict[str, Any]) -> None:
    """Take a case into a record, in place of that of its name."""
    names = [old["case"] for old in record["cases"]]
    if case["case"] in names:
        record["cases"][names.index(case["case"])] = case
    else:
        record["cases"].append(case)
