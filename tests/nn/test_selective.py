"""`nn.SelectiveRotaryEmbedding` against the published recipe, written anew in float64."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import posenc_native as pn  # noqa: E402
from posenc_native import nn as pnn  # noqa: E402

HEADS, PAIRS, WIDTH = 3, 4, 12
OPTIONS: dict[str, dict[str, Any]] = {
    "as published": {},
    "full rank": {"rank": None},
    "silu": {"activation": "silu", "kernel_size": 2},
    "no convolution": {"kernel_size": None},
    "a gate of heads": {"gate": "head", "bias": True},
    "a gate of low rank": {"gate": "low_rank", "gate_rank": 5},
    "a gate of pairs": {"gate": "pair", "gate_rank": 5, "learned_temperature": True},
}


def make(**options: Any) -> pnn.SelectiveRotaryEmbedding:
    torch.manual_seed(0)
    module = pnn.SelectiveRotaryEmbedding(2 * PAIRS, WIDTH, HEADS, **{"layout": "bshd", **options})
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return module


def inputs(tokens: int = 7) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    q, k = torch.randn(2, tokens, 6, 2 * PAIRS), torch.randn(2, tokens, HEADS, 2 * PAIRS)
    return q, k, torch.randn(2, tokens, WIDTH)


def recipe(weights: dict[str, Tensor], x: Tensor, tokens: Tensor, options: Any) -> Tensor:
    """x turned as the published module does it, by its parameters' names."""
    w = {name: value.double() for name, value in weights.items()}
    x, tokens = x.double(), tokens.double()
    hidden = tokens.unflatten(-1, (HEADS, -1))
    hidden = hidden / (hidden.square().sum(-1, keepdim=True) + 1e-6).sqrt()
    flat = hidden.flatten(-2)
    if options.get("rank", 16) is None:
        normed = w["phi_proj.weight"] / w["phi_proj.weight"].norm(dim=1, keepdim=True)
        normed = w["phi_proj.scalar"][:, None, None] * normed
        phi = torch.stack([hidden[:, :, h] @ normed[h] for h in range(HEADS)], 2).flatten(-2)
    else:
        phi = flat @ w["phi_proj.0.weight"].T @ w["phi_proj.1.weight"].T
    if options.get("kernel_size", 4) is None:
        phi = phi - F.pad(phi, (0, 0, 1, 0))[:, :-1]
    else:
        kernel = w["phi_conv1d.weight"][:, 0]
        size = kernel.shape[1]
        padded = F.pad(phi, (0, 0, size - 1, 0))
        phi = sum(padded[:, i : i + phi.shape[1]] * kernel[:, i] for i in range(size))
        phi = F.silu(phi) if options.get("activation") else phi
    phi = phi.unflatten(-1, (HEADS, PAIRS))
    if options.get("bias"):
        phi = phi + w["phi_bias"].exp()
    if gate := options.get("gate"):
        if gate == "head":
            opened = flat @ w["phase_gate_proj.weight"].T + w["phase_gate_proj.bias"]
        else:
            opened = flat @ w["phase_gate_proj.0.weight"].T @ w["phase_gate_proj.1.weight"].T
            opened = opened + w["phase_gate_proj.1.bias"]
        phi = phi * opened.sigmoid().unflatten(-1, (HEADS, -1))
    angle = w["temperature"] * phi.cumsum(1)
    angle = angle.repeat_interleave(x.shape[2] // HEADS, dim=2)
    a, b = x.chunk(2, -1)
    return torch.cat((a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()), -1)


@pytest.mark.parametrize("name", OPTIONS)
def test_the_published_recipe(name: str) -> None:
    module, (q, k, tokens) = make(**OPTIONS[name]), inputs()
    turned = module(q, k, tokens)
    for x, y in zip((q, k), turned, strict=False):
        expected = recipe(module.state_dict(), x, tokens, OPTIONS[name])
        torch.testing.assert_close(y.double(), expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", OPTIONS)
def test_decoding_goes_on_from_the_state(name: str) -> None:
    module, given = make(**OPTIONS[name]), inputs()
    with torch.no_grad():
        whole = module(*given)
        for cuts in ([0, 1, 2, 3, 4, 5, 6, 7], [0, 4, 7], [0, 1, 7]):
            state, parts = None, []
            for begin, end in itertools.pairwise(cuts):
                *turned, state = module(*(x[:, begin:end] for x in given), state)
                parts.append(turned)
            for i in range(2):
                found = torch.cat([part[i] for part in parts], 1)
                torch.testing.assert_close(found, whole[i], rtol=0, atol=1e-5)
            assert state is not None
            assert state.phases.dtype == torch.int64
            torch.testing.assert_close(state.projected, whole[2].projected)


@pytest.mark.parametrize("size", [None, 1, 2, 3, 4])
def test_no_tokens(size: int | None) -> None:
    """Results are empty, the state stays, and every parameter has a gradient of zeros."""
    module, given = make(kernel_size=size, gate="pair", bias=True), inputs()
    before = module(*given)[2]
    for state in (None, before):
        *turned, after = module(*(x[:, :0] for x in given), state)
        assert [x.shape for x in turned] == [(2, 0, 6, 2 * PAIRS), (2, 0, HEADS, 2 * PAIRS)]
        assert after.phases.shape == before.phases.shape
        assert after.projected.shape == before.projected.shape
        if state is None:
            assert not after.phases.any()
            assert not after.projected.any()
        else:
            assert torch.equal(after.phases, before.phases)
            assert torch.equal(after.projected, before.projected)
        module.zero_grad()
        turned[0].sum().backward()
        grads = [p.grad for p in module.parameters() if p.requires_grad]
        assert all(grad is not None and not grad.any() for grad in grads)


def test_parameters_are_the_published_ones() -> None:
    names = {name for options in OPTIONS.values() for name, _ in make(**options).named_parameters()}
    assert names == {
        "phi_proj.0.weight", "phi_proj.1.weight", "phi_proj.weight", "phi_proj.scalar",
        "phi_conv1d.weight", "phi_bias", "temperature", "phase_gate_proj.weight",
        "phase_gate_proj.bias", "phase_gate_proj.0.weight", "phase_gate_proj.1.weight",
        "phase_gate_proj.1.bias",
    }  # fmt: skip
    module = make()
    assert module.phi_conv1d.weight.shape == (HEADS * PAIRS, 1, 4)
    assert module.temperature.shape == (1, 1, 1, PAIRS)
    fresh = pnn.SelectiveRotaryEmbedding(2 * PAIRS, WIDTH, HEADS, layout="bshd")
    powers = [500000.0 ** (-p / PAIRS) for p in range(PAIRS)]
    torch.testing.assert_close(fresh.temperature.flatten(), torch.tensor(powers))


def test_everything_learns() -> None:
    module, (q, k, tokens) = make(**OPTIONS["a gate of pairs"], bias=True), inputs()
    tokens.requires_grad_()
    turned_q, _, _ = module(q, k, tokens)
    (turned_q**3).sum().backward()
    assert tokens.grad is not None
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, name
        assert bool(parameter.grad.any()), name


def test_layouts_and_compile() -> None:
    module, (q, k, tokens) = make(layout="bhsd"), inputs()
    with torch.no_grad():
        expected = make()(q, k, tokens)
        found = module(q.transpose(1, 2), k.transpose(1, 2), tokens)
        assert torch.equal(found[0].transpose(1, 2), expected[0])
        compiled = torch.compile(make(), fullgraph=True, backend="aot_eager")(q, k, tokens)
        assert torch.equal(compiled[0], expected[0])
    torch.compiler.reset()


def test_steps_are_those_of_the_verb() -> None:
    module, (q, k, tokens) = make(), inputs()
    with torch.no_grad():
        steps, _ = module.steps(tokens)
        expected = pn.selective_rotary_qk(q, k, steps, layout="bshd")
        found = module(q, k, tokens)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[2].phases, expected[2])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"head_dim": 7}, "head_dim: expected an even number"),
        ({"heads": 5}, "model_dim: expected a multiple of 5 heads"),
        ({"gate": "all"}, "gate: expected None, 'head', 'low_rank' or 'pair'"),
        ({"activation": "relu"}, "activation: expected None or 'silu'"),
        ({"base": 0.5}, "base: expected a number of at least 1"),
        ({"rank": 0}, "rank: expected an int >= 1"),
    ],
)
def test_what_is_wrong_is_said(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=f"SelectiveRotaryEmbedding: {words}"):
        pnn.SelectiveRotaryEmbedding(**{"head_dim": 8, "model_dim": 12, "heads": 3, **options})


def test_shapes_that_do_not_fit_are_refused() -> None:
    module, (q, k, tokens) = make(), inputs()
    with pytest.raises(ValueError, match=r"tokens: expected shape \[b, s, 12\]"):
        module(q, k, tokens[..., :6])
    with pytest.raises(ValueError, match="steps: expected"):
        module(q[:, :, :4], k, tokens)
    with pytest.raises(ValueError, match="layout: expected the letters b, s, h and d"):
        make(layout="shd")(q, k, tokens)
