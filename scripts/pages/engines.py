"""The engines that were run, from their records (tests/engines_at_hand/records)."""

from __future__ import annotations

import json

from . import ROOT

_RECORDS = ROOT / "tests" / "engines_at_hand" / "records"


def table() -> str:
    """A row for each engine: its version, and with how many configurations it was run."""
    lines = ["| `ENGINE=` | package | configurations | of which it refuses |", "|---|---|--:|--:|"]
    for path in sorted(_RECORDS.glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        answers = record["answers"].values()
        refused = sum("refused" in answer for answer in answers)
        package = f"{record['package']} {record['version']}"
        lines.append(f"| {path.stem} | {package} | {len(answers)} | {refused} |")
    return "\n".join(lines) + "\n"
