"""Settings of engines in JSON and YAML, beside the Hugging Face configuration of the same model.

Files are written by hand after the code that reads them; each reader names its source.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from published import DEEPSEEK, PUBLISHED, sizes

import posenc_native as pn
from posenc_native.checkpoints.formats.reading import read
from posenc_native.core.calls.errors import fault_of


def fields(*sources: Any, **options: Any) -> list[str]:
    return sorted({each.field for each in pn.compare(*sources, **options).differences})


def numbered(name: str, layers: int, **entries: Any) -> dict[str, Any]:
    return {**PUBLISHED[name], "num_hidden_layers": layers, **entries}


LLAMA31 = numbered("llama-3.1", 32)
INTERLEAVED = {"permuted": True}  # files in Meta's order beside Hugging Face's
SCOUT = numbered("llama-4-scout", 48)
PHI = numbered("phi-3.5-mini", 32)
LATENT = numbered("deepseek-v3", 61)
QWEN2_VL = numbered("qwen2-vl", 28)
GPT_OSS = {"model_type": "gpt_oss", **sizes(2880, 64, 150000.0, 131072, head_dim=64),
           "num_hidden_layers": 24,
           "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0,
                            "beta_slow": 1.0, "truncate": False,
                            "original_max_position_embeddings": 4096}}  # fmt: skip

META = {"dim": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 8, "vocab_size": 128256,
        "ffn_dim_multiplier": 1.3, "multiple_of": 1024, "norm_eps": 1e-5, "rope_theta": 500000.0,
        "use_scaled_rope": True}  # fmt: skip
META4 = {"dim": 5120, "n_layers": 48, "n_heads": 40, "n_kv_heads": 8, "rope_theta": 500000.0,
         "use_scaled_rope": True, "rope_scaling_factor": 16.0, "rope_high_freq_factor": 1.0,
         "nope_layer_interval": 4, "moe_args": {"num_experts": 16}}  # fmt: skip
MISTRAL = {"dim": 4096, "n_layers": 32, "head_dim": 128, "hidden_dim": 14336, "n_heads": 32,
           "n_kv_heads": 8, "norm_eps": 1e-5, "vocab_size": 32000, "rope_theta": 1e6}  # fmt: skip
MISTRAL_YARN = {
    **MISTRAL,
    "max_position_embeddings": 262144,
    "yarn": {
        "alpha": 1,
        "beta": 32,
        "factor": 16,
        "original_max_position_embeddings": 16384,
        "apply_scale": False,
    },
    "llama_4_scaling": {"beta": 0.1, "original_max_position_embeddings": 16384},
}
MEGATRON = {"num_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "kv_channels": 128,
            "position_embedding_type": "rope", "rotary_base": 500000, "rotary_percent": 1.0,
            "rotary_interleaved": False, "use_rope_scaling": True, "rope_scaling_factor": 8.0,
            "max_position_embeddings": 131072, "multi_latent_attention": False}  # fmt: skip
BRIDGE = """
model:
  _target_: megatron.bridge.models.gpt_provider.GPTModelProvider
  num_layers: 24
  hidden_size: 2880
  num_attention_heads: 64
  kv_channels: 64
  position_embedding_type: yarn
  rotary_base: 150000
  rotary_percent: 1.0
  yarn_rotary_scaling_factor: 32.0
  yarn_original_max_position_embeddings: 4096
  yarn_beta_fast: 32.0
  yarn_beta_slow: 1.0
  yarn_mscale: null
  yarn_mscale_all_dim: null
  yarn_correction_range_round_to_int: false
  seq_length: 131072
"""
BRIDGE_LATENT = """
model:
  _target_: megatron.bridge.models.mla_provider.MLAModelProvider
  num_layers: 61
  hidden_size: 7168
  num_attention_heads: 128
  multi_latent_attention: true
  qk_pos_emb_head_dim: 64
  position_embedding_type: rope
  rotary_base: 10000.0
  rotary_scaling_factor: 40
  original_max_position_embeddings: 4096
  mscale: 1.0
  mscale_all_dim: 1.0
"""
NEMO = """
_target_: nemo.collections.llm.gpt.model.llama.LlamaModel
config:
  _target_: nemo.collections.llm.gpt.model.llama.Llama31Config8B
  num_layers: 32
  hidden_size: 4096
  num_attention_heads: 32
  position_embedding_type: rope
  rotary_base: 500000
  seq_length: 131072
