"""Modules of published models, made of a `Rotary`, and taken for one; the width of heads."""

from __future__ import annotations

import copy
import json
import pickle

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import posenc_native as pn  # noqa: E402
from posenc_native import nn as pnn  # noqa: E402
from posenc_native.core.calls.errors import fault_of  # noqa: E402

LLAMA = {"model_type": "llama", "head_dim": 16, "rope_theta": 5e5, "num_hidden_layers": 4}
GEMMA = ("gemma-3-27b", "sliding_attention")
NARROW = {"rope_type": "linear", "factor": 4.0}
# Its frequencies depend on seq_len.
DYNAMIC = {
    **LLAMA, "max_position_embeddings": 64, "rope_scaling": {"rope_type": "dynamic", "factor": 4.0},
}  # fmt: skip

# module: the Rotary that it is
SAME = {
    "preset": (lambda: pnn.RotaryEmbedding.preset("llama-3.1"),
               lambda: pn.Rotary.preset("llama-3.1")),
    "preset of a layer type": (
        lambda: pnn.RotaryEmbedding.preset(*GEMMA), lambda: pn.Rotary.preset(*GEMMA)
    ),
    "preset of a length": (lambda: pnn.RotaryEmbedding.preset("phi-3.5-mini", seq_len=8192),
                           lambda: pn.Rotary.preset("phi-3.5-mini", seq_len=8192)),
    "preset of several axes": (
        lambda: pnn.RotaryEmbedding.preset("qwen2-vl"), lambda: pn.Rotary.preset("qwen2-vl")
    ),
    "config": (lambda: pnn.RotaryEmbedding.from_config(LLAMA),
               lambda: pn.Rotary.from_config(LLAMA)),
    "config of a layer": (lambda: pnn.RotaryEmbedding.from_config(DYNAMIC, layer=3, seq_len=100),
                          lambda: pn.Rotary.from_config(DYNAMIC, layer=3, seq_len=100)),
    "Rotary": (lambda: pnn.RotaryEmbedding(pn.Rotary(16, inv_freq=np.arange(1, 9) / 7, scale=0.5)),
               lambda: pn.Rotary(16, inv_freq=np.arange(1, 9) / 7, scale=0.5)),
    "frequencies": (lambda: pnn.RotaryEmbedding(20, inv_freq=np.arange(10) / 7, scale=0.5),
                    lambda: pn.Rotary(20, inv_freq=np.arange(10) / 7, scale=0.5)),
    "module": (lambda: pnn.RotaryEmbedding(pnn.RotaryEmbedding(16, rotary_dim=8)),
               lambda: pn.Rotary(16, rotary_dim=8)),
    "xPos": (lambda: pnn.XPos(pn.Rotary(16, scaling=NARROW)),
             lambda: pn.Rotary(16, scaling=NARROW)),
    "xPos of a preset": (lambda: pnn.XPos.preset("llama-3.1"),
                         lambda: pn.Rotary.preset("llama-3.1")),
}  # fmt: skip
each = pytest.mark.parametrize(("make", "rope"), SAME.values(), ids=SAME)


def heads(rope: pn.Rotary) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, h, 3, rope.head_dim, generator=generator) for h in (4, 2))
    positions = torch.tensor([5, 4097, 7])
    if rope.axis_map is not None:
        positions = torch.stack([positions + axis for axis in range(rope.axis_map.max() + 1)])
    return q, k, positions


def equal(ours, theirs) -> bool:
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@each
def test_the_module_has_the_rotation(make, rope):
    assert make().rope == rope()


@each
def test_state(make, rope):
    module = make()
    given = heads(rope())
    expected = module(*given)
    assert not module.state_dict()
    others = [copy.copy(module), copy.deepcopy(module), pickle.loads(pickle.dumps(module))]
    others.append(make().to("meta").to_empty(device="cpu").to(torch.bfloat16))
    for other in others:
        assert repr(other) == repr(module)
        assert equal(other(*given), expected)


@each
def test_what_print_says_makes_one(make, rope):
    module = make()
    again = eval(repr(module), {"RotaryEmbedding": pnn.RotaryEmbedding, "XPos": pnn.XPos})
    assert again.rope == rope()
    assert repr(again) == repr(module)


def test_names_in_print():
    assert repr(pnn.RotaryEmbedding.preset("llama-3.1")) == "RotaryEmbedding.preset('llama-3.1')"
    assert repr(pnn.RotaryEmbedding.preset(*GEMMA)) == (
        "RotaryEmbedding.preset('gemma-3-27b', layer_type='sliding_attention')"
    )
    assert repr(pnn.RotaryEmbedding.from_config(LLAMA)) == "RotaryEmbedding(16, base=500000.0)"


