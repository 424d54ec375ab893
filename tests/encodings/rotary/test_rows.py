"""Frequencies of each row of the batch, beside a call for each row: the same bits."""

from __future__ import annotations

import numpy as np
import pytest
from oracle import assert_same_bits

import posenc_native as pn

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
ROPES = [pn.Rotary(64), pn.Rotary(64, base=5e5), pn.Rotary(64, scaling=YARN)]
ROWS = pn.Rotary.rows(ROPES)
POSITIONS = {
    "counted": None,
    "from a position": 100,
    "of tokens": np.arange(7) * 11 + 2**40,
    "one row": np.arange(7)[None] * 3,
    "of rows": np.arange(21).reshape(3, 7) * 1000 - 9000,
    "floats": np.arange(21).reshape(3, 7) / 3,
}


def qkv(dtype="float32", module=np):
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((3, h, 7, 64)).astype(dtype) for h in (3, 1, 1)]
    return arrays if module is np else [module.from_numpy(x) for x in arrays]


def of_row(positions, i):
    return positions if np.ndim(positions) < 2 else positions[min(i, len(positions) - 1)]


def assert_same(ours, theirs):
    for x, y in zip(ours, theirs, strict=True):
        assert_same_bits(np.asarray(x), np.asarray(y))


def row(x, i):
    return None if x is None else x[i : i + 1]


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", POSITIONS)
def test_a_row_rotates_as_alone(name, dtype, library, native):
    module = pytest.importorskip(library)
    q, k, v = qkv(dtype, module)
    positions = POSITIONS[name]
    rotated = ROWS(q, k, positions)
    normed = ROWS.norm(q, k, positions, q_weight=np.linspace(0, 2, 64))
    caches = [module.zeros_like(v) for _ in "kv"]
    appended = ROWS.append(q, k, v, positions, *caches, np.arange(7), return_k=True)
    written = ROWS.norm(q, k, positions, compute="as_written")
    for i, rope in enumerate(ROPES):
        own = (row(q, i), row(k, i), of_row(positions, i))
        assert_same([row(x, i) for x in rotated], rope(*own))
        assert_same([row(x, i) for x in appended], rope(*own))
        assert_same([row(caches[0], i)], [rope.apply(own[1], own[2])])
        assert_same([row(x, i) for x in normed], rope.norm(*own, q_weight=np.linspace(0, 2, 64)))
        assert_same([row(x, i) for x in written], rope.norm(*own, compute="as_written"))


def test_the_plain_implementation_takes_rows(backend):
    """Its tables are rounded, its rotation alone is not."""
    q, k, _ = qkv()
    rotated = ROWS(q, k, POSITIONS["of rows"])
    for i, rope in enumerate(ROPES):
        wanted = rope(row(q, i), row(k, i), POSITIONS["of rows"][i])
        for ours, theirs in zip(rotated, wanted, strict=True):
            np.testing.assert_allclose(row(ours, i), theirs, rtol=0, atol=1e-6)


def test_a_number_of_rows_is_not_taken_for_one_of_heads(native):
    """[3, P] are of heads unless the call names the axes: q has three heads and three rows."""
    q, *_ = qkv()
    inv_freq = ROWS.inv_freq
    by_row = pn.apply_rotary(q, None, inv_freq, inv_freq_axes="bp")
    by_head = pn.apply_rotary(q, None, inv_freq)
    assert_same([by_head], [pn.apply_rotary(q, None, inv_freq, inv_freq_axes="hp")])
    for i in range(3):
        assert_same([by_row[i]], [pn.apply_rotary(q[i], None, inv_freq[i], layout="hsd")])
        assert_same([by_head[:, i]], [pn.apply_rotary(q[:, i], None, inv_freq[i], layout="bsd")])
    cos, sin = pn.rotary_tables(np.arange(7), inv_freq, inv_freq_axes="bp")
    assert_same([cos[1], sin[1]], pn.rotary_tables(np.arange(7), inv_freq[1]))


def test_every_way_to_call_with_axes(native):
    q, k, v = qkv()
    options = {"inv_freq_axes": "bp", "scale": 0.5}
    wanted = pn.apply_rotary_qk(q, k, None, ROWS.inv_freq, **options)
    caches = np.zeros((2, *v.shape), np.float32)
    where = (ROWS.inv_freq, *caches, np.arange(7))
    assert_same(pn.rotary_append(q, k, v, None, *where, return_k=True, **options), wanted)
    assert_same([caches[0]], [wanted[1]])
    normed = pn.norm_rotary_qk(q, k, None, ROWS.inv_freq, **options)
    theirs = pn.norm_rotary_qk(q[1:2], k[1:2], None, ROWS.inv_freq[1], scale=0.5)
    assert_same([x[1:2] for x in normed], theirs)
    one = q.copy()
    pn.apply_rotary(one, None, ROWS.inv_freq, out=one, **options)
    assert_same([one], [wanted[0]])
    pair = pn.apply_rotary_qk(q, k[:, :, :2], (None, [5, 6]), ROWS)
    assert_same([pair[1][1]], [ROPES[1].apply(k[1:2, :, :2], 5)[0]])


