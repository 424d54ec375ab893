"""Every rotary class of vLLM beside ours, made by vLLM's get_rope from the same settings.

At small positions float32 angles are accurate enough for vLLM's own result to be the oracle: its
angles are within 100 * 2^-23 of the exact ones. This also compares what a class means: its scaling,
its magnitude, its axes and its pairing.
"""

from __future__ import annotations

import math

import pytest
import torch
import vllm.model_executor.layers.rotary_embedding as package
from vllm import envs, forward_context
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.rotary_embedding import ernie45_vl_rope

import posenc_native as pn
from posenc_native import vllm as plugin
from posenc_native.vllm.layer import ExactRotary

FAR = 100  # the largest position
HEADS, KV_HEADS = 4, 2

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
DEEPSEEK = {**YARN, "rope_type": "deepseek_yarn", "mscale": 0.707, "mscale_all_dim": 1.0}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
LONG = {
    "rope_type": "longrope", "short_factor": [1.0 + i / 9 for i in range(32)],
    "long_factor": [1.0 + i / 3 for i in range(32)],
}  # fmt: skip

# name: (vLLM's class, arguments of get_rope, other than those of `_layer`)
CASES = {
    "default": ("RotaryEmbedding", {}),
    "interleaved": ("RotaryEmbedding", {"is_neox_style": False}),
    "partial": ("RotaryEmbedding", {"rope": {"partial_rotary_factor": 0.5}}),
    "partial interleaved": (
        "RotaryEmbedding",
        {"is_neox_style": False, "rope": {"partial_rotary_factor": 0.25}},
    ),
    "linear": ("LinearScalingRotaryEmbedding", {"rope": {"rope_type": "linear", "factor": 4.0}}),
    "ntk": ("NTKScalingRotaryEmbedding", {"rope": {"rope_type": "ntk", "factor": 4.0}}),
    "ntk, mixed": (
        "NTKScalingRotaryEmbedding",
        {"rope": {"rope_type": "ntk", "factor": 4.0, "mixed_b": 0.6}},
    ),
    "dynamic alpha": (
        "DynamicNTKAlphaRotaryEmbedding",
        {"rope": {"rope_type": "dynamic", "alpha": 50.0}},
    ),
    "dynamic": (
        "DynamicNTKScalingRotaryEmbedding",
        {"rope": {"rope_type": "dynamic", "factor": 3.0, "max_trained_positions": 64}},
    ),
    "yarn": ("YaRNScalingRotaryEmbedding", {"rope": YARN}),
    "yarn, mscale": (
        "YaRNScalingRotaryEmbedding",
        {"rope": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.5, "truncate": False}},
    ),
    "yarn, attention factor": (
        "YaRNScalingRotaryEmbedding",
        {"rope": {**YARN, "attention_factor": 1.25, "beta_fast": 16, "beta_slow": 2}},
    ),
    "llama3": ("Llama3RotaryEmbedding", {"rope": LLAMA3}),
    "longrope, long": (
        "Phi3LongRoPEScaledRotaryEmbedding",
        {"rope": {**LONG, "original_max_position_embeddings": 64}},
    ),
    "longrope, short": (
        "Phi3LongRoPEScaledRotaryEmbedding",
        {"rope": {**LONG, "original_max_position_embeddings": 512, "short_mscale": 1.1,
                  "long_mscale": 1.2}},
    ),
    "proportional": (
        "Gemma4RotaryEmbedding",
        {"rope": {"rope_type": "proportional", "partial_rotary_factor": 0.25}},
    ),
    "deepseek": ("DeepseekScalingRotaryEmbedding", {"rope": DEEPSEEK, "is_neox_style": False}),
    "deepseek, half": (
        "DeepseekScalingRotaryEmbedding",
        {"rope": {**DEEPSEEK, "mscale_all_dim": 0}},
    ),
    "deepseek v4": (
        "DeepseekV4ScalingRotaryEmbedding",
        {"rope": {**DEEPSEEK, "is_deepseek_v4": True}, "is_neox_style": False},
    ),
    "mrope": ("MRotaryEmbedding", {"rope": {"mrope_section": [8, 12, 12]}}),
    "mrope, interleaved axes": (
        "MRotaryEmbedding",
        {"rope": {"mrope_section": [12, 10, 10], "mrope_interleaved": True}},
    ),
    "mrope, yarn": ("MRotaryEmbedding", {"rope": {**YARN, "mrope_section": [8, 12, 12]}}),
    "mrope, interleaved pairs": (
        "MRotaryEmbedding",
        {"rope": {"mrope_section": [8, 12, 12]}, "is_neox_style": False},
    ),
    "bailing": (
        "BailingMRotaryEmbedding",
        {"rope": {"rope_type": "bailing_mrope", "mrope_section": [8, 12, 12]},
         "is_neox_style": False},
    ),
    "pangu": (
        "MRotaryEmbeddingInterleaved",
        {"rope": {"rope_type": "openpangu", "mrope_section": [8, 12, 12],
                  "mrope_interleaved": True}},
    ),
    "ernie": ("Ernie4_5_VLRotaryEmbedding", {"ernie": [11, 11, 10], "is_neox_style": False}),
}  # fmt: skip
WITH_AXES = ("MRotaryEmbedding", "BailingMRotaryEmbedding", "MRotaryEmbeddingInterleaved",
             "Ernie4_5_VLRotaryEmbedding")  # fmt: skip


