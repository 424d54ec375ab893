"""xPos, against the libraries that have it and its formula, and with a cache of keys.

Their angle is fl(p * w) in float32, their power a float32 power of a float32 base: with
u = 2^-24, for positions below 2^12 and heads of 32,

    their angle     off by u * p * w, u more for w itself and 3u * p * w for a power that made it
    their factor    z^t, t = (p - c) / 512 in float32: z and t are off by u of themselves, the power
                    by 2u of the result:  (|t| + |t ln z| + 2) u of the factor
    their table     sine and cosine, and the products with the factor: 4u of the factor
    ours            in float64, rounded once: u of the factor
    a result        two products and a sum on either side: 4u of its terms
"""

from __future__ import annotations

import math
import pickle
import re

import numpy as np
import outside
import pytest
from matrices import others_slow

import posenc_native as pn

U = 2.0**-24
D = 32
INV_FREQ = pn.rotary.rotary_frequencies(D)[0]


def normal(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def rotated(q, k, positions=None, inv_freq=INV_FREQ, *, layout="bhsd", **options):
    """q and k by tables of these positions, None for each from 0; tables of float64 for float64."""
    if positions is None:
        positions = tuple(np.arange(x.shape[layout.index("s")]) for x in (q, k))
    names = ("center", "scale_base", "gamma", "scale")
    of_tables = {name: options.pop(name) for name in names if name in options}
    dtype = q.dtype if q.dtype.itemsize == 8 else None
    tables = pn.rotary.xpos_tables(positions, inv_freq, dtype=dtype, **of_tables)
    return pn.apply_rotary_qk(q, k, None, tables, layout=layout, **options)


def zeta(dim=D, gamma=0.4):
    return (np.arange(0, dim, 2) + gamma * dim) / ((1 + gamma) * dim)


def formula(x, positions, center, sign, pairing="interleaved", scale_base=512, gamma=0.4):
    """The paper's, in float64; x [..., s, D]."""
    x = x.astype(np.float64)
    angle = positions[:, None] * INV_FREQ
    factor = zeta(gamma=gamma) ** (sign * (positions[:, None] - center) / scale_base)
    cos, sin = np.cos(angle) * factor, np.sin(angle) * factor
    if pairing == "interleaved":
        a, b = x[..., 0::2], x[..., 1::2]
        return np.stack([a * cos - b * sin, b * cos + a * sin], -1).reshape(x.shape)
    a, b = x[..., : D // 2], x[..., D // 2 :]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def terms(x, positions, center, sign, pairing="interleaved", **options):
    """Factor times |a| + |b| for each element: what errors are relative to."""
    x = np.abs(x.astype(np.float64))
    factor = zeta() ** (sign * (positions[:, None] - center) / options.get("scale_base", 512))
    if pairing == "interleaved":
        size = (x[..., 0::2] + x[..., 1::2]) * factor
        return np.repeat(size, 2, -1)
    return np.tile((x[..., : D // 2] + x[..., D // 2 :]) * factor, 2)


def their_bound(x, positions, center, sign, pairing="interleaved"):
    inverse = sign == -1  # rounded once more
    t = np.abs(positions[:, None] - center) / 512
    angle = positions[:, None] * INV_FREQ
    relative = 5 * angle + t + t * np.abs(np.log(zeta())) + 2 + 4 + 1 + 8 + inverse
    relative = np.repeat(relative, 2, -1) if pairing == "interleaved" else np.tile(relative, 2)
    return relative * U * terms(x, positions, center, sign, pairing)


def assert_within(actual, expected, bound):
    excess = np.abs(np.asarray(actual, np.float64) - np.asarray(expected, np.float64)) - bound
    assert (excess <= 0).all(), f"beyond the bound by {excess.max()}"


# --- The formula


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize(
    ("dtype", "u"), [(np.float32, U), (np.float64, 2.0**-53)], ids=["float32", "float64"]
)
@pytest.mark.parametrize("center", [0.0, 300.5, -7.0])
def test_the_formula(pairing, dtype, u, center):
    q, k = normal(2, 3, 9, D, dtype=dtype), normal(2, 1, 9, D, seed=1, dtype=dtype)
    positions = np.array([0, 1, 2, 50, 511, 512, 1000, 4000, 20000])
    results = rotated(q, k, positions, center=center, pairing=pairing)
    for x, sign, result in ((q, 1, results[0]), (k, -1, results[1])):
        assert result.dtype == dtype
        # Ours: a table (u of the factor) and 3 roundings; the formula's angle is off by 2^-53 of
        # itself and its power by (|t| + 2) 2^-53, our angle in float64 by 2^-60 a position.
        bound = (4 * u + (20000 + 64) * 2.0**-53 + 20000 * 2.0**-60) * terms(
            x, positions, center, sign, pairing
        )
        assert_within(result, formula(x, positions, center, sign, pairing), bound)


def test_scale_base_gamma_and_scale():
    (cos_q, cos_k), (sin_q, sin_k), *_ = pn.rotary.xpos_tables(
        np.array([5, 100]), INV_FREQ, center=3, scale_base=64, gamma=0.1, scale=2.0,
        dtype=np.float64,
    )  # fmt: skip
    factor = zeta(gamma=0.1) ** (np.array([[2], [97]]) / 64)
    cos, sin = pn.rotary_tables(np.array([5, 100]), INV_FREQ, dtype=np.float64)
    for actual, expected in (
        (cos_q, 2 * cos * factor), (sin_q, 2 * sin * factor),
        (cos_k, 2 * cos / factor), (sin_k, 2 * sin / factor),
    ):  # fmt: skip
        # Three roundings, and a power of at most 97 / 64 of a rounded base.
        np.testing.assert_allclose(actual, expected, rtol=8 * 2.0**-53, atol=0)


def test_scores_depend_on_the_distance_alone_and_decay():
    q, k = normal(D, dtype=np.float64), normal(D, seed=1, dtype=np.float64)
    positions = np.arange(1, 2000, 37)
    x, y = (np.broadcast_to(v, (len(positions), D)) for v in (q, k))
    scores = []
    for shift in (0, 1234):
        at = positions + shift, np.full(len(positions), shift)
        far, near = rotated(x, y, at, layout="sd")
        scores.append((far * near).sum(-1))
    # 1234 positions from the center factors reach 1.3e1, so that terms are off by as much more.
    np.testing.assert_allclose(scores[0], scores[1], rtol=0, atol=64 * 20 * 2.0**-53 * D)
    pairs = q[: D // 2] ** 2 + q[D // 2 :] ** 2
    at = positions, np.zeros(len(positions))
    far, near = rotated(x, x, at, INV_FREQ * 0, layout="sd")
    decayed = (zeta() ** (positions[:, None] / 512) * pairs).sum(-1)
    np.testing.assert_allclose((far * near).sum(-1), decayed, rtol=64 * 2.0**-53)
    assert (np.diff(decayed) < 0).all()


# --- Other libraries


def torchscale(x, offset, downscale):
    """torchscale's convention: the center is half of the length, rounded up; x [s, D]."""
    length = len(x) + offset
    lowest = -length // 2  # Python rounds down
    power = np.arange(lowest, length + lowest) / 512
    factor = zeta()[None] ** power[:, None]
    factor = (1 / factor if downscale else factor)[-len(x) :]
    angle = (np.arange(length)[:, None] * INV_FREQ)[-len(x) :]
    cos, sin = np.repeat(np.cos(angle) * factor, 2, 1), np.repeat(np.sin(angle) * factor, 2, 1)
    turned = np.stack([-x[:, 1::2], x[:, 0::2]], -1).reshape(x.shape)
    return x * cos + turned * sin


@pytest.mark.parametrize("length", [8, 9])
def test_torchscale(length):
    q, k = (normal(length, D, seed=i, dtype=np.float64) for i in (0, 1))
    options = {"layout": "sd", "pairing": "interleaved"}
    center = (length + 1) // 2
    ours = rotated(q, k, center=center, **options)
    for x, theirs, downscale in ((q, ours[0], False), (k, ours[1], True)):
        np.testing.assert_allclose(
            theirs, torchscale(x, 0, downscale), rtol=0, atol=64 * 2.0**-53 * np.abs(x).max()
        )
    # A step of decoding: all keys again, the last query.
    at = np.array([length - 1]), np.arange(length)
    step, _ = rotated(q[-1:], k, at, center=center, **options)
    np.testing.assert_allclose(
        step, torchscale(q[-1:], length - 1, False), rtol=0, atol=64 * 2.0**-53 * np.abs(q).max()
    )


@pytest.mark.parametrize("length", [7, 64, 1000])
def test_rotary_embedding_torch(length):
    torch = pytest.importorskip("torch")
    module = outside.module("rotary_embedding_torch")
    theirs = module.RotaryEmbedding(D, use_xpos=True, cache_if_possible=False)
    q, k = normal(1, 2, length, D), normal(1, 2, length, D, seed=1)
    with torch.no_grad():
        expected = theirs.rotate_queries_and_keys(torch.from_numpy(q), torch.from_numpy(k))
    results = rotated(q, k, center="length", pairing="interleaved")
    positions, center = np.arange(length), length // 2
    for x, sign, result, other in zip((q, k), (1, -1), results, expected, strict=True):
        assert_within(result, other.numpy(), their_bound(x, positions, center, sign))


@pytest.mark.parametrize("length", [7, 64, 1000])
def test_x_transformers(length):
    torch = pytest.importorskip("torch")
    module = outside.module("x_transformers.x_transformers")
    theirs = module.RotaryEmbedding(D, use_xpos=True)
    q, k = normal(1, 2, length, D), normal(1, 2, length, D, seed=1)
    freqs, factor = theirs.forward_from_seq_len(length)
    expected = [
        module.apply_rotary_pos_emb(torch.from_numpy(x), freqs, f)
        for x, f in ((q, factor), (k, factor**-1))
    ]
    results = rotated(q, k, center="length", pairing="interleaved")
    positions, center = np.arange(length), length // 2
    for x, sign, result, other in zip((q, k), (1, -1), results, expected, strict=True):
        assert_within(result, other.numpy(), their_bound(x, positions, center, sign))


# --- A cache of keys


def scores_of(q, k):
    return np.einsum("...qd,...kd->...qk", q, k)


def test_keys_stay_valid_with_a_fixed_centre_and_not_with_the_length():
    length, first = 600, 300
    q, k = (normal(1, 2, length, D, seed=i, dtype=np.float64) for i in (0, 1))
    whole = {}
    for center in (0.0, 256.0, "length"):
        whole[center] = scores_of(*rotated(q, k, center=center))
    # The center cancels.
    np.testing.assert_allclose(whole[0.0], whole[256.0], rtol=0, atol=1e-12)
    np.testing.assert_allclose(whole[0.0], whole["length"], rtol=0, atol=1e-12)

    for center in whole:
        cached = rotated(q[:, :, :first], k[:, :, :first], center=center)[1]
        positions = np.arange(first, length)
        new_q, new_k = rotated(
            q[:, :, first:], k[:, :, first:], positions,
            # The length is that of all keys, as a library that re-centres has it.
            center=length // 2 if center == "length" else center,
        )  # fmt: skip
        scores = scores_of(new_q, np.concatenate([cached, new_k], 2))
        error = np.abs(scores - whole[center][:, :, first:]).max()
        if center == "length":
            assert error > 1  # what was cached has another center
        else:
            assert error < 1e-12  # of scores of up to 1e2


def test_q_and_k_of_different_lengths_heads_and_batched_positions():
    q, k = normal(2, 3, 4, D), normal(2, 1, 7, D, seed=1)
    at_q, at_k = np.array([[3, 4, 5, 6], [0, 1, 2, 3]]), np.arange(7) + np.array([[0], [5]])
    ours = rotated(q, k, (at_q, at_k), center=2)
    for b in range(2):
        other = rotated(q[b], k[b], (at_q[b], at_k[b]), center=2, layout="hsd")
        np.testing.assert_array_equal(ours[0][b], other[0])
        np.testing.assert_array_equal(ours[1][b], other[1])


# --- Range


LARGEST = {"float16": 65504.0, "float32": float(np.finfo(np.float32).max),
           "float64": float(np.finfo(np.float64).max)}  # fmt: skip


def reach(dtype, scale_base=512, scale=1.0):
    """The distance at which a pair of elements of 16, rotated, is the largest number of a dtype."""
    room = LARGEST[dtype] / (16 * math.sqrt(2) * scale)
    return int(math.log(room) / -math.log(0.4 / 1.4) * scale_base)


def test_positions_too_far_from_the_centre_are_an_error():
    near = np.array([-reach("float32"), reach("float32")])
    tables = pn.rotary.xpos_tables(near, INV_FREQ)
    for cos, sin in zip(tables.cos, tables.sin, strict=True):
        size = np.hypot(cos.astype(np.float64), sin)
        assert np.isfinite(size).all()
        assert size.min() > np.finfo(np.float32).tiny  # a normal number on either side
    for positions in (near + 2, near - 2):
        with pytest.raises(ValueError, match=r"positions: expected within 34985 of the center, 0"):
            pn.rotary.xpos_tables(positions, INV_FREQ)
    pn.rotary.xpos_tables(near + 10**6, INV_FREQ, center=1e6)
    far = np.array([-reach("float64"), reach("float64")])
    pn.rotary.xpos_tables(far, INV_FREQ, dtype=np.float64)
    with pytest.raises(ValueError, match="positions: expected within"):
        pn.rotary.xpos_tables(far + 2, INV_FREQ, dtype=np.float64)
    for pair in ((near[1:], near[1:] + 2), (near[1:] + 2, near[1:])):
        with pytest.raises(ValueError, match="positions: expected within"):
            pn.rotary.xpos_tables(pair, INV_FREQ)
    for count in (0, 1):
        for cos in pn.rotary.xpos_tables(count, INV_FREQ).cos:
            assert cos.shape == (count, D // 2)
    with pytest.raises(ValueError, match="a position 40000 from it; use float64, or center=20000"):
        pn.rotary.xpos_tables(40_001, INV_FREQ)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("scale_base", [64, 512])
def test_half_precision_holds_the_scores_or_says_how_far_it_does(sign, scale_base):
    """The range is that of q and k, not only of the tables, and has room for their elements.

    Older tests rotate float16 near the center alone: factors of 65,504 and more made inf and NaN.
    """
    far, options = reach("float16", scale_base), {"scale_base": scale_base}
    x = np.full((1, 1, 2, D), 16.0, np.float16)
    x[..., ::3] = -16
    at = sign * np.array([far, far - 7])
    tables = pn.rotary.xpos_tables(at, INV_FREQ, **options)
    q, k = pn.apply_rotary_qk(x, x, None, tables)
    assert np.isfinite(q).all()
    assert np.isfinite(k).all()
    exact = [formula(x, at, 0, side, "half", scale_base) for side in (1, -1)]
    expected = scores_of(*exact)
    # q and k are rounded once, near the smallest normal number by 2^-25.
    size = np.abs(np.stack(exact))
    error = 2.0**-11 * size + 2.0**-25
    bound = scores_of(size[0] + error[0], size[1] + error[1]) - scores_of(size[0], size[1])
    assert_within(scores_of(q.astype(np.float64), k.astype(np.float64)), expected, bound)

    tables = pn.rotary.xpos_tables(at + sign, INV_FREQ, **options)
    expected_error = (
        rf"inv_freq: expected tables of positions within {far} of the center, 0 \(float16 holds "
        rf"their factors times elements of up to 16\), got a position {far + 1} from it; use "
        rf"bfloat16 or float32, or center=.* in all calls, or scale_base={scale_base + 1} in a"
    )
    for rotate in (
        lambda x: pn.apply_rotary_qk(x, x, None, tables),
        lambda x: pn.apply_rotary_qk(None, x, None, tables, inplace=True),
        lambda x: pn.apply_rotary(x, None, tables.of_one(1)),
        lambda x: pn.apply_rotary(x, None, pickle.loads(pickle.dumps(tables)).of_one(0)),
    ):
        before = x.copy()
        with pytest.raises(ValueError, match=expected_error):
            rotate(x)
        np.testing.assert_array_equal(x, before)
    wide = x.astype(np.float32)  # tables as far away still rotate other dtypes, with the same bits
    plain = pn.Tables(*tables)
    for result, other in zip(pn.apply_rotary_qk(wide, wide, None, tables),
                             pn.apply_rotary_qk(wide, wide, None, plain), strict=True):  # fmt: skip
        np.testing.assert_array_equal(result, other)


def test_what_the_error_of_range_suggests_is_in_range():
    x = np.ones((1, 1, 1, D), np.float16)
    for length, options in ((4533, {}), (8192, {}), (12_001, {"center": "length"}),
                            (3000, {"scale": 4.0})):  # fmt: skip
        last = np.array([length - 1]) if options.get("center") != "length" else np.arange(length)
        tables = pn.rotary.xpos_tables(last, INV_FREQ, **options)
        with pytest.raises(ValueError, match="inv_freq: expected tables") as error:
            pn.apply_rotary_qk(x, x, None, tables)
        for way in str(error.value).split(", or ")[1:]:
            words = dict(re.findall(r"(center|scale_base)=(\d+)", way))
            new = options | {name: float(value) for name, value in words.items()}
            for result in pn.apply_rotary_qk(
                *np.full((2, 1, 1, length, D), 16, np.float16), None,
                pn.rotary.xpos_tables(length, INV_FREQ, **new),
            ):  # fmt: skip
                assert np.isfinite(result).all()


def test_tables_of_float64_are_checked_for_narrower_elements():
    x = np.ones((1, 1, 1, D))
    tables = pn.rotary.xpos_tables(np.array([10**5]), INV_FREQ, dtype=np.float64)
    assert all(np.isfinite(y).all() for y in pn.apply_rotary_qk(x, x, None, tables))
    with pytest.raises(ValueError, match=r"within 34985 of the center, 0 \(float32 holds"):
        pn.apply_rotary_qk(*np.float32([x, x]), None, tables)


@pytest.mark.parametrize(
    ("kind", "match", "options"),
    [
        (ValueError, "center: expected a number or 'length', got 'middle'", {"center": "middle"}),
        (ValueError, "center: expected a finite number", {"center": math.inf}),
        (ValueError, "scale_base: expected a number > 0", {"scale_base": 0.0}),
        (TypeError, "gamma: expected a real number", {"gamma": "0.4"}),
        (TypeError, "positions: expected an integer dtype", {"positions": np.zeros(5, bool)}),
        (ValueError, r"inv_freq: expected shape \[P\]", {"inv_freq": INV_FREQ[None]}),
    ],
)  # fmt: skip
def test_errors(kind, match, options):
    values = {"positions": np.arange(5), "inv_freq": INV_FREQ} | options
    with pytest.raises(kind, match=f"xpos_tables: {match}"):
        pn.rotary.xpos_tables(**values)


def test_tables_are_float32_or_float64():
    with pytest.raises(TypeError, match="dtype: expected float32 or float64, got float16"):
        pn.rotary.xpos_tables(3, INV_FREQ, dtype=np.float16)


# --- torch


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.fixture
def pnn(torch):
    from posenc_native import nn

    return nn


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_tensors_have_the_bits_of_arrays(torch, dtype):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    kind = {"bfloat16": ml_dtypes.bfloat16}.get(dtype, dtype)
    q, k = normal(2, 3, 5, D).astype(kind), normal(2, 1, 5, D, seed=1).astype(kind)
    positions = np.array([0, 3, 4, 900, 2000])
    ours = rotated(q, k, positions, center=100)
    tensors = [torch.from_numpy(x.astype(np.float64)).to(getattr(torch, dtype)) for x in (q, k)]
    results = rotated(*tensors, torch.from_numpy(positions), torch.from_numpy(INV_FREQ), center=100)
    for array, tensor in zip(ours, results, strict=True):
        assert tensor.dtype == getattr(torch, dtype)
        # NumPy and torch each have an exp of their own, within a unit of float64: one of 2^29
        # tables rounds the other way in float32.
        unit = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2 * U, "float64": 2.0**-50}
        np.testing.assert_allclose(
            tensor.double().numpy(), array.astype(np.float64), rtol=unit[dtype],
            atol=unit[dtype] * 0.1,
        )  # fmt: skip


def test_half_precision_is_rounded_once(torch):
    q, k = (torch.from_numpy(normal(1, 2, 600, D, seed=i)).bfloat16() for i in (0, 1))
    results = rotated(q, k, None, torch.from_numpy(INV_FREQ))
    exact = rotated(q.double(), k.double(), None, torch.from_numpy(INV_FREQ))
    for x, sign, result, other in zip((q, k), (1, -1), results, exact, strict=True):
        size = terms(x.double().numpy(), np.arange(600), 0, sign, "half")
        bound = 2.0**-8 * np.abs(other.numpy()) * (1 + 8 * U) + 5 * U * size + 2.0**-134
        assert_within(result.double().numpy(), other.numpy(), bound)


def test_gradients(torch):
    q, k = (torch.from_numpy(normal(1, 2, 3, 8, seed=i, dtype=np.float64)) for i in (0, 1))
    inv_freq = torch.from_numpy(pn.rotary.rotary_frequencies(8)[0])
    positions = torch.tensor([0, 70, 900])
    q.requires_grad_()
    k.requires_grad_()

    def turn(q, k):
        return rotated(q, k, positions, inv_freq, center=50)

    assert torch.autograd.gradcheck(turn, (q, k))
    assert torch.autograd.gradgradcheck(turn, (q, k))


def test_module(torch, pnn):
    options = {"center": 64, "scale_base": 128.0, "gamma": 0.3}
    module = pnn.XPos(D, base=500.0, rotary_dim=16, rotary_start=8, pairing="interleaved",
                      **options)  # fmt: skip
    assert not list(module.state_dict())
    q, k = torch.randn(1, 2, 5, D), torch.randn(1, 1, 5, D)
    positions = torch.tensor([1, 60, 64, 90, 200])
    inv_freq = torch.from_numpy(pn.rotary.rotary_frequencies(16, 500.0)[0])
    expected = rotated(q, k, positions, inv_freq, pairing="interleaved", rotary_start=8, **options)
    for result, other in zip(module(q, k, positions), expected, strict=True):
        assert torch.equal(result, other)
    # Half precision leaves the tables in float32.
    half = module.half()(q.half(), k.half(), positions)
    for result, other in zip(half, module(q.half().float(), k.half().float(), positions),
                             strict=True):  # fmt: skip
        assert torch.equal(result, other.half())
    assert "scale_base=128.0" in repr(module)
    with pytest.raises(ValueError, match="scale_base"):
        pnn.XPos(D, scale_base=-1.0)
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    with_factor = pnn.XPos(D, scaling=yarn)
    frequencies, factor = pn.rotary.rotary_frequencies(D, 10000.0, yarn)
    expected = rotated(q, k, positions, torch.from_numpy(frequencies), scale=factor)
    assert torch.equal(with_factor(q, k, positions)[1], expected[1])


def test_range_of_tensors(torch, pnn):
    """float16 beyond the range of its factors, where 4,000 of 8,192 rows of attention were NaN."""
    module = pnn.XPos(64)
    x = torch.ones(1, 1, 8192, 64, dtype=torch.float16)
    expected = r"XPos: positions: expected within 3257 of the center, 0 \(float16 holds"
    one, all_of_them = x[:, :, :1], torch.arange(8192)
    for q, positions, k_positions in (
        (x, None, None), (x, all_of_them, None), (one, torch.tensor([0]), all_of_them),
        (one, 4532, None),
    ):  # fmt: skip
        k = one if type(positions) is int else x
        with pytest.raises(ValueError, match=expected):
            module(q, k, positions, k_positions=k_positions)
    for other in (torch.bfloat16, torch.float32, torch.float64):
        assert all(y.isfinite().all() for y in module(x.to(other), x.to(other)))
    some = 16 * x[:, :, :6258]
    assert all(y.isfinite().all() for y in pnn.XPos(64, center=3000)(some, some))
    tables = pn.rotary.xpos_tables(torch.tensor([4532]), module.rope)
    with pytest.raises(ValueError, match="apply_rotary_qk: inv_freq: expected tables of positions"):
        pn.apply_rotary_qk(one, one.clone().requires_grad_(), None, tables)
    wide = one.float().requires_grad_()
    pn.apply_rotary_qk(wide, wide, None, tables)[1].sum().backward()
    assert wide.grad.isfinite().all()


def test_range_is_not_checked_where_positions_cannot_be_read(torch, pnn):
    from torch._subclasses.fake_tensor import FakeTensorMode

    module = pnn.XPos(64)
    with FakeTensorMode(allow_non_fake_inputs=True):
        x, at = torch.empty(1, 1, 8192, 64, dtype=torch.float16), torch.arange(8192)
        assert module(x, x, at)[0].shape == module(x, x)[1].shape == x.shape
    x = torch.empty(1, 1, 8192, 64, dtype=torch.float16, device="meta")
    assert module(x, x)[0].is_meta
    compiled = torch.compile(lambda x: module(x, x), fullgraph=True, backend="eager")
    assert compiled(torch.ones(1, 1, 8192, 64, dtype=torch.float16))[0].isfinite().all()
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("center", others_slow([100.0, "length"], "length"))
def test_compiled(torch, pnn, center):
    module = pnn.XPos(D, center=center)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager", dynamic=True)
    for length in (5, 9):
        q, k = torch.randn(1, 2, length, D), torch.randn(1, 1, length, D)
        at = (torch.arange(length) + 3,) if center == 100.0 else ()
        results = []
        for function in (compiled, module):
            x = q.clone().requires_grad_()
            turned = function(x, k, *at)
            turned[0].square().sum().backward()
            results.append((*turned, x.grad))
        for a, b in zip(*results, strict=True):
            torch.testing.assert_close(a, b, rtol=2 * U, atol=1e-6)
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_exported(torch, pnn):
    module, length = pnn.XPos(D), torch.export.Dim("length", max=1000)
    shapes = {"q": {2: length}, "k": {2: length}}
    inputs = torch.randn(1, 2, 5, D), torch.randn(1, 1, 5, D)
    program = torch.export.export(module, inputs, dynamic_shapes=shapes).module()
    inputs = torch.randn(1, 2, 9, D), torch.randn(1, 1, 9, D)
    for a, b in zip(program(*inputs), module(*inputs), strict=True):
        torch.testing.assert_close(a, b, rtol=2 * U, atol=1e-6)


def test_compiled_with_open_lengths():
    """A length that is the width of a head, or a part of it, is none of these for torch.compile."""
    torch = pytest.importorskip("torch")
    inv_freq = torch.from_numpy(pn.rotary.rotary_frequencies(16)[0])

    def turn(q, k):
        tables = pn.rotary.xpos_tables(torch.arange(q.shape[2]), inv_freq)
        return pn.apply_rotary_qk(q, k, None, tables)

    turn(torch.zeros(1, 1, 2, 16), torch.zeros(1, 1, 2, 16))  # the first use is eager
    fast = torch.compile(turn, fullgraph=True, dynamic=True, backend="aot_eager")
    for tokens in (8, 10, 16):
        q, k = torch.randn(2, 2, 3, tokens, 16).unbind()
        torch.testing.assert_close(fast(q, k), turn(q, k), rtol=0, atol=0)
