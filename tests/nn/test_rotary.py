"""posenc_native.nn and pn.Rotary under torch: configuration that nothing casts, loses or saves."""

from __future__ import annotations

import copy
import io
import math
import pickle
import re

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch_cases  # noqa: E402
from torch_cases import FLOATS, assert_same_bits, dtype_id, random  # noqa: E402

import posenc_native as pn  # noqa: E402
from posenc_native import nn as pnn  # noqa: E402

device = torch_cases.device
kernel_device = torch_cases.kernel_device

# name: (module, f(module) -> a result to compare)
Q, K = random((2, 3, 5, 16)), random((2, 1, 5, 16), seed=1)
X = random((2, 5, 16))
FAR = torch.tensor([0, 10**6, -3, 2**31, 4097])
MODULES = {
    "SinusoidalPositionalEncoding": lambda: pnn.SinusoidalPositionalEncoding(
        16, 0.0, base=5e5, layout="cos_sin", shift=1.0, scale=0.5, x_scale="sqrt"
    ),
    "RotaryEmbedding": lambda: pnn.RotaryEmbedding(16, base=5e5, pairing="interleaved"),
    "RotaryEmbedding scaled": lambda: pnn.RotaryEmbedding(
        16, scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    ),
    "RotaryEmbedding slice": lambda: pnn.RotaryEmbedding(16, rotary_dim=8, rotary_start=4),
    "RotaryEmbedding axes": lambda: pnn.RotaryEmbedding(
        16, pairing=8, axis_map=[0, 0, 0, 0, 1, 1, 1, 1]
    ),
}
each_module = pytest.mark.parametrize("make", MODULES.values(), ids=MODULES)


def outputs(module, dtype=torch.float32, device="cpu", rounded=None):
    """What the module computes; tuples alike for all. Inputs were rounded to a dtype before."""
    points = FAR.to(device)
    x, q, k = (t.to(rounded or dtype).to(device, dtype) for t in (X, Q, K))
    if isinstance(module, pnn.SinusoidalPositionalEncoding):
        return (module(x, points),)
    if module.rope.axis_map is not None:
        points = torch.stack([points, points + 1])
    return module(q, k, points)


def assert_same_outputs(module, other, **options):
    for a, b in zip(outputs(module, **options), outputs(other, **options), strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)


# --- What they compute


@torch_cases.needs_operators
def test_sinusoidal_positional_encoding_is_add_sinusoidal(device):
    options = {"base": 5e5, "layout": "sin_cos", "shift": 1.0, "scale": 0.5}
    x, far = X.to(device), FAR.to(device)
    for positions in (None, far, torch.stack([far, far + 1])):
        encode = pnn.SinusoidalPositionalEncoding(16, 0.0, **options)
        assert_same_bits(encode(x, positions), pn.add_sinusoidal(x, positions, **options))
        encode = pnn.SinusoidalPositionalEncoding(16, 0.0, x_scale="sqrt", **options)
        expected = pn.add_sinusoidal(x, positions, x_scale=4.0, **options)
        assert_same_bits(encode(x, positions), expected)
    assert pnn.SinusoidalPositionalEncoding(8, x_scale="sqrt").x_scale == math.sqrt(8)
    assert_same_bits(
        pnn.SinusoidalPositionalEncoding(16, 0.0)(torch.zeros(5, 16)), pn.sinusoidal(5, 16)
    )


def test_rotary_embedding_is_apply_rotary_qk(device):
    rope = pnn.RotaryEmbedding(16, rotary_dim=8, rotary_start=4, pairing="interleaved", base=5e5)
    inv_freq, scale = pn.rotary.rotary_frequencies(8, 5e5)
    assert scale == 1.0
    options = {"pairing": "interleaved", "rotary_start": 4}
    inv_freq = torch.tensor(inv_freq, device=device)
    q, k, far = (t.to(device, copy=True) for t in (Q, K, FAR))
    expected = pn.apply_rotary_qk(q, k, far, inv_freq, **options)
    for result, e in zip(rope(q, k, far), expected, strict=True):
        assert_same_bits(result, e)
    results = rope(q.transpose(1, 2), k.transpose(1, 2), far, layout="bshd")
    for result, e in zip(results, expected, strict=True):
        assert_same_bits(result.transpose(1, 2), e)
    result = rope(q, k, far, inplace=True)
    assert result[0] is q
    assert result[1] is k
    assert_same_bits(q, expected[0])
    assert_same_bits(k, expected[1])