"""
TITAN = {"dim": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 8, "rope_theta": 500000,
         "rope_scaling_args": {"scaling_factor": 8.0, "low_freq_factor": 1.0,
                               "high_freq_factor": 4.0,
                               "original_max_position_embeddings": 8192}}  # fmt: skip
TITAN_ROPE = {"dim": 64, "max_context_length": 163840, "theta": 10000.0, "scaling": "yarn",
              "rope_factor": 40.0, "beta_fast": 32.0, "beta_slow": 1.0,
              "original_seq_len": 4096, "truncate": True}  # fmt: skip
TITAN_OSS = {
    "model_spec": {
        "name": "gpt_oss",
        "flavor": "20b",
        "model": {
            "layers": [
                {
                    "attention": {
                        "n_heads": 64,
                        "rope": {
                            **TITAN_ROPE, "max_context_length": 131072, "theta": 150000.0,
                            "rope_factor": 32.0, "truncate": False,
                        },
                    }
                }
            ]
            * 24
        },
    }
}  # fmt: skip
TITAN_LATENT = {
    "model_spec": {
        "name": "deepseek_v3",
        "flavor": "671B",
        "model": {
            "layers": [{"attention": {"qk_rope_head_dim": 64, "mscale": 1.0, "rope": TITAN_ROPE}}]
            * 61
        },
    }
}
TUNE = {
    "_component_": "torchtune.models.llama3_1.llama3_1",
    "num_layers": 32,
    "num_heads": 32,
    "embed_dim": 4096,
    "max_seq_len": 131072,
    "rope_base": 500000,
    "scale_factor": 8,
}
TRT = {
    "architecture": "LlamaForCausalLM",
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "hidden_size": 4096,
    "head_size": 128,
    "position_embedding_type": "rope_gpt_neox",
    "max_position_embeddings": 131072,
    "rotary_embedding_dim": 128,
    "rotary_base": 500000.0,
    "rotary_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
}
TRT_PHI = {"architecture": "Phi3ForCausalLM", "num_hidden_layers": 32, "num_attention_heads": 32,
           "hidden_size": 3072, "position_embedding_type": "long_rope", "rotary_pct": 1.0,
           "rotary_base": 10000.0, "original_max_position_embeddings": 4096,
           "max_position_embeddings": 131072,
           "longrope_scaling_short_factors": PHI["rope_scaling"]["short_factor"],
           "longrope_scaling_long_factors": PHI["rope_scaling"]["long_factor"]}  # fmt: skip
TRT_LATENT = {"architecture": "DeepseekV3ForCausalLM", "num_hidden_layers": 61, "head_size": 576,
              "num_attention_heads": 128, "hidden_size": 7168, "qk_rope_head_dim": 64,
              "position_embedding_type": "rope_gpt_neox", "rotary_base": 10000.0,
              "max_position_embeddings": 163840, "rotary_scaling": DEEPSEEK}  # fmt: skip
MLX = {
    **LLAMA31,
    "quantization": {"bits": 4, "group_size": 64},
    "quantization_config": {"bits": 4, "group_size": 64},
}

# A file, the configuration of the same model, options, and the fields in which they differ.
ALIKE: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "Meta, 3.1": (META, LLAMA31, INTERLEAVED),
    "Meta, nested": ({"model": META}, LLAMA31, INTERLEAVED),
    "Meta, 4": (META4, SCOUT, {}),
    "Meta, 2": ({k: v for k, v in META.items() if k not in ("rope_theta", "use_scaled_rope")},
                numbered("llama-2", 32), INTERLEAVED),
    "Mistral": (MISTRAL, numbered("mistral-7b-v0.3", 32), INTERLEAVED),
    "Mistral, YaRN": (MISTRAL_YARN, numbered("ministral-3", 32, head_dim=128), INTERLEAVED),
    "Megatron": (MEGATRON, LLAMA31, {}),
    "Megatron, namespace": (argparse.Namespace(**MEGATRON), LLAMA31, {}),
    "Megatron, part of the head": (
        {"num_layers": 44, "hidden_size": 6144, "num_attention_heads": 64, "rotary_base": 10000,
         "position_embedding_type": "rope", "rotary_percent": 0.25},
        numbered("gpt-neox-20b", 44), {}),
    "Megatron, sections": (
        {"num_layers": 28, "hidden_size": 3584, "num_attention_heads": 28, "rotary_base": 1e6,
         "position_embedding_type": "mrope", "mrope_section": [16, 24, 24]}, QWEN2_VL, {}),
    "Megatron, NoPE": (
        {**MEGATRON, "num_layers": 36, "hidden_size": 2048, "num_attention_heads": 16,
         "rotary_base": 5000000.0, "use_rope_scaling": False, "no_rope_freq": "([0]*3+[1]*1)*9"},
        numbered("smollm3", 36), {}),
    # By NeMo's names of the arguments.
    "Megatron, names of NeMo": (
        {"num_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "rotary_base": 500000,
         "position_embedding_type": "rope", "rotary_percentage": 0.5,
         "seq_len_interpolation_factor": 4.0},
        numbered("llama-3", 32, model_type="stablelm", partial_rotary_factor=0.5,
                 rope_scaling={"rope_type": "linear", "factor": 4.0}), {}),
    "Bridge, YaRN": (BRIDGE, GPT_OSS, {}),
    "Bridge, YaRN of whole heads": (
        BRIDGE.replace("rotary_percent: 1.0", "rotary_percent: 0.5"), GPT_OSS, {}),
    "Bridge, latent": (BRIDGE_LATENT, LATENT, {}),
    "Bridge, latent, beside the names of other attention": (
        BRIDGE_LATENT + "  yarn_rotary_scaling_factor: 2\n  yarn_beta_fast: 8\n", LATENT, {}),
    "NeMo, a class that scales": (NEMO, LLAMA31, {}),
    "torchtitan": (TITAN, LLAMA31, INTERLEAVED),
    "torchtitan, qwen3": ({"dim": 4096, "n_layers": 36, "n_heads": 32, "head_dim": 128,
                           "hidden_dim": 12288, "qk_norm": True, "rope_theta": 1000000.0},
                          numbered("qwen3", 36), {}),
    "torchtitan, latent": (TITAN_LATENT, LATENT, {}),
    "torchtitan, latent, 0.2": (
        {"dim": 7168, "n_layers": 61, "n_heads": 128, "qk_rope_head_dim": 64, "rope_theta": 1e4,
         "rope_factor": 40.0, "max_seq_len": 16384, "original_seq_len": 4096}, LATENT, {}),
    "torchtitan, YaRN in the softmax scale": (TITAN_OSS, GPT_OSS, {}),
    "torchtune": (TUNE, LLAMA31, INTERLEAVED),
    "torchtune, in a recipe": ({"model": TUNE, "seed": 1}, LLAMA31, INTERLEAVED),
    "torchtune, a whole model": (
        {"model": {"_component_": "torchtune.models.llama3_1.qlora_llama3_1_8b"}}, LLAMA31,
        INTERLEAVED),
    "torchtune, 3.2": ({"_component_": "torchtune.models.llama3_2.llama3_2_1b"},
                       numbered("llama-3.2-1b", 16), INTERLEAVED),
    "torchtune, 3.3": ({"_component_": "torchtune.models.llama3_3.llama3_3_70b"},
                       numbered("llama-3.3", 80), INTERLEAVED),
    "torchtune, qwen": ({"_component_": "torchtune.models.qwen2_5.qwen2_5", "num_layers": 28,
                         "num_heads": 28, "embed_dim": 3584}, numbered("qwen2.5", 28), {}),
    "torchtune, phi": ({"_component_": "torchtune.models.phi3.phi3_mini"},
                       numbered("phi-3-mini-4k", 32), {}),
    "torchtune, mistral": (
        {"_component_": "torchtune.models.mistral.mistral", "num_layers": 32, "num_heads": 32,
         "embed_dim": 4096}, numbered("mistral-7b-v0.1", 32), INTERLEAVED),
    "TensorRT-LLM": (TRT, LLAMA31, {}),
    "TensorRT-LLM, engine": ({"version": "1", "pretrained_config": TRT}, LLAMA31, {}),
    "TensorRT-LLM, LongRoPE": (TRT_PHI, PHI, {}),
    "TensorRT-LLM, latent": (TRT_LATENT, LATENT, {}),
    "TensorRT-LLM, gptj": (
        {"architecture": "GPTJForCausalLM", "hidden_size": 4096, "num_attention_heads": 16,
         "num_hidden_layers": 28, "position_embedding_type": "rope_gptj", "rotary_dim": 64},
        numbered("gpt-j", 28), {}),
    "MLX": (MLX, LLAMA31, {}),
    "MLX, traditional": ({**LLAMA31, "rope_traditional": True}, LLAMA31, INTERLEAVED),
    # The override names neither the base nor the share of the head: vLLM takes its own defaults.
    "vLLM, part of the head": (
        {"model": numbered("llama-3", 32, rope_parameters={
            "rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.5}),
         "hf-overrides": {"rope_parameters": {"rope_type": "linear", "factor": 2.0}}},
        numbered("llama-3", 32, rope_parameters={
            "rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}), {}),
    "vLLM": ({"model": numbered("qwen3", 36), "max-model-len": 131072,
              "hf-overrides": json.dumps({"rope_scaling": {
                  "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}})},
             numbered("qwen3-yarn", 36), {}),
    "vLLM, a scaling and part of the head": (
        {"model": numbered("qwen3-next", 32, rope_parameters={
            "rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.5}),
         "rope-scaling": "{\"rope_type\": \"linear\", \"factor\": 2.0}"},
        numbered("qwen3-next", 32, rope_parameters={
            "rope_type": "linear", "factor": 2.0, "rope_theta": 5e5,
            "partial_rotary_factor": 0.5}), {}),
    "vLLM, older": ({"model": LLAMA31, "rope-theta": 1e6, "rope-scaling": "{\"rope_type\": "
                     "\"linear\", \"factor\": 2.0}"},
                    {**LLAMA31, "rope_theta": 1e6,
                     "rope_scaling": {"rope_type": "linear", "factor": 2.0}}, {}),
}  # fmt: skip

DIFFERENT: dict[str, tuple[Any, Any, dict[str, Any], list[str]]] = {
    "Meta's order": (META, LLAMA31, {}, ["pairing"]),
    "Meta without the base": ({**META, "rope_theta": None, "use_scaled_rope": False},
                              numbered("llama-3", 32), INTERLEAVED, ["base"]),
    "Llama 3.2 in Meta's code": (
        {**META, "dim": 2048, "n_layers": 16}, numbered("llama-3.2-1b", 16), INTERLEAVED,
        ["scaling"]),
    "Llama 4 all rotated": ({**META4, "nope_layer_interval": None}, SCOUT, {}, ["nope_layers"]),
    "alpha and beta exchanged": (
        {**MISTRAL_YARN, "yarn": {**MISTRAL_YARN["yarn"], "alpha": 2, "beta": 16}},
        numbered("ministral-3", 32, head_dim=128), INTERLEAVED, ["scaling"]),
    "apply_scale": ({**MISTRAL_YARN, "yarn": {**MISTRAL_YARN["yarn"], "apply_scale": True}},
                    numbered("ministral-3", 32, head_dim=128), INTERLEAVED, ["scale"]),
    "Megatron without scaling": ({**MEGATRON, "use_rope_scaling": False}, LLAMA31, {},
                                 ["scaling"]),
    "Megatron's neighbors": ({**MEGATRON, "rotary_interleaved": True}, LLAMA31, {}, ["pairing"]),
    "Megatron, every 3rd": ({**MEGATRON, "no_rope_freq": 4}, LLAMA31, {}, ["nope_layers"]),
    "YaRN rounded": (BRIDGE.replace("int: false", "int: true"), GPT_OSS, {}, ["scaling"]),
    "mscale lost": (BRIDGE_LATENT.replace("all_dim: 1.0", "all_dim: 0.0"), LATENT, {},
                    ["scale", "softmax_correction"]),
    "torchtitan, layer 0": (
        {"dim": 5120, "n_layers": 48, "n_heads": 40, "rope_theta": 500000,
         "every_n_layers_nope": 4, "rope_scaling_args": {
             "scaling_factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 1.0,
             "original_max_position_embeddings": 8192}}, SCOUT, {}, ["nope_layers"]),
    "torchtitan, short": (
        {"dim": 7168, "n_layers": 61, "n_heads": 128, "qk_rope_head_dim": 64, "rope_theta": 1e4,
         "rope_factor": 40.0, "max_seq_len": 4096, "original_seq_len": 4096}, LATENT, {},
        ["scaling", "softmax_correction"]),
    "torchtune, 3.2": ({**TUNE, "_component_": "torchtune.models.llama3_2.llama3_2",
                        "scale_factor": None}, LLAMA31, INTERLEAVED, ["scaling"]),
    "TensorRT-LLM, YaRN": (
        {**TRT, "rotary_scaling": {"rope_type": "yarn", "factor": 4.0,
                                   "original_max_position_embeddings": 32768}}, LLAMA31, {},
        ["scale", "scaling"]),
    "TensorRT-LLM, base beside a scaling": ({**TRT, "rotary_base": 1e4}, LLAMA31, {}, ["base"]),
    "MLX reads no rope_parameters": (
        {**{k: v for k, v in MLX.items() if k not in ("rope_theta", "rope_scaling")},
         "rope_parameters": {**LLAMA31["rope_scaling"], "rope_theta": 5e5}}, LLAMA31, {},
        ["base", "scaling"]),
    "MLX ignores truncate": ({**GPT_OSS, "rope_traditional": False}, GPT_OSS, {}, ["scaling"]),
    "MLX, LongRoPE": ({**PHI, "rope_traditional": False}, PHI, {}, ["scaling"]),
    "vLLM, LongRoPE": ({"model": PHI, "max_model_len": 131072}, PHI, {}, ["scaling"]),
}  # fmt: skip


def given(source: Any, tmp_path: Path) -> Any:
    """A source as a file, where it is a text of YAML."""
    if not isinstance(source, str):
        return source
    pytest.importorskip("yaml")
    (tmp_path / "run_config.yaml").write_text(source, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("name", ALIKE)
def test_alike(name: str, tmp_path: Path) -> None:
    source, config, options = ALIKE[name]
    found = pn.compare(given(source, tmp_path), config, **options)
    assert not found.differences, str(found)
    if options:  # that is what the option is for
        assert fields(given(source, tmp_path), config) == ["pairing"]


@pytest.mark.parametrize("name", DIFFERENT)
def test_different(name: str, tmp_path: Path) -> None:
    source, config, options, expected = DIFFERENT[name]
    assert fields(given(source, tmp_path), config, **options) == expected


def test_kernels_of_latent_attention_rotate_neighbours() -> None:
    notes = pn.compare(TRT_LATENT, LATENT).notes
    assert any("rotate neighbors" in note for note in notes)


def test_mlx_reads_rope_traditional() -> None:
    found = pn.explain({**LLAMA31, "rope_traditional": True})
    assert not found.unread


def test_files_are_told_apart(tmp_path: Path) -> None:
    """By what is in them, whatever their name."""
    titles = {}
    for name, (source, *_) in ALIKE.items():
        if isinstance(source, dict):
            (tmp_path / "x.json").write_text(json.dumps(source))
            titles[name.split(",")[0]] = read(tmp_path / "x.json", "read").format
    assert titles == {
        "Meta": "Meta params.json",
        "Mistral": "Mistral params.json",
        "Megatron": "Megatron-LM arguments",
        "torchtitan": "torchtitan settings",
        "torchtune": "torchtune settings",
        "TensorRT-LLM": "TensorRT-LLM configuration",
        "MLX": "MLX configuration",
        "vLLM": (
            "vLLM settings on a Hugging Face configuration with overrides of rope_scaling, "
            "rope_theta"
        ),
    }


def test_a_format_can_be_named(tmp_path: Path) -> None:
    entries = {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4}
    entries["use_rotary_position_embeddings"] = True
    (tmp_path / "x.json").write_text(json.dumps(entries))
    found = pn.explain(f"megatron:{tmp_path / 'x.json'}").description
    assert found is not None
    assert found.format == "Megatron-LM arguments"
    assert found.groups[0].arguments is not None
    assert found.groups[0].arguments["head_dim"] == 16


def test_a_launch_file_finds_its_model(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(LLAMA31))
    launch = {
        "model-path": "model",
        "json-model-override-args": json.dumps({"rope_parameters": {"rope_theta": 1e6}}),
    }
    (tmp_path / "sglang.json").write_text(json.dumps(launch))
    assert not pn.compare(tmp_path / "sglang.json", {**LLAMA31, "rope_theta": 1e6}).differences


def test_a_server_serves_the_length_that_it_is_told() -> None:
    for settings in ({"max_model_len": 8192}, {"rope_theta": 5e5}):
        found = pn.explain({"model": LLAMA31, "hf_overrides": {}, **settings}).description
        assert found is not None
        assert found.length == settings.get("max_model_len", 131072)


@pytest.mark.parametrize("factor", [1.0, 4.0, 32.0])
def test_megatron_concentration_factor(factor: float) -> None:
    """mscale over mscale_all_dim: the formula of YaRN's paper, as Megatron has it."""
    given = {**MEGATRON, "position_embedding_type": "yarn", "use_rope_scaling": False,
             "yarn_rotary_scaling_factor": factor, "yarn_mscale": 0.7,
             "yarn_mscale_all_dim": 0.5}  # fmt: skip
    grown = [1 + 0.1 * m * math.log(factor) if factor > 1 else 1.0 for m in (0.7, 0.5)]
    rotary = pn.explain(given).layers[0].rotary
    assert rotary is not None
    assert np.isclose(rotary.scale, grown[0] / grown[1], rtol=1e-12)


