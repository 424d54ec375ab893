"""explain --as: what one format writes, its reader reads as the same rotation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from published import PUBLISHED
from scalings import REQUIRED

import posenc_native as pn
from posenc_native.checkpoints.formats.binary.gguf import described
from posenc_native.checkpoints.formats.reading import FORMATS, read
from posenc_native.checkpoints.formats.writing import WRITERS, write
from posenc_native.core.frequencies.scaling import ROTARY_SCALINGS

FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


def read_again(form: str, entries: dict[str, Any]) -> Any:
    if form == "gguf":
        kept = {key: value for key, value in entries.items() if key not in FACTORS}
        factors = {key.removesuffix(".weight"): np.array(entries[key]) for key in FACTORS
                   if key in entries}  # fmt: skip
        return described(kept, factors, "again", "read")
    if form == "megatron":
        entries = {"hidden_size": 4096, "num_attention_heads": 32, **entries}
    if form == "mistral":
        entries = {"dim": 4096, "n_heads": 32, "hidden_dim": 1, **entries}
    return FORMATS["hf" if form == "hf" else form].read(entries, "again", "read")


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_is_written_is_read_as_the_same(name: str, subtests: pytest.Subtests) -> None:
    """Unless the writer says that something is lost; then that is what differs."""
    layers = {} if "layer_types" in PUBLISHED[name] else {"num_hidden_layers": 12}
    model = read({**PUBLISHED[name], **layers}, "read")
    for form in WRITERS:
        with subtests.test(form):
            written = write(model, form)
            found = pn.compare(model, read_again(form, written.entries), permuted=True, assume=True)
            # Pairings aside, which the writers speak of where a format cannot choose.
            assert not found or written.lost, str(found)
            assert all(sentence.endswith(".") for sentence in written.lost)


@pytest.mark.parametrize("form", WRITERS)
@pytest.mark.parametrize("rope_type", ROTARY_SCALINGS)
def test_every_rope_type_is_written_or_said_to_be_lost(rope_type: str, form: str) -> None:
    scaling = {"rope_type": rope_type, **REQUIRED[rope_type]}
    model = read(pn.Rotary(64, scaling=scaling), "read")
    written = write(model, form, permuted=True)
    if any(rope_type in each or "scaling" in each for each in written.lost):
        return
    size = {"llama.block_count": 1, "llama.context_length": 8192} if form == "gguf" else {}
    size |= {"num_layers": 1} if form == "megatron" else {}
    size |= {"n_layers": 1} if form == "mistral" else {}
    found = pn.compare(
        model, read_again(form, {**written.entries, **size}), permuted=True, assume=True
    )
    assert not found, str(found)


def test_a_stretch_with_the_name_of_a_scaling_by_length_is_written() -> None:
    """HunYuan's "dynamic" with alpha depends on no length."""
    model = read(pn.Rotary(64, scaling={"rope_type": "dynamic", "alpha": 8.0}), "read")
    written = write(model, "gguf", permuted=True)
    assert not [each for each in written.lost if "change with the length" in each]
    size = {"llama.block_count": 1, "llama.context_length": 8192}
    assert not pn.compare(
        model, read_again("gguf", {**written.entries, **size}), permuted=True, assume=True
    )


def test_lists_of_factors_without_a_factor_are_written() -> None:
    """GGUF has LongRoPE's tensors and the magnitude, not the factor that it came from."""
    lists = {f"rope_factors_{name}.weight": [factor] * 48 for name, factor in
             (("short", 1.0), ("long", 4.0))}  # fmt: skip
    sizes = {"block_count": 2, "context_length": 8192, "attention.key_length": 96}
    keys = {f"phi3.{key}": value for key, value in sizes.items()}
    keys |= {"general.architecture": "phi3", "phi3.rope.scaling.attn_factor": 1.19}
    model = read_again("gguf", {**keys, **lists})
    written = write(model, "hf")
    assert written.entries["rope_parameters"]["attention_factor"] == 1.19
    assert not pn.compare(model, read_again("hf", written.entries), assume=True)


def test_frequencies_without_a_base_are_no_parameters_of_a_configuration() -> None:
    """{"rope_type": "default"} without a base would be read with 10,000."""
    model = read(pn.Rotary(8, inv_freq=[1.0, 0.5, 0.2, 0.03]), "read")
    written = write(model, "hf")
    assert written.entries == {"head_dim": 8}
    assert written.lost == ["Frequencies that no base and scaling give."]


def test_a_factor_that_follows_from_lengths_is_written() -> None:
    lengths = {"max_position_embeddings": 8192, "original_max_position_embeddings": 4096}
    model = read(pn.Rotary(64, scaling={"rope_type": "yarn", **lengths}), "read")
    assert write(model, "mistral").entries["yarn"]["factor"] == 2.0


def test_an_attention_factor_beside_that_of_yarn_is_written() -> None:
    """llama.cpp multiplies it by YaRN's own, which no published model's differs from."""
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
    model = read(pn.Rotary(64, scaling={**scaling, "attention_factor": 1.5}), "read")
    written = write(model, "gguf", permuted=True)
    size = {"llama.block_count": 1, "llama.context_length": 16384}
    assert not pn.compare(
        model, read_again("gguf", {**written.entries, **size}), permuted=True, assume=True
    )


