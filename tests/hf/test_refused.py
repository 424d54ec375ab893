"""`posenc_native.hf.patch`: what cannot be patched, and models from elsewhere."""

from __future__ import annotations

import copy
import math
import re
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from hf_patched import COMMON, build, traces  # noqa: E402

from posenc_native import hf  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("meta-llama/Llama-3.2-1B", "got str; write AutoModelForCausalLM.from_pretrained(...) fi"),
        (transformers.LlamaConfig(), "got LlamaConfig; write AutoModelForCausalLM.from_config("),
        (7, "got int"),
    ],
    ids=["name", "configuration", "int"],
)
def test_not_a_module(model: Any, said: str) -> None:
    expected = "patch: model: expected a torch.nn.Module or a pipeline of diffusers, "
    with pytest.raises(TypeError, match=re.escape(expected + said)):
        hf.patch(model)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"in_place": True}, "in_place: expected a keyword of .*; write inplace=True"),
        ({"fuse_norms": True}, "fuse_norms: expected a keyword of .*; did you mean fuse_norm"),
        ({}, "arguments: expected model, got no model"),
    ],
)
def test_a_wrong_call(options: dict[str, Any], said: str) -> None:
    model = [torch.nn.Linear(2, 2)] if options else []
    with pytest.raises(TypeError, match=f"^patch: {said}"):
        hf.patch(*model, **options)


def test_model_without_rotary_encoding() -> None:
    config = transformers.GPT2Config(n_embd=16, n_head=2, n_layer=1, vocab_size=8)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with pytest.raises(ValueError, match=r"apply_rotary_pos_emb.*got none.*GPT2Attention"):
        hf.patch(model)
    assert not traces(model)


def test_patched_already() -> None:
    model = build("Llama")
    with hf.patch(model):
        with pytest.raises(ValueError, match=r"not patched, got one .*'model.*undo"):
            hf.patch(model)
        assert len(traces(model)) == 2 * 2 + 3  # of the first patch


def test_weights_must_be_loaded() -> None:
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**COMMON))
    with pytest.raises(ValueError, match="meta device"):
        hf.patch(model)


def test_replaced_forward_is_not_replaced_again() -> None:
    model = build("Llama")
    attention = model.model.layers[1].self_attn
    attention.forward = lambda *args, **kwargs: None
    with pytest.raises(ValueError, match="replaced by something else"):
        hf.patch(model)
    del attention.forward
    assert not traces(model)


class OwnRotary(torch.nn.Module):
    def __init__(self, pairs: int = 4) -> None:
        super().__init__()
        self.inv_freq = torch.nn.Buffer(torch.logspace(0, -2, pairs), persistent=False)

    def forward(self, x: Any, position_ids: Any) -> Any:
        phase = position_ids[..., None].float() * self.inv_freq
        return torch.cat((phase, phase), -1).cos(), torch.cat((phase, phase), -1).sin()


class SquaredRotary(OwnRotary):
    def forward(self, x: Any, position_ids: Any) -> Any:
        phase = position_ids[..., None].float().square() * self.inv_freq
        return torch.cat((phase, phase), -1).cos(), torch.cat((phase, phase), -1).sin()


class ShiftedRotary(OwnRotary):
    def forward(self, x: Any, position_ids: Any) -> Any:
        near = position_ids.clamp(max=200)
        return super().forward(x, torch.where(position_ids < 200, near, near + 5))

    max_seq_len_cached = 100


class LearnedRotary(OwnRotary):
    def __init__(self) -> None:
        super().__init__()
        self.alpha = torch.nn.Parameter(torch.ones(()))

    def forward(self, x: Any, position_ids: Any) -> Any:
        return super().forward(x, position_ids * self.alpha)


