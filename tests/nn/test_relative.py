"""posenc_native.nn, relative encodings: against the models' own code, and as parts of models."""

from __future__ import annotations

import copy
import io
import math
import pickle

import pytest

torch = pytest.importorskip("torch")

import torch_cases  # noqa: E402
from compiling import compiled  # noqa: E402
from torch_cases import FLOATS, assert_same_bits, dtype_id, random  # noqa: E402

import posenc_native as pn  # noqa: E402
from posenc_native import nn as pnn  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*should not be instantiated:DeprecationWarning",
    "ignore:.*treespec.*:FutureWarning",
)
device = torch_cases.device
B, H, L, D = 2, 4, 6, 8

BIASES = {
    "ALiBi": lambda: pnn.ALiBi(H),
    "ALiBi causal": lambda: pnn.ALiBi(H, symmetric=False),
    "ALiBi learned": lambda: pnn.ALiBi(H, learned=True),
    "Kerple": lambda: pnn.Kerple(H),
    "Kerple power": lambda: pnn.Kerple(H, kind="power"),
    "Sandwich": lambda: pnn.Sandwich(H, dim=16),
    "T5RelativeBias": lambda: pnn.T5RelativeBias(H, 16, 20),
    "T5RelativeBias decoder": lambda: pnn.T5RelativeBias(H, bidirectional=False),
    "ClippedRelativeBias": lambda: pnn.ClippedRelativeBias(H, 3, 1),
    "FIRE": lambda: pnn.FIRE(H, hidden=8, threshold=3.0),
}
WINDOWS = {
    "SwinRelativeBias": lambda: pnn.SwinRelativeBias(H, (2, 3)),
    "SwinRelativeBias class": lambda: pnn.SwinRelativeBias(H, (1, 5), class_token=True),
    "SwinV2RelativeBias": lambda: pnn.SwinV2RelativeBias(H, (3, 2), hidden=16),
}
VECTORS = {
    "RelativePositionalEncoding": lambda: pnn.RelativePositionalEncoding(H * D, H),
    "RelativePositionalEncoding causal": lambda: pnn.RelativePositionalEncoding(
        H * D, H, causal=True, layout="interleaved", base=500.0, scale=1.0
    ),
    "ShawRelativePosition": lambda: pnn.ShawRelativePosition(D, 3, 1),
    "ShawRelativePosition keys": lambda: pnn.ShawRelativePosition(D, 2, values=False, scale=0.5),
}
MODULES = BIASES | WINDOWS | VECTORS
each_bias = pytest.mark.parametrize("make", BIASES.values(), ids=BIASES)
each_module = pytest.mark.parametrize("make", MODULES.values(), ids=MODULES)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def models():
    """transformers.models; importing it is slow."""
    pytest.importorskip("transformers", reason="the models' own code")
    from transformers import models

    return models


def randomised(module):
    """With no parameter left at 0 or 1."""
    with torch.no_grad():
        for i, parameter in enumerate(module.parameters()):
            parameter.copy_(random(parameter.shape, seed=100 + i).abs() / 2)
    return module


def inputs(module, dtype=torch.float32, device="cpu"):
    if isinstance(module, (pnn.RelativePositionalEncoding, pnn.ShawRelativePosition)):
        return tuple(random((B, H, n, D), dtype, device, n) for n in (L, L + 2))
    return (random((B, H, L, L), dtype, device),)


def close(actual, expected, **options):
    torch.testing.assert_close(actual, expected, **options)


def causal(scores):
    """Keys after the query masked out; the last query is at the last key."""
    q_len, k_len = scores.shape[-2:]
    mask = torch.ones(q_len, k_len, dtype=torch.bool).triu(k_len - q_len + 1)
    return scores.masked_fill(mask, -torch.inf)


# --- The models' own code


