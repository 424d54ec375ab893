"""`posenc_native.hf.patch` on tiny random models of many architectures of transformers.

The oracle is the model itself. Its phase is off by up to position * 2**-24 radians and a few units
in the last place; at positions below 64 that is 4e-6, a few times what float32 rounds elsewhere in
two layers. So outputs may differ by 1e-4 of their spread, and must differ by far more when
positions or their order change. `undo` gives back the bits.
"""

from __future__ import annotations

import copy
import importlib
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from posenc_native import hf  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

CLOSE = 1e-4  # of the spread of what a model gives
VOCABULARY = 64
TOKENS = 24

TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
HEADS = {"head_dim": 16}
ENCODER = {key: value for key, value in TEXT.items() if key != "num_key_value_heads"}
EXPERTS = {
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "experts_implementation": "eager",
}
LATENT = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
    "num_key_value_heads": 4,
    "n_group": 1,
    "topk_group": 1,
}
KINDS = {"layer_types": ["sliding_attention", "full_attention"]}


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Any:
    """These models are too small to share."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def rope(**parameters: Any) -> dict[str, Any]:
    given = {"rope_type": "default", "rope_theta": 10000.0} | parameters
    return {"rope_parameters": given}


LONGROPE = rope(
    rope_type="longrope",
    short_factor=[1.0 + i / 8 for i in range(8)],
    long_factor=[2.0 + i / 2 for i in range(8)],
    original_max_position_embeddings=16,
)
LONGROPE["rope_parameters"] |= {"short_mscale": 1.1, "long_mscale": 1.3}

# Configurations of models that turn ids of tokens into hidden states.
TEXT_MODELS: dict[str, dict[str, Any]] = {
    "Llama": TEXT,
    "Mistral": TEXT,
    "Mixtral": TEXT | EXPERTS,
    "Qwen2": TEXT,
    "Qwen3": TEXT | HEADS,
    "Qwen3Moe": TEXT | HEADS | EXPERTS,
    "Gemma2": TEXT | HEADS | KINDS,
    "Gemma3Text": TEXT | HEADS | KINDS,
    # Kinds of layers with heads of their own width; some frequencies are 0.
    "Gemma4Text": TEXT
    | HEADS
    | KINDS
    | {"global_head_dim": 32, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0},
    "Phi": TEXT,
    "Phi3": TEXT,
    "Phimoe": TEXT | EXPERTS,
    "GPTNeoX": ENCODER,
    "StableLm": TEXT,
    "Cohere": TEXT,
    "Cohere2": TEXT | HEADS | KINDS,
    "Glm4": TEXT | HEADS,
    # Tables of complex numbers.
    "DeepseekV2": TEXT | LATENT | EXPERTS | {"first_k_dense_replace": 1},
    "Llama4Text": TEXT | HEADS | EXPERTS | {"intermediate_size_mlp": 64},
    "DeepseekV3": TEXT | LATENT | EXPERTS,
    "Olmo2": TEXT,
    "GptOss": TEXT | HEADS | EXPERTS,
    "Exaone4": TEXT | HEADS | KINDS,
    "SmolLM3": TEXT | {"no_rope_layers": [1, 0]},
    "ModernBert": ENCODER | KINDS,
    # A table of sines for an embedding; the function that rotates is a static method.
    "RoFormer": ENCODER | {"embedding_size": 64},
    "Falcon": ENCODER | {"alibi": False, "new_decoder_architecture": False},
    "Persimmon": ENCODER,
    "MiniMax": TEXT | HEADS | EXPERTS | {"layer_types": ["full_attention"] * 2},
    "Ernie4_5": TEXT | HEADS,
    "Helium": TEXT | HEADS,
    "Nemotron": TEXT | HEADS,
    "Granite": TEXT,
    "Olmo3": TEXT | KINDS,
    "ModernBertDecoder": ENCODER | KINDS,
    "Jais2": TEXT | HEADS,
    "Starcoder2": TEXT,
    "BitNet": TEXT,
    "Arcee": TEXT,
    "SeedOss": TEXT | HEADS,
}

SECTIONS = rope(mrope_section=[4, 2, 2])
# The same, of models whose tokens have a position on several axes, and how many.
TEXT_OF_AXES: dict[str, tuple[int, dict[str, Any]]] = {
    "Qwen2VLText": (3, TEXT | SECTIONS),
    "Qwen2_5_VLText": (3, TEXT | SECTIONS),
    "Qwen3VLText": (3, TEXT | HEADS | SECTIONS),
    "Glm4vText": (3, TEXT | SECTIONS),
    # Height and width take turns, time has the rest.
    "Ernie4_5_VLMoeText": (
        3,
        TEXT
        | EXPERTS
        | {
            "moe_intermediate_size": [16, 16],
            "moe_num_experts": 4,
            "mlp_layer_types": ["dense"] * 2,
        }
        | rope(mrope_section=[3, 3, 2]),
    ),
    # The two dims of a pair have axes of their own.
    "HunYuanVLText": (
        4,
        TEXT | HEADS | rope(xdrope_section=[2, 2, 2, 2], mrope_section=[2, 2, 2, 2]),
    ),
}


def initialised(model: Any) -> Any:
    torch.manual_seed(0)
    for parameter in model.parameters():
        if parameter.ndim > 1 and parameter.requires_grad:
            # The attention of a fresh model hardly looks at positions.
            torch.nn.init.normal_(parameter, 0.0, 0.15)
    return model.eval()


def text_model(name: str, config: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    kind = getattr(transformers, f"{name}Config")
    folder = importlib.import_module(kind.__module__.replace("configuration_", "modeling_"))
    return initialised(getattr(folder, f"{name}Model")(kind(**config)))


def tokens() -> Any:
    ids = torch.randint(3, VOCABULARY, (2, TOKENS), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids}


@torch.no_grad()
def output(model: Any, inputs: dict[str, Any]) -> Any:
    result = model(**inputs)
    return result if isinstance(result, torch.Tensor) else result[0]


def distance(a: Any, b: Any) -> float:
    """Largest difference as a fraction of the spread of b."""
    return float((a.double() - b.double()).abs().max() / b.double().std())


def typical_distance(a: Any, b: Any) -> float:
    """Root of the mean square of the difference as a fraction of the spread of b."""
    return float((a.double() - b.double()).square().mean().sqrt() / b.double().std())


def check(model: Any, inputs: dict[str, Any]) -> Any:
    before = output(model, inputs)
    with hf.patch(model) as handle:
        patched = output(model, inputs)
        assert handle.patched
        assert not handle.skipped
        assert distance(patched, before) < CLOSE
    assert torch.equal(output(model, inputs), before)
    assert not any("_posenc_native" in module.__dict__ for module in model.modules())
    return handle


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


# --- vision ---------------------------------------------------------------------------------------

IMAGE = {"image_size": 32, "patch_size": 8, "hidden_size": 64, "intermediate_size": 64}
LAYERS = {"num_hidden_layers": 2, "num_attention_heads": 4}
TOWER = {"depth": 2, "num_heads": 4, "hidden_size": 64, "patch_size": 4, "intermediate_size": 64}
GRID = [[1, 4, 6], [2, 2, 4]]


def numbers(*shape: int) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


def images() -> dict[str, Any]:
    return {"pixel_values": numbers(2, 3, 32, 32)}


def patches(name: str = "hidden_states", width: int = 96) -> dict[str, Any]:
    """Patches of two images or videos, one after another."""
    return {name: numbers(40, width), "grid_thw": torch.tensor(GRID)}


def memory() -> dict[str, Any]:
    """What the memory attention of SAM 2 gets: an image of 4 x 4, two such and 3 pointers."""
    return {
        "current_vision_features": numbers(16, 1, 64),
        "memory": numbers(35, 1, 64),
        "memory_posision_embeddings": numbers(35, 1, 64),
        "num_object_pointer_tokens": 3,
    }


def squares() -> dict[str, Any]:
    """Patches of 6 x 6, flattened, with x and y of each, as Gemma 4 takes them."""
    grid = torch.cartesian_prod(torch.arange(6), torch.arange(6)).flip(1)
    return {"pixel_values": numbers(2, 36, 192), "pixel_position_ids": grid.expand(2, -1, -1)}


# Folder of transformers, class of the model, configuration, what it takes.
VISION_MODELS: dict[str, tuple[str, str, str, dict[str, Any], dict[str, Any]]] = {
    "Qwen2-VL": (
        "qwen2_vl",
        "Qwen2VisionTransformerPretrainedModel",
        "Qwen2VLVisionConfig",
        {"depth": 2, "embed_dim": 64, "hidden_size": 64, "num_heads": 4, "patch_size": 4},
        patches(),
    ),
    "Qwen2.5-VL": (
        "qwen2_5_vl",
        "Qwen2_5_VisionTransformerPretrainedModel",
        "Qwen2_5_VLVisionConfig",
        TOWER | {"out_hidden_size": 64, "window_size": 16, "fullatt_block_indexes": [1]},
        patches(),
    ),
    "Qwen3-VL": (
        "qwen3_vl",
        "Qwen3VLVisionModel",
        "Qwen3VLVisionConfig",
        TOWER
        | {"out_hidden_size": 64, "num_position_embeddings": 16, "deepstack_visual_indexes": [1]},
        patches(),
    ),
    "GLM-4V": (
        "glm4v",
        "Glm4vVisionModel",
        "Glm4vVisionConfig",
        TOWER | {"image_size": 32, "out_hidden_size": 64},
        {"hidden_states": numbers(40, 96), "grid_thw": torch.tensor([[1, 4, 6], [1, 4, 4]])},
    ),
    "ERNIE-4.5-VL": (
        "ernie4_5_vl_moe",
        "Ernie4_5_VLMoeVisionTransformerPretrainedModel",
        "Ernie4_5_VLMoeVisionConfig",
        TOWER,
        patches(width=48),
    ),
    "Kimi K2.5": (
        "kimi_k25",
        "Kimi_K25VisionModel",
        "Kimi_K25VisionConfig",
        LAYERS
        | {"patch_size": 4, "hidden_size": 64, "intermediate_size": 64, "pos_emb_height": 8}
        | {"pos_emb_width": 8},
        {"pixel_values": numbers(40, 3, 4, 4), "grid_thw": torch.tensor([[1, 4, 6], [1, 4, 4]])},
    ),
    # Time, height and width; a part of each head.
    "MiniMax-M3-VL": (
        "minimax_m3_vl",
        "MiniMaxM3VLVisionModel",
        "MiniMaxM3VLVisionConfig",
        IMAGE | LAYERS | {"patch_size": 4},
        patches("pixel_values", 96),
    ),
    "Pixtral": (
        "pixtral",
        "PixtralVisionModel",
        "PixtralVisionConfig",
        IMAGE | LAYERS,
        images() | {"image_sizes": torch.tensor([[32, 32], [24, 16]])},
    ),
    # Tokens in front of the patches stay as they are; coordinates are centres of patches.
    "DINOv3": (
        "dinov3_vit",
        "DINOv3ViTModel",
        "DINOv3ViTConfig",
        IMAGE | LAYERS | {"num_register_tokens": 2},
        images(),
    ),
    # The keys are several images and pointers that have no place.
    "SAM 2": (
        "sam2_video",
        "Sam2VideoMemoryAttention",
        "Sam2VideoConfig",
        {
            "memory_attention_hidden_size": 64,
            "memory_attention_num_layers": 2,
            "memory_attention_num_attention_heads": 2,
            "memory_attention_feed_forward_hidden_size": 64,
            "memory_attention_rope_feat_sizes": [4, 4],
        },
        memory(),
    ),
    "SAM 3": (
        "sam3",
        "Sam3ViTModel",
        "Sam3ViTConfig",
        IMAGE | LAYERS | {"window_size": 2, "global_attn_indexes": [1], "pretrain_image_size": 16},
        images(),
    ),
    # Each half of a head has an axis of its own, and halves of its own.
    "Gemma 4": (
        "gemma4",
        "Gemma4VisionModel",
        "Gemma4VisionConfig",
        IMAGE | LAYERS | HEADS | {"num_key_value_heads": 4, "position_embedding_size": 64},
        squares(),
    ),
    # The two dims of a pair have different frequencies; heads and positions are all it says.
    "V-JEPA 2": (
        "vjepa2",
        "VJEPA2Model",
        "VJEPA2Config",
        LAYERS
        | {"patch_size": 8, "crop_size": 32, "frames_per_clip": 4, "hidden_size": 64}
        | {"mlp_ratio": 1.0, "pred_hidden_size": 32, "pred_num_attention_heads": 2}
        | {"pred_num_hidden_layers": 2, "pred_num_mask_tokens": 2},
        {"pixel_values_videos": numbers(1, 4, 3, 32, 32)},
    ),
    # A table of complex numbers for one size of image.
    "Llama 4": (
        "llama4",
        "Llama4VisionModel",
        "Llama4VisionConfig",
        IMAGE
        | LAYERS
        | {"intermediate_size": 256, "vision_output_dim": 64, "projector_input_dim": 64}
        | {"projector_output_dim": 64},
        images(),
    ),
    # A row of the tables is learned.
    "MLCD": ("mlcd", "MLCDVisionModel", "MLCDVisionConfig", IMAGE | LAYERS, images()),
    "EXAONE 4.5": (
        "exaone4_5",
        "Exaone4_5_VisionModel",
        "Exaone4_5_VisionConfig",
        TOWER
        | {"out_hidden_size": 64, "window_size": 16, "fullatt_block_indexes": [1]}
        | {"num_key_value_heads": 4},
        patches(),
    ),
}


def vision_model(name: str) -> tuple[Any, dict[str, Any]]:
    folder, model, config, values, inputs = VISION_MODELS[name]
    package = f"transformers.models.{folder}"
    kind = getattr(importlib.import_module(f"{package}.configuration_{folder}"), config)
    torch.manual_seed(0)
    modeling = importlib.import_module(f"{package}.modeling_{folder}")
    return initialised(getattr(modeling, model)(kind(**values))), inputs


@pytest.mark.parametrize("name", VISION_MODELS)
def test_vision(name: str) -> None:
    check(*vision_model(name))


# --- frequencies and configuration ----------------------------------------------------------------


def test_a_note_where_frequencies_are_not_those_of_the_configuration() -> None:
    model = text_model("Llama", TEXT)
    own = model.rotary_emb.inv_freq.clone()
    own[3] *= 1.5
    model.rotary_emb.inv_freq, model.rotary_emb.original_inv_freq = own, own.clone()
    with hf.patch(model) as handle:
        assert [*handle.notes] == ["rotary_emb"]
        assert "inv_freq is not that of its configuration: pair" in handle.notes["rotary_emb"]
        cos, _ = model.rotary_emb(torch.zeros(1), torch.tensor([[1000]]))
        # They are used all the same.
        assert (cos[0, 0].double() - (1000 * own.double()).cos()).abs().max() < 1e-7


class Unmakeable(torch.nn.Module):
    """A rotary embedding of a wrapper: it cannot be made from its configuration alone."""

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


@pytest.fixture
def _fresh_compiler() -> Any:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


# Not the towers whose own code does not compile without breaks: Qwen-VL, Pixtral and such.
COMPILED = ["DeepseekV2", "Ernie4_5_VLMoeText", "HunYuanVLText", "RoFormer"]
COMPILED += ["DINOv3", "Gemma 4", "V-JEPA 2", "SAM 2", "SAM 3", "Llama 4", "MLCD"]


@pytest.mark.usefixtures("_fresh_compiler")
@pytest.mark.parametrize("name", COMPILED)
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


@pytest.mark.parametrize("name", [*LEARNING, "MLCD"])  # which learns a row of its tables
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
