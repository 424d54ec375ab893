"""GGUF files for tests, as llama.cpp's converter writes them, by the `gguf` package."""

from __future__ import annotations

import math

import numpy as np


def write_gguf(path, metadata, tensors=None):
    """Write a file; returns its path.

    metadata: values by their whole keys, "general.architecture" among them: ints become uint32,
        floats float32, lists arrays.
    tensors: lists or arrays by name, "rope_freqs.weight"; written as float32.
    """
    import gguf

    writer = gguf.GGUFWriter(path, metadata["general.architecture"])
    add = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    for key, value in metadata.items():
        if key != "general.architecture":
            add[type(value)](key, value)
    for name, values in (tensors or {}).items():
        writer.add_tensor(name, np.asarray(values, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def llama3(factor, high=4.0, base=5e5, dims=128):
    """The tensor rope_freqs.weight of a scaling "llama3" of 8,192 positions."""
    factors = []
    for pair in range(dims // 2):
        turns = 8192 * base ** (-2 * pair / dims) / (2 * math.pi)
        if turns > high or turns < 1:
            factors.append(1.0 if turns > high else factor)
        else:
            blend = (turns - 1) / (high - 1)
            factors.append(1 / ((1 - blend) / factor + blend))
    return factors


def converted(config, arch):
    """Keys without the architecture's name, and tensors, of a Hugging Face configuration.

    By conversion/*.py of llama.cpp at commit 0c1e570, for the configurations of `published`.
    """
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    full = rope.get("full_attention", rope)
    every = {**config, **full}
    heads, length = config["num_attention_heads"], config["max_position_embeddings"]
    width = config.get("head_dim", config["hidden_size"] // heads)
    share = every.get("partial_rotary_factor", config.get("rotary_pct"))
    bases = ("global_rope_theta", "rope_theta", "rotary_emb_base")
    local = {"local_rope_theta": config.get("rope_local_base_freq"), **config}
    if "sliding_attention" in rope:
        local["local_rope_theta"] = rope["sliding_attention"]["rope_theta"]
    given = {
        "block_count": config["num_hidden_layers"],
        "context_length": length,
        "embedding_length": config["hidden_size"],
        "attention.head_count": heads,
        "attention.key_length": config.get("head_dim"),
        "attention.sliding_window": config.get("sliding_window"),
        "rope.dimension_count": None if share is None else int(width * share),
        "rope.freq_base": next((float(every[key]) for key in bases if key in every), None),
        "rope.freq_base_swa": local["local_rope_theta"],
    }
    tensors = {}
    kind = full.get("rope_type", full.get("type"))
    if arch == "phi3":
        kind = _add_phi3(every, given, tensors)
    if kind in ("linear", "yarn"):
        given |= {"rope.scaling.type": kind, "rope.scaling.factor": float(full["factor"])}
    if kind == "yarn":
        given["rope.scaling.original_context_length"] = full["original_max_position_embeddings"]
        for key, name in (("attention_factor", "attn_factor"), ("beta_fast", "beta_fast"),
                          ("beta_slow", "beta_slow")):  # fmt: skip
            if key in full:
                given[f"rope.scaling.yarn_{name}"] = float(full[key])
    if kind == "llama3":
        tensors["rope_freqs"] = llama3(
            full["factor"], full["high_freq_factor"], every["rope_theta"], width
        )
    if "mrope_section" in rope:
        given["rope.dimension_sections"] = [*rope["mrope_section"], 0]
    if "qk_rope_head_dim" in config:  # multi-head latent attention
        rotated = config["qk_rope_head_dim"]
        given |= {"rope.dimension_count": rotated, "attention.key_length": 512 + rotated}
    if "mscale_all_dim" in full:
        once = 1.0 if arch == "mistral3" else 0.1
        given["rope.scaling.yarn_log_multiplier"] = once * full["mscale_all_dim"]
    if arch in ("command-r", "cohere2", "modern-bert"):
        given["rope.scaling.type"] = "none"
    if arch in ("olmo2", "gemma4"):
        kinds = config.get("layer_types")
        slide = (i % 4 < 3 for i in range(config["num_hidden_layers"]))
        pattern = [each == "sliding_attention" for each in kinds] if kinds else [*slide]
        given["attention.sliding_window_pattern"] = pattern
    if arch == "gemma4":
        wide, still = config["global_head_dim"], full["partial_rotary_factor"]
        given |= {
            "attention.key_length": wide, "rope.dimension_count": wide,
            "attention.key_length_swa": width, "rope.dimension_count_swa": width,
        }  # fmt: skip
        turning = int(wide * still / 2)
        tensors["rope_freqs"] = [1.0] * turning + [1e30] * (wide // 2 - turning)
    return given, tensors


def _add_phi3(every, given, tensors):
    length, trained = (
        every.get(key) for key in ("max_position_embeddings", "original_max_position_embeddings")
    )
    given["rope.scaling.original_context_length"] = trained or length
    if "long_factor" in every:
        grown = math.sqrt(1 + math.log(length / trained) / math.log(trained))
        given["rope.scaling.attn_factor"] = grown
        for name in ("long", "short"):
            tensors[f"rope_factors_{name}"] = every[f"{name}_factor"]


def gguf_file(configuration, folder):
    """The file of a configuration for llama.cpp (tests/engines_at_hand): no weights."""
    metadata, tensors = configuration["metadata"], configuration.get("tensors")
    return write_gguf(folder / f"{metadata['general.architecture']}.gguf", metadata, tensors)