@pytest.mark.parametrize("decoder", [False, True], ids=["encoder", "decoder"])
@pytest.mark.parametrize(("name", "prefix"), [("t5", "T5"), ("mt5", "MT5"), ("umt5", "UMT5")])
def test_t5(models, name, prefix, decoder):
    module = getattr(getattr(models, name), f"modeling_{name}")
    config = getattr(getattr(models, name), f"configuration_{name}")
    config = getattr(config, f"{prefix}Config")(d_model=8, d_kv=4, num_heads=H, is_decoder=decoder)
    attention = getattr(module, f"{prefix}Attention")(config, True, layer_idx=0)
    ours = pnn.T5RelativeBias(H, bidirectional=not decoder)
    ours.load_state_dict(attention.relative_attention_bias.state_dict())
    randomised(ours)
    attention.relative_attention_bias.load_state_dict(ours.state_dict())
    assert_same_bits(ours.bias(150, 150)[None], attention.compute_bias(150, 150))
    # Decoding with a cache, one token or some at once.
    for q_len, past in ((1, 199), (3, 40)):
        step = attention.compute_bias(q_len, past + q_len, past_seen_tokens=past)
        assert_same_bits(ours.bias(q_len, past + q_len, q_offset=past)[None], step)
        scores = random((B, H, q_len, past + q_len))
        assert_same_bits(ours(scores, q_offset=past), scores + step)


def test_t5_in_place_of_the_models_own(models):
    """A decoder with a cache, its layers handed our bias: the same hidden states."""
    config = models.t5.configuration_t5.T5Config(
        vocab_size=20, d_model=16, d_kv=4, num_heads=H, d_ff=16, num_layers=1,
        num_decoder_layers=2, dropout_rate=0.0, decoder_start_token_id=0,
    )  # fmt: skip
    model = models.t5.modeling_t5.T5Model(config).eval()
    attention = model.decoder.block[0].layer[0].SelfAttention
    ours = pnn.T5RelativeBias(H, bidirectional=False)
    ours.weight = attention.relative_attention_bias.weight
    tokens = torch.arange(14).reshape(2, 7) + 1

    def decode():
        states, cache = [], None
        for i in range(7):
            output = model(
                input_ids=tokens, decoder_input_ids=tokens[:, i : i + 1], past_key_values=cache
            )
            cache = output.past_key_values
            states.append(output.last_hidden_state)
        return torch.cat(states, 1)

    with torch.no_grad():
        expected = decode()
        attention.compute_bias = lambda q_len, k_len, device=None, past_seen_tokens=0: ours.bias(
            q_len, k_len, int(past_seen_tokens)
        )[None]
        assert_same_bits(decode(), expected)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("heads", [4, 6])
def test_bloom_and_mpt(models, heads, symmetric):
    bloom = models.bloom.modeling_bloom.BloomModel(
        models.bloom.configuration_bloom.BloomConfig(
            vocab_size=20, hidden_size=heads * D, n_layer=1, n_head=heads, attention_dropout=0.0,
            hidden_dropout=0.0, attn_implementation="eager",
        )
    ).eval()  # fmt: skip
    mpt = models.mpt.modeling_mpt.MptModel(
        models.mpt.configuration_mpt.MptConfig(
            vocab_size=20, d_model=heads * D, n_layers=1, n_heads=heads, max_seq_len=32,
            attn_implementation="eager",
        )
    ).eval()  # fmt: skip
    packed = {
        bloom: (bloom.h[0].self_attention.query_key_value, lambda p: bloom_heads(p, heads)),
        mpt: (
            mpt.blocks[0].attn.Wqkv,
            lambda p: [t.unflatten(-1, (heads, D)).transpose(1, 2) for t in p.chunk(3, -1)][:2],
        ),
    }
    ours = pnn.ALiBi(heads, symmetric=symmetric)
    for model, (linear, split) in packed.items():
        kept = []
        with torch.no_grad():
            linear.weight.normal_()
            handle = linear.register_forward_hook(lambda *args: kept.append(args[-1]))  # noqa: B023
            output = model(torch.arange(14).reshape(2, 7), output_attentions=True, use_cache=False)
            handle.remove()
            q, k = split(kept[0])
            scores = ours(q @ k.mT / math.sqrt(D))
        # Columns instead of distances: the same but for a constant a row, and its rounding.
        close(torch.softmax(causal(scores), -1), output.attentions[0], rtol=1e-5, atol=1e-6)


def bloom_heads(packed, heads):
    q, k, _ = packed.unflatten(-1, (heads, 3, D)).unbind(-2)
    return q.transpose(1, 2), k.transpose(1, 2)


