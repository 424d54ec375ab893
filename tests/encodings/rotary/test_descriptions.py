"""A `Rotary` in place of frequencies, an int as positions, and layouts said once."""

from __future__ import annotations

import numpy as np
import pytest

import posenc_native as pn
from posenc_native.engines import backend

torch = pytest.importorskip("torch")
pnn = pytest.importorskip("posenc_native.nn")

YARN = {
    "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096,
    "attention_factor": 1.25,
}  # fmt: skip
# Of all that a description says, nothing has the default.
ROPE = pn.Rotary(
    12, rotary_dim=8, scaling=YARN, pairing="interleaved", rotary_start=2, layout="bshd"
)
SAID = {"scale": 1.25, "pairing": "interleaved", "rotary_start": 2, "layout": "bshd"}
AXES = pn.Rotary(8, axis_map=[0, 1, 1, 0], base=100.0)

rng = np.random.default_rng(30)
Q, K, V = (rng.standard_normal((2, 5, heads, 12), np.float32) for heads in (4, 2, 2))
AT = np.arange(3, 8)


def of_numpy(x: np.ndarray) -> np.ndarray:
    return x.copy()


def of_gradients(x: np.ndarray) -> object:
    return torch.tensor(x, requires_grad=True)


KINDS = {"NumPy": of_numpy, "torch": torch.tensor, "gradient": of_gradients}
kinds = pytest.mark.parametrize("of", KINDS.values(), ids=KINDS)


def arrays(results: object) -> list[np.ndarray]:
    found = results if isinstance(results, tuple) else (results,)
    return [np.asarray(one.detach() if isinstance(one, torch.Tensor) else one) for one in found]


def assert_same(first: object, second: object) -> None:
    for one, other in zip(arrays(first), arrays(second), strict=True):
        np.testing.assert_array_equal(one, other)


def appended(rope: object, of: object, **said: object) -> list[np.ndarray]:
    caches = [torch.zeros(2, 2, 16, 12) for _ in "kv"]
    if of is of_numpy:
        caches = [cache.numpy() for cache in caches]
    q = pn.rotary_append(of(Q), of(K), of(V), AT, rope, *caches, AT, **said)
    return arrays((q, *caches))


@kinds
def test_a_description_brings_what_bare_frequencies_lack(of):
    freq = ROPE.inv_freq
    assert_same(pn.apply_rotary(of(Q), AT, ROPE), pn.apply_rotary(of(Q), AT, freq, **SAID))
    two = pn.apply_rotary_qk(of(Q), of(K), AT, freq, **SAID)
    assert_same(pn.apply_rotary_qk(of(Q), of(K), AT, ROPE), two)
    assert_same(pn.apply_rotary_qk(of(Q), of(K), AT, pnn.RotaryEmbedding(ROPE)), two)
    normed = pn.norm_rotary_qk(of(Q), of(K), AT, freq, **SAID)
    assert_same(pn.norm_rotary_qk(of(Q), of(K), AT, ROPE), normed)
    assert_same(ROPE.norm(of(Q), of(K), AT), normed)
    if of is not of_gradients:  # a cache that is written has no gradient
        assert_same(tuple(appended(ROPE, of)), tuple(appended(freq, of, **SAID)))
    # Not 1.25 times too small, as scores by frequencies alone are.
    bare = pn.apply_rotary(of(Q), AT, freq, **{**SAID, "scale": 1.0})
    turned = arrays(two[0])[0][..., 2:10]
    np.testing.assert_allclose(turned, 1.25 * arrays(bare)[0][..., 2:10], rtol=1e-6, atol=1e-6)


def test_tables_and_xpos_take_descriptions():
    cos, sin = pn.rotary_tables(AT, ROPE)
    expected = pn.rotary_tables(AT, ROPE.inv_freq, scale=1.25)
    assert_same((cos, sin), expected)
    assert_same(ROPE.tables(AT), expected)
    xpos = pn.rotary.xpos_tables(AT, ROPE)
    numbers = pn.rotary.xpos_tables(AT, ROPE.inv_freq, scale=1.25)
    assert_same(xpos.cos + xpos.sin, numbers.cos + numbers.sin)
    where = np.array([[3, 4, 5], [9, 9, 2]])
    x = rng.standard_normal((1, 1, 3, 8), np.float32)
    by_axis = pn.apply_rotary(x, where, AXES.inv_freq, axis_map=AXES.axis_map)
    assert_same(pn.apply_rotary(x, where, AXES), by_axis)


