"""out=(q_out, k_out): memory of the caller for both results of a call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import rotating
from rotating import Call, each_writing_engine

import posenc_native as pn

FREQ = pn.rotary.rotary_frequencies(8)[0]
PLACES = np.array([3, 0, 70000, 5, 1])
COS, SIN = pn.rotary_tables(PLACES, FREQ)
FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "apply_rotary_qk": (PLACES, FREQ),
    "apply_rotary_qk by tables": (COS, SIN),
}


def heads(h: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((2, h, 5, 8)).astype(np.float32)


@pytest.mark.parametrize("itself", [(), (0,), (1,), (0, 1)], ids=str)
@pytest.mark.parametrize("function", FUNCTIONS)
@each_writing_engine
def test_each_may_stay_where_it_is(engine, function, itself):
    q, k = heads(3), heads(1, 1)
    expected = rotating.public(function)(q, k, *FUNCTIONS[function])
    out = tuple(
        x if i in itself else np.full(x.shape, np.nan, np.float32) for i, x in enumerate((q, k))
    )
    kept = [x.copy() for x in (q, k)]
    results = rotating.results_of(engine, Call(function, (q, k), FUNCTIONS[function], {"out": out}))
    rotating.assert_close(results, expected)
    for i, x in enumerate((q, k)):
        np.testing.assert_array_equal(out[i], results[i])
        if i not in itself:
            np.testing.assert_array_equal(x, kept[i])


@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_pair_itself_is_returned(backend, function):
    q, k = heads(3), heads(1, 1)
    out = np.empty_like(q), k
    results = rotating.public(function)(q, k, *FUNCTIONS[function], out=out)
    assert all(ours is given for ours, given in zip(results, out, strict=True))


def test_parts_of_one_buffer(backend):
    """A cache that has rows of keys and of queries in turn."""
    q, k = heads(2), heads(2, 1)
    memory = np.zeros((2, 4, 5, 16), np.float32)
    out = memory[:, ::2, :, :8], memory[:, ::2, :, 8:]
    pn.apply_rotary_qk(q, k, PLACES, FREQ, out=out)
    for got, expected in zip(out, pn.apply_rotary_qk(q, k, PLACES, FREQ), strict=True):
        np.testing.assert_array_equal(got, expected)
    assert not memory[:, 1::2].any()


def test_with_gradients_only_in_place():
    torch = pytest.importorskip("torch")
    q, k = torch.tensor(heads(3), requires_grad=True), torch.tensor(heads(1, 1))
    freq = torch.tensor(FREQ)
    for other in ((torch.empty_like(q).detach(), k), (torch.empty(q.shape), torch.empty(k.shape))):
        with pytest.raises(
            ValueError, match=r"^apply_rotary_qk: out: expected no out, or \(q, k\)"
        ):
            pn.apply_rotary_qk(q, k, None, freq, out=other)
    moved, moved_k = q * 1, k * 1
    pn.apply_rotary_qk(moved, moved_k, None, freq, out=(moved, moved_k))
    moved.sum().backward()
    assert q.grad is not None
    expected = pn.apply_rotary(torch.ones_like(q), None, freq, inverse=True)
    torch.testing.assert_close(q.grad, expected)
    learned = freq.clone().requires_grad_()
    with pytest.raises(ValueError, match=r"^apply_rotary_qk: out: expected no out"):
        pn.apply_rotary_qk(k, k, None, learned, out=(k, torch.empty_like(k)))


def test_autograd_learns_of_what_was_written():
    torch = pytest.importorskip("torch")
    q, k, freq = torch.tensor(heads(3)), torch.tensor(heads(1)), torch.tensor(FREQ)
    for size in (1, 200):  # by the NumPy module, by the operator
        x, y = q.repeat(size, 1, 1, 1), k.repeat(size, 1, 1, 1)
        out = torch.empty_like(x), torch.empty_like(y)
        before = [t._version for t in out]
        pn.apply_rotary_qk(x, y, None, freq, out=out)
        assert [t._version for t in out] == [version + 1 for version in before]


@pytest.mark.parametrize("function", FUNCTIONS)
@each_writing_engine
def test_an_axis_of_size_1_may_have_another_stride(engine, function):
    """A view of q itself is memory of q, as where strides are equal."""
    q, k = heads(3)[:1], heads(1, 1)[:1]
    expected = rotating.public(function)(q, k, *FUNCTIONS[function])
    view = np.lib.stride_tricks.as_strided(q, q.shape, (4, *q.strides[1:]))
    call = Call(function, (q, k), FUNCTIONS[function], {"out": (view, k)})
    rotating.assert_close(rotating.results_of(engine, call), expected)
