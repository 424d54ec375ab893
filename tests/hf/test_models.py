"""`posenc_native.hf.patch` on tiny random models of many architectures of transformers.

The oracle is the model itself. Its phase is off by up to position * 2**-24 radians and a few units
in the last place; at positions below 64 that is 4e-6, a few times what float32 rounds elsewhere in
two layers. So outputs may differ by 1e-4 of their spread, and must differ by far more when
positions or their order change. `undo` gives back the bits.
"""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from hf_models import (  # noqa: E402
    CLOSE,
    SPEECH_MODELS,
    TEXT_MODELS,
    TEXT_OF_AXES,
    TOKENS,
    VISION_MODELS,
    check,
    distance,
    numbers,
    output,
    rope,
    speech_model,
    text_model,
    tokens,
    vision_model,
)

from posenc_native import hf  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


LONGROPE = rope(
    rope_type="longrope",
    short_factor=[1.0 + i / 8 for i in range(8)],
    long_factor=[2.0 + i / 2 for i in range(8)],
    original_max_position_embeddings=16,
)
LONGROPE["rope_parameters"] |= {"short_mscale": 1.1, "long_mscale": 1.3}


@pytest.mark.parametrize("name", TEXT_MODELS)
def test_text(name: str) -> None:
    model, inputs = text_model(name, TEXT_MODELS[name]), tokens()
    reversed_ids = {"input_ids": inputs["input_ids"].flip(1)}
    there = output(model, inputs)
    assert distance(output(model, reversed_ids).flip(1), there) > 1e-2  # order matters
    handle = check(model, inputs)
    assert not handle.notes


@pytest.mark.parametrize("name", TEXT_OF_AXES)
def test_text_of_several_axes(name: str) -> None:
    axes, config = TEXT_OF_AXES[name]
    model, inputs = text_model(name, config), tokens()
    random = torch.Generator().manual_seed(2)
    inputs["position_ids"] = torch.randint(0, 40, (axes, 2, TOKENS), generator=random)
    other = inputs | {"position_ids": inputs["position_ids"].flip(0)}
    assert distance(output(model, other), output(model, inputs)) > 1e-2  # axes are told apart
    assert not check(model, inputs).notes
    del inputs["position_ids"]
    check(model, inputs)


FAR = 60_000


@pytest.mark.parametrize("name", ["DeepseekV2", "Llama4Text", "Gemma4Text", *TEXT_OF_AXES])
def test_far_from_0_the_phase_is_exact(name: str) -> None:
    """At 60 000 a float32 phase is off by up to 3.6e-3, at axes that are twice as far by 7e-3."""
    axes, config = TEXT_OF_AXES.get(name, (1, TEXT_MODELS.get(name)))
    model, inputs = text_model(name, config), tokens()
    positions = FAR + torch.arange(TOKENS)[None].expand(2, -1)
    if axes > 1:
        positions = torch.stack([positions * (1 + axis % 2) + 3 * axis for axis in range(axes)])
    inputs["position_ids"] = positions
    theirs = output(model, inputs)
    with hf.patch(model):
        ours = output(model, inputs)
        truth = output(copy.deepcopy(model).double(), inputs)
    assert distance(ours, truth) < CLOSE
    assert distance(theirs, truth) > 10 * distance(ours, truth)


