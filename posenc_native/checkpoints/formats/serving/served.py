"""vLLM's and SGLang's server settings: a model, and overrides of its configuration.

Source: vLLM 0.33, config/model.py (--hf-overrides), and releases up to 0.11 (--rope-scaling,
--rope-theta); SGLang 0.5.23, utils/hf_transformers/config.py (--json-model-override-args).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

from posenc_native.checkpoints.formats.description import Description
from posenc_native.checkpoints.formats.form import Format
from posenc_native.checkpoints.formats.settings import Settings
from posenc_native.core.calls.arguments import wrong_type, wrong_value
from posenc_native.models.config import LayerGroup
from posenc_native.models.files import MOST_LEVELS, _is_deeper



class Launch(NamedTuple):
    """The settings of a server.

    Attributes:
        model: the path of the model, or its configuration.
        overrides: entries that replace those of its configuration.
        length: the longest sequence that it serves; None if the settings do not say.
        engine: "vLLM" or "SGLang".
    """

    model: Any
    overrides: Mapping[str, Any]
    length: int | None
    engine: str


def _claims_vllm(entries: Mapping[str, Any]) -> bool:
    own = {"hf-overrides", "hf_overrides", "rope-scaling", "rope-theta", "max-model-len",
           "max_model_len"}  # fmt: skip
    return isinstance(entries.get("model"), (str, Mapping)) and bool(own & {*entries})


def _claims_sglang(entries: Mapping[str, Any]) -> bool:
    return bool({"model-path", "model_path"} & {*entries})


def _read_vllm(entries: Mapping[str, Any], function: str) -> Launch:
    settings = _settings(entries, function)
    overrides = dict(_object(settings, "hf_overrides"))
    for key in ("rope_scaling", "rope_theta"):
        if key in settings:
            overrides[key] = _object(settings, key) if key == "rope_scaling" else settings[key]
    model = settings["model"] if isinstance(settings["model"], Mapping) else settings.text("model")
    return Launch(model, overrides, settings.length("max_model_len"), "vLLM")


def _read_sglang(entries: Mapping[str, Any], function: str) -> Launch:
    settings = _settings(entries, function)
    overrides = _object(settings, "json_model_override_args")
    length = settings.length("context_length")
    return Launch(settings.text("model_path"), overrides, length, "SGLang")


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
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        wrong_value(function, name, "JSON", "invalid JSON")
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


def as_served(description: Description, launch: Launch) -> Description:
    """The description of a model as the server rotates it."""
    which = f": {launch.model}" if isinstance(launch.model, str) else ""
    remarks = [f"Read as {launch.engine} loads it{which}.", *description.remarks]
    named = [launch.overrides[key] for key in _ROTARY if key in launch.overrides]
    if launch.engine == "vLLM" and any(
        isinstance(parameters, Mapping) and "rope_theta" not in parameters for parameters in named
    ):
        remarks.append(
            "The overrides name no rope_theta, and the model's is kept here. vLLM 0.33 with "
            "transformers 5 replaces all parameters by them, and defaults to 10,000: write "
            "rope_theta beside the scaling."
        )
    if launch.engine == "vLLM" and "rope_theta" in launch.overrides:
        remarks.append(
            "The override of rope_theta is applied here. vLLM 0.33 with transformers 5 ignores one "
            "at the top of hf_overrides: write it inside rope_parameters."
        )
    groups = tuple(_group_as_served(group, launch, remarks) for group in description.groups)
    return dataclasses.replace(
        description,
        format=f"{launch.engine} settings on a {description.format}",
        engine=launch.engine,
        groups=groups,
        length=launch.length or description.length,
        remarks=tuple(dict.fromkeys(remarks)),
    )


def _group_as_served(group: LayerGroup, launch: Launch, remarks: list[str]) -> LayerGroup:
    scaling = (group.arguments or {}).get("scaling") or {}
    if group.arguments is None or launch.engine != "vLLM":
        return group
    if scaling.get("rope_type") != "longrope" or launch.length is None:
        return group
    needed = ("short_factor", "long_factor", "original_max_position_embeddings")
    if any(scaling.get(key) is None for key in needed):  # the reader of the scaling reports it
        return group
    long = launch.length > scaling["original_max_position_embeddings"]
    name = "long" if long else "short"
    remarks.append(f"vLLM uses the {name} factors for every sequence, because of max_model_len.")
    factors = scaling[f"{name}_factor"]
    fixed = {**scaling, "short_factor": factors, "long_factor": factors}
    return dataclasses.replace(group, arguments={**group.arguments, "scaling": fixed})
