"""mlx-lm's scalings: its defaults, its magnitudes and the entries that it ignores.

A row of mlx_scalings.json says how a model file reads its scaling:

    accepts, otherwise   the scaling by the name in the file; without `otherwise` other names are
                         refused
    names                entries with the name, in the order of the code
    needs                entries without which the model is refused
    assumes              values of missing entries
    trained              LongRoPE's original length is at the top of the file, or this
    float_factor         whole numbers are refused as a factor
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from posenc_native.checkpoints.formats.scaling_words import Word, llama3, yarn, yarn_scale
from posenc_native.checkpoints.formats.settings import Settings
from posenc_native.models.entries import LENGTH_LIMIT

_TRAINED = "original_max_position_embeddings"
_LLAMA3 = llama3(Word("factor"), Word("low_freq_factor", 1.0), Word("high_freq_factor", 4.0),
                 Word(_TRAINED, 8192))  # fmt: skip
_YARN = yarn(Word("factor"), Word(_TRAINED, 4096), mscale=Word("mscale", 1.0),
             mscale_all_dim=Word("mscale_all_dim", 0.0))  # fmt: skip
_NUMBERS = {*_YARN.words, *_LLAMA3.words, "alpha"}


@dataclass
class Scaling:
    """A scaling as mlx-lm reads it.

    Attributes:
        numbers: as `rotary_frequencies` takes it.
        in_halves: whether it turns halves in every model.
        correction: of the softmax scale.
        remarks: sentences about entries that are ignored.
    """

    numbers: dict[str, Any] | None = None
    in_halves: bool = False
    correction: float = 1.0
    remarks: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Source:
    """The parts of a scaling: its entries, the model's, its rule, the number of dims."""

    settings: Settings
    top: Settings
    rule: Mapping[str, Any]
    has_length: bool
    rotary_dim: int

    def length(self) -> int:
        """The longest sequence of the model."""
        if not self.has_length:
            self.settings.wrong("rope_type", "a scaling without max_position_embeddings", "another")
        return self.top.count("max_position_embeddings", most=LENGTH_LIMIT)


def read_scaling(
    entries: Settings | None,
    rule: Mapping[str, Any],
    model: Settings,
    with_length: Settings | None,
    rotary_dim: int,
    corrects: bool,
) -> Scaling:
    """The scaling in these entries, by the rule of a model."""
    if entries is None or not (entries.entries or rule.get("required")):
        return Scaling()
    for key in rule.get("needs", ()):
        if key not in entries:
            entries.wrong(key, "an entry, which mlx-lm needs", "none")
    for key in _NUMBERS & {*entries.entries}:
        if entries[key] is None:
            entries.wrong(key, "a number or no entry", "null")
    if "assumes" in rule:
        entries = Settings(entries.function, {**rule["assumes"], **entries.entries}, entries.place)
    kind = _kind(entries, rule)
    source = _Source(entries, model, rule, with_length is not None, rotary_dim)
    scaling = _KINDS[kind](source)
    if corrects and "mscale_all_dim" in entries and kind != "default":
        weight = entries.weight("mscale_all_dim")
        factor = entries.positive("factor", 1.0)
        scaling.correction = yarn_scale(factor, weight) ** 2
    return scaling


def _kind(entries: Settings, rule: Mapping[str, Any]) -> str:
    names = rule.get("names", ("type", "rope_type"))
    key = next((name for name in names if entries[name]), names[-1])
    name = entries.text(key, "default")
    accepts = rule.get("accepts", {})
    kind = accepts.get(name, rule.get("otherwise"))
    if kind is None:
        entries.wrong(key, f"one of {', '.join(accepts)}, which mlx-lm has", repr(name))
    return str(kind)


def _default(source: _Source) -> Scaling:
    section = source.settings["mrope_section"]
    named = source.settings["type"] or source.settings["rope_type"]
    if named == "mrope" and (not isinstance(section, (list, tuple)) or len(section) != 3):
        source.settings.wrong("mrope_section", "3 numbers", "another value")
    return Scaling()


def _linear(source: _Source) -> Scaling:
    factor = source.settings["factor"]
    if source.rule.get("float_factor") and isinstance(factor, int):
        source.settings.wrong("factor", f"a float for mlx-lm's code, {factor}.0", factor)
    return Scaling({"rope_type": "linear", "factor": source.settings.positive("factor")})


def _dynamic(source: _Source) -> Scaling:
    factor = source.settings.positive("factor")
    length = source.length()
    return Scaling({"rope_type": "dynamic", "factor": factor, "max_position_embeddings": length})


def _alpha(source: _Source) -> Scaling:
    return Scaling({"rope_type": "ntk_alpha", "alpha": source.settings.positive("alpha")})


def _llama3(source: _Source) -> Scaling:
    return Scaling(_LLAMA3.read(source.settings))


def _yarn(source: _Source) -> Scaling:
    numbers = _YARN.read(source.settings)
    weights = numbers.pop("mscale"), numbers.pop("mscale_all_dim")
    scale = yarn_scale(numbers["factor"], *weights)
    if all(weights):  # read alike everywhere
        numbers |= {"mscale": weights[0], "mscale_all_dim": weights[1]}
    elif scale != yarn_scale(numbers["factor"]):
        numbers["attention_factor"] = scale
    return Scaling(numbers, remarks=_ignored(source, "YaRN", "truncate", "attention_factor"))


def _longrope(source: _Source) -> Scaling:
    settings, pairs = source.settings, source.rotary_dim // 2
    if "trained" in source.rule:
        trained = source.top.count(_TRAINED, source.rule["trained"], LENGTH_LIMIT)
    else:
        trained = settings.count(_TRAINED, most=LENGTH_LIMIT)
    if trained == 1:
        settings.wrong(_TRAINED, "a number > 1", trained)
    if "short_factor" not in settings and "assumes" not in source.rule:
        settings.wrong("short_factor", "an entry, which mlx-lm needs", "none")
    factors = settings["long_factor"]
    if isinstance(factors, (list, tuple)):
        factors = settings.numbers("long_factor", least=pairs, most=pairs)
    else:
        factors = [settings.positive("long_factor")] * pairs
    numbers = {
        "rope_type": "longrope",
        "short_factor": factors,
        "long_factor": factors,
        _TRAINED: trained,
        "max_position_embeddings": source.length(),
    }
    if "long_mscale" in source.rule.get("needs", ()) and settings.number("long_mscale"):
        numbers["attention_factor"] = settings.positive("long_mscale")
    remarks = ["mlx-lm uses the long factors at every length."]
    ignored = _ignored(source, "LongRoPE", "factor", "attention_factor")
    return Scaling(numbers, in_halves=True, remarks=remarks + ignored)


def _proportional(source: _Source) -> Scaling:
    settings, dims = source.settings, source.rotary_dim
    share = settings.positive("partial_rotary_factor", 1.0)
    if share > 1:
        settings.wrong("partial_rotary_factor", "a number <= 1", share)
    turning = math.ceil(int(dims * share) / 2)
    factor = settings.positive("factor", 1.0)
    numbers = {"rope_type": "proportional", "partial_rotary_factor": 2 * turning / dims}
    return Scaling(numbers | ({"factor": factor} if factor != 1 else {}))


def _ignored(source: _Source, scaling: str, *keys: str) -> list[str]:
    names = [key for key in keys if key in source.settings]
    return [f"mlx-lm does not read {scaling}'s {' and '.join(names)}."] if names else []


_KINDS: dict[str, Callable[[_Source], Scaling]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "ntk_alpha": _alpha,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "proportional": _proportional,
}
