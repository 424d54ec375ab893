"""Entries that look as if they were meant for the rotation, and are not read, are named."""

from __future__ import annotations

import numpy as np
import pytest
from model_configurations import YARN

from posenc_native import Rotary, explain
from posenc_native.models.config import Configuration, rotary_arguments
from posenc_native.models.unread import refuse_unread, unread_entries

LLAMA = {"model_type": "llama", "head_dim": 64, "rope_theta": 1e4, "num_hidden_layers": 2,
         "max_position_embeddings": 131072}  # fmt: skip
YARN = {key: value for key, value in YARN.items() if key != "rope_theta"}
OF_LLAMA = "the class of llama in transformers 5.23 does not read it"
LINEAR = {"rope_type": "linear", "factor": 4.0}


def without(key):
    return {name: value for name, value in LLAMA.items() if name != key}


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({**LLAMA, "rope_scaling": {**YARN, "beta_fst": 3}},
         "config['rope_scaling']['beta_fst']: did you mean beta_fast?"),
        ({**LLAMA, "rope_scaling": {**LINEAR, "beta_fast": 3}},
         "config['rope_scaling']['beta_fast']: rope_type linear has no such parameter"),
        ({**LLAMA, "rope_scaling": {"rope_typ": "linear", "factor": 4.0}},
         "config['rope_scaling']['rope_typ']: did you mean rope_type?"),
        ({**LLAMA, "rope_scalling": LINEAR}, "config['rope_scalling']: did you mean rope_scaling?"),
        ({**without("rope_theta"), "rope_thetta": 1e6},
         "config['rope_thetta']: did you mean rope_theta?"),
        ({**without("max_position_embeddings"), "max_position_embedings": 8},
         "config['max_position_embedings']: did you mean max_position_embeddings?"),
        ({**without("num_hidden_layers"), "num_hiddne_layers": 8},
         "config['num_hiddne_layers']: did you mean num_hidden_layers?"),
        ({**LLAMA, "rope_ratio": 50}, "config['rope_ratio']"),
        ({**LLAMA, "rope_parameters": {**LINEAR, "rope_theta": 1e4}, "rope_scaling": LINEAR},
         "config['rope_parameters']: rope_scaling overrides it"),
        ({**LLAMA, "rope_parameters": {**LINEAR, "rope_theta": 1e6}},
         "config['rope_theta']: rope_parameters has another, which is read"),
        ({**LLAMA, "rotary_emb_base": 1e6},
         f"config['rotary_emb_base']: {OF_LLAMA}"),
        ({**LLAMA, "partial_rotary_factor": 0.5},
         f"config['partial_rotary_factor']: {OF_LLAMA}: it rotates the whole head"),
        ({"model_type": "gptj", "n_embd": 64, "n_head": 2, "n_layer": 2, "rotary_dim": 8,
          "rope_scaling": LINEAR},
         "config['rope_scaling']: the class of gptj in transformers 5.23 does not read it"),
    ],
)  # fmt: skip
def test_what_is_not_read_is_named(config, said):
    found = explain(config)
    assert [str(entry) for entry in found.unread] == [said]
    assert f"\nNot read\n  - {said}" in found.text(200)
    key = said.partition(": ")[0].rpartition("['")[2].removesuffix("']")
    with pytest.raises(ValueError, match=rf"an entry that is read.*ignore=\['{key}'\]"):
        Rotary.from_config(config)
    assert Rotary.from_config(config, ignore=[key]) == found.layers[0].rotary