def test_far_tables_are_those_of_float64() -> None:
    """Of vision towers, whose positions are small, the tables themselves at far positions."""
    for name in ("Qwen3-VL", "Pixtral", "SAM 3", "Gemma 4"):
        model, _ = vision_model(name)
        rotary = next(m for m in model.modules() if "inv_freq" in m._buffers)
        positions = torch.stack((FAR + torch.arange(9), 2 * FAR - 7 * torch.arange(9)), dim=-1)
        positions = positions[None] if name == "Gemma 4" else positions
        with hf.patch(model):
            tables = rotary(torch.zeros(1), positions)
        own = rotary.inv_freq.double()
        phases = positions[..., None].double() * own  # [..., axis, frequency]
        if name == "Pixtral":  # each axis has half of the frequencies
            phases = torch.stack((phases[..., 0, : len(own) // 2], phases[..., 1, len(own) // 2 :]))
            phases = phases.movedim(0, -2)
        for table, exact in zip(tables, (phases.cos(), phases.sin()), strict=True):
            shown = table.reshape(*exact.shape[:-2], -1)
            assert (shown - exact.flatten(-2)).abs().max() < 2e-7


@pytest.mark.parametrize("name", VISION_MODELS)
def test_vision(name: str) -> None:
    check(*vision_model(name))


def rotary_of(model: torch.nn.Module) -> torch.nn.Module:
    return next(m for m in model.modules() if "inv_freq" in m._buffers)


@pytest.mark.parametrize("name", SPEECH_MODELS)
def test_speech(name: str) -> None:
    """Encoders that rotate hidden states in a method, by tables made from their number."""
    model, inputs = speech_model(name)
    key, x = next(iter(inputs.items()))
    assert distance(output(model, {key: x.flip(1)}).flip(1), output(model, inputs)) > 1e-2
    handle = check(model, inputs)
    # Its tables, and the attention of both layers: that of an adapter does not rotate.
    assert len(handle.patched) == 3
    assert handle.notes == {}

    def gradients() -> torch.Tensor:
        model.zero_grad()
        model(**inputs)[0].square().mean().backward()
        found = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        return torch.cat(found)

    own = gradients()
    with hf.patch(model):
        assert (gradients() - own).abs().max() < 1e-4 * own.abs().max()
    # As exact as float32 allows, where the model's own phase is off by 2**-24 a token.
    rotary, far = rotary_of(model), torch.zeros(1, FAR, 1)
    phase = torch.outer(torch.arange(FAR).double(), rotary.inv_freq.double())
    with hf.patch(model):
        cos, sin = rotary(far)[:, :, 0, 0, : phase.shape[1]].double()
        assert (cos - phase.cos()).abs().max() < 2e-7
        assert (sin - phase.sin()).abs().max() < 2e-7
    assert (rotary(far)[1, :, 0, 0, : phase.shape[1]] - phase.sin()).abs().max() > 1e-4


@pytest.mark.parametrize("name", SPEECH_MODELS)
def test_speech_in_half_precision(name: str) -> None:
    """Rounded once; frequencies that a cast has rounded are those of the configuration."""
    model, _ = speech_model(name)
    frequencies = rotary_of(model).inv_freq.clone()
    x = numbers(1, 500, 64).bfloat16()

    def turned(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        attention = next(m for m in model.modules() if hasattr(m, "_apply_rotary_embedding"))
        return attention._apply_rotary_embedding(x, rotary_of(model)(x))

    truth = turned(copy.deepcopy(model).double(), x.double())
    model.bfloat16()
    with hf.patch(model):
        assert torch.equal(rotary_of(model).inv_freq, frequencies)
        ours = turned(model, x)
    assert ours.dtype == torch.bfloat16
    # Half a unit in the last of 8 bits; near 0, what products of float32 round.
    assert ((ours - truth).abs() <= 2.0**-8 * truth.abs() + 1e-6).all()
    assert (turned(model, x) - truth).abs().max() > 0.1
    assert rotary_of(model).inv_freq.dtype == torch.bfloat16


def test_speech_with_another_encoding_says_what_was_found() -> None:
    """The same classes have the method for relative positions, too, and do not call it."""
    model, _ = speech_model("Wav2Vec2-BERT")
    kind, config = type(model), copy.deepcopy(model.config)
    config.position_embeddings_type = "relative"
    with pytest.raises(ValueError, match="got none; its classes are"):
        hf.patch(kind(config))


def test_speech_whose_method_does_something_else_is_left_alone() -> None:
    model, _ = speech_model("Wav2Vec2-BERT")
    attention = model.encoder.layers[1].self_attn

    class Other(type(attention)):  # type: ignore[misc]
        def _apply_rotary_embedding(self, x: torch.Tensor, tables: torch.Tensor) -> torch.Tensor:
            return x + super()._apply_rotary_embedding(x, tables)

    attention.__class__ = Other
    with pytest.raises(ValueError, match="_apply_rotary_embedding rotates in an unknown way"):
        hf.patch(model)
    assert not any("_posenc_native" in module.__dict__ for module in model.modules())
