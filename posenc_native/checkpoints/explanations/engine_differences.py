"""Points on which inference engines differ: what a configuration leaves open, and its readings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from posenc_native.checkpoints.formats.description import Description
from posenc_native.core.frequencies.scaling import rotary_frequencies
from posenc_native.encodings.rotary.rotary import Rotary
from posenc_native.models.config import LayerGroup

from .field_words import query_scale_words
from .words import layer_rule, number


@dataclass(frozen=True)
class Case:
    """A group of layers and its rotation, for the checks below."""

    model: Description
    group: LayerGroup
    rotary: Rotary | None

    @property
    def scaling(self) -> Mapping[str, Any]:
        """The scaling of a group that rotates; empty if it has none."""
        return (self.rotary and self.rotary.scaling) or {}

    @property
    def rope_type(self) -> str:
        """The type of the scaling."""
        return str(self.scaling.get("rope_type", "default"))


# The versions that were run (tests/engines_at_hand); sentences say only what their records show.
_VLLM, _SGLANG = "vLLM 0.32.0", "SGLang 0.5.23"

_SEVERAL = (
    "Layers differ in their rotary encoding: one table of cosines for all of them is wrong for "
    "some."
)


def _float32_phase(rotating: Sequence[Rotary], length: Any) -> list[str]:
    """The error of float32 angles at the longest sequence of the model."""
    if not isinstance(length, int) or length < 2:
        return []
    positions = np.arange(max(length - 64, 0), length)
    off = 0.0
    for rotary in rotating:
        product = np.float32(positions)[:, None] * np.float32(rotary.inv_freq)
        # float64 is off by 2^-53 of the phase, negligible next to 2^-24.
        exact = positions[:, None] * rotary.inv_freq
        off = max(off, float(np.abs(product.astype(np.float64) - exact).max(initial=0.0)))
    if off < 1e-3:
        return []
    more = ", where float32 cannot even tell all positions apart" if length > 2**24 else ""
    text = (
        f"An angle computed as position * frequency in float32, as in most engines, is off by up "
        f"to {number(off)} radians near position {length:,}{more}; in bfloat16 it would be "
        "meaningless. In posenc_native angles are exact to float32 up to position 2^38."
    )
    return [text]


_Check = Callable[[Case], Iterator[str]]

CHECKS: list[_Check] = []


def _check(function: _Check) -> _Check:
    CHECKS.append(function)
    return function


@_check
def _base_unsaid(case: Case) -> Iterator[str]:
    rotary = case.rotary
    named = case.model.names_a_base or not case.model.entries
    if rotary is None or "inv_freq" in rotary._given or named:
        return
    who = "the model's class" if case.model.engine == "transformers" else case.model.engine
    yield f"The configuration names no base: {who} defaults to {number(rotary.base)}."


@_check
def _beside_frequencies(case: Case) -> Iterator[str]:
    weight = case.scaling.get("mscale_all_dim")
    if not weight:
        return
    if case.model.corrects_softmax:
        yield (
            "The softmax correction belongs to the model, not to the rotary encoding: an engine "
            "must apply it too, once."
        )
    else:
        yield (
            "mscale_all_dim is given, but the model's own code does not correct the softmax scale "
            "by it, as DeepSeek's does. An engine that treats the model as a DeepSeek would."
        )


@_check
def _attention_factor(case: Case) -> Iterator[str]:
    if case.rope_type != "yarn" or case.rotary is None:
        return
    plain = {key: case.scaling[key] for key in case.scaling if key not in _FACTOR_KEYS}
    usual = rotary_frequencies(case.rotary.head_dim // 2 * 2, 10000.0, plain)[1]
    keys = [key for key in _FACTOR_KEYS if case.scaling.get(key) is not None]
    scale = case.rotary.scale
    if "beta_fast" in case.scaling or "beta_slow" in case.scaling:
        yield (
            "Pairs that make more than beta_fast turns are left alone, pairs that make fewer than "
            "beta_slow are slowed. Code that swaps the two is wrong at every length."
        )
    if keys and abs(usual - scale) > 1e-9:
        yield (
            f"The attention factor {number(scale)} comes from {' and '.join(keys)}; an engine "
            f"that does not read this uses {number(usual)} (0.1 ln(factor) + 1)"
            + (f", as {_SGLANG} does." if "attention_factor" in keys else ".")
        )
    mscale, all_dim = (case.scaling.get(key) for key in ("mscale", "mscale_all_dim"))
    if "attention_factor" not in keys and bool(mscale) != bool(all_dim):
        alone = "mscale" if mscale else "mscale_all_dim"
        yield (
            f"{alone} is given without the other: transformers then ignores it and uses "
            f"{number(usual)}; {_VLLM} does so too, except for DeepSeek-V2 and V3, where it takes "
            "the ratio, with 1 for a missing mscale and 0 for a missing mscale_all_dim."
        )


_FACTOR_KEYS = ("attention_factor", "mscale", "mscale_all_dim")


@_check
def _truncation(case: Case) -> Iterator[str]:
    if case.rope_type != "yarn" or case.scaling.get("truncate", True):
        return
    yield (
        "truncate is false: the bounds of YaRN's blend are not rounded to whole pairs. "
        f"{_VLLM} and {_SGLANG} do the same; an engine that does not read the key rounds them."
    )
    parameters = case.model.entries.get("rope_parameters") or {}
    if isinstance(parameters.get(case.group.layer_type or ""), Mapping):
        yield (
            "truncate is in the entry of a layer type. transformers 5.23 overlooks it there (it "
            "looks beside the entries) and rounds; posenc_native reads it there."
        )


_OF_A_LENGTH = "Rotary.from_config(..., seq_len=...) gives the frequencies for a given length."


@_check
def _lengths(case: Case) -> Iterator[str]:
    if case.rope_type == "dynamic" and "alpha" not in case.scaling:
        factor, length = case.scaling["factor"], case.scaling.get("max_position_embeddings")
        longest = (
            f"{number(factor)} times the length in training"
            if length is None
            else f"{number(length * factor)} positions"
        )
        yield (
            "transformers recomputes the frequencies whenever a sequence grows longer than those "
            f"before it, so cached keys were rotated by older frequencies. {_SGLANG} computes them "
            f"once, for {longest}, and {_VLLM} uses the plain ones, so neither is dynamic. "
            f"{_OF_A_LENGTH}"
        )
    if case.rope_type == "longrope":
        trained = case.scaling["original_max_position_embeddings"]
        yield (
            f"Engines disagree on when to switch to the long factors (beyond {number(trained)} "
            "positions). transformers decides in each call by the largest position, for the whole "
            f"batch, and Phi-3 then drops its cache. {_VLLM} decides once at the start, by the "
            "longest sequence that it may serve, so it uses the long factors for short texts too. "
            f"Keys cached before a switch were rotated by the short factors. {_OF_A_LENGTH}"
        )


@_check
def _long_mscale(case: Case) -> Iterator[str]:
    if case.model.model_type != "phimoe" or case.rope_type != "longrope":
        return
    yield (
        "transformers 5.23 changes the factor of cosine and sine with the length, but rotates by "
        "the short factors at every length. The code published with the model changes both, as "
        "posenc_native does."
    )


@_check
def _linear_difference(case: Case) -> Iterator[str]:
    if case.rope_type != "linear":
        return
    yield (
        "Linear scaling divides frequencies in posenc_native and in transformers. Code that "
        "divides positions instead has equal angles except for rounding: results differ in the "
        "last bits."
    )


@_check
def _llama3_step(case: Case) -> Iterator[str]:
    low, high = (case.scaling.get(f"{key}_freq_factor") for key in ("low", "high"))
    if case.rope_type != "llama3" or low != high:
        return
    yield "Equal low and high factors make a step; code that divides by their difference fails."


@_check
def _several_axes(case: Case) -> Iterator[str]:
    rotary = case.rotary
    if rotary is None or rotary.axis_map is None or case.model.sees or rotary.vision is not None:
        return
    axes = int(rotary.axis_map.max()) + 1
    yield (
        f"Positions have the shape [{axes}, batch, tokens]. Fused kernels that read only the first "
        "row drop the others without an error: text works, pictures are misread."
    )
    if int((np.diff(rotary.axis_map) != 0).sum()) > 2:
        yield (
            "The axes alternate among the pairs. Code written for Qwen2-VL's blocks gives other "
            "angles. The remaining pairs use time, as in transformers."
        )


@_check
def _share_of_the_head(case: Case) -> Iterator[str]:
    rotary = case.rotary
    if rotary is None:
        return
    if case.rope_type == "proportional":
        yield (
            "Proportional: the exponents of the frequencies run over the whole head, and dim i "
            f"pairs with dim i + {rotary.head_dim // 2}. The usual partial rotary encoding "
            "(exponents over the rotated dims, pairs within them) is a different one."
        )
    if 2 * len(rotary.inv_freq) == rotary.head_dim or rotary.rotary_start:
        return
    yield (
        f"Part of the head is rotated: the exponents run over these {2 * len(rotary.inv_freq)} "
        "dims. An engine that applies the share twice, ignores it, or lets the exponents run over "
        "the whole head has other frequencies."
    )


@_check
def _pairing_difference(case: Case) -> Iterator[str]:
    rotary, model = case.rotary, case.model
    if rotary is None:
        return
    sees = model.sees or rotary.vision is not None
    if rotary.pairing == "interleaved":
        worse = "images get" if sees else "the text gets"
        yield (
            "Neighboring dims form pairs. Weights converted for the half pairing have the rows of "
            "their projections in another order. With the wrong pairing nothing fails, but "
            f"{worse} worse."
        )
        if model.latent:
            yield (
                "Code of this model may write the rotated dims in another order than it reads them "
                "(even dims, then odd ones). It does so for both q and k, so no score changes."
            )
    if (rotary.inv_freq < 0).any():
        yield "The model rotates backward: by minus the angle that other models use."
    if rotary.rotary_start and not sees:
        yield (
            "The rotated dims are the last of the head. DeepSeek-V4 also rotates the attention "
            "output back at the position of the query, because its values are its keys."
        )


@_check
def _without(case: Case) -> Iterator[str]:
    if case.rotary is not None:
        return
    every = case.model.unnumbered_without.get(case.group.layer_type)
    if every is None:
        which, numbers = "", "`nope_layers` lists them"
    else:
        which = f" ({layer_rule(case.group.layer_type, every)})"
        numbers = (
            "The configuration does not say how many layers there are (num_hidden_layers), so it "
            "is unknown which layers these are"
            if case.model.layer_count is None
            else "The configuration does not say which layers these are (layer_types)"
        )
    yield (
        f"Some layers have no rotary encoding{which}: an engine that rotates all layers alike is "
        f"wrong, which may show only on long sequences. {numbers}."
    )


@_check
def _factor_without_a_type(case: Case) -> Iterator[str]:
    for key in ("rope_parameters", "rope_scaling"):
        parameters = case.model.entries.get(key)
        if not isinstance(parameters, Mapping) or case.rotary is None:
            continue
        for entry in (parameters, *parameters.values()):
            if not isinstance(entry, Mapping):
                continue
            factor = entry.get("factor")
            if factor is not None and not entry.get("rope_type") and not entry.get("type"):
                yield (
                    f"{key} has a factor ({factor}) without a rope_type beside it. The factor is "
                    "ignored, here as in transformers: nothing is scaled. If the model was trained "
                    'with a scaling, the file should name it, such as "linear" or "yarn".'
                )


@_check
def _query_scale(case: Case) -> Iterator[str]:
    scale = case.rotary.query_scale if case.rotary is not None else None
    if scale is not None:
        whole = " The dims of queries that do not rotate are, too." if case.model.latent else ""
        yield (
            f"Queries are also multiplied by {query_scale_words(scale)}.{whole} Calls of the "
            "Rotary for q and k do it (query_scale); code that multiplies queries itself must not "
            "do it again."
        )
    elif case.rotary is None and case.model.nope_query_scale is not None:
        yield (
            "Queries of layers without rotary encoding are multiplied by "
            f"{query_scale_words(case.model.nope_query_scale)}: "
            "Rotary(head_dim, query_scale=...).query_factors(positions) has these factors."
        )
