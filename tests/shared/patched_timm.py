"""A pytest plugin: every rotary model that timm makes is patched. For timm's own tests.

    make own-tests

Says at the end how many models were patched, of how many that rotate.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import pytest
import timm_models  # noqa: F401 (imports timm without torchvision)
import torch

from posenc_native import hf

timm: Any = sys.modules["timm"]
PATCHED: dict[str, str] = {}
MAKE = timm.create_model


@functools.wraps(MAKE)
def create_model(name: str, *args: Any, **kwargs: Any) -> Any:
    model = MAKE(name, *args, **kwargs)
    if any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        return model
    try:
        handle = hf.patch(model)
    except ValueError as why:
        PATCHED[name] = str(why)
    else:
        PATCHED[name] = "" if handle.patched else "nothing"
        model._handle_of_patch = handle
    return model


def script(*_: Any, **__: Any) -> Any:
    pytest.skip("torch.jit.script takes no module with a method of its own; torch.compile does")


timm.create_model = create_model
timm.models.create_model = create_model
torch.jit.script = script


def pytest_sessionfinish(session: Any) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["patched"] = PATCHED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    PATCHED.update(node.workeroutput["patched"])


def pytest_terminal_summary(terminalreporter: Any) -> None:
    left = {name: why for name, why in PATCHED.items() if why}
    terminalreporter.write_line(
        f"patched: {len(PATCHED) - len(left)} of {len(PATCHED)} models, torch {torch.__version__}"
    )
    for name, why in left.items():
        terminalreporter.write_line(f"not patched: {name}: {why}")
