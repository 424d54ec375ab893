"""Where things are, for tests that read the project's other files."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"
SHARED = Path(__file__).parent
