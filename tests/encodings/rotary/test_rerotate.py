"""Keys that are turned on: as if they had been rotated by the new positions at once."""

from __future__ import annotations

import numpy as np
import pytest
from bad_calls import Call, T, V, assert_held, by_engine
from oracle import DTYPES, HALF_DTYPES, PRECISION, assert_same_bits
from targets import NEEDS_NATIVE

import posenc_native as pn

each_backend = pytest.mark.usefixtures("backend")

SHORT, LONG = np.linspace(1, 2, 8).tolist(), np.linspace(2, 30, 8).tolist()
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": SHORT,
    "long_factor": LONG,
    "original_max_position_embeddings": 16,
    "factor": 4.0,
}
ROPES = {
    "plain": pn.Rotary(20, rotary_dim=16, base=5e5),
    "interleaved": pn.Rotary(20, rotary_dim=16, pairing="interleaved", rotary_start=4),
    "axes": pn.Rotary(20, rotary_dim=16, axis_map=[0, 0, 1, 1, 2, 2, 0, 1], scale=1.5),
}


def keys(rng: np.random.Generator, dtype: str = "float64") -> np.ndarray:
    return rng.standard_normal((2, 3, 7, 20)).astype(DTYPES[dtype])


def points(rng: np.random.Generator, rope: pn.Rotary, batched: bool, limit: int = 10**6):
    axes = (3,) if rope.axis_map is not None else ()
    return rng.integers(-limit, limit, (*axes, 2, 7) if batched else (*axes, 7))


@each_backend
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ROPES)
def test_from_positions_to_positions(name, dtype):
    rope, rng = ROPES[name], np.random.default_rng(1)
    k = keys(rng, dtype)
    for batched in (False, True):
        old, new = points(rng, rope, batched), points(rng, rope, not batched)
        if rope.axis_map is not None:
            new = points(rng, rope, batched)
        exact = rope.apply(k.astype(np.float64), new)
        cache = rope.apply(k, old)
        moved = pn.rerotate(cache, old, new, rope)
        # Two roundings of numbers no larger than a pair's length.
        length = np.abs(rope.apply(np.abs(k.astype(np.float64)), old)).max()
        assert np.abs(moved.astype(np.float64) - exact).max() <= 4 * length * 2.0 ** (
            -min(PRECISION[dtype], 22 if dtype != "float64" else 48)
        )
        assert pn.rerotate(cache, old, new, rope, out=cache) is cache
        assert_same_bits(cache, moved)


@each_backend
@pytest.mark.parametrize("frequencies", ["same", "others"])
def test_positions_of_one_row_serve_a_batch_of_any_size(frequencies):
    """Also a batch of as many rows as there are axes."""
    rope, rng = ROPES["axes"], np.random.default_rng(8)
    scale = 1.0 if frequencies == "same" else 0.5
    other = pn.Rotary(
        20, inv_freq=rope.inv_freq * scale, axis_map=rope.axis_map, scale=rope.scale
    )  # fmt: skip
    for batch in (1, 2, 3):
        k = rng.standard_normal((batch, 2, 7, 20))
        one, each = rng.integers(0, 10**5, (3, 7)), rng.integers(0, 10**5, (3, batch, 7))
        for old, new in ((one, each), (each, one)):
            turned = pn.rerotate(rope.apply(k, old), old, new, rope, other)
            np.testing.assert_allclose(turned, other.apply(k, new), atol=1e-10)


@each_backend
def test_the_context_shift():
    rope, rng = ROPES["plain"], np.random.default_rng(2)
    k = keys(rng)
    cache = rope.apply(k)[:, :, 3:]
    moved = pn.rerotate(cache, np.arange(3, 7), None, rope, out=cache)
    assert moved is cache
    np.testing.assert_allclose(cache, rope.apply(k[:, :, 3:]), atol=1e-13)


@each_backend
def test_from_frequencies_to_frequencies():
    short = pn.Rotary(20, rotary_dim=16, scaling=LONGROPE)
    long = pn.Rotary(20, rotary_dim=16, scaling={**LONGROPE, "seq_len": 17})
    assert not np.array_equal(short.inv_freq, long.inv_freq)
    rng = np.random.default_rng(3)
    k, old, new = keys(rng), rng.integers(0, 10**6, (2, 7)), rng.integers(0, 10**6, 7)
    turned = pn.rerotate(short.apply(k, old), old, new, short, long)
    np.testing.assert_allclose(turned, long.apply(k, new), atol=2e-12)
    back = pn.rerotate(turned, new, old, long, short)
    np.testing.assert_allclose(back, short.apply(k, old), atol=2e-12)
    # Another factor of cos and sin comes along.
    louder = pn.Rotary(20, inv_freq=long.inv_freq, scale=3.0)
    np.testing.assert_allclose(
        pn.rerotate(turned, new, old, long, louder), louder.apply(k, old), atol=2e-12
    )


