"""Packages that only parts of the library need: what is said where one is not installed."""

from __future__ import annotations

import importlib.util

# What pip is asked for where the name alone would not do. (The extras of this package want an index
# that has it; a command that names what is missing always works.)
_REQUIREMENTS = {"torch": '"torch>=2.10"'}


def absent(*packages: str) -> list[str]:
    """Those of the packages that are not installed; none of them is imported."""
    return [package for package in packages if importlib.util.find_spec(package) is None]


def install_command(*packages: str) -> str:
    """What to type so that these packages are there."""
    return " ".join(["pip install", *(_REQUIREMENTS.get(name, name) for name in packages)])
