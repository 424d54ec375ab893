"""A kernel mapping for the package `kernels`: the official hook of transformers.

::

    import kernels
    from posenc_native.hf.kernels import mapping

    kernels.register_kernel_mapping(mapping())
    kernels.kernelize(model, mode=kernels.Mode.TRAINING, device="cpu")

transformers decorates a rotary function of a model with the name of a layer, "rotary_pos_emb", if
the function fits its kernel. `kernelize` then gives this function the forward of our layer. It is
the rotation alone: the tables stay those of the model. The name says little about the function:
NanoChat rotates in the other direction, and GPT-OSS has a column for each pair. So the layer probes
the function that it replaces (rotation.py), and it compares the halves of a table, which differ in
HunYuan-VL. A call that is not a rotation of pairs goes to the model's own function.
"""

from __future__ import annotations

import dataclasses
from importlib import import_module
from importlib.metadata import version
from typing import Any

from torch import Tensor, nn

from posenc_native.core.calls.optional import absent, install_command

from . import operators as _operators  # noqa: F401  # torch.ops has them now
from .functions import rotated

__all__ = ["mapping"]

_LAYER = "rotary_pos_emb"


def mapping() -> dict[str, dict[str, dict[Any, Any]]]:
    """A mapping for ``kernels.register_kernel_mapping``: the rotation of q and k on CPU and CUDA.

    It serves inference and training, also with torch.compile. Nothing is downloaded. ``kernelize``
    changes functions of files of transformers: every model of the same files follows.

    Returns:
        The layer "rotary_pos_emb", for each device and each mode of ``kernels.Mode``.

    Raises:
        ImportError: ``kernels`` is not installed, lacks a mode, or has a version that the installed
            transformers does not call.

    Example:
        >>> import kernels  # doctest: +SKIP
        >>> kernels.register_kernel_mapping(mapping())  # doctest: +SKIP
        >>> kernels.kernelize(model, mode=kernels.Mode.TRAINING, device="cpu")  # doctest: +SKIP
    """
    caller = "posenc_native.hf.kernels.mapping"
    if missing := absent("kernels", "transformers"):
        raise ImportError(f"{caller}: needs {install_command(*missing)}")
    kernels: Any = import_module("kernels")
    import_utils: Any = import_module("transformers.utils.import_utils")

    if not import_utils.is_kernels_available():
        bounds = (getattr(import_utils, f"KERNELS_{end}_VERSION", "?") for end in ("MIN", "MAX"))
        raise ImportError(
            f"{caller}: transformers {version('transformers')} calls kernels from version "
            f"{' to below '.join(bounds)}, but {version('kernels')} is installed; install one of "
            "these, or use posenc_native.hf.patch"
        )
    try:
        mode = kernels.Mode
        uses = (mode.INFERENCE, mode.TRAINING)
        modes = (*uses, *(use | mode.TORCH_COMPILE for use in uses))
    except AttributeError as error:
        raise ImportError(
            f"{caller}: kernels {version('kernels')} has other modes than 0.17 ({error}); "
            "use posenc_native.hf.patch"
        ) from error
    return {_LAYER: {device: dict.fromkeys(modes, _Layer()) for device in ("cpu", "cuda")}}


@dataclasses.dataclass(frozen=True)
class _Layer:
    """A repository in the sense of `kernels`: it names a layer and loads its class."""

    layer_name: str = _LAYER

    def load(self) -> type[nn.Module]:
        return RotaryPosEmb


class RotaryPosEmb(nn.Module):
    """The layer. `kernels` binds its forward to a module that wraps the model's own function."""

    can_torch_compile = True
    has_backward = True

    def forward(
        self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1
    ) -> tuple[Tensor, ...]:
        return rotated(self, q, k, cos, sin, unsqueeze_dim)
