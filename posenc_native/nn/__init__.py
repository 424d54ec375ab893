"""torch modules, which hold configuration and learned parameters.

They hold no floating-point tables that ``.half()`` could cast, the meta device could lose or a
state_dict could save. Tables that originals saved (``pe``, ``inv_freq``,
``relative_position_index``, ``relative_coords_table``) load strictly: they are compared with what
the module computes, and not stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from posenc_native.core.calls.optional import absent, install_command
from posenc_native.core.calls.suggestions.vocabulary import unknown_name
from posenc_native.engines import late

if absent("torch"):
    raise ImportError(f"posenc_native.nn needs torch: {install_command('torch')}")

from .absolute import LinearPositionalEncoding, NormalizedPositionalEncoding, PositionalEncoding
from .biases import FIRE, ALiBi, ClippedRelativeBias, Kerple, Sandwich, T5RelativeBias, ToeplitzBias
from .learned import LearnedPositionalEncoding, RecurrentPositionalEncoding
from .norm_rotary import NormRotaryEmbedding
from .query_terms import (
    DecomposedRelativePosition,
    RelativePositionalEncoding,
    ShawRelativePosition,
)
from .rotary import LearnedRotaryEmbedding, RotaryEmbedding, XPos
from .selective import SelectiveRotaryEmbedding
from .sinusoidal import (
    FourierFeatures,
    SinusoidalEmbedding,
    SinusoidalPositionalEncoding,
    TimestepEmbedding,
)
from .windows import SwinRelativeBias, SwinV2RelativeBias

if TYPE_CHECKING:
    from .parallel import HeadParallel as HeadParallel

late.torch_operations()  # here, since a first call inside torch.compile might import it too late

__all__ = [
    "FIRE",
    "ALiBi",
    "ClippedRelativeBias",
    "DecomposedRelativePosition",
    "FourierFeatures",
    "Kerple",
    "LearnedPositionalEncoding",
    "LearnedRotaryEmbedding",
    "LinearPositionalEncoding",
    "NormRotaryEmbedding",
    "NormalizedPositionalEncoding",
    "PositionalEncoding",
    "RecurrentPositionalEncoding",
    "RelativePositionalEncoding",
    "RotaryEmbedding",
    "Sandwich",
    "SelectiveRotaryEmbedding",
    "ShawRelativePosition",
    "SinusoidalEmbedding",
    "SinusoidalPositionalEncoding",
    "SwinRelativeBias",
    "SwinV2RelativeBias",
    "T5RelativeBias",
    "TimestepEmbedding",
    "ToeplitzBias",
    "XPos",
]


if not TYPE_CHECKING:  # it would tell type checkers that every name exists

    def __getattr__(name: str) -> Any:
        if name != "HeadParallel":
            raise unknown_name(__name__, name, __all__)
        from .parallel import HeadParallel

        return HeadParallel


def __dir__() -> list[str]:
    return sorted(
        {*__all__, "HeadParallel", *(name for name in globals() if name.startswith("__"))}
    )
