"""Features of vLLM that cut, cache, guess and compile: with the plugin they change no answer."""

from __future__ import annotations

import pytest
import torch
from models import NEEDED, adapted, made
from running import errors, served

PROMPTS = [[i * i % 251 for i in range(90)], [3, 5, 8, 13] * 12]
FLOAT32 = 2e-4  # of a log-probability of these models in float32, beside float64


@pytest.fixture(scope="module")
def model(folder):
    return made("llama", folder)


@pytest.fixture(scope="module")
def plain(model):
    """The answers without any of the features."""
    return served(model, prompts=PROMPTS, dtype="float32")["runs"][0]


def _same(model, run, plain):
    assert [x["tokens"] for x in run] == [x["tokens"] for x in plain]
    assert max(errors(model, PROMPTS, run)) < FLOAT32


def test_prefix_caching(model, plain):
    said = served(
        model,
        prompts=PROMPTS,
        dtype="float32",
        repeats=2,
        enable_prefix_caching=True,
        block_size=32,
    )
    first, again = said["runs"]
    assert [x["cached"] > 0 for x in again] == [True, True]
    _same(model, first, plain)
    _same(model, again, plain)


def test_chunked_prefill(model, plain):
    said = served(
        model, prompts=PROMPTS, dtype="float32", max_num_batched_tokens=32, max_num_seqs=8,
        enable_chunked_prefill=True,
    )  # fmt: skip
    assert said["calls"]["ExactRotaryEmbedding"] > 2 * 8
    _same(model, said["runs"][0], plain)


def test_speculation(model, plain):
    settings = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3,
                "prompt_lookup_min": 1}  # fmt: skip
    said = served(model, prompts=PROMPTS, dtype="float32", speculative_config=settings)
    _same(model, said["runs"][0], plain)


def test_lora(model, plain):
    """An adapter of queries and keys, whose product vLLM adds before it rotates."""
    with_adapter = [
        served(
            model,
            plugin,
            PROMPTS,
            dtype="float32",
            lora=adapted(model),
            enable_lora=True,
            max_lora_rank=8,
        )
        for plugin in (True, False)
    ]
    ours, theirs = (said["runs"][0] for said in with_adapter)
    assert [x["tokens"] for x in ours] == [x["tokens"] for x in theirs]
    assert [x["tokens"] for x in ours] != [x["tokens"] for x in plain]


@pytest.mark.parametrize("name", ["llama", "qwen 3", "phi 3 long rope", "qwen 2 vl"])
def test_a_compiled_model(folder, name):
    """vLLM's default on a CPU: one graph by torch.compile, with Inductor."""
    model = made(name, folder)
    options = {"dtype": "float32", "enforce_eager": False, **NEEDED.get(name, {})}
    said = served(model, prompts=PROMPTS, **options)
    assert said["tables"] == []
    assert max(errors(model, PROMPTS, said["runs"][0])) < FLOAT32


def test_several_processes(model, plain, monkeypatch):
    """The engine in a process of its own, which loads the plugin again."""
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    said = served(model, prompts=PROMPTS, dtype="float32")
    assert "exact angles and no table in a layer RotaryEmbedding" in said["log"]
    _same(model, said["runs"][0], plain)


@pytest.mark.parametrize(("position", "tokens"), [(131_072, 8), (1_000_000, 8)])
def test_far_positions(folder, position, tokens, record_property):
    """A window of 32 tokens: a cache of a few blocks, and a last token that sees 64 others.

    The oracle is a float64 run of these others at their positions. float32 rounds an angle at
    position p to p * 2^-24, which is 0.06 at a million.
    """
    model = made("mistral", folder)
    prompt = torch.randint(3, 256, (position,), generator=torch.Generator().manual_seed(0)).tolist()
    found = {}
    for plugin in (True, False):
        said = served(
            model, plugin, [prompt], tokens, dtype="float32", max_model_len=position + 4096,
            max_num_batched_tokens=8192,
        )  # fmt: skip
        run = said["runs"][0]
        seen = prompt[-96:]
        found[plugin] = errors(model, [seen], run, first=position - len(seen))[0]
    text = f"{found[True]:.1e} with the plugin, {found[False]:.1e} without"
    record_property("errors", text)
    assert found[True] < FLOAT32
    assert found[True] < found[False] / 3


def test_memory(folder, record_property):
    """A million positions of 128 dims in bfloat16: vLLM's table alone has 256 MiB."""
    model = made("mistral, 128 dims", folder)
    peak = {
        plugin: served(model, plugin, tokens=1, dtype="bfloat16", max_model_len=2**20)["peak"]
        / 1024
        for plugin in (True, False)
    }
    text = f"{peak[True]:.0f} MiB with the plugin, {peak[False]:.0f} without"
    record_property("peak memory of loading", text)
    assert peak[False] - peak[True] > 256
