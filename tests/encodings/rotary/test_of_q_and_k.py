"""q and k that differ in one call: pairs of options, and one of the two alone.

The oracle of a call for both is a call for each.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import outside
import pytest
import rotating
from rotating import Call, each_writing_engine, every_engine

import posenc_native as pn
from posenc_native.core.calls.rotation import Rotation
from posenc_native.engines.plain import arrays as reference

FREQ = pn.rotary.rotary_frequencies(8)[0]
SHORT, LONG = np.array([9, 3, 70000]), np.array([0, 1, 2, 3, 4, 5, 6])
EACH = np.stack([LONG, LONG[::-1]])
AXES = np.array([0, 1, 1, 0])
BY_HEAD = np.stack([FREQ, FREQ / 2])
FLOATS = np.array([0.5, 1e5, -3.25])


def heads(*shape: int, seed: int = 0, dtype: str = "f4") -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


Q, K = heads(2, 4, 3, 8), heads(2, 2, 7, 8, seed=1)
WIDE, NARROW = heads(2, 4, 7, 24, seed=2), heads(2, 1, 7, 8, seed=3)
TWO = (heads(2, 2, 3, 8), heads(2, 2, 7, 8, seed=1))
TABLES = {
    "of 3": pn.rotary_tables(SHORT, FREQ),
    "of 7": pn.rotary_tables(EACH, FREQ),
    "of 7, two pairs": pn.rotary_tables(LONG, FREQ[:2]),
}


def at(q_positions: Any, k_positions: Any, freq: Any = FREQ) -> tuple[Any, ...]:
    return (q_positions, k_positions), freq


def tables(of_q: str, of_k: str) -> tuple[Any, ...]:
    (q_cos, q_sin), (k_cos, k_sin) = TABLES[of_q], TABLES[of_k]
    return (q_cos, k_cos), (q_sin, k_sin)


# name: q and k, then angles and options.
CALLS: dict[str, tuple[tuple[Any, Any], tuple[Any, ...], dict[str, Any]]] = {
    "lengths": ((Q, K), at(SHORT, LONG), {}),
    "each its own count": ((Q, K), at(None, None), {}),
    "one of a batch": ((Q, K), at(SHORT[None], EACH), {"scale": 1.5}),
    "k counted": ((Q, K), at(FLOATS, None), {"inverse": True}),
    "q counted": ((Q, K), at(None, LONG), {"pairing": "interleaved"}),
    "batches": ((Q[:1], K), at(SHORT, EACH), {}),
    "axes": ((Q, K), at(np.stack([SHORT, SHORT * 2]), np.stack([EACH, EACH + 1])),
             {"axis_map": AXES}),
    "of each head": (TWO, at(SHORT, LONG, BY_HEAD), {}),
    "heads and axes": (
        TWO, at(np.stack([SHORT, SHORT * 2]), np.stack([LONG, LONG]), np.stack([BY_HEAD] * 2)), {}
    ),
    "packed": ((heads(5, 2, 8), heads(9, 1, 8)), at(np.arange(5), np.arange(9) % 4),
               {"layout": "thd"}),
    "starts": ((WIDE, NARROW), (LONG, FREQ), {"rotary_start": (16, 0)}),
    "starts, no positions": ((WIDE, NARROW), (None, FREQ), {"rotary_start": (16, 0)}),
    "starts of one width": ((NARROW, NARROW), (None, FREQ[:2]), {"rotary_start": (0, 4)}),
    "all of it": ((WIDE[:, :, :3], NARROW), at(SHORT, EACH),
                  {"rotary_start": (3, 0), "pairing": 4}),
    "tables": ((Q, K), tables("of 3", "of 7"), {}),
    "tables of other widths": ((Q, K), tables("of 3", "of 7, two pairs"), {"rotary_start": (0, 4)}),
    "tables, as written": ((Q, K), tables("of 3", "of 7"), {"compute": "as_written"}),
    "tables, starts": ((WIDE, NARROW), TABLES["of 7"], {"rotary_start": (7, 0)}),
}  # fmt: skip


def call_of(name: str, **more: Any) -> Call:
    rotated, angles, options = CALLS[name]
    function = "apply_rotary_qk" + (" by tables" if "tables" in name else "")
    return Call(function, rotated, angles, {**options, **more})


def one_by_one(name: str) -> tuple[np.ndarray, ...]:
    """By two calls of the reference in float64."""
    rotated, angles, options = CALLS[name]
    results = []
    for i, x in enumerate(rotated):
        mine = [a[i] if isinstance(a, tuple) else a for a in angles]
        own = {key: v[i] if isinstance(v, tuple) else v for key, v in options.items()}
        record = (rotating.turned_by if "tables" in name else Rotation)(*mine, **own)
        results.append(reference.apply_rotary(x.astype(np.float64), *record, None))
    return tuple(results)


@every_engine
def test_as_a_call_for_each(engine):
    calls = {name: call_of(name) for name in CALLS}
    for name, results in rotating.results_of_all(engine, calls).items():
        rotating.assert_close(results, one_by_one(name), what=name)


@each_writing_engine
def test_in_place(engine):
    expected = rotating.results_of_all(engine, {name: call_of(name) for name in CALLS})
    calls = {name: call_of(name, inplace=True) for name in CALLS}
    for call in calls.values():
        call.rotated = tuple(x.copy() for x in call.rotated)
    for name, results in rotating.results_of_all(engine, calls).items():
        for x, result, exact in zip(calls[name].rotated, results, expected[name], strict=True):
            np.testing.assert_array_equal(result, exact, err_msg=name)
            np.testing.assert_array_equal(x, result, err_msg=name)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("engine", ["operators", "plain"])
def test_gradients_are_the_transpose(engine, name):
    call = call_of(name)
    weights = tuple(heads(*x.shape, seed=7) for x in call.rotated)
    gradients = rotating.gradients_of(engine, call, weights)
    turned = Call(
        call.function, weights, call.others,
        {**call.named, "inverse": not call.named.get("inverse", False)},
    )  # fmt: skip
    expected = rotating.results_of("native", turned)
    rotating.assert_close(gradients, expected)


@pytest.mark.parametrize("engine", ["operators", "plain"])
def test_gradients_of_what_makes_the_angles(engine):
    torch = pytest.importorskip("torch")
    at_q = torch.tensor(FLOATS, requires_grad=True)
    at_k = torch.tensor(LONG / 7, requires_grad=True)
    freq = torch.tensor(FREQ, requires_grad=True)
    q, k = torch.tensor(Q), torch.tensor(K)
    with rotating.computing(engine):
        rotated = pn.apply_rotary_qk(q, k, (at_q, at_k), freq, rotary_start=(0, 0))
        total = sum((y * y.flip(-1) * 0.5).sum() for y in rotated)
        ours = torch.autograd.grad(total, (at_q, at_k, freq))
        alone = (pn.apply_rotary(q, at_q, freq), pn.apply_rotary(k, at_k, freq))
        total = sum((y * y.flip(-1) * 0.5).sum() for y in alone)
        theirs = torch.autograd.grad(total, (at_q, at_k, freq))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


# One of the two alone


@each_writing_engine
def test_one_alone(engine):
    names = ["lengths", "starts", "tables", "tables, starts"]
    cases = {
        f"{name}, {'qk'[i]}, inplace={inplace}": (name, i, inplace)
        for name, i, inplace in itertools.product(names, (0, 1), (False, True))
    }
    calls = {what: call_of(name, inplace=inplace) for what, (name, _, inplace) in cases.items()}
    for what, (_, i, _) in cases.items():
        rotated = enumerate(calls[what].rotated)
        calls[what].rotated = tuple(x.copy() if i == j else None for j, x in rotated)
    for what, results in rotating.results_of_all(engine, calls).items():
        name, i, inplace = cases[what]
        wanted = tuple(y if i == j else None for j, y in enumerate(one_by_one(name)))
        rotating.assert_close(results, wanted, what=what)
        if inplace:
            np.testing.assert_array_equal(calls[what].rotated[i], results[i], err_msg=what)


def test_one_alone_to_out(backend):
    out = np.empty_like(K)
    results = pn.apply_rotary_qk(None, K, (None, LONG), FREQ, out=(None, out))
    assert results[0] is None
    assert results[1] is out
    np.testing.assert_array_equal(out, pn.apply_rotary(K, LONG, FREQ))


def test_positions_of_two_tokens_are_no_pair(backend):
    q, k = Q[:, :, :2], K[:, :, :2]
    expected = pn.apply_rotary_qk(q, k, np.array([3, 9]), FREQ)
    for positions in ((3, 9), (3.0, np.float64(9))):
        for ours, theirs in zip(pn.apply_rotary_qk(q, k, positions, FREQ), expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_rotary_takes_pairs_too(backend):
    rope = pn.Rotary(8)
    expected = pn.apply_rotary(Q, SHORT, FREQ), pn.apply_rotary(K, LONG, FREQ)
    for ours, theirs in zip(rope(Q, K, (SHORT, LONG)), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert rope(None, K, LONG)[0] is None
    np.testing.assert_array_equal(rope(None, K, LONG)[1], expected[1])
    torch = pytest.importorskip("torch")
    q, k, at_k = torch.tensor(Q), torch.tensor(K), torch.tensor(LONG)
    both = rope(q, k, (torch.tensor(SHORT), LONG))
    alone = rope(q, None, torch.tensor(SHORT))[0], rope(None, k, at_k)[1]
    for results in (both, alone):
        rotating.assert_close(tuple(y.numpy() for y in results), expected)


# As other projects call it


def test_latent_attention_as_in_transformers():
    """DeepSeek-V3: a part of q beside a k of that part alone, in one call and no copy."""
    torch = outside.module("torch")
    modeling = outside.module("transformers.models.deepseek_v3.modeling_deepseek_v3")
    q = torch.tensor(heads(2, 16, 5, 192))
    k_pe = torch.tensor(heads(2, 5, 64, seed=1))[:, None]
    inv_freq, _ = pn.rotary.rotary_frequencies(64)
    cos, sin = (
        torch.cat([t, t], -1)[None]
        for t in pn.rotary_tables(torch.arange(5), torch.tensor(inv_freq))
    )
    q_rope, k_rope = modeling.apply_rotary_pos_emb(q[..., 128:], k_pe, cos, sin)
    expected = torch.cat([q[..., :128], q_rope], -1), k_rope
    options = {"rotary_start": (128, 0)}
    rotated = pn.apply_rotary_qk(q, k_pe, None, torch.tensor(inv_freq), **options)
    for ours, theirs in zip(rotated, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-6)
    addresses = q.data_ptr(), k_pe.data_ptr()
    pn.apply_rotary_qk(q, k_pe, None, torch.tensor(inv_freq), inplace=True, **options)
    assert addresses == (q.data_ptr(), k_pe.data_ptr())
    torch.testing.assert_close(q, rotated[0], rtol=0, atol=0)


def test_cross_attention_by_complex_numbers():
    """Queries of a target beside keys of a source, as view_as_complex code writes it."""
    q_at, k_at = np.array([4.0, 5.0, 6.0]), np.arange(7) * 1.5

    def turned(x: np.ndarray, positions: np.ndarray) -> np.ndarray:
        pairs = x.astype(np.float64).view(np.complex128)
        return (pairs * np.exp(1j * np.outer(positions, FREQ))).view(np.float64)

    rotated = pn.apply_rotary_qk(Q, K, (q_at, k_at), FREQ, pairing="interleaved")
    rotating.assert_close(rotated, (turned(Q, q_at), turned(K, k_at)))