@pytest.mark.parametrize("form", ["gguf", "mistral"])
def test_permuted_weights_excuse_the_pairing_alone(form: str) -> None:
    model = read({**PUBLISHED["gpt-oss"], "num_hidden_layers": 12, "model_type": "llama"}, "read")
    plain, permuted = write(model, form), write(model, form, permuted=True)
    assert permuted.entries == plain.entries
    (without,) = (each for each in plain.lost if each not in permuted.lost)
    assert "pairing half" in without


@pytest.mark.parametrize(
    ("form", "name", "lost"),
    [
        ("hf", "command-r", "pairing (interleaved)"),
        ("hf", "deepseek-v3", "softmax correction"),
        ("gguf", "gpt-oss", "truncate false"),
        ("gguf", "llama-3.1", "weights of queries and keys have to be permuted"),
        ("gguf", "olmo-3", "A separate rotation for the sliding layers"),
        ("megatron", "gemma-3-4b", "one rotation for all layers"),
        ("megatron", "phi-3.5-mini", "scaling longrope"),
        ("mistral", "llama-3.1", "scaling llama3"),
        ("mistral", "qwen3", "pairing half"),
    ],
)
def test_what_cannot_be_said_is_said(form: str, name: str, lost: str) -> None:
    written = write(read({**PUBLISHED[name], "num_hidden_layers": 12}, "read"), form)
    assert any(lost in sentence for sentence in written.lost), written.lost


@pytest.mark.parametrize("form", ["gguf", "megatron"])
@pytest.mark.parametrize("name", ["deepseek-v3", "deepseek-v2-lite"])
def test_latent_attention_keeps_its_softmax_correction(form: str, name: str) -> None:
    """Also of a file whose scaling does not name mscale_all_dim."""
    model = read({**PUBLISHED[name], "num_hidden_layers": 12}, "read")
    for source in (model, read_again("gguf", write(model, "gguf").entries)):
        written = write(source, form)
        assert written.lost == []
        assert not pn.compare(source, read_again(form, written.entries), assume=True)


def test_bounds_are_written_for_an_architecture_that_reads_them() -> None:
    scaling = {**PUBLISHED["ministral-3"]["rope_parameters"], "beta_fast": 16.0, "beta_slow": 2.0}
    config = {**PUBLISHED["ministral-3"], "rope_parameters": scaling, "num_hidden_layers": 2}
    model = read(config, "read")
    written = write(model, "gguf", permuted=True)
    assert written.lost == ["The factor of queries by position."]
    assert written.entries["mistral3.rope.scaling.yarn_beta_fast"] == 16.0
    assert not pn.compare(model, read_again("gguf", written.entries), permuted=True, assume=True)


def test_numbers_that_an_engine_fixes_are_lost() -> None:
    scaling = {**REQUIRED["yarn"], "rope_type": "yarn", "beta_fast": 16.0, "truncate": False}
    assert write(read(pn.Rotary(64, scaling=scaling), "read"), "gguf", permuted=True).lost[1:] == [
        "The scaling yarn with beta_fast 16: the engine always uses 32.",
        "The scaling yarn with truncate false: the engine always uses true.",
    ]


@pytest.mark.parametrize("factor", [1.0, 1.1, 1.5])
def test_megatron_expresses_a_factor_of_yarn_by_its_weights(factor: float) -> None:
    scaling = {**REQUIRED["yarn"], "rope_type": "yarn", "attention_factor": factor}
    model = read(pn.Rotary(64, scaling=scaling), "read")
    written = write(model, "megatron")
    assert written.lost == []
    assert not pn.compare(
        model, read_again("megatron", {**written.entries, "num_layers": 1}), assume=True
    )


def test_megatron_has_no_axes_beside_yarn() -> None:
    rotary = pn.Rotary(8, scaling={**REQUIRED["yarn"], "rope_type": "yarn"}, axis_map=[0, 0, 1, 2])
    written = write(read(rotary, "read"), "megatron")
    assert written.entries["position_embedding_type"] == "yarn"
    assert any("axes beside YaRN" in sentence for sentence in written.lost)


def test_layers_with_attention_are_named_for_transformers_or_said_to_be_lost() -> None:
    model = read({**PUBLISHED["qwen3-next"], "num_hidden_layers": 4}, "read")
    types = write(model, "hf").entries["layer_types"]
    assert types == ["linear_attention"] * 3 + ["full_attention"]
    sizes = {"block_count": 4, "context_length": 8192, "attention.key_length": 128}
    keys = {f"qwen3next.{key}": value for key, value in sizes.items()}
    written = write(read_again("gguf", {"general.architecture": "qwen3next", **keys}), "hf")
    assert "Which layers have attention." in written.lost


@pytest.mark.parametrize("form", WRITERS)
def test_layers_of_one_type_that_differ_are_said_to(form: str) -> None:
    config = {"model_type": "llama", "head_dim": 64, "num_hidden_layers": 2, "rope_theta": 1e4}
    written = write(read({**config, "layer_rope_theta": [1e4, 5e5]}, "read"), form, permuted=True)
    assert "1000" in str(written.entries)
    assert any("Layers of one type" in sentence for sentence in written.lost)


def test_a_model_without_rotation_is_said_to_have_none() -> None:
    config = {"model_type": "smollm3", "head_dim": 64, "num_hidden_layers": 2}
    written = write(read({**config, "no_rope_layers": [0, 0]}, "read"), "gguf")
    assert written.entries == {}
    assert written.lost == ["A model without rotary encoding."]
