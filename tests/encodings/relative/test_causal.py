"""causal=True: keys after the query are worth -inf; all else is as without it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import posenc_native as pn

Q_LEN, K_LEN, H = 3, 6, 2
WINDOW = (Q_LEN, K_LEN)
TABLE = np.random.default_rng(0).standard_normal((8, H)).astype(np.float32)
SLOPES = np.array([0.5, 0.25])
AT = np.arange(Q_LEN), np.arange(K_LEN)


def laid(diagonals: Any) -> Any:
    return pn.toeplitz_bias(diagonals, *WINDOW)


def added(diagonals: Any, **options: Any) -> Any:
    zeros = np.zeros((H, *WINDOW), np.float32)
    if not isinstance(diagonals, np.ndarray):
        zeros = diagonals.new_zeros(zeros.shape)
    return pn.add_toeplitz_bias(zeros, diagonals, **options)


# name: (learned numbers, the bias made of them at an offset). A list of offsets has a batch.
BIASES: dict[str, tuple[Any, Any]] = {
    "alibi_diagonals": (
        SLOPES,
        lambda x, **o: laid(pn.relative.alibi_diagonals(H, *WINDOW, slopes=x, **o)),
    ),
    "alibi_diagonals, rising": (
        SLOPES,
        lambda x, **o: laid(
            pn.relative.alibi_diagonals(H, *WINDOW, slopes=x, symmetric=False, **o)
        ),
    ),
    "t5_diagonals": (TABLE, lambda x, **o: laid(pn.relative.t5_diagonals(x, *WINDOW, **o))),
    "t5_diagonals, half": (
        TABLE.astype(np.float16), lambda x, **o: laid(pn.relative.t5_diagonals(x, *WINDOW, **o)),
    ),
    "clipped_diagonals": (
        TABLE, lambda x, **o: laid(pn.relative.clipped_diagonals(x, *WINDOW, left=5, **o)),
    ),
    "kerple_diagonals": (
        SLOPES,
        lambda x, **o: laid(pn.relative.kerple_diagonals(x, x, *WINDOW, **o)),
    ),
    "kerple_diagonals, power": (
        SLOPES,
        lambda x, **o: laid(
            pn.relative.kerple_diagonals(x, x, *WINDOW, kind="power", symmetric=True, **o)
        ),
    ),
    "sandwich_diagonals": (
        None, lambda x, **o: laid(pn.relative.sandwich_diagonals(H, *WINDOW, dim=8, **o)),
    ),
    "fire_bias": (
        SLOPES[:1],
        lambda x, **o: pn.relative.fire_bias(
            *WINDOW, lambda y: y[..., [0, 0]], c=x, threshold=2.0, **o
        ),
    ),
    "toeplitz_bias": (
        np.ascontiguousarray(np.vstack([TABLE, -TABLE]).T),
        lambda x, **o: pn.toeplitz_bias(x, *WINDOW, origin=9, **o),
    ),
    "add_toeplitz_bias": (
        np.ascontiguousarray(np.vstack([TABLE, -TABLE]).T), lambda x, **o: added(x, origin=9, **o),
    ),
}  # fmt: skip


def hidden(q_offset: Any) -> Any:
    """Which keys are after their query, with an axis of heads."""
    first = np.asarray(q_offset)[..., None, None, None]
    return (np.arange(K_LEN) > first + np.arange(Q_LEN)[:, None]) & np.ones((H, 1, 1), bool)


OFFSETS = {"0": 0, "behind a cache": 3, "before the keys": -1, "each row its own": [1, 0]}


@pytest.mark.parametrize("q_offset", OFFSETS.values(), ids=OFFSETS)
@pytest.mark.parametrize("name", BIASES)
def test_later_keys_are_masked_and_nothing_else_changes(name, q_offset):
    numbers, call = BIASES[name]
    if name == "add_toeplitz_bias" and isinstance(q_offset, list):
        pytest.skip("the scores of these cases have no batch")
    plain = call(numbers, q_offset=q_offset)
    masked = call(numbers, q_offset=q_offset, causal=True)
    assert masked.dtype == plain.dtype
    np.testing.assert_array_equal(masked, np.where(hidden(q_offset), -np.inf, plain))
    np.testing.assert_array_equal(plain, call(numbers, q_offset=q_offset, causal=False))

    torch = pytest.importorskip("torch")
    offset = torch.tensor(q_offset) if isinstance(q_offset, list) else q_offset
    learned = None if numbers is None else torch.tensor(numbers, requires_grad=True)
    place = {"device": "cpu"} if numbers is None else {}
    ours = call(learned, q_offset=offset, causal=True, **place)
    # The last place may differ where torch computes the functions.
    step = np.finfo(masked.dtype).eps
    np.testing.assert_allclose(np.asarray(ours.detach()), masked, rtol=4 * step)
    if learned is None or q_offset == -1:  # row 0 sees nothing, so its softmax is NaN
        return
    # The gradient of a plain composition in which the masked numbers were never used.
    target = torch.linspace(-1, 1, ours.numel()).view(ours.shape)
    (ours.float().softmax(-1) * target).sum().backward()
    again = torch.tensor(numbers, requires_grad=True)
    bias = call(again, q_offset=offset).float()
    seen = torch.tensor(~np.broadcast_to(hidden(q_offset), bias.shape))
    weights = torch.where(seen, bias.exp(), 0.0)
    (weights / weights.sum(-1, keepdim=True) * target).sum().backward()
    assert learned.grad.isfinite().all()
    bound = 1e-2 if learned.dtype == torch.float16 else 1e-5
    torch.testing.assert_close(learned.grad, again.grad, rtol=bound, atol=bound)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_masked_scores_are_minus_infinity_in_every_dtype(dtype):
    torch = pytest.importorskip("torch")
    scores = torch.full((1, H, 4, 4), 6e4, dtype=getattr(torch, dtype))
    pn.add_toeplitz_bias(scores, torch.zeros(H, 7), causal=True, out=scores)
    seen = torch.ones(4, 4).tril().bool()
    assert (scores[..., ~seen] == -torch.inf).all()
    assert (scores[..., seen] == torch.tensor(6e4, dtype=scores.dtype)).all()


def test_at_any_positions():
    """Where later keys are masked, their distances need no entry."""
    positions = np.array([[0, 0, 1, 2], [3, 1, 9, 4]])
    past = np.array([[-3.0, -2.0, -1.0, 0.0]])  # entries of distances -3 .. 0
    queries = np.array([[2], [4]])
    bias = pn.relative.bias_at_positions(past, queries, positions, origin=3, causal=True)
    expected = [[[[-2, -2, -1, 0]]], [[[-1, -3, -np.inf, 0]]]]
    np.testing.assert_array_equal(bias, expected)
    torch = pytest.importorskip("torch")
    table = torch.tensor(past, requires_grad=True)
    ours = pn.relative.bias_at_positions(
        table, torch.tensor(queries), torch.tensor(positions), origin=3, causal=True
    )
    np.testing.assert_array_equal(ours.detach(), expected)
    ours.exp().sum().backward()
    np.testing.assert_allclose(table.grad, np.exp(past) * [[1, 2, 2, 2]])


X = np.zeros((H, 5), np.float32)
BAD = {
    "no bool": (TypeError, "causal", lambda: pn.toeplitz_bias(X, 3, 3, causal=1)),
    "no bool, diagonals": (
        TypeError,
        "causal",
        lambda: pn.relative.alibi_diagonals(2, 3, 3, causal="yes"),
    ),
    "no bool, FIRE": (
        TypeError,
        "causal",
        lambda: pn.relative.fire_bias(2, 2, lambda x: x, causal=None),
    ),
    "no bool, anywhere": (
        TypeError, "causal", lambda: pn.relative.bias_at_positions(X, AT[0], AT[0], causal=0),
    ),
    "where queries are is unknown": (
        ValueError, "origin", lambda: pn.toeplitz_bias(X, 1, 5, causal=True),
    ),
    "a grid has no order": (
        ValueError, "causal",
        lambda: pn.toeplitz_bias(np.zeros((H, 3, 3)), (2, 2), (2, 2), causal=True),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_errors(name):
    error, argument, call = BAD[name]
    with pytest.raises(error, match=rf"^\w+: {argument}: expected "):
        call()
