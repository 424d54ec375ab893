"""Explain a model's rotary encoding in plain words, from its configuration.

There is a sentence for every fact, and a remark where engines are known to read the same
configuration differently. Most reports of "the model is a little worse there" come from such a
difference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from posenc_native.checkpoints.formats.description import Description
from posenc_native.checkpoints.formats.reading import read
from posenc_native.core.calls.errors import named
from posenc_native.core.frequencies.axes import pairs_by_axis
from posenc_native.core.frequencies.scaling import rotary_blend, rotary_frequencies
from posenc_native.encodings.positions.of_models import grid_axes, grid_words
from posenc_native.encodings.rotary.rotary import Rotary
from posenc_native.models.config import LayerGroup

from .engine_differences import _SEVERAL, CHECKS, Case, _float32_phase
from .explanation import NOPE, Explanation, LayerExplanation
from .field_words import SAME, base_of, in_words, shares, value_text
from .words import number, times, turn_text


def explain(config: Any) -> Explanation:
    """Say in plain words how a model rotates, and where engines are known to disagree about it.

    Args:
        config: a transformers configuration, its mapping, a transformer of diffusers (or its
            mapping with "_class_name"), or a path: of a config.json, of a GGUF or ONNX file, of
            Meta's or Mistral's params.json, of Megatron-LM's arguments as JSON or YAML, of settings
            of torchtitan, torchtune, TensorRT-LLM, vLLM or SGLang, or of the folder of such a file.
            Also the name of a preset, or a `Rotary`. The content shows the format; if it does not,
            ``"megatron:path"`` names it. ``'path+{"rope_scaling": ...}'`` adds overrides to a
            Hugging Face configuration: what they do not name stays.

    Returns:
        An ``Explanation``. For every group of layers that rotate alike it has their `Rotary`, the
        factor of the softmax scale and sentences about them. It also has the layers without rotary
        encoding, warnings, entries that seem to concern the rotation but are not read, and the
        ``description`` that all formats share. ``print(explain(config))`` shows all of it.

    Raises:
        ValueError, TypeError, OSError: as in `Rotary.from_config`.
        ImportError: a package that reads the format is not installed (gguf, PyYAML).

    Example:
        >>> report = explain({"model_type": "llama", "head_dim": 8, "rope_theta": 10000.0})
        >>> print(report)
        Rotary encoding of llama
        Each pair of numbers in a query or key is turned by an angle that grows with the position of
        its token, so that the score of the two depends only on how far apart they are.
        <BLANKLINE>
        All layers
          All 8 dims of a head are rotated, as 4 pairs: dim i with dim i + 4 ("half").
          A token at position p turns pair k by p * f_k radians; f falls from 1 to 0.001 (base
          10,000), one turn every 6.3 positions to one every 6,283.
          No scaling: frequencies and cosines are used as they are.
        <BLANKLINE>
        How this is known: transformers 5.23.0 was run with configurations of this kind and rotated
        so.
    """
    with named("explain"):
        model = read(config, "explain")
        explained = tuple(_explained(model, group) for group in model.groups)
        rotating = [layers.rotary for layers in explained if layers.rotary is not None]
        general = [_SEVERAL] if any(rotary != rotating[0] for rotary in rotating) else []
        general += _float32_phase(rotating, model.length)
        warnings = dict.fromkeys(
            text
            for check in CHECKS
            for group, layers in zip(model.groups, explained, strict=True)
            for text in check(Case(model, group, layers.rotary))
        )
        return Explanation(
            model.model_type,
            explained,
            model.nope_layers,
            (*general, *warnings, *_of_file(model)),
            model.unread,
            model,
        )


def _of_file(model: Description) -> list[str]:
    """The values that the file leaves to its engine, and remarks about this file."""
    # For the base of a Hugging Face configuration, a check has better words.
    unknown = [] if model.entries else [str(entry) for entry in model.unknown if entry.assumed]
    said = [f"{text[0].upper()}{text[1:]}." for text in unknown]
    if model.permuted_by:
        said.append(
            f"For this architecture {model.permuted_by} permutes the weights of queries and keys; "
            "the Hugging Face checkpoint has the half pairing."
        )
    return [*said, *model.remarks]


# Facts


def _explained(model: Description, group: LayerGroup) -> LayerExplanation:
    layers = group.layers
    if len(model.groups) == 1 and len(layers) == model.layer_count:
        layers = ()  # all layers of the model: no need to list them
    if group.arguments is None:
        return LayerExplanation(group.layer_type, layers, None, 1.0, (NOPE,))
    rotary = Rotary(**group.arguments)
    base = base_of(group, rotary)
    facts = (
        _dims(model, rotary),
        _frequencies(rotary, base),
        *_axes(model, rotary),
        *_scaling(model, rotary, base),
        *_factors(rotary, group.softmax_correction),
    )
    return LayerExplanation(group.layer_type, layers, rotary, group.softmax_correction, facts, base)


def _dims(model: Description, rotary: Rotary) -> str:
    pairs = len(rotary.inv_freq)
    rotated = 2 * pairs
    if rotated < rotary.head_dim:
        place = "first" if rotary.rotary_start == 0 else "last"
        what = f"The {place} {rotated} of the {rotary.head_dim} dims of a head"
    else:
        what = f"All {rotated} dims of a head"
    if model.latent:
        what = f"The {rotated} dims that latent attention keeps for the position"
    if rotary.pairing == "interleaved":
        partner = 'dim 2i with dim 2i + 1 ("interleaved")'
    else:
        partner = f'dim i with dim i + {pairs} ("half")'
    return f"{what} are rotated, as {pairs} pair{'s' if pairs > 1 else ''}: {partner}."


def _frequencies(rotary: Rotary, base: float | None) -> str:
    turning = np.abs(rotary.inv_freq[rotary.inv_freq != 0])
    if not len(turning):
        return "Every frequency is 0: nothing is rotated."
    high, low = float(turning.max()), float(turning.min())
    of_base = "" if base is None else f" (base {number(base)})"
    still = len(rotary.inv_freq) - len(turning)
    others = (
        "pair has frequency 0 and is" if still == 1 else f"{still} pairs have frequency 0 and are"
    )
    rest = f"; the other {others} not rotated" if still else ""
    way = " backward" if (rotary.inv_freq < 0).any() else ""
    return (
        f"A token at position p turns pair k{way} by p * f_k radians; f falls from {number(high)} "
        f"to {number(low)}{of_base}, one turn every {turn_text(high)} positions to one every "
        f"{turn_text(low)}{rest}."
    )


def _axes(model: Description, rotary: Rotary) -> list[str]:
    if rotary.axis_map is None:
        return []
    counts, in_blocks = pairs_by_axis(rotary.axis_map)
    names = ("time", "height", "width")[-len(counts) :]
    if rotary.vision is not None:
        names = grid_axes(rotary.vision)
    shared = ", ".join(f"{count} by {name}" for name, count in zip(names, counts, strict=False))
    order = "in blocks, one axis after another" if in_blocks else "the axes alternating"
    text = (
        f"Tokens have a position on each of {len(counts)} axes, which drive the pairs: {shared}, "
    )
    if rotary.vision is not None:
        return [f"{text}{order}.", grid_words(rotary.vision)]
    if model.sees:
        return [f"{text}{order}."]
    equal = "If a token's positions are equal, as for text, this is ordinary rotary encoding."
    return [f"{text}{order}. {equal}"]


def _scaling(model: Description, rotary: Rotary, base: float | None) -> list[str]:
    scaling = rotary.scaling
    if scaling is None:
        if "inv_freq" in rotary._given:
            return [] if base is None else _own_factors(model, rotary, base)
        return ["No scaling: frequencies and cosines are used as they are."]
    rope_type = scaling["rope_type"]
    words = _SCALING_WORDS.get(rope_type, _general_words)(scaling)
    plain, _ = rotary_frequencies(rotary.rotary_dim, rotary.base)
    turning = rotary.inv_freq != 0
    ratio = plain[turning] / rotary.inv_freq[turning]
    factor = float(ratio.max(initial=1.0))
    kept, slowed = np.abs(ratio - 1) < 1e-9, ratio > 1 + 1e-9
    if rotary_blend("explain", rotary.rotary_dim, rotary.base, scaling) is not None:
        fully = slowed & (ratio > factor * (1 - 1e-9))
        words += (
            f" Here {_kept(int(kept.sum()))}, {_are(int((~kept & ~fully).sum()))} blended and "
            f"{_are(int(fully.sum()))} slowed by {number(factor)}."
        )
    elif rope_type not in _SCALING_WORDS:
        faster, least = ratio < 1 - 1e-9, float(ratio.min(initial=1.0))
        words += (
            f" Number of pairs that keep their frequency: {kept.sum()}"
            f"{_changed(slowed, 'slowed', factor)}{_changed(faster, 'faster', 1 / least)}."
        )
    return [f"Scaling {rope_type}: {words}"]


def _own_factors(model: Description, rotary: Rotary, base: float) -> list[str]:
    """The factors of a file that has a factor for every pair; those of pairs that turn."""
    of_base = shares(rotary, base)
    factors = 1 / of_base[of_base != 0]
    if not len(factors) or np.abs(factors - 1).max() < SAME:
        return []
    said = f"{number(factors.min())} to {number(factors.max())}"
    return [
        in_words(model, "inv_freq", f"Every frequency is divided by its own factor, {said}") + "."
    ]


def _kept(pairs: int) -> str:
    return "1 pair keeps its frequency" if pairs == 1 else f"{pairs} pairs keep their frequency"


def _are(count: int) -> str:
    return f"{count} {'is' if count == 1 else 'are'}"


def _changed(pairs: npt.NDArray[np.bool_], how: str, most: float) -> str:
    return f"; that are {how}: {pairs.sum()} (by up to {number(most)})" if pairs.any() else ""


def _general_words(scaling: Mapping[str, Any]) -> str:
    """A type without words of its own: its parameters."""
    parameters = ", ".join(
        f"{key} {value_text(value)}" for key, value in scaling.items() if key != "rope_type"
    )
    return "the frequencies follow a rule of this name" + (
        f" with {parameters}." if parameters else "."
    )


def _ntk_words(scaling: Mapping[str, Any]) -> str:
    factor, power = number(scaling["factor"]), scaling.get("mixed_b")
    if power is None:
        return f"the base is stretched (NTK) by {factor}."
    return (
        f"every frequency is divided by a power of {factor} that grows from pair to pair (NTK, "
        f"mixed_b {number(power)})."
    )


def _dynamic_words(scaling: Mapping[str, Any]) -> str:
    if "alpha" in scaling:
        return (
            f"the base is stretched once (alpha {number(scaling['alpha'])}); despite the name, "
            "nothing depends on the length."
        )
    length = scaling.get("max_position_embeddings")
    trained = "those in training" if length is None else f"{number(length)} positions"
    return (
        f"the base grows with the length of sequences longer than {trained} (factor "
        f"{number(scaling['factor'])}); {_length_shown(scaling)}."
    )


def _length_shown(scaling: Mapping[str, Any]) -> str:
    length = scaling.get("seq_len")
    shorter = "shorter ones" if length is None else f"{number(length)} positions"
    return f"the frequencies shown are for {shorter}"


def _yarn_words(scaling: Mapping[str, Any]) -> str:
    fast, slow = scaling.get("beta_fast", 32), scaling.get("beta_slow", 1)
    bounds = "" if scaling.get("truncate", True) else " (bounds not rounded to whole pairs)"
    return _band_words(scaling, fast, slow, f", those between are blended{bounds}")


def _llama3_words(scaling: Mapping[str, Any]) -> str:
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    return _band_words(scaling, high, low, "" if low == high else ", those between are blended")


def _band_words(scaling: Mapping[str, Any], fast: float, slow: float, between: str) -> str:
    return (
        f"pairs that turn more than {times(fast)} within the "
        f"{number(scaling['original_max_position_embeddings'])} positions of the original context "
        f"keep their frequency, those that turn less than {times(slow)} are slowed by "
        f"{number(scaling['factor'])}{between}."
    )


def _longrope_words(scaling: Mapping[str, Any]) -> str:
    short, long = (np.array(scaling[f"{key}_factor"], float) for key in ("short", "long"))
    return (
        "every frequency is divided by its own factor: "
        f"{number(short.min())} to {number(short.max())} for sequences of up to "
        f"{number(scaling['original_max_position_embeddings'])} positions, {number(long.min())} to "
        f"{number(long.max())} for longer ones; {_length_shown(scaling)}."
    )


def _proportional_words(scaling: Mapping[str, Any]) -> str:
    share = scaling.get("partial_rotary_factor", 1.0)
    return (
        "the frequencies are computed for the whole head, and the first "
        f"{number(100 * share)} % of them are used."
    )


def _axial_words(scaling: Mapping[str, Any]) -> str:
    axes = number(scaling.get("axes", 2))
    return (
        f"the pairs form {axes} equal blocks, and each has the frequencies of a head with 1/{axes} "
        "of the rotated dims."
    )


# Better words for some types; `_general_words` has those for all others.
_SCALING_WORDS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "linear": lambda scaling: f"every frequency is divided by {number(scaling['factor'])}.",
    "ntk": _ntk_words,
    "ntk_alpha": lambda scaling: f"the base is stretched once (alpha {number(scaling['alpha'])}).",
    "dynamic": _dynamic_words,
    "yarn": _yarn_words,
    "llama3": _llama3_words,
    "longrope": _longrope_words,
    "proportional": _proportional_words,
    "axial": _axial_words,
}


def _factors(rotary: Rotary, correction: float) -> list[str]:
    facts = []
    if rotary.scale != 1:
        facts.append(
            f"Cosines and sines are multiplied by {number(rotary.scale)} (the attention factor), "
            f"so scores grow by a factor of {number(rotary.scale**2)}."
        )
    if correction != 1:
        facts.append(
            f"Apart from the rotation, the model multiplies the scale of its scores by "
            f"{number(correction)} (softmax_correction, from mscale_all_dim). The frequencies do "
            "not show this; without it, attention is too flat."
        )
    return facts
