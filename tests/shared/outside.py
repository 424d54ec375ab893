"""Other projects, whose results are the oracle of tests; requirements/oracles.txt installs them."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest


def module(name: str) -> ModuleType:
    """A module of another project; the test is skipped where it is not installed."""
    return pytest.importorskip(name, reason="an oracle; scripts/setup.sh test oracles installs it")


def timm_layers(name: str) -> ModuleType:
    """``timm.layers.<name>`` without what surrounds it, which needs torchvision."""
    try:
        return importlib.import_module(f"timm.layers.{name}")
    except ImportError:
        for loaded in [key for key in sys.modules if key.split(".")[0] == "timm"]:
            del sys.modules[loaded]
    spec = importlib.util.find_spec("timm")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("an oracle; scripts/setup.sh test oracles installs it: timm")
    for package in ("timm", "timm.layers"):
        folder = spec.submodule_search_locations[0] + package.removeprefix("timm").replace(".", "/")
        # With a spec, which others look for who ask whether timm is there.
        empty = ModuleSpec(package, None, is_package=True)
        empty.submodule_search_locations = [folder]
        sys.modules[package] = importlib.util.module_from_spec(empty)
    return importlib.import_module(f"timm.layers.{name}")
