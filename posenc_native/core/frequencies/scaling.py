"""Frequencies of rotary encodings, and their scalings as a table of rules.

Frequencies are in radians per position. Those of the plain formula are correctly rounded float64
(frequencies.py); the scalings (linear, NTK, YaRN, LongRoPE ...) are float64 arithmetic on them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import wrong_type, wrong_value
from posenc_native.core.calls.constants import constant_without_tensors

from .frequencies import FloatArray, rounded_frequencies
from .scaling_values import (
    KEYS_OF_EVERY_TYPE,
    ROTARY_SCALINGS,
    RotaryBlend,
    ScalingValues,
    rope_type,
    scaling_in_full,
)

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch

# The rules below fill the register, so other modules import it from here.
__all__ = [
    "KEYS_OF_EVERY_TYPE",
    "ROTARY_SCALINGS",
    "RotaryBlend",
    "base_apart",
    "rotary_blend",
    "rotary_frequencies",
    "scaled_frequencies",
    "scaling_in_full",
    "softmax_correction",
]


@constant_without_tensors
def rotary_frequencies(
    rotary_dim: int,
    base: float = 10000.0,
    scaling: Mapping[str, Any] | None = None,
    *,
    seq_len: int | npt.ArrayLike | torch.Tensor | None = None,
) -> tuple[FloatArray, float]:
    """Frequencies of a rotary encoding, optionally scaled to a longer context.

    Args:
        rotary_dim: number of rotated dims of a head, even. For rope_type "proportional" the whole
            head; the share ``partial_rotary_factor`` of it gets a frequency above 0.
        base: "theta", above 0.
        scaling: None, or a mapping in the form of Hugging Face configurations with a "rope_type"
            (older: "type") and the keys of that type:

            ============ ========================================================================
            default      none
            linear       factor
            ntk          factor, mixed_b
            ntk_alpha    alpha
            dynamic      factor, max_position_embeddings; with alpha it is ntk_alpha
            yarn         factor, original_max_position_embeddings, beta_fast (32), beta_slow (1),
                         truncate (True), attention_factor, or mscale with mscale_all_dim
            llama3       factor, low_freq_factor, high_freq_factor,
                         original_max_position_embeddings
            longrope     short_factor, long_factor (a number for each pair),
                         original_max_position_embeddings, factor, attention_factor, or short_mscale
                         with long_mscale
            proportional partial_rotary_factor (1), factor (1)
            riflex       k, L_test: pair k, counted from 1, gets the frequency
                         ``0.9 * 2 pi / L_test``; for the axis of time of a video model
            axial        axes (2): as many equal blocks of pairs, each with the frequencies of a
                         head of ``rotary_dim / axes`` dims
            ============ ========================================================================

            A key that is None counts as absent ("truncate" as False, as in transformers and vLLM).
            "rope_theta" replaces a base left at 10000. "max_position_embeddings" is the top-level
            value of a configuration; "yarn" and "longrope" need it if they have no "factor", and it
            replaces a missing "original_max_position_embeddings". Only "proportional" reads
            "partial_rotary_factor"; for all other types rotary_dim is already the rotated share of
            the head.
        seq_len: length of the sequence, for "dynamic" and "longrope", or as the key "seq_len": a
            Python or NumPy number, or an array or tensor without axes. Without it, these types use
            their frequencies for short sequences.

    Returns:
        ``(inv_freq, attention_factor)``: float64 [rotary_dim // 2] in radians per position, and the
        factor for both cos and sin. For the softmax scale see `softmax_correction`.

    Raises:
        ValueError: rotary_dim is odd, rope_type is unknown, or a key is missing, unknown or
            invalid.
        TypeError: an argument or value has a wrong type.

    Example:
        >>> rotary_frequencies(4, scaling={"rope_type": "linear", "factor": 4.0})
        (array([0.25  , 0.0025]), 1.0)

    Sources: Su et al. 2021 (RoFormer, arXiv:2104.09864); Peng et al. 2023 (YaRN,
    arXiv:2309.00071); Ding et al. 2024 (LongRoPE, arXiv:2402.13753); ``modeling_rope_utils.py`` of
    transformers 5, which decides where the papers leave a choice; for "ntk" Su 2023
    (kexue.fm/archives/9706) and ``NTKScalingRotaryEmbedding`` of vLLM; for "riflex" Zhao et al.
    2025 (RIFLEx, arXiv:2502.15894), equation 8, and the factor 0.9 of the authors' code.
    """
    function = "rotary_frequencies"
    rotary_dim = arguments.width(function, "rotary_dim", rotary_dim)
    base = arguments.positive_number(function, "base", base)
    if scaling is not None and not isinstance(scaling, Mapping):
        wrong_type(function, "scaling", "a mapping or None", type(scaling).__name__)
    values = scaling if seq_len is None else {**(scaling or {}), "seq_len": seq_len}
    return scaled_frequencies(function, rotary_dim, base, values)


def scaled_frequencies(
    function: str, dim: int, base: float, scaling: Mapping[str, Any] | None
) -> tuple[FloatArray, float]:
    """As `rotary_frequencies`; with an odd dim, the last, unpaired dim has a frequency too.

    Models whose rotated share of a head is an odd number of dims rotate one dim more.
    """
    theta, values = _read_scaling(function, base, scaling)
    with np.errstate(all="ignore"):  # values that no float64 can hold are refused below
        inv_freq, factor = ROTARY_SCALINGS[values.rope_type].compute(dim, theta, values)
    if not (inv_freq < arguments.FREQUENCY_LIMIT).all():
        wrong_value(function, "scaling", "frequencies below 2^63", "larger or NaN")
    if not 0 <= factor < arguments.FLOAT32_END:
        wrong_value(function, "scaling", "an attention factor that is finite in float32", factor)
    return inv_freq, factor


def rotary_blend(
    function: str, dim: int, base: float, scaling: Mapping[str, Any] | None
) -> RotaryBlend | None:
    """The pairs that a scaling keeps and those that it slows; None if it treats all pairs alike."""
    theta, values = _read_scaling(function, base, scaling)
    blend = ROTARY_SCALINGS[values.rope_type].blend
    return None if blend is None else blend(dim, theta, values)


def _read_scaling(
    function: str, base: float, scaling: Mapping[str, Any] | None
) -> tuple[float, ScalingValues]:
    """The base, which a scaling may include, and the values of the scaling."""
    values = ScalingValues(function, scaling)
    theta = values.number("rope_theta", base)
    if theta != base and base != 10000.0:
        wrong_value(function, "base", f"scaling['rope_theta'] = {theta} or no base", base)
    return theta, values


def base_apart(
    base: float, scaling: Mapping[str, Any] | None
) -> tuple[float, Mapping[str, Any] | None]:
    """The base, and a valid scaling without it: "rope_theta" replaces a base left at 10000."""
    if scaling is None or "rope_theta" not in scaling:
        return base, scaling
    rest = {key: value for key, value in scaling.items() if key != "rope_theta"}
    theta = scaling["rope_theta"]
    return base if theta is None else float(theta), rest or None


def softmax_correction(scaling: Mapping[str, Any] | None) -> float:
    """The factor by which YaRN with "mscale_all_dim" multiplies the softmax scale.

    DeepSeek-V2 and related models split YaRN's attention factor: one part goes into cos and sin
    (the attention_factor of `rotary_frequencies`), the other into the scale of the scores,
    ``head_dim ** -0.5 * softmax_correction(scaling)``, because latent attention rotates only some
    dims of a head. The frequencies do not include it. If you omit it, attention is too flat by this
    factor.

    The model applies it. In transformers, models with multi-head latent attention do (DeepSeek-V2
    and V3, Mistral 4, MiniCPM3, GLM-4.7-Flash, LongCat-Flash ...); other models with the same keys,
    such as Ministral 3, do not: see `explain`.

    Args:
        scaling: as in `rotary_frequencies`: a mapping with "rope_type" and its numbers, or None.

    Returns:
        ``(0.1 * mscale_all_dim * ln(factor) + 1) ** 2`` for rope_type "yarn" with a factor above 1
        and an "mscale_all_dim" other than 0; otherwise 1.0.

    Raises:
        ValueError, TypeError: as in `rotary_frequencies`.

    Example:
        >>> round(softmax_correction({"rope_type": "yarn", "factor": 40, "mscale_all_dim": 1.0}), 6)
        1.873854

    Source: ``DeepseekV3Attention`` of DeepSeek-V3 and transformers 5 (``yarn_apply_mscale``).
    """
    values = ScalingValues("softmax_correction", scaling)
    weight = values.number("mscale_all_dim", 0.0) if values.rope_type == "yarn" else 0.0
    if not weight:
        return 1.0
    mscale = _yarn_mscale(_length_ratio(values), weight)
    if not mscale * mscale < math.inf:
        values.wrong("mscale_all_dim", "a finite correction", weight)
    return mscale**2


@rope_type("default")
def _default(dim: int, base: float, values: ScalingValues) -> tuple[FloatArray, float]:
    plain = rounded_frequencies(dim, base)
    if dim and not plain[-1] < arguments.FREQUENCY_LIMIT:
        wrong_value(values.function, "base", "frequencies below 2^63", base)
    return plain.copy(), 1.0


def _plain(dim: int, base: float, values: ScalingValues) -> FloatArray:
    return _default(dim, base, values)[0]


@rope_type("linear", "factor")
def _linear(dim: int, base: float, values: ScalingValues) -> tuple[FloatArray, float]:
    return _plain(dim, base, values) / values.number("factor"), 1.0


@rope_type("ntk", "factor", "mixed_b")
def _ntk(dim: int, base: float, values: ScalingValues) -> tuple[FloatArray, float]:
    factor = values.number("factor")
    if "mixed_b" not in values:
        # The stretched base and the division of all frequencies together divide the lowest
        # frequency by `factor`.
        by = factor ** (2 / dim) if dim else 1.0
        return _plain(dim, _stretched(base, factor, "factor", values), values) / by, 1.0
    power = values.number("mixed_b")
    pairs = np.arange(1, (dim + 1) // 2 + 1)
    return _plain(dim, base, values) / factor ** ((2 * pairs / max(dim, 1)) ** power), 1.0


@rope_type("ntk_alpha", "alpha")
def _ntk_alpha(dim: int, base: float, values: ScalingValues) -> tuple[FloatArray, float]:
    return _ntk_stretched(dim, base, values.number("alpha"), "alpha", values), 1.0


@rope_type("dynamic", "factor", "alpha", "max_position_embeddings")
def _dynamic(dim: int, base: float, values: ScalingValues) -> tuple[FloatArray, float]:
    if "alpha" in values:  # HunYuan's fixed stretch has the same name
        return _ntk_alpha(dim, base, values)
    factor = values.number("factor")
    if "seq_len" not in values:
        return _default(dim, base, values)
    trained = values.number("max_position_embeddings")
    length = max(values.number("seq_len"), trained)
    alpha = factor * length / trained - (factor - 1)
    return _ntk_stretched(dim, base, alpha, "factor", values), 1.0


def _ntk_stretched(
    dim: int, base: float, alpha: float, key: str, values: ScalingValues
) -> FloatArray:
    """Frequencies for a base that makes the longest wavelength alpha times as long."""
    if dim > 2:  # a single pair has frequency base^0 for any base
        base = _stretched(base, alpha, key, values, dim / (dim - 2))
    return _plain(dim, base, values)


def _stretched(
    base: float, alpha: float, key: str, values: ScalingValues, exponent: float = 1.0
) -> float:
    """base * alpha ** exponent; a result outside of float64 is an error about the key."""
    try:
        stretched = base * float(alpha**exponent)
    except OverflowError:
        stretched = math.inf
    if not 0 < stretched < math.inf:
        values.wrong(key, "a number that leaves a finite base > 0", alpha)
    return stretched


def _yarn_blend(dim: int, base: float, values: ScalingValues) -> RotaryBlend:
    trained = values.trained()
    if base <= 1:
        values.wrong("rope_theta", "a base > 1", base)
    # Pairs with more than beta_fast turns within the trained length are unchanged; pairs with fewer
    # than beta_slow turns are interpolated.
    fast, slow = values.number("beta_fast", 32.0), values.number("beta_slow", 1.0)
    if fast < slow:
        values.wrong("beta_fast", f"a number >= beta_slow = {slow:g}", fast)

    def pair_that_turns(times: float) -> float:
        """The (fractional) pair that makes this many turns within the trained length."""
        if not 0 < trained / (times * 2 * math.pi) < math.inf:
            values.wrong(
                "original_max_position_embeddings", f"a length for {times:g} turns", trained
            )
        return dim * math.log(trained / (times * 2 * math.pi)) / (2 * math.log(base))

    low, high = pair_that_turns(fast), pair_that_turns(slow)
    if values.flag("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    slowed = np.clip((np.arange((dim + 1) // 2) - low) / (high - low), 0, 1)
    return RotaryBlend(trained, ("beta_fast", fast), ("beta_slow", slow), 1 - slowed, slowed)


@rope_type(
    "yarn", "factor", "max_position_embeddings", "original_max_position_embeddings",
    "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate",
    blend=_yarn_blend,
)  # fmt: skip
def _yarn(dim: int, base: float, values: ScalingValues) -> tuple[FloatArray, float]:
    factor = _length_ratio(values)
    inv_freq = _yarn_blend(dim, base, values).of(_plain(dim, base, values), factor)

    weight, weight_all_dim = (values.number(key, 0.0) for key in ("mscale", "mscale_all_dim"))
    if "attention_factor" in values:
        attention_factor = values.number("attention_factor")
    elif weight and weight_all_dim:
        attention_factor = _yarn_mscale(factor, weight) / _yarn_mscale(factor, weight_all_dim)
    else:
        attention_factor = _yarn_mscale(factor)
    return inv_freq, attention_factor


def _yarn_mscale(factor: float, weight: float = 1.0) -> float:
    return 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0


def _llama3_blend(dim: int, base: float, values: ScalingValues) -> RotaryBlend:
    trained = values.trained()
    low, high = values.number("low_freq_factor"), values.number("high_freq_factor")
    if high < low:
        values.wrong("high_freq_factor", f"a number >= low_freq_factor = {low:g}", high)
    turns = trained * _plain(dim, base, values) / (2 * math.pi)
    if high > low:
        kept = np.clip((turns - low) / (high - low), 0, 1)
    else:  # Llama 4 Scout has a step
        kept = (turns > low).astype(np.float64)
    return RotaryBlend(
        trained, ("high_freq_factor", high), ("low_freq_factor", low), kept, 1 - kept
    )


@rope_type(
    "llama3", "factor", "low_freq_factor", "high_freq_factor", "max_position_embeddings",
    "original_max_position_embeddings", blend=_llama3_blend,
)  # fmt: skip
def _llama3(dim: int, base: float, values: ScalingValues) -> tuple[FloatArray, float]:
    blend = _llama3_blend(dim, base, values)
    return blend.of(_plain(dim, base, values), values.number("factor")), 1.0


@rope_type(
    "longrope", "factor", "attention_factor", "short_factor", "long_factor", "short_mscale",
    "long_mscale", "max_position_embeddings", "original_max_position_embeddings",
)  # fmt: skip
def _longrope(dim: int, base: float, values: ScalingValues) -> tuple[FloatArray, float]:
    trained = values.trained()
    if trained <= 1:
        values.wrong("original_max_position_embeddings", "a number > 1", trained)
    plain = _plain(dim, base, values)
    length = "long" if values.number("seq_len", 0.0) > trained else "short"
    factors = {key: values.numbers(f"{key}_factor", len(plain)) for key in ("short", "long")}
    inv_freq = plain / factors[length]
    if "attention_factor" in values:
        return inv_freq, values.number("attention_factor")
    if "short_mscale" in values or "long_mscale" in values:
        mscales = {key: values.number(f"{key}_mscale") for key in ("short", "long")}
        return inv_freq, mscales[length]
    factor = _length_ratio(values)
    return inv_freq, math.sqrt(1 + math.log(factor) / math.log(trained)) if factor > 1 else 1.0


def _length_ratio(values: ScalingValues) -> float:
    """The factor; without a factor, the ratio of the lengths."""
    if "factor" not in values and "max_position_embeddings" in values:
        trained = values.trained()
        return values.number("max_position_embeddings") / trained
    return values.number("factor")


@rope_type("proportional", "factor", "partial_rotary_factor")
def _proportional(dim: int, base: float, values: ScalingValues) -> tuple[FloatArray, float]:
    share = values.number("partial_rotary_factor", 1.0)
    if share > 1:
        values.wrong("partial_rotary_factor", "a number <= 1", share)
    inv_freq = _plain(dim, base, values) / values.number("factor", 1.0)
    inv_freq[int(share * dim // 2) :] = 0.0
    return inv_freq, 1.0


@rope_type("riflex", "k", "L_test")
def _riflex(dim: int, base: float, values: ScalingValues) -> tuple[FloatArray, float]:
    inv_freq = _plain(dim, base, values)
    pair = values.count("k")
    if pair > len(inv_freq):
        values.wrong("k", f"one of the {len(inv_freq)} pairs, counted from 1", pair)
    # A turn covers the length with a tenth to spare.
    turn = 0.9 * 2 * math.pi
    length, frames = values.number("L_test"), turn / inv_freq[pair - 1]
    if not length > frames:
        expected = f"more than {frames:.4g}, the frames that pair {pair} covers without a scaling"
        values.wrong("L_test", expected, length)
    inv_freq[pair - 1] = turn / length
    return inv_freq, 1.0


@rope_type("axial", "axes")
def _axial(dim: int, base: float, values: ScalingValues) -> tuple[FloatArray, float]:
    axes = values.count("axes", 2)
    if dim % (2 * axes):
        values.wrong("axes", f"a number that divides {dim} dims into equal blocks of pairs", axes)
    return np.tile(_plain(dim // axes, base, values), axes), 1.0