@pytest.mark.parametrize("window", [(2, 3), (7, 7), (1, 4)])
def test_swin(models, window):
    theirs = randomised(models.swin.modeling_swin.SwinRelativePositionBias(H, window))
    ours = pnn.SwinRelativeBias(H, window)
    ours.load_state_dict(theirs.state_dict())
    assert_same_bits(ours.bias()[None], theirs())
    count = math.prod(window)
    # Windows of a batch of images, and as the mask of shifted windows wants them.
    scores = random((3, 2, H, count, count))
    for given in (scores.flatten(0, 1), scores):
        assert_same_bits(ours(given), given + theirs())
    weights = random((H, count, count))
    grads = [
        torch.autograd.grad((bias * weights).sum(), module.parameters())[0]
        for bias, module in ((ours.bias(), ours), (theirs(), theirs))
    ]
    close(*grads)


@pytest.mark.parametrize("window", [(3, 3), (3, 4)])
def test_beit(models, window):
    config = models.beit.configuration_beit.BeitConfig(
        image_size=tuple(16 * n for n in window), patch_size=16, hidden_size=16,
        num_attention_heads=H,
    )  # fmt: skip
    theirs = randomised(models.beit.modeling_beit.BeitRelativePositionBias(config))
    ours = pnn.SwinRelativeBias(H, window, class_token=True)
    ours.load_state_dict(theirs.state_dict())
    index = theirs.generate_relative_position_index(window)
    expected = theirs.relative_position_bias_table[index].permute(2, 0, 1)
    if window[0] == window[1]:  # others it turns round
        assert_same_bits(theirs(window)[0], expected)
    assert_same_bits(ours.bias(), expected)
    scores = random((B, *expected.shape))
    assert_same_bits(ours(scores), scores + expected)
    weights = random(expected.shape, seed=1)
    grads = [
        torch.autograd.grad((bias * weights).sum(), module.parameters())[0]
        for bias, module in ((ours.bias(), ours), (expected, theirs))
    ]
    close(*grads)


@pytest.mark.parametrize(
    ("window", "pretrained"), [((4, 4), (0, 0)), ((4, 4), (3, 3)), ((3, 5), (0, 0))]
)
def test_swin_v2(models, window, pretrained):
    config = models.swinv2.configuration_swinv2.Swinv2Config(
        qkv_bias=True, attention_probs_dropout_prob=0.0
    )
    attention = models.swinv2.modeling_swinv2.Swinv2SelfAttention
    attention = attention(config, H * D, H, list(window), list(pretrained)).eval()
    ours = pnn.SwinV2RelativeBias(H, window, pretrained_window=pretrained)
    state = attention.state_dict()
    ours.load_state_dict({name: state[name] for name in ours.state_dict()})
    x = random((B, math.prod(window), H * D))
    with torch.no_grad():
        _, expected = attention(x, output_attentions=True)
        q, k = (
            torch.nn.functional.normalize(f(x).unflatten(-1, (H, D)).transpose(1, 2), dim=-1)
            for f in (attention.query, attention.key)
        )
        scores = ours(q @ k.mT * attention.logit_scale.clamp(max=math.log(100)).exp())
    close(torch.softmax(scores, -1), expected)


