"""A configuration with overrides: by engine, and for ``path+{...}``.

vLLM and SGLang load a configuration with transformers, which moves all rotary entries into
``rope_parameters``, and override it afterwards. The versions that served.json names were run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from posenc_native.core.calls.arguments import wrong_value

_PARTS = ("text_config", "language_config", "llm_config", "thinker_config")
ROTARY = ("rope_parameters", "rope_scaling")
_SHARES = ("partial_rotary_factor", "rotary_pct", "rotary_emb_fraction")
_MOVED = (*ROTARY, "rope_theta", "rotary_emb_base", *_SHARES)


def merged(entries: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with the overrides of ``path+{...}``: what they do not name stays.

    Rotary parameters replace the existing ones, under either name, but keep the base and the share
    of the head unless they name their own.
    """
    result = dict(entries)
    part = text_part(result)
    for key, value in overrides.items():
        if key in _PARTS and isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
            result[key] = _deep(result[key], value)
        elif part is not None and (key in ROTARY or key == "rope_theta"):
            result[part] = merged(result[part], {key: value})
        elif key in ROTARY and isinstance(value, Mapping):
            result = _with_parameters(result, value)
        elif key == "rope_theta" and isinstance(result.get("rope_parameters"), Mapping):
            result["rope_parameters"] = {**result["rope_parameters"], "rope_theta": value}
        else:
            result[key] = value
    return result


def as_vllm(
    entries: Mapping[str, Any],
    overrides: Mapping[str, Any],
    rules: Mapping[str, Any],
    function: str,
) -> dict[str, Any]:
    """vLLM: rotary parameters are replaced, mappings inside a part are merged."""
    result, part = _loaded(entries, rules), text_part(entries)
    # vLLM applies mappings last.
    for key, value in sorted(overrides.items(), key=lambda item: isinstance(item[1], Mapping)):
        if key in ROTARY:
            if part is None:
                result["rope_parameters"] = _replaced(result, value, rules, function)
        elif isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
            result[key] = _deep(result[key], _after_loading(value))
        elif key in _SHARES and isinstance(result.get("rope_parameters"), Mapping):
            result["rope_parameters"] = {_SHARES[0]: value, **result["rope_parameters"]}
        elif key not in _MOVED:
            result[key] = value
    return result


def as_sglang(
    entries: Mapping[str, Any],
    overrides: Mapping[str, Any],
    rules: Mapping[str, Any],
    function: str,
) -> dict[str, Any]:
    """SGLang: rotary parameters are merged at the top; entries of a part are replaced."""
    result, part = _loaded(entries, rules), text_part(entries)
    if part is not None and model_type(entries) in rules["copied_up"]:
        # Its class reads a copy at the top of the part's entries.
        top = {key: value for key, value in overrides.items() if key != part}
        return {**result, part: as_sglang(result[part], top, rules, function)}
    for key, value in overrides.items():
        if key in ROTARY:
            if part is None and isinstance(value, Mapping):
                result["rope_parameters"] = {**(result.get("rope_parameters") or {}), **value}
            elif part is None:
                base = rules["base"].get(model_type(entries), 10000.0)
                result["rope_parameters"] = {"rope_theta": base}
        elif isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
            result[key] = {**result[key], **_after_loading(value)}
        elif key in _SHARES or key not in _MOVED:
            result[key] = value
    return result


def _loaded(entries: Mapping[str, Any], rules: Mapping[str, Any]) -> dict[str, Any]:
    """The entries as transformers has them after loading: rotary entries in rope_parameters."""
    part = text_part(entries)
    if part is not None:
        return {**entries, part: _loaded(entries[part], rules)}
    if model_type(entries) in rules["by_layer_type"]:
        return dict(entries)
    parameters = {key: entries[key] for key in ("rope_theta", _SHARES[0]) if entries.get(key)}
    # rope_scaling comes first, as in transformers.
    named = (entries.get(key) for key in reversed(ROTARY))
    parameters |= next((value for value in named if value and isinstance(value, Mapping)), {})
    parameters.setdefault("rope_type", parameters.get("type", "default"))
    rest = {key: value for key, value in entries.items() if key not in (*ROTARY, "rope_theta")}
    return {**rest, "rope_parameters": parameters}


def _replaced(
    entries: dict[str, Any], value: Any, rules: Mapping[str, Any], function: str
) -> dict[str, Any]:
    """vLLM's parameters if an override replaces those of the file."""
    name = model_type(entries)
    parameters = dict(value) if isinstance(value, Mapping) else {}
    by_type = any(isinstance(entry, Mapping) for entry in parameters.values())
    needed = {
        "a rope_type": bool(parameters) and not by_type and "rope_type" not in parameters,
        "a rope_theta": "rope_theta" not in parameters and name in rules["needs_base"],
        "an entry for each type of layer": not by_type and name in rules["by_layer_type"],
        "original_max_position_embeddings": parameters.get("rope_type") in ("yarn", "llama3")
        and "original_max_position_embeddings" not in parameters,
    }
    missing = next((name for name, absent in needed.items() if absent), None)
    if missing is not None:
        got = "none: it replaces all parameters of the file, and vLLM does not start"
        wrong_value(function, "rotary parameters in hf_overrides", f"with {missing}", got)
    for key in _SHARES:
        entries.pop(key, None)
    if by_type:
        return parameters
    base = rules["base"].get(name, 10000.0)
    share = rules["share"].get(name, 1.0)
    return {"rope_theta": base, _SHARES[0]: share, **parameters}


def _after_loading(value: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides of a part that are read: rotary entries beside its parameters are not."""
    result = {key: entry for key, entry in value.items() if key not in _MOVED}
    for key in reversed(ROTARY):
        if key in value:
            result["rope_parameters"] = value[key]
    return result


def model_type(entries: Mapping[str, Any]) -> str:
    """The type of a model; the text of whatever stands there, for files that anybody wrote."""
    return str(entries.get("model_type"))


def text_part(entries: Mapping[str, Any]) -> str | None:
    """The part that describes the language model, if a configuration has one."""
    return next((key for key in _PARTS if isinstance(entries.get(key), Mapping)), None)


def _with_parameters(entries: dict[str, Any], value: Mapping[str, Any]) -> dict[str, Any]:
    there = next((key for key in ROTARY if isinstance(entries.get(key), Mapping)), None)
    kept = {
        key: entry
        for key, entry in (entries[there] if there else {}).items()
        if key in ("rope_theta", "partial_rotary_factor", "mrope_section")
    }
    others = {key: entry for key, entry in entries.items() if key not in ROTARY}
    return {**others, there or "rope_scaling": {**kept, **value}}


def _deep(entries: Mapping[str, Any], value: Mapping[str, Any], levels: int = 8) -> dict[str, Any]:
    result = dict(entries)
    for key, entry in value.items():
        inner = result.get(key)
        both = isinstance(entry, Mapping) and isinstance(inner, Mapping) and levels > 0
        result[key] = _deep(inner, entry, levels - 1) if both else entry  # type: ignore[arg-type]
    return result
