"""The configuration classes of the installed transformers, and their defaults."""

from __future__ import annotations

import functools

import outside


@functools.cache
def classes():
    """The configuration class of every model type."""
    mapping = outside.module("transformers").CONFIG_MAPPING
    return {mapping[name].model_type: mapping[name] for name in mapping}


@functools.cache
def language_configs():
    """The configurations by default of all language models that rotate."""
    found = {}
    for model_type, config_class in classes().items():
        try:
            config = config_class()
        except Exception:  # a model of parts that have no defaults
            continue
        if of_language(config) and "text_config" not in config.to_dict():
            found[model_type] = config
    return found


def of_language(config):
    """Whether it has rotary parameters, and they are not those of a vision model."""
    parameters = getattr(config, "rope_parameters", None)
    sees = not hasattr(config, "vocab_size") and hasattr(config, "patch_size")
    return bool(parameters) and not sees and parameters.get("rope_type") != "axial"
