"""torch modules. They hold configuration and learned parameters, no tables of floats that could be
cast by ``.half()``, lost on the meta device or saved in a state_dict.
"""

from __future__ import annotations

from posenc_native.engines import late

from .absolute import (
    LearnedPositionalEncoding,
    LinearPositionalEncoding,
    NormalizedPositionalEncoding,
    PositionalEncoding,
    RecurrentPositionalEncoding,
)
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
from .rotary import LearnedRotaryEmbedding, RotaryEmbedding, XPos
from .sinusoidal import (
    FourierFeatures,
    SinusoidalEmbedding,
    SinusoidalPositionalEncoding,
    TimestepEmbedding,
)

late.torch_operations()  # not inside torch.compile, where a first call might import it too late

__all__ = [
    "FIRE",
    "ALiBi",
    "ClippedRelativeBias",
    "FourierFeatures",
    "Kerple",
    "LearnedPositionalEncoding",
    "LearnedRotaryEmbedding",
    "LinearPositionalEncoding",
    "NormalizedPositionalEncoding",
    "PositionalEncoding",
    "RecurrentPositionalEncoding",
    "RelativePositionalEncoding",
    "RotaryEmbedding",
    "Sandwich",
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