WRONG: dict[str, tuple[Any, str]] = {
    "Megatron, learned": ({**MEGATRON, "position_embedding_type": "learned_absolute"},
                          "position_embedding_type"),
    "Megatron, YaRN of neighbors": ({**MEGATRON, "position_embedding_type": "yarn",
                                     "rotary_interleaved": True}, "rotary_interleaved"),
    "torchtitan, Llama's scaling of halves": (
        {"model_spec": {"name": "qwen3", "model": {"layers": [
            {"attention": {"rope": {"dim": 64, "scaling": "llama"}}}]}}}, "scaling"),
    "Mistral, a foreign entry": (
        {**MISTRAL_YARN, "yarn": {**MISTRAL_YARN["yarn"], "mscale": 1.0}}, "yarn"),
    "Megatron, a wide share": ({**MEGATRON, "rotary_percent": 1.5}, "rotary_percent"),
    "Megatron, other layers": ({**MEGATRON, "no_rope_freq": [0, 1]}, "no_rope_freq"),
    "Megatron, a call": ({**MEGATRON, "no_rope_freq": "__import__('os').getcwd()"},
                         "no_rope_freq"),
    "Megatron, none rotates": ({**MEGATRON, "no_rope_freq": 1}, "no_rope_freq"),
    "Megatron, sections": ({**MEGATRON, "position_embedding_type": "mrope",
                            "mrope_section": [1, 2, 3]}, "mrope_section"),
    "Megatron, betas": ({**MEGATRON, "position_embedding_type": "yarn", "beta_slow": 40},
                        "beta_fast"),
    "Mistral, alpha for beta": (
        {**MISTRAL_YARN, "yarn": {**MISTRAL_YARN["yarn"], "alpha": 32, "beta": 1}}, "beta"),
    "Meta, no heads": ({**META, "n_heads": 0}, "n_heads"),
    "TensorRT-LLM, learned": ({**TRT, "position_embedding_type": "learned_absolute"},
                              "position_embedding_type"),
    "TensorRT-LLM, a scaling": ({**TRT, "rotary_scaling": {"type": "new"}}, "type"),
    "torchtune, a builder": ({**TUNE, "_component_": "torchtune.models.t5.t5"}, "_component_"),
    "torchtune, no arguments": ({"_component_": "torchtune.models.llama3_1.llama3_1_9b"},
                                "_component_"),
    "torchtitan, no layers": ({"model_spec": {"name": "llama3", "model": {}}}, "layers"),
    "vLLM, no JSON": ({"model": LLAMA31, "hf-overrides": "{"}, "hf_overrides"),
    "vLLM, a list": ({"model": LLAMA31, "hf-overrides": "[1]"}, "hf_overrides"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(name: str) -> None:
    source, key = WRONG[name]
    with pytest.raises((ValueError, TypeError)) as caught:
        pn.explain(source)
    fault = fault_of(caught.value)
    assert fault is not None
    assert key in fault.argument


@pytest.mark.parametrize("text", ["1e6", "1.0e6", "+1E6", "1.e+6"])
def test_a_number_with_an_exponent_is_a_number_in_yaml(text: str, tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    path = tmp_path / "run_config.yaml"
    path.write_text(
        f"num_layers: 2\nhidden_size: 128\nnum_attention_heads: 2\nrotary_base: {text}\n"
        "position_embedding_type: rope\n"
    )
    assert pn.explain(path).layers[0].base == 1e6
    path.write_text(path.read_text() + "rotary_base: 10000\n")
    with pytest.raises(ValueError, match="each name once, got 'rotary_base' twice"):
        pn.explain(path)


@pytest.mark.parametrize("key", ["axes_dims_rope", "rope_axes_dim", "axes_dim", "rope_dim_list"])
def test_axes_of_an_unknown_model_are_not_dropped(key: str) -> None:
    config = {"head_dim": 64, "rope_theta": 1e4, key: [16, 24, 24]}
    with pytest.raises(ValueError, match=rf"config\['{key}'\].*ignore=\['{key}'\]"):
        pn.Rotary.from_config(config)
