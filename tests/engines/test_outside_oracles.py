"""What others compute: transformers, ONNX's reference implementation, torch's own recipe.

They form the angle in float32, so that it is off in proportion to the position. With u = 2^-24,
half the spacing of float32 at 1, a frequency w of float32 and a position p that float32 can hold:

    their angle     fl(p * w): off by up to u * |p| * w
    their table     sine and cosine of torch or NumPy, and their rounding:  2u more
    our table       within 1.2e-7 = 2.01 u of the truth
    a result        a * cos - b * sin: two products and a sum, rounded, on either side:
                    2 * 2u * (|a| + |b|)

    |theirs - ours| <= (u * |p| * w + 9u) * (|a| + |b|)

Where their frequencies are computed in float32 too, their relative error adds to that of the
product. The last tests turn it round: at large positions the truth, in float64, is far from
theirs and near to ours.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

import posenc_native as pn

U = 2.0**-24
NEAR = np.array([0, 1, 2, 3, 17, 100, 511, 1000, 2048, 4095])


def pairs_of(x, pairing):
    """The partners (a, b) of the last axis, each [..., P]."""
    half = x.shape[-1] // 2
    return (
        (x[..., 0::2], x[..., 1::2]) if pairing == "interleaved" else (x[..., :half], x[..., half:])
    )


def joined(a, b, pairing):
    if pairing == "interleaved":
        return np.stack([a, b], -1).reshape(*a.shape[:-1], -1)
    return np.concatenate([a, b], -1)


def tolerance(x, positions, inv_freq, pairing, frequency_error=0.0):
    """The bound above for x [..., s, d] and positions [s] or broadcasting with x[..., 0]."""
    a, b = pairs_of(np.abs(np.asarray(x, np.float64)), pairing)
    angle = np.abs(np.asarray(positions, np.float64))[..., None] * np.asarray(inv_freq, np.float64)
    bound = ((1 + frequency_error) * U * angle + 9 * U) * (a + b)
    return joined(bound, bound, pairing)


def truth(x, positions, inv_freq, pairing):
    """The rotation in float64, off by 2^-53 of the angle."""
    a, b = pairs_of(np.asarray(x, np.float64), pairing)
    angle = np.asarray(positions, np.float64)[..., None] * np.asarray(inv_freq, np.float64)
    cos, sin = np.cos(angle), np.sin(angle)
    return joined(a * cos - b * sin, b * cos + a * sin, pairing)


def assert_within(ours, theirs, bound):
    assert ours.shape == theirs.shape
    excess = np.abs(np.asarray(ours, np.float64) - np.asarray(theirs, np.float64)) - bound
    assert (excess <= 0).all(), f"beyond the bound by {excess.max()}"


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# --- transformers


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="tensors of transformers")


@pytest.fixture
def models(torch):
    """Imports a module of transformers.models."""
    pytest.importorskip("transformers", reason="the implementation of transformers is the oracle")
    import importlib

    return lambda name: importlib.import_module(f"transformers.models.{name}")


pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def rotary_of(models, name, **options):
    """(module of the model, its rotary embedding): base 5e5, heads of 64."""
    family = name.split(".")[0]
    configuration = models(f"{family}.configuration_{family}")
    modeling = models(name)
    config_class, embedding_class = {
        "llama": ("LlamaConfig", "LlamaRotaryEmbedding"),
        "cohere": ("CohereConfig", "CohereRotaryEmbedding"),
    }[family]
    config = getattr(configuration, config_class)(
        hidden_size=256, num_attention_heads=4, num_key_value_heads=2,
        rope_parameters={"rope_type": "default", "rope_theta": 5e5, **options},
    )  # fmt: skip
    return config, modeling, getattr(modeling, embedding_class)(config)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize(
    ("name", "pairing"),
    [("llama", "half"), ("qwen3", "half"), ("gemma2", "half"), ("glm", "interleaved")],
)
def test_as_written_has_the_bits_of_eager_transformers(name, pairing, dtype, models, torch):
    apply_rotary_pos_emb = models(f"{name}.modeling_{name}").apply_rotary_pos_emb
    rng = np.random.default_rng(3)
    for pairs in (32, 7, 64):
        q, k, grad = (
            torch.tensor(rng.standard_normal((2, heads, 37, 2 * pairs)) * 3).to(
                getattr(torch, dtype)
            )
            for heads in (3, 1, 3)
        )
        angles = torch.tensor(rng.uniform(-1e3, 1e3, (2, 37, pairs)))
        cos, sin = ((f(angles) * 1.2).to(q.dtype) for f in (torch.cos, torch.sin))
        q.requires_grad_()
        theirs = apply_rotary_pos_emb(q, k, torch.cat((cos, cos), -1), torch.cat((sin, sin), -1))
        tables = pn.Tables(cos, sin, compute="as_written")
        ours = pn.apply_rotary_qk(q, k, None, tables, pairing=pairing)
        for a, b in zip(ours, theirs, strict=True):
            assert torch.equal(a, b)
        gradients = [torch.autograd.grad(x, q, grad)[0] for x in (ours[0], theirs[0])]
        assert torch.equal(*gradients)
        # Tables in float32 are rounded as their model would have.
        wide = tables._replace(cos=cos.float(), sin=sin.float())
        wide = pn.apply_rotary(k, None, wide, pairing=pairing)
        if dtype != "float64":
            assert torch.equal(wide, theirs[1])
        # The policy is not a name only.
        once = pn.apply_rotary(k, None, pn.Tables(cos, sin), pairing=pairing)
        assert dtype == "float64" or not torch.equal(once, theirs[1])


@pytest.mark.parametrize(
    ("name", "pairing"),
    [("llama.modeling_llama", "half"), ("cohere.modeling_cohere", "interleaved")],
)
@pytest.mark.parametrize("batched", [False, True])
def test_transformers_rotary(name, pairing, batched, models, torch):
    config, modeling, embedding = rotary_of(models, name)
    q, k = normal(2, 4, len(NEAR), 64), normal(2, 2, len(NEAR), 64, seed=1)
    positions = np.stack([NEAR, 4095 - NEAR]) if batched else NEAR
    ids = torch.from_numpy(positions if batched else positions[None])
    tensors = torch.from_numpy(q), torch.from_numpy(k)
    cos, sin = embedding(tensors[0], ids)
    theirs = modeling.apply_rotary_pos_emb(*tensors, cos, sin)
    per_head = positions[:, None] if batched else positions

    # Their frequencies as they are, float32: the bound is that of one product.
    inv_freq = embedding.inv_freq.numpy()
    ours = pn.apply_rotary_qk(q, k, positions, inv_freq, pairing=pairing)
    for result, other, x in zip(ours, theirs, (q, k), strict=True):
        assert_within(result, other.numpy(), tolerance(x, per_head, inv_freq, pairing))

    # The exact ones, and a Rotary of the same configuration. Theirs: a power, within a unit (the
    # exponents i / 64 are exact), and a quotient.
    rope = pn.Rotary.from_config(config)
    assert rope == pn.Rotary(64, base=5e5, pairing=pairing)
    for result, other, x in zip(rope(*tensors, ids[: len(ids) if batched else 1].squeeze(0)),
                                theirs, (q, k), strict=True):  # fmt: skip
        bound = tolerance(x, per_head, inv_freq, pairing, frequency_error=3)
        assert_within(result.numpy(), other.numpy(), bound)


@pytest.mark.parametrize("rotary_dim", [64, 32])
def test_gptj_rotary(rotary_dim, models, torch):
    gptj = models("gptj.modeling_gptj")
    positions = NEAR
    x = normal(2, len(positions), 3, 64)  # [b, s, h, d]
    table = gptj.create_sinusoidal_positions(4096, rotary_dim)[torch.from_numpy(positions)]
    sin, cos = table[None].expand(2, -1, -1).chunk(2, -1)
    rotated = gptj.apply_rotary_pos_emb(torch.from_numpy(x[..., :rotary_dim]), sin, cos)
    theirs = np.concatenate([rotated.numpy(), x[..., rotary_dim:]], -1)

    rope = pn.Rotary(64, rotary_dim=rotary_dim, pairing="interleaved")
    ours = rope.apply(x, positions, layout="bshd")
    bound = tolerance(
        x[..., :rotary_dim], positions[:, None], rope.inv_freq, "interleaved", frequency_error=3
    )
    assert_within(ours[..., :rotary_dim], theirs[..., :rotary_dim], bound)
    np.testing.assert_array_equal(ours[..., rotary_dim:], x[..., rotary_dim:])


def test_qwen2_vl_rotary_of_three_axes(models, torch):
    # Positions of time, height and width drive sections of the pairs: our axis_map.
    qwen = models("qwen2_vl.modeling_qwen2_vl")
    sections = [8, 12, 12]
    config = models("qwen2_vl.configuration_qwen2_vl").Qwen2VLTextConfig(
        hidden_size=256, num_attention_heads=4, num_key_value_heads=2,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6, "mrope_section": sections},
    )  # fmt: skip
    embedding = qwen.Qwen2VLRotaryEmbedding(config)
    assert len(embedding.inv_freq) == sum(sections)
    q, k = normal(2, 4, len(NEAR), 64), normal(2, 2, len(NEAR), 64, seed=1)
    positions = np.stack([np.stack([NEAR, NEAR + 5]), np.stack([NEAR[::-1], NEAR // 3]),
                          np.stack([NEAR // 2, NEAR * 0 + 7])])  # fmt: skip
    cos, sin = embedding(torch.from_numpy(q), torch.from_numpy(positions))
    theirs = qwen.apply_rotary_pos_emb(torch.from_numpy(q), torch.from_numpy(k), cos, sin)
    axis_map = np.repeat([0, 1, 2], sections)
    inv_freq = embedding.inv_freq.numpy()
    ours = pn.apply_rotary_qk(q, k, positions, inv_freq, axis_map=axis_map)
    largest = positions.max(0)[:, None]  # [b, 1, s]: a bound for all of the axes
    for result, other, x in zip(ours, theirs, (q, k), strict=True):
        assert_within(result, other.numpy(), tolerance(x, largest, inv_freq, "half"))
    other_map = pn.apply_rotary_qk(q, k, positions, inv_freq, axis_map=axis_map[::-1].copy())
    assert np.abs(other_map[0] - theirs[0].numpy()).max() > 0.1  # the map matters


@pytest.mark.parametrize("scale", [1.0, 8.0])
def test_whisper_sinusoids(scale, models):
    # tensor2tensor's exponent, i / (d/2 - 1): our shift of 1.
    theirs = models("whisper.modeling_whisper").sinusoids(1500, 384, 10000 * scale).numpy()
    ours = pn.sinusoidal(1500, 384, base=10000 * scale, layout="sin_cos", shift=1.0)
    # exp(-t), t of up to ln(8e4) = 11.3 of two float32 roundings: off by 2 * 11.3 u of itself,
    # by a unit more (2u) of exp, and a rounding of the product.
    frequencies = pn.sinusoids.frequencies(384, 10000 * scale, shift=1.0)
    angle = np.arange(1500)[:, None] * frequencies
    bound = np.tile((2 * 11.3 + 3) * U * angle + 5 * U, 2)
    assert_within(ours, theirs, bound)


def test_m2m_sinusoids(models):
    # fairseq's table.
    embedding = models("m2m_100.modeling_m2m_100").M2M100SinusoidalPositionalEmbedding
    theirs = embedding.get_embedding(1024, 512, None).numpy()
    ours = pn.sinusoidal(1024, 512, layout="sin_cos", shift=1.0)
    angle = np.arange(1024)[:, None] * pn.sinusoids.frequencies(512, shift=1.0)
    assert_within(ours, theirs, np.tile((2 * 9.3 + 3) * U * angle + 5 * U, 2))


# --- torch's own recipe: the tutorial "Language Modeling with nn.Transformer", as many copy it


def test_the_recipe_of_the_torch_tutorial(torch):
    length, dim = 64, 512
    position = torch.arange(length).unsqueeze(1)
    div_term = torch.exp(torch.arange(0, dim, 2) * (-math.log(10000.0) / dim))
    table = torch.zeros(length, dim)
    table[:, 0::2] = torch.sin(position * div_term)
    table[:, 1::2] = torch.cos(position * div_term)
    ours = pn.sinusoidal(length, dim, device="cpu")
    # As above: exp of up to 9.3, rounded twice.
    angle = np.arange(length)[:, None] * pn.sinusoids.frequencies(dim)
    bound = np.repeat((2 * 9.3 + 3) * U * angle + 5 * U, 2, axis=-1)
    assert_within(ours.numpy(), table.numpy(), bound)
    x = torch.from_numpy(normal(2, length, dim))
    added = pn.add_sinusoidal(x, x_scale=math.sqrt(dim))
    # The product and the sum are rounded too, on either side.
    size = np.abs(x.numpy()) * math.sqrt(dim) + 1
    assert_within(added.numpy(), (x * math.sqrt(dim) + table).numpy(), bound + 4 * U * size)


# --- ONNX: RotaryEmbedding of opset 23, run by its reference implementation


def onnx_rotary(x, cos, sin, positions, interleaved, rotary_dim, num_heads=None):
    onnx = pytest.importorskip("onnx", reason="the reference implementation of ONNX is the oracle")
    from onnx import TensorProto, helper
    from onnx.reference import ReferenceEvaluator

    kinds = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.float64): TensorProto.DOUBLE}
    names = ["x", "cos", "sin"] + (["positions"] if positions is not None else [])
    attributes = {"interleaved": interleaved, "rotary_embedding_dim": rotary_dim}
    if num_heads is not None:
        attributes["num_heads"] = num_heads
    node = helper.make_node("RotaryEmbedding", names, ["y"], **attributes)
    arrays = dict(zip(names, (x, cos, sin, positions), strict=False))
    inputs = [
        helper.make_tensor_value_info(name, kinds.get(a.dtype, TensorProto.INT64), a.shape)
        for name, a in arrays.items()
    ]
    output = helper.make_tensor_value_info("y", kinds[x.dtype], x.shape)
    graph = helper.make_graph([node], "rotary", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)])
    assert onnx.defs.get_schema("RotaryEmbedding", 23) is not None
    (result,) = ReferenceEvaluator(model).run(None, arrays)
    return result


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("rotary_dim", [0, 16], ids=["whole", "partial"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_onnx_rotary_embedding(interleaved, rotary_dim, dtype):
    b, h, s, d = 2, 3, 5, 32
    width = rotary_dim or d
    pairing = "interleaved" if interleaved else "half"
    x = np.random.default_rng(0).standard_normal((b, h, s, d)).astype(dtype)
    positions = np.array([[0, 1, 2, 500, 4095], [7, 3, 4094, 1, 0]])
    inv_freq, _ = pn.rotary.rotary_frequencies(width)
    angles = np.arange(4096)[:, None] * inv_freq
    cos, sin = np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)
    theirs = onnx_rotary(x, cos, sin, positions, interleaved, rotary_dim)

    u = U if dtype == np.float32 else 2.0**-53
    a, c = pairs_of(np.abs(x[..., :width]), pairing)
    size = np.concatenate([joined(a + c, a + c, pairing), np.abs(x[..., width:])], -1)
    # From the same tables: two products and a sum are rounded on either side, 2u each.
    ours = pn.apply_rotary(x, None, pn.Tables(cos[positions], sin[positions]), pairing=pairing)
    assert_within(ours, theirs, 4 * u * size)
    np.testing.assert_array_equal(ours[..., width:], x[..., width:])
    # From positions: their tables are off by the rounding of NumPy's float64 angle, 2^-53 of up to
    # 4095, and by u; ours by 1.2e-7 or 4e-16.
    ours = pn.apply_rotary(x, positions, inv_freq, pairing=pairing)
    ours_off = 1.2e-7 if dtype == np.float32 else 4e-16 + 4095 * 2.0**-60
    assert_within(ours, theirs, (4 * u + u + 2 * 4095 * 2.0**-53 + ours_off) * size)


@pytest.mark.parametrize("interleaved", [0, 1])
def test_onnx_rotary_embedding_of_packed_heads(interleaved):
    # Three axes [b, s, h * d], and caches that are gathered already, [b, s, P].
    b, h, s, d = 2, 3, 5, 8
    x = normal(b, s, h * d)
    positions = np.array([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])
    inv_freq, _ = pn.rotary.rotary_frequencies(d)
    cos, sin = pn.rotary_tables(positions, inv_freq)
    theirs = onnx_rotary(x, cos, sin, None, interleaved, 0, num_heads=h)
    pairing = "interleaved" if interleaved else "half"
    heads = x.reshape(b, s, h, d)
    ours = pn.apply_rotary(heads, None, pn.Tables(cos, sin), layout="bshd", pairing=pairing)
    a, c = pairs_of(np.abs(heads), pairing)
    assert_within(ours, theirs.reshape(b, s, h, d), 4 * U * joined(a + c, a + c, pairing))


# --- Large positions: the truth, and who is near it


FAR = np.array([100_000, 131_071, 524_287, 1_000_000, 1_000_003])


@pytest.mark.parametrize(
    ("name", "pairing"),
    [("llama.modeling_llama", "half"), ("cohere.modeling_cohere", "interleaved")],
)
def test_far_from_0_we_are_near_the_truth_and_transformers_is_not(name, pairing, models, torch):
    _, modeling, embedding = rotary_of(models, name)
    x = normal(1, 4, len(FAR), 64)
    tensor = torch.from_numpy(x)
    cos, sin = embedding(tensor, torch.from_numpy(FAR[None]))
    theirs, _ = modeling.apply_rotary_pos_emb(tensor, tensor, cos, sin)
    # Their own float32 frequencies, exact from here on: what differs is the angle alone.
    inv_freq = embedding.inv_freq.numpy()
    exact = truth(x, FAR, inv_freq, pairing)
    ours = pn.apply_rotary(tensor, torch.from_numpy(FAR), torch.from_numpy(inv_freq),
                           pairing=pairing)  # fmt: skip
    our_error = np.abs(ours.numpy() - exact)
    their_error = np.abs(theirs.numpy() - exact)
    a, b = pairs_of(np.abs(x.astype(np.float64)), pairing)
    # 1.2e-7 and our arithmetic, 2u; the truth itself is off by 2^-53 of 1e6 radians.
    bound = joined(a + b, a + b, pairing) * (1.2e-7 + 2 * U + 1e6 * 2.0**-52)
    assert (our_error <= bound).all()
    assert their_error.max() > 1e-2
    assert their_error.max() > 10_000 * our_error.max()
    # The bound at the head of this file holds for them at any position.
    assert_within(theirs.numpy(), exact, tolerance(x, FAR, inv_freq, pairing))


def test_far_from_0_the_sinusoidal_recipe_is_off_and_ours_is_not(torch):
    position = torch.from_numpy(FAR).float().unsqueeze(1)
    div_term = torch.exp(torch.arange(0, 512, 2) * (-math.log(10000.0) / 512))
    theirs = torch.sin(position * div_term).numpy()
    ours = pn.sinusoidal(torch.from_numpy(FAR), 512)[:, 0::2].numpy()
    exact = np.sin(FAR[:, None] * pn.sinusoids.frequencies(512))
    # The truth: frequencies rounded to float64 and angles of up to 1e6, 2^-53 of them each.
    assert np.abs(ours - exact).max() <= 1.2e-7 + 1e6 * 2.0**-52
    assert np.abs(theirs - exact).max() > 1e-2
