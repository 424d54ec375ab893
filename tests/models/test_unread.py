"""Entries that look as if they were meant for the rotation, and are not read, are named."""

from __future__ import annotations

import pytest
from model_configurations import YARN

from posenc_native import Rotary, explain
from posenc_native.models.config import Configuration
from posenc_native.models.unread import unread_entries

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


def test_models_of_transformers_have_few_of_them():
    transformers = pytest.importorskip("transformers")
    found, asked = set(), 0
    for make in transformers.CONFIG_MAPPING.values():
        try:
            model = Configuration.read(make().to_dict(), "explain")
        except Exception:  # whatever a class of others does with no arguments
            model = None
        if model is None:
            continue
        asked, entries = asked + 1, unread_entries(model)
        found |= {entry.place.split("'")[1] for entry in entries}
    assert asked > 200
    assert found <= NOT_OURS
