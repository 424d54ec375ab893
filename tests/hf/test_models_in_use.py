"""`posenc_native.hf.patch`: models with caches, compiled, cast, trained, copied."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from hf_models import (  # noqa: E402
    CLOSE,
    TEXT,
    TEXT_MODELS,
    TEXT_OF_AXES,
    VISION_MODELS,
    check,
    distance,
    memory,
    numbers,
    output,
    text_model,
    tokens,
    vision_model,
)
from matrices import others_slow  # noqa: E402

from posenc_native import hf  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def typical_distance(a: Any, b: Any) -> float:
    """Root of the mean square of the difference as a fraction of the spread of b."""
    return float((a.double() - b.double()).square().mean().sqrt() / b.double().std())


# --- frequencies and configuration ----------------------------------------------------------------


def test_a_note_where_frequencies_are_not_those_of_the_configuration() -> None:
    model = text_model("Llama", TEXT)
    own = model.rotary_emb.inv_freq.clone()
    own[3] *= 1.5
    model.rotary_emb.inv_freq, model.rotary_emb.original_inv_freq = own, own.clone()
    with hf.patch(model) as handle:
        assert [*handle.notes] == ["rotary_emb"]
        assert "inv_freq differs from its configuration: pair" in handle.notes["rotary_emb"]
        cos, _ = model.rotary_emb(torch.zeros(1), torch.tensor([[1000]]))
        # They are used all the same.
        assert (cos[0, 0].double() - (1000 * own.double()).cos()).abs().max() < 1e-7


class Unmakeable(torch.nn.Module):
    """A rotary embedding in a wrapper, which its configuration alone cannot make."""

    def __init__(self, config: Any, inv_freq: Any) -> None:
        super().__init__()
        self.config = config
        self.inv_freq = torch.nn.Buffer(inv_freq, persistent=False)

    def forward(self, x: Any, position_ids: Any) -> Any:
        phase = position_ids[..., None].float() * self.inv_freq
        phase = torch.cat((phase, phase), dim=-1)
        return phase.cos().to(x.dtype), phase.sin().to(x.dtype)


def test_rounded_frequencies_come_from_the_configuration_itself() -> None:
    model = text_model("Llama", TEXT)
    exact = model.rotary_emb.inv_freq.clone()
    model.rotary_emb = Unmakeable(model.config, exact)
    model.bfloat16()
    assert not torch.equal(model.rotary_emb.inv_freq.float(), exact)
    with hf.patch(model) as handle:
        # Rounded from float64 there, computed in float32 here: a few units in the last place.
        torch.testing.assert_close(model.rotary_emb.inv_freq, exact, rtol=4 * 2.0**-23, atol=0)
        assert not handle.notes
    assert model.rotary_emb.inv_freq.dtype == torch.bfloat16


# --- how they are used ----------------------------------------------------------------------------

# One of each way to make tables or to rotate: complex tables, several axes, several axes of a pair,
# a factor that follows the length, kinds of layer, an embedding of sines.
DECODERS = ["DeepseekV2", "Llama4Text", "Phimoe", "Gemma4Text", "Ernie4_5", "Exaone4"]


@pytest.mark.parametrize("name", [*DECODERS, *TEXT_OF_AXES])
def test_a_step_with_a_cache(name: str) -> None:
    config = TEXT_MODELS[name] if name in TEXT_MODELS else TEXT_OF_AXES[name][1]
    model, ids = text_model(name, config), tokens()["input_ids"]
    with hf.patch(model), torch.no_grad():
        whole = model(input_ids=ids).last_hidden_state
        first = model(input_ids=ids[:, :-1], use_cache=True)
        step = model(input_ids=ids[:, -1:], past_key_values=first.past_key_values)
        assert distance(step.last_hidden_state[:, 0], whole[:, -1]) < CLOSE


def loaded(name: str) -> tuple[Any, dict[str, Any]]:
    if name in VISION_MODELS:
        return vision_model(name)
    config = TEXT_MODELS[name] if name in TEXT_MODELS else TEXT_OF_AXES[name][1]
    return text_model(name, config), tokens()


# Not the towers whose own code does not compile without breaks: Qwen-VL, Pixtral and such.
COMPILED = ["DeepseekV2", "Ernie4_5_VLMoeText", "HunYuanVLText", "RoFormer"]
COMPILED += ["DINOv3", "Gemma 4", "V-JEPA 2", "SAM 2", "SAM 3", "Llama 4", "MLCD"]


@pytest.mark.usefixtures("nothing_compiled")
@pytest.mark.parametrize("name", others_slow(COMPILED, "RoFormer", "DINOv3", "Llama 4"))
def test_compiled(name: str) -> None:
    model, inputs = loaded(name)
    if name == "DeepseekV2":  # its experts are a loop over what it finds
        model.layers[1].mlp = model.layers[0].mlp
    model.config._attn_implementation = "eager"
    with hf.patch(model):
        expected = output(model, inputs)
        compiled = torch.compile(model, fullgraph=True, backend="eager")
        assert distance(output(compiled, inputs), expected) < CLOSE


@pytest.mark.parametrize("name", ["DeepseekV2", "Ernie4_5_VLMoeText", "HunYuanVLText", "RoFormer"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_bfloat16_does_not_touch_the_phase(name: str, when: str) -> None:
    """Tables in float32 and rotated values rounded once, before or after the cast of the model."""
    model, inputs = loaded(name)
    exact = copy.deepcopy(model).bfloat16().float()  # its weights, rounded; its frequencies too
    for theirs, ours in zip(exact.modules(), model.modules(), strict=True):
        theirs._buffers.update({n: b.clone() for n, b in ours._buffers.items() if b is not None})
    with hf.patch(exact):
        truth = output(exact, inputs)
    if when == "before":
        model.bfloat16()
    theirs = output(copy.deepcopy(model).bfloat16(), inputs)
    with hf.patch(model):
        model.bfloat16()
        ours = output(model, inputs)
        assert ours.dtype == torch.bfloat16
        for name_of, buffer in model.named_buffers():
            if name_of.endswith("inv_freq"):
                assert buffer.dtype == torch.float32
    # All else is in bfloat16 in both: some thousand values with the same error, but by chance.
    assert typical_distance(ours, truth) < 1.3 * typical_distance(theirs, truth)


@pytest.mark.parametrize("name", VISION_MODELS)
def test_vision_in_bfloat16(name: str) -> None:
    model, inputs = vision_model(name)
    model.bfloat16()
    rounded = {
        n: value.bfloat16() if value.is_floating_point() else value
        for n, value in inputs.items()
        if isinstance(value, torch.Tensor)
    }
    inputs = inputs | rounded
    exact = copy.deepcopy(model).float()
    with hf.patch(exact):
        truth = output(exact, {n: v.float() if torch.is_tensor(v) and v.is_floating_point() else v
                               for n, v in inputs.items()})  # fmt: skip
    theirs = output(model, inputs)
    with hf.patch(model):
        ours = output(model, inputs)
    assert ours.dtype == theirs.dtype
    # All else is in bfloat16 in both: some thousand values with the same error, but by chance.
    assert typical_distance(ours, truth) < 1.3 * typical_distance(theirs, truth)
    assert torch.equal(output(model, inputs), theirs)


LEARNING = ["DeepseekV2", "Phimoe", "HunYuanVLText", "RoFormer", "V-JEPA 2", "DINOv3", "Gemma 4"]


@pytest.mark.parametrize("name", [*LEARNING, "MLCD"])  # MLCD learns a row of its tables
def test_gradients(name: str) -> None:
    model, inputs = loaded(name)

    def gradients() -> dict[str, Any]:
        model.zero_grad()
        states = model(**inputs)[0]
        # Not its square: a norm comes last.
        (states * numbers(*states.shape)).mean().backward()
        return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}

    expected = gradients()
    assert name != "MLCD" or "class_pos_emb" in expected
    with hf.patch(model):
        actual = gradients()
    assert actual.keys() == expected.keys()
    for parameter, gradient in expected.items():
        largest = float(gradient.abs().max())
        torch.testing.assert_close(
            actual[parameter], gradient, rtol=1e-3, atol=2e-4 * largest + 1e-9
        )


@pytest.mark.parametrize("name", ["RoFormer", "V-JEPA 2", "Llama 4"])
def test_a_copy_is_patched_by_itself(name: str) -> None:
    model, inputs = loaded(name)
    before = output(model, inputs)
    handle = hf.patch(model)
    patched, twin = output(model, inputs), copy.deepcopy(model)
    handle.undo()
    assert torch.equal(output(model, inputs), before)
    assert torch.equal(output(twin, inputs), patched)
    hf.unpatch(twin)
    assert torch.equal(output(twin, inputs), before)


def test_calls_that_say_more_go_to_the_models_own_function() -> None:
    """SAM 2: pointers among the keys have no place; RoFormer: values are rotated too."""
    model, inputs = vision_model("SAM 2")
    for pointers in (0, 3):
        inputs = memory() | {"num_object_pointer_tokens": pointers}
        for name in ("memory", "memory_posision_embeddings"):
            inputs[name] = inputs[name][: 32 + pointers]
        check(model, inputs)
    check(text_model("RoFormer", TEXT_MODELS["RoFormer"] | {"rotary_value": True}), tokens())


def test_dinov3_keeps_its_random_coordinates_in_training() -> None:
    model, inputs = vision_model("DINOv3")
    model.config.pos_embed_rescale = 2.0
    model.train()

    def features() -> Any:
        torch.manual_seed(5)
        return output(model, inputs)

    before = features()
    assert distance(output(model, inputs), before) > 1e-3
    with hf.patch(model):
        assert distance(features(), before) < CLOSE
