"""posenc_native.nn, relative encodings: against the code of the models that have them."""

from __future__ import annotations

import math

import outside
import pytest

torch = pytest.importorskip("torch")

import relative_modules  # noqa: E402
import torch_cases  # noqa: E402
from relative_modules import close, randomized  # noqa: E402
from torch_cases import assert_same_bits, random  # noqa: E402

import posenc_native as pn  # noqa: E402
from posenc_native import nn as pnn  # noqa: E402

device = torch_cases.device
B, H, L, D = 2, 4, 6, 8

seed = relative_modules.seed


@pytest.fixture(scope="module")
def models():
    """transformers.models; importing it is slow."""
    pytest.importorskip("transformers", reason="the models' own code")
    from transformers import models

    return models


def causal(scores):
    """Keys after the query masked out; the last query is at the last key."""
    q_len, k_len = scores.shape[-2:]
    mask = torch.ones(q_len, k_len, dtype=torch.bool).triu(k_len - q_len + 1)
    return scores.masked_fill(mask, -torch.inf)


@pytest.mark.parametrize("decoder", [False, True], ids=["encoder", "decoder"])
@pytest.mark.parametrize(("name", "prefix"), [("t5", "T5"), ("mt5", "MT5"), ("umt5", "UMT5")])
def test_t5(models, name, prefix, decoder):
    module = getattr(getattr(models, name), f"modeling_{name}")
    config = getattr(getattr(models, name), f"configuration_{name}")
    config = getattr(config, f"{prefix}Config")(d_model=8, d_kv=4, num_heads=H, is_decoder=decoder)
    attention = getattr(module, f"{prefix}Attention")(config, True, layer_idx=0)
    ours = pnn.T5RelativeBias(H, bidirectional=not decoder)
    ours.load_state_dict(attention.relative_attention_bias.state_dict())
    randomized(ours)
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


def wavlm(models):
    """An attention of WavLM, and our bias with its parameters."""
    theirs = randomized(
        models.wavlm.modeling_wavlm.WavLMAttention(H * D, H, num_buckets=32, max_distance=20)
    )
    ours = pnn.T5RelativeBias(H, 32, 20, gate_dim=D)
    state = {n: p for n, p in theirs.state_dict().items() if n.startswith("gru_rel_pos")}
    ours.load_state_dict(state | {"weight": theirs.rel_attn_embed.weight})
    return theirs, ours


def test_wavlm(models):
    """The output of a layer from our scores, and the gradients of the gate and of the table."""
    theirs, ours = (module.double() for module in wavlm(models))
    x = random((B, 30, H * D), torch.float64, requires_grad=True)
    q, k, v = (
        linear(x).unflatten(-1, (H, D)).transpose(1, 2)
        for linear in (theirs.q_proj, theirs.k_proj, theirs.v_proj)
    )
    scores = q @ k.mT * D**-0.5
    weights = ours(scores, hidden_states=x).softmax(-1)
    out = theirs.out_proj((weights @ v).transpose(1, 2).flatten(-2))
    expected, _, _ = theirs(x)
    close(out, expected)
    pairs = {
        "gru_rel_pos_const": ours.gru_rel_pos_const, "rel_attn_embed.weight": ours.weight,
        "gru_rel_pos_linear.weight": ours.gru_rel_pos_linear.weight,
    }  # fmt: skip
    factors = random(out.shape, out.dtype)
    named = dict(theirs.named_parameters())
    for actual, wanted in zip(
        torch.autograd.grad((out * factors).sum(), [*pairs.values(), x]),
        torch.autograd.grad((expected * factors).sum(), [*(named[n] for n in pairs), x]),
        strict=True,
    ):
        close(actual, wanted)