def test_several_position_axes(native):
    axis_map = np.arange(32) % 2
    ropes = [pn.Rotary(64, base=base, axis_map=axis_map) for base in (1e4, 5e5, 1e6)]
    q, k, _ = qkv()
    positions = np.stack([np.arange(21).reshape(3, 7), np.arange(21).reshape(3, 7)[::-1]])
    rotated = pn.Rotary.rows(ropes)(q, k, positions)
    for i, rope in enumerate(ropes):
        assert_same([row(x, i) for x in rotated], rope(row(q, i), row(k, i), positions[:, i]))


def test_packed_sequences_have_frequencies_of_their_own(native):
    x = qkv()[0].swapaxes(1, 2).reshape(21, 3, 64)
    positions = np.concatenate([np.arange(4), np.arange(12), np.arange(5)])
    tables = pn.Tables(*ROWS.tables(positions, starts=[0, 4, 16, 21]))
    rotated = pn.apply_rotary(x, None, tables, layout="thd")
    for rope, part in zip(ROPES, (slice(0, 4), slice(4, 16), slice(16, 21)), strict=True):
        assert_same([rotated[part]], [rope.apply(x[part], layout="thd")])


def test_gradients_of_rows():
    torch = pytest.importorskip("torch")
    q = qkv(module=torch)[0]
    inv_freq = torch.from_numpy(ROWS.inv_freq)
    given = [x.clone().requires_grad_() for x in (q, inv_freq)]
    y = pn.apply_rotary(given[0], None, given[1], inv_freq_axes="bp")
    (y * y.detach().flip(2)).sum().backward()
    for i in range(3):
        own = [x.clone().requires_grad_() for x in (q[i : i + 1], inv_freq[i])]
        y = pn.apply_rotary(own[0], None, own[1])
        (y * y.detach().flip(2)).sum().backward()
        torch.testing.assert_close(given[0].grad[i : i + 1], own[0].grad, rtol=0, atol=2e-6)
        torch.testing.assert_close(given[1].grad[i], own[1].grad, rtol=1e-5, atol=1e-4)


def test_rows_in_a_compiled_step():
    torch = pytest.importorskip("torch")
    q, k, _ = qkv(module=torch)
    wanted = ROWS(q, k, 9)
    torch.compiler.reset()
    step = torch.compile(lambda q, k: ROWS(q, k, 9), fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        assert_same(step(q, k), wanted)


ERRORS = [
    (lambda q: pn.Rotary.rows([]), "ropes: expected a Rotary for each row of the batch, got none"),
    (lambda q: pn.Rotary.rows([ROPES[0], 1]), "ropes[1]: expected a Rotary, got int"),
    (
        lambda q: pn.Rotary.rows([ROPES[0], pn.Rotary(64, pairing="interleaved")]),
        "ropes[1]: expected pairing = 'half', as ropes[0] has, got 'interleaved'",
    ),
    (
        lambda q: ROWS.apply(q[:2]),
        "inv_freq: expected [b, P] with a row for each of the 2 rows of the batch, got shape",
    ),
    (lambda q: ROWS.apply(q[..., :32]), "x: expected heads of head_dim = 64"),
    (
        lambda q: ROWS.apply(q[0], layout="thd"),
        "for packed tokens write Tables(*rows.tables(positions, starts=starts))",
    ),
    (
        lambda q: pn.apply_rotary(q, None, ROWS.inv_freq[0], inv_freq_axes="bp"),
        "inv_freq: expected shape [b, P], got [32]",
    ),
    (
        lambda q: pn.apply_rotary(q, None, ROWS.inv_freq, inv_freq_axes="ph"),
        "inv_freq_axes: expected one of p, hp, ahp, bp, got 'ph'",
    ),
    (
        lambda q: pn.apply_rotary(q, None, ROPES[0], inv_freq_axes="bp"),
        "inv_freq_axes: expected None beside a Rotary, which has its axes, got bp",
    ),
    (
        lambda q: pn.apply_rotary(q, None, ROWS, scale=2.0),
        "scale: expected no scale beside Rotary.rows, which have it, got 2.0",
    ),
    (
        lambda q: ROWS.apply(q, np.zeros((2, 7))),
        "positions: expected shape [s], [1, s] or [b, s] with b = 3, s = 7, got [2, 7]",
    ),
    (
        lambda q: ROWS.tables(np.arange(9), starts=[0, 4, 9]),
        "starts: expected shape [b + 1] = [4], got 3",
    ),
]


@pytest.mark.parametrize(("call", "message"), ERRORS)
def test_errors_say_what_to_write(call, message, native):
    with pytest.raises((ValueError, TypeError)) as caught:
        call(qkv()[0])
    assert message in str(caught.value)
