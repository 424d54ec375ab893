"""The factor of queries by position, `Rotary(query_scale=...)`, beside the models that have it."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
from targets import CUDA_ON_HOST, NEEDS_CUDA_ON_HOST

import posenc_native as pn
from posenc_native.checkpoints.formats import writing
from posenc_native.checkpoints.formats.reading import read
from posenc_native.core.calls.norms import Norm
from posenc_native.core.calls.rotation import Rotation
from posenc_native.engines import backend as implementations
from posenc_native.engines.plain.query_scale import checked_query_scale, of_norm

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

LENGTH = "original_max_position_embeddings"
SCALE = {"beta": 0.25, LENGTH: 16}
ROPE = pn.Rotary(64, query_scale=SCALE)
PLAIN = pn.Rotary(64)
SIZES: dict[str, Any] = {
    "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 4,
    "intermediate_size": 64, "vocab_size": 32, "max_position_embeddings": 4096,
}  # fmt: skip
PARAMETERS = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, LENGTH: 16, "beta_fast": 32.0,
    "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3,
}  # fmt: skip


def made(batch=2, tokens=40, heads=4, seed=0, dtype=np.float32):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((batch, n, tokens, 64)).astype(dtype) for n in (heads, 2)]


def copied(x):
    return x.copy() if isinstance(x, np.ndarray) else x.clone()


def expected(positions, scale=SCALE):
    """The factors by the formula of the models, in float64."""
    steps = np.floor(np.asarray(positions, np.float64) / scale[LENGTH])
    return 1.0 + scale["beta"] * np.log1p(steps)


def near(result, wanted):
    """Within a few roundings of its dtype of numbers in float64."""
    result, wanted = torch.as_tensor(result), torch.as_tensor(wanted)
    assert wanted.dtype == torch.float64
    atol = 8 * torch.finfo(result.dtype).eps * float(wanted.abs().max())
    torch.testing.assert_close(result.double(), wanted, rtol=0, atol=atol)


def in_float64(call, q, k, *rest, **options):
    """The result for q of a call in float64, as an array."""
    q, k = (np.asarray(x, np.float64) for x in (q, k))
    return call(q, k, *rest, **options)[0]


def attention_of(name: str, config: Any, layer: int) -> tuple[Any, Any]:
    """An attention of transformers and its module; dtype float64, so that nothing is rounded."""
    module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    kind = next(
        value for key, value in vars(module).items()
        if key.endswith(("TextAttention", "3Attention", "4Attention")) and "Vision" not in key
    )  # fmt: skip
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    return kind(config, layer).double(), module


def queries_of(name, config, layer, positions, monkeypatch) -> tuple[Any, dict[str, Any]]:
    """Queries as attention gets them, and outputs of the projections by name."""
    attention, module = attention_of(name, config, layer)
    seen: dict[str, Any] = {}

    def eager(self, query, key, value, *args, **options):
        seen["query"] = query.detach()
        shape = (query.shape[0], query.shape[2], query.shape[1], value.shape[-1])
        return query.new_zeros(shape), None

    monkeypatch.setattr(module, "eager_attention_forward", eager)
    for part, projection in attention.named_children():
        projection.register_forward_hook(
            lambda _, __, out, part=part: seen.__setitem__(part, out.detach())
        )
    hidden = torch.randn(2, positions.shape[-1], config.hidden_size, dtype=torch.float64)
    kinds = [value for key, value in vars(module).items() if key.endswith("RotaryEmbedding")]
    rotary = next(kind for kind in kinds if "Vision" not in kind.__name__)(config)
    tables = rotary(hidden, positions)
    attention(
        hidden_states=hidden, position_embeddings=tables, attention_mask=None,
        position_ids=positions,
    )  # fmt: skip
    return seen["query"], seen


def close(result, wanted):
    # transformers' angles, cosines and factors are float32.
    torch.testing.assert_close(torch.as_tensor(result), wanted, rtol=1e-5, atol=2e-5)


POSITIONS = torch.stack([torch.arange(13, 37), torch.arange(100, 124)])


def test_ministral_3(monkeypatch):
    config = transformers.Ministral3Config(**SIZES, head_dim=16, rope_parameters=dict(PARAMETERS))
    query, seen = queries_of("ministral3", config, 0, POSITIONS, monkeypatch)
    rope = pn.Rotary.from_config(config, layout="bshd")
    q = seen["q_proj"].unflatten(-1, (4, 16))
    k = seen["k_proj"].unflatten(-1, (2, 16))
    close(rope(q, k, POSITIONS)[0].transpose(1, 2), query)
    plain = pn.Rotary(**{**rope._arguments(), "query_scale": None})
    assert (plain(q, k, POSITIONS)[1] == rope(q, k, POSITIONS)[1]).all()


def test_models_that_overlook_the_parameter():
    config = {"model_type": "llama", **SIZES, "head_dim": 16, "rope_parameters": PARAMETERS}
    assert pn.Rotary.from_config(config).query_scale is None


def test_mistral_4(monkeypatch):
    """The dims that do not rotate are scaled, too: `append_latent` does both."""
    config = transformers.Mistral4Config(
        **SIZES, qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=16, kv_lora_rank=24,
        q_lora_rank=None, rope_parameters=dict(PARAMETERS),
    )  # fmt: skip
    query, seen = queries_of("mistral4", config, 0, POSITIONS, monkeypatch)
    rope = pn.Rotary.from_config(config, layout="bshd")
    assert rope.head_dim == 16
    q = seen["q_proj"].unflatten(-1, (4, 32))
    rows = seen["kv_a_proj_with_mqa"]
    cache = torch.zeros(2, 24, 40, dtype=torch.float64)
    result = rope.append_latent(
        q, rows[..., 24:], rows[..., :24], POSITIONS, cache, torch.arange(24)
    )
    wanted = query.transpose(1, 2)
    close(result[..., :16], wanted[..., :16])
    # transformers writes rotated dims as even ones, then odd ones.
    close(torch.cat([result[..., 16::2], result[..., 17::2]], -1), wanted[..., 16:])


def test_llama_4_without_rotation(monkeypatch):
    config = transformers.Llama4TextConfig(
        **SIZES, head_dim=16, floor_scale=16, attn_scale=0.3, no_rope_layers=[1, 1, 1, 0],
        use_qk_norm=False,
    )  # fmt: skip
    positions = torch.arange(40)[None]  # which its code counts from 0
    query, seen = queries_of("llama4", config, 3, positions, monkeypatch)
    q = seen["q_proj"].unflatten(-1, (4, 16)).transpose(1, 2)
    scale = {"beta": 0.3, LENGTH: 16, "shift": 1}
    close(q * pn.Rotary(16, query_scale=scale).query_factors(positions[0])[:, None], query)
    assert "the factors" not in str(pn.explain({"model_type": "llama", **SIZES}))
    text = " ".join(str(pn.explain(config)).split())
    assert "1 + 0.3 * ln(1 + floor((position + 1) / 16))" in text


def test_a_patched_model_scales_once():
    config = transformers.Ministral3Config(**SIZES, head_dim=16, rope_parameters=dict(PARAMETERS))
    torch.manual_seed(0)
    model = transformers.Ministral3ForCausalLM(config).eval()
    ids = torch.arange(30)[None] % 32
    with torch.no_grad():
        before = model(ids).logits
        with pn.hf.patch(model):
            after = model(ids).logits
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("convert", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])
@pytest.mark.parametrize("name", ["counted", "from 30", "s", "1s", "bs", "float"])
def test_calls(convert, name):
    q, k = map(convert, made())
    numbers = {
        "counted": np.arange(40), "from 30": np.arange(30, 70), "s": np.arange(40) * 3,
        "1s": np.arange(40)[None], "bs": np.stack([np.arange(40), np.arange(7, 47)]),
        "float": np.arange(40) + 0.5,
    }[name]  # fmt: skip
    positions: Any = {"counted": None, "from 30": 30}.get(name, 0)
    if positions == 0:
        positions = convert(numbers)
    factors = expected(numbers)
    factors = factors[:, None, :, None] if factors.ndim == 2 else factors[:, None]
    wanted_q = in_float64(PLAIN, q, k, numbers) * factors
    wanted_k = PLAIN(q, k, positions)[1]
    for call in (
        lambda: ROPE(q, k, positions),
        lambda: pn.apply_rotary_qk(q, k, positions, ROPE),
        lambda: ROPE.bind(q, k)(q, k, positions if positions is not None else 0),
        lambda: (ROPE(q, None, positions)[0], ROPE(None, k, positions)[1]),
        lambda: ROPE(copied(q), copied(k), positions, inplace=True),
    ):
        result_q, result_k = call()
        near(result_q, wanted_q)
        assert (result_k == wanted_k).all()
    assert (ROPE.apply(q, positions) == PLAIN.apply(q, positions)).all()


@pytest.mark.parametrize("layout", ["bhsd", "bshd", "sbhd", "sbghd", "thd", "hsd"])
def test_layouts(layout):
    sizes = {"b": 2, "s": 40, "t": 40, "h": 3, "g": 2, "d": 64}
    q = np.random.default_rng(0).standard_normal([sizes[a] for a in layout]).astype(np.float32)
    positions = np.arange(80).reshape(2, 40) if "b" in layout else np.arange(40)
    rotated = in_float64(PLAIN, q, q, positions, layout=layout)
    batch, token = layout.find("b"), max(layout.find("s"), layout.find("t"))
    shape = [40 if i == token else 2 if i == batch else 1 for i in range(len(layout))]
    factors = expected(positions.T if batch > token else positions)
    near(ROPE(q, q, positions, layout=layout)[0], rotated * factors.reshape(shape))
    # Counted positions, of which the first ones have the factor 1.
    rotated = in_float64(PLAIN, q, q, 5, layout=layout)
    shape = [40 if i == token else 1 for i in range(len(layout))]
    factors = expected(np.arange(5, 45)).reshape(shape)
    near(ROPE(q, q, 5, layout=layout)[0], rotated * factors)


def test_norm_and_append_and_pairs(backend):
    q, k = made()
    weight = np.linspace(0.5, 2, 64, dtype=np.float32)
    factors = expected(np.arange(9, 49))[:, None]
    for over, first in (("head", True), ("head", False), ("token", True), ("token", False)):
        options: Any = {"norm_over": over, "norm_first": first, "weight_offset": 0.5}
        options["q_weight"] = weight if over == "head" else np.tile(weight, 4)
        normed = in_float64(PLAIN.norm, q, k, 9, **options) * factors
        near(ROPE.norm(q, k, 9, **options)[0], normed)
        assert (ROPE.norm(q, k, 9, **options)[1] == PLAIN.norm(q, k, 9, **options)[1]).all()
    caches = np.zeros((4, 2, 2, 64, 64), np.float32)
    slots = np.arange(40)
    out = np.empty_like(q)
    result = ROPE.append(q, k, k.copy(), 9, caches[0], caches[1], slots, out=out)
    PLAIN.append(q, k, k.copy(), 9, caches[2], caches[3], slots)
    assert result is out
    near(out, in_float64(PLAIN, q, k, 9) * factors)
    assert (caches[:2] == caches[2:]).all()
    # Of a pair of positions those of q count.
    own = np.arange(40), np.arange(1000, 1040)
    near(ROPE(q, k, own)[0], in_float64(PLAIN, q, k, own) * expected(own[0])[:, None])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dims", [64, 68])  # whole vectors, and others
@pytest.mark.parametrize("call", ["rotation", "norm", "append"])
def test_queries_are_rounded_once(dtype, dims, call):
    """Bits: in one pass, and so those of float32 rounded."""
    rope = pn.Rotary(dims, query_scale=SCALE)
    torch.manual_seed(0)
    q, k = torch.randn(2, 4, 40, dims).to(dtype), torch.randn(2, 2, 40, dims).to(dtype)

    def run(q, k):
        if call == "rotation":
            return rope(q, k)[0]
        if call == "norm":
            return rope.norm(q, k, q_weight=torch.linspace(0.5, 2, dims))[0]
        cache = torch.zeros(2, 2, 2, 40, dims, dtype=q.dtype)
        return rope.append(q, k, k.clone(), None, *cache, torch.arange(40))

    assert torch.equal(run(q, k), run(q.float(), k.float()).to(dtype))
    if dtype == torch.float16 and call == "rotation":
        assert (rope(q.numpy(), k.numpy())[0] == run(q, k).numpy()).all()


@pytest.mark.parametrize("kind", ["llama4", "logn"])
@pytest.mark.parametrize(("dims", "turned"), [(64, 64), (128, 64), (10, 6)])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_kernels(target, kind, dims, turned, dtype):
    """Every target, and the kernels of CUDA: heads of whole vectors, of warps, and others."""
    scale = {"type": "logn", LENGTH: 16} if kind == "logn" else SCALE
    rope, plain = (pn.Rotary(dims, rotary_dim=turned, query_scale=s) for s in (scale, None))
    rng = np.random.default_rng(0)
    q, k = (rng.standard_normal((2, 40, heads, dims)).astype(dtype) for heads in (4, 2))
    positions = np.stack([np.arange(5, 45), np.arange(100, 140)])
    factors = rope.query_factors(positions, dtype=np.float64)[:, :, None, None]
    for name, options in (
        ("__call__", {}), ("norm", {}), ("norm", {"norm_first": False, "norm_over": "token"}),
    ):  # fmt: skip
        results = [getattr(r, name)(q, k, positions, layout="bshd", **options)
                   for r in (rope, plain)]  # fmt: skip
        wanted = in_float64(getattr(plain, name), q, k, positions, layout="bshd", **options)
        near(results[0][0], wanted * factors)
        assert (results[0][1] == results[1][1]).all()
        # As views whose heads are apart in memory.
        turned_q, turned_k = (np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k))
        other = getattr(rope, name)(turned_q, turned_k, positions, **options)
        assert (other[0] == results[0][0].swapaxes(1, 2)).all()


@NEEDS_CUDA_ON_HOST
@pytest.mark.parametrize("dims", [64, 10])
@pytest.mark.parametrize("first", [True, False])
def test_gradients_of_kernels(native, dims, first):
    """The same bits from CUDA's kernels; sums of weights are rounded elsewhere."""
    scaled = of_norm(checked_query_scale("Rotary", SCALE))
    norm = Norm(np.linspace(0.5, 2, dims), None, norm_first=first, **scaled)
    tensors = [np.random.default_rng(i).standard_normal((2, 40, 3, dims)) for i in range(4)]
    rotation = Rotation(np.arange(40) + 9, 10.0 ** -np.arange(dims // 2), "bshd")
    ours, theirs = (
        module.norm_rotary_backward(*tensors, *rotation, "float32", *norm)
        for module in (CUDA_ON_HOST, implementations.native)
    )
    for a, b in zip(ours[:2], theirs[:2], strict=True):
        assert (a == b).all()
    np.testing.assert_allclose(ours[2], theirs[2], rtol=1e-12, atol=1e-12)


def test_gradients_and_compile():
    q, k = (torch.from_numpy(x).double().requires_grad_() for x in made(1, 20, 2))
    few = q[..., :9, :8], k[..., :9, :8]
    for rope in (pn.Rotary(8, query_scale=SCALE), pn.Rotary(6, query_scale=SCALE)):
        q8, k8 = (x[..., : rope.head_dim].detach().requires_grad_() for x in few)
        weight = torch.linspace(0.5, 2, rope.head_dim, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda q, k, rope=rope: rope(q, k, 10), (q8, k8))
        for first in (True, False):
            assert torch.autograd.gradcheck(
                lambda q, k, w, rope=rope, first=first: rope.norm(
                    q, k, 10, q_weight=w, norm_first=first
                ),
                (q8, k8, weight),
            )
    # Whole vectors, and a small call that autograd records at the door.
    for dims in (64, 20):
        rope = pn.Rotary(dims, query_scale=SCALE)
        wide = [torch.randn(1, 2, 20, dims).double().requires_grad_() for _ in range(2)]
        weight = torch.randn(dims).double().requires_grad_()
        factors = torch.from_numpy(expected(np.arange(10, 30)))[:, None]
        plain = pn.Rotary(dims)
        for call, other in (
            (lambda *x, r=rope: r(*x, 10), lambda *x, r=plain: r(*x, 10)),
            (lambda *x, r=rope, w=weight: r.norm(*x, 10, q_weight=w),
             lambda *x, r=plain, w=weight: r.norm(*x, 10, q_weight=w)),
        ):  # fmt: skip
            scaled, (far_q, far_k) = call(*wide), other(*wide)
            g = [torch.randn_like(x) for x in wide]
            asked = (*wide, weight)
            ours = torch.autograd.grad(scaled, asked, g, allow_unused=True)
            wanted = torch.autograd.grad((far_q * factors, far_k), asked, g, allow_unused=True)
            for a, b in zip(ours, wanted, strict=True):
                assert (a is None) == (b is None)
                if a is not None:
                    torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)
    # In place, where a gradient goes through: a product after the call.
    leaf = torch.from_numpy(made()[0]).double().requires_grad_()
    turned = ROPE(leaf * 1, leaf.detach().clone(), 10, inplace=True)[0]
    grad = torch.randn_like(turned)
    (wanted,) = torch.autograd.grad(ROPE(leaf, leaf.detach(), 10)[0], leaf, grad)
    torch.testing.assert_close(torch.autograd.grad(turned, leaf, grad)[0], wanted)
    q, k = (torch.from_numpy(x) for x in made())
    compiled = torch.compile(lambda q, k, p: ROPE(q, k, p), fullgraph=True, backend="aot_eager")
    positions = torch.arange(5, 45)
    for ours, wanted in zip(compiled(q, k, positions), ROPE(q, k, positions), strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-6, atol=1e-6)
    batched = torch.func.vmap(lambda q, k: ROPE(q, k, 30))(q[None], k[None])
    near(batched[0][0], in_float64(PLAIN, q, k, 30) * expected(np.arange(30, 70))[:, None])


@pytest.mark.parametrize("library", [np, torch], ids=["numpy", "torch"])
def test_queries_alone(library):
    """Also into memory that is given, where a gradient of q or k would count."""
    q = library.asarray(made()[0])
    expected, none = pn.apply_rotary_qk(q, None, 11, ROPE)
    assert none is None
    out = library.empty_like(q)
    assert pn.apply_rotary_qk(q, None, 11, ROPE, out=(out, None))[0] is out
    pn.apply_rotary_qk(q, None, 11, ROPE, inplace=True)
    factors = 1 + 0.25 * np.log1p(np.floor((np.arange(40) + 11) / 16))[:, None]
    plain = np.asarray(pn.apply_rotary(library.asarray(made()[0]), 11, PLAIN)) * factors
    head = library.asarray(made()[0][:, 0])
    alone, none = pn.apply_rotary_qk(head, None, 11, ROPE, layout="bsd")
    np.testing.assert_allclose(np.asarray(alone), plain[:, 0], rtol=0, atol=4e-6)
    for result in (expected, out, q):
        np.testing.assert_allclose(np.asarray(result), plain, rtol=0, atol=4e-6)


def test_rows_and_modules_and_copies():
    import pickle

    q, k = map(torch.from_numpy, made())
    rows = pn.Rotary.rows([ROPE, pn.Rotary(64, base=5e5, query_scale=SCALE)])
    factors = expected(np.arange(20, 60))[:, None]
    near(rows(q, k, 20)[0][:1], in_float64(PLAIN, q[:1], k[:1], 20) * factors)
    with pytest.raises(ValueError, match=r"ropes\[1\]: expected query_scale = \{"):
        pn.Rotary.rows([ROPE, PLAIN])
    module = pn.nn.RotaryEmbedding(64, query_scale=SCALE)
    assert torch.equal(module(q, k, 20)[0], ROPE(q, k, 20)[0])
    assert module.rope == ROPE != PLAIN
    assert pickle.loads(pickle.dumps(ROPE)) == ROPE == eval(repr(ROPE), {"Rotary": pn.Rotary})
    assert ROPE.with_layout("bshd").query_scale == ROPE.query_scale
    assert (
        pn.Rotary.preset("mistral-4").query_scale
        == pn.Rotary.from_config(transformers.Mistral4Config()).query_scale
    )


def test_logn():
    scale = {"type": "logn", LENGTH: 2048}
    positions = np.array([0, 2047, 2048, 10_000])
    factors = pn.Rotary(64, query_scale=scale).query_factors(positions, dtype=np.float64)
    # modeling_qwen.py of Qwen-7B: log(i) / log(seq_length) of i = position + 1, above seq_length.
    wanted = [1.0, 1.0, np.log(2049) / np.log(2048), np.log(10_001) / np.log(2048)]
    np.testing.assert_allclose(factors, wanted, rtol=1e-15)
    q, k = made()
    far = pn.Rotary(64, query_scale=scale)(q, k, 10_000)[0]
    factors = pn.Rotary(64, query_scale=scale).query_factors(np.arange(10_000, 10_040))
    near(far, in_float64(PLAIN, q, k, 10_000) * factors.astype(np.float64)[:, None])


def test_factors_without_a_scale():
    assert (PLAIN.query_factors(torch.arange(9)) == torch.ones(9)).all()


def test_negative_positions_are_not_scaled():
    assert (ROPE.query_factors(np.array([-40, -1])) == 1).all()


@pytest.mark.parametrize(
    ("scale", "error", "text"),
    [
        (0.1, TypeError, "query_scale: expected None or a mapping"),
        ({"beta": 0.1}, ValueError, f"query_scale['{LENGTH}']: expected a number, got none"),
        ({"beta": 0.1, LENGTH: 0}, ValueError, "expected a number > 0"),
        ({"beta": 0.1, LENGTH: 8, "floor": 1}, ValueError, "expected the keys type, beta"),
        ({"type": "ssmax"}, ValueError, "query_scale['type']"),
        ({"type": "logn", LENGTH: 1}, ValueError, "expected a number > 1"),
        ({"beta": float("nan"), LENGTH: 8}, ValueError, "query_scale['beta']"),
    ],
)
def test_errors(scale, error, text):
    with pytest.raises(error) as raised:
        pn.Rotary(64, query_scale=scale)
    assert text in str(raised.value)


def test_not_beside_axes():
    with pytest.raises(ValueError, match="query_scale: expected None beside an axis_map"):
        pn.Rotary(64, axis_map=[0, 1] * 16, query_scale=SCALE)


@pytest.mark.parametrize(
    ("scale", "text"),
    [
        ({"type": "logn", LENGTH: 2048}, "max(1, ln(position + 1) / ln(2,048))"),
        ({"beta": 0.1, LENGTH: 9, "shift": 2}, "ln(1 + floor((position + 2) / 9))"),
    ],
)
def test_descriptions_that_no_file_has(scale, text):
    rope = pn.Rotary(64, query_scale=scale)
    assert text in " ".join(str(pn.explain(rope)).split())
    found = pn.compare(rope, PLAIN)
    assert [difference.field for difference in found.differences] == ["query_scale"]
    assert text in " ".join(str(found).split())
    lost = writing.write(read(rope, "read"), "mistral", permuted=True).lost
    assert "The factor of queries by position." in lost


def test_keys_of_8_bits_beside_scaled_queries():
    q, k = made()
    outs = np.empty_like(q), np.empty(k.shape, np.int8)
    pn.apply_rotary_qk(q, k, 10, ROPE, out=outs, k_scale=0.1)
    assert (outs[0] == ROPE(q, k, 10)[0]).all()


def test_compare_tells_it():
    config = {"model_type": "ministral3", **SIZES, "head_dim": 16, "rope_parameters": PARAMETERS}
    other = {**config, "rope_parameters": {**PARAMETERS, "llama_4_scaling_beta": 0.1}}
    found = pn.compare(config, other).differences
    assert [difference.field for difference in found] == ["query_scale"]
    assert "1 + 0.3 * ln(1 + floor(position / 16))" in str(pn.compare(config, other))


@pytest.mark.parametrize("layout", ["bhsd", "thd"])
@pytest.mark.parametrize("shape", [(), (0, 2), (3,), (2, 2, 2)])
def test_positions_of_other_shapes_are_refused(backend, layout, shape):
    """Before their factors are computed, which cannot be given the axes of q."""
    q, k = (x if layout == "bhsd" else x[0].swapaxes(0, 1) for x in made(tokens=5))
    positions = np.zeros(shape, np.int64)
    got = rf"apply_rotary_qk: positions: expected shape .*, got \[{', '.join(map(str, shape))}\]"
    for case in ((q, k, positions), tuple(map(torch.from_numpy, (q, k, positions)))):
        with pytest.raises(ValueError, match=got):
            pn.apply_rotary_qk(*case, ROPE, layout=layout)