def test_rotary_embedding_has_the_attention_factor(device):
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    inv_freq, scale = pn.rotary.rotary_frequencies(16, 1e4, scaling)
    assert scale > 1.1
    rope = pnn.RotaryEmbedding(16, scaling=scaling)
    q, k, far = (t.to(device) for t in (Q, K, FAR))
    expected = pn.apply_rotary(q, far, torch.tensor(inv_freq, device=device), scale=scale)
    assert_same_bits(rope(q, k, far)[0], expected)


def test_dropout_is_for_training(device):
    encode = pnn.SinusoidalPositionalEncoding(16, 0.25)
    x = random((4, 500, 16), device=device)
    expected = pn.add_sinusoidal(x)
    assert_same_bits(encode.eval()(x), expected)
    torch.manual_seed(0)
    dropped = encode.train()(x)
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], (expected / 0.75)[kept])
    # 32 000 draws: five standard deviations of the share are 0.012.
    assert abs(kept.float().mean().item() - 0.75) < 0.0125
    assert_same_bits(pnn.SinusoidalPositionalEncoding(16, 0.0).train()(x), expected)
    assert pnn.SinusoidalPositionalEncoding(16).dropout.p == 0.1


def test_both_as_parts_of_a_model_train(device):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        pnn.SinusoidalPositionalEncoding(16, 0.1), torch.nn.Linear(16, 1)
    ).to(device)
    # To tell positions apart is what the table is for: without it all rows are alike.
    x = torch.zeros(1, 8, 16, device=device)
    target = torch.linspace(-1, 1, 8, device=device)[:, None]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    losses = []
    for _ in range(100):
        loss = (model(x)[0] - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert min(losses[-10:]) < 0.1 * losses[0]


# --- Nothing to cast, move, lose or save


@each_module
def test_there_are_no_parameters_and_no_buffers(make):
    module = make()
    assert not list(module.parameters())
    assert not list(module.buffers())
    assert not module.state_dict()


CHANGES = {
    "to(bfloat16)": lambda m: m.to(torch.bfloat16),
    "half": lambda m: m.half(),
    "double": lambda m: m.double(),
    "to(meta)": lambda m: m.to("meta"),
    "to_empty": lambda m: m.to_empty(device="cpu"),
    "to(meta), to_empty": lambda m: m.to("meta").to_empty(device="cpu"),
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "pickle": lambda m: pickle.loads(pickle.dumps(m)),
    "torch.save": lambda m: _saved(m),
    "eval, train": lambda m: m.eval().train(),
    "requires_grad_": lambda m: m.requires_grad_(),
    "share_memory": lambda m: m.share_memory(),
}


def _saved(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@each_module
def test_what_happens_to_models_changes_no_table(make, change, device):
    assert_same_outputs(change(make().to(device)), make(), device=device)


@each_module
def test_modules_built_on_the_meta_device_are_complete(make):
    with torch.device("meta"):
        module = make()
    assert_same_outputs(module, make())
    with torch.device("meta"):  # what it is called under does not matter either
        inside = outputs(module)
    for a, b in zip(inside, outputs(make()), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", FLOATS, ids=dtype_id)
@each_module
def test_the_default_dtype_does_not_matter(make, dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        module = make()
        result = outputs(module)
    finally:
        torch.set_default_dtype(before)
    for a, b in zip(result, outputs(make()), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=dtype_id)
@each_module
def test_a_half_model_rounds_once(make, dtype, device):
    # Tables of 16-bit floats would be off by another rounding, at these positions by radians.
    half = outputs(make().to(device, dtype), dtype, device)
    exact = outputs(make(), torch.float64, device, rounded=dtype)
    for a, b in zip(half, exact, strict=True):
        assert a.dtype == dtype
        # Half a unit of the result, and float32 arithmetic on numbers of up to 16.
        bound = b.abs() * torch.finfo(dtype).eps / 2 + 16 * 4 * 2.0**-24
        assert ((a.double() - b).abs() <= bound).all()


@each_module
def test_state_dicts_load_strictly(make):
    module = make()
    assert module.load_state_dict({}, strict=True).missing_keys == []
    model = torch.nn.Sequential(module, torch.nn.Linear(2, 2))
    state = model.state_dict()
    assert set(state) == {"1.weight", "1.bias"}
    other = torch.nn.Sequential(make(), torch.nn.Linear(2, 2))
    other.load_state_dict(state, strict=True)
    assert_same_outputs(other[0], module)
    with pytest.raises(RuntimeError, match="inv_freq"):
        module.load_state_dict({"inv_freq": torch.ones(4)}, strict=True)


@each_module
def test_modules_run_on_every_device(make, device):
    module = make().to(device)
    for a, b in zip(outputs(module, device=device), outputs(make()), strict=True):
        assert a.device.type == device
        torch.testing.assert_close(a.cpu(), b, rtol=0, atol=1e-5)


def test_meta_tensors_go_through_the_modules():
    q, k = pnn.RotaryEmbedding(16)(Q.to("meta"), K.to("meta"))
    assert (q.shape, k.shape, q.device.type) == (Q.shape, K.shape, "meta")
    x = pnn.SinusoidalPositionalEncoding(16)(X.to("meta", torch.bfloat16))
    assert (x.shape, x.dtype, x.device.type) == (X.shape, torch.bfloat16, "meta")


def test_repr_says_how_they_are_configured():
    encode = pnn.SinusoidalPositionalEncoding(16, 0.25, layout="sin_cos", shift=1.0)
    text = repr(encode)
    for part in ("16, dropout=0.25, layout='sin_cos', shift=1.0\n", "p=0.25"):
        assert part in text
    rope = pnn.RotaryEmbedding(16, base=5e5, pairing="interleaved")
    assert repr(rope) == "RotaryEmbedding(16, base=500000.0, pairing='interleaved')"


@pytest.mark.parametrize(
    ("error", "match", "call"),
    [
        (ValueError, "d_model|dim", lambda: pnn.SinusoidalPositionalEncoding(7)),
        (ValueError, "d_model|dim", lambda: pnn.SinusoidalPositionalEncoding(-2)),
        (TypeError, "d_model|dim", lambda: pnn.SinusoidalPositionalEncoding(8.0)),
        (ValueError, "layout", lambda: pnn.SinusoidalPositionalEncoding(8, layout="halves")),
        (ValueError, "base", lambda: pnn.SinusoidalPositionalEncoding(8, base=0.0)),
        (ValueError, "base", lambda: pnn.SinusoidalPositionalEncoding(8, base=math.inf)),
        (ValueError, "shift", lambda: pnn.SinusoidalPositionalEncoding(8, shift=4.0)),
        (TypeError, "scale", lambda: pnn.SinusoidalPositionalEncoding(8, scale="1")),
        (ValueError, "x_scale", lambda: pnn.SinusoidalPositionalEncoding(8, x_scale="square")),
        (ValueError, "x_scale", lambda: pnn.SinusoidalPositionalEncoding(8, x_scale=math.nan)),
        (TypeError, "x_scale", lambda: pnn.SinusoidalPositionalEncoding(8, x_scale=[1.0])),
        (ValueError, "[Dd]ropout", lambda: pnn.SinusoidalPositionalEncoding(8, 1.5)),
        (ValueError, "x: ", lambda: pnn.SinusoidalPositionalEncoding(8)(torch.zeros(2, 5, 6))),
        (ValueError, "x: ", lambda: pnn.SinusoidalPositionalEncoding(8)(torch.zeros(8))),
        (ValueError, "x: ", lambda: pnn.SinusoidalPositionalEncoding(8)(torch.zeros(()))),
        (TypeError, "x: ", lambda: pnn.SinusoidalPositionalEncoding(8)(torch.zeros(5, 8).int())),
        (
            ValueError,
            "positions: ",
            lambda: pnn.SinusoidalPositionalEncoding(8)(torch.zeros(2, 5, 8), torch.arange(6)),
        ),
        (ValueError, "rotary_dim|head_dim", lambda: pnn.RotaryEmbedding(7)),
        (ValueError, "rotary_dim", lambda: pnn.RotaryEmbedding(8, rotary_dim=3)),
        (ValueError, "Rotary: rotary_dim: ", lambda: pnn.RotaryEmbedding(8, rotary_dim=10)),
        (ValueError, "rotary_start", lambda: pnn.RotaryEmbedding(8, rotary_start=2)),
        (ValueError, "pairing", lambda: pnn.RotaryEmbedding(8, pairing="pairs")),
        (ValueError, "pairing", lambda: pnn.RotaryEmbedding(8, pairing=3)),
        (ValueError, "axis_map", lambda: pnn.RotaryEmbedding(8, axis_map=[0, 1])),
        (TypeError, "axis_map", lambda: pnn.RotaryEmbedding(8, axis_map=[0.0, 1.0, 0.0, 1.0])),
        (ValueError, "base", lambda: pnn.RotaryEmbedding(8, base=-1.0)),
        (ValueError, "rope_type", lambda: pnn.RotaryEmbedding(8, scaling={"rope_type": "?"})),
        (ValueError, "head_dim", lambda: pnn.RotaryEmbedding(16)(Q[..., :8], K[..., :8])),
        (ValueError, "head_dim", lambda: pnn.RotaryEmbedding(16)(Q[..., :8], K)),
        (ValueError, ": k: ", lambda: pnn.RotaryEmbedding(16)(Q, K[:, :, :3])),
        (ValueError, ": layout: ", lambda: pnn.RotaryEmbedding(16)(Q, K, layout="bhds")),
        (TypeError, ": k: ", lambda: pnn.RotaryEmbedding(16)(Q, K.double())),
        (TypeError, ": q: ", lambda: pnn.RotaryEmbedding(16)(Q.tolist(), K)),
    ],
)
def test_wrong_arguments(error, match, call):
    with pytest.raises(error, match=match):
        call()


KEYS = torch.zeros(10, 4, 3, 16)  # pages of 4 slots

# A call, and what its error tells to write.
CALLS_OF_MODULES = {
    "RotaryEmbedding: arguments: expected q, k, got no k; for one tensor write "
    "module.rope.apply(x, positions)": lambda: pnn.RotaryEmbedding(16)(Q),
    "RotaryEmbedding.bind: arguments: expected q, k, got no k; for one tensor write "
    "module.rope.apply(x, positions)": lambda: pnn.RotaryEmbedding(16).bind(Q),
    "RotaryEmbedding.norm: arguments: expected q, k, got no k; for queries alone write k=None":
        lambda: pnn.RotaryEmbedding(16).norm(Q),
    "NormRotaryEmbedding: arguments: expected q, k, got no k; for queries alone write "
    "module(q, None)": lambda: pnn.NormRotaryEmbedding(16)(Q),
    "LearnedRotaryEmbedding: arguments: expected q, k, got no k; for queries alone write "
    "module(q, None)": lambda: pnn.LearnedRotaryEmbedding(16)(Q),
    "XPos: arguments: expected q, k, got no k; the module takes both":
        lambda: pnn.XPos(16)(Q),
    "NormRotaryEmbedding.append: arguments: expected q, k, v, positions, keys, values, slots, got "
    "no slots; write slots=...": lambda: pnn.NormRotaryEmbedding(16).append(Q, Q, Q, 0, KEYS, KEYS),
    'got shape [10, 4, 3, 16]; cache_layout="pshd"?': lambda: pnn.RotaryEmbedding(16).append(
        Q, Q, Q, 0, KEYS, KEYS, torch.arange(5)),
    "got shape [5, 16]; layout=\"sd\"?": lambda: pnn.RotaryEmbedding(16)(Q[0, 0], Q[0, 0]),
    "RotaryEmbedding.apply: fn: expected one function of a module, as in torch.nn.Module.apply, "
    "got Tensor, int; for one tensor write module.rope.apply(x, positions)":
        lambda: pnn.RotaryEmbedding(16).apply(Q, 7),
    "RotaryEmbedding.apply: fn: ": lambda: pnn.RotaryEmbedding(16).apply(Q),
    "got Tensor, positions; for queries alone": lambda: pnn.LearnedRotaryEmbedding(16).apply(
        Q, positions=7),
    "RotaryEmbedding: position_ids: expected a keyword of q, k, positions, layout, inplace, "
    "contiguous, got position_ids=...; write positions=...":
        lambda: pnn.RotaryEmbedding(16)(Q, K, position_ids=torch.arange(5)),
    "NormRotaryEmbedding: offset: ": lambda: pnn.NormRotaryEmbedding(16)(Q, K, offset=7),
    "got offset=7; write positions=7": lambda: pnn.LearnedRotaryEmbedding(16)(Q, K, offset=7),
    "got k_position=...; did you mean k_positions": lambda: pnn.XPos(16)(
        Q, K, k_position=torch.arange(5)),
    "XPos.apply: arguments: expected fn, got no fn": lambda: pnn.XPos(16).apply(),
}  # fmt: skip


@pytest.mark.parametrize("told", CALLS_OF_MODULES)
def test_errors_of_modules_say_what_to_write(told):
    with pytest.raises((TypeError, ValueError), match=re.escape(told)):
        CALLS_OF_MODULES[told]()


def test_apply_of_a_module_is_that_of_torch():
    rope, visited = pnn.RotaryEmbedding(16), []
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), rope)
    assert model.apply(visited.append) is model
    assert [type(one) for one in visited] == [torch.nn.Linear, pnn.RotaryEmbedding, type(model)]
    assert rope.apply(fn=visited.append) is rope


# --- pn.Rotary


ROPES = {
    "plain": {},
    "base": {"base": 5e5},
    "slice": {"rotary_dim": 8, "rotary_start": 4},
    "interleaved": {"pairing": "interleaved"},
    "blocks": {"pairing": 8, "axis_map": [0, 0, 0, 0, 1, 1, 1, 1]},
    "linear": {"scaling": {"rope_type": "linear", "factor": 2.0}},
}
each_rope = pytest.mark.parametrize("options", ROPES.values(), ids=ROPES)


@each_rope
def test_rotary_is_immutable(options):
    rope = pn.Rotary(16, **options)
    for name in ("head_dim", "base", "pairing", "inv_freq", "scale", "anything"):
        with pytest.raises(AttributeError, match="immutable"):
            setattr(rope, name, 1)
        with pytest.raises(AttributeError, match="immutable"):
            delattr(rope, name)
    with pytest.raises(ValueError, match="read-only"):
        rope.inv_freq[0] = 2.0
    if rope.axis_map is not None:
        with pytest.raises(ValueError, match="read-only"):
            rope.axis_map[0] = 1


def test_rotary_keeps_no_hold_of_its_arguments():
    axes, scaling = np.zeros(8, np.int64), {"rope_type": "linear", "factor": 2.0}
    rope = pn.Rotary(16, axis_map=axes, scaling=scaling)
    same = pn.Rotary(16, axis_map=axes, scaling=scaling)
    axes[:] = 7
    scaling["factor"] = 9.0
    assert rope == same
    assert not rope.axis_map.any()
    assert rope.scaling["factor"] == 2.0


def test_equality_and_hash():
    ropes = {name: pn.Rotary(16, **options) for name, options in ROPES.items()}
    for name, rope in ropes.items():
        twin = pn.Rotary(16, **ROPES[name])
        assert rope == twin
        assert hash(rope) == hash(twin)
        for other, another in ropes.items():
            assert (rope == another) == (name == other)
        assert rope != pn.Rotary(32, **{k: v for k, v in ROPES[name].items() if k == "base"})
        assert rope != "a string"
    assert len(set(ropes.values())) == len(ropes)
    assert len({*ropes.values(), pn.Rotary(16)}) == len(ropes)


@each_rope
def test_rotary_from_numpy_and_torch_alike(options, kernel_device):
    rope = pn.Rotary(16, **options)
    points = FAR if rope.axis_map is None else torch.stack([FAR, FAR + 1])
    array_q, array_k, array_points = Q.numpy(), K.numpy(), points.numpy()
    given_q, given_k, points = (t.to(kernel_device) for t in (Q, K, points))
    arrays = rope(array_q, array_k, array_points)
    for tensor, array in zip(rope(given_q, given_k, points), arrays, strict=True):
        assert_same_bits(tensor, array)
    assert_same_bits(rope.apply(given_q, points), rope.apply(array_q, array_points))
    for tensor, array in zip(rope.tables(points), rope.tables(array_points), strict=True):
        assert_same_bits(tensor, array)
    # inverse undoes, in place as well
    double = given_q.double()
    back = rope.apply(rope.apply(double, points), points, inverse=True) / rope.scale**2
    torch.testing.assert_close(back, double, rtol=0, atol=1e-14)
    q, k = rope(given_q, given_k, points, inverse=True)
    in_place = rope(given_q.clone(), given_k.clone(), points, inverse=True, inplace=True)
    assert_same_bits(in_place[1], k)
    out = torch.empty_like(given_q)
    assert rope.apply(given_q, points, inverse=True, out=out) is out
    assert_same_bits(out, q)


def test_a_rotary_made_before_torch_serves_tensors(device):
    # __init__ makes tensors of the frequencies only where torch is there already.
    rope = pn.Rotary(16, base=5e5)
    object.__setattr__(rope, "_tensors", None)
    q, k = Q.to(device), K.to(device)
    assert_same_bits(rope(q, k)[0], pn.Rotary(16, base=5e5)(q, k)[0])


def test_from_config_reads_transformers_configurations():
    transformers = pytest.importorskip("transformers", reason="configurations of transformers")
    config = transformers.LlamaConfig(
        hidden_size=64, num_attention_heads=4,
        rope_parameters={
            "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
        },
    )  # fmt: skip
    rope = pn.Rotary.from_config(config)
    assert rope == pn.Rotary.from_config(config.to_dict())
    assert (rope.head_dim, rope.base, rope.pairing) == (16, 5e5, "half")
    assert rope.scaling["factor"] == 8.0
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    theirs = LlamaRotaryEmbedding(config)
    # Theirs are float32: a power, a quotient, and between the bands a dozen operations more.
    np.testing.assert_allclose(rope.inv_freq, theirs.inv_freq.numpy(), rtol=16 * 2.0**-24)
    assert rope.scale == theirs.attention_scaling


def test_rotary_of_given_frequencies() -> None:
    inv_freq = [1.0, 0.25, 0.0, 0.03]
    rope = pn.Rotary(16, inv_freq=inv_freq, pairing="interleaved", scale=1.5)
    same = pickle.loads(pickle.dumps(rope))
    assert same == rope
    assert hash(same) == hash(rope)
    assert eval(repr(rope), {"Rotary": pn.Rotary}) == rope
    assert "..., 5: 9 values" in repr(pn.Rotary(18, inv_freq=[*range(8), 5.0]))
    assert rope != pn.Rotary(16, inv_freq=inv_freq, pairing="interleaved")
    x = torch.randn(2, 5, 16)
    expected = pn.apply_rotary(
        x,
        None,
        torch.tensor(inv_freq, dtype=torch.float64),
        layout="hsd",
        pairing="interleaved",
        scale=1.5,
    )
    assert torch.equal(rope.apply(x, layout="hsd"), expected)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"inv_freq": [1.0], "base": 5.0}, ValueError),
        ({"inv_freq": [1.0], "scaling": {"rope_type": "default"}}, ValueError),
        ({"inv_freq": [[1.0]]}, ValueError),
        ({"inv_freq": [float("nan")]}, ValueError),
        ({"inv_freq": [True]}, TypeError),
        ({"inv_freq": [1.0] * 9}, ValueError),
        ({"scale": float("inf")}, ValueError),
    ],
)
def test_frequencies_that_are_none(given: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error, match=r"Rotary"):
        pn.Rotary(16, **given)
