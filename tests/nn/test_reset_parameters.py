"""Modules that were made on the device meta become new ones: to_empty, then reset_parameters."""

from __future__ import annotations

import inspect

import pytest

torch = pytest.importorskip("torch")

from posenc_native import nn as pnn  # noqa: E402

# One of each, and where a choice has parameters of its own, of that.
MODULES = {
    "ALiBi": lambda: pnn.ALiBi(6, learned=True),
    "ClippedRelativeBias": lambda: pnn.ClippedRelativeBias(4, 3),
    "FIRE": lambda: pnn.FIRE(4, hidden=8),
    "FourierFeatures": lambda: pnn.FourierFeatures(2, 8, std=3.0, learned=True),
    "FourierFeatures, a buffer": lambda: pnn.FourierFeatures(2, 8),
    "Kerple": lambda: pnn.Kerple(4),
    "Kerple, power": lambda: pnn.Kerple(4, kind="power"),
    "LearnedPositionalEncoding": lambda: pnn.LearnedPositionalEncoding(7, 8, padding_idx=1),
    "LearnedPositionalEncoding, sines": lambda: pnn.LearnedPositionalEncoding(
        7, 8, init="sinusoidal"
    ),
    "LearnedRotaryEmbedding": lambda: pnn.LearnedRotaryEmbedding(16, num_heads=3),
    "LinearPositionalEncoding": lambda: pnn.LinearPositionalEncoding(8, scale=0.5, learned=True),
    "NormRotaryEmbedding": lambda: pnn.NormRotaryEmbedding(16, weight_offset=1.0),
    "RecurrentPositionalEncoding": lambda: pnn.RecurrentPositionalEncoding(8, hidden=5),
    "RelativePositionalEncoding": lambda: pnn.RelativePositionalEncoding(16, 2),
    "SelectiveRotaryEmbedding": lambda: pnn.SelectiveRotaryEmbedding(
        8, 12, 3, rank=None, gate="pair", bias=True, layout="bshd"
    ),
    "DecomposedRelativePosition": lambda: pnn.DecomposedRelativePosition(8, (3, 4)),
    "ShawRelativePosition": lambda: pnn.ShawRelativePosition(8, 3),
    "SinusoidalEmbedding": lambda: pnn.SinusoidalEmbedding(8, learned_scale=0.7),
    "SinusoidalPositionalEncoding": lambda: pnn.SinusoidalPositionalEncoding(
        8, alpha=0.3, learned_alpha=True
    ),
    "SwinRelativeBias": lambda: pnn.SwinRelativeBias(4, 3, class_token=True),
    "SwinV2RelativeBias": lambda: pnn.SwinV2RelativeBias(4, 3, hidden=8),
    "T5RelativeBias": lambda: pnn.T5RelativeBias(4),
    "T5RelativeBias, gate": lambda: pnn.T5RelativeBias(4, gate_dim=8),
    "TimestepEmbedding": lambda: pnn.TimestepEmbedding(8, 16, learned_scale=2.0),
}
WITHOUT_PARAMETERS = {
    "NormalizedPositionalEncoding", "PositionalEncoding", "RotaryEmbedding", "Sandwich",
    "ToeplitzBias", "XPos",
}  # fmt: skip


def test_all_modules_are_here() -> None:
    modules = {
        name
        for name in pnn.__all__
        if inspect.isclass(getattr(pnn, name)) and issubclass(getattr(pnn, name), torch.nn.Module)
    }
    assert modules == {name.split(",")[0] for name in MODULES} | WITHOUT_PARAMETERS


@pytest.mark.parametrize("name", MODULES)
def test_from_meta(name: str) -> None:
    make = MODULES[name]
    torch.manual_seed(5)
    fresh = make()
    with torch.device("meta"):
        module = make()
    state = module.state_dict()
    assert state
    assert all(x.is_meta for x in state.values())
    module.to_empty(device="cpu")
    with torch.no_grad():
        for x in module.state_dict().values():
            x.fill_(float("nan"))
    torch.manual_seed(5)
    module.reset_parameters()
    expected = fresh.state_dict()
    assert list(expected) == list(module.state_dict())
    for key, x in module.state_dict().items():
        assert torch.equal(x, expected[key]), key


@pytest.mark.parametrize("name", MODULES)
def test_other_values_are_forgotten(name: str) -> None:
    torch.manual_seed(5)
    module = MODULES[name]()
    first = {key: x.clone() for key, x in module.state_dict().items()}
    with torch.no_grad():
        for x in module.parameters():
            x.add_(1)
    torch.manual_seed(5)
    module.reset_parameters()
    assert all(torch.equal(x, first[key]) for key, x in module.state_dict().items())


def test_of_a_cast_module() -> None:
    module = pnn.T5RelativeBias(4).bfloat16()
    module.reset_parameters()
    assert module.weight.dtype == torch.bfloat16
    assert float(module.weight.detach().std()) == pytest.approx(0.02, rel=0.5)
