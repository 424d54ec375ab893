"""Rotary encodings beyond the verbs: frequencies and their scaling, axes, decay.

    frequencies       `rotary_frequencies`      [P] and an attention factor, with any scaling
                      `softmax_correction`      YaRN's factor of the scores
    models            `nope_layers`             layers of a configuration that do not rotate
    several axes      `mrope_axis_map`          the axis that drives each pair: text, images, videos
                      `axial_rotary`            a grid whose axes share the pairs
                      `vision_rotary`           the encoder of a published vision model
                      `mixed_frequencies`       learned frequencies of two axes (RoPE-Mixed)
    a turn per dim    `FullWidthRotary`         partners of a pair turn by different angles
    decay             `xpos_tables`             scores that decay with distance

Their results are frequencies, axes or tables for `apply_rotary`, or a `Rotary`. The verbs
themselves (`apply_rotary`, `norm_rotary_qk`, `rotary_append` ...) are names of posenc_native,
and so is `Rotary`, which has presets of published models.

Source: Su et al. 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding"; each
function names that of its variant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from posenc_native.encodings.namespaces import lazy

if TYPE_CHECKING:
    from posenc_native.core.frequencies.axes import mrope_axis_map as mrope_axis_map
    from posenc_native.core.frequencies.scaling import rotary_frequencies as rotary_frequencies
    from posenc_native.core.frequencies.scaling import softmax_correction as softmax_correction
    from posenc_native.models.layers import nope_layers as nope_layers

    from .full_width import FullWidthRotary as FullWidthRotary
    from .several_axes import axial_rotary as axial_rotary
    from .several_axes import mixed_frequencies as mixed_frequencies
    from .several_axes import vision_rotary as vision_rotary
    from .tables import xpos_tables as xpos_tables
else:
    __all__, __getattr__, __dir__ = lazy(
        __name__,
        {
            "full_width": "FullWidthRotary",
            "several_axes": "axial_rotary mixed_frequencies vision_rotary",
            "tables": "xpos_tables",
            "posenc_native.core.frequencies.axes": "mrope_axis_map",
            "posenc_native.core.frequencies.scaling": "rotary_frequencies softmax_correction",
            "posenc_native.models.layers": "nope_layers",
        },
    )