OURS = {"model_type": "ours", "head_dim": 64, "num_hidden_layers": 2, "rope_theta": 1e4}
WINDOWS = {**OURS, "sliding_window": 8, "sliding_window_pattern": 2}
GEMMA = {
    "model_type": "gemma3_text", "head_dim": 64, "num_hidden_layers": 2,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "key", "said"),
    [
        ({**OURS, "rotary_emb_base": 1e6}, "rotary_emb_base", "rope_theta is another, which is"),
        ({**OURS, "global_rope_theta": 1e6}, "global_rope_theta",
         "rope_theta is another, which is"),
        ({**WINDOWS, "rope_local_base_freq": 5e3, "local_rope_theta": 6e3}, "local_rope_theta",
         "rope_local_base_freq is another, which is"),
        ({**GEMMA, "rope_theta": 5e5}, "rope_theta", "rope_parameters has others, which are"),
        ({**GEMMA, "rope_local_base_freq": 5e3}, "rope_local_base_freq",
         "rope_parameters has others, which are"),
        ({"model_type": "modernbert", "head_dim": 64, "num_hidden_layers": 6, "rope_theta": 1e4,
          "global_rope_theta": 1e5, "local_rope_theta": 5e3}, "rope_theta",
         "global_rope_theta is another, which is"),
    ],
)  # fmt: skip
def test_of_two_bases_the_overlooked_base_is_named(config, key, said):
    """Older tests have two bases only as an entry beside flat parameters."""
    assert [str(entry) for entry in explain(config).unread] == [f"config['{key}']: {said} read"]
    for layer in (0, 1):
        with pytest.raises(ValueError, match=rf"an entry that is read.*ignore=\['{key}'\]"):
            Rotary.from_config(config, layer=layer)
        alone = {name: value for name, value in config.items() if name != key}
        expected = Rotary.from_config(alone, layer=layer)
        assert Rotary.from_config(config, layer=layer, ignore=[key]) == expected


@pytest.mark.parametrize("name", ["rope_local_base_freq", "local_rope_theta"])
@pytest.mark.parametrize("wide", ["rope_theta", "global_rope_theta", "rotary_emb_base"])
def test_an_unknown_model_may_name_its_bases_in_any_way(name, wide):
    """A local_rope_theta was read as 10,000 if the model type is unknown."""
    config = {key: value for key, value in WINDOWS.items() if key != "rope_theta"}
    found = explain({**config, wide: 1e6, name: 5e3})
    bases = {group.layer_type: group.rotary.base for group in found.layers}
    assert bases == {"sliding_attention": 5e3, "full_attention": 1e6}
    assert not found.unread


@pytest.mark.parametrize("value", ["1e4", {}, [1e4], True])
@pytest.mark.parametrize("model_type", ["beam", "llama", "gemma3_text"])
@pytest.mark.parametrize("function", [explain, Rotary.from_config])
def test_a_local_base_that_is_no_number(value, model_type, function):
    config = {**LLAMA, "model_type": model_type, "rope_local_base_freq": value}
    with pytest.raises(
        TypeError, match=r"config\['rope_local_base_freq'\]: expected a real number"
    ):
        function(config)


def test_parameters_of_layer_types():
    types = {name: {**LINEAR, "rope_theta": 1e4, "facter": 2.0} for name in ("full_attention",)}
    config = {**LLAMA, "layer_types": ["full_attention"] * 2, "rope_parameters": types}
    (entry,) = explain(config).unread
    assert entry.place == "config['rope_parameters']['full_attention']['facter']"


def test_an_entry_that_is_read_is_not_named():
    assert not explain({**LLAMA, "rope_scaling": YARN}).unread
    assert "Not read" not in str(explain({**LLAMA, "vocab_size": 32000, "torch_dtype": "float16"}))


def test_a_file_full_of_them_gives_a_short_list():
    assert len(explain({**LLAMA, **{f"rope_{i}": i for i in range(10**4)}}).unread) == 32


@pytest.mark.parametrize(
    ("more", "entry"),
    [
        ({"rope_parameters": {"yarn": {"factor": 4.0}}}, "rope_parameters"),
        ({"rope_scaling": {"rope_scaling": LINEAR}}, "rope_scaling"),
        ({"rope_parameters": {**LINEAR, "full_attention": {"rope_theta": 1e4}}}, "rope_parameters"),
    ],
)
def test_a_scaling_is_not_dropped_in_silence(more, entry):
    for function in (explain, Rotary.from_config):
        with pytest.raises(ValueError, match=rf"config\['{entry}'\]: expected .*, got "):
            function({**LLAMA, **more})


# Of what transformers 5.23 has by default; none of these is read by its code for a language model's
# rotation under this name, or the model is refused.
NOT_OURS = {
    "use_rotary_embedding", "rotary_value", "relation_bias_theta", "rotary_embedding_base",
    "memory_attention_rope_feat_sizes", "memory_attention_rope_k_sizes",
    "memory_attention_rope_dropout",
}  # fmt: skip


