"""Finds the rotary classes of the installed vLLM and puts ours in their place.

vLLM has a register of out-of-tree classes by the name of the class that they replace
(``CustomOp.register_oot``). A class that is no CustomOp (long rope) is replaced where ``get_rope``
looks for it. Layers stay vLLM's if this library does not know their class, or if its arguments are
others than those known: the log says so when a layer is made. (Earlier, vLLM has not configured its
log yet.)
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from torch import nn

from .layer import ExactRotary, arguments_of, log
from .rotations import KNOWN

__all__ = ["replace"]

_PACKAGE = "vllm.model_executor.layers.rotary_embedding"


def replace() -> None:
    """Replace the classes of this process's vLLM."""
    try:
        package = importlib.import_module(_PACKAGE)
        custom_op = importlib.import_module("vllm.model_executor.custom_op")
        platform = importlib.import_module("vllm.platforms").current_platform
        taken: dict[str, type] = custom_op.op_registry_oot
        register_oot = custom_op.CustomOp.register_oot
        contexts = importlib.import_module("vllm.forward_context")
        _ = contexts.get_forward_context, contexts.is_forward_context_available  # step
        supported = platform.is_cpu() or platform.is_cuda()
        factors: dict[str, Callable[[], Any]] = importlib.import_module(
            "vllm.envs"
        ).environment_variables
    except (ImportError, AttributeError) as error:
        log.warning("posenc_native: this version of vLLM has another structure (%s); off", error)
        return
    if not supported:
        log.info("posenc_native: no kernels for this platform of vLLM; off")
        return
    # vLLM keeps compiled models in files that its variables name, but not its plugins.
    factors["VLLM_POSENC_NATIVE"] = lambda: True
    for theirs in _classes(package):
        name = theirs.__name__
        if getattr(theirs, "forward_native", None) is custom_op.CustomOp.forward_native:
            continue  # a base class without a rotation of its own
        present: type = taken.get(name, getattr(package, name, theirs))
        if issubclass(present, ExactRotary):
            continue  # called twice in a process
        if name in taken:
            log.warning("posenc_native: another plugin has replaced vLLM's %s", name)
            continue
        values = {"theirs": theirs, "known": KNOWN.get(name), "reason": _reason(theirs)}
        ours = type(f"Exact{name}", (ExactRotary, theirs), values)
        if issubclass(theirs, custom_op.CustomOp):
            register_oot(ours, name=name)
        else:
            setattr(package, name, ours)


def _classes(package: ModuleType) -> Iterator[type]:
    """The rotary layers in the modules of vLLM's package."""
    for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        try:
            module = importlib.import_module(found.name)
        except ImportError as error:  # a module that this platform of vLLM does not use
            log.debug("posenc_native: %s", error)
            continue
        for name, kind in inspect.getmembers(module, inspect.isclass):
            here = kind.__module__ == module.__name__
            if here and name.partition("RotaryEmbedding")[1] and issubclass(kind, nn.Module):
                yield kind


def _reason(theirs: type) -> str:
    """The reason why a class cannot be replaced; "" if it can."""
    known = KNOWN.get(theirs.__name__)
    if known is None:
        return "this library does not know this class"
    call: Any = getattr(theirs, "forward_native", None) or theirs.forward  # type: ignore[attr-defined]
    arguments = [*inspect.signature(call).parameters][1:]
    ours = [*inspect.signature(ExactRotary.forward).parameters][1:]
    if arguments != ours[: len(arguments)]:
        return f"a call takes ({', '.join(arguments)})"
    names = {*arguments_of(theirs)}
    if names != known.arguments:
        changed = ", ".join(sorted(names ^ known.arguments))
        return f"other arguments in this version: {changed}"
    return ""
