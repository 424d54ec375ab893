"""vLLM's and SGLang's server settings: a model, and overrides of its configuration.

The versions that served.json names were run with them, and with the models and scalings that it
lists (tests/engines_at_hand).
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib import resources
from typing import Any, NamedTuple, NoReturn

from posenc_native.checkpoints.formats.description import Description, Ground
from posenc_native.checkpoints.formats.form import Format
from posenc_native.checkpoints.formats.settings import Settings
from posenc_native.core.calls.arguments import wrong_type, wrong_value
from posenc_native.core.calls.errors import fault_of
from posenc_native.models.config import LayerGroup
from posenc_native.models.files import MOST_LEVELS, _is_deeper, unique_names

from .overrides import ROTARY, as_sglang, as_vllm, merged, model_type, text_part


class Launch(NamedTuple):
    """The settings of a server.

    Attributes:
        model: the path of the model, or its configuration.
        overrides: entries that replace those of its configuration.
        length: the longest sequence that it serves; None if the settings do not say.
        engine: "vLLM" or "SGLang".
        flags: rotary entries that older versions took beside the overrides.
    """

    model: Any
    overrides: Mapping[str, Any]
    length: int | None
    engine: str
    flags: Mapping[str, Any] = {}

    @property
    def rules(self) -> Mapping[str, Any]:
        """Facts seen of the engine."""
        rules: Mapping[str, Any] = _seen()[self.engine]
        return rules

    def overridden(self, entries: Mapping[str, Any], function: str) -> dict[str, Any]:
        """The configuration that the engine serves."""
        if self.flags or not self.overrides:
            return merged(merged(entries, self.overrides), self.flags)
        override = _OVERRIDE[self.engine]
        return override(entries, self.overrides, self.rules, function)


_OVERRIDE: dict[str, Callable[..., dict[str, Any]]] = {"vLLM": as_vllm, "SGLang": as_sglang}


@cache
def _seen() -> dict[str, Any]:
    text = resources.files(__package__).joinpath("served.json").read_text(encoding="utf-8")
    seen: dict[str, Any] = json.loads(text)
    return seen


def _claims_vllm(entries: Mapping[str, Any]) -> bool:
    own = {"hf-overrides", "hf_overrides", "rope-scaling", "rope-theta", "max-model-len",
           "max_model_len"}  # fmt: skip
    return isinstance(entries.get("model"), (str, Mapping)) and bool(own & {*entries})


def _claims_sglang(entries: Mapping[str, Any]) -> bool:
    return bool({"model-path", "model_path"} & {*entries})


def _read_vllm(entries: Mapping[str, Any], function: str) -> Launch:
    settings = _settings(entries, function)
    overrides = dict(_object(settings, "hf_overrides"))
    flags = {}
    for key in ("rope_scaling", "rope_theta"):
        if key in settings:
            flags[key] = _object(settings, key) if key == "rope_scaling" else settings[key]
    length = settings.length("max_model_len")
    return Launch(_model(settings, "model"), overrides, length, "vLLM", flags)


def _read_sglang(entries: Mapping[str, Any], function: str) -> Launch:
    settings = _settings(entries, function)
    overrides = _object(settings, "json_model_override_args")
    length = settings.length("context_length")
    return Launch(_model(settings, "model_path"), overrides, length, "SGLang")


def _model(settings: Settings, key: str) -> Any:
    return settings[key] if isinstance(settings[key], Mapping) else settings.text(key)


def _settings(entries: Mapping[str, Any], function: str) -> Settings:
    """The settings by their Python names; files may write them with hyphens."""
    named = {str(key).replace("-", "_"): value for key, value in entries.items()}
    return Settings(function, named, "settings")


def _object(settings: Settings, key: str) -> Mapping[str, Any]:
    value = settings[key]
    if isinstance(value, str):
        value = _json(value, settings.function, settings.name(key))
    return settings.inner(key).entries if value is settings[key] else value


def _json(text: str, function: str, name: str) -> dict[str, Any]:
    wrong = partial(wrong_value, function, name)
    try:
        value = json.loads(text, object_pairs_hook=unique_names(wrong))
    except (ValueError, RecursionError) as error:
        if fault_of(error) is not None:
            raise
        wrong("JSON", "invalid JSON")
    if _is_deeper(value, MOST_LEVELS):
        wrong_value(function, name, f"JSON of at most {MOST_LEVELS} levels", "more")
    if not isinstance(value, dict):
        wrong_type(function, name, "a JSON object, {...}", type(value).__name__)
    return value


VLLM = Format("vllm", "vLLM settings", _claims_vllm, read_launch=_read_vllm)
SGLANG = Format("sglang", "SGLang settings", _claims_sglang, read_launch=_read_sglang)


# Overrides


def split_overrides(text: str, function: str) -> tuple[str, dict[str, Any]]:
    """Split ``path+{...}`` in two; the overrides are empty if there are none."""
    path, plus, rest = text.partition("+{")
    return (path, _json("{" + rest, function, "overrides")) if plus else (text, {})


def refuse_overrides(function: str, title: str) -> NoReturn:
    """Raise the ValueError for overrides of a format that takes none."""
    expected = "a Hugging Face configuration to apply them to"
    wrong_value(function, "overrides", expected, title)


def as_served(description: Description, launch: Launch, model: Mapping[str, Any]) -> Description:
    """The description of a model as the server rotates it; `model` is its file's content."""
    which = f": {launch.model}" if isinstance(launch.model, str) else ""
    remarks = [f"Read as {launch.engine} loads it{which}.", *description.remarks]
    remarks += _of_overrides(description, launch, model)
    groups = tuple(
        _group_as_served(group, description, launch, remarks) for group in description.groups
    )
    names = ", ".join([*launch.overrides, *launch.flags])
    overridden = f" with overrides of {names}" if names else ""
    return dataclasses.replace(
        description,
        format=f"{launch.engine} settings on a {description.format}{overridden}",
        engine=launch.engine,
        groups=groups,
        length=launch.length or description.length,
        remarks=tuple(dict.fromkeys(remarks)),
        ground=_ground(description, launch),
    )