def defaults(transformers):
    """Every configuration class of transformers by its defaults, and the parts of it."""
    for make in transformers.CONFIG_MAPPING.values():
        try:
            config = make()
        except Exception:  # whatever a class of others does with no arguments
            continue
        parts = (part for part in vars(config).values() if hasattr(part, "to_dict"))
        yield from (config, *parts)


def test_models_of_transformers_have_few_of_them():
    transformers = pytest.importorskip("transformers")
    found, asked = set(), 0
    for config in defaults(transformers):
        try:
            model = Configuration.read(config.to_dict(), "explain")
            list(model.groups())
        except (ValueError, TypeError):  # it does not rotate
            continue
        asked += 1
        found |= {entry.key for entry in unread_entries(model)}
        refuse_unread(model, ())
    assert asked > 400
    assert found <= NOT_OURS


# As published for nomic-embed-text-v1.5; the class of transformers reads none of its own entries.
NOMIC = {
    "model_type": "nomic_bert", "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 8192,
    "max_trained_positions": 2048, "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False, "rotary_emb_scale_base": None, "rotary_scaling_factor": None,
}  # fmt: skip


def test_nomic_bert_as_published_is_accepted():
    """It was refused because of the names of entries that change nothing."""
    assert Rotary.from_config(NOMIC) == Rotary.from_config(NOMIC, seq_len=8192)
    assert Rotary.from_config(NOMIC) == Rotary(64, base=1000.0)


HUNYUAN = {"alpha": 1000.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0, "mscale": 1.0,
           "mscale_all_dim": 1.0, "type": "dynamic"}  # fmt: skip


@pytest.mark.parametrize(
    ("model_type", "published", "others"),
    [
        ("qwen2", {"use_mrope": False}, {"use_mrope": True}),
        ("llama", {"rope_interleaved": False}, {"rope_interleaved": True}),  # SmolLM 2
        ("gptj", {"rotary": True, "rotary_dim": 64}, {"rotary": False}),
        ("hunyuan_v1_dense", {"use_rotary_pos_emb": True}, {"use_rotary_pos_emb": False}),
        ("hunyuan_v1_dense", {"rope_scaling": HUNYUAN}, {"rope_scaling": {**HUNYUAN, "mscale": 2}}),
    ],
)
def test_entries_of_published_files_that_change_nothing(model_type, published, others):
    """Their names speak of rotation, their values change nothing; another value is refused."""
    config = {**LLAMA, "model_type": model_type, **published}
    found = explain(config)
    assert Rotary.from_config(config) == found.layers[0].rotary
    assert found.unread
    with pytest.raises(ValueError, match=r"an entry that is read.*ignore="):
        Rotary.from_config({**config, **others})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rotary_emb_base", 10000),
        ("rotary_emb_fraction", 0.5),
        ("rotary_emb_interleaved", True),
        ("rotary_emb_scale_base", 512),
        ("rotary_scaling_factor", 2),
    ],
)
def test_what_the_class_of_nomic_bert_cannot_express_is_refused(key, value):
    config = {**NOMIC, key: value}
    with pytest.raises(ValueError, match=rf"config\['{key}'\].*ignore=\['{key}'\]"):
        Rotary.from_config(config, seq_len=8192)
    ignored = Rotary.from_config(config, ignore=[key])
    assert ignored.base == 1000.0
    transformers = pytest.importorskip("transformers")
    from transformers.models.nomic_bert import modeling_nomic_bert

    its = modeling_nomic_bert.NomicBertRotaryEmbedding(transformers.NomicBertConfig(**config))
    assert np.allclose(its.inv_freq.numpy(), ignored.inv_freq, rtol=1e-6)


def test_readers_of_a_loaded_model_refuse_nothing():
    """hf.patch reads the configuration of a model that transformers has built."""
    config = {**LLAMA, "rope_ratio": 50}
    assert rotary_arguments(config) == rotary_arguments(LLAMA)


def test_names_to_ignore_are_a_list():
    """A text would ignore every key that is a part of it."""
    with pytest.raises(TypeError, match=r"ignore: expected a list of names.*ignore=\['rope_b'\]"):
        Rotary.from_config({**LLAMA, "rope": 2}, ignore="rope_b")
