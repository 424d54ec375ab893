"""One token through a patched model goes from its layers to native code, with the same bits.

The other tests of this folder take the general path, which serves every call.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import torch_cases  # noqa: E402
from hf_patched import ARCHITECTURES, NORMED, build, logits, tokens  # noqa: E402

import posenc_native as pn  # noqa: E402
from posenc_native import hf  # noqa: E402
from posenc_native.engines import backend  # noqa: E402
from posenc_native.hf import functions  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
    torch_cases.needs_operators,
    pytest.mark.skipif(
        not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"),
        reason="this torch does not exchange tensors; any later one does",
    ),
]

# Those whose rotary function is called for heads and tables in the usual order. The others: a table
# in every attention (GPT-J), heads with a keyword or without a k (Gemma 3n and 4), complex tables.
AT_ONCE = {*ARCHITECTURES, *NORMED} - {"GPTJ", "CodeGen", "Gemma3nText", "Gemma4Text"}
LENGTHS = {
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "longrope": {
        "rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 16,
        "short_factor": [1.0] * 8, "long_factor": [2.0] * 8,
    },
}  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def _in_place_however_small() -> None:
    """Not here: everything is as users have it."""


@torch.no_grad()
def steps(model: Any, cache: Any = None) -> list[Any]:
    """Logits of a prompt and of three tokens after it."""
    ids = tokens()
    results = [model(input_ids=ids, past_key_values=cache, use_cache=True)]
    for i in range(3):
        past = results[-1].past_key_values
        results.append(model(input_ids=ids[:, i : i + 1], past_key_values=past, use_cache=True))
    return [result.logits for result in results]


def by_the_general_path(model: Any, monkeypatch: Any, **options: Any) -> list[Any]:
    twin = copy.deepcopy(model)
    with monkeypatch.context() as patch:
        patch.setattr(functions, "settled_rotations", lambda *_arguments, **_options: ())
        hf.patch(twin, **options)
    with monkeypatch.context() as patch:
        patch.setattr(backend, "door", backend.ClosedDoor())
        return steps(twin)


@pytest.mark.parametrize("name", sorted({*ARCHITECTURES, *NORMED}))
def test_the_bits_of_the_general_path(name: str, monkeypatch: Any, answers: Any) -> None:
    model = build(name)
    if name in ("DeepseekV3", "Cohere", "Qwen3"):
        model = model.bfloat16()
    fuse = name in NORMED
    expected = by_the_general_path(model, monkeypatch, fuse_norm=fuse)
    hf.patch(model, fuse_norm=fuse)
    answers.clear()
    for ours, theirs in zip(steps(model), expected, strict=True):
        assert torch.equal(ours, theirs)
    taken = [took for asked, took in answers if asked == "call_bound"]
    if name in AT_ONCE:
        assert taken.count(True) >= 4, taken


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_caches(cache: str, answers: Any) -> None:
    model = build("Llama")
    made = (
        transformers.DynamicCache(config=model.config)
        if cache == "dynamic"
        else transformers.StaticCache(config=model.config, max_cache_len=40)
    )
    theirs = steps(model)
    hf.patch(model)
    answers.clear()
    ours = steps(model, made)
    assert {name for name, _ in answers} == {"rotary_tables", "call_bound"}
    assert all(took for _, took in answers)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-4)


def test_a_gradient_and_a_call_that_says_more(answers: Any) -> None:
    model = build("Llama")
    hf.patch(model)
    loss = model(input_ids=tokens(), labels=tokens()).loss
    loss.backward()
    assert model.model.layers[0].self_attn.q_proj.weight.grad.abs().max() > 0
    assert not any(took for name, took in answers if name == "call_bound")


def test_another_backend_is_chosen_later() -> None:
    model = build("Llama")
    hf.patch(model)
    native = logits(model)
    try:
        pn.set_backend("reference")
        by_reference = logits(model)
    finally:
        pn.set_backend("native")
    assert not torch.equal(native, by_reference)
    torch.testing.assert_close(native, by_reference, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", LENGTHS)
def test_frequencies_that_follow_the_length(kind: str) -> None:
    """What the model's decorators do is done in every call, in both directions."""
    scaling = {"rope_theta": 10000.0, **LENGTHS[kind]}
    model = build("Llama", rope_parameters=scaling, max_position_embeddings=16)
    own = copy.deepcopy(model)
    hf.patch(model)
    for last in (8, 30, 31, 40, 5):
        for each in (own, model):
            logits(each, ids=tokens(count=last))
        assert torch.equal(own.model.rotary_emb.inv_freq, model.model.rotary_emb.inv_freq), last
        positions = torch.tensor([[last]])
        x = torch.zeros(1, dtype=torch.float32)
        cos, sin = model.model.rotary_emb(x, positions)
        frequencies, scale = (
            model.model.rotary_emb.inv_freq,
            model.model.rotary_emb.attention_scaling,
        )
        exact = pn.rotary_tables(positions, frequencies, scale=scale)
        assert torch.equal(cos, exact[0])
        assert torch.equal(sin, exact[1])


def test_frequencies_that_are_set_later() -> None:
    model = build("Llama")
    hf.patch(model)
    rotary, position = model.model.rotary_emb, torch.tensor([[1000]])
    x = torch.zeros(1, dtype=torch.float32)
    before = rotary(x, position)[0]
    rotary.inv_freq.mul_(0.5)
    halved = rotary(x, position)[0]
    rotary.inv_freq = rotary.inv_freq * 2
    rotary.attention_scaling = 2.0
    scaled = rotary(x, position)[0]
    assert torch.equal(before, rotary(x, position * 1)[0] / 2)
    assert torch.equal(halved, pn.rotary_tables(position, rotary.inv_freq / 2)[0])
    assert torch.equal(scaled, pn.rotary_tables(position, rotary.inv_freq, scale=2.0)[0])
    assert rotary(x.double(), position)[0].dtype == torch.float64


@pytest.mark.parametrize("inplace", [True, False])
def test_where_it_is_written(inplace: bool, answers: Any) -> None:
    model = build("Llama")
    seen = []
    model.model.layers[0].self_attn.q_proj.register_forward_hook(
        lambda _module, _arguments, out: seen.append((out, out.clone()))
    )
    with hf.patch(model, inplace=inplace):
        logits(model)
    out, before = seen[0]
    assert torch.equal(out, before) is not inplace
    assert all(took for name, took in answers if name == "call_bound")