def _of_overrides(description: Description, launch: Launch, model: Mapping[str, Any]) -> list[str]:
    """Effects of an override that its writer may not expect."""
    rules, said = launch.rules, list[str]()
    if launch.flags:  # of an older version, which was not run
        return said
    who, part = f"{launch.engine} {rules['version']}", text_part(model)
    named = [launch.overrides[key] for key in ROTARY if key in launch.overrides]
    copied = part is not None and model_type(model) in rules.get("copied_up", ())
    inner = launch.overrides.get(part or "")
    inside = inner if isinstance(inner, Mapping) else {}
    if "rope_theta" in launch.overrides:
        said.append(f"{who} ignores an override of rope_theta: write it inside rope_parameters.")
    if copied and inside:
        said.append(
            f"{who} reads a copy of {part} at the top for this model: overrides of {part} change "
            "nothing, write them at the top."
        )
    elif part is not None and named and not copied:
        said.append(
            f"Rotary parameters at the top of the overrides do not reach {part}, so they change "
            f'nothing: write {{"{part}": {{"rope_parameters": ...}}}}.'
        )
    elif launch.engine == "vLLM" and any(
        not isinstance(value, Mapping) or "rope_theta" not in value for value in named
    ):
        base = rules["base"].get(description.model_type, 10000.0)
        said.append(
            "The overrides name no rope_theta. They replace all rotary parameters of the file, so "
            f"{who} takes its own default, {base:,.10g}, and not the file's base: write rope_theta "
            "beside the scaling."
        )
    elif launch.engine == "SGLang" and any(
        isinstance(inside.get(key), Mapping) and "rope_theta" not in inside[key] for key in ROTARY
    ):
        said.append(
            f"{who} replaces whole values of {part}: write rope_theta and all other rotary "
            "parameters beside the scaling."
        )
    return said


def kind(group: LayerGroup) -> str:
    """The kind of a rotation, as the record of an engine distinguishes them."""
    if group.arguments is None:
        return "none"
    scaling = group.arguments.get("scaling") or {}
    keys = ("alpha", "attention_factor", "mscale", "mscale_all_dim", "truncate")
    factors = [key for key in keys if scaling.get(key) is not None]
    share = [] if group.arguments.get("rotary_dim") == group.arguments["head_dim"] else ["share"]
    return " ".join([scaling.get("rope_type", "default"), *factors, *share])


def kinds(description: Description) -> list[str]:
    """The kinds of all layers that rotate."""
    rotating = [group for group in description.groups if group.arguments is not None]
    return sorted({kind(group) for group in rotating})


def _ground(description: Description, launch: Launch) -> Ground:
    rules = launch.rules
    if launch.flags:
        why = f"vLLM {rules['version']} has no {' and '.join(launch.flags)} beside hf_overrides"
        return Ground("unknown", launch.engine, why=f"{why}, and older versions were not run")
    parameters = description.entries.get("rope_parameters") or {}
    nested = any(isinstance(entry, Mapping) for entry in parameters.values())
    if description.model_type in rules["by_layer_type"] and parameters and not nested:
        why = f"{launch.engine} was not run with one rope_parameters for all layers of this model"
        return Ground("unknown", launch.engine, why=why)
    ran = rules["ran"].get(description.model_type, ())
    missing = [name for name in kinds(description) if name not in ran]
    if not missing:
        return Ground("run", launch.engine, rules["version"])
    what = f"{description.model_type or 'a model without model_type'} ({missing[0]})"
    return Ground("unknown", launch.engine, why=f"{launch.engine} was not run with {what}")


