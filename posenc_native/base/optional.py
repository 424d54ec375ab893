"""Packages that only parts of the library need, and messages if one is not installed."""

from __future__ import annotations

import importlib.util

# Requirements for pip if the name alone would not do. (The extras of this package need an index
# that has it; a command that names the missing packages always works.)
_REQUIREMENTS = {"torch": '"torch>=2.10"'}


def absent(*packages: str) -> list[str]:
    """The packages that are not installed; imports none of them."""
    return [package for package in packages if importlib.util.find_spec(package) is None]


def install_command(*packages: str) -> str:
    """The command that installs these packages."""
    return " ".join(["pip install", *(_REQUIREMENTS.get(name, name) for name in packages)])