@kinds
@pytest.mark.parametrize(
    ("name", "value"),
    [("scale", 1.0), ("pairing", "half"), ("rotary_start", 0), ("axis_map", [0, 0, 0, 0])],
)
def test_what_a_description_says_cannot_be_given_beside_it(of, name, value):
    kept = of(Q)
    with pytest.raises(ValueError, match=rf"{name}: expected no {name} beside a Rotary, which has "
                       rf"{name}={getattr(ROPE, name)!r}, got "):  # fmt: skip
        pn.apply_rotary_qk(kept, of(K), AT, ROPE, inplace=of is not of_gradients, **{name: value})
    assert_same(kept, Q)
    if name in ("scale", "axis_map"):
        with pytest.raises(ValueError, match=f"rotary_tables: {name}: expected no {name} beside"):
            pn.rotary_tables(AT, ROPE, **{name: value})


def test_a_layout_said_once_holds_until_a_call_says_another():
    across = Q.transpose(0, 2, 1, 3), K.transpose(0, 2, 1, 3)
    expected = [x.transpose(0, 2, 1, 3) for x in ROPE(Q, K, AT)]
    assert_same(ROPE(*across, AT, layout="bhsd"), tuple(expected))
    module = pnn.RotaryEmbedding(ROPE, layout="bhsd")
    assert module.rope == ROPE.with_layout("bhsd") != ROPE
    assert_same(module(*map(torch.tensor, across), AT), tuple(expected))
    assert repr(pnn.RotaryEmbedding(64, layout="bshd")) == "RotaryEmbedding(64, layout='bshd')"
    step = ROPE.bind(Q, K)
    assert_same(step(Q, K, 3), ROPE(Q, K, AT))
    with pytest.raises(ValueError, match="layout"):
        pn.Rotary(64, layout="bsdh")


# --- An int is the position of the first token


@kinds
@pytest.mark.parametrize("first", [3, np.int64(3), np.array([3, 4, 5, 6, 7]), [3, 4, 5, 6, 7]])
def test_an_int_is_where_the_first_token_is(of, first):
    expected = ROPE(Q, K, AT)
    assert_same(ROPE(of(Q), of(K), first), expected)
    assert_same(pn.apply_rotary_qk(of(Q), of(K), first, ROPE), expected)
    assert_same(ROPE.apply(of(Q), first), expected[0])
    assert_same(pn.norm_rotary_qk(of(Q), of(K), first, ROPE), pn.norm_rotary_qk(Q, K, AT, ROPE))
    if of is not of_numpy:
        assert_same(pnn.RotaryEmbedding(ROPE)(of(Q), of(K), first), expected)
        xpos = pnn.XPos(12, layout="bshd")
        assert_same(xpos(of(Q), of(K), first), xpos(torch.tensor(Q), torch.tensor(K), AT))


@pytest.mark.parametrize("first", [-(2**63), -2, 0, 2**53 + 1, 2**63 - 5])
def test_every_int_of_64_bits_is_exact(first):
    positions = np.arange(5) + np.int64(first)
    expected = ROPE(Q, K, positions)
    assert_same(ROPE(Q, K, first), expected)
    assert_same(ROPE(torch.tensor(Q), torch.tensor(K), first), expected)
    assert_same(ROPE.bind(Q, K)(Q, K, first), expected)
    pn.set_backend("reference")
    try:
        assert_same(ROPE(Q, K, first), ROPE(Q, K, positions))
    finally:
        pn.set_backend("native" if backend.native is not None else "reference")


def test_q_and_k_from_ints_of_their_own():
    one = torch.tensor(Q[:, :1])
    expected = ROPE.apply(Q[:, :1], [7]), ROPE.apply(K, AT)
    assert_same(ROPE(Q[:, :1], K, (np.array([7]), 3)), expected)
    assert_same(ROPE(one, torch.tensor(K), (torch.tensor([7]), 3)), expected)


def test_a_count_stays_one_where_a_table_is_made():
    assert ROPE.tables(4)[0].shape == (4, 4)
    np.testing.assert_array_equal(ROPE.tables(4)[0], ROPE.tables(np.arange(4))[0])


@kinds
def test_sinusoids_are_added_from_an_int_on(of):
    x = Q[..., 0, :]
    assert_same(pn.add_sinusoidal(of(x), 3), pn.add_sinusoidal(x, AT))
    if of is not of_numpy:
        module = pnn.SinusoidalPositionalEncoding(12).eval()
        assert_same(module(of(x), 3), module(torch.tensor(x), torch.tensor(AT)))