def test_a_config_may_be_a_file(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    assert pnn.RotaryEmbedding.from_config(path).rope == pn.Rotary.from_config(LLAMA)


@pytest.mark.parametrize("name", ["preset", "preset of several axes", "frequencies"])
def test_followed_by_torch(name):
    make, rope = SAME[name]
    module, given = make(), heads(rope())
    expected = module(*given)
    torch.compiler.reset()
    compiled = torch.compile(make(), fullgraph=True, backend="eager")
    assert equal(compiled(*given), expected)
    exported = torch.export.export(make(), given).module()
    for a, b in zip(exported(*given), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)
    q, k, positions = given
    mapped = torch.func.vmap(lambda q, k: module(q, k, positions))(
        torch.stack([q, 2 * q]), torch.stack([k, k])
    )
    torch.testing.assert_close(mapped[0][0], expected[0], rtol=0, atol=1e-6)
    _, pulled = torch.func.vjp(lambda q: module(q, k, positions)[0], q)
    (gradient,) = pulled(expected[0])
    scale = rope().scale
    torch.testing.assert_close(gradient, q * scale**2, rtol=0, atol=1e-5)


# --- What takes a Rotary


@pytest.mark.parametrize(
    "module",
    [
        lambda rope: pnn.RotaryEmbedding(rope),
        lambda rope: pnn.LearnedRotaryEmbedding(
            rope.head_dim, inv_freq=rope.inv_freq, pairing=rope.pairing, scale=rope.scale
        ),
    ],
    ids=["RotaryEmbedding", "LearnedRotaryEmbedding"],
)
def test_functions_of_a_rotary_take_the_module(module):
    inv_freq = [1.0, 0.25, 0.125, 0.5**10]  # float32 numbers: a parameter has no others
    rope = pn.Rotary(8, inv_freq=inv_freq, pairing="interleaved", scale=0.5)
    made = module(rope)
    keys = rope.apply(torch.randn(1, 2, 5, 8))
    here, there = torch.arange(5), torch.arange(40, 45)
    expected = pn.rerotate(keys, here, there, rope)
    assert torch.equal(pn.rerotate(keys, here, there, made), expected)
    assert torch.equal(pn.rerotate(keys, here, there, rope, made), expected)
    assert pn.rotary.FullWidthRotary(made, made) == pn.rotary.FullWidthRotary(rope, rope)
    assert pnn.RotaryEmbedding(made).rope == rope


def test_pictures_take_the_module():
    pytest.importorskip("matplotlib")
    from matplotlib import pyplot

    rope = pn.Rotary(16, scaling=NARROW)
    module = pnn.RotaryEmbedding(rope)
    x = np.random.default_rng(0).standard_normal((6, 16))
    for draw in (
        lambda one: pn.plot.heatmap(one, 10),
        lambda one: pn.plot.waves(one, 10),
        lambda one: pn.plot.clock(one, 3),
        lambda one: pn.plot.similarity(one, 5),
        lambda one: pn.plot.frequencies(one),
        lambda one: pn.plot.frequencies(one, pnn.RotaryEmbedding(16)),
        lambda one: pn.plot.rotation(one, x=x),
    ):
        titles = []
        for one in (rope, module):
            axes = np.ravel(draw(one))
            titles.append([ax.get_title() for ax in axes])
            pyplot.close("all")
        assert titles[0] == titles[1]


X = torch.zeros(1, 2, 3, 16)


@pytest.mark.parametrize(
    ("error", "argument", "call"),
    [
        (TypeError, "rope", lambda: pn.rerotate(X, None, None, 64)),
        (TypeError, "rope", lambda: pn.rerotate(X, None, None, pnn.XPos(16))),
        (TypeError, "new_rope", lambda: pn.rerotate(X, None, None, pn.Rotary(16), pnn.ALiBi(2))),
        (TypeError, "first", lambda: pn.rotary.FullWidthRotary(64, pn.Rotary(64))),
        (ValueError, "head_dim", lambda: pnn.RotaryEmbedding(pn.Rotary(16), base=5e5)),
        (ValueError, "head_dim", lambda: pnn.RotaryEmbedding(pn.Rotary(16), axis_map=[0, 1])),
        (ValueError, "head_dim", lambda: pnn.XPos(pnn.RotaryEmbedding(16), rotary_start=2)),
        (TypeError, "head_dim", lambda: pnn.RotaryEmbedding(pnn.XPos(16))),
        (TypeError, "head_dim", lambda: pnn.RotaryEmbedding("llama-3.1")),
        (ValueError, "axis_map", lambda: pnn.XPos.preset("qwen2-vl")),
        (ValueError, "name", lambda: pnn.RotaryEmbedding.preset("lama-3.1")),
        (
            ValueError,
            "inv_freq of a Rotary",
            lambda: pn.rerotate(X, None, None, pnn.LearnedRotaryEmbedding(16, num_heads=2)),
        ),
    ],
)
def test_what_is_no_rotary(error, argument, call):
    with pytest.raises(error) as raised:
        call()
    assert fault_of(raised.value).argument == argument


# --- The width of heads


def wrong_heads(width: int, kind: str):
    if kind == "NumPy":
        return np.zeros((1, 2, 3, width), np.float32)
    return torch.zeros(1, 2, 3, width, device="meta" if kind == "meta" else "cpu")


CALLS = {
    "Rotary": ("q", lambda rope, x: rope(x, x)),
    "Rotary.apply": ("x", lambda rope, x: rope.apply(x)),
    "Rotary.bind": ("q", lambda rope, x: rope.bind(x, x)),
    "rerotate": ("keys", lambda rope, x: pn.rerotate(x, None, None, rope)),
    "FullWidthRotary": ("q", lambda rope, x: pn.rotary.FullWidthRotary(rope, rope)(x, x)),
    "FullWidthRotary.apply": ("x", lambda rope, x: pn.rotary.FullWidthRotary(rope, rope).apply(x)),
}
MODULES = {
    "RotaryEmbedding": ("q", lambda rope, x: pnn.RotaryEmbedding(rope)(x, x)),
    "XPos": ("q", lambda rope, x: pnn.XPos(rope)(x, x)),
    "LearnedRotaryEmbedding": ("q", lambda rope, x: pnn.LearnedRotaryEmbedding(16)(x, x)),
}


@pytest.mark.parametrize("kind", ["NumPy", "torch", "meta"])
@pytest.mark.parametrize("name", [*CALLS, *MODULES])
def test_heads_of_another_width(name, kind, backend):
    if kind == "NumPy" and name in MODULES:
        pytest.skip("a module is for tensors")
    argument, call = {**CALLS, **MODULES}[name]
    rope = pn.Rotary(16)
    x = wrong_heads(32, kind)
    with pytest.raises(ValueError, match="heads of head_dim = 16") as raised:
        call(rope, x)
    fault = fault_of(raised.value)
    assert fault.argument == argument
    assert "make it with head_dim=32, and rotary_dim=16 to rotate part" in fault.expected
    assert fault.got == "shape [1, 2, 3, 32]"
    with pytest.raises(ValueError, match="make it with head_dim=8"):
        call(rope, wrong_heads(8, kind))


def test_heads_of_another_width_while_torch_traces():
    torch.compiler.reset()
    compiled = torch.compile(pnn.RotaryEmbedding(16), backend="eager")
    x = wrong_heads(32, "torch")
    with pytest.raises(ValueError, match=r"q: expected heads of head_dim = 16 \(for wider heads"):
        compiled(x, x)


def test_nothing_is_written():
    rope = pn.Rotary(16)
    for x in (np.ones((1, 2, 3, 32), np.float32), torch.ones(1, 2, 3, 32)):
        y = x * 1
        with pytest.raises(ValueError, match="head_dim"):
            rope(x, y, inplace=True)
        with pytest.raises(ValueError, match="head_dim"):
            rope.apply(x, out=x)
        assert (x == 1).all()
        assert (y == 1).all()


def test_what_the_message_says_works():
    wide = torch.randn(1, 2, 3, 32)
    part = pnn.RotaryEmbedding(32, rotary_dim=16)(wide, wide)[0]
    assert torch.equal(part[..., 16:], wide[..., 16:])
    narrow = wide[..., :16].contiguous()
    assert torch.equal(part[..., :16], pnn.RotaryEmbedding(16)(narrow, narrow)[0])
    assert pnn.RotaryEmbedding(32)(wide, wide)[0].shape == wide.shape


def test_a_bound_rotation_refuses_other_heads():
    rope = pn.Rotary(16)
    q = np.ones((1, 2, 1, 16), np.float32)
    step = rope.bind(q, q.copy())
    wide = np.ones((1, 2, 1, 32), np.float32)
    with pytest.raises(ValueError, match="head_dim"):
        step(wide, wide.copy(), 7)


@pytest.mark.parametrize("kind", [np.int64, np.array, torch.tensor])
def test_lengths_of_other_libraries(kind):
    n, scaling = kind(8192), {"rope_type": "dynamic", "factor": 2.0}
    scaling["max_position_embeddings"] = 64
    config = {**LLAMA, "max_position_embeddings": 64, "rope_scaling": scaling}
    for ours, plain in (
        (
            pn.Rotary.preset("phi-3.5-mini", seq_len=n),
            pn.Rotary.preset("phi-3.5-mini", seq_len=8192),
        ),
        (pn.Rotary.from_config(config, seq_len=n), pn.Rotary.from_config(config, seq_len=8192)),
    ):
        assert ours == plain
        assert repr(ours) == repr(plain)
    ours, plain = (pn.rotary.rotary_frequencies(8, scaling=scaling, seq_len=m) for m in (n, 8192))
    np.testing.assert_array_equal(ours[0], plain[0])
    np.testing.assert_array_equal(
        pn.relative.relative_positions(kind(3), kind(3)), np.arange(-2, 3)
    )


class Old(torch.nn.Module):
    """LlamaRotaryEmbedding of transformers up to 4.31, which saved its frequencies."""

    def __init__(self, dim, base=10000.0):
        super().__init__()
        inv_freq = 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim))
        self.register_buffer("inv_freq", inv_freq)


