"""Namespaces: packages whose names are imported when they are first used.

Importing every name takes 40 ms. Type checkers read imports below `TYPE_CHECKING` instead;
tests/packaging/test_import.py compares the two.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

from posenc_native.engines import late


def lazy(
    package: str, places: Mapping[str, str]
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """The ``__all__``, ``__getattr__`` and ``__dir__`` of a package.

    Args:
        package: its name.
        places: names, separated by spaces, by the module that has them: one of the package, or the
            full name of another module.
    """
    modules = {name: module for module, names in places.items() for name in names.split()}
    names = sorted(modules)
    public = package.replace(".encodings.", ".")

    def get(name: str) -> Any:
        # Here: it takes 2 ms.
        from posenc_native.core.calls.suggestions.vocabulary import answered, unknown_name

        if name not in modules:
            raise unknown_name(public, name, names)
        late.torch_is_there()
        module = modules[name]
        module = module if module.startswith("posenc_native.") else f"{package}.{module}"
        value = getattr(importlib.import_module(module), name)
        if not isinstance(value, type):
            value = answered(value, public)
        setattr(sys.modules[package], name, value)  # the next look-up does not come here
        return value

    def shown() -> list[str]:
        return sorted({*names, *(name for name in vars(sys.modules[package]) if name[:2] == "__")})

    return names, get, shown
