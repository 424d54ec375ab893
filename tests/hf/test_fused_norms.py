"""`hf.patch(model, fuse_norm=True)`: q and k are normed in the pass that rotates them.

Tolerances. As in test_patch.py: logits may differ by 1e-4 of their spread, gradients by 1e-4 of the
largest of a parameter, both a hundred times what float32 rounds here. In bfloat16 q and k are
compared themselves, with a float64 computation of what they should be.
"""

from __future__ import annotations

import concurrent.futures
import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import torch_cases  # noqa: E402
from compiling import needs_inductor  # noqa: E402
from hf_patched import FAR, NORMED, SHORT, build, distance, logits, tokens, traces  # noqa: E402
from matrices import others_slow  # noqa: E402

from posenc_native import hf  # noqa: E402
from posenc_native.hf import rotation  # noqa: E402

device = torch_cases.device

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

LAYERS = {"Gemma3nText": 3}
# Calls in a forward: q and k of a layer together, but for layers that
CALLS = {
    "Gemma3nText": 5,  # rotate them apart, or q alone
    "Gemma4Text": 4,
    "Exaone4": 1,  # do not rotate
}
each_model = pytest.mark.parametrize("name", NORMED)


@pytest.fixture
def fused_calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The options of every call that norms and rotates."""
    calls: list[dict[str, Any]] = []
    original = rotation.norm_rotary_qk

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(kwargs)
        return original(*args, **kwargs)

    monkeypatch.setattr(rotation, "norm_rotary_qk", counted)
    return calls


def normed(name: str, **kwargs: Any) -> Any:
    """A model whose norms have weights that differ."""
    model = build(name, **kwargs)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter, weight in model.named_parameters():
            if "norm" in parameter:
                weight.add_(0.3 * torch.randn(weight.shape, generator=generator))
    return model


def gradients(model: Any) -> dict[str, Any]:
    ids = tokens().to(next(model.parameters()).device)
    model.zero_grad()
    torch.manual_seed(0)  # dropout
    model(ids, labels=ids, use_cache=False).loss.backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def assert_close(actual: dict[str, Any], expected: dict[str, Any]) -> None:
    assert actual.keys() == expected.keys()
    for name, gradient in expected.items():
        bound = 1e-4 * float(gradient.abs().max() + 1e-6)
        torch.testing.assert_close(actual[name], gradient, rtol=1e-3, atol=bound)


# --- What it computes


@each_model
def test_the_same_logits(name: str, device: str, fused_calls: list[Any]) -> None:
    model = normed(name).to(device)
    before = logits(model)
    with hf.patch(model) as apart:
        assert apart.fused == ()
        far = logits(model, FAR)
    assert not fused_calls
    results = []
    for inplace in (None, False, True):
        handle = hf.patch(model, fuse_norm=True, inplace=inplace)
        assert len(handle.fused) == LAYERS.get(name, 2)
        assert set(handle.fused) <= set(handle.patched)
        assert not any("norm" in note for note in handle.notes.values())
        del fused_calls[:]  # those of proofs
        results.append(logits(model))
        assert len(fused_calls) == CALLS.get(name, 2)
        assert distance(results[-1], before) < SHORT
        assert distance(logits(model, FAR), far) < SHORT
        handle.undo()
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
    assert torch.equal(logits(model), before)
    assert not traces(model)


def test_in_place_where_nobody_sees_it(fused_calls: list[dict[str, Any]]) -> None:
    seen = {}
    for name in ("Qwen3", "Gemma4Text"):
        model = normed(name)
        for inplace in (None, True, False):
            with hf.patch(model, fuse_norm=True, inplace=inplace):
                del fused_calls[:]
                logits(model)
                seen[name, inplace] = [call["inplace"] for call in fused_calls]
                del fused_calls[:]
                model(tokens())
                assert not any(call["inplace"] for call in fused_calls)  # for gradients
    assert seen["Qwen3", None] == [True, True]
    # The k of the second layer is its values as well.
    assert seen["Gemma4Text", None] == [True, True, True, False]
    assert not any(any(seen[name, other]) for name, other in seen if other is not None)


def captured(model: Any) -> list[Any]:
    """q and k of every layer as the attention gets them."""
    found: list[Any] = []

    def attention(module: Any, q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> Any:
        found.append((q, k))
        return eager(module, q, k, v, *args, **kwargs)

    transformers.AttentionInterface.register("captured", attention)
    eager = transformers.models.qwen3.modeling_qwen3.eager_attention_forward
    model.config._attn_implementation = "captured"
    with torch.no_grad():
        model(tokens(), use_cache=False)
    return found


@pytest.mark.parametrize(("name", "offset"), [("Qwen3", 0.0), ("Gemma3Text", 1.0)])
def test_rounded_once(name: str, offset: float) -> None:
    model = normed(name).bfloat16()
    attention, projected = model.model.layers[0].self_attn, {}
    for part in ("q", "k"):
        attention.get_submodule(f"{part}_proj").register_forward_hook(
            lambda module, args, result, part=part: projected.update({part: result.clone()})
        )
    with hf.patch(model, fuse_norm=True):
        fused = captured(model)[0]
    with hf.patch(model):
        apart = captured(model)[0]
    errors = []
    for part, once, twice in zip("qk", fused, apart, strict=True):
        x = projected[part].double().unflatten(-1, (-1, 16)).transpose(1, 2)
        weight = attention.get_submodule(f"{part}_norm").weight.detach().double() + offset
        x = x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight
        base = model.config.rope_parameters
        base = base.get("sliding_attention", base).get("rope_theta", 10000.0)
        angles = torch.arange(24)[:, None] * base ** (-torch.arange(8).double() / 8)
        cos, sin = angles.cos(), angles.sin()
        low, high = x.chunk(2, -1)
        exact = torch.cat((low * cos - high * sin, high * cos + low * sin), -1)
        assert once.dtype == torch.bfloat16
        # Half a unit of the result; and of float32 some 20 roundings of values below 16.
        bound = exact.abs() * 2.0**-8 + 16 * 20 * 2.0**-24
        assert bool(((once - exact).abs() <= bound).all())
        errors.append([float((y - exact).square().mean()) for y in (once, twice)])
    # A second rounding of the same size doubles the square.
    assert all(once < 0.8 * twice for once, twice in errors), errors


@each_model
def test_gradients(name: str, device: str, fused_calls: list[Any]) -> None:
    model = normed(name).to(device).train()
    expected = gradients(model)
    norms = [n for n in expected if "self_attn" in n and "norm" in n]
    assert len(norms) >= 4
    with hf.patch(model, fuse_norm=True):
        del fused_calls[:]
        assert_close(gradients(model), expected)
        assert len(fused_calls) == CALLS.get(name, 2)
        # Of the norms alone: nothing before them wants one.
        for n, parameter in model.named_parameters():
            parameter.requires_grad_(n in norms)
        assert_close(gradients(model), {n: expected[n] for n in norms})


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", ["Qwen3", "Gemma3Text", "Olmo2", "Exaone4"])
def test_gradient_checkpointing(name: str, reentrant: bool) -> None:
    model = normed(name).train()
    with hf.patch(model, fuse_norm=True):
        expected = gradients(model)
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        model.enable_input_require_grads()
        actual = gradients(model)
    assert actual.keys() == expected.keys()
    for n, gradient in expected.items():
        assert torch.equal(actual[n], gradient)


@pytest.mark.parametrize("name", ["Qwen3", "Gemma3nText", "Olmo2", "Exaone4", "Qwen3Next"])
def test_generate_gives_the_same_tokens(name: str, device: str) -> None:
    model, ids = normed(name).to(device), tokens().to(device)
    arguments = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(ids, **arguments)
    with hf.patch(model, fuse_norm=True):
        assert torch.equal(model.generate(ids, **arguments), expected)
        assert torch.equal(model.generate(ids, use_cache=False, **arguments), expected)


@pytest.mark.parametrize("name", ["Qwen3", "Gemma3Text", "Olmo2"])
def test_autocast_keeps_the_dtypes_of_the_model(name: str) -> None:
    model = normed(name)
    dtypes, values = [], []
    for fuse in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16), hf.patch(model, fuse_norm=fuse):
            found = captured(model)
        dtypes.append([(q.dtype, k.dtype) for q, k in found])
        values.append(found[0][0].float())
    assert dtypes[0] == dtypes[1]
    # Some roundings of a bfloat16, of values below 8.
    assert float((values[0] - values[1]).abs().max()) <= 8 * 3 * 2.0**-8


# --- With torch.compile, threads, copies


@pytest.mark.slow  # by inductor
@pytest.mark.usefixtures("nothing_compiled")
def test_compiled(device: str) -> None:
    needs_inductor(device)
    model = normed("Qwen3").to(device)
    with hf.patch(model, fuse_norm=True):
        compiled = torch.compile(model, fullgraph=True)
        assert distance(logits(compiled), logits(model)) < SHORT


@pytest.mark.usefixtures("nothing_compiled")
@pytest.mark.parametrize("name", others_slow(["Gemma3Text", "Olmo2", "Exaone4"], "Olmo2"))
def test_compiled_with_gradients(name: str) -> None:
    model = normed(name).train()
    with hf.patch(model, fuse_norm=True):
        expected = gradients(model)
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        ids = tokens()
        model.zero_grad()
        torch.manual_seed(0)
        compiled(ids, labels=ids, use_cache=False).loss.backward()
        actual = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    assert_close(actual, expected)


def test_threads_do_not_see_each_other() -> None:
    model = normed("Qwen3")
    with hf.patch(model, fuse_norm=True):
        expected = [logits(model, first) for first in range(0, 64, 8)]
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for _ in range(4):
                results = list(pool.map(lambda first: logits(model, first), range(0, 64, 8)))
                for a, b in zip(results, expected, strict=True):
                    assert torch.equal(a, b)


def test_a_copy_has_norms_of_its_own(tmp_path: Any) -> None:
    model = normed("Qwen3")
    state = {n: t.clone() for n, t in model.state_dict().items()}
    with hf.patch(model, fuse_norm=True):
        expected = logits(model)
        other = copy.deepcopy(model)
        with torch.no_grad():
            other.model.layers[0].self_attn.q_norm.weight.mul_(2)
        assert torch.equal(logits(model), expected)
        assert distance(logits(other), expected) > 1e-3
        assert model.state_dict().keys() == state.keys()
        model.save_pretrained(tmp_path)
        assert torch.equal(logits(model.bfloat16().float()), logits(model))
    hf.unpatch(other)
    assert not traces(other)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    for n, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, state[n])


def test_patched_twice() -> None:
    model = normed("Qwen3")
    before = logits(model)
    with hf.patch(model, fuse_norm=True):
        expected = logits(model)
        with pytest.raises(ValueError, match="not patched"):
            hf.patch(model, fuse_norm=True)
        assert torch.equal(logits(model), expected)
    with hf.patch(model, fuse_norm=True):
        assert torch.equal(logits(model), expected)
    assert torch.equal(logits(model), before)


def test_what_changes_after_the_patch_counts() -> None:
    model = normed("Qwen3")
    norm = model.model.layers[0].self_attn.q_norm
    with hf.patch(model, fuse_norm=True):
        with torch.no_grad():
            norm.weight.mul_(-0.5)
        norm.variance_epsilon = 0.5
        ours = logits(model)
    assert distance(ours, logits(model)) < SHORT


def test_a_branch_that_looks_at_it_is_normed_first(fused_calls: list[Any]) -> None:
    # OLMoE may clip what the norm gives.
    model = normed("Olmoe")
    with hf.patch(model, fuse_norm=True):
        model.config.clip_qkv = 0.5
        del fused_calls[:]
        clipped = logits(model)
        assert not fused_calls
    expected = logits(model)
    assert distance(clipped, expected) < SHORT
    with hf.patch(model, fuse_norm=True) as handle:
        assert not handle.fused
        assert {"without its norm" in note for note in handle.notes.values()} == {True}
        assert distance(logits(model), expected) < SHORT
    model.config.clip_qkv = None
    assert distance(logits(model), expected) > 1e-3


# --- Norms that are called as before


def _twice(module: Any, args: Any, result: Any) -> Any:
    return 2 * result


class Adapter(torch.nn.Module):
    """In the place of a norm."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Any) -> Any:
        return 2 * self.norm(x)