def test_wav2vec2_conformer(models):
    module = models.wav2vec2_conformer.modeling_wav2vec2_conformer
    config = models.wav2vec2_conformer.configuration_wav2vec2_conformer.Wav2Vec2ConformerConfig(
        hidden_size=H * D, num_attention_heads=H, position_embeddings_type="relative",
        max_source_positions=40, attention_dropout=0.0, attn_implementation="eager",
    )  # fmt: skip
    attention = randomised(module.Wav2Vec2ConformerSelfAttention(config)).eval()
    ours = pnn.RelativePositionalEncoding(H * D, H, layout="interleaved")
    state = attention.state_dict()
    ours.load_state_dict({name: state[name] for name in ours.state_dict()})
    x = random((B, 13, H * D))
    table = module.Wav2Vec2ConformerRelPositionalEmbedding(config)(x)
    # A power and a product rounded there.
    close(ours.table(13)[None], table, rtol=0, atol=13 * 4 * 2.0**-24)

    def heads(linear):
        return linear(x).unflatten(-1, (H, D)).transpose(1, 2)

    _, expected = attention(x, relative_position_embeddings=table)
    scores = ours(heads(attention.linear_q), heads(attention.linear_k))
    probabilities = torch.softmax(scores, -1)
    close(probabilities, expected)
    weights = random(expected.shape)
    names = [name for name, _ in ours.named_parameters()]
    grads = torch.autograd.grad((probabilities * weights).sum(), list(ours.parameters()))
    wanted = torch.autograd.grad(
        (expected * weights).sum(), [attention.get_parameter(name) for name in names]
    )
    for a, e in zip(grads, wanted, strict=True):
        close(a, e, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("memory", [0, 5])
@pytest.mark.parametrize("attn_type", ["bi", "uni"])
def test_xlnet_with_a_memory(models, attn_type, memory):
    module = models.xlnet.modeling_xlnet
    config = models.xlnet.configuration_xlnet.XLNetConfig(
        vocab_size=20, d_model=H * D, n_layer=1, n_head=H, d_inner=16, attn_type=attn_type,
        dropout=0.0,
    )  # fmt: skip
    model = module.XLNetModel(config).eval()
    attention = randomised(model.layer[0].rel_attn)
    ours = pnn.RelativePositionalEncoding(H * D, H, causal=attn_type == "uni")
    ours.load_state_dict(
        {
            "linear_pos.weight": attention.r.flatten(1).T,
            "pos_bias_u": attention.r_w_bias,
            "pos_bias_v": attention.r_r_bias,
        }
    )
    q_len, k_len = 7, 7 + memory
    q, k, v = (random((n, B, H, D), seed=i) for i, n in enumerate((q_len, k_len, k_len)))
    table = model.relative_positional_encoding(q_len, k_len, bsz=B)
    rows = torch.einsum("ibh,hnd->ibnd", table, attention.r)
    mask = None
    if attn_type == "uni":
        mask = torch.ones(q_len, k_len).triu(memory + 1)[:, :, None, None].expand(-1, -1, B, H)
    _, expected = attention.rel_attn_core(q, k, v, rows, attn_mask=mask, output_attentions=True)
    scores = ours(q.permute(1, 2, 0, 3), k.permute(1, 2, 0, 3))
    scores = causal(scores) if attn_type == "uni" else scores
    close(torch.softmax(scores, -1), expected.permute(2, 3, 0, 1))


@pytest.mark.parametrize("position_buckets", [8, -1])
@pytest.mark.parametrize("kinds", [["c2p"], ["p2c"], ["c2p", "p2c"]])
def test_deberta(models, kinds, position_buckets):
    length = 40
    config = models.deberta_v2.configuration_deberta_v2.DebertaV2Config(
        hidden_size=H * D, num_attention_heads=H, relative_attention=True, pos_att_type=kinds,
        position_buckets=position_buckets, max_relative_positions=24, share_att_key=True,
    )  # fmt: skip
    attention = models.deberta_v2.modeling_deberta_v2.DisentangledSelfAttention(config).eval()
    span = attention.pos_ebd_size
    leaves = [random((B * H, length, D), seed=i, requires_grad=True) for i in range(2)]
    q, k = leaves
    embeddings = random((2 * span, H * D), seed=3, requires_grad=True)
    leaves.append(embeddings)
    expected = attention.disentangled_attention_bias(q, k, None, embeddings, 1 + len(kinds))

    options = {"bucket_size": position_buckets if position_buckets > 0 else None}
    options["max_position"] = 24
    scale = 1 / math.sqrt(D * (1 + len(kinds)))
    q, k = (t.unflatten(0, (B, H)) for t in (q, k))

    def table(linear):
        return linear(embeddings).unflatten(-1, (H, D)).permute(1, 2, 0)

    actual = None
    if "c2p" in kinds:
        index = pn.deberta_index(length, length, **options)
        actual = pn.relative_gather(q @ table(attention.key_proj), index, length, scale=scale)
    if "p2c" in kinds:
        index = pn.deberta_index(length, length, transposed=True, **options)
        by_key = pn.relative_gather(k @ table(attention.query_proj), index, length, scale=scale)
        actual = by_key.mT if actual is None else actual + by_key.mT
    actual = actual.flatten(0, 1)
    close(actual, expected)
    weights = random(expected.shape)
    for a, e in zip(
        torch.autograd.grad((actual * weights).sum(), leaves, allow_unused=True),
        torch.autograd.grad((expected * weights).sum(), leaves, allow_unused=True),
        strict=True,
    ):
        assert (a is None) == (e is None)
        if a is not None:
            close(a, e, rtol=1e-4, atol=1e-4)


# --- Definitions


@pytest.mark.parametrize(("length", "rows"), [(5, 5), (5, 9), (7, 4)])
def test_the_skew_of_the_music_transformer(length, rows):
    q, table = random((B, H, length, D)), random((rows, D), seed=1)
    # Its rows are distances -(rows - 1) .. 0; too few are padded with zeros, too many left out.
    used = torch.cat([torch.zeros(max(length - rows, 0), D), table[-length:]])
    padded = torch.nn.functional.pad(q @ used.T, (1, 0))
    expected = padded.reshape(B, H, length + 1, length)[:, :, 1:].tril()
    actual = pn.relative_gather(q @ table.T, None, length, origin=rows - 1)
    close(actual.tril(), expected)
    assert not actual.triu(1).any()


@pytest.mark.parametrize(("q_len", "k_len", "q_offset"), [(6, 6, None), (3, 8, None), (4, 6, 1)])
def test_shaw_by_its_definition(q_len, k_len, q_offset):
    shaw = randomised(pnn.ShawRelativePosition(D, 3, 2)).double()
    q, k, v = (
        random((B, H, n, D), torch.float64, seed=i, requires_grad=True)
        for i, n in enumerate((q_len, k_len, k_len))
    )
    probabilities = torch.softmax(shaw(q, k, q_offset), -1)
    actual = shaw.attend(probabilities, v, q_offset)

    first = k_len - q_len if q_offset is None else q_offset
    distances = torch.arange(k_len) - torch.arange(first, first + q_len)[:, None]
    keys, values = (t[distances.clamp(-3, 2) + 3] for t in (shaw.key_table, shaw.value_table))
    scores = torch.einsum("bhid,bhijd->bhij", q, k[:, :, None] + keys) / math.sqrt(D)
    expected = torch.einsum("bhij,bhijd->bhid", torch.softmax(scores, -1), v[:, :, None] + values)
    close(actual, expected)
    leaves = [q, k, v, *shaw.parameters()]
    weights = random(actual.shape, torch.float64)
    for a, e in zip(
        torch.autograd.grad((actual * weights).sum(), leaves),
        torch.autograd.grad((expected * weights).sum(), leaves),
        strict=True,
    ):
        close(a, e)


@pytest.mark.parametrize("is_causal", [False, True], ids=["both", "causal"])
@pytest.mark.parametrize(("q_len", "k_len", "q_offset"), [(5, 5, None), (3, 8, None), (4, 4, 2)])
def test_relative_positional_encoding_by_its_definition(q_len, k_len, q_offset, is_causal):
    module = randomised(pnn.RelativePositionalEncoding(H * D, H, causal=is_causal)).double()
    q, k = (random((B, H, n, D), torch.float64, seed=n) for n in (q_len, k_len))
    first = k_len - q_len if q_offset is None else q_offset
    distances = torch.arange(first, first + q_len)[:, None] - torch.arange(k_len)
    table = pn.sinusoidal(distances, H * D, layout="sin_cos", dtype=torch.float64)
    if is_causal:  # keys of the future have no position score
        table = table * (distances >= 0)[..., None]
    close(module.matrix(q_len, k_len, first), table)
    rows = module.linear_pos(table).unflatten(-1, (H, D))
    expected = torch.einsum("bhid,bhjd->bhij", q + module.pos_bias_u[:, None], k)
    expected = expected + torch.einsum("bhid,ijhd->bhij", q + module.pos_bias_v[:, None], rows)
    close(module(q, k, q_offset), expected / math.sqrt(D))


# --- What all of them do


@each_bias
def test_the_bias_is_what_is_added(make):
    module = randomised(make())
    scores = random((B, H, 3, 7))
    for q_offset in (0, 4, torch.tensor([4, 1]), torch.tensor(4)):
        bias = module.bias(3, 7, q_offset)
        assert bias.shape[-3:] == (H, 3, 7)
        assert_same_bits(module(scores, q_offset), scores + bias)


@each_bias
def test_offsets_of_a_batch_are_rows_of_the_full_bias(make):
    module, k_len = randomised(make()), 9
    full = module.bias(k_len, k_len)
    offsets = torch.tensor([8, 0, 5])
    steps = module.bias(1, k_len, offsets)
    for row, offset in zip(steps, offsets.tolist(), strict=True):
        close(row[:, 0], full[:, offset])
    # The first axis of the scores, whatever lies between it and the heads.
    scores = random((3, 2, H, 1, k_len))
    assert_same_bits(module(scores, offsets), scores + steps[:, None])
    assert_same_bits(module(scores[:, 0], offsets), scores[:, 0] + steps)
    for wrong in (scores[0], scores[:2], scores[0, 0]):
        with pytest.raises(ValueError, match=r": (diagonals|scores): "):
            module(wrong, offsets)


@pytest.mark.parametrize("dtype", FLOATS, ids=dtype_id)
@pytest.mark.parametrize("name", [*BIASES, *WINDOWS])
def test_the_sum_has_the_dtype_of_the_scores(name, dtype):
    module = randomised(MODULES[name]())
    (scores,) = inputs(module, dtype)
    with torch.no_grad():
        bias = module.bias(L, L) if name in BIASES else module.bias()
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        expected = (scores.to(wide) + bias.to(wide)).to(dtype)  # rounded once
        assert_same_bits(module(scores), expected)
        if name != "FIRE":
            place = scores.clone()
            assert module(place, inplace=True) is place
            assert_same_bits(place, expected)
        laid = module.bias(L, L, dtype=dtype) if name in BIASES else module.bias(dtype=dtype)
        assert laid.dtype == dtype
    bad = [scores[:, :1], scores[:, :2], scores[0, 0]]
    if name in WINDOWS:
        bad += [scores[..., :1], scores[..., :1, :]]
    for given in bad:
        with pytest.raises(ValueError, match=r"^\w+: (scores|diagonals): expected .*, got "):
            module(given)


@each_module
def test_the_state_is_the_parameters(make):
    module = make()
    assert not list(module.buffers())
    assert set(module.state_dict()) == {name for name, _ in module.named_parameters()}
    other = randomised(make())
    other.load_state_dict(module.state_dict())
    assert_same_bits(other(*inputs(other)), module(*inputs(module)))


@each_module
def test_gradients_reach_every_parameter(make, device):
    module = randomised(make()).to(device)
    given = [t.requires_grad_() for t in inputs(module, device=device)]
    result = module(*given)
    if isinstance(module, pnn.ShawRelativePosition):
        result = module.attend(torch.softmax(result, -1), given[1])
    (result**2).sum().backward()
    for tensor in (*given, *module.parameters()):
        assert tensor.grad.dtype == tensor.dtype
        assert tensor.grad.any()
        assert tensor.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=dtype_id)