# --- Verbs of descriptions and modules


@kinds
def test_one_of_two_is_rotated_alone(of):
    expected = ROPE(Q, K, AT)
    for first in (3, AT):
        assert_same(ROPE(of(Q), None, first)[:1], expected[:1])
        assert ROPE(of(Q), None, first)[1] is None
        assert_same(ROPE(None, of(K), first)[1], expected[1])
    assert_same(pnn.RotaryEmbedding(ROPE).rope(of(Q), None, 3)[0], expected[0])


def test_modules_append_with_their_norm():
    rope = pnn.NormRotaryEmbedding(12, layout="bshd", eps=1e-3)
    with torch.no_grad():
        rope.q_weight.copy_(torch.linspace(0.5, 2, 12))
        rope.k_weight.copy_(torch.linspace(2, 0.5, 12))
    q, k, v = map(torch.tensor, (Q, K, V))
    keys, values = torch.zeros(2, 2, 2, 16, 12)
    with torch.no_grad():
        result = rope.append(q, k, v, 3, keys, values, AT)
        expected = rope(q, k, 3)
    assert_same(result, expected[0])
    assert_same(keys[:, :, 3:8].transpose(1, 2), expected[1])
    assert_same(values[:, :, 3:8].transpose(1, 2), v)
    plain = pnn.RotaryEmbedding(ROPE)
    result = plain.append(q, k, v, 3, keys, values, AT)
    assert_same(result, ROPE(q, k, 3)[0])
    # What scales or norms has no verb that would leave that out.
    assert not hasattr(pnn.XPos(12), "append")
    assert not hasattr(rope, "bind")


def test_learned_frequencies_stay_the_parameter():
    learned = pnn.LearnedRotaryEmbedding(ROPE)
    q, _ = pn.apply_rotary_qk(torch.tensor(Q), None, 3, learned)
    assert_same(q, pn.apply_rotary(Q, 3, np.float32(ROPE.inv_freq), **SAID))
    q.square().sum().backward()  # a rotation keeps it, but for the dims that are not rotated
    (torch.tensor(V[..., :1]) * learned(torch.tensor(Q), None, 3)[0][..., :2, :]).sum().backward()
    assert learned.inv_freq.grad is not None
    assert learned.inv_freq.grad.abs().max() > 0.1


def test_a_learned_module_keeps_the_rest_of_its_rotation():
    # By its own call: the functions above read scale and layout from the rotation.
    expected = pn.apply_rotary(Q, 3, np.float32(ROPE.inv_freq), **SAID)
    q, _ = pnn.LearnedRotaryEmbedding(ROPE)(torch.tensor(Q), None, 3)
    assert_same(q, expected)
    across = torch.tensor(Q).transpose(1, 2)
    q, _ = pnn.LearnedRotaryEmbedding(ROPE, layout="bhsd")(across, None, 3)
    assert_same(q.transpose(1, 2), expected)


@kinds
def test_in_place_is_whatever_is_true(of):
    if of is of_gradients:
        pytest.skip("nothing that requires a gradient is overwritten")
    q, k = of(Q), of(K)
    rotated = pn.norm_rotary_qk(q, k, [3, 4, 5, 6, 7], ROPE, inplace=np.bool_(True))
    assert rotated[0] is q
    assert rotated[1] is k
    assert_same((q, k), pn.norm_rotary_qk(Q, K, AT, ROPE))


@kinds
def test_one_alone_is_normed_by_what_each_head_has(of):
    freq = rng.random((4, 4))
    both = pn.norm_rotary_qk(Q, Q, AT, freq, layout="bshd")
    kept = of(Q)
    for inplace in (False, of is not of_gradients):
        alone = pn.norm_rotary_qk(None, kept, AT, freq, layout="bshd", inplace=inplace)
        assert alone[0] is None
        assert_same(alone[1], both[1])


def test_the_base_in_a_scaling_is_the_base():
    expected = pn.Rotary(12, base=1e6, scaling=YARN)
    rope = pn.Rotary(12, scaling={**YARN, "rope_theta": 1e6})
    assert rope == expected
    assert rope.base == 1e6
    assert repr(rope) == repr(expected)
    assert pn.Rotary(12, scaling={"rope_theta": None}) == pn.Rotary(12)
