"""Latent attention: rows of latent and rotated key, against rotations and rounding of their own."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import DTYPES, assert_same_bits
from outside import module

import posenc_native as pn

HEADS, TOKENS, LATENT, TURNED, STILL = 3, 5, 40, 16, 24
SIZES = {"b": 2, "s": TOKENS, "t": TOKENS, "h": HEADS}


def inputs(layout: str, dtype: Any, dims: Any = (STILL, TURNED, LATENT), one: int = 0) -> list[Any]:
    """q, k_rope and latent; one: whether these have an axis of one head."""
    rng = np.random.default_rng(0)
    still, turned, latent = dims
    shape = [SIZES[letter] for letter in layout[:-1]]
    shared = [1 if x == "h" else SIZES[x] for x in layout[:-1] if one or x != "h"]
    axes = (*shape, still + turned), (*shared, turned), (*shared, latent)
    return [(3 * rng.standard_normal(each)).astype(dtype) for each in axes]


def rows_of(x: np.ndarray, layout: str, batch: int) -> np.ndarray:
    """Rows for each token, [b, s, d]."""
    if "h" in layout and x.ndim == len(layout):
        x = x.squeeze(layout.index("h"))
    letters = layout.replace("h", "")
    return (x.swapaxes(0, 1) if letters == "sbd" else x).reshape(batch, TOKENS, -1)


CASES = st.fixed_dictionaries({
    "layout": st.sampled_from(["bhsd", "bshd", "thd", "sbhd", "td"]),
    "cache_layout": st.sampled_from(["bsd", "bshd", "bhsd", "sd", "hsd", "psd", "phsd", "pshd"]),
    "page": st.integers(1, 9),
    "dtype": st.sampled_from([*DTYPES.values()]),
    "dims": st.tuples(st.sampled_from([0, 1, 24]), st.sampled_from([8, 64]), st.integers(0, 70)),
    "one": st.integers(0, 1),
    "rows": st.sampled_from(["latent first", "key first", "two"]),
    "pairing": st.sampled_from(["half", "interleaved", 4]),
    "described": st.sampled_from(["the part", "heads"]),
    "to": st.sampled_from(["new", "in place", "out"]),
    "seed": st.integers(0, 99),
})  # fmt: skip


@settings(max_examples=max(150, settings().max_examples))
@given(case=CASES)
def test_rows_have_the_latent_and_the_rotated_key(case, target):
    layout, cache_layout, dtype, page = (
        case[name] for name in ("layout", "cache_layout", "dtype", "page")
    )
    still, turned, dims = case["dims"]
    q, k_rope, latent = inputs(layout, dtype, case["dims"], case["one"])
    batch, positions = (2 if "b" in layout else 1), np.arange(TOKENS) + 2**30
    options: dict[str, Any] = {"pairing": case["pairing"], "rotary_dim": 8, "scale": 1.5}
    rope = pn.Rotary(turned, layout=layout, **options)
    of_k = layout if k_rope.ndim == len(layout) else layout.replace("h", "")
    turned_q = rope.apply(q[..., still:], positions)
    turned_k = rope.apply(k_rope, positions, layout=of_k)
    wanted = np.concatenate((q[..., :still], turned_q), -1)
    if case["described"] == "heads":
        rope = pn.Rotary(still + turned, rotary_start=still, layout=layout, **options)
    # Memory in which the rows of a batch, or all, are one after the other.
    count = 9 if "b" in cache_layout else 4 * page if "p" in cache_layout else 40
    while count < batch * TOKENS and "b" not in cache_layout:
        count += 4 * page
    lengths = {"b": batch, "p": count // page, "s": page if "p" in cache_layout else count, "h": 1}
    memory = np.full([*(lengths[x] for x in cache_layout[:-1]), dims + turned], 7, dtype)
    parts: Any = memory[..., :dims], memory[..., dims:]
    cache: Any = memory
    if case["rows"] == "key first":
        cache = parts = memory[..., turned:], memory[..., :turned]
    elif case["rows"] == "two":
        cache = parts = parts[0].copy(), parts[1].copy()
    rng = np.random.default_rng(case["seed"])
    slots = rng.permutation(count)[: batch * TOKENS] if "b" not in cache_layout else None
    if slots is None:
        slots = np.stack([rng.permutation(count)[:TOKENS] for _ in range(batch)])
    slots = slots.reshape(batch, TOKENS)
    slots[-1, 2] = -1
    places = {"in place": (q, k_rope), "out": (np.zeros_like(q), np.zeros_like(k_rope))}
    to = {"new": {}, "in place": {"inplace": True}, "out": {"out": places["out"]}}[case["to"]]
    results = rope.append_latent(
        q, k_rope, latent, positions, cache, slots if "b" in layout else slots[0],
        cache_layout=cache_layout, return_k=True, **to,
    )  # fmt: skip
    for result, expected in zip(results, (wanted, turned_k), strict=True):
        assert_same_bits(result, expected)
    for result, place in zip(results, places.get(case["to"], ()), strict=False):
        assert result is place
    for part, x in zip(parts, (latent, turned_k), strict=True):
        expected = np.full((batch if "b" in cache_layout else 1, count, x.shape[-1]), 7, dtype)
        of_tokens = rows_of(x, layout, batch)
        for b, t in np.argwhere(slots >= 0):
            expected[b if "b" in cache_layout else 0, slots[b, t]] = of_tokens[b, t]
        assert_same_bits(part.reshape(expected.shape), expected)


ROPE = pn.Rotary(TURNED, pairing="interleaved", layout="thd")


def step(kind: Any, **changes: Any) -> tuple[Any, ...]:
    """The result for five tokens of this kind of array, and the cache of pages."""
    q, k_rope, latent = map(kind, inputs("thd", "f"))
    cache = kind(np.zeros((4, 4, LATENT + TURNED), np.float32))
    arguments = {"q": q, "k_rope": k_rope, "latent": latent, "cache": cache, **changes}
    arguments = {"positions": 7, "slots": [3, 9, -1, 0, 15], "cache_layout": "psd", **arguments}
    return ROPE.append_latent(**arguments), cache


def test_plain_operations_and_tensors_write_what_append_writes(backend):
    for kind in (np.array, module("torch").tensor):
        q, k_rope, latent = map(kind, inputs("thd", "f"))
        rows = kind(np.zeros((4, 4, 1, LATENT + TURNED), np.float32))
        wanted = ROPE.append(
            q[..., STILL:], k_rope[:, None], latent[:, None], 7, rows[..., LATENT:],
            rows[..., :LATENT], [3, 9, -1, 0, 15], cache_layout="pshd",
        )  # fmt: skip
        for options in ({}, {"inplace": True}, {"out": kind(np.zeros_like(q))}, {"q": None}):
            result, written = step(kind, **options)
            assert_same_bits(np.asarray(written), np.asarray(rows[:, :, 0]))
            if "q" not in options:
                assert_same_bits(np.asarray(result[..., STILL:]), np.asarray(wanted))
                assert_same_bits(np.asarray(result[..., :STILL]), np.asarray(q[..., :STILL]))


# What of a model: the configuration's own words, and whether its results are in halves.
MODELS = {
    "deepseek_v2": ("DeepseekV2", {}, False),
    "deepseek_v3": ("DeepseekV3", {"rope_interleave": True}, True),
    "deepseek_v3, half": ("DeepseekV3", {"rope_interleave": False}, False),
}
YARN = {
    "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "mscale": 0.7,
    "mscale_all_dim": 1.0, "rope_theta": 10000.0,
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_transformers(name):
    """Its own q, its cache, and its scores from absorbed queries and rows of the cache."""
    torch, transformers = module("torch"), module("transformers")
    family, own, halves = MODELS[name]
    folder = name.split(",")[0]
    modeling = module(f"transformers.models.{folder}.modeling_{folder}")
    config = getattr(transformers, f"{family}Config")(
        hidden_size=48, num_attention_heads=HEADS, num_key_value_heads=HEADS, q_lora_rank=24,
        kv_lora_rank=LATENT, qk_nope_head_dim=STILL, qk_rope_head_dim=TURNED, v_head_dim=20,
        num_hidden_layers=1, rope_parameters=YARN, **own,
    )  # fmt: skip
    kept: dict[str, Any] = {}

    def attend(layer: Any, q: Any, k: Any, v: Any, *_: Any, **__: Any) -> Any:
        kept.update(q=q, k=k)
        return v.transpose(1, 2), None

    transformers.AttentionInterface.register("kept", attend)
    config._attn_implementation = "kept"
    torch.manual_seed(0)
    layer = getattr(modeling, f"{family}Attention")(config, 0)
    for part in ("q_b_proj", "kv_a_proj_with_mqa", "kv_a_layernorm"):
        getattr(layer, part).register_forward_hook(lambda *x, part=part: kept.update({part: x[-1]}))
    x, cache = torch.randn(2, TOKENS, 48), transformers.DynamicCache(config=config)
    positions = torch.arange(TOKENS) + 40
    angles = getattr(modeling, f"{family}RotaryEmbedding")(config)(x, positions[None])
    with torch.no_grad():
        layer(x, position_embeddings=angles, attention_mask=None, past_key_values=cache)
        rope = pn.Rotary.from_config(config, layout="bshd")
        q = kept["q_b_proj"].view(2, TOKENS, HEADS, STILL + TURNED)
        rows = torch.zeros(2, 9, LATENT + TURNED)
        q, k_rope = rope.append_latent(
            q, kept["kv_a_proj_with_mqa"][..., LATENT:], kept["kv_a_layernorm"], positions, rows,
            range(2, 2 + TOKENS), return_k=True,
        )  # fmt: skip

    def in_their_order(turned: Any) -> Any:
        return torch.cat((turned[..., ::2], turned[..., 1::2]), -1) if halves else turned

    theirs = kept["q"].transpose(1, 2)
    assert torch.equal(q[..., :STILL], theirs[..., :STILL])
    torch.testing.assert_close(in_their_order(q[..., STILL:]), theirs[..., STILL:])
    latents, keys = rows[:, 2 : 2 + TOKENS].split([LATENT, TURNED], -1)
    assert torch.equal(latents, cache.layers[0].keys[:, 0])
    torch.testing.assert_close(in_their_order(keys), cache.layers[0].values[:, 0])
    assert torch.equal(keys, k_rope)
    w_k = layer.kv_b_proj.weight.view(HEADS, -1, LATENT)[:, :STILL]
    absorbed = torch.cat((torch.einsum("bshn,hnl->bshl", q[..., :STILL], w_k), q[..., STILL:]), -1)
    scores = torch.einsum("bqhd,bkd->bhqk", absorbed, rows[:, 2 : 2 + TOKENS])
    torch.testing.assert_close(scores, kept["q"] @ kept["k"].mT, atol=2e-6, rtol=1e-5)


FORMATS = {
    "float8_e4m3fn": (ml_dtypes.float8_e4m3fn, 448), "float8_e5m2": (ml_dtypes.float8_e5m2, 57344),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_rows_of_8_bits(name, target):
    """One scale divides latent and key; either may stay in its dtype; scales may be made."""
    kind, most = FORMATS[name]
    _, exact = step(np.array)
    written = exact.any(-1)

    def rounded(x: np.ndarray) -> np.ndarray:
        return x.clip(-most, most).astype(kind).view(np.uint8)

    for k_scale in (0.25, np.array([0.25], np.float32)):
        rows = np.zeros(exact.shape, kind)
        step(np.array, cache=rows, k_scale=k_scale)
        assert_same_bits(rows.view(np.uint8), rounded(exact / np.float32(0.25)))
    for kinds in ((kind, np.float32), (np.float32, kind)):
        cache = tuple(np.zeros((4, 4, n), k) for n, k in zip((LATENT, TURNED), kinds, strict=True))
        step(np.array, cache=cache, k_scale=0.25)
        for part, x in zip(cache, np.split(exact, [LATENT], -1), strict=True):
            if part.dtype == np.float32:
                assert_same_bits(part, x)
            else:
                assert_same_bits(part.view(np.uint8), rounded(x / np.float32(0.25)))
    rows, made = np.zeros(exact.shape, kind), np.full((2, 4, 4), 7, np.float32)
    step(np.array, cache=rows, scales=tuple(made))
    for i, part in enumerate((slice(None, LATENT), slice(LATENT, None))):
        scale = np.abs(exact[..., part]).max(-1) / np.float32(most)
        assert_same_bits(made[i], np.where(written, scale, np.float32(7)))
        by = np.where(written, scale, 1)[..., None]
        assert_same_bits(rows[..., part].view(np.uint8), rounded(exact[..., part] / by))


# Changes of a call that is right, with the error.
ROW = LATENT + TURNED
Q, K_ROPE, LATENTS = inputs("thd", "f")
WIDER = np.concatenate((Q, Q), -1)
CACHE = np.zeros((4, 4, ROW), np.float32)
ERRORS = {
    "swapped": (
        {"k_rope": LATENTS, "latent": K_ROPE},
        "expected the 16 dims of the Rotary (head_dim - rotary_start), got shape [5, 40]; write k",
    ),
    "latent and key in one": (
        {"k_rope": np.zeros((5, ROW), "f")}, "got shape [5, 56]; write k_rope[..., -16:]",
    ),
    "narrow k_rope": (
        {"k_rope": K_ROPE[:, :8]},
        "got shape [5, 8]; make the Rotary of the dims that rotate, Rotary(8, ...)",
    ),
    "narrow q": (
        {"q": Q[..., :8]},
        "q: expected 3 axes (thd), of which d has at least 16 dims, got shape [5, 3, 8]",
    ),
    "tokens": ({"k_rope": K_ROPE[:4]}, "k_rope: expected shape [5, 16] or [5, 1, 16], since all"),
    "heads": ({"latent": Q}, "latent: expected shape [5, 40] or [5, 1, 40], since all heads share"),
    "another latent": (
        {"latent": LATENTS[:, :30]},
        "46 dims, 30 of latent and 16 of k_rope, got shape [4, 4, 56]; for rows with other parts ",
    ),
    "narrow rows": ({"cache": CACHE[..., 1:]}, "cache: expected rows of 56 dims, 40 of latent and"),
    "rows of a pair": (
        {"cache": (CACHE, CACHE)}, "cache[0]: expected rows of 40 dims, as latent has, got shape",
    ),
    "axes": ({"cache": CACHE[0]}, "cache: expected 3 axes for cache_layout 'psd', got shape [4"),
    "rows of a batch": (
        {"cache_layout": "bsd"}, 'k_rope has, got shape [4, 4, 56]; cache_layout="psd" for pages?',
    ),
    "heads of a cache": (
        {"cache": np.zeros((4, 4, 2, ROW), "f"), "cache_layout": "pshd"},
        "cache: expected one head, which all heads share, got shape [4, 4, 2, 56]",
    ),
    "letters": ({"cache_layout": "psdh"}, "cache_layout: expected letters s, d and optionally h"),
    "no letters": ({"cache_layout": None}, "cache_layout: expected a str, got NoneType"),
    "layout": ({"layout": "tnd"}, "layout: expected distinct letters of b, s, h, d"),
    "no cache": ({"cache": None}, "cache: expected an array or a tensor, or a pair (latent_cache"),
    "no key": ({"k_rope": None}, "k_rope: expected a NumPy array or a torch tensor, got NoneType"),
    "dtypes": ({"latent": LATENTS.astype("d")}, "latent: expected the dtype of k_rope, float32"),
    "dtype of the cache": (
        {"cache": CACHE.astype("d")}, "cache: expected the dtype of k_rope, float32, or float8",
    ),
    "twice": ({"slots": [1, 1, 2, 3, 4]}, "slots: expected no slot twice, got 1 twice"),
    "outside": ({"slots": [16, 1, 2, 3, 4]}, "slots: expected -1, or slots 0 .. 15, got 16"),
    "positions": ({"positions": [1, 2]}, "positions: expected shape [t] = [5], got [2]"),
    "a cache over an input": (
        {"latent": CACHE.reshape(16, ROW)[:5, :LATENT]},
        "cache: expected no ",
    ),
    "parts over each other": (
        {"cache": (CACHE[..., :LATENT], CACHE[..., LATENT - 1 : -1])},
        "cache[1]: expected no ",
    ),
    "a scale of floats": (
        {"k_scale": 0.5}, "k_scale: expected None, or cache of float8_e4m3fn, float8_e5m2",
    ),
    "scales of floats": (
        {"scales": (np.zeros((4, 4), "f"), None)}, "scales[0]: expected None, or cache of float8_",
    ),
    "one scale made": (
        {"scales": np.zeros((4, 4), "f")},
        "scales: expected a pair (latent_scales, k_scales), got ndarray",
    ),
    "scales of other rows": (
        {"cache": CACHE.astype(np.int8), "scales": (None, np.zeros(16, "f"))},
        "scales[1]: expected the shape of the cache without d, [4, 4], got [16]",
    ),
    "out": ({"out": Q[:, :2].copy()}, "out: expected shape [5, 3, 40], got [5, 2, 40]"),
    "out of two": ({"out": (Q.copy(), K_ROPE.copy())}, "out: expected memory like q, got tuple"),
    "out over q": (
        {"q": WIDER[..., :40], "out": WIDER[..., 1:41]},
        "out: expected the same view as q, or no memory in common with it, got a partial overlap",
    ),
    "out of both": (
        {"out": Q.copy(), "return_k": True}, "out: expected a pair (q_out, k_out), got ndarray",
    ),
    "vLLM's word": ({"k_pe": K_ROPE}, "got k_pe=...; write k_rope=..."),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_errors_have_the_words_of_the_call(name, backend):
    """And nothing has been written."""
    changes, message = ERRORS[name]
    of_call = {"q": Q, "k_rope": K_ROPE, "latent": LATENTS, "cache": CACHE, **changes}
    arrays = [x for x in of_call.values() if isinstance(x, np.ndarray)]
    before = [x.copy() for x in arrays]
    for kind in (np.asarray, module("torch").from_numpy):
        call = {argument: shared(kind, value) for argument, value in of_call.items()}
        with pytest.raises((ValueError, TypeError)) as caught:
            step(kind, **call)
        assert str(caught.value).startswith("Rotary.append_latent: ")
        text = str(caught.value).replace("torch.", "").replace("got Tensor", "got ndarray")
        assert message in text
    for x, old in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(x, old)


def shared(kind: Any, value: Any) -> Any:
    """An array as this kind of array with the same memory."""
    if isinstance(value, tuple):
        return tuple(shared(kind, x) for x in value)
    return kind(value) if isinstance(value, np.ndarray) else value


# Rows of bytes, and a scale for each group of the latent.


def byte_rows(rows: np.ndarray, dims: int) -> np.ndarray:
    """Rows of latent and key in bfloat16 as fp8_ds_mla has them, by NumPy's casts."""
    latent = rows[..., :dims].astype(np.float32).reshape(*rows.shape[:-1], dims // 128, 128)
    scales = np.abs(latent).max(-1) / np.float32(448)
    numbers = (latent / scales[..., None]).astype(ml_dtypes.float8_e4m3fn)
    parts = numbers.reshape(*rows.shape[:-1], dims), scales, np.ascontiguousarray(rows[..., dims:])
    return np.concatenate([part.view(np.uint8) for part in parts], -1)


@pytest.mark.parametrize("layout", ["thd", "bhsd", "sbhd", "td", "bsd"])
@pytest.mark.parametrize("cache_layout", ["psd", "pshd", "phsd", "bsd", "sd"])
@pytest.mark.parametrize("one", [0, 1])
def test_rows_of_bytes(layout, cache_layout, one, backend):
    """Those of vLLM's fp8_ds_mla, and the same parts as a pair of views."""
    batch, dims = (2 if "b" in layout else 1), 256
    q, k_rope, latent = inputs(layout, ml_dtypes.bfloat16, (STILL, TURNED, dims), one)
    rope = pn.Rotary(TURNED, pairing="interleaved", layout=layout)
    lengths = {"p": 6, "s": 4 if "p" in cache_layout else 24, "b": batch, "h": 1}
    shape = [lengths[letter] for letter in cache_layout[:-1]]
    slots = np.array([[11, 0, 5, -1, 7], [3, 20, 1, 2, 9]])[:batch]
    at = (q, k_rope, latent, 100), slots if "b" in layout else slots[0]
    places = {"cache_layout": cache_layout, "return_k": True}
    plain = np.full((*shape, dims + TURNED), np.nan, q.dtype)
    wanted = rope.append_latent(*at[0], plain, at[1], **places)
    width = dims + 4 * (dims // 128) + 2 * TURNED
    caches = [np.full((*shape, width), 7, np.uint8) for _ in range(2)]
    results = rope.append_latent(*at[0], caches[0], at[1], **places)
    end = width - 2 * TURNED
    views = caches[1][..., :dims].view(ml_dtypes.float8_e4m3fn), caches[1][..., end:].view(q.dtype)
    of_scales = caches[1][..., dims:end].view(np.float32), None
    rope.append_latent(*at[0], views, at[1], scales=of_scales, **places)
    for result, expected in zip(results, wanted, strict=True):
        assert_same_bits(result, expected)
    written = ~np.isnan(plain.astype(np.float32)).any(-1)
    assert written.sum() == (slots >= 0).sum()
    expected = np.where(written[..., None], byte_rows(plain, dims), 7)
    for cache in caches:
        assert (cache == expected).all()


def test_rows_of_bytes_compiled():
    torch = module("torch")
    torch.manual_seed(0)
    q, k_rope, latent = (torch.randn(5, *n).bfloat16() for n in ((3, 40), (16,), (256,)))
    slots, caches = torch.tensor([11, 0, 5, -1, 7]), torch.zeros(2, 3, 4, 296, dtype=torch.uint8)

    def step(cache):
        return ROPE.append_latent(q, k_rope, latent, 7, cache, slots, cache_layout="psd")

    wanted = step(caches[1])
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(caches[0]), wanted)
    assert torch.equal(caches[0], caches[1])
    assert int(caches[0].any(-1).sum()) == 4


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"cache": np.zeros((4, 4, 600), np.uint8)}, "cache: expected rows of 296 bytes: 256 of"),
        ({"scales": (None, None)}, "scales: expected None: rows of bytes have theirs"),
        ({"k_scale": 2.0}, "k_scale: expected None beside memory for scales"),
        ({"slots": [99, 0, 1, 2, 3]}, "slots: expected -1, or slots 0 .. 15, got 99"),
        ({"cache": tuple(np.zeros((4, 4, n), ml_dtypes.bfloat16) for n in (256, 16)),
          "scales": (np.zeros((4, 4, 2), np.float32), None)}, "scales[0]: expected None, or a"),
        ({"cache": (np.zeros((4, 4, 256), np.int8), np.zeros((4, 4, 16), ml_dtypes.bfloat16)),
          "scales": (np.zeros((4, 4, 3), np.float32), None)}, "scales[0]: expected shape [4, 4]"),
    ],
)  # fmt: skip
def test_errors_of_rows_of_bytes(changes, text):
    q, k_rope, latent = inputs("thd", ml_dtypes.bfloat16, (STILL, TURNED, 256))
    cache = np.zeros((4, 4, 296), np.uint8)
    given = {"cache": cache, "slots": [3, 9, -1, 0, 15], "cache_layout": "psd", **changes}
    with pytest.raises((ValueError, TypeError)) as raised:
        ROPE.append_latent(q, k_rope, latent, 7, **given)
    assert text in str(raised.value)
    assert not cache.any()