OLD = {
    "rotary": (lambda: pnn.RotaryEmbedding(16), {}),
    "partial": (lambda: pnn.RotaryEmbedding(64, rotary_dim=16), {}),
    "base": (lambda: pnn.RotaryEmbedding(16, base=5e5), {"base": 5e5}),
    # The positions were divided, not the frequencies.
    "linear": (lambda: pnn.RotaryEmbedding(16, scaling=NARROW), {}),
    "norm": (lambda: pnn.NormRotaryEmbedding(16), {}),
    "xPos": (lambda: pnn.XPos(16), {}),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", OLD)
def test_frequencies_of_old_checkpoints_load_strictly(name, dtype):
    """The key was unexpected, although a module without buffers rotates as the checkpoint does."""
    make, options = OLD[name]
    new = torch.nn.ModuleDict({"rope": make()})
    state = torch.nn.ModuleDict({"rope": Old(16, **options)}).to(dtype).state_dict()
    assert list(state) == ["rope.inv_freq"]
    before = new.state_dict()
    new.load_state_dict({**before, **state})
    assert list(new.state_dict()) == list(before)
    assert "rope.inv_freq" not in before


def test_frequencies_of_the_models_own_module():
    """Scaled ones too, as transformers computes them in float32."""
    transformers = pytest.importorskip("transformers", reason="the models' own code")
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    common = {"head_dim": 128, "max_position_embeddings": 131072}
    kinds = [
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 8192},
        {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 8192},
        {"rope_type": "linear", "factor": 4.0},
    ]  # fmt: skip
    for kind in kinds:
        config = transformers.LlamaConfig(**common, rope_parameters={**kind, "rope_theta": 5e5})
        theirs = LlamaRotaryEmbedding(config)
        ours = pnn.RotaryEmbedding.from_config(config)
        for dtype in (torch.float32, torch.bfloat16):
            ours.load_state_dict({"inv_freq": theirs.inv_freq.to(dtype)})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("base", [5e5, 1e6, 10010.0])
def test_other_frequencies_in_a_checkpoint_are_an_error(base, dtype):
    """A module with the wrong base would rotate otherwise than the model that was trained."""
    if (base, dtype) == (10010.0, torch.bfloat16):
        return  # the cast has rounded the difference away
    state = Old(128, base).to(dtype).state_dict()
    words = (
        r"RotaryEmbedding.load_state_dict: inv_freq: expected the frequencies of this module "
        rf"\(.* at \[\d+\]\), got .*; base={base} makes the frequencies that came"
    )
    with pytest.raises(RuntimeError, match=words):
        pnn.RotaryEmbedding(128).load_state_dict(state, strict=False)
    with pytest.raises(RuntimeError, match=r"inv_freq: expected shape \[32\], got \[64\]"):
        pnn.RotaryEmbedding(64, base=base).load_state_dict(state)
    pnn.RotaryEmbedding(128, base=base).load_state_dict(state)


def test_learned_frequencies_are_parameters_as_before():
    module = pnn.LearnedRotaryEmbedding(16)
    module.load_state_dict({"inv_freq": torch.ones(8)})
    assert (module.inv_freq == 1).all()
