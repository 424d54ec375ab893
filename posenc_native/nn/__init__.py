"""torch modules. They hold configuration and learned parameters, no tables of floats: nothing is
cast by ``.half()``, lost on the meta device or saved in a state_dict.
"""

from __future__ import annotations

from posenc_native import backend

from .relative import (
    FIRE,
    ALiBi,
    ClippedRelativeBias,
    Kerple,
    RelativePositionalEncoding,
    Sandwich,
    ShawRelativePosition,
    SwinRelativeBias,
    SwinV2RelativeBias,
    T5RelativeBias,
    ToeplitzBias,
)
from .rotary import RotaryEmbedding
from .sinusoidal import SinusoidalPositionalEncoding

backend.torch_operations()  # not inside torch.compile, where a first call might import it too late

__all__ = [
    "FIRE",
    "ALiBi",
    "ClippedRelativeBias",
    "Kerple",
    "RelativePositionalEncoding",
    "RotaryEmbedding",
    "Sandwich",
    "ShawRelativePosition",
    "SinusoidalPositionalEncoding",
    "SwinRelativeBias",
    "SwinV2RelativeBias",
    "T5RelativeBias",
    "ToeplitzBias",
]
