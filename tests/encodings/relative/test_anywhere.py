"""`bias_at_positions`: the bias of tokens at any positions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import posenc_native as pn
from posenc_native.core.calls.errors import fault_of

RANDOM = np.random.default_rng(0)
Q, K = RANDOM.integers(0, 20, (3, 4)), RANDOM.integers(0, 20, (3, 6))


def formula(diagonals: Any, q: Any, k: Any, origin: int) -> Any:
    """One number at a time."""
    result = np.empty((len(q), diagonals.shape[-2], q.shape[1], k.shape[1]), diagonals.dtype)
    for b, h, i, j in np.ndindex(*result.shape):
        of_row = diagonals if diagonals.ndim == 2 else diagonals[b]
        result[b, h, i, j] = of_row[h, k[b, j] - q[b, i] + origin]
    return result


@pytest.mark.parametrize("batch", [(), (3,)])
def test_the_formula(batch: tuple[int, ...]) -> None:
    diagonals = RANDOM.standard_normal((*batch, 5, 39)).astype(np.float32)
    expected = formula(diagonals, Q, K, 19)
    np.testing.assert_array_equal(pn.relative.bias_at_positions(diagonals, Q, K), expected)
    same = formula(diagonals, Q, np.stack([K[0]] * 3), 19)
    np.testing.assert_array_equal(pn.relative.bias_at_positions(diagonals, Q, K[0]), same)
    if not batch:
        np.testing.assert_array_equal(
            pn.relative.bias_at_positions(diagonals, Q[0], K[0]), expected[0]
        )
    torch = pytest.importorskip("torch")
    table = torch.tensor(diagonals, requires_grad=True)
    ours = pn.relative.bias_at_positions(table, torch.tensor(Q), torch.tensor(K))
    np.testing.assert_array_equal(ours.detach(), expected)
    ours.sum().backward()
    counts = np.bincount((K[:, None] - Q[:, :, None] + 19).ravel(), minlength=39)
    grad = table.grad.sum(0) if batch else table.grad
    np.testing.assert_array_equal(grad[0], counts)


def test_tokens_that_count_up_are_toeplitz() -> None:
    diagonals = pn.relative.alibi_diagonals(6, 9, 9)
    ours = pn.relative.bias_at_positions(diagonals, np.arange(9), np.arange(9))
    np.testing.assert_array_equal(ours, pn.toeplitz_bias(diagonals, 9, 9))


def test_alibi_of_bloom_in_padded_rows() -> None:
    torch = pytest.importorskip("torch")
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]])
    theirs = bloom.build_alibi_tensor(mask, 12, torch.float32).view(3, 12, 1, 6)
    positions = pn.positions.padded_positions(mask)
    ours = pn.relative.bias_at_positions(
        pn.relative.alibi_diagonals(12, 6, 6, symmetric=False, device="cpu"), positions, positions
    )
    # Theirs is slope * key, ours slope * (key - query): a constant a row, which softmax takes out.
    there = mask[:, None, None, :].bool().expand_as(ours)
    shift = (theirs - ours)[..., :1] * 0 + (
        torch.as_tensor(pn.relative.alibi_slopes(12), dtype=torch.float32)[None, :, None, None]
        * positions[:, None, :, None]
    )
    torch.testing.assert_close(ours[there], (theirs - shift)[there], rtol=0, atol=1e-6)


def test_t5_at_any_positions() -> None:
    torch = pytest.importorskip("torch")
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    table = torch.randn(32, 4)
    q, k = torch.tensor([[7, 0, 300]]), torch.tensor([[0, 299, 12, 12]])
    bucket = t5.T5Attention._relative_position_bucket(k[:, None, :] - q[:, :, None])
    ours = pn.relative.bias_at_positions(pn.relative.t5_diagonals(table, 301, 301), q, k)
    torch.testing.assert_close(ours, table[bucket].permute(0, 3, 1, 2), rtol=0, atol=0)


def test_while_torch_traces() -> None:
    torch = pytest.importorskip("torch")
    diagonals = torch.randn(5, 39)
    q, k = torch.tensor(Q), torch.tensor(K)
    torch.compiler.reset()
    follow = torch.compile(pn.relative.bias_at_positions, fullgraph=True, backend="eager")
    assert torch.equal(follow(diagonals, q, k), pn.relative.bias_at_positions(diagonals, q, k))


D = np.zeros((2, 9), np.float32)


@pytest.mark.parametrize("kind", ["NumPy", "torch"])
@pytest.mark.parametrize(
    ("error", "argument", "given"),
    [
        (ValueError, "diagonals", (D[0], Q[0], Q[0])),
        (ValueError, "diagonals", (D[:, :8], Q[0], Q[0])),
        (ValueError, "diagonals", (D, np.array([0]), np.array([5]))),
        (TypeError, "diagonals", (D.astype(int), Q[0], Q[0])),
        (ValueError, "q_positions", (D, Q[None], Q[0])),
        (TypeError, "q_positions", (D, Q[0] * 1.0, Q[0])),
        (ValueError, "k_positions", (D, Q, K[:2])),
        (ValueError, "q_positions", (np.zeros((2, 2, 39), np.float32), Q, K)),
    ],
)
def test_errors(kind: str, error: type[Exception], argument: str, given: Any) -> None:
    if kind == "torch":
        torch = pytest.importorskip("torch")
        given = [torch.tensor(value) for value in given]
    with pytest.raises(error) as raised:
        pn.relative.bias_at_positions(*given)
    fault = fault_of(raised.value)
    assert fault is not None
    assert (fault.function, fault.argument) == ("bias_at_positions", argument)