@each_backend
@pytest.mark.parametrize("name", ROPES)
def test_fractional_positions_and_axes_with_other_frequencies(name):
    rope, rng = ROPES[name], np.random.default_rng(4)
    other = pn.Rotary(
        20, inv_freq=rope.inv_freq * rng.uniform(0.5, 2, 8), pairing=rope.pairing,
        rotary_start=rope.rotary_start, axis_map=rope.axis_map,
    )  # fmt: skip
    k = keys(rng)
    for old, new in (
        (points(rng, rope, True), points(rng, rope, False)),
        (points(rng, rope, True) / 64, points(rng, rope, True)),
    ):
        if rope.axis_map is not None:
            new = np.broadcast_to(new if new.ndim == 3 else new[:, None], old.shape)
        turned = pn.rerotate(rope.apply(k, old), old, new, rope, other)
        np.testing.assert_allclose(turned, other.apply(k, new), atol=1e-9)


@each_backend
@pytest.mark.parametrize("dtype", HALF_DTYPES)
def test_moves_add_up_no_more_than_roundings(dtype):
    """Errors of a cache that is moved again and again are those of its format alone."""
    rope, rng = ROPES["plain"], np.random.default_rng(5)
    k = keys(rng, dtype)
    cache = rope.apply(k)
    positions = np.arange(7)
    for step in range(1, 201):
        pn.rerotate(cache, positions, positions + 999, rope, out=cache)
        positions = positions + 999
        if step in (10, 200):
            error = cache.astype(np.float64) - rope.apply(k.astype(np.float64), positions)
            # Roundings are independent: they add up as a random walk does.
            assert np.sqrt((error**2).mean()) < 2 * np.sqrt(step) * 2.0 ** -PRECISION[dtype]


CACHE = keys(np.random.default_rng(6))
PLAIN = {"positions": np.arange(7), "new_positions": None, "rope": ROPES["plain"]}
move = Call("rerotate", keys=CACHE, **PLAIN).but(out=CACHE)
BAD = [
    move("another width", V, "new_rope: expected the rotary_dim", new_rope=pn.Rotary(20)),
    move("another pairing", V, "new_rope: expected the pairing", new_rope=ROPES["interleaved"]),
    move("no description", T, "new_rope", new_rope=5),
    move("nothing left to turn", V, "scale|rope", rope=pn.Rotary(20, rotary_dim=16, scale=0.0)),
    move("too few new positions", V, "new_positions", new_positions=np.arange(6)),
    move("too few positions", V, "positions", positions=np.arange(6)),
    move("three axes", V, "positions", positions=np.zeros((3, 7), int)),
    move("two axes of three", V, "new_positions: expected 3 axes", rope=ROPES["axes"],
         positions=np.zeros((3, 7), int), new_positions=np.zeros((2, 7), int)),
    move("positions of bools", T, "positions", positions=np.zeros(7, bool)),
    move("layout of other axes", V, "layout|keys", layout="bhd"),
]  # fmt: skip


@by_engine(BAD)
def test_bad_calls_say_why_and_write_nothing(rows, engine, device):
    assert_held(rows, engine, device)


@NEEDS_NATIVE
@pytest.mark.usefixtures("native")
def test_tensors_have_the_bits_of_arrays():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(7)
    for rope in ROPES.values():
        other = pn.Rotary(
            20, inv_freq=rope.inv_freq / 3, pairing=rope.pairing,
            rotary_start=rope.rotary_start, axis_map=rope.axis_map,
        )  # fmt: skip
        k, old, new = keys(rng, "float32"), points(rng, rope, True), points(rng, rope, True)
        for new_rope in (None, other):
            expected = pn.rerotate(k, old, new, rope, new_rope)
            cache = torch.tensor(k)

            def move(cache, old, new, rope=rope, new_rope=new_rope):
                return pn.rerotate(cache, old, new, rope, new_rope, out=cache)

            move(cache, torch.tensor(old), torch.tensor(new))
            np.testing.assert_array_equal(cache.numpy(), expected)
            compiled = torch.compile(move, fullgraph=True, backend="eager")
            cache = torch.tensor(k)
            compiled(cache, torch.tensor(old), torch.tensor(new))
            np.testing.assert_array_equal(cache.numpy(), expected)
            torch._dynamo.reset()