class _Length:
    max_model_len = 256


def _layer(options, dtype=torch.float32):
    options = dict(options)
    rope = {"rope_type": "default", "rope_theta": 10000.0, **options.pop("rope", {})}
    sections = options.pop("ernie", None)
    config = VllmConfig()
    config.model_config = _Length()
    with set_current_vllm_config(config, check_compile=False):
        if sections is not None:
            kind = ernie45_vl_rope.Ernie4_5_VLRotaryEmbedding
            neox = options["is_neox_style"]
            return kind(64, 64, 256, 10000.0, neox, dtype, mrope_section=sections)
        return package.get_rope(64, 256, rope_parameters=rope, dtype=dtype, **options)


@pytest.fixture(scope="module")
def theirs():
    """A layer of each case, made before the plugin is there."""
    layers = {name: _layer(options) for name, (_, options) in CASES.items()}
    for name, (kind, _) in CASES.items():
        assert type(layers[name]).__name__ == kind
    return layers


@pytest.fixture(scope="module")
def ours(theirs):
    package._ROPE_DICT.clear()
    plugin.register()
    plugin.register()  # as in a process that inherits another
    return {name: _layer(options) for name, (_, options) in CASES.items()}


def _inputs(layer, axes, dtype=torch.float32, tokens=7):
    """Slices of packed rows, as in a model."""
    generator = torch.Generator().manual_seed(0)
    sizes = [HEADS * 64, KV_HEADS * 64, KV_HEADS * 64]
    packed = torch.randn(tokens, sum(sizes), generator=generator).to(dtype)
    q, k, _ = packed.split(sizes, -1)
    if "Deepseek" in type(layer).__name__:
        q, k = q.unflatten(-1, (HEADS, 64)), k.unflatten(-1, (KV_HEADS, 64))
    shape = (3, tokens) if axes else (tokens,)
    return torch.randint(0, FAR, shape, generator=generator), q, k


@pytest.mark.parametrize("name", CASES)
def test_a_layer_rotates_as_vllms(theirs, ours, name):
    layer = ours[name]
    assert isinstance(layer, ExactRotary)
    assert not [*layer.named_buffers()]
    kind = CASES[name][0]
    for axes in {kind in WITH_AXES, kind == "MRotaryEmbeddingInterleaved"}:
        positions, q, k = _inputs(layer, axes)
        wanted = theirs[name].forward(positions, q.clone(), k.clone())
        original = q.clone(), k.clone()
        native = layer.forward_native(positions, q, k)
        assert torch.equal(q, original[0])
        assert torch.equal(k, original[1])
        got = layer(positions.int(), q, k)
        for x, y, z in zip(got, wanted, native, strict=True):
            # Angles within 100 * 2^-23, and the rounding of table and products.
            torch.testing.assert_close(x.reshape(y.shape), y, rtol=0, atol=8e-5)
            assert torch.equal(x, z.reshape(x.shape))
        assert (got[0] is q) == layer.known.overwrites


@pytest.mark.parametrize("name", CASES)
def test_a_compiled_layer_has_the_same_bits(ours, name):
    torch.compiler.reset()
    layer = ours[name]
    positions, q, k = _inputs(layer, CASES[name][0] in WITH_AXES)
    with torch.inference_mode():
        wanted = layer(positions, q.clone(), k.clone())
        got = torch.compile(layer, fullgraph=True, backend="eager")(positions, q, k)
    for x, y in zip(got, wanted, strict=True):
        assert torch.equal(x, y)
    assert got[0].untyped_storage().data_ptr() != q.untyped_storage().data_ptr()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_layers_of_a_step_share_tables_and_no_other_step_does(ours, name, dtype, monkeypatch):
    layer, rotary = ours[name], pn.Rotary
    made, tables = [], rotary.tables
    monkeypatch.setattr(rotary, "tables", lambda *a, **o: made.append(a) or tables(*a, **o))
    positions, q, k = _inputs(layer, CASES[name][0] in WITH_AXES, dtype, tokens=200)
    for shift in (0, 1000):  # vLLM writes the positions of every step to one buffer
        positions += shift
        wanted = layer(positions, q.clone(), k.clone())
        made.clear()
        with forward_context.override_forward_context(_context()):
            layers = [layer(positions, q.clone(), k.clone()) for _ in range(3)]
            few = layer(positions[..., :100], q[:100].clone(), k[:100].clone())
        assert len(made) == 1
        for got in layers:
            assert all(map(torch.equal, got, wanted))
        assert torch.equal(few[0], wanted[0][:100])