@torch.no_grad()
def test_a_gated_bias_in_other_ways(models):
    """In place, rounded once, from the diagonals of another layer, as a mask, and by heads."""
    _, ours = wavlm(models)
    x, scores = random((B, 9, H * D)), random((B, H, 9, 12), torch.bfloat16)
    call = {"q_offset": 3, "hidden_states": x}
    found = ours(scores, **call)
    assert_same_bits(found, ours(scores.float(), **call).bfloat16())
    assert_same_bits(ours(scores, diagonals=ours.diagonals(9, 12, 3), hidden_states=x), found)
    mask = ours.gate(x) * ours.bias(9, 12, 3)
    close(ours(scores.float(), **call), scores.float() + mask)
    place = scores.clone()
    assert ours(place, inplace=True, **call) is place
    assert_same_bits(place, found)
    part = pnn.T5RelativeBias(H, 32, 20, gate_dim=D, heads=(1, 2))
    part.load_state_dict(ours.state_dict() | {
        "weight": ours.weight[:, H // 2 :], "gru_rel_pos_const": ours.gru_rel_pos_const[:, H // 2 :]
    })  # fmt: skip
    own = slice(H // 2 * D, None)
    assert_same_bits(part(scores[:, H // 2 :], 3, hidden_states=x[..., own]), found[:, H // 2 :])


def test_wrong_calls_of_a_gated_bias():
    ours, plain = pnn.T5RelativeBias(H, gate_dim=D), pnn.T5RelativeBias(H)
    x, scores = random((B, 6, H * D)), random((B, H, 6, 6))
    for module, hidden, text in (
        (
            ours,
            None,
            rf"hidden_states: expected .* H \* gate_dim = {H * D}\], got None",
        ),
        (ours, x[..., 1:], rf"hidden_states: expected shape .*, got \[{B}, 6, {H * D - 1}\]"),
        (ours, x[:1], rf"scores: expected shape \[1, {H}, 6\] and keys, as of hidden_states"),
        (plain, x, "hidden_states: expected None without a gate, which the argument gate_dim"),
    ):
        with pytest.raises(ValueError, match=f"^T5RelativeBias: {text}"):
            module(scores, hidden_states=hidden)
    with pytest.raises(ValueError, match="causal: expected False with a gate"):
        pnn.T5RelativeBias(H, gate_dim=D, causal=True)


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
    theirs = randomized(models.swin.modeling_swin.SwinRelativePositionBias(H, window))
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
    theirs = randomized(models.beit.modeling_beit.BeitRelativePositionBias(config))
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


@pytest.mark.parametrize(("window", "new"), [((7, 7), 12), ((4, 4), (6, 5)), ((8, 8), 4)])
def test_swin_for_another_window(window, new):
    """load_pretrained of microsoft/Swin-Transformer, utils.py, for the tables of a checkpoint."""
    ours = randomized(pnn.SwinRelativeBias(H, window))
    sizes = (new, new) if isinstance(new, int) else new
    table, (h, w) = ours.relative_position_bias_table.detach(), (2 * n - 1 for n in sizes)
    s1 = int(len(table) ** 0.5)
    theirs = torch.nn.functional.interpolate(
        table.permute(1, 0).view(1, H, s1, s1), size=(h, w), mode="bicubic"
    )
    theirs = theirs.view(H, h * w).permute(1, 0)
    resampled = ours.resampled(new)
    close(resampled.relative_position_bias_table, theirs, rtol=0, atol=1e-5)
    assert resampled.window == sizes
    assert resampled.bias().shape == (H, math.prod(sizes), math.prod(sizes))
    assert resampled.relative_position_bias_table.requires_grad
    assert len(ours.relative_position_bias_table) == len(table)  # as it was
    assert repr(resampled) == repr(pnn.SwinRelativeBias(H, sizes))
    # The model for these windows takes the table.
    pnn.SwinRelativeBias(H, sizes).load_state_dict(resampled.state_dict())


@pytest.mark.filterwarnings("ignore:torch.searchsorted", "ignore:Using a non-tuple sequence")
def test_beit_for_another_window():
    """Rows of the class token stay last, and patches keep their distances.

    A table of distances that is resampled like one of positions, with three rows too many, is
    wrong for every pair of patches.
    """
    layers = outside.timm_layers("pos_embed_rel")
    ours = randomized(pnn.SwinRelativeBias(H, 14, class_token=True))
    table = ours.relative_position_bias_table.detach()
    linear = ours.resampled((24, 16), interpolation="linear", spacing="geometric")
    theirs = layers.resize_rel_pos_bias_table(table, (24, 16), (47 * 31 + 3, H))
    close(linear.relative_position_bias_table, theirs, rtol=0, atol=1e-4)
    index = layers.gen_relative_position_index((24, 16), class_token=True)
    close(linear.bias(), theirs[index].permute(2, 0, 1), rtol=0, atol=1e-4)
    own = ours.resampled((24, 16)).relative_position_bias_table
    expected = pn.absolute.resample_positions(table, (47, 31), suffix=3, spacing="geometric")
    assert_same_bits(own, expected)
    even = ours.resampled(24, spacing="even", antialias=False).relative_position_bias_table
    theirs = layers.resize_rel_pos_bias_table_simple(table, (24, 24), (47 * 47 + 3, H))
    close(even, theirs, rtol=0, atol=1e-5)


def test_errors_of_another_window():
    module = pnn.SwinRelativeBias(H, (2, 7, 7))
    assert module.resampled(3).window == (3, 3, 3)
    with pytest.raises(
        ValueError, match=r"resampled: window: expected an int, or 3 ints, got \[3, 3"
    ):
        module.resampled((3, 3))
    with pytest.raises(ValueError, match=r"options: expected no keyword beside window .*prefix"):
        module.resampled(3, prefix=3)
    with pytest.raises(ValueError, match="window: expected an int, or an int for each of up to 3"):
        module.resampled(0)


def original_buffers(window, pretrained=None, class_token=False):
    """The buffers that the published code of Swin, BEiT and Swin v2 saves."""
    layers = outside.timm_layers("pos_embed_rel")
    index = layers.gen_relative_position_index(window, class_token=class_token)
    buffers = {"relative_position_index": index}
    if pretrained is not None:  # microsoft/Swin-Transformer, models/swin_transformer_v2.py
        h, w = (torch.arange(-(n - 1), n, dtype=torch.float32) for n in window)
        table = torch.stack(torch.meshgrid([h, w], indexing="ij"))
        table = table.permute(1, 2, 0).contiguous().unsqueeze(0)
        of = pretrained if pretrained[0] > 0 else window
        table[..., 0] /= of[0] - 1
        table[..., 1] /= of[1] - 1
        table *= 8
        buffers["relative_coords_table"] = (
            torch.sign(table) * torch.log2(torch.abs(table) + 1.0) / math.log2(8)
        )
    return buffers


@pytest.mark.parametrize("window", [(2, 3), (7, 7), (1, 4)])
@pytest.mark.parametrize("class_token", [False, True])
def test_checkpoints_of_swin_and_beit_load_strictly(window, class_token):
    """Their index was an unexpected key."""
    ours = pnn.SwinRelativeBias(H, window, class_token=class_token)
    own = ours.state_dict()
    buffers = original_buffers(window, class_token=class_token)
    ours.load_state_dict({**own, **buffers})
    ours.load_state_dict({**own, "relative_position_index": buffers.popitem()[1].to("meta")})
    assert list(ours.state_dict()) == ["relative_position_bias_table"]
    # A window of the other orientation has a table and an index of the same shape.
    other = original_buffers(window[::-1], class_token=class_token)
    if window == (2, 3):
        words = r"index: expected the index of a window \(2, 3\) \(.* at \[.*\]\), got"
        with pytest.raises(RuntimeError, match=words):
            ours.load_state_dict({**own, **other}, strict=False)
    index = other["relative_position_index"]
    with pytest.raises(RuntimeError, match="index: expected integer numbers, got float32"):
        ours.load_state_dict({**own, "relative_position_index": index.float()})
    count = len(index)
    words = rf"shape \[{count}, {count}\], got \[{count}, {count - 1}\]"
    with pytest.raises(RuntimeError, match=words):
        ours.load_state_dict({**own, "relative_position_index": index[:, 1:]})


def test_a_checkpoint_of_video_swin_loads_strictly():
    """Three axes: the index of microsoft/Video-Swin-Transformer, WindowAttention3D."""
    window = (2, 3, 4)
    axes = [torch.arange(n) for n in window]
    coords = torch.flatten(torch.stack(torch.meshgrid(*axes, indexing="ij")), 1)
    relative = (coords[:, :, None] - coords[:, None, :]).permute(1, 2, 0).contiguous()
    relative[:, :, 0] += window[0] - 1
    relative[:, :, 1] += window[1] - 1
    relative[:, :, 2] += window[2] - 1
    relative[:, :, 0] *= (2 * window[1] - 1) * (2 * window[2] - 1)
    relative[:, :, 1] *= 2 * window[2] - 1
    ours = pnn.SwinRelativeBias(H, window)
    ours.load_state_dict({**ours.state_dict(), "relative_position_index": relative.sum(-1)})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("window", "pretrained"), [((4, 4), (0, 0)), ((24, 24), (12, 12)), ((3, 5), (0, 0))]
)
def test_checkpoints_of_swin_v2_load_strictly(window, pretrained, dtype):
    """Both buffers were unexpected keys; the coordinates also tell the pretrained window."""
    ours = pnn.SwinV2RelativeBias(H, window, pretrained_window=pretrained)
    own, buffers = ours.state_dict(), original_buffers(window, pretrained)
    buffers["relative_coords_table"] = buffers["relative_coords_table"].to(dtype)
    ours.load_state_dict({**own, **buffers})
    assert list(ours.state_dict()) == list(own)
    other = original_buffers(window, (6, 6))
    words = r"relative_coords_table: expected the coordinates of window \(.*pretrained_window \("
    with pytest.raises(RuntimeError, match=words):
        ours.load_state_dict({**own, **other}, strict=False)
    words = r"relative_coords_table: expected shape \[1, .*, 2\], got \[.*, 1\]"
    with pytest.raises(RuntimeError, match=words):
        ours.load_state_dict(
            {**own, "relative_coords_table": buffers["relative_coords_table"][..., :1]}
        )


def test_wav2vec2_conformer(models):
    module = models.wav2vec2_conformer.modeling_wav2vec2_conformer
    config = models.wav2vec2_conformer.configuration_wav2vec2_conformer.Wav2Vec2ConformerConfig(
        hidden_size=H * D, num_attention_heads=H, position_embeddings_type="relative",
        max_source_positions=40, attention_dropout=0.0, attn_implementation="eager",
    )  # fmt: skip
    attention = randomized(module.Wav2Vec2ConformerSelfAttention(config)).eval()
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
    attention = randomized(model.layer[0].rel_attn)
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
        index = pn.relative.deberta_index(length, length, **options)
        actual = pn.relative_gather(q @ table(attention.key_proj), index, length, scale=scale)
    if "p2c" in kinds:
        index = pn.relative.deberta_index(length, length, transposed=True, **options)
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