@each_module
def test_in_another_dtype(make, dtype):
    module = randomised(make())
    exact = copy.deepcopy(module).to(dtype).double()  # of the rounded parameters
    expected = exact(*(t.double() for t in inputs(module, dtype)))
    module = module.to(dtype)
    result = module(*inputs(module, dtype))
    assert result.dtype == dtype
    # Sums of H * D = 32 products at most, of numbers around 1.
    tolerance = 64 * torch.finfo(dtype).eps if dtype != torch.float64 else 1e-6
    close(result.double(), expected, rtol=tolerance, atol=tolerance)


CHANGES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda m: pickle.loads(pickle.dumps(m)),
    "torch.save": lambda m: saved(m),
    "eval, train": lambda m: m.eval().train(),
    "double, float": lambda m: m.double().float(),
    "share_memory": lambda m: m.share_memory(),
}


def saved(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@each_module
def test_what_happens_to_models_changes_nothing(make, change):
    module = make()
    given = inputs(module)
    expected = module(*given)
    assert_same_bits(change(module)(*given), expected)


@each_module
def test_on_the_meta_device(make):
    expected = make()(*inputs(make()))
    module = make().to("meta")
    result = module(*(t.to("meta") for t in inputs(module)))
    assert (result.shape, result.dtype, result.device.type) == (
        expected.shape, expected.dtype, "meta",
    )  # fmt: skip
    with torch.device("meta"):
        built = make()
    state = {name: t.clone() for name, t in make().state_dict().items()}
    built.load_state_dict(state, assign=True)
    other = make()
    other.load_state_dict(state)
    assert_same_bits(built(*inputs(built)), other(*inputs(other)))


@each_module
def test_repr_is_the_call_that_makes_it(make):
    module = make()
    text = f"{type(module).__name__}({module.extra_repr()})"
    again = eval(text, vars(pnn))
    assert again.extra_repr() == module.extra_repr()
    assert {n: p.shape for n, p in again.named_parameters()} == {
        n: p.shape for n, p in module.named_parameters()
    }
    again.load_state_dict(module.state_dict())
    close(again(*inputs(module)), module(*inputs(module)))


@torch_cases.needs_operators
@pytest.mark.parametrize("name", [name for name in MODULES if " " not in name])
def test_forward_compiles(name):
    torch._dynamo.reset()
    module = randomised(MODULES[name]())
    fast = compiled(module)
    given = inputs(module)
    expected = module(*given)
    close(fast(*given), expected, rtol=0, atol=0)
    if parameters := list(module.parameters()):
        used = [p for p in parameters if p is not getattr(module, "value_table", None)]
        grads = [torch.autograd.grad((f(*given) ** 2).sum(), used) for f in (fast, module)]
        for a, e in zip(*grads, strict=True):
            close(a, e)
    with torch.no_grad():
        close(fast(*given), expected, rtol=0, atol=0)
    torch._dynamo.reset()


@torch_cases.needs_operators
@pytest.mark.parametrize("name", ["ALiBi", "T5RelativeBias", "FIRE"])
def test_compiled_lengths_stay_open(name):
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    module = randomised(MODULES[name]())
    fast = compiled(module, counter)
    counts = []
    for q_len, k_len in ((4, 5), (6, 9), (7, 30), (50, 8)):
        scores = random((B, H, q_len, k_len))
        close(fast(scores), module(scores), rtol=0, atol=0)
        counts.append(counter.frame_count)
    assert counts[-1] == counts[1], counts
    torch._dynamo.reset()


@each_module
def test_without_gradient_the_same_numbers(make):
    module = randomised(make())
    given = inputs(module)
    expected = module(*given)
    before = [t.clone() for t in given]
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert_same_bits(module(*given), expected)
    for tensor, kept in zip(given, before, strict=True):
        assert torch.equal(tensor, kept)


def test_layers_share_diagonals():
    module = randomised(pnn.T5RelativeBias(H))
    scores = random((B, H, 3, 9))
    diagonals = module.diagonals(3, 9, 6)
    assert_same_bits(module(scores, diagonals=diagonals), module(scores, q_offset=6))
    with pytest.raises(ValueError, match="diagonals"):
        module(scores, diagonals=module.diagonals(3, 8, 6))


@each_module
def test_ensembles_by_vmap(make):
    module = randomised(make())
    parameters = {
        name: torch.stack([p.detach(), p.detach() * 1.5]) for name, p in module.named_parameters()
    }
    if not parameters:
        return
    given = inputs(module)

    def call(parameters):
        return torch.func.functional_call(module, parameters, given)

    with torch.no_grad():
        mapped = torch.vmap(call)(parameters)
        for i in range(2):
            close(mapped[i], call({name: p[i] for name, p in parameters.items()}))


def test_autocast_keeps_distances_exact():
    module = pnn.RelativePositionalEncoding(H * D, H)
    q, k = inputs(module)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = module(q, k)
    assert scores.dtype == torch.bfloat16
    close(scores.float(), module(q, k), rtol=0.05, atol=0.05)


def test_kerple_keeps_its_parameters_in_bounds():
    for kind, largest in (("log", None), ("power", 2.0)):
        module = pnn.Kerple(H, kind=kind)
        with torch.no_grad():
            module.r1.fill_(-1.0)
            module.r2.fill_(9.0)
        r1, r2 = torch.full((H,), 0.01), torch.full((H,), largest or 9.0)
        expected = pn.kerple_diagonals(r1, r2, L, L, kind=kind)
        assert_same_bits(module.diagonals(L, L).detach(), expected)


V, T = ValueError, TypeError
Q = torch.zeros(B, H, L, D)
S = torch.zeros(B, H, L, L)
# (error, argument that the message names, call)
BAD = [
    (V, "num_heads", lambda: pnn.ALiBi(-1)),
    (T, "num_heads", lambda: pnn.ALiBi(8.0)),
    (T, "symmetric", lambda: pnn.ALiBi(8, symmetric=1)),
    (T, "num_heads", lambda: pnn.Kerple("8")),
    (V, "kind", lambda: pnn.Kerple(8, kind="linear")),
    (V, "dim", lambda: pnn.Sandwich(8, dim=7)),
    (V, "base", lambda: pnn.Sandwich(8, base=0.0)),
    (T, "num_heads", lambda: pnn.Sandwich(None)),
    (V, "num_buckets", lambda: pnn.T5RelativeBias(8, 31)),
    (V, "max_distance", lambda: pnn.T5RelativeBias(8, 32, 8)),
    (T, "bidirectional", lambda: pnn.T5RelativeBias(8, bidirectional=None)),
    (V, "left", lambda: pnn.ClippedRelativeBias(8, -1)),
    (T, "right", lambda: pnn.ClippedRelativeBias(8, 1, 2.0)),
    (V, "threshold", lambda: pnn.FIRE(8, threshold=0.0)),
    (V, "hidden", lambda: pnn.FIRE(8, hidden=0)),
    (V, "window", lambda: pnn.SwinRelativeBias(8, 0)),
    (V, "window", lambda: pnn.SwinRelativeBias(8, ())),
    (T, "window", lambda: pnn.SwinRelativeBias(8, 7.0)),
    (T, "window", lambda: pnn.SwinRelativeBias(8, (7, None))),
    (V, "pretrained_window", lambda: pnn.SwinV2RelativeBias(8, 7, pretrained_window=-1)),
    (V, "pretrained_window", lambda: pnn.SwinV2RelativeBias(8, 7, pretrained_window=(6,))),
    (V, "hidden", lambda: pnn.SwinV2RelativeBias(8, 7, hidden=0)),
    (V, "d_model", lambda: pnn.RelativePositionalEncoding(7, 1)),
    (V, "d_model", lambda: pnn.RelativePositionalEncoding(8, 3)),
    (V, "num_heads", lambda: pnn.RelativePositionalEncoding(8, 0)),
    (V, "head_dim", lambda: pnn.RelativePositionalEncoding(8, 2, 0)),
    (V, "layout", lambda: pnn.RelativePositionalEncoding(8, 2, layout="half")),
    (V, "base", lambda: pnn.RelativePositionalEncoding(8, 2, base=-1.0)),
    (T, "scale", lambda: pnn.RelativePositionalEncoding(8, 2, scale="1")),
    (V, "head_dim", lambda: pnn.ShawRelativePosition(0, 2)),
    (V, "left", lambda: pnn.ShawRelativePosition(8, -2)),
    (V, "scale", lambda: pnn.ShawRelativePosition(8, 2, scale=math.nan)),
    (V, "scores", lambda: pnn.ALiBi(H)(S[0, 0])),
    (T, "scores", lambda: pnn.ALiBi(H)(S.int())),
    (V, "diagonals", lambda: pnn.ALiBi(H + 1)(S)),
    (V, "q_offset", lambda: pnn.ALiBi(H)(S, torch.zeros(B, 1).long())),
    (T, "q_offset", lambda: pnn.ALiBi(H)(S, 1.0)),
    (V, "q_len", lambda: pnn.ALiBi(H).bias(-1, 3)),
    (V, "scores", lambda: pnn.FIRE(H)(S[:, :1])),
    (V, "scores", lambda: pnn.SwinRelativeBias(H, 2)(S)),
    (V, "q", lambda: pnn.RelativePositionalEncoding(H * D, H)(Q[:, :1], Q)),
    (V, "k", lambda: pnn.RelativePositionalEncoding(H * D, H)(Q, Q[..., :1])),
    (T, "q_offset", lambda: pnn.RelativePositionalEncoding(H * D, H)(Q, Q, torch.arange(B))),
    (V, "k", lambda: pnn.ShawRelativePosition(D, 2)(Q, Q[..., :1])),
    (T, "q_offset", lambda: pnn.ShawRelativePosition(D, 2)(Q, Q, 1.5)),
]


@pytest.mark.parametrize(("error", "argument", "call"), BAD)
def test_bad_arguments(error, argument, call):
    with pytest.raises(error, match=rf"^\w+: {argument}: expected .*, got "):
        call()
