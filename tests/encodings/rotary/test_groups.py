"""Layouts with groups of heads: q and k in the projection of grouped-query attention, in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import rotating
from rotating import Call, each_engine, each_writing_engine

import posenc_native as pn

S, B, G, R, D = 5, 2, 3, 4, 8  # tokens, batch, groups, queries of a group, dims
FREQ = pn.rotary.rotary_frequencies(D)[0]
PLACES = np.array([9, 3, 70000, 0, 1])
OF_HEADS = np.random.default_rng(0).uniform(0, 1, (G * R, D // 2))
TABLES = tuple(
    f(np.random.default_rng(1).uniform(-3, 3, (B, G * R, S, D // 2))).astype(np.float32)
    for f in (np.cos, np.sin)
)


def projection(seed: int = 0) -> np.ndarray:
    """[s, b, g, (r + 2) d]: for each group r queries, then a key and a value."""
    shape = (S, B, G, (R + 2) * D)
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def parts(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """q and k [s, b, g, h, d], views."""
    heads = packed.reshape(S, B, G, R + 2, D)
    return heads[..., :R, :], heads[..., R : R + 1, :]


def in_one_axis(x: np.ndarray) -> np.ndarray:
    """A copy [s, b, g h, d]."""
    return x.reshape(S, B, -1, D)


Q, K = parts(projection())
CALLS: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "positions": ("apply_rotary", (PLACES, FREQ), {}),
    "none": ("apply_rotary", (None, FREQ), {"pairing": "interleaved"}),
    "of the batch": ("apply_rotary", (np.stack([PLACES, PLACES[::-1]]), FREQ), {"scale": 1.5}),
    "a part": ("apply_rotary", (PLACES, FREQ[:2]), {"rotary_start": 3}),
    "of heads": ("apply_rotary", (PLACES, OF_HEADS), {}),
    "of heads and axes": (
        "apply_rotary", (np.stack([PLACES, PLACES + 1]), np.stack([OF_HEADS] * 2)), {}
    ),
    "tables": ("apply_rotary by tables", pn.rotary_tables(PLACES, FREQ), {"inverse": True}),
    "tables of heads": ("apply_rotary by tables", TABLES, {}),
    "rows": ("apply_rotary by tables", pn.rotary_tables(50, FREQ), {"rows": PLACES % 50}),
}  # fmt: skip


def one_axis(name: str, x: np.ndarray) -> np.ndarray:
    """By a copy whose heads have one axis."""
    function, angles, options = CALLS[name]
    copy = in_one_axis(x).astype(np.float64)
    with rotating.computing("reference"):
        return rotating.public(function)(copy, *angles, layout="sbhd", **options).reshape(x.shape)


@pytest.mark.parametrize("name", CALLS)
@each_engine
def test_as_with_one_axis_of_heads(engine, name):
    function, angles, options = CALLS[name]
    call = Call(function, (Q,), angles, {"layout": "sbghd", **options})
    rotating.assert_close(rotating.results_of(engine, call), (one_axis(name, Q),))


@pytest.mark.parametrize("name", [name for name in CALLS if "of heads" not in name])
@each_writing_engine
def test_in_the_projection(engine, name):
    """q and k of one buffer, in place: values stay as they are, and nothing is copied."""
    function, angles, options = CALLS[name]
    packed = projection(1)
    before = packed.copy()
    q, k = parts(packed)
    expected = one_axis(name, q), one_axis(name, k)
    two = function.replace("rotary", "rotary_qk")
    call = Call(two, (q, k), angles, {"layout": "sbghd", "inplace": True, **options})
    rotating.results_of(engine, call)
    rotating.assert_close((q, k), expected)
    values = slice((R + 1) * D, None)
    np.testing.assert_array_equal(packed[..., values], before[..., values])


@pytest.mark.parametrize("order", ["gbshd", "bsghd", "tghd", "gthd", "hgsd", "shgd"])
@each_engine
def test_any_order_of_axes(engine, order):
    sizes = {"b": B, "s": S, "t": S, "g": G, "h": R + 2, "d": 2 * D}
    shape = [sizes[letter] for letter in order]
    whole = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    at = order.index("h")
    x = np.moveaxis(np.moveaxis(whole, at, 0)[:R], 0, at)[..., 3 : 3 + D]
    frequencies = np.random.default_rng(3).uniform(0, 1, (G * R, D // 2))
    call = Call("apply_rotary", (x,), (PLACES, frequencies), {"layout": order})
    # With one axis of heads in the place of g.
    beside = order.index("g") + (at > order.index("g"))
    wide = np.moveaxis(x, at, beside)
    letters = order.replace("h", "")
    place = letters.index("g")
    joined = wide.reshape(*wide.shape[:place], G * R, *wide.shape[place + 2 :])
    plain = pn.apply_rotary(
        joined.astype(np.float64), PLACES, frequencies, layout=letters.replace("g", "h")
    )
    expected = np.moveaxis(plain.reshape(wide.shape), beside, at)
    rotating.assert_close(rotating.results_of(engine, call), (expected,))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", CALLS)
@rotating.each_exact_engine
def test_engines_agree_to_the_bit(engine, name, dtype):
    function, angles, options = CALLS[name]
    packed = projection().astype(dtype)
    call = Call(function, (parts(packed)[0],), angles, {"layout": "sbghd", **options})
    joined = in_one_axis(parts(packed)[0])
    copy = Call(function, (joined,), angles, {**options, "layout": "sbhd"})
    (native,) = rotating.results_of("native", copy)
    ours = rotating.results_of(engine, call)[0].reshape(native.shape)
    np.testing.assert_array_equal(ours, native)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("engine", ["operators", "plain"])
def test_gradients(engine, name):
    function, angles, options = CALLS[name]
    named = {"layout": "sbghd", **options}
    weights = (parts(projection(5))[0],)
    back = {**named, "inverse": not options.get("inverse", False)}
    expected = rotating.results_of("native", Call(function, weights, angles, back))
    gradients = rotating.gradients_of(engine, Call(function, (Q,), angles, named), weights)
    rotating.assert_close(gradients, expected)


def test_gradients_of_frequencies():
    torch = pytest.importorskip("torch")
    freq = torch.tensor(OF_HEADS, requires_grad=True)
    places = torch.tensor(PLACES)
    grouped = pn.apply_rotary(torch.tensor(Q), places, freq, layout="sbghd")
    (ours,) = torch.autograd.grad((grouped * grouped.flip(-1)).sum(), freq)
    x = torch.tensor(in_one_axis(Q).copy())
    plain = pn.apply_rotary(x, places, freq, layout="sbhd")
    (theirs,) = torch.autograd.grad((plain * plain.flip(-1)).sum(), freq)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5 * float(theirs.abs().max()))


def test_a_bound_rotation(native):
    rope = pn.Rotary(D)
    packed = projection(6)
    q, k = parts(packed)
    expected = one_axis("positions", q), one_axis("positions", k)
    step = rope.bind(q, k, layout="sbghd", inplace=True)
    step(q, k, PLACES)
    rotating.assert_close((q, k), expected)


@pytest.mark.parametrize("layout", ["sbgd", "gsd", "sbgghd", "sbghdg"])
@pytest.mark.parametrize("engine", ["native", "reference", "small", "operators", "plain"])
def test_groups_are_of_heads(engine, layout):
    x = np.ones([2] * len(layout), np.float32)
    with pytest.raises(ValueError, match=r"^apply_rotary: layout: expected .*allowed with h, got"):
        rotating.results_of(engine, Call("apply_rotary", (x,), (None, FREQ), {"layout": layout}))


def test_heads_of_all_groups_have_frequencies(backend):
    with pytest.raises(
        ValueError, match=r"^apply_rotary: inv_freq: expected frequencies for 12 heads"
    ):
        pn.apply_rotary(Q, PLACES, OF_HEADS[:4], layout="sbghd")


# As other projects call it


def test_as_megatron_rotates_grouped_queries():
    """SelfAttention of Megatron-LM: split mixed_qkv by group, join the heads, rotate a copy."""
    torch = pytest.importorskip("torch")
    mixed_qkv = torch.tensor(projection(7))
    by_group = mixed_qkv.view(S, B, G, (R + 2) * D)
    query, key, value = torch.split(by_group, [R * D, D, D], dim=3)
    query = query.reshape(S, B, -1, D)
    freqs = torch.outer(torch.arange(S).float(), torch.tensor(FREQ).float())
    emb = torch.cat((freqs, freqs), dim=-1)[:, None, None, :]

    def rotate(t: Any) -> Any:
        half = torch.cat((-t[..., D // 2 :], t[..., : D // 2]), -1)
        return t * torch.cos(emb) + half * torch.sin(emb)

    expected = rotate(query), rotate(key)
    heads = mixed_qkv.view(S, B, G, R + 2, D)
    q, k = heads[..., :R, :], heads[..., R : R + 1, :]
    pn.apply_rotary_qk(q, k, None, torch.tensor(FREQ), layout="sbghd", inplace=True)
    torch.testing.assert_close(q.reshape(S, B, -1, D), expected[0], rtol=0, atol=2e-6)
    torch.testing.assert_close(k.reshape(S, B, -1, D), expected[1], rtol=0, atol=2e-6)
    torch.testing.assert_close(mixed_qkv.view(S, B, G, -1)[..., (R + 1) * D :], value)
