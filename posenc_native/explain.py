"""What a model's configuration says of its rotary encoding, in plain words.

A sentence for each fact, and remarks where engines are known to read the same configuration in
different ways: most reports of "the model is a little worse there" are one of these.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .models.config import Configuration, LayerGroup
from .rotary import Rotary
from .spectra.scaling import rotary_frequencies, softmax_correction

_WIDTH = 92

_INTRODUCTION = (
    "Each pair of numbers in a query or key is turned by an angle that grows with the position of "
    "its token, so that the product of the two depends on how far apart they are."
)
_NOPE = "No rotary encoding (NoPE): queries and keys are used as they are, whatever their position."


@dataclass(frozen=True)
class LayerExplanation:
    """Layers that rotate alike.

    Attributes:
        layer_type: as in the configuration, None where layers do not differ by type.
        layers: their numbers, from 0; empty where the configuration does not tell them.
        rotary: what they do; None if they have no rotary encoding.
        softmax_correction: factor of the softmax scale that the model applies beside it.
        facts: sentences.
    """

    layer_type: str | None
    layers: tuple[int, ...]
    rotary: Rotary | None
    softmax_correction: float
    facts: tuple[str, ...]


@dataclass(frozen=True)
class Explanation:
    """What `explain` has found; ``str()`` of it is its `text`.

    Attributes:
        model_type: of the language model, as in the configuration; "" if it has none.
        layers: one entry for each group of layers that rotate alike.
        nope_layers: numbers of the attention layers without rotary encoding. Where there are such
            layers, but the configuration does not tell their numbers, it is empty and a warning
            says so.
        warnings: where engines are known to differ on such a configuration, and what to look at.
    """

    model_type: str
    layers: tuple[LayerExplanation, ...]
    nope_layers: tuple[int, ...]
    warnings: tuple[str, ...]

    def __str__(self) -> str:
        return self.text()

    def text(self, width: int = _WIDTH) -> str:
        """All of it, in lines of at most `width` characters; headings alone are not indented."""
        lines = [f"Rotary encoding of {self.model_type or 'an unnamed model'}"]
        lines += [*_wrapped(_INTRODUCTION, width, "", ""), ""]
        for group in self.layers:
            lines.append(_heading(group, len(self.layers) == 1))
            lines += [line for fact in group.facts for line in _wrapped(fact, width, "  ", "  ")]
            lines.append("")
        if self.warnings:
            lines.append("Worth knowing")
            for warning in self.warnings:
                lines += _wrapped(warning, width, "  - ", "    ")
        return "\n".join(lines).rstrip()


def explain(config: Any) -> Explanation:
    """Say in plain words how a model rotates, and where engines are known to differ on it.

    Args:
        config: a transformers configuration, its dict, or the path of a config.json, as in
            `Rotary.from_config`.

    Returns:
        An ``Explanation``: for each group of layers that rotate alike their `Rotary`, the factor of
        the softmax scale and sentences about them; the layers without rotary encoding; warnings.
        ``print(explain(config))`` shows all of it.

    Raises:
        ValueError, TypeError, OSError: as in `Rotary.from_config`.

    Example:
        >>> report = explain({"model_type": "llama", "head_dim": 8, "rope_theta": 10000.0})
        >>> print(report)
        Rotary encoding of llama
        Each pair of numbers in a query or key is turned by an angle that grows with the position of
        its token, so that the product of the two depends on how far apart they are.
        <BLANKLINE>
        All layers
          All 8 dims of a head are rotated, as 4 pairs: dim i with dim i + 4 ("half").
          A token at position p turns pair k by p * f_k radians; f falls from 1 to 0.001 (base
          10,000), one turn every 6.3 positions to one every 6,283.
          No scaling: frequencies and cosines are used as they are.
    """
    model = Configuration.read(config, "explain")
    groups = model.groups()
    explained = tuple(_explained(model, group, len(groups)) for group in groups)
    rotating = [found.rotary for found in explained if found.rotary is not None]
    general = [_SEVERAL] if any(rotary != rotating[0] for rotary in rotating) else []
    general += _float32_phase(rotating, model.fields.get("max_position_embeddings"))
    warnings = dict.fromkeys(
        text
        for check in _CHECKS
        for group, found in zip(groups, explained, strict=True)
        for text in check(_Case(model, group, found))
    )
    model_type = model.model_type if model.fields.get("model_type") else ""
    nope = () if model.unnumbered_without else model.nope_layers()
    return Explanation(model_type, explained, nope, (*general, *warnings))


# Facts


def _explained(model: Configuration, group: LayerGroup, count: int) -> LayerExplanation:
    layers = group.layers
    if count == 1 and len(layers) == model.layer_count:
        layers = ()  # all there are: no need to number them
    if group.arguments is None:
        return LayerExplanation(group.layer_type, layers, None, 1.0, (_NOPE,))
    rotary = Rotary(**group.arguments)
    correction = softmax_correction(rotary.scaling) if model.corrects_softmax else 1.0
    facts = (
        _dims(model, rotary),
        _frequencies(rotary),
        *_axes(model, rotary),
        *_scaling(rotary),
        *_factors(rotary, correction),
    )
    return LayerExplanation(group.layer_type, layers, rotary, correction, facts)


def _dims(model: Configuration, rotary: Rotary) -> str:
    pairs = len(rotary.inv_freq)
    rotated = 2 * pairs
    latent = model.fields.get("qk_rope_head_dim") == rotary.head_dim
    if rotated < rotary.head_dim:
        place = "first" if rotary.rotary_start == 0 else "last"
        what = f"The {place} {rotated} of the {rotary.head_dim} dims of a head"
    else:
        what = f"All {rotated} dims of a head"
    if latent:
        what = f"The {rotated} dims that latent attention keeps for the position"
    if rotary.pairing == "interleaved":
        partner = 'dim 2i with dim 2i + 1 ("interleaved")'
    else:
        partner = f'dim i with dim i + {pairs} ("half")'
    return f"{what} are rotated, as {pairs} pairs: {partner}."


def _frequencies(rotary: Rotary) -> str:
    turning = np.abs(rotary.inv_freq[rotary.inv_freq != 0])
    if not len(turning):
        return "Every frequency is 0: nothing turns."
    high, low = float(turning.max()), float(turning.min())
    base = "" if "inv_freq" in rotary._given else f" (base {_number(rotary.base)})"
    still = len(rotary.inv_freq) - len(turning)
    rest = f"; the other {still} pairs have frequency 0 and stay as they are" if still else ""
    way = " backward" if (rotary.inv_freq < 0).any() else ""
    return (
        f"A token at position p turns pair k{way} by p * f_k radians; f falls from {_number(high)} "
        f"to {_number(low)}{base}, one turn every {_positions(high)} positions to one every "
        f"{_positions(low)}{rest}."
    )


def _axes(model: Configuration, rotary: Rotary) -> list[str]:
    if rotary.axis_map is None:
        return []
    counts = np.bincount(rotary.axis_map)
    names = ("time", "height", "width")[-len(counts) :]
    shared = ", ".join(f"{count} by {name}" for name, count in zip(names, counts, strict=False))
    runs = 1 + int((np.diff(rotary.axis_map) != 0).sum())
    order = "in blocks, one axis after another" if runs == len(counts) else "the axes taking turns"
    text = (
        f"Tokens have a position on each of {len(counts)} axes: of the pairs, {shared} are driven, "
    )
    if model.sees:
        return [f"{text}{order}."]
    equal = "Where they are equal, as for text, this is ordinary rotary encoding."
    return [f"{text}{order}. {equal}"]


def _scaling(rotary: Rotary) -> list[str]:
    scaling = rotary.scaling
    if scaling is None:
        if "inv_freq" in rotary._given:
            return []
        return ["No scaling: frequencies and cosines are used as they are."]
    words = _SCALING_WORDS[scaling["rope_type"]](scaling)
    plain, _ = rotary_frequencies(2 * len(rotary.inv_freq), rotary.base)
    ratio = plain / np.where(rotary.inv_freq == 0, np.inf, rotary.inv_freq)
    if scaling["rope_type"] in ("yarn", "llama3"):
        factor = ratio.max()
        kept = int((ratio < 1 + 1e-9).sum())
        slowed = int((ratio > factor * (1 - 1e-9)).sum()) if factor > 1 + 1e-9 else 0
        words += (
            f" Here {kept} pairs keep their frequency, {len(ratio) - kept - slowed} are blended "
            f"and {slowed} are slowed by {_number(float(factor))}."
        )
    return [f"Scaling {scaling['rope_type']}: {words}"]


def _linear_words(scaling: Mapping[str, Any]) -> str:
    return f"every frequency is divided by {_number(scaling['factor'])}."


def _dynamic_words(scaling: Mapping[str, Any]) -> str:
    if "alpha" in scaling:
        return (
            f"the base is stretched once and for all (alpha {_number(scaling['alpha'])}); in spite "
            "of its name nothing depends on the length."
        )
    return (
        f"the base grows with the length once a sequence is longer than "
        f"{scaling.get('max_position_embeddings'):,} positions (factor "
        f"{_number(scaling['factor'])}); what is shown is for shorter ones."
    )


def _yarn_words(scaling: Mapping[str, Any]) -> str:
    fast, slow = scaling.get("beta_fast", 32), scaling.get("beta_slow", 1)
    factor = scaling.get("factor")
    by = "the ratio of the lengths" if factor is None else _number(factor)
    bounds = "" if scaling.get("truncate", True) else " (bounds not rounded to whole pairs)"
    return (
        f"pairs that turn more than {_times(fast)} within the "
        f"{scaling['original_max_position_embeddings']:,} positions of the first training keep "
        f"their frequency, those that turn less than {_times(slow)} are slowed by {by}, "
        f"those between are blended{bounds}."
    )


def _llama3_words(scaling: Mapping[str, Any]) -> str:
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    between = "" if low == high else " those between are blended."
    return (
        f"pairs that turn more than {_times(high)} within the "
        f"{scaling['original_max_position_embeddings']:,} positions of the first training keep "
        f"their frequency, those that turn less than {_times(low)} are slowed by "
        f"{_number(scaling['factor'])}{',' if between else '.'}{between}"
    )


def _longrope_words(scaling: Mapping[str, Any]) -> str:
    short, long = (np.array(scaling[f"{key}_factor"], float) for key in ("short", "long"))
    return (
        "every frequency is divided by a number of its own: "
        f"{_number(short.min())} to {_number(short.max())} for sequences of up to "
        f"{scaling['original_max_position_embeddings']:,} positions, {_number(long.min())} to "
        f"{_number(long.max())} for longer ones. What is shown is for the shorter."
    )


def _proportional_words(scaling: Mapping[str, Any]) -> str:
    share = scaling.get("partial_rotary_factor", 1.0)
    return (
        f"the frequencies are those of the whole head, of which the first {_number(100 * share)} % "
        "are used."
    )


_SCALING_WORDS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "linear": _linear_words,
    "ntk": lambda scaling: f"the base is stretched (NTK) by {_number(scaling['factor'])}.",
    "ntk_alpha": lambda scaling: _dynamic_words(scaling),
    "dynamic": _dynamic_words,
    "yarn": _yarn_words,
    "llama3": _llama3_words,
    "longrope": _longrope_words,
    "proportional": _proportional_words,
}


def _factors(rotary: Rotary, correction: float) -> list[str]:
    facts = []
    if rotary.scale != 1:
        facts.append(
            f"Cosines and sines are multiplied by {_number(rotary.scale)} (the attention factor), "
            f"so scores grow by {_number(rotary.scale**2)}."
        )
    if correction != 1:
        facts.append(
            f"Beside the rotation the model multiplies the scale of its scores by "
            f"{_number(correction)} (softmax_correction, from mscale_all_dim). No frequency shows "
            "it: without it attention is too flat."
        )
    return facts


# Where engines differ


@dataclass(frozen=True)
class _Case:
    """One group of layers, for the checks below."""

    model: Configuration
    group: LayerGroup
    found: LayerExplanation

    @property
    def scaling(self) -> Mapping[str, Any]:
        """The scaling of a group that rotates; empty without one."""
        return (self.found.rotary and self.found.rotary.scaling) or {}

    @property
    def rope_type(self) -> str:
        """Of the scaling."""
        return str(self.scaling.get("rope_type", "default"))


_SEVERAL = (
    "Layers differ in their rotary encoding: one table of cosines for all of them is wrong for "
    "some."
)


def _float32_phase(rotating: Sequence[Rotary], length: Any) -> list[str]:
    """How far float32 is off at the longest sequence of the model."""
    if not isinstance(length, int) or length < 2:
        return []
    positions = np.arange(max(length - 64, 0), length)
    off = 0.0
    for rotary in rotating:
        product = np.float32(positions)[:, None] * np.float32(rotary.inv_freq)
        # float64 is off by 2^-53 of the phase: nothing, beside 2^-24.
        exact = positions[:, None] * rotary.inv_freq
        off = max(off, float(np.abs(product.astype(np.float64) - exact).max(initial=0.0)))
    if off < 1e-3:
        return []
    more = ", where not even all positions are distinct" if length > 2**24 else ""
    text = (
        f"An angle formed as position * frequency in float32, as most engines form it, is off by "
        f"up to {_number(off)} radians near position {length:,}{more}; in bfloat16 it would be "
        "meaningless. Here angles are exact at every position."
    )
    return [text]


_Check = Callable[[_Case], Iterator[str]]
_CHECKS: list[_Check] = []


def _check(function: _Check) -> _Check:
    _CHECKS.append(function)
    return function


@_check
def _base_unsaid(case: _Case) -> Iterator[str]:
    rotary = case.found.rotary
    if rotary is None or "inv_freq" in rotary._given or case.model.names_a_base:
        return
    yield (
        f"The configuration names no base: {_number(rotary.base)} is what the model's class takes."
    )


@_check
def _beside_frequencies(case: _Case) -> Iterator[str]:
    weight = case.scaling.get("mscale_all_dim")
    if not weight:
        return
    if case.model.corrects_softmax:
        yield (
            "The softmax correction is part of the model, not of the rotary encoding: an engine "
            "has to apply it too, once. Ports are known to have lost it."
        )
    else:
        yield (
            "mscale_all_dim is given, but the model's own code corrects no softmax scale by it, as "
            "DeepSeek's does; an engine that took it for a DeepSeek would."
        )


@_check
def _attention_factor(case: _Case) -> Iterator[str]:
    if case.rope_type != "yarn" or case.found.rotary is None:
        return
    plain = {key: case.scaling[key] for key in case.scaling if key not in _FACTOR_KEYS}
    usual = rotary_frequencies(case.found.rotary.head_dim // 2 * 2, 10000.0, plain)[1]
    given = [key for key in _FACTOR_KEYS if case.scaling.get(key) is not None]
    scale = case.found.rotary.scale
    if "beta_fast" in case.scaling or "beta_slow" in case.scaling:
        yield (
            "beta_fast counts the turns of pairs left alone, beta_slow those of pairs slowed: code "
            "that has them the other way round (as torchtitan had, #3787) is wrong at every length."
        )
    if given and abs(usual - scale) > 1e-9:
        yield (
            f"The attention factor {_number(scale)} comes from {' and '.join(given)}; an engine "
            f"that does not read this has {_number(usual)} (0.1 ln(factor) + 1): vLLM had, #48621."
        )
    mscale, all_dim = (case.scaling.get(key) for key in ("mscale", "mscale_all_dim"))
    if "attention_factor" not in given and bool(mscale) != bool(all_dim):
        alone = "mscale" if mscale else "mscale_all_dim"
        yield (
            f"{alone} is given without the other: transformers then ignores it and takes "
            f"{_number(usual)}; vLLM's DeepSeek code takes 1 for a missing mscale and 0 for a "
            "missing mscale_all_dim, and always the ratio."
        )


_FACTOR_KEYS = ("attention_factor", "mscale", "mscale_all_dim")


@_check
def _truncation(case: _Case) -> Iterator[str]:
    if case.rope_type != "yarn" or case.scaling.get("truncate", True):
        return
    yield (
        "truncate is false: the bounds of YaRN's blend are not rounded to whole pairs. ggml always "
        "rounds them, and so did vLLM and SGLang before they knew the key."
    )
    given = case.model.fields.get("rope_parameters") or {}
    if isinstance(given.get(case.found.layer_type or ""), Mapping):
        yield (
            "truncate stands in the entry of a layer type, where transformers 5.23 overlooks it "
            "(it looks beside the entries) and rounds. Here it counts where it stands."
        )


@_check
def _lengths(case: _Case) -> Iterator[str]:
    if case.rope_type == "dynamic" and "alpha" not in case.scaling:
        factor, length = case.scaling["factor"], case.scaling.get("max_position_embeddings", 0)
        yield (
            "transformers computes the frequencies anew whenever a sequence grows past those "
            "before it, so keys in the cache were turned by older ones; vLLM and SGLang compute "
            f"them once, for {int(length * factor):,} positions, and are not dynamic at all. "
            "Rotary.from_config(..., seq_len=...) is for the length that you say."
        )
    if case.rope_type == "longrope":
        trained = case.scaling["original_max_position_embeddings"]
        yield (
            f"The change to the long factors beyond {trained:,} positions is not agreed on: "
            "transformers decides by the largest position of each call, for the whole batch, and "
            "Phi-3 then drops its cache; vLLM decides once at the start, by the longest sequence "
            "it is to serve, and so uses the long factors for short texts too; SGLang decides for "
            "each batch. Keys cached before the change were turned by the short factors. "
            "Rotary.from_config(..., seq_len=...) is for the length that you say."
        )


@_check
def _long_mscale(case: _Case) -> Iterator[str]:
    if case.model.model_type != "phimoe" or case.rope_type != "longrope":
        return
    yield (
        "transformers 5.23 changes the factor of cosine and sine with the length, but turns by the "
        "short factors at every length; the code published with the model changes both, as here."
    )


@_check
def _linear(case: _Case) -> Iterator[str]:
    if case.rope_type != "linear":
        return
    yield (
        "Linear scaling divides frequencies here and in transformers, positions in vLLM: the same "
        "angle but for rounding, so results differ in the last bits."
    )


@_check
def _llama3_step(case: _Case) -> Iterator[str]:
    low, high = (case.scaling.get(f"{key}_freq_factor") for key in ("low", "high"))
    if case.rope_type != "llama3" or low != high:
        return
    yield "Equal low and high factors make a step; code that divides by their difference fails."


@_check
def _several_axes(case: _Case) -> Iterator[str]:
    rotary = case.found.rotary
    if rotary is None or rotary.axis_map is None or case.model.sees:
        return
    axes = int(rotary.axis_map.max()) + 1
    yield (
        f"Positions have the shape [{axes}, batch, tokens]. Fused kernels that take the first row "
        "alone drop the others without an error: text works, pictures are misread."
    )
    if int((np.diff(rotary.axis_map) != 0).sum()) > 2:
        yield (
            "The axes take turns among the pairs. Code written for Qwen2-VL's blocks gives other "
            "angles; and ggml's IMROPE drives the pairs left over by a fourth row of positions, "
            "where transformers and vLLM take time."
        )


@_check
def _share_of_the_head(case: _Case) -> Iterator[str]:
    rotary = case.found.rotary
    if rotary is None:
        return
    if case.rope_type == "proportional":
        yield (
            "Proportional: the exponents of the frequencies are over the whole head, and dim i "
            f"pairs with dim i + {rotary.head_dim // 2}. A partial rotary encoding of the usual "
            "kind (exponents over the rotated dims, pairs within them) is another one."
        )
    if 2 * len(rotary.inv_freq) == rotary.head_dim or rotary.rotary_start:
        return
    yield (
        f"Part of the head is rotated: the exponents are over these {2 * len(rotary.inv_freq)} "
        "dims. Known errors elsewhere: the share applied twice, ignored together with several "
        "axes, or the exponents taken over the whole head."
    )


@_check
def _pairing(case: _Case) -> Iterator[str]:
    rotary, model = case.found.rotary, case.model
    if rotary is None:
        return
    if rotary.pairing == "interleaved":
        yield (
            "Neighbouring dims are pairs. Weights converted for pairing by halves have the rows of "
            "their projections in another order; with the wrong pairing nothing fails, the text is "
            "only worse."
        )
        if model.fields.get("qk_rope_head_dim") == rotary.head_dim:
            yield (
                "Code of this model may write the rotated dims in another order than it read them "
                "(even dims, then odd ones): the same for q and k, so no score changes."
            )
    if (rotary.inv_freq < 0).any():
        yield "The model turns backward: by minus the angle that others take."
    if rotary.rotary_start:
        yield (
            "The rotated dims are the last of the head. DeepSeek-V4 also turns the output of "
            "attention back at the position of the query, since its values are keys."
        )


@_check
def _without(case: _Case) -> Iterator[str]:
    if case.found.rotary is not None:
        return
    every = case.model.unnumbered_without.get(case.group.layer_type)
    if every is None:
        which, numbers = "", "`nope_layers` has their numbers"
    else:
        which = f" ({_rule(case.group.layer_type, every)})"
        numbers = (
            "The configuration does not say how many layers there are (num_hidden_layers), and so "
            "not which these are"
            if case.model.layer_count is None
            else "The configuration does not say which these are (layer_types)"
        )
    yield (
        f"Some layers have no rotary encoding{which}: to rotate all layers alike is a known error, "
        f"and shows only at length. {numbers}."
    )


@_check
def _factor_without_a_type(case: _Case) -> Iterator[str]:
    for key in ("rope_parameters", "rope_scaling"):
        given = case.model.fields.get(key)
        if not isinstance(given, Mapping) or case.found.rotary is None:
            continue
        entries = [entry for entry in (given, *given.values()) if isinstance(entry, Mapping)]
        for entry in entries:
            factor = entry.get("factor")
            if factor is not None and not entry.get("rope_type") and not entry.get("type"):
                yield (
                    f"A factor ({factor}) stands in {key} without a rope_type beside it, and is "
                    "ignored, here as in transformers: nothing is scaled. If the model was trained "
                    'for a scaling, the file should name it, as "linear" or "yarn".'
                )


@_check
def _query_temperature(case: _Case) -> Iterator[str]:
    given = case.model.fields.get("rope_parameters") or case.model.fields.get("rope_scaling") or {}
    beta = given.get("llama_4_scaling_beta") if isinstance(given, Mapping) else None
    if not beta:
        return
    yield (
        f"llama_4_scaling_beta = {_number(beta)}: queries are also multiplied by 1 + beta * ln(1 + "
        "floor(position / original_max_position_embeddings)). That is not part of the rotation, "
        "and nothing here does it."
    )


# Words


def _heading(group: LayerExplanation, alone: bool) -> str:
    name = f"Layers of type {group.layer_type}" if group.layer_type else "Layers"
    if not group.layers and group.layer_type is None:
        apart = "Layers without rotary encoding" if group.rotary is None else "Layers that rotate"
        return "All layers" if alone else apart
    if not group.layers:
        return name
    return f"{name}: {_numbers(group.layers)}"


def _numbers(layers: tuple[int, ...]) -> str:
    if len(layers) == 1:
        return str(layers[0])
    steps = set(np.diff(layers).tolist())
    if steps == {1}:
        return f"{layers[0]} to {layers[-1]}"
    if len(steps) == 1 and len(layers) > 2:
        step = int(layers[1] - layers[0])
        return f"{layers[0]}, {layers[1]} ... {layers[-1]} ({_every(step)})"
    if len(layers) > 10:
        shown = ", ".join(map(str, layers[:6]))
        return f"{shown} ... {layers[-1]} ({len(layers)} layers)"
    return ", ".join(map(str, layers))


def _every(step: int) -> str:
    return "every " + {2: "second", 3: "third"}.get(step, f"{step}th")


def _rule(layer_type: str | None, every: int) -> str:
    """Which layers `Configuration.unnumbered_without` means."""
    if layer_type is not None:
        usual = f", {_every(every)} layer" if every > 1 else ""
        return f"those of type {layer_type}{usual}"
    return f"{_every(every)} layer" if every > 0 else f"the last and {_every(-every)} before it"


def _wrapped(text: str, width: int, first: str, then: str) -> list[str]:
    return textwrap.wrap(text, width, initial_indent=first, subsequent_indent=then)


def _number(value: float) -> str:
    if value == int(value) and abs(value) < 1e12:
        return f"{int(value):,}"
    return f"{value:.4g}"


def _times(value: float) -> str:
    return "once" if value == 1 else f"{_number(value)} times"


def _positions(frequency: float) -> str:
    turn = 2 * math.pi / frequency
    return f"{turn:.1f}" if turn < 100 else f"{turn:,.0f}" if turn < 1e9 else f"{turn:.2g}"
