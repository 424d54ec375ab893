"""Let a loaded model of transformers, diffusers or timm rotate through this library.

::

    from posenc_native import hf

    handle = hf.patch(model)     # generate, train, compile: as before, with an exact phase
    handle.undo()                # every module is as it was

    with hf.patch(model):        # the same for a while
        model.generate(...)

What a transformers model does: a rotary-embedding module turns position ids into cos and sin in
float32 (off by up to ``position * 2**-24``: 8e-3 at 128k), rounds them to the model's dtype, and
every attention module hands them with q and k to a function of its file, ``apply_rotary_pos_emb``.
After `patch` the first computes exact cos and sin in float32 (`posenc_native.rotary_tables`), and
the second calls `posenc_native.apply_rotary_qk_tables`.

Only instances are touched, never a class or a module of transformers. The rotary-embedding module
gets an instance-level ``forward``. An attention module gets one with the same code but other
globals, in which the rotary function is replaced. Everything else that these modules do (caches,
attention backends, scalings that change with the length) is still transformers' own.

With ``patch(model, fuse_norm=True)`` its forward is compiled anew from its source, so that a norm
of q and k is done in the pass that rotates them (normed/).

In diffusers and timm nothing but the name of a function is known: what it does is learned when it
is called, and an attention processor gets a copy with other globals (learned/).

There is no list of models. Which coordinate and which frequency drive a column of a table, how a
model pairs the dimensions of a head, whether it rotates only a part of them: the files here find
that out by calling the model's own code (tables.py, rotation.py). A part of a model whose answers
fit no known form is left alone.
"""

from __future__ import annotations

from posenc_native.base.optional import absent, install_command

if absent("torch"):
    raise ImportError(
        "posenc_native.hf needs torch (and transformers, for a model): "
        + install_command("torch", "transformers")
    )

from .patching import Patch, patch, unpatch

__all__ = ["Patch", "patch", "unpatch"]


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