def rotate_usual(q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    turned = [torch.cat((-x[..., 4:], x[..., :4]), -1) for x in (q, k)]
    return q * cos + turned[0] * sin, k * cos + turned[1] * sin


def rotate_queries_only(q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
    return rotate_usual(q, k, cos, sin, unsqueeze_dim)[0], k


def rotate_with_mask(q: Any, k: Any, cos: Any, sin: Any, mask: Any) -> Any:
    return rotate_usual(q, k, cos, sin)


class Attention(torch.nn.Module):
    cut: int | None = None

    def forward(self, x: Any, cos: Any, sin: Any) -> Any:
        return rotate_usual(x, x, cos[..., : self.cut], sin[..., : self.cut])


class QueriesOnly(Attention):
    def forward(self, x: Any, cos: Any, sin: Any) -> Any:
        return rotate_queries_only(x, x, cos, sin)


class WithMask(Attention):
    def forward(self, x: Any, cos: Any, sin: Any) -> Any:
        return rotate_with_mask(x, x, cos, sin, None)


class Model(torch.nn.Module):
    def __init__(self, rotary: Any, *attentions: Any) -> None:
        super().__init__()
        self.rotary, self.layers = rotary, torch.nn.ModuleList(attentions)

    def forward(self, x: Any) -> Any:
        cos, sin = self.rotary(x, position_ids=torch.arange(x.shape[2])[None])
        return [layer(x, cos, sin) for layer in self.layers]


def test_models_from_elsewhere_are_served_by_what_they_do() -> None:
    model, x = Model(OwnRotary(), Attention(), Attention()), torch.randn(2, 3, 7, 8)
    before = model(x)
    with hf.patch(model) as handle:
        assert handle.patched == ("rotary", "layers.0", "layers.1")
        for a, b in zip(model(x), before, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("rotary", "attention", "reason"),
    [
        (SquaredRotary(), Attention(), "SquaredRotary makes tables of an unknown form"),
        (ShiftedRotary(), Attention(), "ShiftedRotary computes its tables in its own way"),
        (LearnedRotary(), Attention(), "LearnedRotary has parameters or other buffers"),
        (OwnRotary(), torch.nn.Identity(), "no attention module around it calls"),
        (torch.nn.Identity(), Attention(), "no rotary embedding above it"),
    ],
)
def test_unknown_ways_are_left_alone(rotary: Any, attention: Any, reason: str) -> None:
    model = Model(rotary, attention)
    with pytest.raises(ValueError, match=reason):
        hf.patch(model)
    assert not traces(model)


@pytest.mark.parametrize(
    ("attention", "reason"),
    [
        (QueriesOnly(), "rotate_queries_only rotates q and k in different ways"),
        (WithMask(), "rotate_with_mask has unknown arguments: q, k, cos, sin, mask"),
    ],
)
def test_unknown_functions_get_exact_tables_in_their_form(attention: Any, reason: str) -> None:
    model = Model(OwnRotary(), Attention(), attention)
    near, far = torch.randn(2, 3, 7, 8), torch.randn(2, 3, 60_000, 8)
    expected = model(near)
    exact = [[t.double() for t in each] for each in copy.deepcopy(model).double()(far.double())]
    with hf.patch(model) as handle:
        assert [*handle.notes] == ["layers.1"]
        note = f"rotated by the model's own function, with exact tables: {reason}"
        assert handle.notes["layers.1"] == note
        for ours, theirs in zip(model(near), expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
        # Sums of two products of float32; a float32 phase would be off by 60000 * 2**-24 = 4e-3.
        for ours, theirs in zip(model(far), exact, strict=True):
            for a, b in zip(ours, theirs, strict=True):
                assert (a - b).abs().max() < 1e-5
    assert not traces(model)


def test_a_group_is_patched_as_a_whole_or_not_at_all() -> None:
    served, other = Model(OwnRotary(), Attention()), Model(SquaredRotary(), Attention())
    both = torch.nn.ModuleDict({"served": served, "other": other})
    with hf.patch(both) as handle:
        assert handle.patched == ("served.rotary", "served.layers.0")
        assert set(handle.skipped) == {"other.rotary", "other.layers.0"}
        assert "unknown form" in handle.skipped["other.layers.0"]
        assert not traces(other)


def test_tables_cut_for_their_old_width_are_an_error() -> None:
    model, x = Model(OwnRotary(), Attention()), torch.randn(2, 3, 7, 8)
    with hf.patch(model):
        model(x)
        model.layers[0].cut = 2
        with pytest.raises(ValueError, match=r"expected tables of \[4\] columns, got 2"):
            model(x)
        model.layers[0].cut = None
        with pytest.raises(ValueError, match="expected heads of size 8, got 10"):
            model(torch.randn(2, 3, 7, 10))


def test_decorators_stay() -> None:
    # torch.no_grad() around transformers' forward: tables have no history.
    model = build("Llama")
    rotary = model.model.rotary_emb
    with hf.patch(model):
        rotary.inv_freq.requires_grad_()
        cos, _ = rotary(torch.zeros(1), torch.arange(4)[None])
        assert not cos.requires_grad
        forward = type(rotary).forward
        assert rotary.forward.__func__.__wrapped__.__code__ is forward.__code__
    assert math.isclose(float(cos[0, 0, 0]), 1.0)


class Scaled(torch.nn.Module):
    """An RMS norm, which has a parameter, and a buffer beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.eps = torch.nn.Parameter(torch.ones(16)), 1e-6
        self.register_buffer("unit", torch.ones(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return x * self.weight * self.unit


def traced(module: Any) -> Any:
    return torch.jit.trace(module, torch.ones(2, 16))


@pytest.mark.parametrize("compiled", [torch.jit.script, traced], ids=["script", "trace"])
def test_what_torch_jit_has_compiled_is_passed_over(compiled: Any) -> None:
    model, ids = build("Qwen3"), torch.arange(6)[None]
    model.model.layers[0].self_attn.q_norm = compiled(Scaled())
    with torch.no_grad():
        before = model(ids).logits
        with hf.patch(model, fuse_norm=True) as handle:
            assert len(handle.patched) == 3
            assert handle.fused == ("model.layers.1.self_attn",)
            assert "torch.jit has compiled q_norm" in handle.notes["model.layers.0.self_attn"]
            torch.testing.assert_close(model(ids).logits, before, rtol=1e-4, atol=1e-4)


def test_what_may_read_the_tables_in_compiled_code_keeps_its_group_as_it_is() -> None:
    tables = torch.ones(1, 7, 8)
    attention = torch.jit.trace(Attention(), (torch.ones(1, 3, 7, 8), tables, tables))
    rotary = torch.jit.trace(OwnRotary(), (torch.ones(1), torch.arange(7)[None]))
    for model, name in (
        (Model(OwnRotary(), Attention(), attention), r"layers\.1"),
        (Model(rotary, Attention()), "rotary"),
    ):
        with pytest.raises(ValueError, match=f"torch.jit has compiled {name}, which may make or"):
            hf.patch(model)
        assert not traces(model)