def _group_as_served(
    group: LayerGroup, description: Description, launch: Launch, remarks: list[str]
) -> LayerGroup:
    if group.arguments is None or "inv_freq" in group.arguments:
        return group
    arguments = dict(group.arguments)
    share = _share(group, description, launch)
    if share is not None:
        arguments["rotary_dim"] = int(arguments["head_dim"] * share)
    scaling = arguments.get("scaling")
    if scaling is not None:
        change = _OF_ENGINE[launch.engine].get(scaling["rope_type"])
        arguments["scaling"] = (
            scaling if change is None else change(dict(scaling), description, launch, remarks)
        )
    return dataclasses.replace(group, arguments=arguments)


def _share(group: LayerGroup, description: Description, launch: Launch) -> float | None:
    """The share of the head, where the engine reads it in its own way."""
    rules, entries = launch.rules, description.entries
    model_type = description.model_type
    if model_type in rules["whole_head"]:
        return 1.0
    if launch.engine == "SGLang":
        at_top = model_type in rules["share_at_top"]
        return float(entries.get("partial_rotary_factor") or 1) if at_top else None
    parameters = entries.get("rope_parameters") or {}
    own = parameters.get(group.layer_type or "")
    for place in (own, parameters, entries):
        if isinstance(place, Mapping) and place.get("partial_rotary_factor") is not None:
            return float(place["partial_rotary_factor"])
    return None


_Change = Callable[[dict[str, Any], Description, Launch, list[str]], "dict[str, Any] | None"]


def _vllm_longrope(
    scaling: dict[str, Any], description: Description, launch: Launch, remarks: list[str]
) -> dict[str, Any]:
    needed = ("short_factor", "long_factor", "original_max_position_embeddings")
    if any(scaling.get(key) is None for key in needed):  # the reader of the scaling reports it
        return scaling
    entries, default = description.entries, launch.rules["original"].get(description.model_type)
    at_top = entries.get("original_max_position_embeddings")
    trained = at_top or default or scaling["original_max_position_embeddings"]
    length = launch.length or at_top or default or description.length
    name = "long" if length is not None and length > trained else "short"
    because = "max_model_len" if launch.length else "the length that it serves by default"
    remarks.append(f"vLLM uses the {name} factors for every sequence, because of {because}.")
    factors = scaling[f"{name}_factor"]
    # Its factor of cosine and sine comes from the lengths.
    if entries.get("max_position_embeddings") is not None:
        scaling.pop("factor", None)
    own = {"short_factor": factors, "long_factor": factors}
    return {**scaling, **own, "original_max_position_embeddings": trained}


def _vllm_yarn(
    scaling: dict[str, Any], description: Description, launch: Launch, remarks: list[str]
) -> dict[str, Any]:
    rules, model_type = launch.rules, description.model_type
    who = f"vLLM {rules['version']}"
    if model_type in rules["own_yarn_factor"]:
        growth = 0.1 * math.log(scaling["factor"]) if scaling["factor"] > 1 else 0.0
        weights = scaling.get("mscale", 1), scaling.get("mscale_all_dim", 0)
        above, below = (1 + growth * weight for weight in weights)
        if scaling.get("attention_factor") is not None:
            remarks.append(f"{who} ignores attention_factor in the class of this model.")
        return {**scaling, "attention_factor": above / below}
    times = rules["original_times"].get(model_type)
    length = scaling.get("original_max_position_embeddings")
    if times is None or length is None:
        return scaling
    remarks.append(
        f"{who} takes {times} times original_max_position_embeddings for the bounds of YaRN's "
        "blend in the class of this model, other than transformers."
    )
    return {**scaling, "original_max_position_embeddings": times * length}


def _vllm_dynamic(
    scaling: dict[str, Any], description: Description, launch: Launch, remarks: list[str]
) -> dict[str, Any] | None:
    if "alpha" in scaling:
        return scaling
    remarks.append(
        f"vLLM {launch.rules['version']} does not scale: with this dynamic scaling it rotated by "
        "the plain frequencies."
    )
    return None


def _sglang_dynamic(
    scaling: dict[str, Any], description: Description, launch: Launch, remarks: list[str]
) -> dict[str, Any]:
    length, factor = (scaling.get(key) for key in ("max_position_embeddings", "factor"))
    if "alpha" in scaling or length is None or factor is None:  # its reader reports the latter
        return scaling
    longest = int(length * factor)
    remarks.append(
        f"SGLang {launch.rules['version']} stretches the base once, for {longest:,} positions, and "
        "uses it for every sequence."
    )
    return {**scaling, "seq_len": longest}


def _sglang_yarn(
    scaling: dict[str, Any], description: Description, launch: Launch, remarks: list[str]
) -> dict[str, Any]:
    if scaling.pop("attention_factor", None) is not None:
        remarks.append(f"SGLang {launch.rules['version']} ignores attention_factor.")
    return scaling


_OF_ENGINE: dict[str, dict[str, _Change]] = {
    "vLLM": {"longrope": _vllm_longrope, "dynamic": _vllm_dynamic, "yarn": _vllm_yarn},
    "SGLang": {"dynamic": _sglang_dynamic, "yarn": _sglang_yarn},
}
