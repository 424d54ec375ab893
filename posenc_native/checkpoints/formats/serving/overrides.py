"""What overrides make of a configuration: by engine, and for ``path+{...}``.

vLLM and SGLang load a configuration with transformers, which moves all rotary entries into
``rope_parameters``, and override it afterwards. What they do was seen of the versions that served.json
names.
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
    part = _text_part(result)
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
    entries: Mapping[str, Any], overrides: Mapping[str, Any], rules: Mapping[str, Any], function: str
) -> dict[str, Any]:
    """vLLM: rotary parameters are replaced, nested mappings merged."""
    result, part = _loaded(entries), _text_part(entries)
    # vLLM applies mappings last.
    for key, value in sorted(overrides.items(), key=lambda item: isinstance(item[1], Mapping)):
        if key in ROTARY and part is not None:
            if key == "rope_scaling":
                expected = f"overrides of the {part} of a model that sees"
                wrong_value(function, f"hf_overrides {key}", expected, "the server does not start")
        elif key in ROTARY:
            result["rope_parameters"] = _replaced(result, value, rules, key, function)
        elif isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
            result[key] = _deep(result[key], _without(value, result[key]))
        elif key in _SHARES:
            result["rope_parameters"] = {key: value, **result["rope_parameters"]}
        elif key not in _MOVED:
            result[key] = value
    return result


def as_sglang(
    entries: Mapping[str, Any], overrides: Mapping[str, Any], rules: Mapping[str, Any], function: str
) -> dict[str, Any]:
    """SGLang: rotary parameters are merged at the top, and replaced in a part."""
    result, part = _loaded(entries), _text_part(entries)
    if part is not None and entries.get("model_type") in rules["copied_up"]:
        # Its class reads a copy of the part's entries at the top.
        copied = {key: value for key, value in overrides.items() if key != part}
        inner = as_sglang(result[part], copied, rules, function)
        return {**result, part: inner}
    for key, value in overrides.items():
        if key in ROTARY and part is None:
            parameters = result["rope_parameters"]
            result["rope_parameters"] = {**parameters, **value} if value is not None else {}
        elif key in ROTARY:
            pass
        elif isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
            inner = {**result[key], **_without(value, result[key])}
            named = next((inner.pop(name) for name in ("rope_scaling",) if name in inner), None)
            result[key] = inner if named is None else {**inner, "rope_parameters": named}
        elif key not in _MOVED:
            result[key] = value
    return result


def _loaded(entries: Mapping[str, Any]) -> dict[str, Any]:
    """The entries as transformers has them after loading: rotary entries in rope_parameters."""
    part = _text_part(entries)
    if part is not None:
        return {**entries, part: _loaded(entries[part])}
    parameters = {
        key: entries[key] for key in ("rope_theta", *_SHARES[:1]) if entries.get(key) is not None
    }
    for key in reversed(ROTARY):
        value = entries.get(key)
        parameters |= value if isinstance(value, Mapping) else {}
    rest = {key: value for key, value in entries.items() if key not in (*ROTARY, *parameters)}
    return {**rest, "rope_parameters": parameters}


def _replaced(
    entries: Mapping[str, Any], value: Any, rules: Mapping[str, Any], key: str, function: str
) -> dict[str, Any]:
    """vLLM's parameters if an override replaces those of the file."""
    model_type = str(entries.get("model_type"))
    parameters = dict(value or {})
    if parameters and "rope_type" not in parameters and not _by_type(parameters):
        wrong_value(function, f"hf_overrides {key}", "a rope_type in it", "none: vLLM needs it")
    if parameters and not _by_type(parameters) and model_type in rules["by_layer_type"]:
        expected = f"an entry for each layer type of {model_type}"
        wrong_value(function, f"hf_overrides {key}", expected, "one for all layers")
    if _by_type(parameters):
        return parameters
    base = rules["base"].get(model_type, 10000.0)
    share = rules["share"].get(model_type, 1.0)
    return {"rope_theta": base, "partial_rotary_factor": share, **parameters}


def _by_type(parameters: Mapping[str, Any]) -> bool:
    return any(isinstance(value, Mapping) for value in parameters.values())


def _without(value: Mapping[str, Any], part: Any) -> dict[str, Any]:
    """Without entries that transformers has moved, so that nothing reads them any more."""
    moved = (*_SHARES, "rope_theta", "rotary_emb_base")
    return {
        ("rope_parameters" if key == "rope_scaling" else key): entry
        for key, entry in value.items()
        if key not in moved
    }


def _text_part(entries: Mapping[str, Any]) -> str | None:
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