def _context():
    return forward_context.ForwardContext({}, {}, {})


def test_a_key_may_be_none(ours):
    layer = ours["default"]
    positions, q, k = _inputs(layer, False)
    wanted, _ = layer(positions, q.clone(), k.clone())
    got, none = layer(positions, q.clone(), None)
    assert none is None
    assert torch.equal(got, wanted)


def test_positions_may_be_a_batch(ours):
    layer = ours["default"]
    positions, q, k = _inputs(layer, False, tokens=8)
    wanted = layer(positions, q.clone(), k.clone())
    shape = (2, 4)
    got = layer(positions.view(shape), q.unflatten(0, shape).clone(), k.unflatten(0, shape).clone())
    assert torch.equal(got[0].flatten(0, 1), wanted[0])
    assert torch.equal(got[1].flatten(0, 1), wanted[1])


def test_deepseek_v4_rotates_back_and_any_width(ours, theirs):
    layer = ours["deepseek v4"]
    positions = torch.arange(5)
    q = torch.randn(5, 3, 96)
    wanted, _ = theirs["deepseek v4"].forward_native(positions, q, None, None, True)
    got, _ = layer(positions, q.clone(), None, None, True)
    torch.testing.assert_close(got, wanted, rtol=0, atol=8e-5)


@pytest.mark.parametrize("name", ["default", "yarn", "longrope, long", "mrope", "deepseek"])
def test_a_table_is_made_when_code_of_vllm_asks(theirs, ours, name):
    """Exact, with as many rows as vLLM's."""
    layer = _layer(CASES[name][1], torch.bfloat16)
    package._ROPE_DICT.clear()
    table = "long_short_cos_sin_cache" if "longrope" in name else "cos_sin_cache"
    assert table not in layer._buffers
    theirs_table = theirs[name]._buffers[table]
    made = getattr(layer, table)
    assert made.dtype == torch.bfloat16
    assert made.shape == theirs_table.shape
    torch.testing.assert_close(made.float(), theirs_table, rtol=2**-8, atol=8e-5)
    assert table not in layer.state_dict()
    if name == "default":
        cos, sin = layer.get_cos_sin(9)
        wanted = pn.Rotary(64).tables(torch.arange(9), dtype=torch.bfloat16)
        assert torch.equal(cos, wanted[0])
        assert torch.equal(sin, wanted[1])
        assert torch.equal(made[:9], torch.cat(wanted, -1))


def test_layers_that_cannot_be_expressed_stay_vllms(ours, caplog):
    caplog.set_level("INFO", "vllm.posenc_native")
    rope = {"rope_type": "mllama4"}
    layer = _layer({"rope": rope})
    assert type(layer).__name__ == "Llama4VisionRotaryEmbedding"
    assert "Llama4VisionRotaryEmbedding stays: this library does not know this class" in caplog.text
    layer = _layer({"rope": {"partial_rotary_factor": 11 / 64}})  # an odd number of dims
    assert type(layer).__name__ == "RotaryEmbedding"
    assert "cos_sin_cache" in layer._buffers
    assert "rotary_dim" in caplog.text


def test_every_class_is_replaced_or_has_a_reason(ours):
    from vllm.model_executor.custom_op import op_registry_oot

    kept = {name: kind.reason for name, kind in op_registry_oot.items() if kind.reason}
    assert sorted(kept) == [
        "DualChunkRotaryEmbedding", "FourierRotaryEmbedding", "Llama4VisionRotaryEmbedding",
    ]  # fmt: skip
    replaced = {kind for kind, _ in CASES.values()}
    assert replaced - {*op_registry_oot} == {"Phi3LongRoPEScaledRotaryEmbedding"}


def test_compiled_models_in_files_are_not_those_without_the_plugin(ours):
    assert envs.compile_factors()["VLLM_POSENC_NATIVE"]


def test_far_positions_are_exact(ours):
    """vLLM's table would have 2^30 rows there, and angles off by 60."""
    position = 2**30 + 1
    q = torch.ones(1, HEADS * 64, dtype=torch.float64)
    ours["default"](torch.tensor([position]), q)
    # The frequency of the first pair is 1. Angles are off by at most 2^30 * 2 pi * 2^-65.
    assert abs(q[0, 0].item() - (math.cos(position) - math.sin(position))) < 2**-31


@pytest.mark.parametrize("name", ["linear", "yarn", "llama3", "longrope, long", "longrope, short"])
def test_frequencies_are_those_of_transformers(ours, name):
    """Bit for bit: a trainer with `hf.patch` then rotates to the same bits as the server."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = {"rope_theta": 10000.0, **CASES[name][1]["rope"]}
    config = LlamaConfig(head_dim=64, max_position_embeddings=256, rope_parameters=rope)
    theirs, _ = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, torch.device("cpu"), seq_len=256)
    mine = torch.from_numpy(ours[name]._rotary.inv_freq.copy())
    assert torch.equal(mine, theirs.double())
