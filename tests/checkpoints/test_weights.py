"""Weights of queries and keys in the order of another pairing, and telling which one they have."""

from __future__ import annotations

import itertools
import math

import numpy as np
import outside
import pytest

import posenc_native as pn
from posenc_native.checkpoints import weights

try:
    import torch
except ImportError:  # the tests that need it ask for it
    torch = None
needs_torch = pytest.mark.skipif(torch is None, reason="torch")


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def published_to_hugging_face(weight, heads):
    """`permute` of transformers' convert_llama_weights_to_hf.py, written out."""
    rows, inputs = weight.shape
    by_pair = weight.reshape(heads, rows // heads // 2, 2, inputs)
    return by_pair.swapaxes(1, 2).reshape(rows, inputs)


# --- The permutation


def test_llama_as_hugging_face_converts_it():
    weight = normal(4 * 16, 24)
    half = pn.checkpoints.permute_qk(weight, 16, to="half")
    np.testing.assert_array_equal(half, published_to_hugging_face(weight, 4))
    assert not np.array_equal(half, weight)
    np.testing.assert_array_equal(pn.checkpoints.permute_qk(half, 16, to="interleaved"), weight)


def test_llama_as_gguf_has_it():
    gguf = outside.module("transformers.modeling_gguf_pytorch_utils")
    weight = normal(6 * 8, 5)
    theirs = gguf.LlamaTensorProcessor({})._reverse_permute_weights(weight, 12, 6)
    np.testing.assert_array_equal(pn.checkpoints.permute_qk(weight, 8, to="half"), theirs)


PAIRINGS = ["half", "interleaved", 4, 8]


@pytest.mark.parametrize(("source", "to"), list(itertools.product(PAIRINGS, PAIRINGS)))
@pytest.mark.parametrize(("dims", "start"), [(None, 0), (8, 0), (8, 8), (8, 3), (None, 8)])
def test_scores_are_the_same(source, to, dims, start):
    head_dim, heads, kv_heads, inputs = 16, 4, 2, 12
    hidden = normal(7, inputs, seed=9)

    def scores(pairing, q_weight, k_weight, q_bias, q_norm):
        q = (hidden @ q_weight.T + q_bias).reshape(7, heads, head_dim).swapaxes(0, 1) * q_norm
        k = (hidden @ k_weight.T).reshape(7, kv_heads, head_dim).swapaxes(0, 1)
        rope = pn.Rotary(head_dim, pairing=pairing, rotary_dim=dims or head_dim - start,
                         rotary_start=start)  # fmt: skip
        q, k = rope.apply(q, layout="hsd"), rope.apply(k, layout="hsd")
        return q @ np.repeat(k, heads // kv_heads, 0).swapaxes(-1, -2)

    parts = [normal(heads * head_dim, inputs), normal(kv_heads * head_dim, inputs, seed=1),
             normal(heads * head_dim, seed=2), normal(head_dim, seed=3)]  # fmt: skip
    options = {"rotary_dim": dims, "rotary_start": start, "source": source, "to": to}
    moved = [pn.checkpoints.permute_qk(part, head_dim, **options) for part in parts]
    expected = scores(source, *parts)
    # The same products, in float64, summed in another order; up to 1e2.
    np.testing.assert_allclose(scores(to, *moved), expected, rtol=0, atol=1e-11)
    width = dims or head_dim - start
    if source != to and {source, to} != {"half", width}:
        assert np.abs(scores(to, *parts) - expected).max() > 0.1
        back = {**options, "source": to, "to": source}
        for part, other in zip(parts, moved, strict=True):
            assert not np.array_equal(part, other)
            np.testing.assert_array_equal(pn.checkpoints.permute_qk(other, head_dim, **back), part)


def test_any_axis():
    weight = normal(12, 3, 8)  # [in, heads, head_dim], as flax has it
    by_rows = pn.checkpoints.permute_qk(weight.reshape(12, 24).T, 8, to="half")
    moved = pn.checkpoints.permute_qk(weight, 8, to="half", axis=-1)
    np.testing.assert_array_equal(moved.reshape(12, 24).T, by_rows)
    moved = pn.checkpoints.permute_qk(weight.reshape(12, 24), 8, to="half", axis=1)
    np.testing.assert_array_equal(moved.T, by_rows)


def test_heads_of_fused_projections():
    q, k, v = normal(4 * 8, 5), normal(2 * 8, 5, seed=1), normal(2 * 8, 5, seed=2)
    q_moved, k_moved = (pn.checkpoints.permute_qk(w, 8, to="interleaved") for w in (q, k))
    # Queries, keys, values.
    moved = pn.checkpoints.permute_qk(
        np.concatenate([q, k, v]), 8, to="interleaved", heads=range(6)
    )
    np.testing.assert_array_equal(moved, np.concatenate([q_moved, k_moved, v]))
    # A query, a key and a value of each head in turn, as GPT-NeoX has them.
    k, v = normal(4 * 8, 5, seed=3), normal(4 * 8, 5, seed=4)
    k_moved = pn.checkpoints.permute_qk(k, 8, to="interleaved")

    def alternating(*parts):
        return np.stack([part.reshape(4, 8, 5) for part in parts], 1).reshape(-1, 5)

    chosen = [h for h in range(12) if h % 3 < 2]
    moved = pn.checkpoints.permute_qk(alternating(q, k, v), 8, to="interleaved", heads=chosen)
    np.testing.assert_array_equal(moved, alternating(q_moved, k_moved, v))
    np.testing.assert_array_equal(pn.checkpoints.permute_qk(q, 8, to="half", heads=[]), q)


def test_a_result_has_its_own_memory():
    weight = normal(8, 2)
    moved = pn.checkpoints.permute_qk(weight, 8, source="half", to="half")
    moved[...] = 0
    assert weight.all()


@needs_torch
@pytest.mark.parametrize(
    "dtype", ["float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "float32", "float64", "int8",
              "uint8", "uint16", "uint32", "int64", "bool"],
)  # fmt: skip
def test_tensors_of_any_dtype(dtype):
    dtype = getattr(torch, dtype)
    numbers = torch.arange(64).reshape(32, 2) % 23
    tensor = numbers.to(torch.float32).to(dtype)
    array = pn.checkpoints.permute_qk(tensor.float().numpy(), 16, to="half")
    moved = pn.checkpoints.permute_qk(tensor, 16, to="half")
    assert moved.dtype == dtype
    assert torch.equal(moved.float(), torch.from_numpy(array))
    back = pn.checkpoints.permute_qk(moved, 16, to="interleaved")
    assert torch.equal(back.view(torch.uint8), tensor.view(torch.uint8))


@needs_torch
def test_lora_and_gradients():
    base, a, b = (torch.from_numpy(normal(*shape)) for shape in ((32, 6), (4, 6), (32, 4)))
    whole = pn.checkpoints.permute_qk(base + b @ a, 16, to="half")
    parts = (
        pn.checkpoints.permute_qk(base, 16, to="half")
        + pn.checkpoints.permute_qk(b, 16, to="half") @ a
    )
    assert torch.equal(whole, parts)
    base.requires_grad_()
    outer = torch.from_numpy(normal(32, 6, seed=5))
    (pn.checkpoints.permute_qk(base, 16, to="half") * outer).sum().backward()
    assert torch.equal(base.grad, pn.checkpoints.permute_qk(outer, 16, to="interleaved"))


@pytest.mark.parametrize(
    ("kind", "match", "options"),
    [
        (TypeError, "weight: expected a NumPy array or a torch tensor, got list",
         {"weight": [1.0]}),
        (ValueError, "multiple of head_dim = 8 on axis 0, got \\[12, 2\\]",
         {"weight": normal(12, 2)}),
        (ValueError, "axis: expected one of the axes", {"axis": 2}),
        (ValueError, "to: expected 'half'", {"to": "neox", "source": "half"}),
        (ValueError, "source: expected 'half'", {"source": "neox"}),
        (ValueError, "source: expected a pairing to go with to=4", {"to": 4}),
        (ValueError, "heads: expected numbers in 0 .. 1, each once, got \\[2\\]", {"heads": [2]}),
        (ValueError, "rotary_start", {"rotary_start": 6, "rotary_dim": 4}),
        (ValueError, "rotary_dim: expected an even int", {"rotary_dim": 3}),
        (TypeError, "head_dim: expected an int", {"head_dim": 8.0}),
        (ValueError, "multiple of head_dim = 0", {"head_dim": 0}),
    ],
)  # fmt: skip
def test_errors(kind, match, options):
    with pytest.raises(kind, match=match):
        pn.checkpoints.permute_qk(
            **({"weight": normal(16, 2), "head_dim": 8, "to": "half"} | options)
        )


# --- State dicts


@pytest.mark.parametrize(
    ("name", "moved"),
    [
        ("model.layers.0.self_attn.q_proj.weight", True),
        ("model.layers.10.self_attn.k_proj.bias", True),
        ("layers.3.attention.wq.weight", True),
        ("blk.0.attn_k.weight", True),
        ("blk.0.attn_q_norm.weight", True),
        ("model.layers.0.self_attn.k_norm.weight", True),
        ("base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight", True),
        ("model.layers.0.self_attn.k_proj.lora_B.default.weight", True),
        ("model.layers.0.self_attn.k_proj.base_layer.weight", True),
        ("model.layers.0.self_attn.q_proj.lora_magnitude_vector.default.weight", True),
        ("model.layers.0.self_attn.q_proj.lora_A.weight", False),
        ("model.layers.0.self_attn.v_proj.weight", False),
        ("model.layers.0.self_attn.o_proj.weight", False),
        ("layers.3.attention.wv.weight", False),
        ("model.layers.0.self_attn.kq_proj_new.weight", False),
        ("model.layers.0.self_attn.q_proj.input_scale", False),
        ("model.layers.0.mlp.up_proj.weight", False),
    ],
)
def test_names_of_entries(name, moved):
    state = {name: normal(16, 2), "wq.weight": normal(16, 2)}
    result = pn.checkpoints.permute_state_dict(state, 8, to="half")
    assert list(result) == list(state)
    assert (result[name] is state[name]) == (not moved)
    if moved:
        np.testing.assert_array_equal(
            result[name], pn.checkpoints.permute_qk(state[name], 8, to="half")
        )


def test_names_with_arguments_of_their_own():
    state = {
        "h.0.attn.qkv.weight": normal(24, 3), "h.0.attn.out.weight": normal(8, 3),
        "h.0.attn.q_norm.weight": normal(4),
    }  # fmt: skip
    names = {r"qkv\.weight$": {"heads": range(4)}, "q_norm": {}}
    result = pn.checkpoints.permute_state_dict(
        state, 4, to="interleaved", names=names, rotary_dim=4
    )
    np.testing.assert_array_equal(result["h.0.attn.qkv.weight"][16:],
                                  state["h.0.attn.qkv.weight"][16:])  # fmt: skip
    np.testing.assert_array_equal(
        result["h.0.attn.qkv.weight"][:16],
        pn.checkpoints.permute_qk(state["h.0.attn.qkv.weight"][:16], 4, to="interleaved"),
    )
    assert result["h.0.attn.out.weight"] is state["h.0.attn.out.weight"]
    assert not np.array_equal(result["h.0.attn.q_norm.weight"], state["h.0.attn.q_norm.weight"])
    # What is said for an entry wins over what is said for all; a single pair has one order.
    names = {"q_norm": {"rotary_dim": 2}}
    own = pn.checkpoints.permute_state_dict(state, 4, to="interleaved", names=names, rotary_dim=4)
    np.testing.assert_array_equal(own["h.0.attn.q_norm.weight"], state["h.0.attn.q_norm.weight"])
    only = pn.checkpoints.permute_state_dict(state, 4, to="interleaved", names=["q_norm"])
    assert only["h.0.attn.qkv.weight"] is state["h.0.attn.qkv.weight"]


def test_errors_of_state_dicts():
    with pytest.raises(ValueError, match="names: expected patterns that match"):
        pn.checkpoints.permute_state_dict({"mlp.weight": normal(8, 2)}, 4, to="half")
    with pytest.raises(
        ValueError, match=r"permute_state_dict: a\.q_proj\.weight: permute_qk: weight"
    ):
        pn.checkpoints.permute_state_dict({"a.q_proj.weight": normal(6, 2)}, 4, to="half")


# --- A model that expects one of them


@pytest.fixture
def llama(monkeypatch):
    """(model, logits of a pairing and a state): transformers' Llama, or with Cohere's rotation."""
    outside.module("transformers")
    modeling = outside.module("transformers.models.llama.modeling_llama")
    cohere = outside.module("transformers.models.cohere.modeling_cohere")
    rope = {"rope_type": "default", "rope_theta": 100.0}
    config = outside.module("transformers.models.llama.configuration_llama").LlamaConfig(
        hidden_size=48, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1,
        head_dim=16, intermediate_size=32, vocab_size=40, attention_bias=True, rope_parameters=rope,
    )  # fmt: skip
    torch.manual_seed(0)
    model = modeling.LlamaForCausalLM(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():  # small models attend to everything alike at first
            parameter.copy_(torch.randn_like(parameter) * 0.4)
    rotations = {
        "half": (modeling.apply_rotary_pos_emb, model.model.rotary_emb),
        "interleaved": (
            cohere.apply_rotary_pos_emb,
            cohere.CohereRotaryEmbedding(
                outside.module("transformers.models.cohere.configuration_cohere").CohereConfig(
                    hidden_size=48, num_attention_heads=3, rope_parameters=rope
                )
            ),
        ),
    }
    tokens = torch.arange(24).reshape(2, 12)

    @torch.no_grad()
    def logits(pairing, state):
        apply, embedding = rotations[pairing]
        monkeypatch.setattr(modeling, "apply_rotary_pos_emb", apply)
        model.model.rotary_emb = embedding
        model.load_state_dict(state)
        return model(tokens).logits

    return model, logits


@needs_torch
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_llama_runs_with_the_other_rotation_once_its_weights_are_permuted(llama):
    model, logits = llama
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    permuted = pn.checkpoints.permute_state_dict(state, 16, to="interleaved")
    changed = {name for name in state if not torch.equal(state[name], permuted[name])}
    assert changed == {
        f"model.layers.{i}.self_attn.{p}_proj.{kind}"
        for i in range(2) for p in "qk" for kind in ("weight", "bias")
    }  # fmt: skip
    reference = logits("half", state)
    # Cohere's code rotates in float32, 2^-24 of products; scores, of up to 1e2, are exponentiated.
    difference = (logits("interleaved", permuted) - reference).abs().max()
    assert difference < 1e-5 * reference.abs().max()
    assert (logits("interleaved", state) - reference).abs().max() > 1e-2 * reference.abs().max()

    evidence = pn.checkpoints.expected_pairing(lambda pairing: logits(pairing, state), reference)
    assert evidence.pairing == "half"
    assert evidence.scores["half"] == 0
    evidence = pn.checkpoints.expected_pairing(lambda pairing: logits(pairing, permuted), reference)
    assert evidence.pairing == "interleaved"
    assert evidence.scores["interleaved"] < 1e-5


def test_expected_pairing_is_none_where_nothing_is_decided():
    reference = normal(5, 5)
    near, far = reference + 0.01 * normal(5, 5, seed=1), normal(5, 5, seed=2)
    results = {"half": near, "interleaved": far}
    evidence = pn.checkpoints.expected_pairing(results.get, reference)
    assert evidence.pairing == "half"
    relative = math.sqrt(np.square(near - reference).mean() / np.square(reference).mean())
    assert evidence.scores["half"] == pytest.approx(relative)
    # Neither is right; both are, as for one token; noise that hides the difference.
    assert pn.checkpoints.expected_pairing(lambda _: far, reference).pairing is None
    assert pn.checkpoints.expected_pairing(lambda _: reference, reference).pairing is None
    results = {"half": reference * 1.01, "interleaved": reference * 1.03}
    assert pn.checkpoints.expected_pairing(results.get, reference).pairing is None
    results = {"half": near, "interleaved": far, 4: reference}
    assert (
        pn.checkpoints.expected_pairing(results.get, reference, pairings=[4, "half"]).pairing == 4
    )
    with pytest.raises(ValueError, match=r"run: expected shape \[5, 5\], got \[5, 4\]"):
        pn.checkpoints.expected_pairing(lambda _: reference[:, :4], reference)
    with pytest.raises(ValueError, match="reference: expected finite values"):
        pn.checkpoints.expected_pairing(lambda _: reference, reference * 0)
    with pytest.raises(ValueError, match="pairings: expected two or more"):
        pn.checkpoints.expected_pairing(lambda _: reference, reference, pairings=[])


# --- A guess from weights


def test_random_pairs_by_enumeration():
    def matchings(left):
        if not left:
            yield []
            return
        first, *rest = left
        for other in rest:
            for more in matchings([dim for dim in rest if dim != other]):
                yield [(first, other), *more]

    links = np.square(normal(8, 8))
    links += links.T
    np.fill_diagonal(links, 0)
    sums = [sum(links[pair] for pair in pairs) for pairs in matchings(list(range(8)))]
    assert len(sums) == 105
    mean, deviation = weights._sum_of_random_pairs(links)
    assert mean == pytest.approx(np.mean(sums))
    assert deviation == pytest.approx(np.std(sums))


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def trained(seed, steps, heads=1, head_dim=64, width=64, length=24):
    """(q_weight, k_weight) of two layers, half-split, after learning to repeat a sequence."""
    torch.manual_seed(seed)
    linear, inv_freq = torch.nn.Linear, 1e4 ** (-torch.arange(0, head_dim, 2) / head_dim)
    angles = torch.arange(length)[:, None] * inv_freq
    cos, sin = angles.cos(), angles.sin()

    def rotate(x):
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            inner = heads * head_dim
            self.q, self.k, self.v = (linear(width, inner, bias=False) for _ in range(3))
            self.o = linear(inner, width, bias=False)
            self.mlp = torch.nn.Sequential(
                torch.nn.LayerNorm(width), linear(width, 4 * width), torch.nn.GELU(),
                linear(4 * width, width),
            )  # fmt: skip
            self.norm = torch.nn.LayerNorm(width)

        def forward(self, x):
            normed = self.norm(x)
            q, k, v = (
                project(normed).unflatten(-1, (heads, head_dim)).transpose(1, 2)
                for project in (self.q, self.k, self.v)
            )
            mixed = torch.nn.functional.scaled_dot_product_attention(
                rotate(q), rotate(k), v, is_causal=True
            )
            x = x + self.o(mixed.transpose(1, 2).flatten(2))
            return x + self.mlp(x)

    model = torch.nn.Sequential(
        torch.nn.Embedding(32, width), Layer(), Layer(), torch.nn.LayerNorm(width),
        linear(width, 32),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for _ in range(steps):
        half = torch.randint(0, 32, (32, length // 2))
        tokens = torch.cat([half, half], 1)
        logits = model(tokens)[:, length // 2 : -1]
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), tokens[:, length // 2 + 1 :].flatten()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [(layer.q.weight, layer.k.weight) for layer in (model[1], model[2])]


def permuted(layers, head_dim, **options):
    return [tuple(pn.checkpoints.permute_qk(weight, head_dim, **options) for weight in layer)
            for layer in layers]  # fmt: skip


@needs_torch
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    ("seeds", "steps"), [(range(3), 60), pytest.param(range(10, 60), 150, marks=pytest.mark.slow)]
)
def test_guesses_of_trained_models(seeds, steps):
    """Right for most, in either order, and never wrong."""
    answers = []
    for seed in seeds:
        layers = trained(seed, steps)
        half = pn.checkpoints.guess_pairing(layers, 64)
        interleaved = pn.checkpoints.guess_pairing(permuted(layers, 64, to="interleaved"), 64)
        # The pairs are the same ones.
        assert interleaved.scores["interleaved"] == pytest.approx(half.scores["half"])
        assert half.pairing in ("half", None)
        assert interleaved.pairing in ("interleaved", None)
        answers += [half.pairing, interleaved.pairing]
    assert answers.count(None) <= len(answers) / 3


@needs_torch
@pytest.mark.parametrize("seed", range(20))
def test_guess_of_an_untrained_model(seed):
    layers = trained(seed, 0)
    for weights_ in (layers, permuted(layers, 64, to="interleaved")):
        assert pn.checkpoints.guess_pairing(weights_, 64).pairing is None


def test_layers_of_both_pairings_are_no_evidence():
    q = normal(3, 16, 40)
    first, second = np.split(q, 2, axis=1)
    half = np.concatenate([-second, first], 1)
    interleaved = np.stack([-q[:, 1::2], q[:, ::2]], 2)
    layers = [(q.reshape(48, 40), k.reshape(48, 40)) for k in (half, interleaved)]
    evidence = pn.checkpoints.guess_pairing(layers, 16)
    assert min(evidence.scores.values()) > 3
    assert evidence.pairing is None


def test_what_a_guess_counts():
    # Keys that are queries, turned by a quarter in each pair: the links of partners are large.
    rows = normal(3, 16, 40)
    by_pairing = {
        "half": rows.reshape(3, 2, 8, 40),
        "interleaved": rows.reshape(3, 8, 2, 40).swapaxes(1, 2),
    }
    for pairing, partners in by_pairing.items():
        turned = np.stack([-partners[:, 1], partners[:, 0]], 1)
        keys = turned if pairing == "half" else turned.swapaxes(1, 2)
        q, k = rows.reshape(48, 40), keys.reshape(48, 40)
        evidence = pn.checkpoints.guess_pairing([(q, k)], 16)
        assert evidence.pairing == pairing
        # Norms of heads and rows do not count; fewer heads of keys do the same.
        scaled = pn.checkpoints.guess_pairing(
            [(q * np.tile(np.arange(1.0, 17), 3)[:, None], k)], 16
        )
        assert scaled.scores == pytest.approx(dict(evidence.scores))
        grouped = pn.checkpoints.guess_pairing([(np.concatenate([q[:16]] * 3), k[:16])], 16)
        alone = pn.checkpoints.guess_pairing([(q[:16], k[:16])], 16)
        assert grouped.scores == pytest.approx(dict(alone.scores))
        # Neighboring heads of queries share a head of keys.
        twice = np.repeat(q.reshape(3, 16, 40), 2, axis=0).reshape(96, 40)
        shared = pn.checkpoints.guess_pairing([(twice, k)], 16)
        assert shared.scores == pytest.approx(dict(evidence.scores))
        # A slice of a head.
        wide = [np.concatenate([normal(3, 5, 40, seed=4), w.reshape(3, 16, 40),
                                normal(3, 3, 40, seed=5)], 1).reshape(72, 40)
                for w in (q, k)]  # fmt: skip
        part = pn.checkpoints.guess_pairing([wide], 24, rotary_dim=16, rotary_start=5)
        assert part.scores == pytest.approx(dict(evidence.scores))


def test_errors_of_a_guess():
    weight = normal(32, 4)
    for layer, options, match in (
        ((weight, weight), {"head_dim": 4}, "rotary_dim: expected 8 or more"),
        ((weight, weight), {"head_dim": 24}, "q_weight: expected shape"),
        ((weight, weight[:24]), {"head_dim": 8}, "k_weight: expected heads that divide"),
        ((weight, weight[:, :3]), {"head_dim": 8}, "k_weight: expected heads that divide"),
        ((weight[0], weight), {"head_dim": 8}, "q_weight: expected shape"),
    ):
        with pytest.raises(ValueError, match=match):
            pn.checkpoints.guess_pairing([layer], **options)
    assert pn.checkpoints.guess_pairing([], 8).pairing is None


def test_nothing_to_decide_by():
    weight = normal(32, 4)
    for bad in (np.nan, np.inf):
        broken = weight.copy()
        broken[3, 1] = bad
        with pytest.raises(ValueError, match="guess_pairing: q_weight: expected finite weights"):
            pn.checkpoints.guess_pairing([(broken, weight)], 8)
        with pytest.raises(ValueError, match="guess_pairing: k_weight: expected finite weights"):
            pn.checkpoints.guess_pairing([(weight, broken)], 8)
    for pairings in ([], ["half"], ["half", "half"]):
        with pytest.raises(ValueError, match="expected_pairing: pairings: expected two or more"):
            pn.checkpoints.expected_pairing(lambda _: weight, weight, pairings=pairings)
    with pytest.raises(ValueError, match=r"permute_qk: heads: .* each once, got \[1, 1\]"):
        pn.checkpoints.permute_qk(weight, 8, to="half", heads=[1, 1])
