"""Files of packages whose own `__init__` files may fail here."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from unittest.mock import MagicMock


def torchtune_positions() -> ModuleType:
    """torchtune's file of position embeddings; the rest of it needs an older torchao."""
    return without_its_packages("torchtune", "modules", "position_embeddings")


def timm_positions() -> ModuleType:
    """timm's file of sinusoids and rotations; the rest of timm needs torchvision."""
    return without_its_packages("timm", "layers", "pos_embed_sincos")


@functools.cache
def timm_eva() -> ModuleType:
    """timm's file of EVA02 and DINOv3, which use nothing of torchvision.

    Of that there is a stand-in while all of timm is imported, and no longer: others ask whether
    it is there.
    """
    if importlib.util.find_spec("torchvision"):
        return importlib.import_module("timm.models.eva")
    for name in [name for name in sys.modules if name.partition(".")[0] == "timm"]:
        del sys.modules[name]  # parts of it, without what surrounds them
    parts = ("", ".datasets", ".ops", ".ops.misc", ".transforms", ".transforms.functional")
    stand_ins = {f"torchvision{part}": MagicMock() for part in parts}
    sys.modules.update(stand_ins)
    try:
        return importlib.import_module("timm.models.eva")
    finally:
        for name in stand_ins:
            del sys.modules[name]


@functools.cache
def without_its_packages(*path: str) -> ModuleType:
    """A module of a package of whose `__init__` files it needs nothing, and which may fail here."""
    spec = importlib.util.find_spec(path[0])
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(f"No module named '{path[0]}'")
    before = dict(sys.modules)
    for depth in range(1, len(path)):
        package = ".".join(path[:depth])
        empty = ModuleSpec(package, None, is_package=True)
        empty.submodule_search_locations = [
            str(Path(spec.submodule_search_locations[0], *path[1:depth]))
        ]
        sys.modules[package] = importlib.util.module_from_spec(empty)
    try:
        return importlib.import_module(".".join(path))
    finally:  # whoever asks for the package next gets all of it
        for name in [name for name in sys.modules if name.partition(".")[0] == path[0]]:
            del sys.modules[name]
        sys.modules.update(before)