def replace_forward(norm: Any) -> Any:
    original = norm.forward
    norm.forward = lambda x: 2 * original(x)
    return lambda: norm.__dict__.pop("forward")


def replace_forward_of_class(norm: Any) -> Any:
    kind, original = type(norm), type(norm).forward
    kind.forward = lambda self, x: 2 * original(self, x)
    return lambda: setattr(kind, "forward", original)


def replace_module(norm: Any, attention: Any) -> Any:
    attention.q_norm = Adapter(norm)
    return lambda: setattr(attention, "q_norm", norm)


# What is done to a norm, and back; and how many of two layers it is done to.
CHANGES = {
    "hook": (lambda n, a: n.register_forward_hook(_twice).remove, 1),
    "hook before": (
        lambda n, a: n.register_forward_pre_hook(lambda m, args: (1e-4 * args[0],)).remove, 1,
    ),
    "hook for gradients": (lambda n, a: n.register_full_backward_hook(lambda *_: None).remove, 1),
    "hook on all modules": (
        lambda n, a: torch.nn.modules.module.register_module_forward_hook(
            lambda m, args, result: 2 * result if m is n else None
        ).remove,
        2,
    ),
    "forward": (lambda n, a: replace_forward(n), 1),
    "forward of the class": (lambda n, a: replace_forward_of_class(n), 2),
    "an adapter": (replace_module, 1),
}  # fmt: skip


