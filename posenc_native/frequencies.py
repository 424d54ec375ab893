"""Frequencies of sinusoidal and rotary encodings; the rotary scalings as a table of rules.

Frequencies are radians a position. Those of the plain formula come from decimal arithmetic with
guard digits, so the float64 results are correctly rounded; the scalings (linear, NTK, YaRN,
LongRoPE ...) are then float64 arithmetic on them.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from . import arguments
from .arguments import wrong_type, wrong_value

FloatArray = npt.NDArray[np.float64]

# 20 digits for whole turns, 20 for 2^-64 of a turn, 30 in reserve. Overflow gives infinity.
EXACT = decimal.Context(prec=70, rounding=decimal.ROUND_HALF_EVEN, traps=[])
TWO_PI = Decimal(
    "6.2831853071795864769252867665590057683943387987502116419498891846156328125724179973"
)


def frequencies(dim: int, base: float = 10000.0, *, shift: float = 0.0) -> FloatArray:
    """Frequencies of a sinusoidal encoding.

    Args:
        dim: width of the encoding, even.
        base: above 0; the longest wavelength is about ``2 * pi * base``.
        shift: 0 for "Attention Is All You Need", 1 for tensor2tensor, fairseq and Whisper; below
            ``dim / 2``.

    Returns:
        float64 [dim // 2], radians a position: ``base ** (-i / (dim / 2 - shift))``, each the
        nearest float64 to the exact value.

    Raises:
        ValueError: odd or negative dim, base <= 0, shift >= dim / 2, frequencies of 2^63 and more.
        TypeError: an argument that is not a number.

    Example:
        >>> frequencies(8)
        array([1.   , 0.1  , 0.01 , 0.001])

    Source: Vaswani et al. 2017 (arXiv:1706.03762), section 3.5; `shift` as in
    ``get_timestep_embedding`` of diffusers.
    """
    exact = checked_frequencies("frequencies", dim, base, shift)
    return np.array([float(frequency) for frequency in exact], dtype=np.float64)


def wavelengths(dim: int, base: float = 10000.0, *, shift: float = 0.0) -> FloatArray:
    """Wavelengths of a sinusoidal encoding, positions a turn.

    Args and errors are those of `frequencies`.

    Returns:
        float64 [dim // 2]: ``2 * pi / frequency``, each the nearest float64 to the exact value.

    Example:
        >>> wavelengths(4)
        array([  6.28318531, 628.31853072])
    """
    exact = checked_frequencies("wavelengths", dim, base, shift)
    with decimal.localcontext(EXACT):
        return np.array([float(TWO_PI / frequency) for frequency in exact], dtype=np.float64)


def checked_frequencies(
    function: str, dim: object, base: object, shift: object, scale: object = 1.0
) -> tuple[Decimal, ...]:
    """``scale * base ** (-i / (dim / 2 - shift))`` to about 68 digits; errors name `function`."""
    parameters = arguments.frequency_parameters(function, dim, base, shift, scale)
    exact = _exact_frequencies(*parameters)
    if any(abs(frequency) >= arguments.FREQUENCY_LIMIT for frequency in exact):
        got = ", ".join(str(value) for value in parameters[1:])
        wrong_value(function, "base, shift, scale", "frequencies below 2^63", got)
    return exact


@lru_cache(maxsize=64)
def _exact_frequencies(dim: int, base: float, shift: float, scale: float) -> tuple[Decimal, ...]:
    if dim == 0:
        return ()
    with decimal.localcontext(EXACT):
        ratio = Decimal(base) ** (-1 / (Decimal(dim) / 2 - Decimal(shift)))
        result = [Decimal(scale)]
        while len(result) < dim // 2:
            result.append(result[-1] * ratio)
        return tuple(result)


def rotary_frequencies(
    rotary_dim: int,
    base: float = 10000.0,
    scaling: Mapping[str, Any] | None = None,
    *,
    seq_len: int | None = None,
) -> tuple[FloatArray, float]:
    """Frequencies of a rotary encoding, scaled to a longer context where asked.

    Args:
        rotary_dim: number of rotated dims of a head, even. For rope_type "proportional" the whole
            head, of which the share ``partial_rotary_factor`` gets a frequency above 0.
        base: "theta", above 0.
        scaling: None, or a mapping in the form of Hugging Face configurations with a "rope_type"
            (older: "type") of default, linear, dynamic, ntk_alpha, yarn, llama3, longrope or
            proportional, and the keys of that type. A key that is None counts as absent.
            "rope_theta" takes the place of a base left at 10000. "max_position_embeddings" is the
            top-level value of a configuration, which "dynamic" needs, and "yarn" and "longrope"
            need when they have no "factor".
        seq_len: length of the sequence, for "dynamic" and "longrope", or as the key "seq_len".
            Without it they are as for short sequences.

    Returns:
        ``(inv_freq, attention_factor)``: float64 [rotary_dim // 2] in radians a position, and the
        factor for both cos and sin.

    Raises:
        ValueError: odd rotary_dim, unknown rope_type; a key that is missing, unknown to that type
            or nonsense, which the message names.
        TypeError: an argument or value of the wrong kind.

    Example:
        >>> rotary_frequencies(4, scaling={"rope_type": "linear", "factor": 4.0})
        (array([0.25  , 0.0025]), 1.0)

    Sources: Su et al. 2021 (RoFormer, arXiv:2104.09864); Peng et al. 2023 (YaRN,
    arXiv:2309.00071); Ding et al. 2024 (LongRoPE, arXiv:2402.13753); ``modeling_rope_utils.py`` of
    transformers 5, which decides where the papers leave a choice.
    """
    function = "rotary_frequencies"
    rotary_dim = arguments.even_size(function, "rotary_dim", rotary_dim)
    base = arguments.positive_number(function, "base", base)
    if scaling is None:
        scaling = {}
    if not isinstance(scaling, Mapping):
        wrong_type(function, "scaling", "a mapping or None", type(scaling).__name__)
    if seq_len is not None:
        scaling = {**scaling, "seq_len": seq_len}
    rope_type = scaling.get("rope_type") or scaling.get("type") or "default"
    rule = ROTARY_SCALINGS.get(str(rope_type))
    if rule is None:
        expected = f"one of {', '.join(ROTARY_SCALINGS)}"
        wrong_value(function, "scaling['rope_type']", expected, repr(rope_type))
    for key in scaling:
        if key not in rule.keys and key not in _KEYS_OF_EVERY_TYPE:
            expected = f"a key of rope_type {rope_type} ({', '.join(rule.keys) or 'it has none'})"
            wrong_value(function, "scaling", expected, repr(key))
    values = _Values(function, rope_type, scaling)
    theta = values.number("rope_theta", base)
    if theta != base and base != 10000.0:
        wrong_value(function, "base", f"scaling['rope_theta'] = {theta} or none", base)
    return rule.compute(rotary_dim, theta, values)


class _Values:
    """Reads the values of a scaling; one that is missing or nonsense is an error with its key."""

    def __init__(self, function: str, rope_type: str, scaling: Mapping[str, Any]) -> None:
        self._function = function
        self._rope_type = rope_type
        self._given = {key: value for key, value in scaling.items() if value is not None}

    def __contains__(self, key: str) -> bool:
        return key in self._given

    def number(self, key: str, default: float | None = None, above: float = 0.0) -> float:
        """The number at key, which must be greater than `above`."""
        value = arguments.finite_number(self._function, self._name(key), self._get(key, default))
        if value <= above:
            self.wrong(key, f"a number > {above:g}", value)
        return value

    def flag(self, key: str, default: bool) -> bool:
        """The bool at key."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            wrong_type(self._function, self._name(key), "a bool", type(value).__name__)
        return value

    def numbers(self, key: str, count: int) -> FloatArray:
        """The list of `count` numbers above 0 at key."""
        values = self._get(key)
        if not isinstance(values, (list, tuple, np.ndarray)):
            wrong_type(self._function, self._name(key), "a list", type(values).__name__)
        if len(values) != count:
            self.wrong(key, f"{count} numbers, one a frequency", f"{len(values)} of them")
        name = self._name(key)
        return np.array([arguments.positive_number(self._function, name, v) for v in values])

    def wrong(self, key: str, expected: str, got: object) -> NoReturn:
        """Raise the ValueError that names the key."""
        wrong_value(self._function, self._name(key), expected, got)

    def _get(self, key: str, default: Any = None) -> Any:
        value = self._given.get(key, default)
        if value is None:
            self.wrong(key, f"a value, which {self._rope_type} needs", "none")
        return value

    @staticmethod
    def _name(key: str) -> str:
        return f"scaling[{key!r}]"


# A rule takes (rotary_dim, base, values) and gives (inv_freq, attention_factor).
_Rule = Callable[[int, float, _Values], tuple[FloatArray, float]]


@dataclass(frozen=True)
class RotaryScaling:
    """How one rope_type scales the frequencies, and the keys that it reads."""

    compute: _Rule
    keys: tuple[str, ...]


# Keys that configurations of every type may have; most types read none of them.
_KEYS_OF_EVERY_TYPE = (
    "rope_type",
    "type",
    "rope_theta",
    "partial_rotary_factor",
    "max_position_embeddings",
    "original_max_position_embeddings",
    "mrope_section",
    "mrope_interleaved",
    "seq_len",
)

ROTARY_SCALINGS: dict[str, RotaryScaling] = {}


def _rope_type(name: str, *keys: str) -> Callable[[_Rule], _Rule]:
    """Enter the decorated rule, which reads these keys, into ROTARY_SCALINGS."""

    def enter(rule: _Rule) -> _Rule:
        ROTARY_SCALINGS[name] = RotaryScaling(rule, keys)
        return rule

    return enter


@_rope_type("default")
def _default(dim: int, base: float, values: _Values) -> tuple[FloatArray, float]:
    return frequencies(dim, base), 1.0


@_rope_type("linear", "factor")
def _linear(dim: int, base: float, values: _Values) -> tuple[FloatArray, float]:
    return frequencies(dim, base) / values.number("factor"), 1.0


@_rope_type("ntk_alpha", "alpha")
def _ntk_alpha(dim: int, base: float, values: _Values) -> tuple[FloatArray, float]:
    return frequencies(dim, base * _ntk_stretch(dim, values.number("alpha"))), 1.0


@_rope_type("dynamic", "factor", "alpha", "max_position_embeddings")
def _dynamic(dim: int, base: float, values: _Values) -> tuple[FloatArray, float]:
    if "alpha" in values:  # HunYuan's fixed stretch goes by the same name
        return _ntk_alpha(dim, base, values)
    factor = values.number("factor")
    if "seq_len" not in values:
        return frequencies(dim, base), 1.0
    trained = values.number("max_position_embeddings")
    length = max(values.number("seq_len"), trained)
    stretch = _ntk_stretch(dim, factor * length / trained - (factor - 1))
    return frequencies(dim, base * stretch), 1.0


def _ntk_stretch(dim: int, alpha: float) -> float:
    """What to multiply the base by to make the longest wavelength alpha times as long."""
    # A single pair has frequency base^0, whatever the base.
    return alpha ** (dim / (dim - 2)) if dim > 2 else 1.0


@_rope_type(
    "yarn",
    "factor",
    "max_position_embeddings",
    "original_max_position_embeddings",
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
    "truncate",
)
def _yarn(dim: int, base: float, values: _Values) -> tuple[FloatArray, float]:
    trained = values.number("original_max_position_embeddings")
    factor = _length_ratio(values, trained)
    if base <= 1:
        values.wrong("rope_theta", "a base > 1", base)

    def pair_that_turns(times: float) -> float:
        """The (fractional) pair that makes this many turns within the trained length."""
        return dim * math.log(trained / (times * 2 * math.pi)) / (2 * math.log(base))

    low = pair_that_turns(values.number("beta_fast", 32.0))
    high = pair_that_turns(values.number("beta_slow", 1.0))
    if values.flag("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    interpolated = np.clip((np.arange(dim // 2) - low) / (high - low), 0, 1)
    plain = frequencies(dim, base)
    inv_freq = plain / factor * interpolated + plain * (1 - interpolated)

    def mscale(weight: float = 1.0) -> float:
        return 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0

    weight = values.number("mscale", 0.0, above=-math.inf)
    weight_all_dim = values.number("mscale_all_dim", 0.0, above=-math.inf)
    if "attention_factor" in values:
        attention_factor = values.number("attention_factor")
    elif weight and weight_all_dim:
        attention_factor = mscale(weight) / mscale(weight_all_dim)
    else:
        attention_factor = mscale()
    return inv_freq, attention_factor


@_rope_type(
    "llama3", "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"
)
def _llama3(dim: int, base: float, values: _Values) -> tuple[FloatArray, float]:
    trained = values.number("original_max_position_embeddings")
    factor = values.number("factor")
    low = values.number("low_freq_factor")
    high = values.number("high_freq_factor", above=low)
    plain = frequencies(dim, base)
    turns = trained * plain / (2 * math.pi)
    kept = np.clip((turns - low) / (high - low), 0, 1)
    return plain / factor * (1 - kept) + plain * kept, 1.0


@_rope_type(
    "longrope",
    "factor",
    "attention_factor",
    "short_factor",
    "long_factor",
    "max_position_embeddings",
    "original_max_position_embeddings",
)
def _longrope(dim: int, base: float, values: _Values) -> tuple[FloatArray, float]:
    trained = values.number("original_max_position_embeddings", above=1)
    long = "seq_len" in values and values.number("seq_len") > trained
    short_factor = values.numbers("short_factor", dim // 2)
    long_factor = values.numbers("long_factor", dim // 2)
    inv_freq = frequencies(dim, base) / (long_factor if long else short_factor)
    if "attention_factor" in values:
        return inv_freq, values.number("attention_factor")
    factor = _length_ratio(values, trained)
    return inv_freq, math.sqrt(1 + math.log(factor) / math.log(trained)) if factor > 1 else 1.0


def _length_ratio(values: _Values, trained: float) -> float:
    """The factor, which may be left to the lengths to say."""
    if "factor" not in values and "max_position_embeddings" in values:
        return values.number("max_position_embeddings") / trained
    return values.number("factor")


@_rope_type("proportional", "factor", "partial_rotary_factor")
def _proportional(dim: int, base: float, values: _Values) -> tuple[FloatArray, float]:
    rotated = int(values.number("partial_rotary_factor", 1.0) * dim // 2)
    if rotated > dim // 2:
        values.wrong("partial_rotary_factor", "a number <= 1", rotated * 2 / dim)
    inv_freq = frequencies(dim, base) / values.number("factor", 1.0)
    inv_freq[rotated:] = 0.0
    return inv_freq, 1.0
