"""Calls of tensors that the operators and the composition once took differently from the reference.

Found by `python -m fuzz`; the same calls of arrays are in the tables of bad calls.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import posenc_native as pn

torch = pytest.importorskip("torch")

from torch_cases import needs_operators, plain_operations  # noqa: E402

UNSIGNED = [torch.uint8, torch.uint16, torch.uint32, torch.uint64]
FREQ = torch.tensor([1.0, 0.1])


def x(*shape):
    return torch.arange(float(np.prod(shape))).reshape(shape)


@pytest.mark.parametrize("dtype", UNSIGNED)
def test_the_composition_takes_integers_of_every_dtype(dtype):
    index = torch.tensor([0, 1, 2, 2, 1, 0]).to(dtype)
    offset = torch.tensor([0, 1]).to(dtype)
    axis_map = torch.tensor([1, 0]).to(dtype)
    scores, table = x(2, 3, 4), x(9)
    calls = [
        lambda i, o, a: pn.relative_gather(x(2, 3, 3), i, 4),
        lambda i, o, a: pn.relative_scatter(scores, i, 3),
        lambda i, o, a: pn.add_toeplitz_bias(scores, table, origin=4, q_offset=o),
        lambda i, o, a: pn.diagonal_sums(scores, keep=0, entries=9, origin=4, q_offset=o),
        lambda i, o, a: pn.apply_rotary(x(5, 4), x(2, 5), FREQ, axis_map=a, layout="sd"),
        lambda i, o, a: pn.rotary_tables(x(2, 5), FREQ, axis_map=a)[1],
    ]
    for call in calls:
        with plain_operations():
            result = call(index, offset, axis_map)
            assert torch.equal(result, call(index.long(), offset.long(), axis_map.long()))


@needs_operators
def test_another_name_of_uint64():
    """NumPy's ulonglong is one, which torch does not know."""
    axis_map, index = np.array([0, 1], np.ulonglong), np.zeros(7, np.ulonglong)
    for call in (
        lambda a, i: pn.apply_rotary(x(5, 4), x(2, 5), FREQ, axis_map=a, layout="sd"),
        lambda a, i: pn.relative_gather(x(4, 5), i, 4),
    ):
        assert torch.equal(call(axis_map, index), call(axis_map.astype("i8"), index.astype("i8")))


@needs_operators
def test_an_inverse_of_another_kind_is_true_or_false_as_for_arrays():
    q = x(1, 1, 3, 4)
    for given, inverse in itertools.product([1, "x", 0, np.bool_(True)], [True, False]):
        same = bool(given) == inverse
        for result, expected in zip(
            pn.apply_rotary_qk(q, q, None, FREQ, inverse=given),
            pn.apply_rotary_qk(q, q, None, FREQ, inverse=inverse),
            strict=True,
        ):
            assert torch.equal(result, expected) == same


@pytest.mark.usefixtures("backend")
def test_cosines_of_tokens_go_with_sines_of_every_batch_row():
    q = np.arange(48.0).reshape(2, 6, 4)
    cos, sin = np.full((6, 2), 0.5), np.arange(24.0).reshape(2, 6, 2)
    result = pn.apply_rotary(q, None, pn.Tables(cos, sin), layout="bsd")
    expected = pn.apply_rotary(q, None, pn.Tables(np.stack([cos, cos]), sin), layout="bsd")
    np.testing.assert_array_equal(result, expected)


@pytest.mark.usefixtures("backend")
def test_no_pairs_in_blocks_of_any_size():
    q = np.arange(12.0).reshape(3, 4)
    result = pn.apply_rotary(q, None, np.ones(0), layout="sd", pairing=2**62)
    np.testing.assert_array_equal(result, q)
