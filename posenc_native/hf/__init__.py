"""Patch a loaded model of transformers, diffusers or timm so that it rotates with this library.

::

    from posenc_native import hf

    handle = hf.patch(model)     # generate, train, compile: as before, with an exact phase
    handle.undo()                # every module is as it was

    with hf.patch(model):        # the same for a while
        model.generate(...)

In a transformers model, a rotary-embedding module turns position ids into cos and sin in float32
(off by up to ``position * 2**-24``: 8e-3 at 128k) and rounds them to the model's dtype. Every
attention module passes them with q and k to a function of its file, ``apply_rotary_pos_emb``.
After `patch` the module computes exact cos and sin in float32 (`posenc_native.rotary_tables`), and
the function calls `posenc_native.apply_rotary_qk`.

Only instances are changed, never a class or a module of transformers. The rotary-embedding module
gets an instance-level ``forward``. That of an attention module has the same code but other
globals, in which the rotary function is replaced. Everything else in these modules (caches,
attention backends, scalings that change with the length) remains transformers' own.

With ``patch(model, fuse_norm=True)`` the forward of an attention module is recompiled from its
source, so that the norm of q and k is done in the pass that rotates them (normed/).

In diffusers and timm only the name of a function is known: its behavior is learned when it is
called, and an attention processor gets a copy with other globals (learned/).

There is no list of models. The files here call the model's own code to find the coordinate and the
frequency behind each column of a table, how a model pairs the dimensions of a head, and whether it
rotates only a part of them (tables.py, rotation.py). A part of a model that fits no known form is
left alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from posenc_native.core.calls.optional import absent, install_command
from posenc_native.core.calls.suggestions.vocabulary import unknown_name

if absent("torch"):
    raise ImportError(
        "posenc_native.hf needs torch (and transformers, for a model): "
        + install_command("torch", "transformers")
    )

from .patching import patch, unpatch

__all__ = ["patch", "unpatch"]

if not TYPE_CHECKING:  # it would tell type checkers that every name exists

    def __getattr__(name: str) -> Any:
        raise unknown_name(__name__, name, __all__)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
