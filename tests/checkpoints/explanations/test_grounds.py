"""explain and compare say how a rotation is known; without a ground there is no verdict."""

from __future__ import annotations

import json

import pytest

import posenc_native as pn
from posenc_native import cli

LLAMA = {"model_type": "llama", "head_dim": 64, "num_hidden_layers": 2, "rope_theta": 1e4}
UNHEARD = {**LLAMA, "model_type": "unheard_of"}
TENSORRT = {"architecture": "LlamaForCausalLM", "position_embedding_type": "rope_gpt_neox",
            "num_hidden_layers": 2, "head_size": 64, "rotary_base": 10000.0}  # fmt: skip


@pytest.mark.parametrize(
    ("source", "kind", "said"),
    [
        (LLAMA, "run", "transformers 5.23.0 was run"),
        ("llama-3.1", "run", "transformers 5.23.0 was run"),
        (pn.Rotary(64), "derived", "the definition of a Rotary"),
        ({"head_dim": 64, "rope_theta": 1e4}, "derived", "models of transformers share"),
        (UNHEARD, "unknown", "was not run with a model of type unheard_of"),
        (TENSORRT, "unknown", "TensorRT-LLM was not run"),
    ],
)
def test_explain_ends_with_the_ground(source, kind, said):
    explanation = pn.explain(source)
    assert said in " ".join(str(explanation).split("\n\n")[-1].split())
    assert explanation.to_dict()["ground"]["kind"] == kind


@pytest.mark.parametrize(
    ("other", "verdict", "assumed"),
    [
        (LLAMA, "alike", "alike"),
        (UNHEARD, "unknown", "alike"),
        ({**UNHEARD, "rope_theta": 2e4}, "unknown", "different"),
        (TENSORRT, "unknown", "alike"),
    ],
)
def test_compare_has_no_verdict_without_a_ground(other, verdict, assumed):
    found = pn.compare(LLAMA, other)
    assert (found.verdict, found.alike) == (verdict, verdict == "alike")
    assert ("unknown" in str(found).splitlines()[0]) == (verdict == "unknown")
    assert pn.compare(LLAMA, other, assume=True).verdict == assumed


def test_the_command_ends_with_3(tmp_path):
    for name, config in {"one": LLAMA, "other": UNHEARD}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(config))
    files = [str(tmp_path / f"{name}.json") for name in ("one", "other")]
    assert [cli.main(["compare", *files, *more]) for more in ([], ["--assume"])] == [3, 0]


def test_a_scaling_of_queries_is_compared():
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024,
            "rope_theta": 1e4}  # fmt: skip
    one, other = ({**LLAMA, "model_type": "ministral3", "rope_theta": None,
                   "rope_parameters": {**yarn, "llama_4_scaling_beta": beta}}
                  for beta in (0.1, 0.2))  # fmt: skip
    assert [difference.field for difference in pn.compare(one, other).differences] == [
        "query_scale"
    ]


UNREAD = {"rope_ratio": 50}
MISSPELT = {"rope_scaling": {"rope_type": "linear", "factor": 4.0, "facter": 2.0}}
LINEAR = {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}
RENAMED = {"rope_parameters": {**MISSPELT["rope_scaling"], "rope_theta": 1e4}}


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        (UNREAD, {"rope_ratio": 40}, "config['rope_ratio'] = 50 against config['rope_ratio'] = 40"),
        (UNREAD, {}, "config['rope_ratio'] = 50 against none"),
        (MISSPELT, LINEAR, "config['rope_scaling']['facter'] = 2.0 against none"),
        ({}, {"yarn_map": [1] * 99}, "none against config['yarn_map'] = a value of 297 characters"),
        (UNREAD, UNREAD, ""),
        (MISSPELT, RENAMED, ""),
        ({"rope_ratio": 1, "yarn_map": None}, {}, ""),  # these values change nothing
        ({"attn_rotary_emb": 64}, {"attn_rotary_emb": 32}, ""),
        ({"partial_rotary_factor": 0.5}, {}, ""),  # its class was seen not to read it
    ],
)
def test_entries_that_nothing_reads_are_compared(one, other, said):
    """Older tests compare files that were read in full."""
    found = pn.compare({**LLAMA, **one}, {**LLAMA, **other})
    assert found.verdict == ("different" if said else "alike")
    assert [difference.field for difference in found.differences] == ["unread"] * bool(said)
    assert said in " ".join(str(found).split())
