"""The rotation of one of vLLM's rotary layers, from the arguments of its constructor.

Frequencies are this library's, in float64. vLLM's own are float32, with an error of 1e-7 of the
angle: 0.1 radians at position 1,000,000.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from posenc_native.core.frequencies.scaling import rotary_frequencies
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


def _rotary(a: Arguments, **options: Any) -> Rotary:
    pairing: Any = "half" if a["is_neox_style"] else "interleaved"
    values = {"base": float(a["base"]), "rotary_dim": a["rotary_dim"]}
    if "inv_freq" in options:
        values = {}
    return Rotary(a["head_size"], **values, pairing=pairing, layout="thd", **options)


def _one(rotary: Rotary, rows: float) -> Rotations:
    return Rotations(rotary, None, ((rotary, math.ceil(rows)),))


def _plain(a: Arguments, layer: Any) -> Rotations:
    return _one(_rotary(a), a["max_position_embeddings"])


def _linear(a: Arguments, layer: Any) -> Rotations:
    factors = a["scaling_factors"]
    if isinstance(factors, list | tuple):
        if len(factors) != 1:
            raise ValueError(f"it has {len(factors)} scaling factors at once")
        factors = factors[0]
    factor = float(factors)
    layer._scaling_factor_to_offset = {factor: 0}  # its own table would set it
    rotary = _rotary(a, scaling={"rope_type": "linear", "factor": factor})
    return _one(rotary, a["max_position_embeddings"] * factor)


def _ntk(a: Arguments, layer: Any) -> Rotations:
    scaling = {"rope_type": "ntk", "factor": a["scaling_factor"], "mixed_b": a["mixed_b"]}
    return _one(_rotary(a, scaling=scaling), a["max_position_embeddings"])


def _alpha(a: Arguments, alpha: float) -> Rotations:
    scaling = {"rope_type": "ntk_alpha", "alpha": alpha}
    return _one(_rotary(a, scaling=scaling), a["max_position_embeddings"])


def _dynamic_alpha(a: Arguments, layer: Any) -> Rotations:
    return _alpha(a, a["scaling_alpha"])


def _dynamic(a: Arguments, layer: Any) -> Rotations:
    """Not dynamic in vLLM: the frequencies of the longest sequence that it serves."""
    factor, length = a["scaling_factor"], a["max_position_embeddings"]
    return _alpha(a, factor * length / a["max_trained_positions"] - (factor - 1))


def _yarn_scaling(a: Arguments) -> dict[str, Any]:
    names = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim", "attention_factor")
    return {
        "rope_type": "yarn",
        "factor": a["scaling_factor"],
        "original_max_position_embeddings": a["max_position_embeddings"],
        "truncate": bool(a["truncate"]),
        **{name: a[name] for name in names},
    }


def _yarn(a: Arguments, layer: Any) -> Rotations:
    rotary = _rotary(a, scaling=_yarn_scaling(a))
    return _one(rotary, a["max_position_embeddings"] * a["scaling_factor"])


def _deepseek(a: Arguments, layer: Any) -> Rotations:
    """YaRN; mscale counts where mscale_all_dim is 0 too. Heads are only the rotated dims."""
    factor = a["scaling_factor"]

    def magnitude(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    scaling = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": a["max_position_embeddings"],
        "beta_fast": a["beta_fast"],
        "beta_slow": a["beta_slow"],
        "attention_factor": magnitude(a["mscale"]) / magnitude(a["mscale_all_dim"]),
    }
    rotary = _rotary({**a, "head_size": a["rotary_dim"]}, scaling=scaling)
    return _one(rotary, a["max_position_embeddings"] * factor)


def _llama3(a: Arguments, layer: Any) -> Rotations:
    scaling = {
        "rope_type": "llama3",
        "factor": a["scaling_factor"],
        "low_freq_factor": a["low_freq_factor"],
        "high_freq_factor": a["high_freq_factor"],
        "original_max_position_embeddings": a["orig_max_position"],
    }
    return _one(_rotary(a, scaling=scaling), a["max_position_embeddings"])


def _longrope(a: Arguments, layer: Any) -> Rotations:
    """vLLM chooses the long or the short factors by max_model_len, once for all sequences."""
    trained = a["original_max_position_embeddings"]
    short, long = (
        _rotary(
            a,
            scaling={
                "rope_type": "longrope",
                "short_factor": a["short_factor"],
                "long_factor": a["long_factor"],
                "original_max_position_embeddings": trained,
                "attention_factor": magnitude,
                "seq_len": trained + is_long,
            },
        )
        for is_long, magnitude in enumerate((layer.short_mscale, layer.long_mscale))
    )
    rows = ((short, trained), (long, a["max_position_embeddings"]))
    return Rotations(long if layer.use_long_rope else short, None, rows)


def _proportional(a: Arguments, layer: Any) -> Rotations:
    """Gemma 4: the frequencies of the whole head, those after the rotated share 0."""
    inv_freq = rotary_frequencies(a["head_size"], float(a["base"]))[0].copy()
    inv_freq[a["rotary_dim"] // 2 :] = 0.0
    return _one(_rotary(a, inv_freq=inv_freq), a["max_position_embeddings"])


def _with_axes(a: Arguments, layer: Any, axis_map: Any) -> Rotations:
    """Positions of several axes; vLLM's own constructor has enlarged the table's length."""
    scaling, rows = None, layer.max_position_embeddings
    if a.get("scaling_factor") is not None:
        # As in vLLM, the enlarged length decides which pairs YaRN slows.
        scaling = _yarn_scaling({**a, "max_position_embeddings": rows})
        rows *= a["scaling_factor"]
    rotary = _rotary(a, scaling=scaling)
    by_axis = None if axis_map is None else _rotary(a, scaling=scaling, axis_map=axis_map)
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
    "NTKScalingRotaryEmbedding": _known("scaling_factor mixed_b", _ntk),
    "DynamicNTKAlphaRotaryEmbedding": _known("scaling_alpha", _dynamic_alpha),
    "DynamicNTKScalingRotaryEmbedding": _known("scaling_factor max_trained_positions", _dynamic),
    "YaRNScalingRotaryEmbedding": _known(f"{_YARN} attention_factor truncate", _yarn),
    "Llama3RotaryEmbedding": _known(
        "scaling_factor low_freq_factor high_freq_factor orig_max_position", _llama3
    ),
    "Phi3LongRoPEScaledRotaryEmbedding": _known(
        "original_max_position_embeddings short_factor long_factor short_mscale long_mscale",
        _longrope,
        False,
    ),
    "Gemma4RotaryEmbedding": _known("", _proportional),
    "DeepseekScalingRotaryEmbedding": _known(f"{_YARN} init_cache", _deepseek, True, "first"),
    "DeepseekV4ScalingRotaryEmbedding": _known(f"{_YARN} init_cache", _deepseek, True, "last"),
    "MRotaryEmbedding": _known(_MROPE, _mrope),
    "Ernie4_5_VLRotaryEmbedding": _known(_MROPE, _ernie, False),
    "BailingMRotaryEmbedding": _known("mrope_section", _bailing),
    "MRotaryEmbeddingInterleaved": _known("mrope_section mrope_interleaved", _pangu, False),
}
