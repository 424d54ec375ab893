"""The rotation of one of vLLM's rotary layers, from the arguments of its constructor.

Frequencies are vLLM's, in float32: checkpoints were trained with these bits, and transformers, also
as `posenc_native.hf.patch` leaves it, has the same. So a trainer and a server rotate alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from posenc_native.encodings.rotary.rotary import Rotary

__all__ = ["KNOWN", "Known", "Rotations"]

Arguments = Mapping[str, Any]


class Rotations(NamedTuple):
    """The rotations of a layer.

    Attributes:
        by_token: the rotation for positions ``[tokens]``.
        by_axis: the rotation for positions ``[axes, tokens]``; None for layers without axes.
        rows: the rows of the table that vLLM would make, and their rotation, one after another.
    """

    by_token: Rotary
    by_axis: Rotary | None
    rows: tuple[tuple[Rotary, int], ...]


class Known(NamedTuple):
    """A class of vLLM that can be replaced.

    Attributes:
        arguments: the names of its constructor's arguments; with others, vLLM has changed.
        rotations: makes the rotations of a layer from its arguments and the layer itself, which
            vLLM's constructor has filled.
        overwrites: whether vLLM's class writes to the query and key, at least on one device.
        part: the dims of a head to rotate, if vLLM does not split the last axis into heads.
    """

    arguments: frozenset[str]
    rotations: Callable[[Arguments, Any], Rotations]
    overwrites: bool = True
    part: Literal["first", "last"] | None = None


def _rotary(
    a: Arguments, layer: Any, argument: Any, *, scale: float = 1.0, share: float = 1.0, **axes: Any
) -> Rotary:
    """The rotation with the frequencies that vLLM's class computes from its argument, times share.

    scale: of cosines and sines.
    """
    import torch

    if a["rotary_dim"] % 2:
        raise ValueError(f"rotary_dim: expected an even number, got {a['rotary_dim']}")
    with torch.device("cpu"):  # as transformers; vLLM's default is the model's device
        inv_freq = (layer._compute_inv_freq(argument).float() * share).numpy()
    pairing: Any = "half" if a["is_neox_style"] else "interleaved"
    values = {"inv_freq": inv_freq, "scale": scale, "pairing": pairing, "layout": "thd"}
    return Rotary(a["head_size"], **values, **axes)


def _one(rotary: Rotary, rows: float) -> Rotations:
    return Rotations(rotary, None, ((rotary, math.ceil(rows)),))


def _plain(a: Arguments, layer: Any) -> Rotations:
    """The frequencies depend on the base, and on what the constructor has kept."""
    return _one(_rotary(a, layer, layer.base), a["max_position_embeddings"])


def _linear(a: Arguments, layer: Any) -> Rotations:
    factors = a["scaling_factors"]
    if isinstance(factors, list | tuple):
        if len(factors) != 1:
            raise ValueError(f"it has {len(factors)} scaling factors at once")
        factors = factors[0]
    factor = float(factors)
    layer._scaling_factor_to_offset = {factor: 0}  # its own table would set it
    rotary = _rotary(a, layer, layer.base, share=1 / factor)
    return _one(rotary, a["max_position_embeddings"] * factor)


def _alpha(a: Arguments, layer: Any, alpha: float) -> Rotations:
    dims = layer.rotary_dim
    base = layer.base * alpha ** (dims / (dims - 2))
    return _one(_rotary(a, layer, base), a["max_position_embeddings"])


def _dynamic_alpha(a: Arguments, layer: Any) -> Rotations:
    return _alpha(a, layer, a["scaling_alpha"])


def _dynamic(a: Arguments, layer: Any) -> Rotations:
    """Not dynamic in vLLM: the frequencies of the longest sequence that it serves."""
    factor, length = a["scaling_factor"], a["max_position_embeddings"]
    return _alpha(a, layer, factor * length / a["max_trained_positions"] - (factor - 1))


def _yarn(a: Arguments, layer: Any) -> Rotations:
    factor = layer.scaling_factor
    rotary = _rotary(a, layer, factor, scale=layer.mscale)
    return _one(rotary, a["max_position_embeddings"] * factor)


def _deepseek(a: Arguments, layer: Any) -> Rotations:
    """YaRN. Heads are only the rotated dims."""
    return _yarn({**a, "head_size": a["rotary_dim"]}, layer)


def _longrope(a: Arguments, layer: Any) -> Rotations:
    """vLLM chooses the long or the short factors by max_model_len, once for all sequences."""
    short = _rotary(a, layer, a["short_factor"], scale=layer.short_mscale)
    long = _rotary(a, layer, a["long_factor"], scale=layer.long_mscale)
    rows = ((short, a["original_max_position_embeddings"]), (long, a["max_position_embeddings"]))
    return Rotations(long if layer.use_long_rope else short, None, rows)


def _with_axes(a: Arguments, layer: Any, axis_map: Any) -> Rotations:
    """Positions of several axes; vLLM's own constructor has enlarged the table's length."""
    rows, argument, scale = layer.max_position_embeddings, layer.base, 1.0
    if a.get("scaling_factor") is not None:
        argument, scale = layer.scaling_factor, layer.mscale
        rows *= argument
    rotary = _rotary(a, layer, argument, scale=scale)
    by_axis = None
    if axis_map is not None:
        by_axis = _rotary(a, layer, argument, scale=scale, axis_map=axis_map)
    return Rotations(rotary, by_axis, ((rotary, math.ceil(rows)),))


def _mrope(a: Arguments, layer: Any) -> Rotations:
    sections = a["mrope_section"]
    if not sections:
        return _with_axes(a, layer, None)
    if not a["mrope_interleaved"]:
        return _with_axes(a, layer, np.repeat(np.arange(len(sections)), sections))
    pairs = np.arange(a["rotary_dim"] // 2)
    axis_map = np.zeros_like(pairs)
    for axis in (1, 2):
        axis_map[(pairs % 3 == axis) & (pairs < 3 * sections[axis])] = axis
    return _with_axes(a, layer, axis_map)


def _pangu(a: Arguments, layer: Any) -> Rotations:
    return _with_axes(a, layer, layer.mrope_dim[: a["rotary_dim"] // 2])


def _ernie(a: Arguments, layer: Any) -> Rotations:
    """Height and width in turns, then time; its sections are in this order too."""
    height, width, time = a["mrope_section"]
    if height != width:
        raise ValueError(f"its sections of height and width differ: {height} and {width}")
    return _with_axes(a, layer, [1, 2] * height + [0] * time)


def _bailing(a: Arguments, layer: Any) -> Rotations:
    """As Ernie, with sections of time, height, width."""
    pairs = np.arange(a["rotary_dim"] // 2)
    return _with_axes(a, layer, np.where(pairs < layer.spatial_size, 1 + pairs % 2, 0))


def _known(names: str, rotations: Callable[[Arguments, Any], Rotations], *options: Any) -> Known:
    names = f"head_size rotary_dim max_position_embeddings base is_neox_style dtype {names}"
    return Known(frozenset(names.split()), rotations, *options)


_YARN = "scaling_factor beta_fast beta_slow mscale mscale_all_dim"
_MROPE = f"mrope_section mrope_interleaved positions_factor {_YARN} attention_factor truncate"

# By name; the first names of all constructors are the same.
KNOWN: Mapping[str, Known] = {
    "RotaryEmbedding": _known("init_cache", _plain),
    "LinearScalingRotaryEmbedding": _known("scaling_factors", _linear),
    "NTKScalingRotaryEmbedding": _known("scaling_factor mixed_b", _plain),
    "DynamicNTKAlphaRotaryEmbedding": _known("scaling_alpha", _dynamic_alpha),
    "DynamicNTKScalingRotaryEmbedding": _known("scaling_factor max_trained_positions", _dynamic),
    "YaRNScalingRotaryEmbedding": _known(f"{_YARN} attention_factor truncate", _yarn),
    "Llama3RotaryEmbedding": _known(
        "scaling_factor low_freq_factor high_freq_factor orig_max_position", _plain
    ),
    "Phi3LongRoPEScaledRotaryEmbedding": _known(
        "original_max_position_embeddings short_factor long_factor short_mscale long_mscale",
        _longrope,
        False,
    ),
    "Gemma4RotaryEmbedding": _known("", _plain),
    "DeepseekScalingRotaryEmbedding": _known(f"{_YARN} init_cache", _deepseek, True, "first"),
    "DeepseekV4ScalingRotaryEmbedding": _known(f"{_YARN} init_cache", _deepseek, True, "last"),
    "MRotaryEmbedding": _known(_MROPE, _mrope),
    "Ernie4_5_VLRotaryEmbedding": _known(_MROPE, _ernie, False),
    "BailingMRotaryEmbedding": _known("mrope_section", _bailing),
    "MRotaryEmbeddingInterleaved": _known("mrope_section mrope_interleaved", _pangu, False),
}
