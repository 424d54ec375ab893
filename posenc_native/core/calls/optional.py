"""Packages that only parts of the library need, and messages if a package is not installed."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType
from typing import Any

# Requirements for pip if the name alone would not do. (The extras of this package need an index
# that has it; a command that names the missing packages always works.)
_REQUIREMENTS = {"torch": '"torch>=2.10"'}


def absent(*packages: str) -> list[str]:
    """The packages that are not installed; imports none of them."""
    return [package for package in packages if importlib.util.find_spec(package) is None]


def install_command(*packages: str) -> str:
    """The command that installs these packages."""
    return " ".join(["pip install", *(_REQUIREMENTS.get(name, name) for name in packages)])


class Unavailable(ModuleType):
    """A module of this package that cannot be imported here, since it needs a missing package.

    It can be looked at: by help(), inspect, hasattr and completion. The first use of a name in it
    imports the module. This raises the error that says what to install, unless the package has been
    installed since.
    """

    def __init__(self, name: str, error: ImportError) -> None:
        super().__init__(name, doc=str(error))

    def __getattr__(self, name: str) -> Any:
        # Tools look up private names (__path__, __wrapped__, _repr_html_) in every object.
        if name.startswith("_"):
            raise AttributeError(
                f"module {self.__name__!r} has no attribute {name!r}", name=name, obj=self
            )
        return getattr(importlib.import_module(self.__name__), name)

    def __repr__(self) -> str:
        return f"<module {self.__name__!r}, not imported: {self.__doc__}>"
