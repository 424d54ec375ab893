"""The modules that import matplotlib, imported when a picture is first drawn.

Signatures and docstrings of posenc_native.plot need no matplotlib: the command line reads them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from posenc_native.core.calls.optional import absent, install_command

if TYPE_CHECKING:
    from . import colors, drawing

__all__ = ["colors", "drawing"]


class _Late:
    """A module of this package, imported when one of its names is first used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        try:
            module = importlib.import_module(f".{self._name}", __package__)
        except ImportError:
            if absent("matplotlib"):
                how = install_command("matplotlib")
                raise ImportError(f"posenc_native.plot needs matplotlib: {how}") from None
            raise
        return getattr(module, name)


if not TYPE_CHECKING:
    colors, drawing = _Late("colors"), _Late("drawing")