@pytest.mark.parametrize("child", ["q_norm", "k_norm"])
@pytest.mark.parametrize("change", CHANGES)
def test_norms_that_are_more_than_was_probed(
    change: str, child: str, fused_calls: list[Any]
) -> None:
    if change == "an adapter" and child == "k_norm":
        child = "q_norm"
    model = normed("Qwen3")
    attention = model.model.layers[0].self_attn
    do, layers = CHANGES[change]
    unchanged = logits(model)

    undo = do(getattr(attention, child), attention)
    expected = logits(model)
    undo()
    assert torch.equal(logits(model), unchanged)
    changes = change != "hook for gradients"
    assert (distance(expected, unchanged) > 1e-3) == changes

    with hf.patch(model, fuse_norm=True):
        fused = logits(model)
        undo = do(getattr(attention, child), attention)
        del fused_calls[:]
        assert distance(logits(model), expected) < SHORT
        assert len(fused_calls) == 2 - layers
        undo()
        del fused_calls[:]
        assert torch.equal(logits(model), fused)
        assert len(fused_calls) == 2

    undo = do(getattr(attention, child), attention)  # before the patch
    try:
        with hf.patch(model, fuse_norm=True):
            assert distance(logits(model), expected) < SHORT
    finally:
        undo()


def test_hooks_see_what_the_norm_gives() -> None:
    model = normed("Olmo2")
    norm, seen = model.model.layers[1].self_attn.k_norm, []
    norm.register_forward_hook(lambda module, args, result: seen.append(result))
    logits(model)
    with hf.patch(model, fuse_norm=True):
        logits(model)
    assert len(seen) == 2
    torch.testing.assert_close(seen[0], seen[1], rtol=0, atol=1e-5)
